"""How does an answer move with its question?  A scenario at every point of a grid of overrides: one table, one figure.

Any scenario can be swept.  A point that turns out to be infeasible is a row with its reason, not an error.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import yaml
from pydantic import ConfigDict, Field, ValidationError, model_validator
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from curtailsim import results
from curtailsim.scenario import explain, read_mapping
from curtailsim.scenario import load as load_scenario
from curtailsim.spec import Problem, ScenarioError, Spec

TABLE = "sweep.csv"
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


class Axis(Spec):
    """One thing that varies.

    Attributes:
        path: Where it is in the scenario, as in `--set`.
        values: Its values.
        name: Column in the table; the last part of the path when absent.
    """

    path: str
    values: tuple[Any, ...] = Field(min_length=1)
    name: str | None = None

    @property
    def label(self) -> str:
        """Column in the table."""
        return self.name or self.path.replace("]", "").replace("[", ".").split(".")[-1]


class SweepFigure(Spec):
    """What to draw.

    Attributes:
        x: Axis along the bottom; the first one when absent.
        y: Columns, one panel each.
    """

    x: str | None = None
    y: tuple[str, ...] = Field(min_length=1)


class Sweep(Spec):
    """A sweep file.

    Attributes:
        name: Names the results folder; the file's name when absent.
        scenario: Scenario file, relative to the sweep file.
        set_: `set` in the file: overrides of every point, as in `--set`.
        vary: What varies; every combination is a point.
        runs: Runs to read; the first one of each results folder when absent.
        columns: Numbers to read by their path in the run's summary, or else in the whole summary, such as
            `savings.fixed.cost_cut`.
        figure: What to draw; all columns when absent.
    """

    model_config = ConfigDict(populate_by_name=True)

    name: str = Field(pattern=r"^[\w.-]+$")
    scenario: str
    set_: tuple[str, ...] = Field(default=(), alias="set")
    vary: tuple[Axis, ...] = Field(min_length=1)
    runs: tuple[str, ...] | None = None
    columns: tuple[str, ...] = Field(min_length=1)
    figure: SweepFigure | None = None

    @model_validator(mode="after")
    def _names_differ(self) -> Sweep:
        names = [axis.label for axis in self.vary]
        if len(set(names)) < len(names):
            raise ValueError(f"two axes have the same name ({', '.join(names)}); give them a name")
        if self.figure is not None:
            unknown = [y for y in self.figure.y if y not in self.columns]
            if unknown:
                raise ValueError(f"figure.y {unknown[0]!r} is not in columns ({', '.join(self.columns)})")
            if self.figure.x is not None and self.figure.x not in names:
                raise ValueError(f"figure.x {self.figure.x!r} is no axis ({', '.join(names)})")
        return self

    @property
    def points(self) -> list[dict[str, Any]]:
        """Value of every axis at every point, by the axis's name."""
        labels = [axis.label for axis in self.vary]
        return [dict(zip(labels, values, strict=True)) for values in itertools.product(*(a.values for a in self.vary))]

    def overrides(self, point: dict[str, Any]) -> list[str]:
        """What sets a scenario to a point."""
        own = [f"{axis.path}={_as_yaml(point[axis.label])}" for axis in self.vary]
        return [*self.set_, *own]


@dataclass(frozen=True)
class SweepResults:
    """A finished sweep.

    Attributes:
        path: Its folder.
        sweep: What was asked.
        table: One row per point and run.
        figures: Names of the figures.
    """

    path: Path
    sweep: Sweep
    table: pd.DataFrame
    figures: tuple[str, ...]


