"""What does each site see?  Piecewise-constant signals on the scenario's clock, in one unit per quantity.

A signal's value holds from its time stamp until the next one.  Clock times are whole milliseconds since the
scenario's start; signals change at whole seconds, which is how Vessim samples them.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import vessim

from curtailsim.energy.traces import Quantity, Trace, TraceError, TraceSpec, convert_constant, load_trace

if TYPE_CHECKING:
    from curtailsim.scenario import Site

QUANTITIES: dict[str, Quantity] = {
    "mci": "carbon_intensity",
    "average_ci": "carbon_intensity",
    "price": "price",
    "generation": "power",
    "absorption": "power",
}


PER_UNIT = ("1", "fraction", "%")
"""Units of a generation profile per unit of its plant."""


class SignalError(ValueError):
    """One or more signals of a site cannot be used."""

    def __init__(self, problems: list[tuple[str, str]]) -> None:
        self.problems = problems
        super().__init__("; ".join(f"{key}: {message}" for key, message in problems))


class Steps(vessim.Signal):
    """A step function of time, exact: `values[i]` holds in [times_ms[i], times_ms[i + 1]).

    Args:
        times_ms: Increasing clock times, the first one 0. [ms]
        values: As many values.
    """

    def __init__(self, times_ms: npt.ArrayLike, values: npt.ArrayLike) -> None:
        times, held = np.asarray(times_ms, dtype=np.int64), np.asarray(values, dtype=float)
        keep = np.concatenate([[True], held[1:] != held[:-1]])
        self.times_ms: list[int] = times[keep].tolist()
        self.values: list[float] = held[keep].tolist()

    def at_ms(self, now_ms: int) -> float:
        """Value at a clock time."""
        return self.values[bisect_right(self.times_ms, now_ms) - 1]

    def at(self, elapsed: timedelta | float | None = None) -> float:
        """Value at a time in seconds, as Vessim asks for it."""
        assert elapsed is not None
        seconds = elapsed.total_seconds() if isinstance(elapsed, timedelta) else elapsed
        return self.at_ms(round(seconds * 1000))

    def combine(self, other: Steps, function: Any) -> Steps:
        """The step function `function(self, other)` (vectorised), changing where either does."""
        times = np.union1d(self.times_ms, other.times_ms)
        left = np.asarray(self.values)[np.searchsorted(self.times_ms, times, side="right") - 1]
        right = np.asarray(other.values)[np.searchsorted(other.times_ms, times, side="right") - 1]
        return Steps(times, function(left, right))

    def means(self, edges_ms: npt.ArrayLike) -> npt.NDArray[np.float64]:
        """Exact time-weighted means between neighbouring clock times, the first one not below 0."""
        edges = np.asarray(edges_ms, dtype=float)
        times = np.asarray([*self.times_ms, max(edges[-1], self.times_ms[-1] + 1)], dtype=float)
        integral = np.concatenate([[0.0], np.cumsum(np.diff(times) * self.values)])
        return np.diff(np.interp(edges, times, integral)) / np.diff(edges)


@dataclass(frozen=True)
class SiteSignals:
    """All signals of one site, under their names: mci, average_ci, price, generation, absorption, surplus."""

    steps: dict[str, Steps]
    currency: str | None = None
    warnings: tuple[str, ...] = ()
    summaries: dict[str, str] = field(default_factory=dict)


def site_signals(
    site: Any, start: datetime, horizon_ms: int, plant_kw: float | None = None, peak_kw: float | None = None
) -> SiteSignals:
    """Load and convert every signal of a site for the horizon.

    Args:
        site: A site of a scenario.
        start: Start of the scenario.
        horizon_ms: Its end on the clock. [ms]
        plant_kw: Peak of the renewable plant that the generation is to be scaled to: a profile per unit as it stands,
            a power by its own peak within the horizon.  Absent: the generation is a power, as it stands. [kW]
        peak_kw: Peak that a power is scaled by instead of its own, as where two records of one plant differ. [kW]

    Raises:
        SignalError: Listing every signal that cannot be read or does not cover the horizon.
    """
    loader = _Loader(start, horizon_ms)
    for key in QUANTITIES:
        spec = getattr(site, key, None)
        if spec is not None and key == "generation" and plant_kw is not None:
            loader.add_plant(key, spec, plant_kw, peak_kw)
        elif spec is not None:
            loader.add(key, spec)
    if loader.problems:
        raise SignalError(loader.problems)
    steps = loader.steps
    if "generation" in steps:
        zero = Steps([0], [0.0])
        absorption = steps.setdefault("absorption", zero)
        steps["surplus"] = steps["generation"].combine(absorption, lambda g, a: np.maximum(g - a, 0.0))
    return SiteSignals(steps, loader.currency, tuple(loader.warnings), loader.summaries)


def generation_peak_kw(site: Any, start: datetime, horizon_ms: int) -> float | None:
    """Peak of a site's generation within the horizon; None for a profile per unit, or without one. [kW]

    Raises:
        SignalError: It cannot be read or does not cover the horizon.
    """
    if site.generation is None or site.generation.unit in PER_UNIT:
        return None
    return max(site_signals(site, start, horizon_ms).steps["generation"].values)


def scenario_signals(scenario: Any) -> dict[str, SiteSignals]:
    """The signals of every site of a scenario of any kind, by the site's name."""
    plant_kw = getattr(scenario, "plant_kw", None)
    own_kw = getattr(scenario, "plants_kw", {})
    return {
        site.name: site_signals(site, scenario.start, scenario.horizon_ms, own_kw.get(site.name, plant_kw))
        for site in scenario.sites
    }


