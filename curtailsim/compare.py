"""How far is one run from another, or from a published event log?  Event by event, and number by number.

Every difference is RESULTS minus the other side, which is the reference: an error of +5 s is five seconds late, a
missing event stands only in the reference, an extra one only in RESULTS.

Events are aligned by kind, site and order.  Where a kind and site have as many events on both sides, the first is
paired with the first, and so on.  Where they have not, as many as possible are paired in order, with the smallest sum
of time errors; the rest is missing or extra.  A limit on the error of a pair (`within_s`) makes of a pair that is
farther apart one missing and one extra event.

Logs come in two formats:

- the published one, `wall_time,elapsed_s,event_type,round,client,details`, with the kinds of `LOG_KINDS`.  Its
  EXPERIMENT_START is the zero of its clock by definition, so it is not compared; neither are our kinds that it does
  not know, such as windows;
- our own `events.csv`, all of whose kinds are compared, but for the zero of its clock, `run_started`.
"""

from __future__ import annotations

import csv
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table
from rich.text import Text

from curtailsim.results import Results, open_results
from curtailsim.spec import Problem, ScenarioError, near_match

LOG_KINDS = {
    "PROVISION_DECISION": "provision_decided",
    "PROVISION_START": "provisioning_started",
    "PROVISION_COMPLETE": "provisioned",
    "CLIENT_CONNECTED": "client_connected",
    "DEPROVISION_MARKED": "deprovision_marked",
    "DEPROVISION_STARTED": "deprovision_started",
    "DEPROVISION": "deprovisioned",
    "ROUND_START": "round_started",
    "ROUND_END": "round_ended",
    "AGGREGATION": "aggregated",
}
"""Kinds of the published log, and what we call them."""

LOG_OPENED = "EXPERIMENT_START"
OPENED = "run_started"
CLIENTS = {"client_0": "california", "client_1": "texas", "client_2": "south_australia"}
"""Clients of the published log, and the sites they stand for."""

WORST = 5


class Event(NamedTuple):
    """One line of a log.

    Attributes:
        time_s: When. [s]
        kind: What, in our words.
        site: Where; empty for what concerns all sites.
        round: Round number as written; empty where there is none.
    """

    time_s: float
    kind: str
    site: str
    round: str


class Format(NamedTuple):
    """Columns of a log.

    Attributes:
        time: Seconds on the run's clock.
        kind: Kind of event.
        place: Site, or client.
        round: Round number.
    """

    time: str
    kind: str
    place: str
    round: str = "round"


OWN = Format("time_s", "event", "site")
PUBLISHED = Format("elapsed_s", "event_type", "client")


@dataclass(frozen=True)
class Log:
    """Events that can be compared with.

    Attributes:
        events: All of them, in order of time.
        kinds: The kinds it can hold; None if there is no limit.
    """

    events: list[Event]
    kinds: frozenset[str] | None = None


@dataclass(frozen=True)
class Pair:
    """An event of ours and its counterpart.

    Attributes:
        ours: In RESULTS.
        theirs: In the reference.
    """

    ours: Event
    theirs: Event

    @property
    def error_s(self) -> float:
        """Time error, positive where ours is late. [s]."""
        return round(self.ours.time_s - self.theirs.time_s, 3)


@dataclass(frozen=True)
class Alignment:
    """Two logs side by side.

    Attributes:
        reference: What ours was compared with.
        pairs: Events on both sides.
        missing: Events of the reference without a counterpart.
        extra: Events of ours without a counterpart, of kinds the reference can hold.
        not_compared: Number of our events of every kind the reference cannot hold.
    """

    reference: str
    pairs: list[Pair]
    missing: list[Event]
    extra: list[Event]
    not_compared: dict[str, int]

    @property
    def kinds(self) -> list[str]:
        """Compared kinds, in the order in which they first happen."""
        events = [*(p.theirs for p in self.pairs), *self.missing, *self.extra]
        return list(dict.fromkeys(event.kind for event in sorted(events)))

    def count(self, kind: str | None = None) -> dict[str, Any]:
        """Counts and time errors [s] of one kind, or of all."""
        errors = [abs(p.error_s) for p in self.pairs if kind in (None, p.theirs.kind)]
        missing, extra = (sum(kind in (None, e.kind) for e in events) for events in (self.missing, self.extra))
        return {
            "ours": len(errors) + extra,
            "theirs": len(errors) + missing,
            "matched": len(errors),
            "missing": missing,
            "extra": extra,
            "mean_abs_error_s": round(math.fsum(errors) / len(errors), 3) if errors else None,
            "max_abs_error_s": max(errors, default=None),
        }

    def worst(self, count: int = WORST) -> list[Pair]:
        """The pairs that are farthest apart, the worst first."""
        return sorted((p for p in self.pairs if p.error_s), key=lambda p: -abs(p.error_s))[:count]

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "reference": self.reference,
            "kinds": {kind: self.count(kind) for kind in self.kinds},
            "all": self.count(),
            "worst": [
                {**p.theirs._asdict(), "time_s": p.ours.time_s, "reference_s": p.theirs.time_s, "error_s": p.error_s}
                for p in self.worst()
            ],
            "missing": [event._asdict() for event in self.missing],
            "extra": [event._asdict() for event in self.extra],
            "not_compared": self.not_compared,
        }


