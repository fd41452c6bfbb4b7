"""Plan and execute a dispatch scenario: the optimum, its baselines, and what other views of training promise."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from curtailsim.dispatch import baselines
from curtailsim.dispatch.clock import Pool, Watcher
from curtailsim.dispatch.heuristic import heuristic
from curtailsim.dispatch.plan import evaluate
from curtailsim.dispatch.planner import FOR_MEAN, OPTIMUM, Planner, require_solver
from curtailsim.dispatch.problem import DispatchProblem
from curtailsim.dispatch.scenario import DispatchScenario, DivisibleTask
from curtailsim.dispatch.tables import tables
from curtailsim.linear_program import Progress
from curtailsim.metrics import RunTables, ratio
from curtailsim.scenario import TokensOnly
from curtailsim.spec import ScenarioError


@dataclass(frozen=True)
class DispatchRun:
    """One plan to execute; named like the plans of other scenarios, so that progress is shown alike."""

    name: str

    @property
    def ledgers(self) -> dict[str, None]:
        """The one run it accounts for."""
        return {self.name: None}


def plans(scenario: DispatchScenario) -> Iterator[DispatchRun]:
    """What has to be simulated: the optimum, then its baselines."""
    for name in (OPTIMUM, *scenario.dispatch.baselines):
        yield DispatchRun(name)


def simulate(scenario: DispatchScenario, plan: DispatchRun, watcher: Watcher | None = None) -> dict[str, RunTables]:
    """Plan and execute one run.

    Returns:
        Its tables by its name; nothing for a baseline that no operator could carry out.

    Raises:
        ScenarioError: The scenario itself has no plan.
    """
    pool: Pool | None = None

    def progress(state: Progress) -> None:
        if pool is not None and watcher is not None:
            best = f"best {state.best_usd:.2f}, " if math.isfinite(state.best_usd) else ""
            pool.recorder.states["solver"] = f"{best}bound {state.bound_usd:.2f} after {state.time_s:.0f} s"
            watcher(plan.name, pool.env.now, pool.recorder, 0)
            del pool.recorder.states["solver"]

    planner = Planner(scenario, progress, for_mean=plan.name == FOR_MEAN)
    pool = Pool(scenario, plan.name, planner, watcher)
    try:
        pool.run()
    except ScenarioError:
        if plan.name == OPTIMUM:
            raise
        return {}
    return {plan.name: tables(pool)}


def summarise(
    scenario: DispatchScenario, made: dict[str, RunTables], digest: str, currency: str | None
) -> dict[str, Any]:
    """The content of `summary.json`."""
    runs = {name: tables.summary for name, tables in made.items()}
    own = runs[OPTIMUM]
    keys = {"emission_ratio": "emissions_kg", "emission_ratio_surplus_first": "emissions_surplus_first_kg"}
    ratios = {
        title: {name: ratio(own[key], values[key]) for name, values in runs.items() if name != OPTIMUM}
        for title, key in keys.items()
    }
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "digest": digest,
        "system": "dispatch",
        "currency": currency,
        **ratios,
        "savings": _savings(runs),
        "catalogue": _catalogue(scenario),
        "comparators": _comparators(scenario, runs),
        "impossible": _impossible(scenario, runs),
        "runs": runs,
    }


def _savings(runs: dict[str, Any]) -> dict[str, Any]:
    """Share of each other run's cost that the dispatched plan saves, planned and realised; by the name of the run."""
    own = runs[OPTIMUM]
    return {
        name: {
            "cost_cut": saved_share(values["cost"], own["cost"]),
            "cost_cut_planned": saved_share(values["planned"]["cost"], own["planned"]["cost"]),
            "curtailed_mwh_avoided": values["curtailed_mwh"] - own["curtailed_mwh"],
        }
        for name, values in runs.items()
        if name != OPTIMUM
    }


def saved_share(reference: float | None, cost: float) -> float | None:
    """What a cost saves of a reference, which may be negative, as a share of it; None where that is nothing [-]."""
    return None if not reference else (reference - cost) / abs(reference)


def _catalogue(scenario: DispatchScenario) -> dict[str, Any]:
    """Modes of each task: tried and rejected by rule, usable, offered to the solver."""
    found = {}
    for task in scenario.dispatch.tasks:
        if isinstance(task, DivisibleTask):
            usable = len(scenario.dispatch.work_modes(task))
            too_large = {"pool": len(task.modes) - usable} if usable < len(task.modes) else {}
            found[task.name] = {"usable": usable, "offered": usable, "rejected": too_large}
            continue
        catalogue = scenario.dispatch.catalogue(task)
        rules = sorted({rejection.rule for rejection in catalogue.rejections})
        found[task.name] = {
            "usable": len(catalogue.modes),
            "offered": len(scenario.dispatch.modes(task)),
            "rejected": {rule: catalogue.rejected(rule) for rule in rules},
        }
    return found


def _impossible(scenario: DispatchScenario, runs: dict[str, Any]) -> dict[str, str]:
    """Baselines that could not be carried out, and why; a learner would not change that."""
    training = scenario.training.model_copy(update={"learner": TokensOnly(type="tokens_only")})
    counting, reasons = scenario.model_copy(update={"training": training}), dict[str, str]()
    for name in scenario.dispatch.baselines:
        if name not in runs:
            try:
                Pool(counting, name, Planner(counting, for_mean=name == FOR_MEAN), None).run()
            except ScenarioError as error:
                reasons[name] = "; ".join(problem.rule for problem in error.problems)
    return reasons


def _comparators(scenario: DispatchScenario, runs: dict[str, Any]) -> dict[str, Any]:
    """What other views of training promise, and by how much they overstate the saving of the dispatched plan.

    `overstated` is in percentage points of the cost of `fixed`, both as planned.
    """
    planner = Planner(scenario)
    problem, rules = planner.foreseen, scenario.dispatch
    reference = runs["fixed"]["planned"]["cost"] if "fixed" in runs else None
    own = runs[OPTIMUM]["planned"]["cost"]
    found: dict[str, Any] = {}
    for name in rules.comparators:
        try:
            cost, curtailed = _comparator(problem, name, rules.gap, rules.time_limit_s)
        except ScenarioError as error:
            found[name] = {"cost": None, "reason": "; ".join(problem.rule for problem in error.problems)}
            continue
        found[name] = {
            "cost": cost,
            "curtailed_mwh": curtailed,
            "cost_cut": saved_share(reference, cost),
            "overstated": None if not reference else (own - cost) / abs(reference),
        }
    return found


def _comparator(problem: DispatchProblem, name: str, gap: float, time_limit_s: float) -> tuple[float, float]:
    if name == "heuristic":
        plan = heuristic(problem)
        if plan is None:
            raise ScenarioError("heuristic", [])
        found = evaluate(problem, plan)
        return found.cost_usd, found.curtailed_mwh
    require_solver(name)
    view = getattr(baselines, name)
    limits = {} if name in ("hull", "linear") else {"relative_gap": gap, "time_limit_s": time_limit_s}
    relaxed = view(problem, **limits)
    return relaxed.cost_usd, relaxed.curtailed_mwh
