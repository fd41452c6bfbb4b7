"""The figure of several data centres: power at each site against its supply and price, with what was moved."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from curtailsim.dispatch.centres_scenario import CentresScenario
from curtailsim.dispatch.planner import OPTIMUM
from curtailsim.metrics import RunTables

LOAD, SUPPLY, MOVE = "#0072B2", "#009E73", "#D55E00"  # Okabe and Ito's colours


def draw(folder: Path, scenario: CentresScenario, tables: dict[str, RunTables]) -> None:
    """Draw dispatch.png: one row per site, of the best plan."""
    made = tables[OPTIMUM]
    figure = Figure(figsize=(11, 2.6 * len(scenario.sites) + 0.6))
    axes = figure.subplots(len(scenario.sites), 1, sharex=True, squeeze=False)[:, 0]
    for axis, site in zip(axes, scenario.sites, strict=True):
        _site(axis, site.name, made)
    axes[0].legend(fontsize=7, loc="upper left")
    axes[-1].set_xlabel(f"hours since {scenario.start:%Y-%m-%d %H:%M} UTC")
    axes[-1].set_xlim(0, scenario.duration_h)
    figure.suptitle(f"{scenario.name}: power by site; a checkpoint leaves at the vertical lines", fontsize=11)
    figure.tight_layout()
    figure.savefig(folder / "dispatch.png", dpi=110, metadata={"Software": None})


def _site(axis: Axes, name: str, made: RunTables) -> None:
    own = made.intervals[made.intervals.site == name]
    hours = np.append(own.start_s, own.end_s.iloc[-1]) / 3600
    axis.stairs(own.facility_kw / 1000, hours, fill=True, color=LOAD, alpha=0.5, label="facility power")
    axis.stairs(own.generation_kw / 1000, hours, baseline=None, color=SUPPLY, linewidth=1.6, label="renewable supply")
    tasks = made.extra["tasks"]
    here = tasks[tasks.site == name]
    for row in here[here.phase == "moving"].itertuples():
        axis.axvline(row.start_s / 3600, color=MOVE, linewidth=1.2)
    for row in here[here.phase == "restoring"].itertuples():
        axis.text(row.start_s / 3600, 0.0, f" {row.task}\n {row.mode}", fontsize=6, va="bottom")
    axis.set_ylabel("power [MW]", fontsize=8)
    axis.set_title(f"{name}: cost {made.summary['sites'][name]['cost']:.2f}", loc="left", fontsize=9)
    price = axis.twinx()
    price.stairs(own.price_per_mwh, hours, baseline=None, color="black", linewidth=0.8, linestyle=":")
    price.set_ylabel("price [per MWh] (dotted)", fontsize=8)
