"""Small scenarios that can be computed by hand, and ways to look at what happened in them.

Unless a test says otherwise a cluster takes 10 s per step of 100 tokens, draws 1 kW when idle and 4 kW while it
trains, and the clock starts at noon UTC.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from curtailsim.metrics import RunTables
from curtailsim.scenario import load
from curtailsim.simulation import HEADLINE, World, plans

START = datetime(2026, 1, 1, 12, tzinfo=UTC)
UNITS = {"mci": "g/kWh", "average_ci": "g/kWh", "price": "USD/MWh", "generation": "kW", "absorption": "kW"}

LIFE = (
    "window_opened",
    "window_closed",
    "provisioning_started",
    "provisioned",
    "deprovision_marked",
    "deprovision_mark_cleared",
    "deprovisioned",
    "power_lost",
)
"""Events of a site's life."""

ROUNDS = ("round_started", "round_ended", "round_empty", "round_truncated", "aggregated", "training_finished")
"""Events of the training."""

Pieces = Sequence[tuple[int, float]]
"""A step function: (second it begins, value), the first at second 0."""


def signal(kind: str, value: float | Pieces, folder: Path | None = None, end_s: int = 7200) -> dict[str, Any]:
    """A constant signal, or a trace of the given pieces, written to a file of its own in `folder`.

    Args:
        kind: mci, average_ci, price, generation or absorption; gives the unit.
        value: A number, or pieces.
        folder: Where the file goes.
        end_s: The trace covers at least so many seconds.
    """
    if isinstance(value, int | float):
        return {"type": "constant", "value": value, "unit": UNITS[kind]}
    assert folder is not None
    stamps = [stamp for stamp, _ in value]
    step = math.gcd(*stamps) or end_s
    path = folder / f"{kind}_{len(list(folder.iterdir()))}.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["time", kind])
        held = iter([*value, (math.inf, 0.0)])
        now, following = next(held), next(held)
        for stamp in range(0, max(end_s, stamps[-1] + step) + step, step):
            if stamp >= following[0]:
                now, following = following, next(held)
            writer.writerow([(START + timedelta(seconds=stamp)).isoformat(), repr(float(now[1]))])
    return {"type": "trace", "path": str(path), "value": kind, "unit": UNITS[kind]}


def cluster(**changes: Any) -> dict[str, Any]:
    """A cluster of round numbers."""
    return {"count": 4, "step_time_s": 10, "idle_kw": 1, "train_kw": 4, **changes}


def site(name: str = "a", folder: Path | None = None, **parts: Any) -> dict[str, Any]:
    """A site; numbers and pieces under the name of a signal become that signal."""
    made = {"name": name, "cluster": parts.pop("cluster", None) or cluster(), "mci": parts.pop("mci", 500)}
    for key, value in {**made, **parts}.items():
        made[key] = signal(key, value, folder) if key in UNITS and not isinstance(value, dict) else value
    return made


def world(*sites: dict[str, Any], hours: float = 1, **parts: Any) -> dict[str, Any]:
    """A scenario of these sites that counts tokens only, in rounds of 600 s."""
    workload = {"parameters": 1e6, "tokens_per_step": 100, **parts.pop("workload", {})}
    training = {"learner": {"type": "tokens_only"}, **parts.pop("training", {})}
    own = {"name": "world", "start": START.isoformat(), "duration_h": hours}
    return {**own, "workload": workload, "sites": list(sites), "training": training, **parts}


def below(threshold: float = 100, **hysteresis: float) -> dict[str, Any]:
    """Train while the marginal carbon intensity is below a threshold."""
    return {"type": "threshold", "threshold_g_per_kwh": threshold, **hysteresis}


def built(scenario: dict[str, Any]) -> World:
    """The curtailment-aware world of a scenario, run."""
    checked = load(scenario)
    made = World(checked, next(plans(checked)))
    made.run()
    return made


def played(scenario: dict[str, Any]) -> RunTables:
    """The tables of the curtailment-aware run."""
    return built(scenario).tables()[HEADLINE]


def happened(tables: RunTables, *names: str) -> list[tuple[float, str, str]]:
    """(time_s, event, site) of all events of these names, or else of sites' lives and of the training."""
    listed = tables.events[["time_s", "event", "site"]].itertuples(index=False, name=None)
    return [row for row in listed if row[1] in (names or LIFE + ROUNDS)]


def lived(tables: RunTables, name: str) -> list[tuple[float, str]]:
    """(time_s, event) of one site's life."""
    return [(time, event) for time, event, own in happened(tables, *LIFE) if own == name]


def powers(tables: RunTables, name: str = "a") -> list[tuple[float, float, str, float]]:
    """(start_s, end_s, phase, facility_kw) of a site's intervals, neighbours alike joined."""
    own = tables.intervals[tables.intervals.site == name]
    joined: list[tuple[float, float, str, float]] = []
    for start, end, phase, kw in zip(own.start_s, own.end_s, own.phase, own.facility_kw, strict=True):
        if joined and joined[-1][2:] == (phase, kw):
            start = joined.pop()[0]
        joined.append((start, end, str(phase), kw))
    return joined


def flows(tables: RunTables, *columns: str) -> list[tuple[float, ...]]:
    """(start_s, end_s, *columns, stored_kwh at the end) of the first site's intervals, neighbours alike joined."""
    own = tables.intervals[tables.intervals.site == tables.intervals.site.iloc[0]]
    joined: list[tuple[float, ...]] = []
    for start, end, *values, stored in own[["start_s", "end_s", *columns, "stored_kwh"]].itertuples(index=False):
        if joined and joined[-1][2:-1] == tuple(values):
            start = joined.pop()[0]
        joined.append((start, end, *values, stored))
    return joined
