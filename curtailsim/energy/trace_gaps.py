"""How long does each row of a trace hold: are rows in order, repeated or absent?"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from curtailsim.energy.trace_spec import TraceSpec
from curtailsim.energy.trace_table import Lines
from curtailsim.energy.trace_units import DAY_MS, HOUR_MS, Floats, Ints, TraceError, duration, iso, span


@dataclass(frozen=True)
class Rows(Lines):
    """Stamps and values side by side."""

    stamps: Ints
    values: Floats

    def take(self, index: npt.NDArray[Any]) -> Rows:
        """The rows at these places, or where the mask is true."""
        return replace(self, stamps=self.stamps[index], values=self.values[index], lines=self.lines[index])


def without_blanks(spec: TraceSpec, rows: Rows, warnings: list[str]) -> Rows:
    """Refuses missing values, or drops their rows so that they are gaps like absent rows."""
    missing = np.isnan(rows.values)
    if not missing.any():
        return rows
    count = f"{missing.sum():,} of {len(missing):,} values"
    if spec.fill == "error":
        names = " + ".join(repr(name) for name in spec.value)
        raise rows.mistake(
            missing.argmax(),
            f"no value of {names} ({count} are missing); complete the file or set fill: hold, zero or interpolate",
        )
    warnings.append(f"{count} are missing; treated as absent rows (fill: {spec.fill})")
    return rows.take(~missing)


def ordered(spec: TraceSpec, rows: Rows) -> Rows:
    """Refuses rows out of order, or sorts them."""
    back = np.flatnonzero(np.diff(rows.stamps) < 0)
    if not len(back):
        return rows
    if not spec.sort:
        row = back[0] + 1
        raise rows.mistake(
            row,
            f"the stamps go back from {iso(rows.stamps[row - 1])} to {iso(rows.stamps[row])}; put the rows in order, "
            "or set sort: true if such files are unordered",
        )
    return rows.take(np.argsort(rows.stamps, kind="stable"))


def unique(spec: TraceSpec, rows: Rows) -> tuple[Rows, int]:
    """One row per stamp, and the number of rows that went."""
    begins = np.flatnonzero(np.diff(rows.stamps, prepend=rows.stamps[:1] - 1))
    count = len(rows.stamps) - len(begins)
    merged = rows.take(begins)
    if count:
        merged = replace(merged, values=_merge(spec, rows, begins))
    if len(begins) < 2:
        raise TraceError(f"{rows.file}: {len(begins)} usable rows; at least two are needed, or no step can be told")
    return merged, 0 if spec.sum_rows else count


def _merge(spec: TraceSpec, rows: Rows, begins: npt.NDArray[Any]) -> Floats:
    """One value per stamp, of the rows from each beginning to the next."""
    sums = np.add.reduceat(rows.values, begins)
    if spec.sum_rows:
        return sums
    differ = np.minimum.reduceat(rows.values, begins) != np.maximum.reduceat(rows.values, begins)
    if spec.duplicates == "error" and differ.any():
        first = begins[differ.argmax()]
        raise rows.mistake(
            first + 1,
            f"{iso(rows.stamps[first])} occurs before on line {rows.lines[first]}, with another value; set "
            "duplicates: mean, first or last, sum_rows: true to add such rows up, or pick one series with where",
        )
    sizes = np.diff(begins, append=len(rows.stamps))
    if spec.duplicates == "mean":
        return sums / sizes
    return rows.values[begins + sizes - 1] if spec.duplicates == "last" else rows.values[begins]


# --- intervals and gaps ----------------------------------------------------------------------------------------------


def intervals(spec: TraceSpec, rows: Rows) -> tuple[Ints, Ints]:
    """Start of each row's interval and the row's own step, both in ms."""
    distances = np.diff(rows.stamps)
    declared = spec.step_ms()
    limit = _largest_step(distances) if declared is None else declared
    slack = HOUR_MS if limit is not None and limit >= DAY_MS else 0  # a local day has 23 to 25 hours
    if declared is not None and (distances < declared - slack).any():
        short = (distances < declared - slack).argmax()
        raise rows.mistake(
            short + 1,
            f"{duration(distances[short])} after the row before, but step_s says {duration(declared)}",
        )
    gaps = np.zeros(len(distances), dtype=bool) if limit is None else distances > limit + slack
    if spec.label == "start":
        steps = _own_steps(np.append(distances, 0), np.append(gaps, True), declared)
        return rows.stamps, steps
    steps = _own_steps(np.insert(distances, 0, 0)[::-1], np.insert(gaps, 0, True)[::-1], declared)[::-1]
    return rows.stamps - steps, steps


def _largest_step(distances: Ints) -> int | None:
    """Largest distance that occurs three times in a row; None for a file of events without any such step."""
    thrice = (distances[2:] == distances[1:-1]) & (distances[1:-1] == distances[:-2])
    return int(distances[2:][thrice].max()) if thrice.any() else None


def _own_steps(distances: Ints, unknown: npt.NDArray[np.bool_], declared: int | None) -> Ints:
    """Distances, the unknown ones replaced by the declared step, else by the known one before, else the one after."""
    if declared is not None:
        return np.where(unknown, declared, distances)
    known = np.flatnonzero(~unknown)  # never empty: the largest step is one of the distances
    before = np.searchsorted(known, np.arange(len(distances)), side="right") - 1
    return distances[known[np.maximum(before, 0)]]


def fill_gaps(spec: TraceSpec, rows: Rows, steps: Ints, warnings: list[str]) -> tuple[Ints, Floats, int]:
    """Stamps and values without gaps, and the number of absent steps filled; or refuses gaps."""
    ends = rows.stamps[:-1] + steps[:-1]
    lengths = rows.stamps[1:] - ends
    gaps = np.flatnonzero(lengths > 0)
    if not len(gaps):
        return rows.stamps, rows.values, 0
    limit_ms = 0 if spec.fill == "error" else np.inf if spec.max_gap_s is None else spec.max_gap_s * 1000
    refused = gaps[lengths[gaps] > limit_ms]
    if len(refused):
        raise TraceError(_gap_message(spec, rows, ends, refused))
    count = int(np.round(lengths[gaps] / steps[gaps]).sum())
    how = {"hold": "by holding the value before", "zero": "by 0", "interpolate": "by a straight line"}[spec.fill]
    warnings.append(
        f"{count:,} absent steps in {_gaps(len(gaps))} are filled {how}; the longest lasts {duration(lengths.max())}"
    )
    added = np.concatenate([_added_stamps(spec, rows, steps, int(gap)) for gap in gaps])
    values = np.interp(added, rows.stamps, rows.values) if spec.fill == "interpolate" else np.zeros(len(added))
    stamps = np.concatenate([rows.stamps, added])
    order = np.argsort(stamps)
    return stamps[order], np.concatenate([rows.values, values])[order], count


def _added_stamps(spec: TraceSpec, rows: Rows, steps: Ints, gap: int) -> Ints:
    """Starts of the rows to add: none to hold a value, one to be 0 until the gap ends, one per step of a line."""
    begin, end = rows.stamps[gap] + steps[gap], rows.stamps[gap + 1]
    if spec.fill == "hold":
        return np.array([], dtype=np.int64)
    return np.array([begin]) if spec.fill == "zero" else np.arange(begin, end, steps[gap])


def _gap_message(spec: TraceSpec, rows: Rows, ends: Ints, gaps: npt.NDArray[Any]) -> str:
    listed = ", ".join(f"{span(ends[gap], rows.stamps[gap + 1])} before line {rows.lines[gap + 1]}" for gap in gaps[:3])
    limit = "" if spec.max_gap_s is None else f" longer than max_gap_s ({duration(round(spec.max_gap_s * 1000))})"
    repair = (
        "complete the file or set fill: hold, zero (if the file lists only what is not 0) or interpolate"
        if spec.fill == "error"
        else "complete the file or raise max_gap_s"
    )
    return f"{rows.file}: {_gaps(len(gaps))}{limit}: {listed}{', ...' if len(gaps) > 3 else ''}; {repair}"


def _gaps(count: int) -> str:
    return "a gap" if count == 1 else f"{count:,} gaps"
