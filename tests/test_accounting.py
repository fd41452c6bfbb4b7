"""Accounting methods on a run one can add up by hand."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from curtailsim.accounting import methods, spread
from curtailsim.scenario import Accounting, Scenario, load


def scenario(tmp_path: Path, **notebook: object) -> Scenario:
    """One site of 1 kW idle and 3 kW training; intensity 0 g/kWh in the first 5 minutes, then 600."""
    trace = tmp_path / "mci.csv"
    rows = ["2026-01-01T00:00:00Z,0", "2026-01-01T00:05:00Z,600", "2026-01-01T00:10:00Z,600"]
    trace.write_text("\n".join(["time,mci", *rows]) + "\n", encoding="utf-8")
    return load(
        {
            "name": "hand",
            "start": "2026-01-01T00:00:00Z",
            "duration_h": 0.25,
            "workload": {"parameters": 1, "tokens_per_step": 1},
            "sites": [
                {
                    "name": "a",
                    "cluster": {"count": 1, "step_time_s": 10, "idle_kw": 1, "train_kw": 3},
                    "mci": {"type": "trace", "path": str(trace), "value": "mci", "unit": "g/kWh"},
                }
            ],
            "training": {"learner": {"type": "tokens_only"}},
            "accounting": {
                "curtailed_share": "mci_below",
                "curtailed_below_g_per_kwh": 100,
                "notebook": {"step_s": 60, **notebook},
            },
        }
    )


EVENTS = pd.DataFrame(
    [(60.0, "provisioned", "a"), (600.0, "released", "a"), (600.0, "training_finished", "")],
    columns=["time_s", "event", "site"],
)
# Idle from 60 to 110 s, training from 110 to 510 s (40 steps of 10 s), idle again to 600 s.
SEGMENTS = pd.DataFrame([("a", 1, 110.0, 10.0, 40)], columns=["site", "round", "start_s", "step_s", "steps"])
INTERVALS = pd.DataFrame(
    [
        ("a", 0.0, 60.0, "off", 0.0, 0.0),
        ("a", 60.0, 110.0, "waiting", 1.0, 0.0),
        ("a", 110.0, 300.0, "training", 3.0, 0.0),
        ("a", 300.0, 510.0, "training", 3.0, 600.0),
        ("a", 510.0, 600.0, "waiting", 1.0, 600.0),
        ("a", 600.0, 900.0, "off", 0.0, 600.0),
    ],
    columns=["site", "start_s", "end_s", "phase", "facility_kw", "mci_g_per_kwh"],
).assign(storage_kw=0.0, surplus_used_kw=0.0)


def figures(tmp_path: Path, **notebook: object) -> dict[str, dict[str, float | None]]:
    """Every method on the run above."""
    asked = scenario(tmp_path, **notebook)
    return methods(asked, list(asked.sites), INTERVALS, EVENTS, SEGMENTS)


def test_exact_is_the_integral(tmp_path: Path) -> None:
    """50 s and 90 s of 1 kW, 400 s of 3 kW, 210 s and 90 s of it at 600 g/kWh."""
    found = figures(tmp_path)["exact"]
    assert (50 + 90 + 1200) / 3600 == pytest.approx(found["energy_kwh"])
    assert (210 * 3 + 90) / 3600 * 0.6 == pytest.approx(found["emissions_kg"])
    assert (50 + 190 * 3) / 1340 == pytest.approx(found["curtailed_share"])


def test_training_only_leaves_idle_power_out(tmp_path: Path) -> None:
    """400 s of 3 kW."""
    assert 1200 / 3600 == pytest.approx(figures(tmp_path)["training_only"]["energy_kwh"])


def test_notebook_samples_a_grid_with_a_held_signal(tmp_path: Path) -> None:
    """Instants 60 s apart: 60 idle, 120 to 480 training (seven), 540 and 600 idle; from 300 s on at 600 g/kWh."""
    found = figures(tmp_path, interpolated=False)["notebook"]
    assert (7 * 3 + 3) * 60 / 3600 == pytest.approx(found["energy_kwh"])
    assert (4 * 3 + 2) * 60 / 3600 * 0.6 == pytest.approx(found["emissions_kg"])


def test_notebook_interpolates_and_shifts_the_signal(tmp_path: Path) -> None:
    """Linear from 0 g/kWh at 0 s to 600 at 300 s; read 60 s earlier, every instant sees 120 g/kWh less."""
    instants = np.array([120, 180, 240, 300, 360, 420, 480])
    plain = figures(tmp_path)["notebook_training_only"]
    late = figures(tmp_path, signal_shift_s=-60)["notebook_training_only"]
    weight = 3 * 60 / 3600 / 1000
    assert np.minimum(2 * instants, 600).sum() * weight == pytest.approx(plain["emissions_kg"])
    assert np.minimum(2 * (instants - 60), 600).sum() * weight == pytest.approx(late["emissions_kg"])


def test_a_longer_pause_than_the_gap_begins_a_new_segment(tmp_path: Path) -> None:
    """Two segments 30 s apart are one stretch with a gap of 60 s, and two with a gap of 20 s."""
    two = pd.DataFrame(
        [("a", 1, 110.0, 10.0, 10), ("a", 2, 230.0, 10.0, 28)],
        columns=["site", "round", "start_s", "step_s", "steps"],
    )
    asked = scenario(tmp_path, step_s=1, gap_s=60), scenario(tmp_path, step_s=1, gap_s=20)
    joined, parted = (
        methods(a, list(a.sites), INTERVALS, EVENTS, two)["notebook_training_only"]["energy_kwh"] for a in asked
    )
    assert 3 * (510 - 120 + 1) / 3600 == pytest.approx(joined)
    assert 3 * (210 - 120 + 1 + 510 - 240 + 1) / 3600 == pytest.approx(parted)


def test_spread_is_the_largest_over_the_smallest() -> None:
    """Methods without a value do not count."""
    found = {"a": {"x": 1.0}, "b": {"x": 1.05}, "c": {"x": None}}
    assert 0.05 == pytest.approx(spread(found, "x"))
    assert spread(found, "y") is None


def test_a_share_that_nothing_is_known_of_is_not_zero(tmp_path: Path) -> None:
    """By physical surplus, a site without generation data has none."""
    asked = scenario(tmp_path)
    physical = asked.model_copy(update={"accounting": Accounting()})
    found = methods(physical, list(physical.sites), INTERVALS, EVENTS, SEGMENTS)
    assert {None} == {figures["curtailed_share"] for figures in found.values()}
