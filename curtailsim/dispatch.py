"""When, and in which mode, should each training task run so that the day's energy costs least?

A pool of GPUs with its own renewable supply has to finish a tranche of tokens for each of several training tasks.  A
task may wait, resume or change its mode only at checkpoints, and a mode fixes GPUs, speed and power together.  `solve`
finds the cheapest plan as a mixed-integer program over *runs*: a run starts at a slot's border, restores the last
checkpoint, trains whole segments in one mode without pause, and ends at a checkpoint.  Every pause and every change of
mode lies between two runs, so the rule about checkpoints holds by construction.

Trust rests on `evaluate`, which knows nothing of the optimiser: it rebuilds the load from a plan's runs, supplies it
slot by slot, and lists every constraint the plan breaks.

Power is in MW, energy in MWh, money in USD, time in hours and slots.  A mode's power is what it adds to the idle pool.
The formulation is a reconstruction from a published summary; its parameters are ours.
"""

from __future__ import annotations

import csv
import importlib.util
import itertools
import math
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field, NonNegativeFloat, PositiveFloat, PositiveInt, ValidationError, model_validator

from curtailsim.spec import Problem, ScenarioError, Spec

Floats = NDArray[np.float64]


# ------------------------------------------------------------------------------------------------- the problem


class Mode(Spec):
    """One way to run a task; any object with these attributes is accepted where a mode is asked for.

    Args:
        label: Name, unique within the task.
        gpus: GPUs it holds.
        tokens_per_s: Throughput. [tokens/s]
        training_increment_mw: Facility power above the idle pool's while training. [MW]
        restoring_increment_mw: Facility power above the idle pool's while a checkpoint is restored. [MW]
    """

    model_config = ConfigDict(from_attributes=True)

    label: str
    gpus: PositiveInt
    tokens_per_s: PositiveFloat
    training_increment_mw: float
    restoring_increment_mw: float


class Task(Spec):
    """A training task with its tranche for the horizon.

    Args:
        name: Name, unique within the problem.
        modes: The modes to choose from.
        tokens: Tokens to train within the horizon.
        segments: Equal checkpoint segments the tranche is cut into.
        restart_h: From (re)start to first new token: provision, restore, warm up. [h]
        checkpoint_h: Stall per checkpoint written. [h]
        restart_usd: Charge per (re)start. [USD]
        first_slot: Slot from which the task may run.
    """

    name: str
    modes: tuple[Mode, ...] = Field(min_length=1)
    tokens: PositiveFloat
    segments: PositiveInt = 12
    restart_h: NonNegativeFloat = 5 / 60
    checkpoint_h: NonNegativeFloat = 0.5 / 60
    restart_usd: NonNegativeFloat = 1.0
    first_slot: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _unique_modes(self) -> Self:
        _require_unique("mode", (mode.label for mode in self.modes))
        return self

    def mode(self, label: str) -> Mode:
        """The mode of that name."""
        return next(mode for mode in self.modes if mode.label == label)

    def segment_h(self, mode: Mode) -> float:
        """Time of one segment with its checkpoint [h]."""
        return self.tokens / (self.segments * 3600 * mode.tokens_per_s) + self.checkpoint_h

    def run_h(self, mode: Mode, segments: int) -> float:
        """Time of a run of so many segments, restart included [h]."""
        return self.restart_h + segments * self.segment_h(mode)

    def segment_gpu_hours(self) -> float:
        """GPU-hours of one segment in the mode that needs fewest [GPU-h]."""
        return min(mode.gpus * self.segment_h(mode) for mode in self.modes)


SLOT_SERIES = (
    "price_usd_per_mwh",
    "renewable_mw",
    "committed_mw",
    "committed_gpus",
    "committed_gpu_h",
    "idle_gpu_usd_per_h",
)
"""What a problem has one value per slot of."""


