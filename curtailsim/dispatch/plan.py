"""What runs when, and what does that cost?  Plans, their auditor, and their energy and money.

A plan is made of *runs*: a run starts at a slot's border, restores the last checkpoint, trains whole segments in one
mode without pause, and ends at a checkpoint.  Every pause and every change of mode lies between two runs, so the rule
about checkpoints holds by construction.

Trust rests on `evaluate`, which knows nothing of the optimiser: it rebuilds the load from a plan's runs, supplies it
slot by slot, and lists every constraint the plan breaks.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
from pydantic import Field, PositiveFloat, PositiveInt, ValidationError

from curtailsim.dispatch.problem import DispatchProblem, Floats, Mode, Task
from curtailsim.spec import Problem, ScenarioError, Spec


class Run(Spec):
    """Segments of one task trained in one mode without pause.

    Args:
        task: The task.
        mode: The mode's label.
        segments: Segments trained.
        start_slot: Slot at whose start the restore begins.
    """

    task: str
    mode: str
    segments: PositiveInt
    start_slot: int = Field(ge=0)


class Plan(Spec):
    """What runs when: the answer to a `DispatchProblem`.

    Args:
        slot_h: Length of the slots that `start_slot` counts. [h]
        runs: Runs by start.
    """

    slot_h: PositiveFloat
    runs: tuple[Run, ...]

    def to_json(self) -> str:
        """The plan as JSON text."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> Plan:
        """The plan in a JSON text; mistakes are listed under the name of the source."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems = [Problem(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
            raise ScenarioError(source, problems) from error

    def of(self, task: str) -> tuple[Run, ...]:
        """The runs of one task, by start."""
        return tuple(sorted((run for run in self.runs if run.task == task), key=lambda run: run.start_slot))


def plan_of(problem: DispatchProblem, runs: Iterable[Run]) -> Plan:
    """The plan of these runs, in the order of their starts."""
    return Plan(slot_h=problem.slot_h, runs=tuple(sorted(runs, key=lambda run: (run.start_slot, run.task))))


def run_slots(task: Task, mode: Mode, segments: int, slot_h: float) -> int:
    """Slots that a run holds its GPUs for."""
    # without the tolerance a run that fills its slots exactly would take another one for a rounding error
    return math.ceil(task.run_h(mode, segments) / slot_h - 1e-7)


def run_held_h(task: Task, mode: Mode, segments: int, slot_h: float) -> Floats:
    """Time in every slot of a run that it holds its GPUs for, restart included; others may use them after it [h]."""
    borders_h = np.arange(run_slots(task, mode, segments, slot_h) + 1) * slot_h
    return np.diff(np.minimum(borders_h, task.run_h(mode, segments)))


def run_increments_mw(task: Task, mode: Mode, segments: int, slot_h: float) -> Floats:
    """Mean power above the idle pool's in every slot of a run; energy is exact, also in the last, partial slot [MW]."""
    slots = run_slots(task, mode, segments, slot_h)
    elapsed_h = np.minimum(np.arange(slots + 1) * slot_h, task.run_h(mode, segments))
    restoring_h = np.diff(np.minimum(elapsed_h, task.restart_h))
    training_h = np.diff(elapsed_h) - restoring_h
    energy_mwh = restoring_h * mode.restoring_increment_mw + training_h * mode.training_increment_mw
    return energy_mwh / slot_h


@dataclass(frozen=True)
class Supply:
    """How a load is met at least cost, slot by slot."""

    price: Floats
    renewable_mw: Floats
    slot_h: float
    curtailment_usd_per_mwh: float
    renewable_usd_per_mwh: float
    import_limit_mw: float

    @classmethod
    def of(cls, problem: DispatchProblem) -> Supply:
        """The supply side of a problem."""
        return cls(
            np.asarray(problem.price_usd_per_mwh, float),
            np.asarray(problem.renewable_mw, float),
            problem.slot_h,
            problem.curtailment_usd_per_mwh,
            problem.renewable_usd_per_mwh,
            math.inf if problem.import_limit_mw is None else problem.import_limit_mw,
        )

    def split(self, load_mw: Floats, slots: Any = slice(None)) -> tuple[Floats, Floats]:
        """Renewable power used and grid import for a load in the given slots [MW].

        Renewable power comes first unless the price is so negative that importing and paying for the curtailment is
        cheaper; then it only covers what the grid connection cannot.
        """
        available = self.renewable_mw[slots]
        renewable_first = self.renewable_usd_per_mwh - self.curtailment_usd_per_mwh <= self.price[slots]
        wanted = np.where(renewable_first, load_mw, load_mw - self.import_limit_mw)
        used = np.clip(wanted, 0.0, available)
        return used, load_mw - used

    def cost_usd(self, load_mw: Floats, slots: Any = slice(None)) -> Floats:
        """Cost of a load in the given slots; infinite where the grid connection is too small [USD]."""
        used, grid = self.split(load_mw, slots)
        unused = self.renewable_mw[slots] - used
        usd_per_h = self.price[slots] * grid + self.renewable_usd_per_mwh * used + self.curtailment_usd_per_mwh * unused
        return np.where(grid > self.import_limit_mw + 1e-9, math.inf, self.slot_h * usd_per_h)


