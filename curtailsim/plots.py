"""The figures of a results folder: what happened when, what it cost, and what was learned for it."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curtailsim.metrics import RunTables
from curtailsim.scenario import Scenario
from curtailsim.simulation import HEADLINE

# Okabe and Ito's colours, which colour-blind readers can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SIGNALS = {
    "mci": ("mci_g_per_kwh", "marginal intensity\n[g/kWh]"),
    "price": ("price_per_mwh", "price\n[per MWh]"),
    "surplus": ("surplus_kw", "surplus\n[kW]"),
}


def draw(folder: Path, scenario: Scenario, tables: dict[str, RunTables]) -> None:
    """Draw timeline.png, comparison.png, power.png and, with a real learner, loss.png."""
    _timeline(folder / "timeline.png", scenario, tables[HEADLINE])
    _comparison(folder / "comparison.png", tables)
    _power(folder / "power.png", scenario, tables)
    if any(len(made.rounds.dropna(subset=["eval_loss"])) for made in tables.values()):
        _losses(folder / "loss.png", tables)


def _timeline(path: Path, scenario: Scenario, tables: RunTables) -> None:
    names = [site.name for site in scenario.sites if site.trains]
    has_loss = len(tables.loss) > 0
    heights = [1.0] * len(names) + ([1.7] if has_loss else [])
    figure = Figure(figsize=(11, 1.5 * sum(heights) + 1))
    axes = figure.subplots(len(heights), 1, sharex=True, squeeze=False, height_ratios=heights)
    signal = _signal(scenario, tables.intervals)
    threshold = getattr(scenario.policy, "type", "") == "threshold"
    for index, (name, axis) in enumerate(zip(names, axes[:, 0], strict=False)):
        own = tables.intervals[tables.intervals.site == name]
        events = tables.events[tables.events.site == name]
        power = _site(axis, name, own, events, signal, COLOURS[index % len(COLOURS)], scenario)
        power.set_ylim(0, 2.2 * (tables.intervals.facility_kw.max() or 1.0))
        if threshold:
            level = next((v for v in _thresholds(scenario) if v is not None), None)
            if level is not None:
                axis.axhline(level, color="black", linewidth=0.7, linestyle=":")
    if has_loss:
        _loss(axes[-1, 0], names, tables)
    axes[-1, 0].set_xlabel(f"hours since {scenario.start:%Y-%m-%d %H:%M} UTC")
    shown_h = _shown_h(scenario, tables)
    axes[-1, 0].set_xlim(0, shown_h)
    figure.suptitle(
        f"{scenario.name}: windows (shaded), facility power (filled) and loss on one clock"
        + (f"; first {shown_h:g} of {scenario.duration_h:g} h" if shown_h < scenario.duration_h else "")
    )
    figure.tight_layout()
    _save(figure, path)


def _shown_h(scenario: Scenario, tables: RunTables) -> float:
    """The whole horizon, or a bit more than the training took if it was over long before. [h]."""
    finished = tables.events.time_s[tables.events.event == "training_finished"]
    enough_h = math.ceil(1.4 * finished.iloc[0] / 3600) if len(finished) else math.inf
    return min(scenario.duration_h, max(enough_h, 1))


def _signal(scenario: Scenario, intervals: pd.DataFrame) -> tuple[str, str]:
    wanted = getattr(scenario.policy, "signal", "mci")
    column, label = SIGNALS[wanted]
    return (column, label) if intervals[column].notna().any() else SIGNALS["surplus"]


def _thresholds(scenario: Scenario) -> list[Any]:
    keys = ("threshold_g_per_kwh", "threshold_per_mwh", "threshold_kw")
    return [getattr(scenario.policy, key, None) for key in keys]


def _site(
    axis: Axes,
    name: str,
    intervals: pd.DataFrame,
    events: pd.DataFrame,
    signal: tuple[str, str],
    colour: str,
    scenario: Scenario,
) -> Axes:
    hours = np.append(intervals.start_s, intervals.end_s.iloc[-1:]) / 3600
    for start, end in windows(events, scenario.duration_h * 3600):
        axis.axvspan(start / 3600, end / 3600, color="#009E73", alpha=0.13, linewidth=0)
    column, label = signal
    axis.stairs(intervals[column], hours, baseline=None, color="#555555", linewidth=0.8)
    axis.set_ylabel(label, fontsize=8)
    axis.set_title(name, loc="left", fontsize=9, color=colour)
    power = axis.twinx()
    power.stairs(intervals.facility_kw, hours, fill=True, color=colour, alpha=0.45)
    power.set_ylabel("power [kW]", fontsize=8, color=colour)
    return power


def windows(events: pd.DataFrame, horizon_s: float) -> list[tuple[float, float]]:
    """Half-open times in which the policy wanted a site. [s]"""
    opened = events[events.event == "window_opened"].time_s.tolist()
    closed = events[events.event == "window_closed"].time_s.tolist()
    return list(zip(opened, [*closed, horizon_s], strict=False))


def _loss(axis: Axes, names: list[str], tables: RunTables) -> None:
    for index, name in enumerate(names):
        own = tables.loss[tables.loss.site == name]
        axis.plot(
            own.time_s / 3600,
            own.loss,
            ".",
            markersize=2,
            color=COLOURS[index % len(COLOURS)],
            label=f"{name}, training",
        )
    held_out = tables.rounds.dropna(subset=["eval_loss"])
    if len(held_out):
        pause = held_out.start_s > held_out.time_s.shift() + 1  # nobody trained: no line across it
        for index, (_, stretch) in enumerate(held_out.groupby(pause.cumsum())):
            label = "global, held-out" if index == 0 else None
            axis.plot(stretch.time_s / 3600, stretch.eval_loss, color="black", linewidth=1.2, label=label)
    for time_s in tables.events[tables.events.event == "training_finished"].time_s:
        axis.axvline(time_s / 3600, color="black", linewidth=0.7, linestyle="--", label="token budget used up")
    axis.set_ylabel("loss [nats per byte]", fontsize=8)
    axis.legend(fontsize=7, ncols=4, loc="upper right")


def _comparison(path: Path, tables: dict[str, RunTables]) -> None:
    runs = list(tables)
    labels = [name.replace("_", " ").replace("centralized ", "centralized\n") for name in runs]
    figure = Figure(figsize=(13, 0.55 * len(runs) + 2))
    axes = figure.subplots(1, 3, sharey=True)
    summaries = [made.summary for made in tables.values()]
    rows = np.arange(len(runs))
    for place, key in enumerate(("emissions_kg", "emissions_surplus_first_kg")):
        label = ("marginal", "surplus first")[place]
        values = [_value(summary, key) for summary in summaries]
        axes[0].barh(rows + 0.36 * (place - 0.5), values, 0.36, color=COLOURS[place], label=label)
    surplus = np.array([_value(summary, "surplus") for summary in summaries])
    imported = [_value(summary, "grid_import_kwh") for summary in summaries]
    axes[1].barh(rows, surplus, 0.72, color=COLOURS[2], label="from surplus")
    axes[1].barh(rows, imported, 0.72, left=surplus, color=COLOURS[6], alpha=0.6, label="from the grid")
    # A bar would have to begin at zero, where no loss ever is.
    axes[2].plot([summary["eval_loss_final"] for summary in summaries], rows, "o", color=COLOURS[3])
    axes[2].grid(axis="x", linewidth=0.4)
    for axis, title in zip(
        axes, ("emissions [kg CO2]", "facility energy [kWh]", "held-out loss at the end [nats per byte]"), strict=True
    ):
        axis.set_title(title, fontsize=9)
        axis.set_yticks(rows, labels, fontsize=8)
        if axis.get_legend_handles_labels()[0]:
            axis.legend(fontsize=7, ncols=2, loc="upper center", bbox_to_anchor=(0.5, -0.08))
    axes[0].invert_yaxis()
    figure.tight_layout()
    _save(figure, path)


def _power(path: Path, scenario: Scenario, tables: dict[str, RunTables]) -> None:
    """Facility power and emission rate of every run, all its sites together, over time."""
    figure = Figure(figsize=(11, 5.5))
    axes = figure.subplots(2, 1, sharex=True)
    for index, (name, made) in enumerate(tables.items()):
        rate = made.intervals.facility_kw * made.intervals.mci_g_per_kwh / 1000
        for axis, values in zip(axes, (made.intervals.facility_kw, rate), strict=True):
            hours, total = _sum_over_sites(made.intervals, values)
            style = {"linewidth": 1.4 if name == HEADLINE else 0.8, "color": COLOURS[index % len(COLOURS)]}
            axis.stairs(total, hours, baseline=None, label=name.replace("_", " "), **style)
    last_s = max(made.intervals.end_s[made.intervals.facility_kw > 0].max() for made in tables.values())
    if last_s > 0:
        axes[0].set_xlim(0, 1.03 * last_s / 3600)
    axes[0].set_ylabel("facility power [kW]", fontsize=8)
    axes[1].set_ylabel("emission rate [kg CO2/h]", fontsize=8)
    axes[1].set_xlabel(f"hours since {scenario.start:%Y-%m-%d %H:%M} UTC")
    axes[0].legend(fontsize=7, ncols=3)
    figure.tight_layout()
    _save(figure, path)


def _sum_over_sites(intervals: pd.DataFrame, values: pd.Series) -> tuple[Any, Any]:
    """A step function over all sites: its edges [h] and its values."""
    edges = np.unique(np.concatenate([intervals.start_s, intervals.end_s]))
    total = np.zeros(len(edges) - 1)
    for site in intervals.site.unique():
        own = intervals.site == site
        place = np.searchsorted(intervals.start_s[own].to_numpy(), edges[:-1], side="right") - 1
        total += np.nan_to_num(values[own].to_numpy())[place]
    return edges / 3600, total


def _losses(path: Path, tables: dict[str, RunTables]) -> None:
    """Held-out loss of every run against time, tokens, energy and emissions."""
    against = {
        "time_s": ("time [h]", 3600),
        "tokens": ("tokens [1e9]", 1e9),
        "energy_kwh": ("facility energy [kWh]", 1),
        "emissions_kg": ("emissions [kg CO2]", 1),
    }
    figure = Figure(figsize=(14, 4))
    axes = figure.subplots(1, 4, sharey=True)
    for axis, (column, (label, unit)) in zip(axes, against.items(), strict=True):
        for index, (name, made) in enumerate(tables.items()):
            curve = made.rounds.dropna(subset=["eval_loss"])
            style = {"linewidth": 1.6 if name == HEADLINE else 0.9, "color": COLOURS[index % len(COLOURS)]}
            axis.plot(curve[column] / unit, curve.eval_loss, label=name.replace("_", " "), **style)
        axis.set_xlabel(label, fontsize=8)
    axes[0].set_ylabel("held-out loss [nats per byte]", fontsize=8)
    axes[0].legend(fontsize=6)
    perplexity = axes[-1].secondary_yaxis("right", functions=(np.exp, lambda value: np.log(np.maximum(value, 1e-9))))
    perplexity.set_ylabel("perplexity per byte, exp(loss)", fontsize=8)
    figure.tight_layout()
    _save(figure, path)


def _value(summary: dict[str, Any], key: str) -> float:
    if key == "surplus":
        return float(summary["surplus_used_kwh"] + summary["storage_discharged_kwh"])
    return float(summary[key] or 0.0)


def _save(figure: Any, path: Path) -> None:
    figure.savefig(path, dpi=110, metadata={"Software": None})