class DispatchProblem(Spec):
    """A pool, its tasks, and the prices and renewable power of every slot.

    Args:
        tasks: The training tasks.
        slot_h: Length of a slot. [h]
        price_usd_per_mwh: Grid price of every slot. [USD/MWh]
        renewable_mw: Renewable power available in every slot. [MW]
        gpus: GPUs in the pool.
        idle_mw: Facility power of the pool when nothing runs, PUE included; it is paid in every slot. [MW]
        curtailment_usd_per_mwh: Charge for renewable energy left unused. [USD/MWh]
        renewable_usd_per_mwh: Charge for renewable energy used. [USD/MWh]
        import_limit_mw: Most power the grid connection can draw; none if absent. [MW]
        start_every_slots: Runs may start at every so-manieth slot; more than one makes fine slots affordable.
        committed_mw: Power above idle already promised per slot, for example to a run that is under way. [MW]
        committed_gpus: GPUs already promised per slot.
        committed_gpu_h: GPU-hours that they are held for, per slot. [GPU-h]
        idle_gpu_usd_per_h: What others would pay for a GPU that no task holds, per slot; nothing if absent. [USD/GPU-h]
    """

    tasks: tuple[Task, ...]
    slot_h: PositiveFloat = 0.5
    price_usd_per_mwh: tuple[float, ...] = Field(min_length=1)
    renewable_mw: tuple[NonNegativeFloat, ...]
    gpus: PositiveInt
    idle_mw: NonNegativeFloat
    curtailment_usd_per_mwh: float = 25.0
    renewable_usd_per_mwh: float = 0.0
    import_limit_mw: NonNegativeFloat | None = None
    start_every_slots: PositiveInt = 1
    committed_mw: tuple[float, ...] | None = None
    committed_gpus: tuple[int, ...] | None = None
    committed_gpu_h: tuple[float, ...] | None = None
    idle_gpu_usd_per_h: tuple[float, ...] | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        _require_unique("task", (task.name for task in self.tasks))
        for name in SLOT_SERIES:
            values = getattr(self, name)
            if values is not None and len(values) != self.slots:
                raise ValueError(f"{name} has {len(values)} slots, price_usd_per_mwh has {self.slots}")
        return self

    @property
    def slots(self) -> int:
        """Slots in the horizon."""
        return len(self.price_usd_per_mwh)

    def task(self, name: str) -> Task:
        """The task of that name."""
        return next(task for task in self.tasks if task.name == name)

    def base_mw(self) -> Floats:
        """Power of every slot before any run of the plan [MW]."""
        return self.idle_mw + np.asarray(self.committed_mw or [0.0] * self.slots)

    def free_gpus(self) -> Floats:
        """GPUs of every slot that are not committed."""
        return self.gpus - np.asarray(self.committed_gpus or [0.0] * self.slots)

    def gpu_value_usd_per_h(self) -> Floats:
        """What a held GPU costs in lost use by others, in every slot [USD/GPU-h]."""
        return np.asarray(self.idle_gpu_usd_per_h or [0.0] * self.slots)

    def in_slots(self, slots: slice) -> dict[str, Any]:
        """Every series of the problem in some of its slots, by its name."""
        series = {name: getattr(self, name) for name in SLOT_SERIES}
        return {name: None if values is None else values[slots] for name, values in series.items()}

    def with_modes(self, labels: Sequence[str]) -> DispatchProblem:
        """The same problem where each task has only the mode named for it, in the order of the tasks."""
        tasks = tuple(
            task.model_copy(update={"modes": (task.mode(label),)})
            for task, label in zip(self.tasks, labels, strict=True)
        )
        return self.model_copy(update={"tasks": tasks})


def _require_unique(what: str, names: Iterable[str]) -> None:
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{what} names must differ: {', '.join(twice)}")


@dataclass(frozen=True)
class DayProfile:
    """Hourly prices and renewable power of one day, each held over its hour.

    Args:
        price_usd_per_mwh: Grid price by hour. [USD/MWh]
        renewable_per_unit: Renewable power by hour over the day's peak. [-]
    """

    price_usd_per_mwh: tuple[float, ...]
    renewable_per_unit: tuple[float, ...]

    def in_slots(self, slot_h: float) -> DayProfile:
        """The same day in slots: values are held, so that neither energy nor money depends on the slot."""
        return DayProfile(hold(self.price_usd_per_mwh, slot_h), hold(self.renewable_per_unit, slot_h))


def hold(hourly: Sequence[float], slot_h: float) -> tuple[float, ...]:
    """Hourly values on slots of `slot_h` hours, which has to divide the hour."""
    per_hour = round(1 / slot_h)
    if per_hour < 1 or not math.isclose(per_hour * slot_h, 1):
        raise ValueError(f"slot_h must divide one hour, got {slot_h}")
    return tuple(value for value in hourly for _ in range(per_hour))


def read_day(path: str | Path) -> DayProfile:
    """A day of hourly values from a CSV file whose comments start with '#'.

    Args:
        path: File with the columns hour, price_usd_per_mwh and renewable_per_unit.
    """
    with Path(path).open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(line for line in file if not line.startswith("#")))
    try:
        price = tuple(float(row["price_usd_per_mwh"]) for row in rows)
        renewable = tuple(float(row["renewable_per_unit"]) for row in rows)
    except (KeyError, TypeError, ValueError) as error:
        rule = f"needs numbers in price_usd_per_mwh and renewable_per_unit ({error})"
        raise ScenarioError(str(path), [Problem("columns", rule)]) from error
    return DayProfile(price, renewable)


# -------------------------------------------------------------------------------------------------- plan, audit


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


