"""The published marginal-intensity trace opens the windows it should: exact times, at exactly these thresholds.

The oracle was read off the trace by hand: each row held for 5 minutes, UTC, 11 and 12 January 2026.
"""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest
from shared import shared_data

from curtailsim.metrics import RunTables
from curtailsim.scenario import Scenario, load
from curtailsim.simulation import HEADLINE, plans, simulate

SCENARIO = Path(__file__).parents[1] / "scenarios" / "real_trace.yaml"

WINDOWS = {
    "california": [("11 17:05", "11 19:05"), ("11 19:20", "11 23:25")],
    "texas": [("12 03:05", "12 03:15"), ("12 03:20", "12 09:25"), ("12 09:30", "12 10:05")],
    "south_australia": [("11 21:40", "12 08:10")],
}
LATER_FROM_150 = {
    "california": WINDOWS["california"],
    "texas": [*WINDOWS["texas"][:2], ("12 09:30", "12 10:10")],
    "south_australia": [("11 21:35", "12 08:10")],
}


@pytest.fixture(autouse=True)
def _trace(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CURTAILSIM_DATA", str(shared_data("curtail_llm_mci.csv").parent))


def ran(threshold: float) -> tuple[Scenario, RunTables]:
    """The curtailment-aware run at a threshold, counting tokens only, to the end of the trace."""
    asked = ("training.learner={type: tokens_only}", "workload.total_tokens=null")
    scenario = load(SCENARIO, [*asked, f"policy.threshold_g_per_kwh={threshold}"])
    return scenario, simulate(scenario, next(plans(scenario)))[HEADLINE]


def windows(scenario: Scenario, tables: RunTables, site: str) -> list[tuple[str, str]]:
    """Day and time at which a site's windows open and close."""
    own = tables.events[tables.events.site == site]
    opened, closed = (own.time_s[own.event == name] for name in ("window_opened", "window_closed"))
    stamp = [f"{scenario.start + timedelta(seconds=time):%d %H:%M}" for time in opened]
    return list(zip(stamp, [f"{scenario.start + timedelta(seconds=time):%d %H:%M}" for time in closed], strict=True))


@pytest.mark.parametrize(
    ("threshold", "expected"), [(100, WINDOWS), (150, LATER_FROM_150), (300, LATER_FROM_150)], ids=["100", "150", "300"]
)
def test_windows(threshold: float, expected: dict[str, list[tuple[str, str]]]) -> None:
    """As listed, to the minute."""
    scenario, tables = ran(threshold)
    assert {site.name: windows(scenario, tables, site.name) for site in scenario.sites} == expected


def test_sites_train_inside_their_windows_and_the_delays() -> None:
    """Ready 240 s after a window opens, given back 600 s after it closes; the short gaps are bridged."""
    scenario, tables = ran(100)
    own = tables.events[tables.events.site == "california"]
    times = {name: own.time_s[own.event == name].tolist() for name in ("provisioned", "deprovision_mark_cleared")}
    opened = [300.0, 8400.0]
    assert times["provisioned"] == [time + 240 for time in opened]
    assert times["deprovision_mark_cleared"] == []
    texas = tables.events[tables.events.site == "texas"]
    assert texas.event.tolist().count("deprovision_mark_cleared") == 2
    assert texas.event.tolist().count("provisioned") == 1
    assert tables.intervals.end_s.max() == scenario.duration_h * 3600


def test_almost_all_energy_is_counted_as_curtailed() -> None:
    """Without generation data the share is a proxy: energy drawn while marginal intensity is below 100 g/kWh."""
    _, tables = ran(100)
    assert 0.9 < tables.summary["curtailed_share"] < 1
    assert tables.summary["surplus_available_kwh"] == 0