@dataclass(frozen=True)
class Number:
    """One number of two summaries.

    Attributes:
        run: Run; empty for what concerns them all.
        site: Site; empty for what concerns the whole run.
        name: Key, with dots where it is nested.
        value: In RESULTS; None where there is none.
        other: In the reference.
    """

    run: str
    site: str
    name: str
    value: float | None
    other: float | None

    @property
    def difference(self) -> float | None:
        """RESULTS minus the reference."""
        return None if self.value is None or self.other is None else self.value - self.other

    @property
    def relative(self) -> float | None:
        """Difference by the reference; None where that is zero."""
        return self.difference / abs(self.other) if self.difference is not None and self.other else None

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {**vars(self), "difference": self.difference, "relative": self.relative}


@dataclass(frozen=True)
class Comparison:
    """Everything about one results folder and what it was compared with.

    Attributes:
        results: The folder.
        run: The run whose events were compared.
        other: The other folder, if there is one.
        numbers: All numbers of the two summaries.
        alignments: Its events beside those of the other folder and of the log.
        settings: Where the two scenarios differ: path, and both values.
    """

    results: str
    run: str
    other: str | None
    numbers: list[Number]
    alignments: list[Alignment]
    settings: list[tuple[str, Any, Any]] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """The same as plain data."""
        return {
            "results": self.results,
            "run": self.run,
            "other": self.other,
            "settings": [dict(zip(("path", "value", "other"), setting, strict=True)) for setting in self.settings],
            "numbers": [number.to_json() for number in self.numbers],
            "events": [alignment.to_json() for alignment in self.alignments],
        }


def compare(
    results: str | Path,
    other: str | Path | None = None,
    *,
    log: str | Path | None = None,
    run: str | None = None,
    clients: Iterable[str] = (),
    within_s: float | None = None,
) -> Comparison:
    """Compare a results folder with another one, with a log, or with both.

    Args:
        results: Results folder.
        other: A second results folder.
        log: Event log, as published or of ours.
        run: The only run to compare; by default the numbers of all, and the events of the first one.
        clients: NAME=SITE for every client of the log that is not as in `CLIENTS`.
        within_s: Largest time error of a pair. [s]

    Raises:
        ScenarioError: There is nothing to compare with, or something cannot be read or understood.
    """
    if other is None and log is None:
        raise ScenarioError(
            "compare", [Problem("OTHER", "is missing: name a second results folder, or --events LOG.csv")]
        )
    ours = open_results(results)
    name = run or ours.runs[0]
    events = _run_events(ours, name)
    numbers: list[Number] = []
    settings: list[tuple[str, Any, Any]] = []
    references: dict[str, Log] = {}
    if other is not None:
        theirs = open_results(other)
        references[str(other)] = Log(_run_events(theirs, name))
        numbers = compare_numbers(ours.summary, theirs.summary, run)
        settings = compare_settings(ours.manifest["scenario"], theirs.manifest["scenario"])
    if log is not None:
        references[str(log)] = read_log(log, _site_names(clients, _sites(ours)))
    alignments = [align(events, reference, title, within_s) for title, reference in references.items()]
    beside = None if other is None else str(other)
    return Comparison(str(results), name, beside, numbers, alignments, settings)


# --- events --------------------------------------------------------------------------------------------------------


