"""What must be said about a file so that it can be read as a trace?"""

from __future__ import annotations

import re
import zoneinfo
from datetime import UTC, timedelta, timezone, tzinfo
from typing import Annotated, Any, Literal

from pydantic import AwareDatetime, BeforeValidator, Discriminator, Field, Tag, field_validator, model_validator

from curtailsim.energy.trace_units import near
from curtailsim.spec import Spec

ELAPSED = "elapsed_s"
"""The `time_format` of stamps in plain seconds."""

LONGEST_S = 366 * 86_400
"""Longest step or gap that may be declared: a year."""

ZONES = "an IANA name such as America/Los_Angeles, UTC, or a fixed offset such as '+10:00'"
"""What a `tz` may be, for messages."""


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

    path: Annotated[str, Field(min_length=1)]
    time: Time = ("time",)
    value: Columns
    unit: str
    tz: str | None = None
    label: Literal["start", "end"] = "start"
    time_format: str | None = None
    step_s: Annotated[float, Field(ge=0.001, le=LONGEST_S)] | None = None
    repeated_hour: Literal["error", "infer", "first", "second"] = "error"
    repeated_hour_column: str | None = None
    year: Annotated[int, Field(ge=1970, le=2200)] | None = None
    sort: bool = False
    where: dict[str, Filter] = Field(default_factory=dict)
    sum_rows: bool = False
    duplicates: Literal["error", "mean", "first", "last"] = "error"
    fill: Literal["error", "hold", "zero", "interpolate"] = "error"
    max_gap_s: Annotated[float, Field(gt=0, le=LONGEST_S)] | None = None
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
            parse_zone(tz)
        return tz

    @field_validator("path")
    @classmethod
    def _possible_path(cls, path: str) -> str:
        if "\0" in path:
            raise ValueError("must name a file; a path has no NUL character in it")
        return path

    @model_validator(mode="after")
    def _consistent(self) -> TraceSpec:
        twice = [name for place, name in enumerate(self.value) if name in self.value[:place]]
        if twice:
            raise ValueError(f"value names the column {twice[0]!r} twice; remove one, or set scale: 2")
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

    def step_ms(self) -> int | None:
        """Declared step [ms]."""
        return None if self.step_s is None else round(self.step_s * 1000)


def parse_zone(tz: str) -> tzinfo:
    """The zone of that name or fixed offset.

    Raises:
        ValueError: There is none.
    """
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
            f"tz {tz!r} is unknown{near(tz, sorted(zoneinfo.available_timezones()))}; use {ZONES}"
        ) from None
