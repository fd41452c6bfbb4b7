"""What should a dispatched pool do from here on?

Slots count from the scenario's start throughout.  A plan is made for one window of tranches, from what is committed,
from what is known of prices and supply, and from where an outage ends; the optimiser sees an ordinary problem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from curtailsim.dispatch import baselines
from curtailsim.dispatch.horizon import actual_problem, foreseen_problem
from curtailsim.dispatch.plan import (
    Plan,
    Run,
    Supply,
    evaluate,
    held_gpu_hours,
    load_and_gpus,
    remaining_problem,
    run_slots,
)
from curtailsim.dispatch.problem import UNCERTAIN, DispatchProblem, Floats, Sample
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.dispatch.solver import Solution, build_run_model, solve
from curtailsim.dispatch.stochastic import StochasticValue, solve_for_mean, solve_for_samples, stochastic_value
from curtailsim.linear_program import Progress, solver_available
from curtailsim.spec import Problem, ScenarioError

OPTIMUM = "dispatch_plan"
FOR_MEAN = "mean_value"


@dataclass(frozen=True)
class Planned:
    """A plan made at some slot.

    Attributes:
        runs: Its runs, without those committed before.
        load_mw: Facility power it promises, by slot of the whole horizon from `slot` on. [MW]
        gpu_h: GPU-hours it promises to hold, likewise. [GPU-h]
        status: Of the solver, or `file` or the name of a baseline.
        cost: Of all slots from `slot` on, as foreseen, with restarts; None where it was not needed. [currency]
        bound: No plan is cheaper; None where nothing is proved. [currency]
        gap: Distance of the plan's cost from it; None where nothing is proved. [-]
        given_up: Segments that no plan could train any more, by task.
        stochastic: What planning for samples is worth; None without samples, and for plans from the middle.
        time_s: Wall time of the search; it never enters a result. [s]
    """

    runs: tuple[Run, ...]
    load_mw: Floats
    gpu_h: Floats
    status: str
    cost: float | None = None
    bound: float | None = None
    gap: float | None = None
    given_up: dict[str, int] | None = None
    stochastic: StochasticValue | None = None
    time_s: float = 0.0


@dataclass(frozen=True)
class Situation:
    """What is known and decided when a plan is made.

    Attributes:
        slot: Slot at whose start the plan begins.
        committed: Runs that have started, cut off where they were interrupted.
        lost: Segments given up so far, by task.
        known_slots: Slots from here on whose price and supply are known as they will be.
    """

    slot: int
    committed: tuple[Run, ...] = ()
    lost: tuple[tuple[str, int], ...] = ()
    known_slots: int = 0


class Planner:
    """Makes plans for a scenario.

    Args:
        scenario: What is asked.
        progress: Told how the solver stands.
        for_mean: Plan for the mean of the samples instead of for all of them.

    Attributes:
        foreseen: The whole horizon as it is forecast, with its samples.
        actual: The whole horizon as it will be.
    """

    def __init__(
        self,
        scenario: DispatchScenario,
        progress: Callable[[Progress], None] | None = None,
        for_mean: bool = False,
    ) -> None:
        self.scenario, self.progress, self.for_mean = scenario, progress, for_mean
        self.actual, self.foreseen = actual_problem(scenario), foreseen_problem(scenario)

    @property
    def tranche_slots(self) -> int:
        """Slots of a tranche."""
        return self.scenario.slots // self.scenario.tranches

    def forecast(self, situation: Situation) -> DispatchProblem:
        """The whole horizon as it looks in a situation."""
        known = situation.slot + situation.known_slots

        def known_until_then(of: DispatchProblem | Sample) -> dict[str, Any]:
            return {name: getattr(self.actual, name)[:known] + getattr(of, name)[known:] for name in UNCERTAIN}

        own_samples = tuple(sample.model_copy(update=known_until_then(sample)) for sample in self.foreseen.samples)
        return self.foreseen.model_copy(update={**known_until_then(self.foreseen), "samples": own_samples})

    def problem(self, situation: Situation) -> DispatchProblem:
        """What there is to decide in a situation, its slots counted from the situation's."""
        slot = situation.slot
        rest = remaining_problem(self.forecast(situation), self._plan(situation.committed), slot)
        last = self._window_end(slot)
        done = {
            task.name: sum(r.segments for r in situation.committed if r.task == task.name)
            for task in self.foreseen.tasks
        }
        lost = dict(situation.lost)
        tasks = []
        for task in rest.tasks:
            per_tranche = self.foreseen.task(task.name).segments // self.scenario.tranches
            wanted = per_tranche * (last // self.tranche_slots) - done[task.name] - lost.get(task.name, 0)
            if wanted > 0:
                tokens = task.tokens * wanted / task.segments
                tasks.append(task.model_copy(update={"segments": wanted, "tokens": tokens}))
        return rest.model_copy(update={**rest.in_slots(slice(last - slot)), "tasks": tuple(tasks)})

    def plan(self, situation: Situation) -> Planned:
        """The optimum; what cannot be trained any more is given up after a deviation, and only then.

        Raises:
            ScenarioError: There is no plan.
        """
        problem = self.problem(situation)
        try:
            return self._solved(problem, situation, None)
        except ScenarioError:
            reduced = self._without_missing(problem) if situation.slot else None
            if reduced is None:
                raise
            return self._solved(reduced[0], situation, reduced[1])

    def _solved(self, problem: DispatchProblem, situation: Situation, given_up: dict[str, int] | None) -> Planned:
        if not problem.tasks:
            nothing = self._plan(())
            cost = evaluate(problem, nothing).cost_usd
            return Planned((), *self._promise(problem, ()), "nothing left", cost, given_up=given_up)
        found, value = self._searched(problem, is_first=situation.slot == 0)
        proved = math.isfinite(found.bound_usd)
        return Planned(
            _moved(found.plan.runs, situation.slot),
            *self._promise(problem, found.plan.runs),
            found.status,
            found.evaluation.cost_usd,
            found.bound_usd if proved else None,
            found.relative_gap if proved else None,
            given_up,
            value,
            found.time_s,
        )

    def _searched(self, problem: DispatchProblem, is_first: bool) -> tuple[Solution, StochasticValue | None]:
        """The plan, and, of the first one made for samples, what that is worth."""
        rules = self.scenario.dispatch
        limits: dict[str, Any] = {
            "relative_gap": rules.gap,
            "time_limit_s": rules.time_limit_s,
            "progress": self.progress,
        }
        if not problem.samples:
            return solve(problem, **limits), None
        try:
            mean = solve_for_mean(problem, **limits)
        except ScenarioError:
            if self.for_mean:
                raise
            return solve(problem, **limits), None  # which says better why there is no plan, if there is none
        if self.for_mean:
            judged = evaluate(problem, mean.plan)
            return replace(mean, evaluation=judged, bound_usd=-math.inf, relative_gap=math.inf), None
        found = solve_for_samples(problem, mean.plan, **limits)
        return found, stochastic_value(problem, found, mean.plan, **limits) if is_first else None

    def read(self, path: str) -> Planned:
        """The plan in a file, audited.

        Raises:
            ScenarioError: It is no plan for this scenario; every mistake is listed.
        """
        plan = Plan.from_json(Path(path).read_text(encoding="utf-8"), path)
        try:
            found = evaluate(self.foreseen, plan)
        except ScenarioError as error:
            raise ScenarioError(path, error.problems) from None
        return Planned(plan.runs, found.load_mw, held_gpu_hours(self.foreseen, plan.runs), "file")

    def baseline(self, name: str) -> Planned:
        """A simpler operator's plan for the whole horizon.

        Raises:
            ScenarioError: Such an operator cannot train every tranche.
        """
        rules, problem = self.scenario.dispatch, self.foreseen
        if name in ("fixed", "fixed_best"):
            plan = getattr(baselines, name)(problem)
            return Planned(plan.runs, *self._promise(problem, plan.runs), name)
        require_solver(name)
        search = getattr(baselines, name)
        found = search(problem, relative_gap=rules.gap, time_limit_s=rules.time_limit_s)
        bound = found.bound_usd if math.isfinite(found.bound_usd) else None
        gap = found.relative_gap if math.isfinite(found.relative_gap) else None
        promise = self._promise(problem, found.plan.runs)
        return Planned(found.plan.runs, *promise, found.status, bound=bound, gap=gap, time_s=found.time_s)

    def resumed(self, runs: Sequence[Run], interrupted: Iterable[Run], slot: int) -> tuple[Run, ...]:
        """How a simpler operator goes on after an outage: each task in its order and modes, as soon as it can.

        Args:
            runs: Runs that have not started.
            interrupted: What was lost of runs that had.
            slot: First slot after the outage.
        """
        pending: list[Run] = []
        for task in self.foreseen.tasks:
            free = slot
            todo = [run for run in interrupted if run.task == task.name]
            todo += sorted((run for run in runs if run.task == task.name), key=lambda run: run.start_slot)
            for run in todo:
                start = max(run.start_slot, free)
                free = start + run_slots(task, task.mode(run.mode), run.segments, self.foreseen.slot_h)
                if start < self.foreseen.slots:
                    pending.append(run.model_copy(update={"start_slot": start}))
        return tuple(pending)

    def _window_end(self, slot: int) -> int:
        """Slot at which the window that a plan made now covers ends."""
        first = slot // self.tranche_slots
        tranches = min(first + self.scenario.dispatch.look_ahead_tranches, self.scenario.tranches)
        return tranches * self.tranche_slots

    def _plan(self, runs: Iterable[Run]) -> Plan:
        return Plan(slot_h=self.foreseen.slot_h, runs=tuple(runs))

    def _promise(self, problem: DispatchProblem, runs: Sequence[Run]) -> tuple[Floats, Floats]:
        """Power and GPU-hours by slot."""
        return load_and_gpus(problem, runs)[0], held_gpu_hours(problem, runs)

    def _without_missing(self, problem: DispatchProblem) -> tuple[DispatchProblem, dict[str, int]] | None:
        """The same problem without the segments that do not fit any more, and how many they are by task."""
        if not solver_available():
            return None
        model = build_run_model(problem, elastic=True)
        result = model.program.minimise(time_limit_s=self.scenario.dispatch.time_limit_s)
        if result.values is None:
            return None
        given_up = {task.name: round(float(result.values[column])) for column, task in model.missing.items()}
        tasks = []
        for task in problem.tasks:
            left = task.segments - given_up[task.name]
            if left:
                tokens = task.tokens * left / task.segments
                tasks.append(task.model_copy(update={"segments": left, "tokens": tokens}))
        kept = {name: count for name, count in given_up.items() if count}
        return problem.model_copy(update={"tasks": tuple(tasks)}), kept


def require_solver(name: str) -> None:
    """Refuse what cannot be computed without HiGHS.

    Raises:
        ScenarioError: It is not installed.
    """
    if not solver_available():
        raise ScenarioError(name, [Problem("dispatch", f"{name} needs HiGHS: pip install 'curtailsim[dispatch]'")])


def _moved(runs: Iterable[Run], slots: int) -> tuple[Run, ...]:
    return tuple(run.model_copy(update={"start_slot": run.start_slot + slots}) for run in runs)


@dataclass(frozen=True)
class Money:
    """What a load costs.

    Attributes:
        cost: Energy, curtailment, restarts, and what others would have paid for the GPUs held. [currency]
        energy_cost: Energy alone. [currency]
        opportunity_cost: What others would have paid for the GPUs held. [currency]
        curtailed_mwh: Renewable energy left unused. [MWh]
        load_mwh: Facility energy. [MWh]
        green_mwh: Renewable energy used. [MWh]
        peak_load_mw: Highest power. [MW]
        peak_import_mw: Highest import. [MW]
    """

    cost: float
    energy_cost: float
    opportunity_cost: float
    curtailed_mwh: float
    load_mwh: float
    green_mwh: float
    peak_load_mw: float
    peak_import_mw: float

    @property
    def green_share(self) -> float | None:
        """Renewable energy used over facility energy. [-]"""
        return self.green_mwh / self.load_mwh if self.load_mwh else None


class OtherCosts(NamedTuple):
    """What is paid for restarts, and what others would have paid for the GPUs held. [currency]"""

    restarts: float
    opportunity: float


def money(
    problem: DispatchProblem, price: Floats, renewable_mw: Floats, load_mw: Floats, hours: Floats, other: OtherCosts
) -> Money:
    """What a load costs in pieces of constant power, supplied in the cheapest way."""
    rules = problem.curtailment_usd_per_mwh, problem.renewable_usd_per_mwh
    limit = math.inf if problem.import_limit_mw is None else problem.import_limit_mw
    used, grid = Supply(price, renewable_mw, 1.0, *rules, limit).split(load_mw)
    return priced(problem, price, renewable_mw, used, grid, hours, other)


def expected_money(problem: DispatchProblem, load_mw: Floats, hours: Floats, other: OtherCosts) -> Money:
    """What a load on the slots of a problem is expected to cost; peaks are the highest of all samples."""
    outcomes = problem.outcomes()
    found = [
        money(one, np.array(one.price_usd_per_mwh), np.array(one.renewable_mw), load_mw, hours, other)
        for _, _, one in outcomes
    ]
    means = {
        item.name: sum(one.probability * getattr(own, item.name) for one, own in zip(outcomes, found, strict=True))
        for item in fields(Money)
    }
    return replace(Money(**means), peak_import_mw=max(own.peak_import_mw for own in found))


def priced(
    problem: DispatchProblem,
    price: Floats,
    renewable_mw: Floats,
    used_mw: Floats,
    grid_mw: Floats,
    hours: Floats,
    other: OtherCosts,
) -> Money:
    """What a supply costs in pieces of constant power."""
    energy = float(hours @ (price * grid_mw + problem.renewable_usd_per_mwh * used_mw))
    curtailed = float(hours @ (renewable_mw - used_mw))
    load = used_mw + grid_mw
    return Money(
        cost=energy + problem.curtailment_usd_per_mwh * curtailed + other.restarts + other.opportunity,
        energy_cost=energy,
        opportunity_cost=other.opportunity,
        curtailed_mwh=curtailed,
        load_mwh=float(hours @ load),
        green_mwh=float(hours @ used_mw),
        peak_load_mw=float(load.max()),
        peak_import_mw=float(grid_mw.max()),
    )
