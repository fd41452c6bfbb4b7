"""Plan and execute a scenario with several data centres: the best plan, and the best one without moves."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from curtailsim.dispatch.centres import Centre, evaluate, solve
from curtailsim.dispatch.centres_clock import FIXED_PLACEMENT, Centres, centres_problem
from curtailsim.dispatch.centres_scenario import CentresScenario
from curtailsim.dispatch.clock import Watcher
from curtailsim.dispatch.plan import Evaluation
from curtailsim.dispatch.planner import OPTIMUM, Money, OtherCosts, money, priced
from curtailsim.dispatch.run import DispatchRun, saved_share
from curtailsim.dispatch.tables import AGREEMENT, TASK_COLUMNS, Curves, training_summary, weights_digest
from curtailsim.metrics import (
    RunTables,
    account_table,
    event_table,
    interval_table,
    loss_table,
    ratio,
    round_table,
    segment_table,
    state_hours,
    totals_of,
)
from curtailsim.scenario import Accounting
from curtailsim.spec import ScenarioError

Stages = dict[str, Money]


def plans(scenario: CentresScenario) -> Iterator[DispatchRun]:
    """What has to be simulated: the best plan, then the best one without moves."""
    for name in (OPTIMUM, FIXED_PLACEMENT):
        yield DispatchRun(name)


def simulate(scenario: CentresScenario, plan: DispatchRun, watcher: Watcher | None = None) -> dict[str, RunTables]:
    """Plan and execute one run.

    Returns:
        Its tables by its name; nothing where no plan without moves exists.

    Raises:
        ScenarioError: The scenario itself has no plan.
    """
    centres = Centres(scenario, plan.name, watcher)
    try:
        centres.run()
    except ScenarioError:
        if plan.name == OPTIMUM:
            raise
        return {}
    return {plan.name: tables(centres)}


def summarise(
    scenario: CentresScenario, made: dict[str, RunTables], digest: str, currency: str | None
) -> dict[str, Any]:
    """The content of `summary.json`."""
    runs = {name: tables.summary for name, tables in made.items()}
    own, fixed = runs[OPTIMUM], runs.get(FIXED_PLACEMENT)
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "digest": digest,
        "system": "dispatch_centres",
        "currency": currency,
        "coordination": None if fixed is None else _coordination(own, fixed),
        "catalogue": _catalogue(scenario),
        "impossible": {} if fixed is not None else {FIXED_PLACEMENT: _reason(scenario)},
        "runs": runs,
    }


def _coordination(own: dict[str, Any], fixed: dict[str, Any]) -> dict[str, Any]:
    """What moving tasks is worth: the best plan without moves minus the best plan, on the clock and as planned."""
    return {
        "value": fixed["cost"] - own["cost"],
        "value_planned": fixed["planned"]["cost"] - own["planned"]["cost"],
        "share": saved_share(fixed["cost"], own["cost"]),
        "curtailed_mwh_avoided": fixed["curtailed_mwh"] - own["curtailed_mwh"],
    }


def _catalogue(scenario: CentresScenario) -> dict[str, Any]:
    """Modes of each task at each site: usable, and offered to the solver."""
    found: dict[str, Any] = {}
    for task in scenario.dispatch.tasks:
        pools = {site.name: scenario.alone(site).dispatch for site in scenario.sites}
        found[task.name] = {
            name: {"usable": len(pool.catalogue(task).modes), "offered": len(pool.modes(task))}
            for name, pool in pools.items()
        }
    return found


def _reason(scenario: CentresScenario) -> str:
    """Why there is no plan without moves."""
    rules = scenario.dispatch
    try:
        solve(centres_problem(scenario), moving=False, relative_gap=rules.gap, time_limit_s=rules.time_limit_s)
    except ScenarioError as error:
        return "; ".join(f"{problem.path}: {problem.rule}" for problem in error.problems)
    return "no plan was found in time"


def tables(centres: Centres) -> RunTables:
    """Everything a run leaves behind."""
    recorder, rules = centres.recorder, centres.scenario.dispatch
    intervals = pd.concat([interval_table(m) for m in centres.microgrids.values()], ignore_index=True)
    account = account_table(intervals, Accounting(surplus_price_per_mwh=rules.renewable_per_mwh))
    curves = Curves(recorder, rules, intervals, account)
    events = event_table(recorder, {})
    loss = curves.extend(loss_table(recorder, {}))
    rounds = curves.extend(round_table(recorder, {}), "sites")
    segments = segment_table(recorder, {})
    tasks = pd.DataFrame(sorted(centres.task_rows), columns=[*TASK_COLUMNS, "site"])
    training = training_summary(centres.tasks, recorder.segments, rules, loss, rounds)
    summary = {**totals_of(account), **training, **_summary(centres, intervals, account, tasks)}
    return RunTables(
        events,
        intervals,
        loss,
        rounds,
        segments,
        summary,
        weights_digest(centres.tasks),
        extra={"tasks": tasks},
        documents={"plan.json": centres.plan.to_json(), "solver.json": _solver_log(centres)},
    )


def _solver_log(centres: Centres) -> str:
    """How the plan was found; the only place where wall time is kept."""
    found = centres.solution
    rows = [] if found is None else [{**_solver(centres), "time_s": round(found.time_s, 3)}]
    return json.dumps(rows, indent=2) + "\n"


def _solver(centres: Centres) -> dict[str, Any]:
    found = centres.solution
    if found is None:
        return {"status": "file", "bound": None, "gap": None}
    return {"status": found.status, "bound": found.bound_usd, "gap": found.relative_gap}


def _summary(centres: Centres, intervals: pd.DataFrame, account: pd.DataFrame, tasks: pd.DataFrame) -> dict[str, Any]:
    """Cost, curtailment, modes and moves: as planned, as realised, and site by site."""
    evaluations = evaluate(centres.problem, centres.plan).by_centre
    by_site = {c.name: _stages(centres, c, evaluations[c.name], intervals) for c in centres.problem.centres}
    stages = {name: _total([found[name] for found in by_site.values()]) for name in next(iter(by_site.values()))}
    planned, realised = stages["planned"], stages["realised"]
    difference = ratio(realised.load_mwh - planned.load_mwh, planned.load_mwh)
    assert difference is None or abs(difference) <= AGREEMENT, (planned.load_mwh, realised.load_mwh)
    labels = {
        name: sorted({f"{r.site}: {r.mode}" for r in centres.plan.runs if r.task == name}) for name in centres.tasks
    }
    return {
        **_money(realised, centres),
        "modes_used": {name: len(found) for name, found in labels.items()},
        "modes": labels,
        "segments": {name: task.done for name, task in centres.tasks.items()},
        "segments_asked": {name: centres.problem.segments(name) for name in centres.tasks},
        "restarts": {name: task.restarts for name, task in centres.tasks.items()},
        "moves": {name: task.moves for name, task in centres.tasks.items()},
        "bytes_moved": sum(task.bytes_moved for task in centres.tasks.values()),
        "transfer_mwh": float(account.network_energy_kwh.sum()) / 1000,
        "finished": all(task.done == centres.problem.segments(name) for name, task in centres.tasks.items()),
        "planned": {**asdict(planned), "green_share": planned.green_share},
        "energy_difference": difference,
        "differences": _differences(stages),
        "solver": _solver(centres),
        "sites": {
            name: {
                **totals_of(account[intervals.site == name]),
                **_money(found["realised"], centres),
                "planned": {**asdict(found["planned"]), "green_share": found["planned"].green_share},
                "transfer_mwh": float(account.network_energy_kwh[intervals.site == name].sum()) / 1000,
                "segments": int((tasks[tasks.site == name].phase == "training").sum()),
                "restarts": sum(evaluations[name].restarts.values()),
                "hours": state_hours(intervals[intervals.site == name]),
            }
            for name, found in by_site.items()
        },
    }


def _money(found: Money, centres: Centres) -> dict[str, Any]:
    penalty = centres.scenario.dispatch.curtailment_per_mwh * found.curtailed_mwh
    rest = {key: value for key, value in asdict(found).items() if key != "green_mwh"}
    return {**rest, "restart_cost": found.cost - found.energy_cost - penalty, "green_share": found.green_share}


def _stages(centres: Centres, centre: Centre, planned: Evaluation, intervals: pd.DataFrame) -> Stages:
    """One site's way from the plan's cost to the ledger's."""
    own = intervals[intervals.site == centre.name]
    hours = ((own.end_s - own.start_s) / 3600).to_numpy()
    load, generation = own.facility_kw.to_numpy() / 1000, own.generation_kw.to_numpy() / 1000
    price = own.price_per_mwh.to_numpy()
    supplied = own.surplus_used_kw.to_numpy() / 1000, own.grid_import_kw.to_numpy() / 1000
    places = {task.name: task for task in centre.problem.tasks}
    # Several centres have no value for idle GPUs: the scenario refuses one.
    other = OtherCosts(sum(places[run.task].restart_usd for run in centres.plan.runs if run.site == centre.name), 0.0)
    return {
        "planned": Money(
            planned.cost_usd,
            planned.energy_cost_usd,
            0.0,
            planned.curtailed_mwh,
            planned.load_mwh,
            planned.renewable_mwh,
            planned.peak_load_mw,
            planned.peak_import_mw,
        ),
        "slot_averaging": money(centre.problem, price, generation, load, hours, other),
        "realised": priced(centre.problem, price, generation, *supplied, hours, other),
    }


def _total(parts: list[Money]) -> Money:
    """Sums over sites; peaks are the highest of any site."""
    values = np.array([list(asdict(part).values()) for part in parts])
    return Money(*values[:, :6].sum(axis=0).tolist(), *values[:, 6:].max(axis=0).tolist())


def _differences(stages: Stages) -> dict[str, dict[str, float]]:
    """What slots have averaged, and what using one's own renewable power first adds to the plan's cost."""
    found = {}
    for cause, before, after in (
        ("slot_averaging", stages["planned"], stages["slot_averaging"]),
        ("supply_order", stages["slot_averaging"], stages["realised"]),
    ):
        found[cause] = {"cost": after.cost - before.cost, "curtailed_mwh": after.curtailed_mwh - before.curtailed_mwh}
    return found