def mci_rows(site: Site) -> tuple[Any, Any]:
    """Rows of a site's marginal intensity as they stand in its file: stamps [ms since 1970 UTC], values [g/kWh]."""
    if not isinstance(site.mci, TraceSpec):
        assert site.mci is not None
        value, _ = convert_constant(site.mci.value, site.mci.unit, "carbon_intensity")
        return np.array([0]), np.array([value])
    trace = _load(site.mci, "carbon_intensity")
    return trace.stamps, trace.values


def _load(spec: TraceSpec, quantity: Quantity) -> Trace:
    """Read a file once for as long as it does not change: every run of a scenario asks for it."""
    try:
        stat = Path(spec.path).stat()
    except (OSError, ValueError):  # ValueError: a NUL in the path
        return load_trace(spec, quantity=quantity)
    return _load_once(type(spec), spec.model_dump_json(), quantity, stat.st_mtime_ns, stat.st_size)


@lru_cache(maxsize=64)
def _load_once(kind: type[TraceSpec], spec: str, quantity: Quantity, mtime_ns: int, size: int) -> Trace:
    return load_trace(kind.model_validate_json(spec), quantity=quantity)


class _Loader:
    def __init__(self, start: datetime, horizon_ms: int) -> None:
        self.start_ms, self.horizon_ms = round(start.timestamp() * 1000), horizon_ms
        self.steps: dict[str, Steps] = {}
        self.problems: list[tuple[str, str]] = []
        self.warnings: list[str] = []
        self.summaries: dict[str, str] = {}
        self.currency: str | None = None

    def add(self, key: str, spec: Any) -> None:
        if spec.type == "balance":
            parts = [
                self.read(f"{key}.{part}", getattr(spec, part), "power")
                for part in ("load", "must_run", "export_limit")
            ]
            if all(part is not None for part in parts):
                load, must_run, export = parts
                net = load.combine(must_run, lambda a, b: np.maximum(a - b, 0.0))
                self.keep(key, net.combine(export, np.add))
        else:
            steps = self.read(key, spec, QUANTITIES[key])
            if steps is not None:
                self.keep(key, steps)

    def add_plant(self, key: str, spec: Any, plant_kw: float, peak_kw: float | None) -> None:
        per_unit = spec.unit in PER_UNIT
        steps = self.read(key, spec, "fraction" if per_unit else "power")
        if steps is not None:
            peak = 1.0 if per_unit else peak_kw or max(steps.values)
            if peak <= 0:
                self.problems.append((key, f"must be above zero somewhere, to be scaled to {plant_kw:g} kW"))
            else:
                self.keep(key, Steps(steps.times_ms, np.asarray(steps.values) * plant_kw / peak))

    def keep(self, key: str, steps: Steps) -> None:
        if QUANTITIES[key] == "power" and min(steps.values) < 0:
            if key == "generation":
                self.problems.append((key, f"must not be negative (lowest {min(steps.values):g} kW)"))
            else:
                low = min(steps.values)
                self.warnings.append(f"{key}: {low:g} kW is below zero; the grid then takes nothing, counted as 0")
                steps = Steps(steps.times_ms, np.maximum(steps.values, 0.0))
        self.steps[key] = steps

    def read(self, key: str, spec: Any, quantity: Quantity) -> Any:
        try:
            if not isinstance(spec, TraceSpec):
                value, unit = convert_constant(spec.value, spec.unit, quantity)
                self.note_currency(unit, quantity)
                return Steps([0], [value])
            trace = _load(spec, quantity)
            part = trace.window(self.start_ms, self.start_ms + self.horizon_ms)
        except TraceError as error:
            self.problems.append((key, str(error)))
            return None
        offsets = part.stamps - self.start_ms
        if np.any(offsets % 1000):
            self.problems.append(
                (key, "changes between whole seconds of the scenario's clock; shift its start to whole seconds")
            )
            return None
        self.note_currency(trace.unit, quantity)
        self.warnings += [f"{key}: {warning}" for warning in part.warnings]
        self.summaries[key] = part.summary()
        return Steps(offsets, part.values)

    def note_currency(self, unit: str, quantity: str) -> None:
        if quantity == "price":
            self.currency = unit.split("/")[0]