@dataclass(frozen=True)
class ExpectedSupply:
    """What a load is expected to cost, slot by slot: the mean over the samples, each supplied in its cheapest way."""

    parts: tuple[tuple[float, Supply], ...]

    @classmethod
    def of(cls, problem: DispatchProblem) -> ExpectedSupply:
        """The supply sides of all that may happen, with their probabilities."""
        return cls(tuple((outcome.probability, Supply.of(outcome.problem)) for outcome in problem.outcomes()))

    def cost_usd(self, load_mw: Floats, slots: Any = slice(None)) -> Floats:
        """Expected cost of a load in the given slots; infinite where a sample cannot supply it [USD]."""
        return np.sum([share * supply.cost_usd(load_mw, slots) for share, supply in self.parts], axis=0)

    def curtailed_mwh(self, load_mw: Floats) -> float:
        """Renewable energy that is expected to be left unused by a load in all slots [MWh]."""
        return math.fsum(
            share * supply.slot_h * float((supply.renewable_mw - supply.split(load_mw)[0]).sum())
            for share, supply in self.parts
        )


@dataclass(frozen=True)
class Evaluation:
    """A plan's energy and money, computed from its runs alone; means over the samples, if the problem has any.

    Args:
        cost_usd: Energy, curtailment, restarts, and what others would have paid for the GPUs held. [USD]
        energy_cost_usd: Grid and renewable energy alone. [USD]
        opportunity_cost_usd: What others would have paid for the GPUs held. [USD]
        held_gpu_h: GPU-hours held by tasks. [GPU-h]
        load_mwh: Facility energy. [MWh]
        grid_mwh: Energy imported. [MWh]
        renewable_mwh: Renewable energy used. [MWh]
        curtailed_mwh: Renewable energy left unused. [MWh]
        green_share: Renewable energy used over facility energy. [-]
        peak_load_mw: Highest facility power of a slot. [MW]
        peak_import_mw: Highest import of a slot, in any sample. [MW]
        modes_used: Distinct modes by task.
        restarts: Runs by task.
        segments: Segments trained by task.
        load_mw: Facility power by slot. [MW]
        grid_mw: Import by slot. [MW]
        renewable_used_mw: Renewable power used by slot. [MW]
        gpus_busy: GPUs held by slot.
    """

    cost_usd: float
    energy_cost_usd: float
    opportunity_cost_usd: float
    held_gpu_h: float
    load_mwh: float
    grid_mwh: float
    renewable_mwh: float
    curtailed_mwh: float
    green_share: float
    peak_load_mw: float
    peak_import_mw: float
    modes_used: dict[str, int]
    restarts: dict[str, int]
    segments: dict[str, int]
    load_mw: Floats = field(repr=False)
    grid_mw: Floats = field(repr=False)
    renewable_used_mw: Floats = field(repr=False)
    gpus_busy: Floats = field(repr=False)

    def summary(self) -> dict[str, Any]:
        """The figures without the series, ready for JSON."""
        return {name: value for name, value in vars(self).items() if not isinstance(value, np.ndarray)}


def load_and_gpus(problem: DispatchProblem, runs: Iterable[Run]) -> tuple[Floats, Floats]:
    """Facility power and GPUs held in every slot, commitments included [MW, GPUs]."""
    load, gpus = problem.base_mw(), problem.gpus - problem.free_gpus()
    for run in runs:
        task = problem.task(run.task)
        mode = task.mode(run.mode)
        increments = run_increments_mw(task, mode, run.segments, problem.slot_h)
        load[run.start_slot : run.start_slot + len(increments)] += increments
        gpus[run.start_slot : run.start_slot + len(increments)] += mode.gpus
    return load, gpus