def read_log(path: str | Path, clients: Mapping[str, str] = CLIENTS) -> Log:
    """Read an event log, as published or of ours.

    Args:
        path: The file.
        clients: Site of every client of a published log.

    Raises:
        ScenarioError: It cannot be read, lacks columns, or has times, kinds or clients that mean nothing.
    """
    columns, rows = _read_csv(path)
    columns_of = next((known for known in (OWN, PUBLISHED) if set(known) <= set(columns)), None)
    if columns_of is None:
        rule = f"must include {', '.join(PUBLISHED)} (published) or {', '.join(OWN)} (ours)"
        raise ScenarioError(str(path), [Problem("columns", f"{rule}; there are {', '.join(columns) or 'none'}")])
    published = columns_of is PUBLISHED
    problems: dict[tuple[str, str], Problem] = {}
    events: list[Event] = []
    for line, row in rows:
        time_s, kind, place, number = (row[column] for column in columns_of)
        if not _is_time(time_s):
            rule = f"must be seconds (got {time_s!r})"
            problems.setdefault((columns_of.time, ""), Problem(f"line {line}, {columns_of.time}", rule))
        if published:
            for column, word, rule in _unknown(kind, place, clients):
                problems.setdefault((column, word), Problem(f"line {line}, {column}", rule))
            kind, place = LOG_KINDS.get(kind, kind), clients.get(place, "")
        if not problems and kind != LOG_OPENED:
            events.append(Event(float(time_s), kind, place, number))
    if problems:
        raise ScenarioError(str(path), list(problems.values()))
    return Log(sorted(events, key=lambda event: event.time_s), frozenset(LOG_KINDS.values()) if published else None)