def _plan(problem: DispatchProblem, runs: Iterable[Run]) -> Plan:
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
class Evaluation:
    """A plan's energy and money, computed from its runs alone.

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
        peak_import_mw: Highest import of a slot. [MW]
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
    _, grid = Supply.of(problem).split(load)
    limit = math.inf if problem.import_limit_mw is None else problem.import_limit_mw
    for slot in np.flatnonzero(gpus > problem.gpus):
        found.append(Problem(f"slots[{slot}].gpus", f"holds {gpus[slot]:,.0f} GPUs, the pool has {problem.gpus:,}"))
    for slot in np.flatnonzero(grid > limit + 1e-9):
        found.append(Problem(f"slots[{slot}].grid_mw", f"imports {grid[slot]:.4f} MW, the limit is {limit:.4f} MW"))
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
    return _account(problem, plan)


def _account(problem: DispatchProblem, plan: Plan) -> Evaluation:
    """Energy and money of a plan whose runs are sound; an import above the limit is paid like any other."""
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


@dataclass(frozen=True)
class Replay:
    """A plan as it was priced, and as a meter with a finer step sees it."""

    planned: Evaluation
    realised: Evaluation

    @property
    def relative_cost_error(self) -> float:
        """Realised over planned cost, minus one [-]."""
        return self.realised.cost_usd / self.planned.cost_usd - 1


def replay(problem: DispatchProblem, plan: Plan, step_min: float = 1.0) -> Replay:
    """Run a plan again on a fine grid, where the last, partial slot of a run is no longer averaged.

    Energy is that of the plan; what is imported and what is curtailed is not.

    Args:
        problem: The problem the plan answers.
        plan: The plan.
        step_min: Step of the fine grid, which has to divide the slot. [min]
    """
    steps = round(problem.slot_h * 60 / step_min)
    if steps < 1 or not math.isclose(steps * step_min, problem.slot_h * 60):
        raise ValueError(f"step_min must divide the slot of {problem.slot_h * 60:g} min, got {step_min:g}")

    def repeated(name: str) -> tuple[float, ...] | None:
        values = getattr(problem, name)
        share = 1 / steps if name == "committed_gpu_h" else 1  # the one series that adds up over time
        return None if values is None else tuple(share * value for value in values for _ in range(steps))

    series = {name: repeated(name) for name in SLOT_SERIES}
    fine = problem.model_copy(update={"slot_h": problem.slot_h / steps, **series})
    moved = [run.model_copy(update={"start_slot": run.start_slot * steps}) for run in plan.runs]
    return Replay(evaluate(problem, plan), _account(fine, _plan(fine, moved)))


# --------------------------------------------------------------------------------------------- linear programs


@dataclass(frozen=True)
class Progress:
    """Where the solver stands.

    Args:
        time_s: Wall time since the start. [s]
        best_usd: Cost of the best plan so far; infinite before the first. [USD]
        bound_usd: No plan is cheaper. [USD]
        relative_gap: Distance between the two. [-]
    """

    time_s: float
    best_usd: float
    bound_usd: float
    relative_gap: float


@dataclass(frozen=True)
class LinearResult:
    """What the solver says about a `LinearProgram`; `values` is none if it found no solution.

    `reduced_costs` are those of a relaxed program: what the optimum rises by, at least, per unit of each variable.
    """

    status: Literal["optimal", "infeasible", "time_limit"]
    values: Floats | None
    objective: float
    bound: float
    relative_gap: float
    time_s: float
    reduced_costs: Floats | None = None


def solver_available() -> bool:
    """Whether HiGHS is installed."""
    return importlib.util.find_spec("highspy") is not None


class LinearProgram:
    """A mixed-integer linear program, filled row by row and column by column, minimised by HiGHS.

    References:
        Huangfu and Hall, Parallelizing the dual revised simplex method, 2018. doi:10.1007/s12532-017-0130-5
    """

    def __init__(self) -> None:
        self.offset = 0.0
        self._row_bounds: list[tuple[float, float]] = []
        self._columns: list[tuple[float, float, float, bool]] = []
        self._starts, self._rows, self._values = [0], list[int](), list[float]()

    def row(self, lower: float, upper: float) -> int:
        """Add a constraint with its bounds; returns its number."""
        self._row_bounds.append((lower, upper))
        return len(self._row_bounds) - 1

    def rows(self, lower: Sequence[float], upper: Sequence[float]) -> list[int]:
        """Add one constraint per pair of bounds."""
        return [self.row(float(low), float(high)) for low, high in zip(lower, upper, strict=True)]

    def column(
        self, cost: float, lower: float, upper: float, entries: Iterable[tuple[int, float]], integer: bool = False
    ) -> int:
        """Add a variable with its cost, bounds and (row, coefficient) entries; returns its number."""
        self._columns.append((cost, lower, upper, integer))
        for row, value in entries:
            self._rows.append(row)
            self._values.append(value)
        self._starts.append(len(self._rows))
        return len(self._columns) - 1

    @property
    def size(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self._row_bounds), len(self._columns)

    def minimise(
        self,
        *,
        relative_gap: float = 2e-3,
        time_limit_s: float = 120.0,
        relax: bool = False,
        excluded: Iterable[int] = (),
        progress: Callable[[Progress], None] | None = None,
    ) -> LinearResult:
        """Solve the program.

        Args:
            relative_gap: Stop when the best solution is within this share of the bound. [-]
            time_limit_s: Stop after this wall time. [s]
            relax: Forget that variables are integers.
            excluded: Variables to fix at zero.
            progress: Called with every better solution, and about once a second.
        """
        import highspy  # an optional dependency, needed here alone

        with _without_banner():
            highs = highspy.Highs()
        # the number of threads is left alone: HiGHS shares one scheduler per process, which cannot be changed later
        highs.setOptionValue("output_flag", False)
        highs.setOptionValue("time_limit", float(time_limit_s))
        highs.setOptionValue("mip_rel_gap", float(relative_gap))
        highs.passModel(self._highs_model(relax, set(excluded)))
        began = time.perf_counter()
        if progress is not None:
            _report_progress(highs, progress, began)
        highs.run()
        elapsed = time.perf_counter() - began
        return _linear_result(highs, elapsed, is_mip=not relax and any(column[3] for column in self._columns))

    def _highs_model(self, relax: bool, excluded: set[int]) -> Any:
        import highspy

        def bounded(values: Iterable[float]) -> Floats:
            return np.clip(np.asarray(list(values), float), -highspy.kHighsInf, highspy.kHighsInf)

        model = highspy.HighsLp()
        model.num_row_, model.num_col_ = self.size
        cost, lower, upper, integer = zip(*self._columns, strict=True)
        upper = tuple(0.0 if column in excluded else bound for column, bound in enumerate(upper))
        row_lower, row_upper = zip(*self._row_bounds, strict=True)
        model.col_cost_, model.col_lower_, model.col_upper_ = np.asarray(cost, float), bounded(lower), bounded(upper)
        model.row_lower_, model.row_upper_, model.offset_ = bounded(row_lower), bounded(row_upper), self.offset
        model.a_matrix_.format_ = highspy.MatrixFormat.kColwise
        model.a_matrix_.start_ = np.asarray(self._starts, np.int32)
        model.a_matrix_.index_ = np.asarray(self._rows, np.int32)
        model.a_matrix_.value_ = np.asarray(self._values, float)
        if not relax:
            kinds = highspy.HighsVarType
            model.integrality_ = [kinds.kInteger if flag else kinds.kContinuous for flag in integer]
        return model


@contextmanager
def _without_banner() -> Iterator[None]:
    """HiGHS prints its version when it is first made, before it can be told to be silent."""
    sys.stdout.flush()
    kept, nowhere = os.dup(1), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(nowhere)


def _report_progress(highs: Any, progress: Callable[[Progress], None], began: float, every_s: float = 1.0) -> None:
    """Have HiGHS report every better solution, and its bounds about once a second."""
    last_s = 0.0

    def report(data: Any) -> None:
        nonlocal last_s
        last_s = time.perf_counter() - began
        progress(Progress(last_s, data.mip_primal_bound, data.mip_dual_bound, data.mip_gap))

    def report_sometimes(event: Any) -> None:
        if time.perf_counter() - began > last_s + every_s:
            report(event.data_out)

    highs.cbMipImprovingSolution.subscribe(lambda event: report(event.data_out))
    # HiGHS asks very often whether to go on, and logs nothing when it is told to be silent
    highs.cbMipInterrupt.subscribe(report_sometimes)


def _linear_result(highs: Any, elapsed_s: float, is_mip: bool) -> LinearResult:
    import highspy

    status = highs.getModelStatus()
    info = highs.getInfo()
    states = highspy.HighsModelStatus
    solved = info.primal_solution_status == highspy.SolutionStatus.kSolutionStatusFeasible
    if status in (states.kInfeasible, states.kUnboundedOrInfeasible):
        return LinearResult("infeasible", None, math.inf, math.inf, math.inf, elapsed_s)
    bound = info.mip_dual_bound if is_mip else info.objective_function_value
    gap = info.mip_gap if is_mip else 0.0
    if not solved:
        return LinearResult("time_limit", None, math.inf, bound if is_mip else -math.inf, math.inf, elapsed_s)
    name: Literal["optimal", "time_limit"] = "optimal" if status == states.kOptimal else "time_limit"
    solution = highs.getSolution()
    values = np.array(solution.col_value)
    reduced_costs = None if is_mip else np.array(solution.col_dual)
    return LinearResult(name, values, info.objective_function_value, bound, gap, elapsed_s, reduced_costs)


# ------------------------------------------------------------------------------------------ the exact formulation


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


def _starts(problem: DispatchProblem, task: Task, arc: Arc) -> range:
    """Slots at which a run may start."""
    every = problem.start_every_slots
    first = -(-task.first_slot // every) * every
    return range(first, problem.slots - arc.slots + 1, every)


class Clique(NamedTuple):
    """Two tasks that cannot run together from so many GPUs each on."""

    first: int
    first_gpus: int
    second: int
    second_gpus: int

    def holds(self, task: int, gpus: int) -> bool:
        """Whether a run of a task with so many GPUs is one of the excluding runs."""
        return (task == self.first and gpus >= self.first_gpus) or (task == self.second and gpus >= self.second_gpus)


def gpu_cliques(problem: DispatchProblem) -> list[Clique]:
    """Pairs of runs that the pool cannot hold together: at most one of them in any slot.

    The GPU rows already say so for whole runs; these rows say it for fractions of runs too, which lifts the relaxed
    bound and halves the solver's time.
    """
    cliques = []
    counts = [sorted({mode.gpus for mode in task.modes if mode.gpus <= problem.gpus}) for task in problem.tasks]
    for first, second in itertools.combinations(range(len(problem.tasks)), 2):
        seen = set()
        for gpus in counts[first]:
            partner = min((n for n in counts[second] if gpus + n > problem.gpus), default=None)
            if partner is not None and partner not in seen:
                seen.add(partner)
                cliques.append(Clique(first, gpus, second, partner))
    return cliques


@dataclass
class RunModel:
    """The mixed-integer program over runs, with the meaning of its columns."""

    program: LinearProgram
    runs: dict[int, Run] = field(default_factory=dict)
    missing: dict[int, Task] = field(default_factory=dict)

    def chosen(self, values: Floats) -> list[Run]:
        """The runs a solution has chosen."""
        return [run for column, run in self.runs.items() if values[column] > 0.5]

    def dearer_than(self, cost_usd: float, relaxed: LinearResult) -> list[int]:
        """Columns of the runs that no plan of at most this cost contains.

        A plan costs at least the relaxed optimum plus the reduced cost of each of its runs.
        """
        assert relaxed.reduced_costs is not None, "reduced costs come from a relaxed program"
        slack = cost_usd - relaxed.objective + 1e-6 * abs(cost_usd)
        return [column for column in self.runs if relaxed.reduced_costs[column] > slack]


def build_run_model(
    problem: DispatchProblem, *, waiting: bool = True, cliques: bool = True, elastic: bool = False
) -> RunModel:
    """The dispatch problem as a mixed-integer program.

    One binary per run and start, a path through time per task, and the supply of every slot:

        path      idle_jt + Σ runs of j starting at t = idle_j,t-1 + Σ runs of j ending at t      every task, border
        tranche   Σ segments of runs of j = segments of j                                         every task
        GPUs      Σ gpus of runs covering t <= free GPUs                                          every slot
        balance   import + renewable - Σ increments of runs covering t = base load                every slot
        cliques   Σ runs of i with many GPUs + Σ runs of j with many GPUs <= 1                    every slot, clique

        minimise  slot · Σ [price · import + charge · renewable + penalty · (available - renewable)] + Σ restarts
                  + Σ GPU-hours held by runs · value of an idle GPU

    Args:
        problem: The problem.
        waiting: Tasks may wait between runs; otherwise a task that stops is done.
        cliques: Add the clique rows, which change the solver's time and nothing else.
        elastic: Allow segments to be missing and minimise their GPU-hours in place of the cost.
    """
    program = LinearProgram()
    model = RunModel(program)
    slots = problem.slots
    ends = [_path_ends(task, slots) for task in problem.tasks]
    path = [program.rows(flow, flow) for flow in ends]
    tranche = [program.row(task.segments, task.segments) for task in problem.tasks]
    gpus = program.rows([-math.inf] * slots, list(problem.free_gpus()))
    base = list(problem.base_mw())
    balance = program.rows(base, base)
    gpu_value = problem.gpu_value_usd_per_h()
    clique_rows = [
        (clique, program.rows([-math.inf] * slots, [1.0] * slots))
        for clique in (gpu_cliques(problem) if cliques else ())
    ]
    for j, task in enumerate(problem.tasks):
        for t in range(task.first_slot, slots):
            after = t + 1 if waiting else slots
            program.column(0, 0, 1, [(path[j][t], 1), (path[j][after], -1)])
        for arc in run_arcs(problem, task):
            hit = [rows for clique, rows in clique_rows if clique.holds(j, arc.mode.gpus)]
            for t in _starts(problem, task, arc):
                covered = range(t, t + arc.slots)
                entries = [(path[j][t], 1.0), (path[j][t + arc.slots], -1.0), (tranche[j], float(arc.segments))]
                entries += [(gpus[i], float(arc.mode.gpus)) for i in covered]
                entries += [(balance[i], -power) for i, power in zip(covered, arc.increments_mw.tolist(), strict=True)]
                entries += [(rows[i], 1.0) for rows in hit for i in covered]
                held_usd = float(gpu_value[t : t + arc.slots] @ arc.gpu_h)
                cost = 0.0 if elastic else task.restart_usd + held_usd
                column = program.column(cost, 0, 1, entries, integer=True)
                model.runs[column] = Run(task=task.name, mode=arc.mode.label, segments=arc.segments, start_slot=t)
        if elastic:
            entries = [(tranche[j], 1.0)]
            column = program.column(task.segment_gpu_hours(), 0, task.segments, entries, integer=True)
            model.missing[column] = task
    add_supply(problem, program, balance, free=elastic)
    return model


def _path_ends(task: Task, slots: int) -> list[float]:
    """Net flow out of every border between slots: one unit enters at the task's first slot and leaves at the end."""
    flow = [0.0] * (slots + 1)
    flow[task.first_slot] += 1.0
    flow[slots] -= 1.0
    return flow


