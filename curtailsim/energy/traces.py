"""What does a trace file say, on UTC intervals and in our units?

A `TraceSpec` says how one file is read; `load_trace` reads it into a `Trace` or raises a `TraceError` that
names the file, the line, what is wrong and how to repair it. Time zone, unit and interval convention are never
guessed: what the file does not say, the spec must.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from curtailsim.energy.trace_gaps import Rows, fill_gaps, intervals, ordered, unique, without_blanks
from curtailsim.energy.trace_spec import ELAPSED, TimeParts, TraceSpec
from curtailsim.energy.trace_stamps import read_stamps
from curtailsim.energy.trace_table import read_table, read_values, resolve_path
from curtailsim.energy.trace_units import (
    DAY_MS,
    HOUR_MS,
    Floats,
    Ints,
    Quantity,
    TraceError,
    conversion_of,
    duration,
    epoch_ms,
    iso,
    span,
)

__all__ = ["Quantity", "TimeParts", "Trace", "TraceError", "TraceSpec", "convert_constant", "load_trace"]


@dataclass(frozen=True, eq=False)
class Trace:
    """A piecewise constant series: each value holds from its stamp to the next one, the last one to `end`.

    Attributes:
        source: File and column, for messages.
        stamps: Interval starts, strictly increasing. [ms since 1970-01-01 UTC]
        values: One per interval. [unit]
        end: End of the last interval; its length is the declared step, else the distance before it. [ms]
        unit: kW, g/kWh, 1, W/m2, m/s or, with the file's currency, such as EUR/MWh.
        warnings: What a careful reader should know.
        filled_steps: Absent steps filled.
        dropped_duplicates: Rows dropped or merged because their stamp occurred before.
        repeats: Whether the trace repeats to cover any horizon.
    """

    source: str
    stamps: Ints
    values: Floats
    end: int
    unit: str
    warnings: tuple[str, ...] = ()
    filled_steps: int = 0
    dropped_duplicates: int = 0
    repeats: bool = False

    def __post_init__(self) -> None:
        self.stamps.setflags(write=False)
        self.values.setflags(write=False)

    def durations_ms(self) -> Ints:
        """Length of each interval [ms]."""
        return np.diff(self.stamps, append=self.end)

    def mean(self) -> float:
        """Mean over time, which is not the mean of the rows when steps differ [unit]."""
        return float(np.average(self.values, weights=self.durations_ms()))

    def window(self, start_ms: int, end_ms: int) -> Trace:
        """Part in force over [start, end); the value in force at the start is stamped with the start.

        Raises:
            TraceError: The trace does not cover the span.
        """
        if end_ms <= start_ms:
            raise TraceError(f"{self.source}: empty span {span(start_ms, end_ms)}")
        stamps, values, end = self._repeated(start_ms, end_ms) if self.repeats else (self.stamps, self.values, self.end)
        if start_ms < stamps[0] or end_ms > end:
            raise TraceError(
                f"{self.source}: covers {span(stamps[0], end)} but {span(start_ms, end_ms)} is asked for; "
                "choose a span inside, move the trace with start_at, or repeat it with wrap: true"
            )
        first = int(np.searchsorted(stamps, start_ms, side="right")) - 1
        last = int(np.searchsorted(stamps, end_ms, side="left"))
        inside = stamps[first:last].copy()
        inside[0] = start_ms
        part = replace(self, stamps=inside, values=values[first:last].copy(), end=end_ms, repeats=False)
        return replace(part, warnings=tuple(dict.fromkeys([*self.warnings, *_stillness(part)])))

    def summary(self) -> str:
        """One line: rows, span, step, what was repaired, and the range of the values."""
        steps = np.unique(self.durations_ms())
        step = duration(steps[0]) if len(steps) == 1 else f"{duration(steps[0])} to {duration(steps[-1])}"
        return (
            f"{self.source}: {len(self.stamps):,} rows, {span(self.stamps[0], self.end)}, step {step}, "
            f"{self.filled_steps:,} steps filled, {self.dropped_duplicates:,} duplicates dropped, "
            f"min {self.values.min():.6g} / mean {self.mean():.6g} / max {self.values.max():.6g} {self.unit}"
        )

    def _repeated(self, start_ms: int, end_ms: int) -> tuple[Ints, Floats, int]:
        first, period = int(self.stamps[0]), self.end - int(self.stamps[0])
        laps = np.arange((start_ms - first) // period, -((first - end_ms) // period))
        stamps = (self.stamps[None, :] + laps[:, None] * period).ravel()
        return stamps, np.tile(self.values, len(laps)), first + (int(laps[-1]) + 1) * period


def load_trace(spec: TraceSpec, *, base: Path | None = None, quantity: Quantity) -> Trace:
    """Read one series.

    Args:
        spec: How to read it.
        base: Folder that relative paths start from.
        quantity: What the values are; decides the accepted units and the unit of the result.

    Returns:
        The series on UTC interval starts in the unit of the quantity.

    Raises:
        TraceError: The file cannot be used as the spec says.
    """
    path = resolve_path(spec.path, base)
    conversion = conversion_of(spec.unit, quantity, str(path))
    table = read_table(spec, path)
    warnings: list[str] = []
    rows = Rows(table.file, table.lines, read_stamps(spec, table, warnings), read_values(spec, table, warnings))
    rows = without_blanks(spec, rows, warnings)
    rows, duplicates = unique(spec, ordered(spec, rows))
    starts, steps = intervals(spec, rows)
    with np.errstate(over="ignore", invalid="ignore"):
        values = rows.values * (conversion.factor * spec.scale)
        if conversion.per_step:
            values = values * (HOUR_MS / steps)
    if not np.isfinite(values).all():
        row = int((~np.isfinite(values)).argmax())
        raise rows.mistake(
            row, f"the value is not finite with unit {spec.unit!r} and scale {spec.scale:g}; correct them"
        )
    rows = replace(rows, stamps=starts, values=values)
    stamps, values, filled_steps = fill_gaps(spec, rows, steps, warnings)
    shift_ms = _shift_ms(spec, rows.file, int(stamps[0]))
    trace = Trace(
        source=f"{path.name} [{' + '.join(spec.value)}]",
        stamps=stamps + shift_ms,
        values=values,
        end=int(starts[-1] + steps[-1]) + shift_ms,
        unit=conversion.unit,
        filled_steps=filled_steps,
        dropped_duplicates=duplicates,
        repeats=spec.wrap,
    )
    return replace(trace, warnings=(*warnings, *_doubts(trace, quantity)))


def convert_constant(value: float, unit: str, quantity: Quantity) -> tuple[float, str]:
    """A single value in the unit of its quantity, and that unit.

    Raises:
        TraceError: The unit is not one of the quantity's.
    """
    conversion = conversion_of(unit, quantity, "constant")
    if conversion.per_step:
        raise TraceError(f"constant: unit {unit!r} is an energy per step, and a constant has no step; use a power")
    converted = value * conversion.factor
    if not np.isfinite(converted):
        raise TraceError(f"constant: {value:g} {unit} is too large a number; correct it")
    return converted, conversion.unit


def _shift_ms(spec: TraceSpec, file: str, first_ms: int) -> int:
    if spec.start_at is None or spec.time_format == ELAPSED:
        return 0
    asked_ms = epoch_ms(spec.start_at)
    shift_ms = asked_ms - first_ms
    if shift_ms % DAY_MS and spec.shift == "whole_days":
        same_hour = asked_ms - shift_ms % DAY_MS
        raise TraceError(
            f"{file}: start_at {iso(asked_ms)} would move the trace, which begins {iso(first_ms)}, by a "
            f"part of a day; use {iso(same_hour)}, or shift: exact"
        )
    return shift_ms


def _doubts(trace: Trace, quantity: Quantity) -> list[str]:
    """Warnings about a series that was read as asked, but may not be what was meant."""
    doubts = _stillness(trace)
    zeros = _longest_zero_run(trace)
    if quantity == "carbon_intensity" and zeros is not None:
        doubts.append(f"exactly 0 over {span(*zeros)}, the longest of such runs; was a missing source counted as 0?")
    if quantity == "fraction" and (trace.values.min() < 0 or trace.values.max() > 1):
        doubts.append(f"a fraction outside 0 to 1 (up to {trace.values.max():g}); is the unit '%', or scale wrong?")
    if trace.repeats and (trace.end - int(trace.stamps[0])) % DAY_MS:
        doubts.append("the trace is not a whole number of days long; repeating it moves the daily cycle")
    return doubts


def _stillness(trace: Trace) -> list[str]:
    if trace.values.min() < trace.values.max():
        return []
    value = f"{trace.values[0]:g} {trace.unit}"
    return [f"the signal never changes ({value}) from {span(trace.stamps[0], trace.end)}; no window can exist"]


def _longest_zero_run(trace: Trace) -> tuple[int, int] | None:
    """Span [ms] of the longest run of at least two zeros in a row."""
    edges = np.flatnonzero(np.diff((trace.values == 0).astype(np.int8), prepend=0, append=0))
    begins, ends = edges[::2], edges[1::2]
    if not (ends - begins > 1).any():
        return None
    stamps = np.append(trace.stamps, trace.end)
    longest = int(np.where(ends - begins > 1, stamps[ends] - stamps[begins], 0).argmax())
    return int(stamps[begins[longest]]), int(stamps[ends[longest]])
