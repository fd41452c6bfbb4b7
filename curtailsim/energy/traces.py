"""What does a trace file say, on UTC intervals and in our units?

A `TraceSpec` says how one file is read; `load_trace` reads it into a `Trace` or raises a `TraceError` that
names the file, the line, what is wrong and how to repair it. Time zone, unit and interval convention are never
guessed: what the file does not say, the spec must.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import os
import re
import zoneinfo
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import numpy as np
import numpy.typing as npt
import pandas as pd
from pydantic import AwareDatetime, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from curtailsim.spec import Spec

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

Quantity = Literal["power", "carbon_intensity", "price", "fraction", "irradiance", "wind_speed"]

DAY_MS = 86_400_000
HOUR_MS = 3_600_000
ELAPSED = "elapsed_s"


class TraceError(ValueError):
    """A trace file that cannot be used as its spec says, with the repair."""


class TimeParts(Spec):
    """Columns that together make a time stamp, by the role of each; all in local time of `tz`.

    The day is `date`, or `year`, `month` and `day`. The place in the day is one of

    - `hour` (0 to 23), with `minute` if there is one;
    - `hour_ending` (1 to 24, also "24:00", and "2A"/"2B" for the hour that occurs twice);
    - `period` (1, 2, ... counted in steps of `step_s` from local midnight, so that a day may have 46 or 50).

    `interval` (1, 2, ...) counts steps of `step_s` inside the hour. The result is always the interval's start.
    """

    date: str | None = None
    year: str | None = None
    month: str | None = None
    day: str | None = None
    hour: str | None = None
    minute: str | None = None
    hour_ending: str | None = None
    period: str | None = None
    interval: str | None = None

    @model_validator(mode="after")
    def _complete(self) -> TimeParts:
        ymd = [self.year, self.month, self.day]
        if (self.date is None) == (ymd == [None] * 3) or (self.date is None and None in ymd):
            raise ValueError("name the day either by 'date' or by 'year', 'month' and 'day'")
        if sum(part is not None for part in (self.hour, self.hour_ending, self.period)) != 1:
            raise ValueError("name exactly one of 'hour', 'hour_ending' and 'period'")
        if self.minute is not None and self.hour is None:
            raise ValueError("'minute' goes with 'hour'")
        if self.interval is not None and self.period is not None:
            raise ValueError("'interval' counts inside an hour; it cannot go with 'period'")
        return self

    def columns(self) -> list[str]:
        """Names of the columns used."""
        return [name for name in self.model_dump().values() if name is not None]


def _listed(value: Any) -> Any:
    return (value,) if isinstance(value, str | bool | int | float) else value


def _time_tag(value: Any) -> str:
    return "parts" if isinstance(value, dict | TimeParts) else "columns"


Columns = Annotated[tuple[str, ...], BeforeValidator(_listed), Field(min_length=1)]
Time = Annotated[
    Annotated[Columns, Tag("columns")] | Annotated[TimeParts, Tag("parts")],
    Discriminator(_time_tag),
]
Filter = Annotated[tuple[str | bool | int | float, ...], BeforeValidator(_listed), Field(min_length=1)]
Character = Annotated[str, Field(min_length=1, max_length=1)]


class TraceSpec(Spec):
    """How to read one series of one file.

    Attributes:
        path: CSV file, plain or `.gz`; relative to the scenario. `$VARIABLE` and `~` are expanded.
        time: Column of the stamps; several columns to join with a blank; or `TimeParts`. "" is the column without
            a name (an exported index). Cells such as `01.01.2020 00:00 - 01.01.2020 01:00` count with their
            beginning; "24:00" is the next day's midnight.
        value: Column of the values, or several to add up.
        unit: Unit of the values, for example MW, "MWh per step", lb/MWh, EUR/MWh.
        tz: Zone of naive stamps: an IANA name (America/Los_Angeles), UTC, or a fixed offset (+10:00). Stamps that carry
            an offset keep it: `tz` is then not used, and a `tz` that contradicts the file gives a warning.
        label: Whether a stamp is the start or the end of its interval.
        time_format: strptime format of the stamps, needed unless they are ISO 8601 or begin year/month/day.
            `elapsed_s` for plain seconds; second 0 is then placed at `start_at`.
        step_s: Declared step; distances above it are gaps, below it mistakes. Without it a distance that occurs
            three times in a row is one of the file's steps, and one larger than any of these is a gap. [s]
        repeated_hour: What to do where clocks go back and a naive stamp has two meanings: refuse, `infer` from the
            order of the rows, or always the `first` or the `second` passage (for files that list only one).
        repeated_hour_column: Column that is Y (or true, 1) on rows of the second passage.
        year: Replaces the year of the stamps, for typical years put together from several.
        sort: Allows rows out of order, as in files put together from several.
        where: Rows to use: column to value or values, compared as text without regard to case.
        sum_rows: Adds up the rows of one stamp (one row per fuel, reason, ...).
        duplicates: What different values for one stamp mean. Rows repeated with an equal value are always dropped.
        fill: What absent rows and blank values mean: a mistake, the value before (`hold`), 0, or a straight line.
        max_gap_s: Gaps longer than this stay mistakes whatever `fill` says. [s]
        scale: Factor on the values, for example the plant's size for a normalised profile.
        start_at: Moves the trace in time so that its first interval starts here.
        shift: Whether `start_at` may move the trace by whole days only, which keeps the daily cycle, or exactly.
        wrap: Repeats the trace in both directions to cover any horizon.
        sep: Separator of the columns.
        decimal: Decimal mark. With "," a "." that groups thousands is understood.
        encoding: Encoding of the file; the default drops a byte order mark.
        skip_rows: Lines before the header.
        comment: Lines that begin with this character are skipped.
        na_values: Cells that mean "no value".
    """

    path: str
    time: Time = ("time",)
    value: Columns
    unit: str
    tz: str | None = None
    label: Literal["start", "end"] = "start"
    time_format: str | None = None
    step_s: Annotated[float, Field(gt=0)] | None = None
    repeated_hour: Literal["error", "infer", "first", "second"] = "error"
    repeated_hour_column: str | None = None
    year: Annotated[int, Field(ge=1970, le=2200)] | None = None
    sort: bool = False
    where: dict[str, Filter] = Field(default_factory=dict)
    sum_rows: bool = False
    duplicates: Literal["error", "mean", "first", "last"] = "error"
    fill: Literal["error", "hold", "zero", "interpolate"] = "error"
    max_gap_s: Annotated[float, Field(gt=0)] | None = None
    scale: float = 1.0
    start_at: AwareDatetime | None = None
    shift: Literal["whole_days", "exact"] = "whole_days"
    wrap: bool = False
    sep: Character = ","
    decimal: Literal[".", ","] = "."
    encoding: str = "utf-8-sig"
    skip_rows: Annotated[int, Field(ge=0)] = 0
    comment: Character | None = None
    na_values: tuple[str, ...] = ("", "-", "n/e", "NA", "N/A", "NaN", "nan", "null")

    @field_validator("tz")
    @classmethod
    def _known_zone(cls, tz: str | None) -> str | None:
        if tz is not None:
            _zone(tz)
        return tz

    @model_validator(mode="after")
    def _consistent(self) -> TraceSpec:
        parts = isinstance(self.time, TimeParts)
        if parts and self.label == "end":
            raise ValueError("label: end goes with a stamp; the columns of 'time' already give the interval's start")
        if isinstance(self.time, TimeParts) and (self.time.period or self.time.interval) and self.step_s is None:
            raise ValueError("step_s is needed to count 'period' or 'interval'")
        if self.time_format == ELAPSED and (parts or self.start_at is None):
            raise ValueError("time_format: elapsed_s needs one time column and 'start_at', where second 0 is placed")
        if self.max_gap_s is not None and self.fill == "error":
            raise ValueError("max_gap_s limits 'fill'; choose fill: hold, zero or interpolate too")
        if self.sum_rows and self.duplicates != "error":
            raise ValueError("sum_rows adds up the rows of a stamp; 'duplicates' cannot be set as well")
        if self.repeated_hour != "error" and self.repeated_hour_column is not None:
            raise ValueError("give either repeated_hour or repeated_hour_column")
        if self.repeated_hour == "infer" and self.sort:
            raise ValueError("repeated_hour: infer reads the order of the rows, so the file cannot need 'sort'")
        if self.sep == self.decimal:
            raise ValueError(f"sep and decimal cannot both be {self.sep!r}")
        return self

    def time_columns(self) -> list[str]:
        """Names of the time columns."""
        return self.time.columns() if isinstance(self.time, TimeParts) else list(self.time)


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
            raise TraceError(f"{self.source}: empty span {_span(start_ms, end_ms)}")
        stamps, values, end = self._repeated(start_ms, end_ms) if self.repeats else (self.stamps, self.values, self.end)
        if start_ms < stamps[0] or end_ms > end:
            raise TraceError(
                f"{self.source}: covers {_span(int(stamps[0]), end)} but {_span(start_ms, end_ms)} is asked for; "
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
        step = _duration(steps[0]) if len(steps) == 1 else f"{_duration(steps[0])} to {_duration(steps[-1])}"
        return (
            f"{self.source}: {len(self.stamps):,} rows, {_span(int(self.stamps[0]), self.end)}, step {step}, "
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
    path = _path(spec.path, base)
    conversion = _conversion(spec.unit, quantity, str(path))
    table = _read_table(spec, path)
    warnings: list[str] = []
    rows = _Rows(table.file, _stamps(spec, table, warnings), _values(spec, table, warnings), table.lines)
    rows = _without_blanks(spec, rows, warnings)
    rows, duplicates = _unique(spec, _ordered(spec, rows))
    starts, steps = _intervals(spec, rows)
    values = rows.values * (conversion.factor * spec.scale)
    if conversion.per_step:
        values = values * (HOUR_MS / steps)
    filled = _fill_gaps(spec, replace(rows, stamps=starts, values=values), steps, warnings)
    stamps, end = filled.stamps, int(starts[-1] + steps[-1])
    shift_ms = _shift_ms(spec, rows.file, int(stamps[0]))
    trace = Trace(
        source=f"{path.name} [{' + '.join(spec.value)}]",
        stamps=stamps + shift_ms,
        values=filled.values,
        end=end + shift_ms,
        unit=conversion.unit,
        filled_steps=filled.count,
        dropped_duplicates=duplicates,
        repeats=spec.wrap,
    )
    return replace(trace, warnings=(*warnings, *_doubts(trace, quantity)))


def convert_constant(value: float, unit: str, quantity: Quantity) -> tuple[float, str]:
    """A single value in the unit of its quantity, and that unit.

    Raises:
        TraceError: The unit is not one of the quantity's.
    """
    conversion = _conversion(unit, quantity, "constant")
    if conversion.per_step:
        raise TraceError(f"constant: unit {unit!r} is an energy per step, and a constant has no step; use a power")
    return value * conversion.factor, conversion.unit


# --- units ---------------------------------------------------------------------------------------------------------

_POWER = {"W": 1e-3, "kW": 1.0, "MW": 1e3, "GW": 1e6}
_ENERGY = {f"{power}h": factor for power, factor in _POWER.items()}
_FACTORS: dict[str, tuple[str, dict[str, float]]] = {
    "power": ("kW", _POWER),
    # 1 lb = 0.45359237 kg exactly (international yard and pound agreement, 1959).
    "carbon_intensity": (
        "g/kWh",
        {"g/kWh": 1.0, "kg/kWh": 1e3, "kg/MWh": 1.0, "t/MWh": 1e3, "g/MWh": 1e-3, "lb/MWh": 0.45359237},
    ),
    "fraction": ("1", {"fraction": 1.0, "1": 1.0, "%": 0.01}),
    "irradiance": ("W/m2", {"W/m2": 1.0, "kW/m2": 1e3}),
    "wind_speed": ("m/s", {"m/s": 1.0}),
}
_CURRENCIES = {"€": "EUR", "£": "GBP"}


@dataclass(frozen=True)
class _Conversion:
    """Factor to the unit of the quantity; energies per step are divided by their own step too."""

    factor: float
    unit: str
    per_step: bool = False


def _conversion(unit: str, quantity: Quantity, file: str) -> _Conversion:
    if quantity not in get_args(Quantity):
        raise ValueError(f"quantity must be one of {', '.join(get_args(Quantity))} (got {quantity!r})")
    plain = _plain_unit(unit)
    if quantity == "price":
        return _price_conversion(plain, unit, file)
    canonical, factors = _FACTORS[quantity]
    if plain in factors:
        return _Conversion(factors[plain], canonical)
    energy = re.sub(r" ?(/|per) ?step$", "", plain)
    if quantity == "power" and energy in _ENERGY:
        return _Conversion(_ENERGY[energy], canonical, per_step=True)
    accepted = [*factors, *(f"{energy} per step" for energy in _ENERGY if quantity == "power")]
    raise TraceError(
        f"{file}: unit {unit!r} is not one of {quantity}{_near(unit, accepted)}; use {', '.join(accepted)}"
    )


def _price_conversion(plain: str, unit: str, file: str) -> _Conversion:
    for sign, code in _CURRENCIES.items():
        plain = plain.replace(sign, code)
    match = re.fullmatch(r"([A-Z]{3})/([kM]Wh)", plain)
    if match is None:
        raise TraceError(
            f"{file}: unit {unit!r} is not one of price; use a currency code per MWh or kWh: USD/MWh, EUR/MWh, "
            "AUD/MWh, GBP/MWh, USD/kWh, ..."
        )
    return _Conversion(1e3 if match[2] == "kWh" else 1.0, f"{match[1]}/MWh")


def _plain_unit(unit: str) -> str:
    """Drops the CO2 or CO2eq of a carbon unit and writes W/m² and lbs in one way."""
    plain = " ".join(unit.replace("₂", "2").replace("²", "2").replace("^2", "2").split())
    plain = re.sub(r" ?CO2(-?eq?)?(?=/)", "", plain)
    return re.sub(r"^lbs/", "lb/", plain)


# --- reading -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Table:
    """Cells of the needed columns, with the line of the file each row ends on."""

    file: str
    columns: dict[str, list[str]]
    lines: Ints

    def mistake(self, row: int | np.integer[Any], rule: str) -> TraceError:
        return TraceError(f"{self.file}, line {self.lines[row]}: {rule}")


def _path(path: str, base: Path | None) -> Path:
    expanded = Path(os.path.expandvars(path)).expanduser()
    return expanded if base is None else base / expanded


def _read_table(spec: TraceSpec, path: Path) -> _Table:
    try:
        with _open(path, spec.encoding) as handle:
            return _parse_table(spec, str(path), handle)
    except FileNotFoundError:
        raise TraceError(f"{path}: no such file{_path_hint(path)}") from None
    except IsADirectoryError:
        raise TraceError(f"{path}: is a folder; give the path of a file in it") from None
    except (UnicodeError, LookupError) as bad:
        raise TraceError(f"{path}: cannot be read as {spec.encoding} ({bad}); set encoding, such as latin-1") from None
    except (gzip.BadGzipFile, EOFError) as bad:
        raise TraceError(f"{path}: not a complete gzip file ({bad}); fetch it again") from None
    except csv.Error as bad:
        raise TraceError(f"{path}: not a CSV file ({bad})") from None
    except OSError as bad:
        raise TraceError(f"{path}: cannot be read ({bad.strerror or bad})") from None


def _open(path: Path, encoding: str) -> Any:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _path_hint(path: Path) -> str:
    if "$" in str(path):
        return "; an environment variable in the path is not set"
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    return _near(path.name, [other.name for other in path.parent.iterdir()]) or "; check the path"


def _parse_table(spec: TraceSpec, file: str, handle: Iterable[str]) -> _Table:
    lines = iter(handle)
    for _ in range(spec.skip_rows):
        next(lines, None)
    reader = csv.reader(_without_comments(lines, spec.comment), delimiter=spec.sep)
    header = next((row for row in reader if any(row)), None)
    if header is None:
        raise TraceError(f"{file}: no header line; is the file empty, or skip_rows too large?")
    names = [name.strip() for name in header]
    extra = [] if spec.repeated_hour_column is None else [spec.repeated_hour_column]
    needed = list(dict.fromkeys([*spec.time_columns(), *spec.value, *extra]))
    places = [_place(file, names, name, spec) for name in needed]
    accept = _filter(spec, file, names)
    rows: list[list[str]] = []
    numbers: list[int] = []
    for row in reader:
        line = reader.line_num + spec.skip_rows
        if len(row) != len(names):
            row = _padded(row, len(names), file, line)
        if (row[places[0]] or any(row)) and (accept is None or accept(row)):
            rows.append([row[place] for place in places])
            numbers.append(line)
    _require_rows(spec, file, len(rows), reader.line_num + spec.skip_rows)
    columns = (list(column) for column in zip(*rows, strict=True))
    return _Table(file, dict(zip(needed, columns, strict=True)), np.array(numbers, dtype=np.int64))


def _padded(row: list[str], width: int, file: str, line: int) -> list[str]:
    """The row with the cells that are missing at its end left blank."""
    if any(row[width:]):
        raise TraceError(f"{file}, line {line}: {len(row)} cells under {width} column names; check sep and decimal")
    return [*row, *[""] * (width - len(row))]


def _without_comments(lines: Iterator[str], comment: str | None) -> Iterator[str]:
    """Lines with comments made blank, so that line numbers stay those of the file."""
    if comment is None:
        return lines
    return ("\n" if line.startswith(comment) else line for line in lines)


def _place(file: str, names: list[str], name: str, spec: TraceSpec) -> int:
    if names.count(name) > 1 and name:
        raise TraceError(f"{file}: the column {name!r} occurs {names.count(name)} times; rename all but one")
    if name in names:
        return names.index(name)
    found = ", ".join(repr(other) for other in names)
    hint = _near(name, names)
    others = [sep for sep in ";\t|," if sep != spec.sep and sep in names[0]]
    if len(names) == 1 and others:
        hint = f"; set sep: {others[0]!r}"
    raise TraceError(f"{file}: no column {name!r}{hint}; columns found: {found}")


def _filter(spec: TraceSpec, file: str, names: list[str]) -> Callable[[list[str]], bool] | None:
    if not spec.where:
        return None
    wanted = [
        (_place(file, names, name, spec), {str(value).strip().casefold() for value in values})
        for name, values in spec.where.items()
    ]
    return lambda row: all(row[place].strip().casefold() in values for place, values in wanted)


def _require_rows(spec: TraceSpec, file: str, rows: int, lines: int) -> None:
    if rows == 0 and spec.where:
        asked = ", ".join(f"{name} = {' or '.join(map(str, values))}" for name, values in spec.where.items())
        raise TraceError(f"{file}: no row has {asked}; check where against the {lines:,} lines of the file")
    if rows < 2:
        raise TraceError(f"{file}: {rows} data rows; at least two are needed, or no step can be told")


# --- values --------------------------------------------------------------------------------------------------------

_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")


def _values(spec: TraceSpec, table: _Table, warnings: list[str]) -> Floats:
    """Sum of the value columns; NaN where a value is missing, unless blanks mean 0."""
    total = np.zeros(len(table.lines))
    for name in spec.value:
        column = _numbers(spec, table, name)
        missing = np.isnan(column)
        if spec.fill == "zero" and missing.any():
            warnings.append(f"{missing.sum():,} of {len(missing):,} values of {name!r} count as 0 (fill: zero)")
            column = np.where(missing, 0.0, column)
        elif missing.all():
            raise TraceError(f"{table.file}: every value of {name!r} is missing; choose another column")
        total += column
    return total


def _numbers(spec: TraceSpec, table: _Table, name: str) -> Floats:
    cells = table.columns[name]
    try:
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        numbers = np.array([_number(spec, table, name, row, cell) for row, cell in enumerate(cells)])
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise table.mistake(infinite[0], f"{name!r} is {cells[infinite[0]]!r}; a value must be finite")
    return numbers


def _number(spec: TraceSpec, table: _Table, name: str, row: int, cell: str) -> float:
    text = cell.strip()
    if text in spec.na_values:
        return np.nan
    if spec.decimal == ",":
        text = (text.replace(".", "") if _GROUPED.fullmatch(text) else text).replace(",", ".")
    try:
        return float(text)
    except ValueError:
        hint = "set decimal: ','" if "," in text else f"if it means no value, add {text!r} to na_values"
        raise table.mistake(row, f"{name!r} is {cell!r}, which is not a number; {hint}") from None


# --- time stamps ---------------------------------------------------------------------------------------------------

_ISO = re.compile(
    r"(\d{4}([-/])\d\d\2\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?) ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?", re.IGNORECASE
)
_SECONDS_END = len("2021-01-01T00:00:00")
_MIDNIGHT_24 = re.compile(r"(?<![:\d])24:00(:00)?")
_ABBREVIATION = re.compile(r"\s*\(([A-Za-z]{2,5})\)\s*$")
_HOUR_ENDING = re.compile(r"(\d{1,2})(?:\.0|:00)?\s*([AB])?", re.IGNORECASE)
_YES, _NO = {"y", "yes", "true", "t", "1"}, {"n", "no", "false", "f", "0", ""}
_UNKNOWN, _FIRST, _SECOND = -1, 0, 1  # which passage of a repeated hour a row belongs to


@dataclass(frozen=True)
class _Wall:
    """Naive local clock readings, the passage each is known to belong to, and the cells they were read from."""

    ms: Ints
    passage: npt.NDArray[np.int8]
    texts: Sequence[str]


def _stamps(spec: TraceSpec, table: _Table, warnings: list[str]) -> Ints:
    """Stamps [ms] as in the file, in UTC."""
    if spec.time_format == ELAPSED:
        return _elapsed_ms(spec, table)
    if isinstance(spec.time, TimeParts):
        return _stamps_of_parts(spec, spec.time, table, warnings)
    texts = table.columns[spec.time[0]]
    if len(spec.time) > 1:
        columns = (table.columns[name] for name in spec.time)
        texts = [" ".join(cell.strip() for cell in cells) for cells in zip(*columns, strict=True)]
    plain, abbreviations = _plain_texts(spec, table.file, texts)
    plain, extra_ms = _midnight_24(plain)
    ms, aware = _parse(spec, table, plain)
    ms = ms + extra_ms
    if aware:
        _check_offsets(spec, ms, plain, warnings)
        return ms
    zone = _required_zone(spec, table, texts)
    wall = _Wall(_with_year(spec, table, ms), np.full(len(ms), _UNKNOWN, dtype=np.int8), texts)
    return _to_utc(spec, table, _with_passages(spec, table, wall, zone, abbreviations), zone, warnings)


def _elapsed_ms(spec: TraceSpec, table: _Table) -> Ints:
    assert spec.start_at is not None  # the spec's validator sees to it
    seconds = _numbers(spec, table, spec.time_columns()[0])
    if np.isnan(seconds).any():
        raise table.mistake(int(np.isnan(seconds).argmax()), "no time stamp")
    return _ms(spec.start_at) + np.round(seconds * 1000).astype(np.int64)


def _plain_texts(spec: TraceSpec, file: str, texts: list[str]) -> tuple[list[str], list[str] | None]:
    """Stamps without an interval's end and without a zone's abbreviation, and the abbreviations if there are any."""
    texts = [text.strip() for text in texts]
    if " - " in texts[0] and " - " not in (spec.time_format or ""):
        if spec.label == "end":
            raise TraceError(f"{file}: the stamps are whole intervals ({texts[0]!r}); remove label: end")
        texts = [text.partition(" - ")[0] for text in texts]
    if not any(text.endswith(")") for text in texts):
        return texts, None
    found = [_ABBREVIATION.search(text) for text in texts]
    plain = [text if match is None else text[: match.start()] for text, match in zip(texts, found, strict=True)]
    return plain, ["" if match is None else match[1] for match in found]


def _midnight_24(texts: list[str]) -> tuple[list[str], Ints]:
    """Writes 24:00 as 00:00 and says which rows are a day later for it."""
    extra_ms = np.zeros(len(texts), dtype=np.int64)
    if any("24:00" in text for text in texts):
        changed = [_MIDNIGHT_24.sub("00:00\\1", text) for text in texts]
        extra_ms[[row for row, text in enumerate(texts) if text != changed[row]]] = DAY_MS
        texts = changed
    return texts, extra_ms


def _parse(spec: TraceSpec, table: _Table, texts: list[str]) -> tuple[Ints, bool]:
    """Milliseconds of the clock readings, or of UTC when the stamps carry an offset, and whether they do."""
    if spec.time_format is None:
        return _parse_iso(table, texts)
    aware = "%z" in spec.time_format
    parsed = pd.to_datetime(pd.Series(texts, dtype=object), format=spec.time_format, utc=aware, errors="coerce")
    missing = parsed.isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise table.mistake(row, f"the stamp {texts[row]!r} does not have the form {spec.time_format!r}")
    return pd.DatetimeIndex(parsed).as_unit("ms").asi8.astype(np.int64), aware


def _parse_iso(table: _Table, texts: list[str]) -> tuple[Ints, bool]:
    offsets: Sequence[str | None]
    forms = {(len(text), text[_SECONDS_END:]) for text in texts}
    if len(forms) == 1 and (alike := _ISO.fullmatch(texts[0])) and alike[1] == texts[0][:_SECONDS_END]:
        # Whole seconds and one way to write the offset, by far the commonest form: no need to look at every row.
        readings, offsets = [text[:_SECONDS_END] for text in texts], [alike[3]] * len(texts)
    else:
        matches = [_ISO.fullmatch(text) for text in texts]
        if None in matches:
            raise table.mistake(matches.index(None), _unreadable(texts[matches.index(None)]))
        found = [match for match in matches if match is not None]
        readings, offsets = [match[1] for match in found], [match[3] for match in found]
    kinds = set(offsets)
    if None in kinds and len(kinds) > 1:
        row = offsets.index(None)
        raise table.mistake(row, f"the stamp {texts[row]!r} carries no offset, others do; complete the file")
    ms = _iso_ms(table, readings)
    if None in kinds:
        return ms, False
    offset_ms = {text: _offset_ms(text or "") for text in kinds}
    return ms - np.array([offset_ms[text] for text in offsets], dtype=np.int64), True


def _iso_ms(table: _Table, texts: list[str]) -> Ints:
    if "/" in texts[0] or any("," in text for text in texts):
        texts = [text.replace("/", "-").replace(",", ".") for text in texts]
    try:
        return np.array(texts, dtype="datetime64[ms]").astype(np.int64)
    except ValueError:
        raise table.mistake(*_first_impossible(texts)) from None


def _first_impossible(texts: list[str]) -> tuple[int, str]:
    """Row of the first text that is no date, and what to say of it."""
    for row, text in enumerate(texts):
        try:
            np.datetime64(text, "ms")
        except ValueError:
            return row, _unreadable(text) if _ISO.fullmatch(text) is None else f"there is no such time as {text!r}"
    raise AssertionError("every text is a date by itself")


def _offset_ms(text: str) -> int:
    if text[0] not in "+-":
        return 0
    digits = text[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return (-minutes if text[0] == "-" else minutes) * 60_000


def _unreadable(text: str) -> str:
    if not text:
        return "no time stamp"
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return f"the stamp {text!r} is a number; for seconds since a start set time_format: elapsed_s and start_at"
    return (
        f"the stamp {text!r} is not ISO 8601, and day and month are not guessed; set time_format, such as "
        "'%d.%m.%Y %H:%M' or '%m/%d/%Y %H:%M'"
    )


def _check_offsets(spec: TraceSpec, ms: Ints, texts: list[str], warnings: list[str]) -> None:
    """Warns of a `tz` that contradicts the offsets of the stamps; the offsets count."""
    if spec.tz is None:
        return
    zone = _zone(spec.tz)
    for row in (0, len(ms) // 2, len(ms) - 1):
        match = _ISO.fullmatch(texts[row])
        written = None if match is None else _offset_ms(match[3])
        offset = datetime.fromtimestamp(ms[row] / 1000, UTC).astimezone(zone).utcoffset()
        if written is not None and offset is not None and written != offset.total_seconds() * 1000:
            warnings.append(f"tz {spec.tz} is not used: the stamps carry their own offset ({texts[row]!r})")
            return


def _required_zone(spec: TraceSpec, table: _Table, texts: Sequence[str]) -> tzinfo:
    if spec.tz is None:
        raise table.mistake(
            0,
            f"the stamp {texts[0]!r} carries no time zone; set tz to the zone of the file: an IANA name such as "
            "America/Los_Angeles, UTC, or a fixed offset such as '+10:00'",
        )
    return _zone(spec.tz)


def _zone(tz: str) -> tzinfo:
    fixed = re.fullmatch(r"(?:UTC)?([+-])(\d{1,2})(?::?(\d{2}))?", tz)
    if fixed is not None:
        offset = timedelta(hours=int(fixed[2]), minutes=int(fixed[3] or 0))
        if offset < timedelta(days=1):
            return timezone(-offset if fixed[1] == "-" else offset)
    if tz.upper() in ("UTC", "Z"):
        return UTC
    try:
        return zoneinfo.ZoneInfo(tz)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValueError(
            f"tz {tz!r} is unknown{_near(tz, sorted(zoneinfo.available_timezones()))}; use an IANA name such as "
            "America/Los_Angeles, UTC, or a fixed offset such as '+10:00'"
        ) from None


def _with_year(spec: TraceSpec, table: _Table, ms: Ints) -> Ints:
    if spec.year is None:
        return ms
    times = ms.astype("datetime64[ms]")
    months = times.astype("datetime64[M]")
    month = months.astype(np.int64) % 12
    moved = np.datetime64(str(spec.year), "M") + month + (times - months)
    bad = moved.astype("datetime64[M]").astype(np.int64) % 12 != month
    if bad.any():
        raise table.mistake(int(bad.argmax()), f"29 February does not exist in year {spec.year}; choose a leap year")
    return moved.astype("datetime64[ms]").astype(np.int64)


# --- time stamps in several columns ----------------------------------------------------------------------------------


def _stamps_of_parts(spec: TraceSpec, parts: TimeParts, table: _Table, warnings: list[str]) -> Ints:
    texts = [" ".join(cells) for cells in zip(*(table.columns[name] for name in parts.columns()), strict=True)]
    zone = _required_zone(spec, table, texts)
    days = _with_year(spec, table, _days_ms(spec, parts, table))
    step_ms = 0 if spec.step_s is None else round(spec.step_s * 1000)
    if parts.period is not None:
        return _period_starts(table, days, _integers(table, parts.period), step_ms, zone)
    passage = np.full(len(days), _UNKNOWN, dtype=np.int8)
    if parts.hour_ending is not None:
        hours, passage = _hours_ending(table, parts.hour_ending)
        ms = days + (hours - 1) * HOUR_MS
    else:
        ms = days + _integers(table, str(parts.hour), 0, 23) * HOUR_MS
    if parts.minute is not None:
        ms = ms + _integers(table, parts.minute, 0, 59) * 60_000
    if parts.interval is not None:
        ms = ms + (_integers(table, parts.interval, 1, HOUR_MS // step_ms) - 1) * step_ms
    wall = _with_passages(spec, table, _Wall(ms, passage, texts), zone, None)
    return _to_utc(spec, table, wall, zone, warnings)


def _days_ms(spec: TraceSpec, parts: TimeParts, table: _Table) -> Ints:
    if parts.date is not None:
        days, aware = _parse(spec, table, [text.strip() for text in table.columns[parts.date]])
        if aware or (days % DAY_MS).any():
            raise TraceError(f"{table.file}: the column {parts.date!r} holds more than a date; name it in 'time' alone")
        return days
    year, month, day = (_integers(table, str(name)) for name in (parts.year, parts.month, parts.day))
    return _iso_ms(table, [f"{y:04d}-{m:02d}-{d:02d}" for y, m, d in zip(year, month, day, strict=True)])


def _integers(table: _Table, name: str, low: int = 1, high: int | None = None) -> Ints:
    numbers = np.zeros(len(table.lines), dtype=np.int64)
    for row, cell in enumerate(table.columns[name]):
        try:
            numbers[row] = int(cell)
        except ValueError:
            raise table.mistake(row, f"{name!r} must be a whole number (got {cell!r})") from None
    bad = (numbers < low) | (False if high is None else numbers > high)
    if bad.any():
        row = int(bad.argmax())
        upper = "" if high is None else f" and at most {high}"
        raise table.mistake(row, f"{name!r} must be at least {low}{upper} (got {numbers[row]})")
    return numbers


def _hours_ending(table: _Table, name: str) -> tuple[Ints, npt.NDArray[np.int8]]:
    hours = np.zeros(len(table.lines), dtype=np.int64)
    passage = np.full(len(table.lines), _UNKNOWN, dtype=np.int8)
    for row, cell in enumerate(table.columns[name]):
        match = _HOUR_ENDING.fullmatch(cell.strip())
        if match is None or not 1 <= int(match[1]) <= 24:
            raise table.mistake(row, f"{name!r} must be 1 to 24 (got {cell!r}); hours counted on to 25 are a 'period'")
        hours[row] = int(match[1])
        if match[2] is not None:
            passage[row] = _FIRST if match[2].upper() == "A" else _SECOND
    return hours, passage


def _period_starts(table: _Table, days: Ints, periods: Ints, step_ms: int, zone: tzinfo) -> Ints:
    """Counts from the first instant of the local day, which need not be 00:00 where clocks change at midnight."""
    midnights = _localise(days, zone, _FIRST)
    starts = midnights + (periods - 1) * step_ms
    beyond = starts >= _localise(days + DAY_MS, zone, _FIRST)
    if beyond.any():
        row = int(beyond.argmax())
        raise table.mistake(row, f"period {periods[row]} of {step_ms / 1000:g} s lies beyond the end of that day")
    return starts


# --- local time ----------------------------------------------------------------------------------------------------


def _localise(
    ms: Ints, zone: tzinfo, passage: int, nonexistent: Literal["shift_forward", "NaT"] = "shift_forward"
) -> Ints:
    """UTC of local clock readings; readings that the clock skips move on to when it goes again."""
    if isinstance(zone, timezone):
        return ms - round(zone.utcoffset(None).total_seconds() * 1000)
    wall = pd.DatetimeIndex(ms.astype("datetime64[ms]"))
    first = np.full(len(ms), passage != _SECOND)
    return wall.tz_localize(zone, ambiguous=first, nonexistent=nonexistent).as_unit("ms").asi8.astype(np.int64)


def _with_passages(spec: TraceSpec, table: _Table, wall: _Wall, zone: tzinfo, abbreviations: list[str] | None) -> _Wall:
    """Fills in which passage of a repeated hour each row belongs to, from whatever the file or the spec says."""
    ambiguous = _localise(wall.ms, zone, _FIRST) != _localise(wall.ms, zone, _SECOND)
    passage = wall.passage.copy()
    if spec.repeated_hour_column is not None:
        passage[:] = _flags(table, spec.repeated_hour_column)
    elif spec.repeated_hour in ("first", "second"):
        passage[:] = _FIRST if spec.repeated_hour == "first" else _SECOND
    elif abbreviations is not None:
        for row in np.flatnonzero(ambiguous):
            passage[row] = _abbreviated(int(wall.ms[row]), zone, abbreviations[row])
    elif spec.repeated_hour == "infer":
        passage[ambiguous] = _inferred(wall.ms[ambiguous])
    doubtful = np.flatnonzero(ambiguous & (passage == _UNKNOWN))
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
    return replace(wall, passage=passage)


def _flags(table: _Table, name: str) -> npt.NDArray[np.int8]:
    flags = [cell.strip().casefold() for cell in table.columns[name]]
    for row, flag in enumerate(flags):
        if flag not in _YES | _NO:
            raise table.mistake(row, f"{name!r} must be Y or N (got {table.columns[name][row]!r})")
    return np.array([_SECOND if flag in _YES else _FIRST for flag in flags], dtype=np.int8)


def _abbreviated(ms: int, zone: tzinfo, abbreviation: str) -> int:
    wall = datetime(1970, 1, 1) + timedelta(milliseconds=ms)
    names = [zone.tzname(wall.replace(fold=fold)) for fold in (0, 1)]
    return names.index(abbreviation) if abbreviation in names else _UNKNOWN


def _inferred(ms: Ints) -> npt.NDArray[np.int8]:
    """Passages of the ambiguous rows of an ordered file: the second begins where the clock does not advance."""
    passage = np.full(len(ms), _UNKNOWN, dtype=np.int8)
    blocks = np.flatnonzero(np.diff(ms, prepend=ms[:1] - DAY_MS) > 3 * HOUR_MS)
    for begin, end in zip(blocks, [*blocks[1:], len(ms)], strict=True):
        back = np.flatnonzero(np.diff(ms[begin:end]) <= 0)
        if len(back):
            passage[begin : begin + back[0] + 1] = _FIRST
            passage[begin + back[0] + 1 : end] = _SECOND
    return passage


def _to_utc(spec: TraceSpec, table: _Table, wall: _Wall, zone: tzinfo, warnings: list[str]) -> Ints:
    utc = np.where(wall.passage == _SECOND, _localise(wall.ms, zone, _SECOND), _localise(wall.ms, zone, _FIRST))
    if isinstance(zone, timezone):
        return utc
    skipped = np.flatnonzero(_localise(wall.ms, zone, _FIRST, nonexistent="NaT") == np.iinfo(np.int64).min)
    instants, counts = np.unique(utc, return_counts=True)
    for row in skipped.tolist():
        rule = f"{wall.texts[row]!r} does not exist in {spec.tz}, where clocks go forward"
        if counts[np.searchsorted(instants, utc[row])] > 1 and not spec.sum_rows:
            raise table.mistake(row, f"{rule}; if the file keeps standard time all year give tz as a fixed offset")
        warnings.append(f"line {table.lines[row]}: {rule}; taken as {_iso(int(utc[row]))}")
    return utc


# --- rows in order -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Rows:
    """Stamps and values side by side, with their lines."""

    file: str
    stamps: Ints
    values: Floats
    lines: Ints
    count: int = 0

    def take(self, index: npt.NDArray[Any]) -> _Rows:
        return replace(self, stamps=self.stamps[index], values=self.values[index], lines=self.lines[index])


def _without_blanks(spec: TraceSpec, rows: _Rows, warnings: list[str]) -> _Rows:
    """Refuses missing values, or drops their rows so that they are gaps like absent rows."""
    missing = np.isnan(rows.values)
    if not missing.any():
        return rows
    count = f"{missing.sum():,} of {len(missing):,} values"
    if spec.fill == "error":
        line = rows.lines[missing.argmax()]
        names = " + ".join(repr(name) for name in spec.value)
        raise TraceError(
            f"{rows.file}, line {line}: no value of {names} ({count} are missing); complete the file or set "
            "fill: hold, zero or interpolate"
        )
    warnings.append(f"{count} are missing; treated as absent rows (fill: {spec.fill})")
    return rows.take(~missing)


def _ordered(spec: TraceSpec, rows: _Rows) -> _Rows:
    back = np.flatnonzero(np.diff(rows.stamps) < 0)
    if not len(back):
        return rows
    if not spec.sort:
        row = back[0] + 1
        raise TraceError(
            f"{rows.file}, line {rows.lines[row]}: the stamps go back from {_iso(int(rows.stamps[row - 1]))} to "
            f"{_iso(int(rows.stamps[row]))}; put the rows in order, or set sort: true if such files are unordered"
        )
    return rows.take(np.argsort(rows.stamps, kind="stable"))


def _unique(spec: TraceSpec, rows: _Rows) -> tuple[_Rows, int]:
    """One row per stamp, and the number of rows that went."""
    begins = np.flatnonzero(np.diff(rows.stamps, prepend=rows.stamps[:1] - 1))
    count = len(rows.stamps) - len(begins)
    merged = rows.take(begins)
    if count:
        merged = replace(merged, values=_merge(spec, rows, begins))
    if len(begins) < 2:
        raise TraceError(f"{rows.file}: {len(begins)} usable rows; at least two are needed, or no step can be told")
    return merged, 0 if spec.sum_rows else count


def _merge(spec: TraceSpec, rows: _Rows, begins: npt.NDArray[Any]) -> Floats:
    sizes = np.diff(begins, append=len(rows.stamps))
    if spec.sum_rows:
        return np.add.reduceat(rows.values, begins)
    differ = np.minimum.reduceat(rows.values, begins) != np.maximum.reduceat(rows.values, begins)
    if spec.duplicates == "error" and differ.any():
        first = begins[differ.argmax()]
        other = first + 1
        raise TraceError(
            f"{rows.file}, line {rows.lines[other]}: {_iso(int(rows.stamps[first]))} occurs before on line "
            f"{rows.lines[first]}, with another value; set duplicates: mean, first or last, sum_rows: true to add such "
            "rows up, or pick one series with where"
        )
    if spec.duplicates == "mean":
        return np.add.reduceat(rows.values, begins) / sizes
    return rows.values[begins + sizes - 1] if spec.duplicates == "last" else rows.values[begins]


# --- intervals and gaps --------------------------------------------------------------------------------------------


def _intervals(spec: TraceSpec, rows: _Rows) -> tuple[Ints, Ints]:
    """Start of each row's interval and the row's own step, both in ms."""
    distances = np.diff(rows.stamps)
    declared = None if spec.step_s is None else round(spec.step_s * 1000)
    limit = _largest_step(distances) if declared is None else declared
    slack = HOUR_MS if limit is not None and limit >= DAY_MS else 0  # a local day has 23 to 25 hours
    if declared is not None and (distances < declared - slack).any():
        row = int((distances < declared - slack).argmax()) + 1
        raise TraceError(
            f"{rows.file}, line {rows.lines[row]}: {_duration(distances[row - 1])} after the row before, but step_s "
            f"says {_duration(declared)}"
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


def _own_steps(distances: Ints, unknown: Bools, declared: int | None) -> Ints:
    """Distances, the unknown ones replaced by the declared step, else by the known one before, else the one after."""
    if declared is not None:
        return np.where(unknown, declared, distances)
    known = np.flatnonzero(~unknown)  # never empty: the largest step is one of the distances
    before = np.searchsorted(known, np.arange(len(distances)), side="right") - 1
    return distances[known[np.maximum(before, 0)]]


def _fill_gaps(spec: TraceSpec, rows: _Rows, steps: Ints, warnings: list[str]) -> _Rows:
    ends = rows.stamps[:-1] + steps[:-1]
    lengths = rows.stamps[1:] - ends
    gaps = np.flatnonzero(lengths > 0)
    if not len(gaps):
        return rows
    limit_ms = 0 if spec.fill == "error" else np.inf if spec.max_gap_s is None else spec.max_gap_s * 1000
    refused = gaps[lengths[gaps] > limit_ms]
    if len(refused):
        raise TraceError(_gap_message(spec, rows, ends, refused))
    count = int(np.round(lengths[gaps] / steps[gaps]).sum())
    how = {"hold": "by holding the value before", "zero": "by 0", "interpolate": "by a straight line"}[spec.fill]
    warnings.append(
        f"{count:,} absent steps in {_gaps(len(gaps))} are filled {how}; the longest lasts "
        f"{_duration(int(lengths.max()))}"
    )
    added = np.concatenate([_added_stamps(spec, rows, steps, int(gap)) for gap in gaps])
    values = np.interp(added, rows.stamps, rows.values) if spec.fill == "interpolate" else np.zeros(len(added))
    stamps = np.concatenate([rows.stamps, added])
    order = np.argsort(stamps)
    return replace(rows, stamps=stamps[order], values=np.concatenate([rows.values, values])[order], count=count)


def _added_stamps(spec: TraceSpec, rows: _Rows, steps: Ints, gap: int) -> Ints:
    """Starts of the rows to add: none to hold a value, one to be 0 until the gap ends, one per step of a line."""
    begin, end = rows.stamps[gap] + steps[gap], rows.stamps[gap + 1]
    if spec.fill == "hold":
        return np.array([], dtype=np.int64)
    return np.array([begin]) if spec.fill == "zero" else np.arange(begin, end, steps[gap])


def _gap_message(spec: TraceSpec, rows: _Rows, ends: Ints, gaps: npt.NDArray[Any]) -> str:
    listed = ", ".join(
        f"{_span(int(ends[gap]), int(rows.stamps[gap + 1]))} before line {rows.lines[gap + 1]}" for gap in gaps[:3]
    )
    limit = "" if spec.max_gap_s is None else f" longer than max_gap_s ({_duration(round(spec.max_gap_s * 1000))})"
    repair = (
        "complete the file or set fill: hold, zero (if the file lists only what is not 0) or interpolate"
        if spec.fill == "error"
        else "complete the file or raise max_gap_s"
    )
    return f"{rows.file}: {_gaps(len(gaps))}{limit}: {listed}{', ...' if len(gaps) > 3 else ''}; {repair}"


def _gaps(count: int) -> str:
    return "a gap" if count == 1 else f"{count:,} gaps"


def _shift_ms(spec: TraceSpec, file: str, first_ms: int) -> int:
    if spec.start_at is None or spec.time_format == ELAPSED:
        return 0
    shift_ms = _ms(spec.start_at) - first_ms
    if shift_ms % DAY_MS and spec.shift == "whole_days":
        same_hour = _ms(spec.start_at) - shift_ms % DAY_MS
        raise TraceError(
            f"{file}: start_at {_iso(_ms(spec.start_at))} would move the trace, which begins {_iso(first_ms)}, by a "
            f"part of a day; use {_iso(same_hour)}, or shift: exact"
        )
    return shift_ms


# --- doubts --------------------------------------------------------------------------------------------------------


def _doubts(trace: Trace, quantity: Quantity) -> list[str]:
    """Warnings about a series that was read as asked, but may not be what was meant."""
    doubts = _stillness(trace)
    zeros = _longest_zero_run(trace)
    if quantity == "carbon_intensity" and zeros is not None:
        doubts.append(f"exactly 0 over {_span(*zeros)}, the longest of such runs; was a missing source counted as 0?")
    if quantity == "fraction" and (trace.values.min() < 0 or trace.values.max() > 1):
        doubts.append(f"a fraction outside 0 to 1 (up to {trace.values.max():g}); is the unit '%', or scale wrong?")
    if trace.repeats and (trace.end - int(trace.stamps[0])) % DAY_MS:
        doubts.append("the trace is not a whole number of days long; repeating it moves the daily cycle")
    return doubts


def _stillness(trace: Trace) -> list[str]:
    if trace.values.min() < trace.values.max():
        return []
    span = f"from {_span(int(trace.stamps[0]), trace.end)}"
    return [f"the signal never changes ({trace.values[0]:g} {trace.unit}) {span}; no window can exist"]


def _longest_zero_run(trace: Trace) -> tuple[int, int] | None:
    """Span [ms] of the longest run of at least two zeros in a row."""
    edges = np.flatnonzero(np.diff((trace.values == 0).astype(np.int8), prepend=0, append=0))
    begins, ends = edges[::2], edges[1::2]
    if not (ends - begins > 1).any():
        return None
    stamps = np.append(trace.stamps, trace.end)
    longest = int(np.where(ends - begins > 1, stamps[ends] - stamps[begins], 0).argmax())
    return int(stamps[begins[longest]]), int(stamps[ends[longest]])


# --- words ---------------------------------------------------------------------------------------------------------


def _near(name: str, known: Sequence[str]) -> str:
    """A hint at the nearest known name, without regard to case."""
    folded = {one.casefold(): one for one in known}
    match = difflib.get_close_matches(name.casefold(), folded, n=1, cutoff=0.6)
    return f"; did you mean {folded[match[0]]!r}?" if match else ""


def _ms(moment: datetime) -> int:
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(milliseconds=1)


def _iso(ms: int) -> str:
    moment = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=int(ms))
    return moment.isoformat(timespec="milliseconds" if ms % 1000 else "seconds").replace("+00:00", "Z")


def _span(start_ms: int, end_ms: int) -> str:
    return f"{_iso(start_ms)} to {_iso(end_ms)}"


def _duration(ms: float) -> str:
    for unit, size in (("d", DAY_MS), ("h", HOUR_MS), ("min", 60_000)):
        if ms >= size and (ms * 100) % size == 0:
            return f"{ms / size:g} {unit}"
    return f"{ms / 1000:g} s"
