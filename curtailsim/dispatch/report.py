"""Print a results folder of a dispatched pool: plans side by side, modes by task, and what the numbers rest on."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from rich.console import RenderableType
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from curtailsim import report
from curtailsim.dispatch.planner import OPTIMUM
from curtailsim.report import number
from curtailsim.results import Results

percent = partial(report.percent, digits=2)


def parts(results: Results) -> Iterator[RenderableType]:
    """Everything there is to print, in order."""
    summary = results.summary
    yield _runs(summary)
    if summary["comparators"]:
        yield _comparators(summary)
    if summary["runs"][OPTIMUM].get("stochastic"):  # folders of earlier versions have none
        yield from _stochastic(summary)
    yield _differences(summary)
    yield _tasks(results)
    yield from _notes(results)


def titled_table(title: str, *columns: str) -> Table:
    """A table whose first column is text and whose others are numbers."""
    table = Table(title=title, title_justify="left")
    for index, column in enumerate(columns):
        table.add_column(escape(column), justify="right" if index else "left", no_wrap=not index)
    return table


def _shared(summary: dict[str, Any]) -> bool:
    """Whether GPUs that no task holds are worth something to others."""
    return any(run["opportunity_cost"] for run in summary["runs"].values())


def _runs(summary: dict[str, Any]) -> Table:
    """Executed plans side by side; savings are those of the dispatched plan."""
    currency = summary["currency"] or "cost"
    table = titled_table(
        f"{summary['scenario']}: executed on one clock, same tokens",
        "run",
        f"cost\n[{currency}]",
        "saved by\nthe plan",
        "cost\nplanned",
        "saved,\nplanned",
        *(("of which\nGPUs held",) if _shared(summary) else ()),
        "curtailed\n[MWh]",
        "curtailed\nplanned",
        "energy\n[MWh]",
        "green\nshare",
        "peak\n[MW]",
        "restarts",
        "loss\n[nats/B]",
    )
    for name, run in summary["runs"].items():
        saving, planned = summary["savings"].get(name), run["planned"]
        table.add_row(
            name if run["finished"] else f"{name} (unfinished)",
            number(run["cost"]),
            "-" if saving is None else percent(saving["cost_cut"]),
            number(planned["cost"]),
            "-" if saving is None else percent(saving["cost_cut_planned"]),
            *((number(run["opportunity_cost"]),) if _shared(summary) else ()),
            number(run["curtailed_mwh"], 3),
            number(planned["curtailed_mwh"], 3),
            number(run["load_mwh"], 3),
            percent(run["green_share"]),
            number(run["peak_load_mw"], 3),
            str(sum(run["restarts"].values())),
            number(run["eval_loss_final"], 3),
        )
    return table


def _comparators(summary: dict[str, Any]) -> Table:
    """What other views of training promise; none of them can be carried out but the heuristic."""
    title = "What other views of training promise, against the dispatched plan (as planned, in % of the cost of fixed)"
    table = titled_table(
        title, "view", "cost", "promised cut", "overstated by\n[% points]", "curtailed\n[MWh]", "meaning"
    )
    table.columns[-1].justify = "left"
    for name, found in sorted(summary["comparators"].items(), key=lambda item: item[1]["cost"] or 0):
        overstated = found.get("overstated")
        table.add_row(
            name,
            number(found["cost"]),
            percent(found.get("cost_cut")),
            "n/a" if overstated is None else f"{100 * overstated:+.1f}",
            number(found.get("curtailed_mwh"), 3),
            escape(found.get("reason") or MEANING[name]),
        )
    return table


MEANING = {
    "linear": "continuously adjustable power, no modes; not a bound",
    "hull": "any mixture of modes at any time; a lower bound",
    "anytime": "modes changed at every slot, no checkpoints; a lower bound",
    "delay": "one mode, on and off at will: a delay-tolerant job",
    "heuristic": "a real plan, found without a solver",
}


SAMPLES_SHOWN = 12
"""Rows of a table of samples; the summary has them all."""


def _stochastic(summary: dict[str, Any]) -> Iterator[RenderableType]:
    """What planning for samples is worth, and the costs in the samples."""
    run = summary["runs"][OPTIMUM]
    found = run["stochastic"]
    table = titled_table(
        "Planned for samples: expected costs, and what knowing more is worth",
        "sample",
        "probability",
        f"plan for the\nsamples [{summary['currency'] or 'cost'}]",
        "plan for\ntheir mean",
        "plan for\nthis sample",
    )
    samples = list(found["samples"].items())
    for name, costs in samples[:SAMPLES_SHOWN]:
        keys = ("cost", "mean_value_cost", "wait_and_see_cost")
        table.add_row(name, number(costs["probability"], 3), *(number(costs[key]) for key in keys))
    if len(samples) > SAMPLES_SHOWN:
        table.add_row(f"and {len(samples) - SAMPLES_SHOWN} more", *("",) * 4)
    table.add_section()
    expected = (number(found[key]) for key in ("expected_cost", "mean_value_cost", "wait_and_see_cost"))
    table.add_row("expected", "", *expected)
    for title, tail in (("worth", ""), ("worth at most", "_at_most")):
        values = (found[f"value_of_{of}{tail}"] for of in ("stochastic_solution", "perfect_information"))
        table.add_row(title, "", "", *map(number, values))
    yield table
    yield Text(
        "Worth: value of the stochastic solution (what planning for the mean costs more) and value of perfect "
        "information (what knowing the sample would save); at most: with all of the solver's gap.  "
        "In the other tables, planned costs are expected ones.",
        style="dim",
    )
    if found["mean_value_breaks"]:
        first = found["mean_value_breaks"][0]
        yield Text(f"The plan for the mean cannot be carried out in every sample: {first}.", style="dim")


def _differences(summary: dict[str, Any]) -> Table:
    """Planned to realised, one cause at a time."""
    run = summary["runs"][OPTIMUM]
    table = titled_table(f"{OPTIMUM}: from the plan to the clock, by cause", "cause", "cost", "curtailed [MWh]")
    table.add_row("planned on slots", number(run["planned"]["cost"]), number(run["planned"]["curtailed_mwh"], 3))
    for cause, found in run["differences"].items():
        table.add_row(cause.replace("_", " "), f"{found['cost']:+,.2f}", f"{found['curtailed_mwh']:+.3f}")
    table.add_row("realised on the clock", number(run["cost"]), number(run["curtailed_mwh"], 3))
    return table


def _tasks(results: Results) -> Table:
    """Modes and segments of the dispatched plan, task by task."""
    summary = results.summary
    run = summary["runs"][OPTIMUM]
    columns = (
        "usable\nmodes",
        "offered\n(Pareto)",
        "used",
        "segments\nor units",
        "restarts",
        "tokens\n[1e9]",
        "real steps",
        "loss\n[nats/B]",
    )
    table = titled_table(f"{OPTIMUM}, by task", "task", *columns, "modes")
    table.columns[-1].justify = "left"
    for name, found in summary["catalogue"].items():
        training = run["tasks"][name]
        table.add_row(
            name,
            str(found["usable"]),
            str(found["offered"]),
            str(run["modes_used"][name]),
            f"{run['segments'][name]} of {run['segments_asked'][name]}",
            str(run["restarts"][name]),
            number(training["tokens"] / 1e9),
            f"{training['real_steps']:,}",
            number(training["eval_loss_final"], 3),
            ", ".join(run["modes"][name]),
        )
    return table


def _shortcomings(name: str, run: dict[str, Any]) -> Iterator[str]:
    """What a run has not done, or done beyond its means."""
    above = run.get("import_above_limit")  # folders of earlier versions have none
    if above and above["slots"]:
        yield f"{name} imports more than import_limit_mw in {above['slots']} slots, by up to {above['most_mw']:.3f} MW"
    missed = [
        f"{asked - run['segments'][task]} of {asked} of {task}"
        for task, asked in run["segments_asked"].items()
        if run["segments"][task] < asked
    ]
    if missed:
        yield f"{name} left segments or units untrained ({', '.join(missed)}): its cost is for less work"


def _notes(results: Results) -> Iterator[Text]:
    summary, manifest = results.summary, results.manifest
    scenario = manifest["scenario"]
    solver, rules = summary["runs"][OPTIMUM]["solver"], scenario["dispatch"]
    gap = "not proved" if solver["gap"] is None else f"within {percent(solver['gap'])} of the optimum"
    yield Text(
        f"Plan: {solver['plans']} solved, {solver['status']}, {gap}; slots of {rules['slot_h']:g} h.", style="dim"
    )
    drawn, listed = rules.get("drawn_samples"), rules.get("samples")
    if drawn:
        yield Text(
            f"Samples: {drawn['count']} drawn around the forecast; deviations {drawn['price_sd']:g} per MWh and "
            f"{percent(drawn['generation_sd'])} of the generation, correlated over {drawn['correlation_h']:g} h, "
            f"with each other by {drawn['cross_correlation']:g}.",
            style="dim",
        )
    elif listed:
        yield Text(f"Samples: {', '.join(sample['name'] for sample in listed)}, as the scenario has them.", style="dim")
    if "time_limit" in solver["status"]:
        yield Text("Warning: the time limit stopped the solver; another machine may find another plan.", style="yellow")
    held = ", and what others would have paid for the GPUs held" if _shared(summary) else ""
    yield Text(
        f"Cost: energy, {rules['curtailment_per_mwh']:g} per curtailed MWh, restarts{held}.  "
        "A saving is against the named run.",
        style="dim",
    )
    learner = scenario["training"]["learner"]["type"]
    yield Text(
        f"Learner {learner}, 1 real step in {scenario['training']['stride']}; seed {summary['seed']}, "
        f"{manifest['threads']} PyTorch thread(s), digest {summary['digest'][:16]}.",
        style="dim",
    )
    for name, run in summary["runs"].items():
        yield from (Text(f"Warning: {line}.", style="yellow") for line in _shortcomings(name, run))
    for name, reason in summary["impossible"].items():
        yield Text(f"Warning: {name} is not possible: {reason}.", style="yellow")
    for site, warnings in manifest.get("warnings", {}).items():
        for warning in warnings:
            yield Text(f"Warning, {site}: {warning}.", style="yellow")