def _unknown(kind: str, client: str, clients: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Words of a published event that mean nothing: column, word and what is wrong with it."""
    if kind not in LOG_KINDS and kind != LOG_OPENED:
        yield PUBLISHED.kind, kind, f"{kind!r} is unknown{near_match(kind, [*LOG_KINDS, LOG_OPENED])}"
    if client and client not in clients:
        yield PUBLISHED.place, client, f"{client!r} stands for no site of these results; add --client {client}=SITE"


def align(ours: Iterable[Event], reference: Log, name: str, within_s: float | None = None) -> Alignment:
    """Align events by kind, site and order.

    Args:
        ours: Our events.
        reference: What to compare them with.
        name: Its name.
        within_s: Largest time error of a pair. [s]
    """
    groups: dict[tuple[str, str], tuple[list[Event], list[Event]]] = {}
    not_compared: Counter[str] = Counter()
    for event in ours:
        if event.kind == OPENED or not (reference.kinds is None or event.kind in reference.kinds):
            not_compared[event.kind] += 1
        else:
            groups.setdefault((event.kind, event.site), ([], []))[0].append(event)
    for event in reference.events:
        if event.kind != OPENED:
            groups.setdefault((event.kind, event.site), ([], []))[1].append(event)
    pairs: list[Pair] = []
    alone: tuple[list[Event], list[Event]] = ([], [])
    for left, right in groups.values():
        matched = pair_in_order([e.time_s for e in left], [e.time_s for e in right], within_s)
        pairs += [Pair(left[i], right[j]) for i, j in matched]
        for side, events in enumerate((left, right)):
            taken = {match[side] for match in matched}
            alone[side].extend(event for index, event in enumerate(events) if index not in taken)
    pairs.sort(key=lambda pair: pair.theirs)
    return Alignment(name, pairs, sorted(alone[1]), sorted(alone[0]), dict(not_compared))


def pair_in_order(ours: list[float], theirs: list[float], within_s: float | None = None) -> list[tuple[int, int]]:
    """Pair two series of times in order: as many pairs as possible, then the smallest sum of errors.

    Args:
        ours: Times in order. [s]
        theirs: Times in order. [s]
        within_s: Largest error of a pair; unlimited by default. [s]

    Returns:
        Indices of the two sides of every pair.
    """
    if within_s is None and len(ours) == len(theirs):
        return [(index, index) for index in range(len(ours))]
    left, right = (np.round(np.array(times) * 1000).astype(np.int64) for times in (ours, theirs))
    errors = np.abs(left[:, None] - right[None, :])
    alone = int(errors.max(initial=0)) * (min(len(ours), len(theirs)) + 1) + 1  # dearer than all errors together
    if within_s is not None:
        errors[errors > within_s * 1000] = 2 * alone + 1  # dearer than leaving both alone
    total = _cheapest(errors, alone)
    pairs = []
    i, j = len(ours), len(theirs)
    while i and j:
        if total[i, j] == total[i - 1, j - 1] + errors[i - 1, j - 1]:
            i, j = i - 1, j - 1
            pairs.append((i, j))
        elif total[i, j] == total[i - 1, j] + alone:
            i -= 1
        else:
            j -= 1
    return pairs[::-1]


def _cheapest(errors: npt.NDArray[np.int64], alone: int) -> npt.NDArray[np.int64]:
    """Least cost of aligning the first i with the first j events, each left alone costing `alone`.

    Args:
        errors: Cost of pairing event i with event j. (N, M) [ms]
        alone: Cost of an event without a counterpart. [ms]

    Returns:
        Costs. (N + 1, M + 1) [ms]
    """
    rows, columns = errors.shape
    along = np.arange(columns + 1, dtype=np.int64) * alone
    total = np.empty((rows + 1, columns + 1), dtype=np.int64)
    total[0] = along
    for i in range(rows):
        total[i + 1] = total[i] + alone
        np.minimum(total[i + 1, 1:], total[i, :-1] + errors[i], out=total[i + 1, 1:])
        total[i + 1] = np.minimum.accumulate(total[i + 1] - along) + along
    return total


def _run_events(results: Results, run: str) -> list[Event]:
    runs = results.summary.get("runs")
    if not isinstance(runs, dict):
        raise ScenarioError(str(results.path), [Problem("summary.json", "has no runs; run the scenario again")])
    if run not in runs:
        raise ScenarioError(str(results.path), [Problem("--run", f"{run!r} is unknown{near_match(run, runs)}")])
    return read_log(results.path / run / "events.csv").events


def _read_csv(path: str | Path) -> tuple[list[str], list[tuple[int, dict[str, str]]]]:
    """Columns of a file, and its rows with their line numbers."""
    try:
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, restval="")
            return list(reader.fieldnames or ()), [(reader.line_num, row) for row in reader]
    except (OSError, ValueError, csv.Error) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ScenarioError(str(path), [Problem("file", f"cannot be read as CSV ({reason})")]) from None


def _is_time(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def _sites(results: Results) -> list[str]:
    """Sites of the scenario, or else of the runs."""
    scenario = results.manifest.get("scenario", {}).get("sites") or []
    named = [site["name"] for site in scenario]
    return named or sorted({site for run in results.summary["runs"].values() for site in run.get("sites", {})})


def _site_names(overrides: Iterable[str], sites: list[str]) -> dict[str, str]:
    """Site of every client of a log: those of `CLIENTS` that exist here, and what was asked for."""
    clients = {client: site for client, site in CLIENTS.items() if site in sites}
    problems = []
    for override in overrides:
        client, _, site = override.partition("=")
        if not client or not site:
            problems.append(Problem("--client", f"must be NAME=SITE, such as client_0=california (got {override!r})"))
        elif site not in sites:
            problems.append(
                Problem("--client", f"{override}: {site!r} is no site of these results{near_match(site, sites)}")
            )
        clients[client] = site
    if problems:
        raise ScenarioError("compare", problems)
    return clients


# --- numbers -------------------------------------------------------------------------------------------------------


def compare_numbers(ours: Mapping[str, Any], theirs: Mapping[str, Any], run: str | None = None) -> list[Number]:
    """All numbers of two summaries, in the order of the first; those of one run only if it is named."""
    runs = list(dict.fromkeys([*ours["runs"], *theirs["runs"]]))
    left, right = (_numbers(summary, runs) for summary in (ours, theirs))
    keys = list(dict.fromkeys([*left, *right]))
    places = list(dict.fromkeys((place, site) for place, site, _ in keys))
    order = {key: (([*runs, ""].index(key[0])), places.index(key[:2])) for key in keys}
    keys.sort(key=order.__getitem__)
    found = [Number(*key, left.get(key), right.get(key)) for key in keys if run in (None, key[0])]
    return [number for number in found if number.value is not None or number.other is not None]


def _numbers(summary: Mapping[str, Any], runs: list[str]) -> dict[tuple[str, str, str], float | None]:
    """Numbers of a summary by run, site and name."""
    found: dict[tuple[str, str, str], float | None] = {}
    for path, value in _leaves(summary):
        match path:
            case ("runs", run, "sites", site, *names):
                key = (run, site, ".".join(names))
            case ("runs", run, *names):
                key = (run, "", ".".join(names))
            case (*names, run) if names and run in runs:
                key = (run, "", ".".join(names))
            case _:
                key = ("", "", ".".join(path))
        found[key] = value
    return found


def _leaves(value: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], float | None]]:
    """Numbers, and where a number is missing, with the way to them."""
    if isinstance(value, dict):
        for name, inner in value.items():
            yield from _leaves(inner, (*path, str(name)))
    elif value is None or (isinstance(value, int | float) and not isinstance(value, bool)):
        yield path, value


def compare_settings(ours: Any, theirs: Any, path: str = "") -> list[tuple[str, Any, Any]]:
    """Where two resolved scenarios differ: path, value here and value there; None where there is none."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        keys = dict.fromkeys([*ours, *theirs])
        parts = [(f"{path}.{key}".lstrip("."), ours.get(key), theirs.get(key)) for key in keys]
    elif isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs):
        parts = [(f"{path}[{index}]", *pair) for index, pair in enumerate(zip(ours, theirs, strict=True))]
    else:
        return [] if ours == theirs else [(path, ours, theirs)]
    return [difference for part in parts for difference in compare_settings(part[1], part[2], part[0])]