def held_gpu_hours(problem: DispatchProblem, runs: Iterable[Run]) -> Floats:
    """GPU-hours that tasks hold in every slot, commitments included [GPU-h]."""
    held = np.asarray(problem.committed_gpu_h or [0.0] * problem.slots)
    for run in runs:
        task = problem.task(run.task)
        mode = task.mode(run.mode)
        hours = run_held_h(task, mode, run.segments, problem.slot_h)
        held[run.start_slot : run.start_slot + len(hours)] += mode.gpus * hours
    return held


def audit(problem: DispatchProblem, plan: Plan) -> list[Problem]:
    """Everything that keeps a plan from being an answer to the problem: horizon, overlap, tranche, GPUs, import."""
    found = _unreadable_runs(problem, plan)
    if found:
        return found  # the rest cannot be computed
    for task in problem.tasks:
        found += _timing_mistakes(problem, plan, task)
    if found:
        return found
    load, gpus = load_and_gpus(problem, plan.runs)
    for slot in np.flatnonzero(gpus > problem.gpus):
        found.append(Problem(f"slots[{slot}].gpus", f"holds {gpus[slot]:,.0f} GPUs, the pool has {problem.gpus:,}"))
    limit = math.inf if problem.import_limit_mw is None else problem.import_limit_mw
    for outcome in problem.outcomes():
        _, grid = Supply.of(outcome.problem).split(load)
        where = f" in sample {outcome.name!r}" if outcome.name else ""
        for slot in np.flatnonzero(grid > limit + 1e-9):
            rule = f"imports {grid[slot]:.4f} MW{where}, the limit is {limit:.4f} MW"
            found.append(Problem(f"slots[{slot}].grid_mw", rule))
    return found


def _unreadable_runs(problem: DispatchProblem, plan: Plan) -> list[Problem]:
    found = []
    if not math.isclose(plan.slot_h, problem.slot_h):
        found.append(Problem("slot_h", f"must be that of the problem, {problem.slot_h:g} (got {plan.slot_h:g})"))
    modes = {task.name: {mode.label for mode in task.modes} for task in problem.tasks}
    for i, run in enumerate(plan.runs):
        if run.task not in modes:
            found.append(Problem(f"runs[{i}].task", f"{run.task!r} is unknown ({', '.join(modes)})"))
        elif run.mode not in modes[run.task]:
            found.append(Problem(f"runs[{i}].mode", f"{run.mode!r} is not a mode of task {run.task!r}"))
    return found


def _timing_mistakes(problem: DispatchProblem, plan: Plan, task: Task) -> list[Problem]:
    found, free_from, trained = [], task.first_slot, 0
    for run in plan.of(task.name):
        path = f"runs[{plan.runs.index(run)}].start_slot"
        end = run.start_slot + run_slots(task, task.mode(run.mode), run.segments, problem.slot_h)
        if run.start_slot < free_from:
            found.append(Problem(path, f"must be at least {free_from}, when the task is free (got {run.start_slot})"))
        if end > problem.slots:
            found.append(Problem(path, f"run ends at slot {end}, the horizon at {problem.slots}"))
        free_from, trained = end, trained + run.segments
    if trained != task.segments:
        found.append(Problem(f"tasks.{task.name}", f"must train {task.segments} segments (got {trained})"))
    return found


def evaluate(problem: DispatchProblem, plan: Plan) -> Evaluation:
    """Audit a plan and compute its energy and money.

    Raises:
        ScenarioError: The plan breaks a constraint; all are listed.
    """
    problems = audit(problem, plan)
    if problems:
        raise ScenarioError("plan", problems)
    return account(problem, plan)


def account(problem: DispatchProblem, plan: Plan) -> Evaluation:
    """Energy and money of a plan whose runs are sound; an import above the limit is paid like any other."""
    outcomes = problem.outcomes()
    found = [_account_outcome(outcome.problem, plan) for outcome in outcomes]
    if not problem.samples:
        return found[0]
    means: dict[str, Any] = {
        name: sum(one.probability * getattr(other, name) for one, other in zip(outcomes, found, strict=True))
        for name in _UNCERTAIN_FIGURES
    }
    share = means["renewable_mwh"] / means["load_mwh"] if means["load_mwh"] > 0 else 0.0
    return replace(found[0], peak_import_mw=max(one.peak_import_mw for one in found), green_share=share, **means)


