"""The figures of a dispatched pool: what ran when and in which mode, what it cost, and what was learned for it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from curtailsim.dispatch.planner import OPTIMUM
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.metrics import RunTables

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#CC79A7", "#56B4E9", "#E69F00")
GREEN, GREY = "#009E73", "#999999"


def draw(folder: Path, scenario: DispatchScenario, tables: dict[str, RunTables]) -> None:
    """Draw dispatch.png, costs.png and, with a real learner, loss.png."""
    _dispatch(folder / "dispatch.png", scenario, tables)
    _costs(folder / "costs.png", tables)
    if any(len(made.loss) for made in tables.values()):
        _loss(folder / "loss.png", scenario, tables)


def _dispatch(path: Path, scenario: DispatchScenario, tables: dict[str, RunTables]) -> None:
    """Power by task and mode against renewable supply and price, one row per run, checkpoints as ticks."""
    shown = [name for name in tables if name in (OPTIMUM, "fixed")] or list(tables)[:1]
    figure = Figure(figsize=(11, 3.6 * len(shown) + 0.6))
    axes = figure.subplots(len(shown), 1, sharex=True, squeeze=False)[:, 0]
    for axis, name in zip(axes, shown, strict=True):
        _power(axis, scenario, tables[name])
        axis.set_title(_headline(name, tables[name].summary), loc="left", fontsize=9)
    axes[-1].set_xlabel(f"hours since {scenario.start:%Y-%m-%d %H:%M} UTC")
    axes[-1].set_xlim(0, scenario.duration_h)
    figure.suptitle(f"{scenario.name}: power by task and mode; ticks are checkpoints", fontsize=11)
    figure.tight_layout()
    _save(figure, path)


def _headline(name: str, summary: dict[str, Any]) -> str:
    share = summary["green_share"]
    green = "" if share is None else f", green share {100 * share:.1f} %"
    return f"{name}: cost {summary['cost']:.2f}, curtailed {summary['curtailed_mwh']:.3f} MWh{green}"


def _power(axis: Axes, scenario: DispatchScenario, made: RunTables) -> None:
    idle_mw = scenario.dispatch.idle_mw
    ledger, rows = made.intervals, made.extra["tasks"]
    names = [task.name for task in scenario.dispatch.tasks]
    edges = np.unique(np.concatenate([ledger.start_s, ledger.end_s, rows.start_s, rows.end_s]))
    on = _held(ledger, ledger.facility_kw, edges) > 0
    below = np.where(on, idle_mw, 0.0)
    axis.stairs(below, edges / 3600, fill=True, color=GREY, alpha=0.35)
    for index, name in enumerate(names):
        own = rows[rows.task == name]
        above = below + np.where(on, _held(own, own.increment_kw, edges) / 1000, 0.0)
        colour = COLOURS[index % len(COLOURS)]
        axis.stairs(above, edges / 3600, baseline=below, fill=True, color=colour, alpha=0.6)
        axis.stairs(above, edges / 3600, baseline=None, color=colour, linewidth=0.6)
        _checkpoints(axis, made.events[made.events.site == name], edges, below, above, colour)
        _modes(axis, own, edges, below, above, scenario.duration_h)
        below = above
    hours = np.append(ledger.start_s, ledger.end_s.iloc[-1]) / 3600
    axis.stairs(ledger.generation_kw / 1000, hours, baseline=None, color=GREEN, linewidth=1.6)
    samples = [own for _, own in made.extra["samples"].groupby("sample")] if "samples" in made.extra else []
    starts = np.linspace(0, scenario.duration_h, scenario.slots + 1)
    for sample in samples:
        axis.stairs(sample.renewable_mw, starts, baseline=None, color=GREEN, linewidth=0.7, alpha=0.4)
    axis.set_ylabel("power [MW]", fontsize=8)
    highest = [float(below.max()), float(ledger.generation_kw.max()) / 1000]
    axis.set_ylim(0, 1.25 * max(highest + [float(sample.renewable_mw.max()) for sample in samples]))
    price = axis.twinx()
    price.stairs(ledger.price_per_mwh, hours, baseline=None, color="black", linewidth=0.8, linestyle=":")
    for sample in samples:
        price.stairs(
            sample.price_per_mwh, starts, baseline=None, color="black", linewidth=0.6, linestyle=":", alpha=0.4
        )
    price.set_ylabel("price [per MWh] (dotted)", fontsize=8)
    handles = [Patch(color=COLOURS[i % len(COLOURS)], alpha=0.6, label=name) for i, name in enumerate(names)]
    handles += [Patch(color=GREY, alpha=0.35, label="idle pool"), Patch(color=GREEN, label="renewable supply")]
    if samples:
        handles.append(Patch(color=GREEN, alpha=0.4, label="samples of it"))
    axis.legend(handles=handles, fontsize=7, ncols=len(handles), loc="upper left")


def _held(table: pd.DataFrame, values: pd.Series, edges: Any) -> Any:
    """A table's step function on finer edges."""
    place = np.searchsorted(table.start_s.to_numpy(), edges[:-1], side="right") - 1
    return values.to_numpy()[place]


