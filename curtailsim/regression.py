"""Has a scenario's outcome moved?  A run against the values kept in `expected/<scenario name>.json` beside its file.

Everything but the loss is exact arithmetic on the scenario's numbers and has to agree to the last digits; the loss of
real training differs between versions of PyTorch and processors, and has to be close.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from curtailsim.spec import Problem, ScenarioError

if TYPE_CHECKING:
    from rich.table import Table

    from curtailsim.scenario import Scenario
    from curtailsim.simulation import Watcher

EXACT = 1e-9
"""Relative change allowed in energy, emissions, shares, ratios, steps and tokens. [-]"""
CLOSE = 0.02
"""Relative change allowed in the final held-out loss. [-]"""
RUN_KEYS = (
    "energy_kwh",
    "emissions_kg",
    "emissions_surplus_first_kg",
    "curtailed_share",
    "steps",
    "tokens",
    "eval_loss_final",
)
RATIO_KEYS = ("emission_ratio", "emission_ratio_surplus_first")


@dataclass(frozen=True)
class Difference:
    """One value that is not what it was.

    Attributes:
        path: Where it is in `summary.json`.
        kind: moved, missing (expected only) or new (not expected).
        expected: What it was; None for "n/a", as in `summary.json`.
        actual: What it is.
    """

    path: str
    kind: str
    expected: float | None
    actual: float | None

    @property
    def change(self) -> float | None:
        """Relative change; None where there is nothing to relate."""
        return None if self.actual is None or not self.expected else self.actual / self.expected - 1


@dataclass(frozen=True)
class Outcome:
    """What a comparison found.

    Attributes:
        file: The expected values.
        compared: How many values were compared.
        differences: Those that moved, are missing or are new.
        updated: The file was rewritten instead of being compared.
    """

    file: Path
    compared: int
    differences: tuple[Difference, ...] = ()
    updated: bool = False

    @property
    def moved(self) -> bool:
        """Whether anything is not what it was."""
        return bool(self.differences)

    def table(self) -> Table:
        """What moved, or that nothing did."""
        from rich.table import Table

        allowed = f"allowed: {EXACT:g}, held-out loss {CLOSE:g} (relative)"
        if not self.moved:
            table = Table.grid()
            found = f"rewritten, {self.compared} values" if self.updated else f"nothing moved in {self.compared} values"
            table.add_row(f"{self.file}: {found}; {allowed}")
            return table
        title = f"{self.file}: {len(self.differences)} of {self.compared} values moved; {allowed}"
        table = Table(title=title, title_justify="left")
        for heading in ("value", "", "expected", "now", "relative change"):
            table.add_column(heading, justify="left" if heading in ("value", "") else "right", no_wrap=True)
        for one in self.differences:
            change = "n/a" if one.change is None else f"{one.change:+.3g}"
            table.add_row(one.path, one.kind, _text(one.expected), _text(one.actual), change)
        return table


def regress(
    scenario: Scenario,
    source: str | Path,
    *,
    update: bool = False,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    started: Callable[[list[str]], None] = lambda names: None,
) -> Outcome:
    """Run a scenario and compare it with what is expected of it.

    Args:
        scenario: What to run.
        source: Its file; the expected values are in `expected/` beside it.
        update: Rewrite them instead.
        out: Keep the results folder here; it is thrown away when absent.
        watcher: For progress.
        started: For progress.

    Raises:
        ScenarioError: There are no expected values, or they cannot be read.
    """
    from curtailsim.results import run

    file = Path(source).parent / "expected" / f"{scenario.name}.json"
    expected = None if update else _read(file, source)
    with tempfile.TemporaryDirectory(prefix="curtailsim-") as folder:
        summary = run(scenario, out if out is not None else Path(folder) / scenario.name, watcher, started).summary
    actual = values(summary)
    if expected is None:
        _write(file, actual)
        return Outcome(file, len(actual), updated=True)
    return Outcome(file, len(expected.keys() | actual.keys()), tuple(compare(expected, actual)))


def values(summary: dict[str, Any]) -> dict[str, float | None]:
    """The values of a `summary.json` that are kept, by path."""
    ratios = {f"{key}.{run}": value for key in RATIO_KEYS for run, value in summary.get(key, {}).items()}
    runs = summary["runs"].items()
    return ratios | {f"runs.{run}.{key}": found[key] for run, found in runs for key in RUN_KEYS if key in found}


def compare(expected: dict[str, float | None], actual: dict[str, float | None]) -> Iterator[Difference]:
    """What moved, is missing or is new, in the order of the expected values."""
    for path in dict.fromkeys([*expected, *actual]):
        old, new = expected.get(path), actual.get(path)
        if path not in actual:
            yield Difference(path, "missing", old, new)
        elif path not in expected:
            yield Difference(path, "new", old, new)
        elif not _near(old, new, CLOSE if path.endswith(".eval_loss_final") else EXACT):
            yield Difference(path, "moved", old, new)


def _near(expected: float | None, actual: float | None, tolerance: float) -> bool:
    if expected is None or actual is None:
        return expected is actual
    return abs(actual - expected) <= tolerance * max(abs(actual), abs(expected))


def _text(value: float | None) -> str:
    return "n/a" if value is None else f"{value:.12g}"


def _read(file: Path, source: str | Path) -> dict[str, float | None]:
    repair = f"write it with: curtailsim regress {source} --update"
    try:
        content = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ScenarioError(str(source), [Problem(str(file), f"does not exist yet; {repair}")]) from None
    except (OSError, ValueError) as error:
        raise ScenarioError(str(source), [Problem(str(file), f"cannot be read ({error}); {repair}")]) from None
    if not isinstance(content, dict) or not all(isinstance(v, int | float | None) for v in content.values()):
        raise ScenarioError(str(source), [Problem(str(file), f"must map paths to numbers; {repair}")])
    return content


def _write(file: Path, content: dict[str, float | None]) -> None:
    """Write aside and move into place, so that there is never half a file."""
    aside = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        aside.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
        aside.replace(file)
    except OSError as error:
        raise ScenarioError(str(file), [Problem("file", f"cannot be written: {error.strerror}")]) from None