class Reporter:
    """Says how a sweep is going, one line per point."""

    def __init__(self, console: Console) -> None:
        self.console, self.began = console, time.monotonic()

    def __call__(self, number: int, total: int, rows: list[dict[str, Any]], sweep: Sweep) -> None:
        """A point is done."""
        row = rows[0]
        where = ", ".join(f"{axis.label} = {row[axis.label]}" for axis in sweep.vary)
        what = row["reason"] if row["status"] != "complete" else f"{sweep.columns[0]} = {_shown(row[sweep.columns[0]])}"
        elapsed = time.monotonic() - self.began
        self.console.print(f"[{number}/{total}] {elapsed:5.0f} s  {where}: {row['status']}, {what}", markup=False)


def load(path: str | Path, overrides: Sequence[str] = ()) -> Sweep:
    """Read a sweep file and check it with every point's scenario.

    Args:
        path: YAML file.
        overrides: Further overrides of every point's scenario.

    Raises:
        ScenarioError: Listing every mistake of the file, or of the first point that has any.
    """
    path = Path(path)
    raw = read_mapping(path)
    if "vary" not in raw and "sites" in raw:
        rule = f"is a scenario, not a sweep; run it with: curtailsim run {path}"
        raise ScenarioError(str(path), [Problem("file", rule)])
    raw.setdefault("name", path.stem)
    try:
        sweep = Sweep.model_validate(raw)
    except ValidationError as error:
        raise ScenarioError(str(path), explain(error, raw, Sweep)) from None
    sweep = sweep.model_copy(update={"scenario": str(path.parent / sweep.scenario), "set_": (*sweep.set_, *overrides)})
    for point in sweep.points:
        load_scenario(sweep.scenario, sweep.overrides(point))
    return sweep


def run(
    sweep: Sweep,
    out: str | Path | None = None,
    report: Callable[[int, int, list[dict[str, Any]], Sweep], None] | None = None,
) -> SweepResults:
    """Run every point; the table is written after each, so that an interrupted sweep leaves what it has.

    Args:
        sweep: What is asked.
        out: Folder; `results/<sweep name>` when absent. A sweep's folder there is replaced.
        report: Told when a point is done.

    Raises:
        ScenarioError: The place is taken by something else.
    """
    folder = Path(out) if out is not None else Path("results") / sweep.name
    _make_room(folder)
    rows: list[dict[str, Any]] = []
    points = sweep.points
    for number, point in enumerate(points, 1):
        name = "_".join(f"{label}-{_plain(value)}" for label, value in point.items())
        found = _run_point(sweep, point, folder / "points" / f"{number:02d}_{name}"[:80])
        rows += found
        made = pd.DataFrame(rows)
        made.to_csv(folder / TABLE, index=False, lineterminator="\n")
        if report is not None:
            report(number, len(points), found, sweep)
    return SweepResults(folder, sweep, made, _draw(folder, sweep, made))


def table(done: SweepResults) -> Table:
    """The table for people."""
    made = Table(title=f"{done.sweep.name}: {done.sweep.scenario}", title_justify="left")
    columns = [column for column in done.table.columns if column != "reason"]
    for column in columns:
        made.add_column(column.replace(".", "\n"), justify="right")
    made.add_column("reason")
    for row in done.table.to_dict("records"):
        reason = "" if pd.isna(row["reason"]) else str(row["reason"])
        made.add_row(*(escape(text) for text in (*(_shown(row[column]) for column in columns), reason)))
    return made


def _run_point(sweep: Sweep, point: dict[str, Any], folder: Path) -> list[dict[str, Any]]:
    scenario = load_scenario(sweep.scenario, sweep.overrides(point))
    empty = dict.fromkeys(sweep.columns)
    try:
        summary = results.run(scenario, folder).summary
    except ScenarioError as error:
        shutil.rmtree(folder.with_name(f"{folder.name}.partial"), ignore_errors=True)
        reason = "; ".join(f"{problem.path}: {problem.rule}" for problem in error.problems)
        return [
            {**point, "run": name, "status": "infeasible", **empty, "reason": reason} for name in sweep.runs or ("",)
        ]
    rows = []
    for name in sweep.runs or list(summary["runs"])[:1]:
        found = summary["runs"].get(name)
        if found is None:
            reason = summary.get("impossible", {}).get(name, f"there is no run {name!r}")
            rows.append({**point, "run": name, "status": "infeasible", **empty, "reason": reason})
            continue
        values = {column: _value(column, found, summary) for column in sweep.columns}
        rows.append({**point, "run": name, "status": "complete", **values, "reason": None})
    return rows


