"""Print a results folder of several data centres: plans side by side, site by site, and what moving is worth."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from curtailsim.dispatch.planner import OPTIMUM
from curtailsim.dispatch.report import percent, titled_table
from curtailsim.report import number
from curtailsim.results import Results


def parts(results: Results) -> Iterator[RenderableType]:
    """Everything there is to print, in order."""
    summary = results.summary
    yield _runs(summary)
    yield _sites(summary)
    yield _tasks(summary)
    yield from _notes(results)


def _runs(summary: dict[str, Any]) -> Table:
    currency = summary["currency"] or "cost"
    columns = (f"cost\n[{currency}]", "cost\nplanned", "curtailed\n[MWh]", "energy\n[MWh]", "green\nshare")
    title = f"{summary['scenario']}: executed on one clock, same tokens"
    table = titled_table(title, "run", *columns, "restarts", "moves", "moved\n[GB]", "transfers\n[MWh]")
    for name, run in summary["runs"].items():
        table.add_row(
            name,
            number(run["cost"]),
            number(run["planned"]["cost"]),
            number(run["curtailed_mwh"], 3),
            number(run["load_mwh"], 3),
            percent(run["green_share"]),
            str(sum(run["restarts"].values())),
            str(sum(run["moves"].values())),
            number(run["bytes_moved"] / 1e9, 1),
            number(run["transfer_mwh"], 4),
        )
    return table


def _sites(summary: dict[str, Any]) -> Table:
    columns = ("cost", "energy\n[MWh]", "curtailed\n[MWh]", "green\nshare", "segments", "peak\n[MW]")
    table = titled_table("Site by site", "run, site", *columns)
    for name, run in summary["runs"].items():
        for site, found in run["sites"].items():
            table.add_row(
                f"{name}, {site}",
                number(found["cost"]),
                number(found["load_mwh"], 3),
                number(found["curtailed_mwh"], 3),
                percent(found["green_share"]),
                str(found["segments"]),
                number(found["peak_load_mw"], 3),
            )
    return table


def _tasks(summary: dict[str, Any]) -> Table:
    run = summary["runs"][OPTIMUM]
    table = titled_table(
        f"{OPTIMUM}, by task", "task", "segments", "restarts", "moves", "loss\n[nats/B]", "sites and modes"
    )
    table.columns[-1].justify = "left"
    for name, modes in run["modes"].items():
        table.add_row(
            name,
            f"{run['segments'][name]} of {run['segments_asked'][name]}",
            str(run["restarts"][name]),
            str(run["moves"][name]),
            number(run["tasks"][name]["eval_loss_final"], 3),
            ", ".join(modes),
        )
    return table


def _notes(results: Results) -> Iterator[Text]:
    summary, rules = results.summary, results.manifest["scenario"]["dispatch"]
    worth = summary["coordination"]
    if worth is not None:
        yield Text(
            f"Value of coordination: {number(worth['value'])} on the clock ({percent(worth['share'])}), "
            f"{number(worth['value_planned'])} as planned: the best plan without moves minus the best plan."
        )
    solver, wan = summary["runs"][OPTIMUM]["solver"], rules["wan"]
    gap = "not proved" if solver["gap"] is None else f"within {percent(solver['gap'])} of the optimum"
    yield Text(f"Plan: {solver['status']}, {gap}; slots of {rules['slot_h']:g} h.", style="dim")
    yield Text(
        f"Transfers: {wan['rate_mbit_per_s']:,.0f} Mbit/s, {wan['energy_kwh_per_gb']:g} kWh/GB, drawn and paid where a "
        f"checkpoint comes from; {wan['checkpoint_bytes_per_parameter']:g} bytes per parameter.",
        style="dim",
    )
    if solver["status"] == "time_limit":
        yield Text("Warning: the time limit stopped the solver; another machine may find another plan.", style="yellow")
    for name, reason in summary["impossible"].items():
        yield Text(f"Warning: {name} is not possible: {reason}.", style="yellow")
    for site, warnings in results.manifest.get("warnings", {}).items():
        for warning in warnings:
            yield Text(f"Warning, {site}: {warning}.", style="yellow")