# --- print ---------------------------------------------------------------------------------------------------------


def show(comparison: Comparison, console: Console) -> None:
    """Print a comparison."""
    if comparison.other is not None:
        folders = f"{comparison.results} beside {comparison.other}"
        _line(console, f"{folders}; difference = first - second, change = difference / |second|")
        for path, ours, theirs in comparison.settings:
            _line(console, f"  {path}: {ours} instead of {theirs}")
        unequal = [number for number in comparison.numbers if number.value != number.other]
        for run in dict.fromkeys(number.run for number in unequal):
            console.print(_numbers_table(run, [number for number in unequal if number.run == run]))
        _line(console, f"{len(comparison.numbers) - len(unequal)} equal numbers are not shown; --json has all.")
    for alignment in comparison.alignments:
        _show_events(comparison, alignment, console)


def _numbers_table(run: str, numbers: list[Number]) -> Table:
    table = Table(title=Text(run or "all runs"), title_justify="left")
    for title in ("site", "number", "first", "second", "difference", "change"):
        table.add_column(title, justify="left" if title in ("site", "number") else "right", no_wrap=True)
    last = ""
    for number in numbers:
        if number.site != last:
            table.add_section()
        shown = (_figure(number.value), _figure(number.other), _figure(number.difference), _percent(number.relative))
        table.add_row(number.site if number.site != last else "", number.name, *shown)
        last = number.site
    return table


def _show_events(comparison: Comparison, alignment: Alignment, console: Console) -> None:
    title = f"Events of {comparison.results}, {comparison.run}, beside {alignment.reference}"
    table = Table(title=Text(title), title_justify="left")
    titles = ("kind", "here", "there", "matched", "missing", "extra", "mean |error|\n\\[s]", "max |error|\n\\[s]")
    for name in titles:
        table.add_column(name, justify="left" if name == "kind" else "right", no_wrap=True)
    for kind in alignment.kinds:
        table.add_row(kind, *_counts(alignment.count(kind)))
    table.add_section()
    table.add_row("all", *_counts(alignment.count()))
    console.print(table)
    for pair in alignment.worst():
        times = f"{pair.ours.time_s:,.1f} s instead of {pair.theirs.time_s:,.1f} s"
        _line(console, f"Worst: {_words(pair.theirs)} at {times} ({pair.error_s:+,.1f} s)")
    for word, events in (("Missing", alignment.missing), ("Extra", alignment.extra)):
        for event in events:
            _line(console, f"{word}: {_words(event)} at {event.time_s:,.1f} s")
    if alignment.not_compared:
        kinds = ", ".join(f"{kind} {count}" for kind, count in alignment.not_compared.items())
        _line(console, f"Not compared, since the reference has no such kind or it is the zero of the clock: {kinds}")


def _line(console: Console, text: str) -> None:
    """Print a line as it is, however long."""
    console.print(text, markup=False, highlight=False, soft_wrap=True)


def _counts(count: dict[str, Any]) -> list[str]:
    return [
        "-" if value is None else f"{value:,.1f}" if key.endswith("_s") else str(value) for key, value in count.items()
    ]


def _words(event: Event) -> str:
    return " ".join(word for word in (event.kind, event.site, event.round and f"(round {event.round})") if word)


def _figure(value: float | None) -> str:
    if value is None:
        return "n/a"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.6g}"


def _percent(value: float | None) -> str:
    return "n/a" if value is None else f"{100 * value:+.2f} %"