def add_supply(problem: DispatchProblem, program: LinearProgram, balance: Sequence[int], free: bool = False) -> None:
    """Columns for import and renewable power in every slot, at their cost or, if `free`, at none."""
    supply = Supply.of(problem)
    hours = 0.0 if free else problem.slot_h
    renewable_cost = problem.renewable_usd_per_mwh - problem.curtailment_usd_per_mwh
    for t, row in enumerate(balance):
        program.column(hours * supply.price[t], 0, supply.import_limit_mw, [(row, 1.0)])
        program.column(hours * renewable_cost, 0, supply.renewable_mw[t], [(row, 1.0)])
    program.offset = hours * problem.curtailment_usd_per_mwh * float(supply.renewable_mw.sum())


# ------------------------------------------------------------------------------------------------------- solving


@dataclass(frozen=True)
class Solution:
    """A plan, audited, and how good the solver knows it to be.

    Args:
        plan: The plan.
        evaluation: Its energy and money, from `evaluate`.
        status: `optimal` within the asked gap, `time_limit`, or `heuristic` where nothing is proved.
        bound_usd: No plan is cheaper; minus infinity if unknown. [USD]
        relative_gap: Distance of the plan from the bound; infinite if unknown. [-]
        time_s: Wall time of the search. [s]
    """

    plan: Plan
    evaluation: Evaluation
    status: Literal["optimal", "time_limit", "heuristic"]
    bound_usd: float
    relative_gap: float
    time_s: float