_UNCERTAIN_FIGURES = (
    "cost_usd",
    "energy_cost_usd",
    "load_mwh",
    "grid_mwh",
    "renewable_mwh",
    "curtailed_mwh",
    "grid_mw",
    "renewable_used_mw",
)
"""What of an evaluation depends on how a load is supplied."""


def _account_outcome(problem: DispatchProblem, plan: Plan) -> Evaluation:
    supply = Supply.of(problem)
    load, gpus = load_and_gpus(problem, plan.runs)
    used, grid = supply.split(load)
    hours = problem.slot_h
    energy_cost = hours * float(supply.price @ grid + problem.renewable_usd_per_mwh * used.sum())
    curtailed = hours * float((supply.renewable_mw - used).sum())
    restarts = {task.name: len(plan.of(task.name)) for task in problem.tasks}
    restart_cost = sum(task.restart_usd * restarts[task.name] for task in problem.tasks)
    held = held_gpu_hours(problem, plan.runs)
    opportunity_cost = float(problem.gpu_value_usd_per_h() @ held)
    return Evaluation(
        cost_usd=energy_cost + problem.curtailment_usd_per_mwh * curtailed + restart_cost + opportunity_cost,
        energy_cost_usd=energy_cost,
        opportunity_cost_usd=opportunity_cost,
        held_gpu_h=float(held.sum()),
        load_mwh=hours * float(load.sum()),
        grid_mwh=hours * float(grid.sum()),
        renewable_mwh=hours * float(used.sum()),
        curtailed_mwh=curtailed,
        green_share=float(used.sum() / load.sum()) if load.sum() > 0 else 0.0,
        peak_load_mw=float(load.max()),
        peak_import_mw=float(grid.max()),
        modes_used={task.name: len({run.mode for run in plan.of(task.name)}) for task in problem.tasks},
        restarts=restarts,
        segments={task.name: sum(run.segments for run in plan.of(task.name)) for task in problem.tasks},
        load_mw=load,
        grid_mw=grid,
        renewable_used_mw=used,
        gpus_busy=gpus,
    )


def remaining_problem(problem: DispatchProblem, plan: Plan, slot: int) -> DispatchProblem:
    """What is left to decide at the start of a slot, for a rolling horizon.

    Runs that have started go on to their checkpoint: their power and GPUs are committed, and their task is free at
    their end.  Tasks with nothing left are dropped; slots count from the new start.
    """
    started = [run for run in plan.runs if run.start_slot < slot]
    load, gpus = load_and_gpus(problem, started)
    held = held_gpu_hours(problem, started)
    tasks = []
    for task in problem.tasks:
        mine = [run for run in started if run.task == task.name]
        left = task.segments - sum(run.segments for run in mine)
        ends = [
            run.start_slot + run_slots(task, task.mode(run.mode), run.segments, problem.slot_h) - slot for run in mine
        ]
        if left:
            tokens = task.tokens * left / task.segments
            free_from = max(0, task.first_slot - slot, *ends)
            tasks.append(task.model_copy(update={"segments": left, "tokens": tokens, "first_slot": free_from}))
    return problem.model_copy(
        update={
            **problem.in_slots(slice(slot, None)),
            "tasks": tuple(tasks),
            "committed_mw": tuple((load - problem.idle_mw)[slot:].tolist()),
            "committed_gpus": tuple(int(count) for count in gpus[slot:]),
            "committed_gpu_h": tuple(held[slot:].tolist()),
        }
    )


class Arc(NamedTuple):
    """A run before it has a start."""

    mode: Mode
    segments: int
    increments_mw: Floats
    gpu_h: Floats

    @property
    def slots(self) -> int:
        """Slots it holds."""
        return len(self.increments_mw)


def run_arcs(problem: DispatchProblem, task: Task) -> list[Arc]:
    """Every run of a task that fits the pool and the horizon."""
    arcs = []
    for mode in task.modes:
        if mode.gpus > problem.gpus:
            continue
        for segments in range(1, task.segments + 1):
            if task.first_slot + run_slots(task, mode, segments, problem.slot_h) > problem.slots:
                break
            increments = run_increments_mw(task, mode, segments, problem.slot_h)
            gpu_h = mode.gpus * run_held_h(task, mode, segments, problem.slot_h)
            arcs.append(Arc(mode, segments, increments, gpu_h))
    return arcs


def run_starts(problem: DispatchProblem, task: Task, arc: Arc) -> range:
    """Slots at which a run may start."""
    every = problem.start_every_slots
    first = -(-task.first_slot // every) * every
    return range(first, problem.slots - arc.slots + 1, every)
