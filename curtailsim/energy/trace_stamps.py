"""At which instants are the rows of a file stamped?

A stamp is read from one column (or several joined with a blank), or put together from `TimeParts`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, tzinfo

import numpy as np
import numpy.typing as npt
import pandas as pd

from curtailsim.energy.trace_local import FIRST, SECOND, UNKNOWN, Passages, Wall, localise, to_utc
from curtailsim.energy.trace_spec import ELAPSED, ZONES, TimeParts, TraceSpec, parse_zone
from curtailsim.energy.trace_table import Table, read_integers, read_numbers
from curtailsim.energy.trace_units import DAY_MS, HOUR_MS, Ints, TraceError, epoch_ms

_ISO = re.compile(
    r"(\d{4}([-/])\d\d\2\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?)?) ?(Z|UTC|GMT|[+-]\d\d(?::?\d\d)?)?",
    re.IGNORECASE | re.ASCII,
)
_SECONDS_END = len("2021-01-01T00:00:00")
_MIDNIGHT_24 = re.compile(r"(?<![:\d])24:00(:00)?")
_ABBREVIATION = re.compile(r"\s*\(([A-Za-z]{2,5})\)\s*$")
_HOUR_ENDING = re.compile(r"(\d{1,2})(?:\.0|:00)?\s*([AB])?", re.IGNORECASE | re.ASCII)


MOST_S = 1000 * 365.25 * 86_400
FIRST_YEAR, LAST_YEAR = 1000, 9000


def read_stamps(spec: TraceSpec, table: Table, warnings: list[str]) -> Ints:
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
    plain, later = _midnight_24(plain)
    ms, aware = _parse(spec, table, plain)
    ms = ms + later * DAY_MS
    if spec.year is None:
        _check_years(table, ms, texts)
    if aware:
        _check_offsets(spec, ms, plain, warnings)
        return ms
    zone = _required_zone(spec, table, texts)
    wall = Wall(_with_year(spec, table, ms), texts, abbreviations=abbreviations)
    return to_utc(spec, table, wall, zone, warnings)


def _elapsed_ms(spec: TraceSpec, table: Table) -> Ints:
    assert spec.start_at is not None  # the spec's validator sees to it
    seconds = read_numbers(spec, table, spec.time_columns()[0])
    if np.isnan(seconds).any():
        raise table.mistake(np.isnan(seconds).argmax(), "no time stamp")
    if (np.abs(seconds) > MOST_S).any():
        row = int((np.abs(seconds) > MOST_S).argmax())
        raise table.mistake(row, f"{seconds[row]:g} s is no time stamp: more than a thousand years; correct the file")
    return epoch_ms(spec.start_at) + np.round(seconds * 1000).astype(np.int64)


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


def _midnight_24(texts: list[str]) -> tuple[list[str], npt.NDArray[np.bool_]]:
    """Writes 24:00 as 00:00 and says which rows are a day later for it."""
    if not any("24:00" in text for text in texts):
        return texts, np.zeros(len(texts), dtype=bool)
    changed = [_MIDNIGHT_24.sub("00:00\\1", text) for text in texts]
    return changed, np.array(changed) != np.array(texts)


def _parse(spec: TraceSpec, table: Table, texts: list[str]) -> tuple[Ints, bool]:
    """Milliseconds of the clock readings, or of UTC when the stamps carry an offset, and whether they do."""
    if spec.time_format is None:
        return _parse_iso(table, texts)
    aware = "%z" in spec.time_format
    try:
        parsed = pd.to_datetime(pd.Series(texts, dtype=object), format=spec.time_format, utc=aware, errors="coerce")
    except (ValueError, TypeError, KeyError, re.error) as bad:
        rule = f"time_format {spec.time_format!r} cannot be used ({bad}); write it such as '%d.%m.%Y %H:%M'"
        raise TraceError(f"{table.file}: {rule}") from None
    missing = parsed.isna().to_numpy()
    if missing.any():
        row = int(missing.argmax())
        raise table.mistake(row, f"the stamp {texts[row]!r} does not have the form {spec.time_format!r}")
    return pd.DatetimeIndex(parsed).as_unit("ms").asi8.astype(np.int64), aware


def _parse_iso(table: Table, texts: list[str]) -> tuple[Ints, bool]:
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


def _iso_ms(table: Table, texts: list[str]) -> Ints:
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
    zone = parse_zone(spec.tz)
    for row in (0, len(ms) // 2, len(ms) - 1):
        match = _ISO.fullmatch(texts[row])
        written = None if match is None else _offset_ms(match[3])
        offset = datetime.fromtimestamp(ms[row] / 1000, UTC).astimezone(zone).utcoffset()
        if written is not None and offset is not None and written != offset.total_seconds() * 1000:
            warnings.append(f"tz {spec.tz} is not used: the stamps carry their own offset ({texts[row]!r})")
            return


def _required_zone(spec: TraceSpec, table: Table, texts: Sequence[str]) -> tzinfo:
    if spec.tz is None:
        raise table.mistake(0, f"the stamp {texts[0]!r} carries no time zone; set tz to the zone of the file: {ZONES}")
    return parse_zone(spec.tz)


def _check_years(table: Table, ms: Ints, texts: Sequence[str]) -> None:
    years = ms.astype("datetime64[ms]").astype("datetime64[Y]").astype(np.int64) + 1970
    bad = (years < FIRST_YEAR) | (years > LAST_YEAR)
    if bad.any():
        row = int(bad.argmax())
        rule = f"the year of the stamp {texts[row]!r} is not between {FIRST_YEAR} and {LAST_YEAR}; correct the file"
        raise table.mistake(row, rule)


def _with_year(spec: TraceSpec, table: Table, ms: Ints) -> Ints:
    if spec.year is None:
        return ms
    times = ms.astype("datetime64[ms]")
    months = times.astype("datetime64[M]")
    month = months.astype(np.int64) % 12
    moved = np.datetime64(str(spec.year), "M") + month + (times - months)
    bad = moved.astype("datetime64[M]").astype(np.int64) % 12 != month
    if bad.any():
        raise table.mistake(bad.argmax(), f"29 February does not exist in year {spec.year}; choose a leap year")
    return moved.astype("datetime64[ms]").astype(np.int64)


# --- stamps in several columns ---------------------------------------------------------------------------------------


def _stamps_of_parts(spec: TraceSpec, parts: TimeParts, table: Table, warnings: list[str]) -> Ints:
    texts = [" ".join(cells) for cells in zip(*(table.columns[name] for name in parts.columns()), strict=True)]
    zone = _required_zone(spec, table, texts)
    days = _with_year(spec, table, _days_ms(spec, parts, table))
    _check_years(table, days, texts)
    step_ms = spec.step_ms() or 0  # needed, hence declared, for 'period' and 'interval' only
    if parts.period is not None:
        return _period_starts(table, days, read_integers(table, parts.period), step_ms, zone)
    passages = None
    if parts.hour_ending is not None:
        hours, passages = _hours_ending(table, parts.hour_ending)
        ms = days + (hours - 1) * HOUR_MS
    else:
        ms = days + read_integers(table, str(parts.hour), 0, 23) * HOUR_MS
    if parts.minute is not None:
        ms = ms + read_integers(table, parts.minute, 0, 59) * 60_000
    if parts.interval is not None:
        ms = ms + (read_integers(table, parts.interval, 1, HOUR_MS // step_ms) - 1) * step_ms
    return to_utc(spec, table, Wall(ms, texts, passages), zone, warnings)


def _days_ms(spec: TraceSpec, parts: TimeParts, table: Table) -> Ints:
    if parts.date is not None:
        days, aware = _parse(spec, table, [text.strip() for text in table.columns[parts.date]])
        if aware or (days % DAY_MS).any():
            raise TraceError(f"{table.file}: the column {parts.date!r} holds more than a date; name it in 'time' alone")
        return days
    year, month, day = (read_integers(table, str(name)) for name in (parts.year, parts.month, parts.day))
    return _iso_ms(table, [f"{y:04d}-{m:02d}-{d:02d}" for y, m, d in zip(year, month, day, strict=True)])


def _hours_ending(table: Table, name: str) -> tuple[Ints, Passages]:
    """Hours 1 to 24, and the passages that an A or B beside them says."""
    hours = np.zeros(len(table.lines), dtype=np.int64)
    passages = np.full(len(table.lines), UNKNOWN, dtype=np.int8)
    for row, cell in enumerate(table.columns[name]):
        match = _HOUR_ENDING.fullmatch(cell.strip())
        if match is None or not 1 <= int(match[1]) <= 24:
            raise table.mistake(row, f"{name!r} must be 1 to 24 (got {cell!r}); hours counted on to 25 are a 'period'")
        hours[row] = int(match[1])
        if match[2] is not None:
            passages[row] = FIRST if match[2].upper() == "A" else SECOND
    return hours, passages


def _period_starts(table: Table, days: Ints, periods: Ints, step_ms: int, zone: tzinfo) -> Ints:
    """Counts from the first instant of the local day, which need not be 00:00 where clocks change at midnight."""
    midnights = localise(days, zone, FIRST)
    starts = midnights + (periods - 1) * step_ms
    beyond = starts >= localise(days + DAY_MS, zone, FIRST)
    if beyond.any():
        row = beyond.argmax()
        raise table.mistake(row, f"period {periods[row]} of {step_ms / 1000:g} s lies beyond the end of that day")
    return starts