def solve(
    problem: DispatchProblem,
    *,
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
    start: Plan | None = None,
    progress: Callable[[Progress], None] | None = None,
) -> Solution:
    """The cheapest plan, within a gap.

    A plan of `heuristic` comes first and guards the answer.  The reduced costs of the relaxed program then tell which
    runs no plan below a given cost can contain.  The search guesses a cost halfway between bound and known plan and
    leaves those runs out, which is several times faster; what it finds is proved where the guess was high enough, and
    otherwise sets the cost for a second search.  Where HiGHS is not installed the heuristic plan is the answer.

    Args:
        problem: The problem.
        relative_gap: Stop when the plan is proved to be within this share of the optimum. [-]
        time_limit_s: Stop the exact search after this wall time. [s]
        start: A known plan; the answer costs no more, and a good one saves time.
        progress: Called with the state of the search.

    Raises:
        ScenarioError: No plan exists (with the tranches that do not fit), or none was found.
    """
    began = time.perf_counter()
    known = _cheapest(problem, (start, heuristic(problem)))
    if not solver_available():
        if known is None:
            raise ScenarioError("dispatch problem", explain_infeasibility(problem))
        return _solution(problem, known, "heuristic", -math.inf, began)
    return _search(problem, known, relative_gap, began, began + time_limit_s, progress)