def _checkpoints(axis: Axes, events: pd.DataFrame, edges: Any, below: Any, above: Any, colour: str) -> None:
    times = events[events.event == "checkpoint_written"].time_s.to_numpy()
    place = np.clip(np.searchsorted(edges, times, side="left") - 1, 0, len(above) - 1)
    axis.vlines(times / 3600, below[place], above[place], color="white", linewidth=0.8)
    axis.plot(times / 3600, above[place], "|", color=colour, markersize=7)


def _modes(axis: Axes, rows: pd.DataFrame, edges: Any, below: Any, above: Any, duration_h: float) -> None:
    """Write each run's mode into its area, where there is room."""
    busy = rows[rows.phase != "waiting"]
    runs = (busy["phase"].eq("restoring") | (busy["mode"] != busy["mode"].shift())).cumsum()
    for _, run in busy.groupby(runs):
        start, end = run.start_s.iloc[0], run.end_s.iloc[-1]
        if (end - start) / 3600 < duration_h / 16:
            continue
        middle = (start + end) / 2
        place = min(int(np.searchsorted(edges, middle, side="right")) - 1, len(above) - 1)
        height = (below[place] + above[place]) / 2
        label = f"{run['mode'].iloc[0]}\n{run.gpus.iloc[0]} GPUs"
        axis.text(middle / 3600, height, label, fontsize=6, ha="center", va="center")


def _costs(path: Path, tables: dict[str, RunTables]) -> None:
    """Cost, curtailment and share of renewable energy of every run, planned and realised."""
    names = list(tables)
    figure = Figure(figsize=(12, 0.5 * len(names) + 1.8))
    axes = figure.subplots(1, 3, sharey=True)
    rows = np.arange(len(names))
    titles = {
        "cost": "cost, with curtailment and restarts",
        "curtailed_mwh": "curtailed [MWh]",
        "green_share": "green share",
    }
    for axis, (key, title) in zip(axes, titles.items(), strict=True):
        planned = [made.summary["planned"][key] or 0.0 for made in tables.values()]
        realised = [made.summary[key] or 0.0 for made in tables.values()]
        axis.barh(rows - 0.19, planned, 0.36, color=COLOURS[3], label="planned on slots")
        axis.barh(rows + 0.19, realised, 0.36, color=COLOURS[0], label="realised on the clock")
        axis.set_title(title, fontsize=9)
        axis.set_yticks(rows, [name.replace("_", " ") for name in names], fontsize=8)
    axes[0].legend(fontsize=7)
    axes[0].invert_yaxis()
    figure.tight_layout()
    _save(figure, path)


def _loss(path: Path, scenario: DispatchScenario, tables: dict[str, RunTables]) -> None:
    """Held-out loss of every task against time, cost and curtailed energy, run by run."""
    against = {
        "time_s": ("time [h]", 3600),
        "cost": ("cost so far", 1),
        "surplus_wasted_kwh": ("curtailed so far [MWh]", 1000),
    }
    names = [task.name for task in scenario.dispatch.pretraining]
    figure = Figure(figsize=(13, 3.2 * len(names) + 0.5))
    axes = figure.subplots(len(names), len(against), sharey="row", squeeze=False)
    for row, name in zip(axes, names, strict=True):
        for axis, (column, (label, unit)) in zip(row, against.items(), strict=True):
            for index, (run, made) in enumerate(tables.items()):
                curve = made.rounds[(made.rounds.sites == name)].dropna(subset=["eval_loss"])
                style = {"linewidth": 1.6 if run == OPTIMUM else 0.9, "color": COLOURS[index % len(COLOURS)]}
                axis.plot(
                    curve[column] / unit, curve.eval_loss, ".-", markersize=4, label=run.replace("_", " "), **style
                )
            axis.set_xlabel(label, fontsize=8)
        row[0].set_ylabel(f"{name}\nheld-out loss [nats/byte]", fontsize=8)
    axes[0, 0].legend(fontsize=7)
    figure.suptitle(f"{scenario.name}: loss at every checkpoint, against cost and curtailed energy", fontsize=11)
    figure.tight_layout()
    _save(figure, path)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