def _value(path: str, run: dict[str, Any], summary: dict[str, Any]) -> Any:
    """A number by its path in a run's summary, or else in the whole one; None where there is none."""
    for root in (run, summary):
        here: Any = root
        for part in path.split("."):
            here = here.get(part) if isinstance(here, dict) else None
        if here is not None:
            return here
    return None


def _make_room(folder: Path) -> None:
    if folder.exists() and not (folder / TABLE).is_file() and (not folder.is_dir() or any(folder.iterdir())):
        raise ScenarioError("--out", [Problem(str(folder), "exists and is no sweep's folder; choose another place")])
    try:
        shutil.rmtree(folder / "points", ignore_errors=True)
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ScenarioError("--out", [Problem(str(folder), f"cannot be written: {error.strerror}")]) from None


def _as_yaml(value: Any) -> str:
    return yaml.safe_dump(value, default_flow_style=True, width=10_000).removesuffix("...\n").strip()


def _plain(value: Any) -> str:
    return "".join(char if char.isalnum() or char in "-." else "_" for char in str(value))


def _shown(value: Any) -> str:
    if value is None or (isinstance(value, float) and pd.isna(value)):
        return "-"
    return (
        f"{value:,.4g}"
        if isinstance(value, float) and abs(value) < 1
        else f"{value:,.3f}"
        if isinstance(value, float)
        else str(value)
    )


def _draw(folder: Path, sweep: Sweep, made: pd.DataFrame) -> tuple[str, ...]:
    """One panel per column against one axis; a line per run and value of the other axes; crosses: infeasible."""
    from matplotlib.figure import Figure

    labels = [axis.label for axis in sweep.vary]
    asked = sweep.figure or SweepFigure(y=sweep.columns)
    x = asked.x or labels[0]
    ticks = list(next(axis.values for axis in sweep.vary if axis.label == x))
    numeric = all(isinstance(value, int | float) for value in ticks)
    place = {str(value): value if numeric else number for number, value in enumerate(ticks)}
    figure = Figure(figsize=(4.2 * len(asked.y), 3.6))
    axes = figure.subplots(1, len(asked.y), squeeze=False)[0]
    others = ["run", *(label for label in labels if label != x)]
    groups = list(made.groupby(others, sort=False, dropna=False))
    for axis, column in zip(axes, asked.y, strict=True):
        for number, (key, rows) in enumerate(groups):
            done = rows[rows.status == "complete"]
            where = [place[str(value)] for value in done[x]]
            colour = COLOURS[number % len(COLOURS)]
            axis.plot(where, done[column].astype(float), "o-", color=colour, markersize=4, label=_line(key))
        failed = [place[str(value)] for value in made[made.status != "complete"][x]]
        if failed:
            bottom = axis.get_ylim()[0]
            axis.plot(failed, [bottom] * len(failed), "x", color="black", label="infeasible", clip_on=False)
        if not numeric:
            axis.set_xticks(range(len(ticks)), [str(value) for value in ticks], fontsize=6, rotation=30, ha="right")
        axis.set_xlabel(x)
        axis.set_title(column, fontsize=9)
    axes[0].legend(fontsize=7)
    figure.suptitle(sweep.name, fontsize=10)
    figure.tight_layout()
    figure.savefig(folder / "sweep.png", dpi=110, metadata={"Software": None})
    return ("sweep.png",)


def _line(key: Any) -> str:
    return ", ".join(str(part) for part in key if part != "") if isinstance(key, tuple) else str(key)