def _search(
    problem: DispatchProblem,
    known: Plan | None,
    relative_gap: float,
    began: float,
    deadline: float,
    progress: Callable[[Progress], None] | None,
) -> Solution:
    """The exact search, in one or two passes over the runs that matter."""

    def time_left() -> float:
        return max(deadline - time.perf_counter(), 0.0)

    model = build_run_model(problem)
    relaxed = model.program.minimise(relax=True, time_limit_s=time_left())
    if relaxed.status == "infeasible":
        raise ScenarioError("dispatch problem", explain_infeasibility(problem))
    cutoff = math.inf
    if known is not None and relaxed.status == "optimal":
        cutoff = (relaxed.objective + evaluate(problem, known).cost_usd) / 2
    while True:
        excluded = model.dearer_than(cutoff, relaxed) if math.isfinite(cutoff) else []
        found = model.program.minimise(
            relative_gap=relative_gap, time_limit_s=time_left(), excluded=excluded, progress=progress
        )
        known = _cheapest(problem, (known, _audited_plan(problem, model, found)))
        if known is None:
            raise ScenarioError("dispatch problem", explain_infeasibility(problem))
        # the search was over all plans up to the cutoff; of dearer ones it says nothing
        bound = max(relaxed.bound, min(cutoff, found.bound))
        cost = evaluate(problem, known).cost_usd
        if relative_gap_of(cost, bound) <= relative_gap + 1e-6:
            return _solution(problem, known, "optimal", bound, began)
        if found.status == "time_limit":
            return _solution(problem, known, "time_limit", bound, began)
        cutoff = cost - relative_gap * abs(cost)


def _cheapest(problem: DispatchProblem, plans: Iterable[Plan | None]) -> Plan | None:
    return min((p for p in plans if p is not None), key=lambda p: evaluate(problem, p).cost_usd, default=None)


def _audited_plan(problem: DispatchProblem, model: RunModel, result: LinearResult) -> Plan | None:
    """The plan in a solution, after checking its cost against the solver's; none without a solution.

    The solver's own cost can be the higher one, since a search that stops early need not have supplied the plan's load
    in the cheapest way.
    """
    if result.values is None:
        return None
    plan = _plan(problem, model.chosen(result.values))
    cost = evaluate(problem, plan).cost_usd
    tolerance = 1e-4 * max(1.0, abs(cost))
    assert result.bound - tolerance <= cost <= result.objective + tolerance, (
        f"the plan costs {cost}, the solver says {result.bound} to {result.objective}"
    )
    return plan


def _solution(
    problem: DispatchProblem,
    plan: Plan,
    status: Literal["optimal", "time_limit", "heuristic"],
    bound_usd: float,
    began: float,
) -> Solution:
    evaluation = evaluate(problem, plan)
    gap = relative_gap_of(evaluation.cost_usd, bound_usd)
    return Solution(plan, evaluation, status, bound_usd, gap, time.perf_counter() - began)


def relative_gap_of(cost_usd: float, bound_usd: float) -> float:
    """Distance of a cost from its bound as a share of the cost [-]."""
    distance = max(cost_usd - bound_usd, 0.0)
    return distance / abs(cost_usd) if cost_usd else distance


