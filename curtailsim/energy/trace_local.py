"""Which instant does a local clock mean, where an hour is repeated or skipped?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone, tzinfo
from typing import Literal

import numpy as np
import numpy.typing as npt
import pandas as pd

from curtailsim.energy.trace_spec import TraceSpec
from curtailsim.energy.trace_table import Table
from curtailsim.energy.trace_units import DAY_MS, HOUR_MS, Ints, iso

Passages = npt.NDArray[np.int8]
UNKNOWN, FIRST, SECOND = -1, 0, 1
"""Which passage of a repeated hour a row belongs to."""

_YES, _NO = {"y", "yes", "true", "t", "1"}, {"n", "no", "false", "f", "0", ""}


@dataclass(frozen=True)
class Wall:
    """Naive local clock readings, the cells they were read from, and what these say about a repeated hour.

    Attributes:
        ms: The readings. [ms since 1970-01-01 00:00 local time]
        texts: The cells.
        passages: Which passage of a repeated hour each belongs to, or UNKNOWN.
        abbreviations: Names of the zone beside the readings, such as PST or PDT.
    """

    ms: Ints
    texts: Sequence[str]
    passages: Passages | None = None
    abbreviations: Sequence[str] | None = None


def to_utc(spec: TraceSpec, table: Table, wall: Wall, zone: tzinfo, warnings: list[str]) -> Ints:
    """Instants of the readings [ms]; those that the clock skips are taken as later, with a warning, or refused."""
    first, second = localise(wall.ms, zone, FIRST), localise(wall.ms, zone, SECOND)
    utc = np.where(_passages(spec, table, wall, zone, first != second) == SECOND, second, first)
    if isinstance(zone, timezone):
        return utc
    skipped = np.flatnonzero(localise(wall.ms, zone, FIRST, nonexistent="NaT") == np.iinfo(np.int64).min)
    instants, counts = np.unique(utc, return_counts=True)
    for row in skipped.tolist():
        rule = f"{wall.texts[row]!r} does not exist in {spec.tz}, where clocks go forward"
        if counts[np.searchsorted(instants, utc[row])] > 1 and not spec.sum_rows:
            raise table.mistake(row, f"{rule}; if the file keeps standard time all year give tz as a fixed offset")
        warnings.append(f"line {table.lines[row]}: {rule}; taken as {iso(utc[row])}")
    return utc


def localise(
    ms: Ints, zone: tzinfo, passage: int, nonexistent: Literal["shift_forward", "NaT"] = "shift_forward"
) -> Ints:
    """UTC of local clock readings; readings that the clock skips move on to when it goes again."""
    if isinstance(zone, timezone):
        return ms - round(zone.utcoffset(None).total_seconds() * 1000)
    wall = pd.DatetimeIndex(ms.astype("datetime64[ms]"))
    first = np.full(len(ms), passage != SECOND)
    return wall.tz_localize(zone, ambiguous=first, nonexistent=nonexistent).as_unit("ms").asi8.astype(np.int64)


def _passages(spec: TraceSpec, table: Table, wall: Wall, zone: tzinfo, ambiguous: npt.NDArray[np.bool_]) -> Passages:
    """Which passage of a repeated hour each row belongs to, from whatever the file or the spec says."""
    if spec.repeated_hour_column is not None:
        return _flags(table, spec.repeated_hour_column)
    passages = np.full(len(wall.ms), UNKNOWN, dtype=np.int8) if wall.passages is None else wall.passages.copy()
    if spec.repeated_hour in ("first", "second"):
        passages[:] = FIRST if spec.repeated_hour == "first" else SECOND
    elif wall.abbreviations is not None:
        for row in np.flatnonzero(ambiguous).tolist():
            passages[row] = _abbreviated(int(wall.ms[row]), zone, wall.abbreviations[row])
    elif spec.repeated_hour == "infer" and ambiguous.any():
        passages[ambiguous] = _inferred(wall.ms[ambiguous])
    doubtful = np.flatnonzero(ambiguous & (passages == UNKNOWN))
    if len(doubtful):
        first, last = doubtful[0], doubtful[-1]
        if spec.repeated_hour == "infer":
            repair = "no repetition follows here; set repeated_hour: first or second"
        else:
            repair = "set repeated_hour: infer if both passages follow each other, or name a repeated_hour_column"
        raise table.mistake(
            first,
            f"{wall.texts[first]!r} (to {wall.texts[last]!r}, line {table.lines[last]}; {len(doubtful)} rows) occurs "
            f"twice in {spec.tz}, where clocks go back; {repair}",
        )
    return passages


def _flags(table: Table, name: str) -> Passages:
    flags = [cell.strip().casefold() for cell in table.columns[name]]
    for row, flag in enumerate(flags):
        if flag not in _YES | _NO:
            raise table.mistake(row, f"{name!r} must be Y or N (got {table.columns[name][row]!r})")
    return np.array([SECOND if flag in _YES else FIRST for flag in flags], dtype=np.int8)


def _abbreviated(ms: int, zone: tzinfo, abbreviation: str) -> int:
    wall = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    names = [zone.tzname(wall.replace(fold=fold)) for fold in (0, 1)]
    return names.index(abbreviation) if abbreviation in names else UNKNOWN


def _inferred(ms: Ints) -> Passages:
    """Passages of the ambiguous rows of an ordered file: the second begins where the clock does not advance."""
    passages = np.full(len(ms), UNKNOWN, dtype=np.int8)
    blocks = np.flatnonzero(np.diff(ms, prepend=ms[:1] - DAY_MS) > 3 * HOUR_MS)
    for begin, end in zip(blocks, [*blocks[1:], len(ms)], strict=True):
        back = np.flatnonzero(np.diff(ms[begin:end]) <= 0)
        if len(back):
            passages[begin : begin + back[0] + 1] = FIRST
            passages[begin + back[0] + 1 : end] = SECOND
    return passages
