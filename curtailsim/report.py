"""Print a results folder: its runs side by side, by site, and what the numbers rest on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich.console import Console, Group
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from curtailsim.results import Results

Cell = Callable[[dict[str, Any]], str]


def number(value: float | None, digits: int = 2) -> str:
    """A number for people; n/a where there is none."""
    return "n/a" if value is None else f"{round(value, digits) + 0.0:,.{digits}f}"


def percent(value: float | None, digits: int = 1) -> str:
    """A share in percent; n/a where there is none."""
    return "n/a" if value is None else f"{100 * value:.{digits}f} %"


def show(results: Results, console: Console) -> None:
    """Print everything about a results folder."""
    if results.summary.get("system") == "dispatch_centres":
        from curtailsim.dispatch import centres_report

        console.print(Group(*centres_report.parts(results)))
        return
    if results.summary.get("system") == "dispatch":
        from curtailsim.dispatch import report as dispatch_report

        console.print(Group(*dispatch_report.parts(results)))
        return
    console.print(Group(comparison(results), sites(results), *notes(results)))
    publication = results.manifest["scenario"].get("reference")
    if publication:
        from curtailsim.reference import tables

        console.print(Group(*tables(results, publication)))


def comparison(results: Results) -> Table:
    """Runs side by side."""
    summary = results.summary
    currency = summary.get("currency") or "cost"
    ratios = summary["emission_ratio"]
    columns: list[tuple[str, Cell]] = [
        ("energy\n[kWh]", lambda r: number(r["energy_kwh"])),
        ("emissions\n[kg CO2]", lambda r: number(r["emissions_kg"])),
        ("the same,\nsurplus first\n[kg CO2]", lambda r: number(r["emissions_surplus_first_kg"])),
        ("curtailed\nshare", lambda r: percent(r["curtailed_share"])),
        ("surplus\nused [kWh]", lambda r: number(r["surplus_used_kwh"])),
        (f"cost\n[{currency}]", lambda r: number(r["cost"], 3)),
        ("runtime\n[h]", lambda r: number(r["runtime_h"], 1)),
        ("tokens\n[1e9]", lambda r: number(r["tokens"] / 1e9)),
        ("held-out loss\n[nats/byte]", lambda r: number(r["eval_loss_final"], 3)),
    ]
    if any(run["emissions_average_kg"] is not None for run in summary["runs"].values()):
        columns.insert(3, ("average\nCI [kg]", lambda r: number(r["emissions_average_kg"])))
    table = Table(title=f"{summary['scenario']}: one clock, same workload", title_justify="left")
    table.add_column("run", no_wrap=True)
    table.add_column("our emissions\nare ... of\nthis run's", justify="right")
    for title, _ in columns:
        table.add_column(escape(title), justify="right")
    for name, run in summary["runs"].items():
        share = percent(ratios[name]) if name in ratios else "-"
        table.add_row(name, share, *(cell(run) for _, cell in columns))
    return table


def sites(results: Results) -> Table:
    """The curtailment-aware run by site."""
    name = results.runs[0]
    table = Table(title=f"{name}, by site", title_justify="left")
    titles = (
        "site",
        "energy\n[kWh]",
        "emissions\n[kg CO2]",
        "curtailed\nshare",
        "surplus\navailable [kWh]",
        "surplus\nused [kWh]",
    )
    for title in (*titles, "grid\nimport [kWh]", "steps", "hours on", "hours\ntraining"):
        table.add_column(escape(title), justify="left" if title == "site" else "right")
    for site, values in results.summary["runs"][name]["sites"].items():
        hours = values["hours"]
        table.add_row(
            site,
            number(values["energy_kwh"]),
            number(values["emissions_kg"]),
            percent(values["curtailed_share"]),
            number(values["surplus_available_kwh"], 1),
            number(values["surplus_used_kwh"]),
            number(values["grid_import_kwh"]),
            f"{values['steps']:,}",
            number(sum(hours.values()) - hours["off"], 1),
            number(hours["training"], 1),
        )
    return table


def notes(results: Results) -> list[Text]:
    """The rules and assumptions behind the numbers."""
    accounting, manifest = results.summary["accounting"], results.manifest
    scenario = manifest["scenario"]
    basis = {
        "marginal": "marginal (facility energy x marginal intensity)",
        "surplus_first": "surplus_first (surplus counts 0, grid import x marginal intensity)",
    }[accounting["method"]]
    curtailed = {
        "surplus": "drawn from physical surplus, directly or through storage",
        "mci_below": "drawn while marginal intensity is below "
        f"{accounting['curtailed_below_g_per_kwh']} g/kWh (a proxy)",
    }[accounting["curtailed_share"]]
    stride = scenario["training"]["stride"]
    own = results.summary["runs"][results.runs[0]]
    learner = scenario["training"]["learner"]["type"]
    lines = [
        *_unfinished(results),
        f"Emissions compared: {basis}.  Curtailed share: {curtailed}.",
        "CO2 as in the intensity given; surplus is that of the run's own sites, over the whole horizon.",
        f"Horizon: {scenario['duration_h']:g} h from {scenario['start']} (UTC); a signal holds until its next stamp.",
        f"Learner {learner}: {own['real_steps']:,} real optimiser steps for {own['steps']:,} virtual ones"
        + (f" (1 in {stride}; losses compare at equal strides only)." if learner == "gpt" else "."),
        f"Seed {results.summary['seed']}, {manifest['threads']} PyTorch thread(s), "
        f"digest {results.summary['digest'][:16]}.",
    ]
    for site, warnings in manifest.get("warnings", {}).items():
        lines += [f"Warning, {site}: {warning}." for warning in warnings]
    return [Text(line, style="yellow" if line.startswith("Warning") else "dim") for line in lines]


def _unfinished(results: Results) -> list[str]:
    """Runs that have less to show for their energy than was asked for."""
    lines = []
    for name, run in results.summary["runs"].items():
        asked = run.get("tokens_asked")
        if run["steps"] == 0 and run["energy_kwh"]:
            lines.append(f"Warning: {name} drew power and trained nothing; its events.csv says why")
        elif asked is not None and run["tokens"] < asked:
            done = f"{run['tokens'] / 1e9:.3g} of {asked / 1e9:.3g}e9 tokens"
            lines.append(f"Warning: {name} did not finish ({done}): comparisons with it are of unequal work")
        for site, own in run["sites"].items():
            if run["steps"] and own["energy_kwh"] and not own["steps"]:
                on_h = sum(own["hours"].values()) - own["hours"]["off"]
                lines.append(f"Warning, {site}: on for {on_h:.1f} h in {name} and in no round; its events.csv says why")
    return lines