def solve_without_waiting(
    problem: DispatchProblem, *, relative_gap: float = 2e-3, time_limit_s: float = 120.0
) -> Solution | None:
    """The cheapest plan in which a task that pauses is done; none if time runs out before the first plan."""
    began = time.perf_counter()
    model = build_run_model(problem, waiting=False)
    found = model.program.minimise(relative_gap=relative_gap, time_limit_s=time_limit_s)
    if found.status == "infeasible":
        rule = "no plan trains every tranche without a pause"
        raise ScenarioError("dispatch problem", [Problem("tasks", rule)])
    plan = _audited_plan(problem, model, found)
    return None if plan is None else _solution(problem, plan, found.status, found.bound, began)


# ----------------------------------------------------------------------------------------------- infeasible: why


def explain_infeasibility(problem: DispatchProblem, time_limit_s: float = 30.0) -> list[Problem]:
    """Why no plan exists: the import limit, modes larger than the pool, or tranches with their missing GPU-hours."""
    found = _unsupplied_slots(problem) + _impossible_tasks(problem)
    if not found and solver_available():
        found = _missing_gpu_hours(problem, time_limit_s)
    if not found:
        rule = "no plan was found, and none is proved impossible; allow more time, fewer segments or shorter slots"
        found = [Problem("tasks", rule)]
    return found


def _unsupplied_slots(problem: DispatchProblem) -> list[Problem]:
    cost = Supply.of(problem).cost_usd(problem.base_mw())
    short = np.flatnonzero(np.isinf(cost))
    if not len(short):
        return []
    rule = f"must carry the idle pool; it cannot in {len(short)} slots, first in slot {short[0]}"
    return [Problem("import_limit_mw", rule)]


def _impossible_tasks(problem: DispatchProblem) -> list[Problem]:
    """Tasks that do not finish even alone on the pool."""
    found = []
    for task in problem.tasks:
        usable = [mode for mode in task.modes if mode.gpus <= problem.gpus]
        if not usable:
            smallest = min(mode.gpus for mode in task.modes)
            rule = f"every mode needs more than the pool's {problem.gpus:,} GPUs (smallest {smallest:,})"
            found.append(Problem(f"tasks.{task.name}.modes", rule))
            continue
        fastest = min(usable, key=lambda mode: task.run_h(mode, task.segments))
        hours = (problem.slots - task.first_slot) * problem.slot_h
        lacking = task.run_h(fastest, task.segments) - hours
        if lacking > 1e-7:
            rule = (
                f"{lacking * fastest.gpus:,.0f} GPU-hours are missing: even {fastest.label}, the fastest mode that "
                f"fits the pool, needs {lacking:.2f} h more than the {hours:g} h there are; lower the tranche"
            )
            found.append(Problem(f"tasks.{task.name}.tokens", rule))
    return found


def _missing_gpu_hours(problem: DispatchProblem, time_limit_s: float) -> list[Problem]:
    """The cheapest way to give up segments: relaxed first, which is quick and already proves most cases."""
    model = build_run_model(problem, elastic=True)
    for relax in (True, False):
        result = model.program.minimise(relax=relax, time_limit_s=time_limit_s)
        if result.values is None:
            return []
        found = []
        for column, task in model.missing.items():
            missing = float(result.values[column])
            if missing > 1e-6:
                need = task.segments * task.segment_gpu_hours()
                rule = (
                    f"{'at least ' if relax else ''}{missing * task.segment_gpu_hours():,.0f} of {need:,.0f} GPU-hours "
                    f"are missing ({missing:.2f} of {task.segments} segments); lower the tranche or add GPUs"
                )
                found.append(Problem(f"tasks.{task.name}.tokens", rule))
        if found:
            return found
    return []


# -------------------------------------------------------------------------------------- dynamic programme, heuristic


def best_response(
    problem: DispatchProblem, task: Task, others_mw: Floats, others_gpus: Floats
) -> tuple[float, list[Run]] | None:
    """The cheapest runs of one task while the others stand still: a shortest path over slots and segments done.

    With the other tasks' load fixed, the cost of a run is the sum of what it adds in each slot.  For a single task
    this is the optimum.

    Args:
        problem: The problem.
        task: The task to place.
        others_mw: Facility power of everything else, by slot. [MW]
        others_gpus: GPUs held by everything else, by slot.

    Returns:
        Cost of all slots with the task's restarts and the GPUs it holds, and its runs; none if it does not fit.
    """
    supply = Supply.of(problem)
    without = supply.cost_usd(others_mw)
    if not np.isfinite(without).all():
        return None
    arcs = run_arcs(problem, task)
    added = [_added_cost(problem, supply, task, arc, others_mw, others_gpus, without) for arc in arcs]
    slots, segments = problem.slots, task.segments
    cost = np.full((slots + 1, segments + 1), math.inf)
    came_from: dict[tuple[int, int], tuple[int, Arc | None]] = {}
    cost[task.first_slot, 0] = 0.0
    for t in range(task.first_slot, slots):
        for done in np.flatnonzero(cost[t] < cost[t + 1]).tolist():
            cost[t + 1, done] = cost[t, done]
            came_from[t + 1, done] = t, None
        for arc, add in zip(arcs, added, strict=True):
            end = t + arc.slots
            if end > slots or not math.isfinite(add[t]):
                continue
            reached = cost[t, : segments + 1 - arc.segments] + add[t]
            # the tolerance keeps rounding errors from replacing an equal path
            for done in np.flatnonzero(reached < cost[end, arc.segments :] - 1e-12).tolist():
                cost[end, done + arc.segments] = reached[done]
                came_from[end, done + arc.segments] = t, arc
    if not math.isfinite(cost[slots, segments]):
        return None
    return float(cost[slots, segments] + without.sum()), _traced(task, slots, came_from)


