"""Which cells of a file are used, and which numbers are in them?"""

from __future__ import annotations

import csv
import gzip
import os
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from curtailsim.energy.trace_spec import TraceSpec
from curtailsim.energy.trace_units import Floats, Ints, TraceError, near


@dataclass(frozen=True)
class Lines:
    """Rows of a file, with the line each of them ends on."""

    file: str
    lines: Ints

    def mistake(self, row: int | np.integer[Any], rule: str) -> TraceError:
        """The error that says so of a row."""
        return TraceError(f"{self.file}, line {self.lines[row]}: {rule}")


@dataclass(frozen=True)
class Table(Lines):
    """Cells of the needed columns."""

    columns: dict[str, list[str]]


def resolve_path(path: str, base: Path | None) -> Path:
    """The path with variables and `~` expanded, seen from the folder `base`."""
    expanded = Path(os.path.expandvars(path)).expanduser()
    return expanded if base is None else base / expanded


def read_table(spec: TraceSpec, path: Path) -> Table:
    """Cells of the time, value and flag columns, on the rows that `where` selects."""
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
    except ValueError as bad:
        if isinstance(bad, TraceError):
            raise
        raise TraceError(f"{str(path)!r}: cannot be read ({bad}); check the path") from None
    except OSError as bad:
        raise TraceError(f"{path}: cannot be read ({bad.strerror or bad})") from None


def _open(path: Path, encoding: str) -> TextIO:
    if path.suffix == ".gz":
        return gzip.open(path, "rt", encoding=encoding, newline="")
    return path.open(encoding=encoding, newline="")


def _path_hint(path: Path) -> str:
    if "$" in str(path):
        return "; an environment variable in the path is not set"
    if not path.parent.is_dir():
        return f"; there is no folder {path.parent} either"
    return near(path.name, [other.name for other in path.parent.iterdir()]) or "; check the path"


def _parse_table(spec: TraceSpec, file: str, handle: Iterable[str]) -> Table:
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
    return Table(file, np.array(numbers, dtype=np.int64), dict(zip(needed, columns, strict=True)))


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
    hint = near(name, names)
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


# --- numbers ---------------------------------------------------------------------------------------------------------

_GROUPED = re.compile(r"[+-]?\d{1,3}(\.\d{3})+(,\d*)?")


def read_values(spec: TraceSpec, table: Table, warnings: list[str]) -> Floats:
    """Sum of the value columns; NaN where a value is missing, unless blanks mean 0."""
    total = np.zeros(len(table.lines))
    for name in spec.value:
        column = read_numbers(spec, table, name)
        missing = np.isnan(column)
        if spec.fill == "zero" and missing.any():
            warnings.append(f"{missing.sum():,} of {len(missing):,} values of {name!r} count as 0 (fill: zero)")
            column = np.where(missing, 0.0, column)
        elif missing.all():
            raise TraceError(f"{table.file}: every value of {name!r} is missing; choose another column")
        total += column
    return total


def read_numbers(spec: TraceSpec, table: Table, name: str) -> Floats:
    """Finite numbers of a column; NaN where a value is missing."""
    cells = table.columns[name]
    try:
        if not all(map(_is_plain, cells)):
            raise ValueError
        numbers = np.array([float(cell) for cell in cells])
    except ValueError:
        numbers = np.array([_number(spec, table, name, row, cell) for row, cell in enumerate(cells)])
    infinite = np.flatnonzero(np.isinf(numbers))
    if len(infinite):
        raise table.mistake(infinite[0], f"{name!r} is {cells[infinite[0]]!r}; a value must be finite")
    return numbers


def _is_plain(text: str) -> bool:
    """Whether Python's own liberties are not taken: 1_000, and digits of other scripts."""
    return "_" not in text and text.isascii()


def _number(spec: TraceSpec, table: Table, name: str, row: int, cell: str) -> float:
    text = cell.strip()
    if text in spec.na_values:
        return np.nan
    if spec.decimal == ",":
        text = (text.replace(".", "") if _GROUPED.fullmatch(text) else text).replace(",", ".")
    try:
        if not _is_plain(text):
            raise ValueError
        return float(text)
    except ValueError:
        hint = "set decimal: ','" if "," in text else f"if it means no value, add {text!r} to na_values"
        raise table.mistake(row, f"{name!r} is {cell!r}, which is not a number; {hint}") from None


def read_integers(table: Table, name: str, low: int = 1, high: int | None = None) -> Ints:
    """Whole numbers of a column, from `low` to `high`."""
    numbers = np.zeros(len(table.lines), dtype=np.int64)
    for row, cell in enumerate(table.columns[name]):
        try:
            if not _is_plain(cell):
                raise ValueError
            numbers[row] = int(cell)
        except (ValueError, OverflowError):
            raise table.mistake(row, f"{name!r} must be a whole number (got {cell!r})") from None
    bad = (numbers < low) | (False if high is None else numbers > high)
    if bad.any():
        row = int(bad.argmax())
        upper = "" if high is None else f" and at most {high}"
        raise table.mistake(row, f"{name!r} must be at least {low}{upper} (got {numbers[row]})")
    return numbers