def _added_cost(
    problem: DispatchProblem,
    supply: Supply,
    task: Task,
    arc: Arc,
    others_mw: Floats,
    others_gpus: Floats,
    without: Floats,
) -> Floats:
    """What a run adds to the cost, by start; infinite where it may not start or does not fit [USD]."""
    starts = np.array(_starts(problem, task, arc), int)
    slots = starts[:, None] + np.arange(arc.slots)
    extra = supply.cost_usd(others_mw[slots] + arc.increments_mw, slots) - without[slots]
    fits = (others_gpus[slots] + arc.mode.gpus <= problem.gpus).all(axis=1)
    added = np.full(problem.slots, math.inf)
    held_usd = problem.gpu_value_usd_per_h()[slots[fits]] @ arc.gpu_h
    added[starts[fits]] = extra[fits].sum(axis=1) + held_usd + task.restart_usd
    return added


def _traced(task: Task, slots: int, came_from: dict[tuple[int, int], tuple[int, Arc | None]]) -> list[Run]:
    """The runs on the way back from the end."""
    runs, t, done = [], slots, task.segments
    while (t, done) in came_from:
        t, arc = came_from[t, done]
        if arc is not None:
            done -= arc.segments
            runs.append(Run(task=task.name, mode=arc.mode.label, segments=arc.segments, start_slot=t))
    return runs[::-1]


def improve(problem: DispatchProblem, plan: Plan, rounds: int = 30) -> Plan:
    """Let each task in turn answer the others until nothing gets cheaper."""
    best, best_cost = plan, evaluate(problem, plan).cost_usd
    for _ in range(rounds):
        runs = list(best.runs)
        for task in problem.tasks:
            others = [run for run in runs if run.task != task.name]
            answer = best_response(problem, task, *load_and_gpus(problem, others))
            if answer is not None:
                runs = others + answer[1]
        candidate = _plan(problem, runs)
        cost = evaluate(problem, candidate).cost_usd
        if cost > best_cost - 1e-6:
            break
        best, best_cost = candidate, cost
    return best


def heuristic(problem: DispatchProblem) -> Plan | None:
    """A good plan without a solver: exact for one task, about one to three per cent above the optimum for two."""
    improved = [improve(problem, seed) for seed in _seeds(problem)]
    return min(improved, key=lambda plan: evaluate(problem, plan).cost_usd, default=None)


def _seeds(problem: DispatchProblem) -> Iterator[Plan]:
    """Plans to improve: flat ones, and each order of placing the tasks with a cap on the first one's GPUs."""
    flat = list(flat_plans(problem))
    if flat:
        yield min(flat, key=lambda candidate: (candidate.gpus, candidate.evaluation.load_mwh)).plan
        yield min(flat, key=lambda candidate: candidate.evaluation.cost_usd).plan
        yield max(flat, key=lambda candidate: candidate.evaluation.cost_usd).plan
    for order in itertools.permutations(problem.tasks):
        for share in (0.25, 0.5, 0.75, 1.0):
            runs = _placed_in_order(problem, order, share)
            if runs is not None:
                yield _plan(problem, runs)


def _placed_in_order(problem: DispatchProblem, order: Sequence[Task], first_share: float) -> list[Run] | None:
    runs: list[Run] = []
    for position, task in enumerate(order):
        load, gpus = load_and_gpus(problem, runs)
        withheld = problem.gpus * (1 - first_share) if position == 0 else 0.0
        answer = best_response(problem, task, load, gpus + withheld)
        if answer is None:
            return None
        runs += answer[1]
    return runs


class FlatPlan(NamedTuple):
    """One uninterrupted run per task from the task's first slot on."""

    plan: Plan
    gpus: int
    evaluation: Evaluation


def flat_plans(problem: DispatchProblem) -> Iterator[FlatPlan]:
    """Every plan that gives each task one mode and trains through from the start, and that meets the problem."""
    for modes in itertools.product(*(task.modes for task in problem.tasks)):
        gpus = sum(mode.gpus for mode in modes)
        runs = [
            Run(task=task.name, mode=mode.label, segments=task.segments, start_slot=task.first_slot)
            for task, mode in zip(problem.tasks, modes, strict=True)
        ]
        # the sum decides nothing where tasks do not overlap, but a flat plan is one where all run from the start
        if gpus <= problem.gpus:
            plan = _plan(problem, runs)
            if not audit(problem, plan):
                yield FlatPlan(plan, gpus, _account(problem, plan))
