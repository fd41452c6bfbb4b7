"""Where, when and in which mode should each training task run if there are several data centres?

A task may be placed at any centre and, at a checkpoint, moved to another one: the checkpoint crosses the network, which
takes time and energy, and the next run restores it there.  Every centre is an ordinary `DispatchProblem` with its own
pool, modes, prices and supply; `solve` joins them in one mixed-integer program, where each task's path runs through
(time, centre) nodes.

`evaluate` knows nothing of the optimiser: it follows every task from place to place, lists what a plan breaks, and has
each centre's part audited and priced by `dispatch.evaluate`.

Power is in MW, energy in MWh, money in USD, time in hours and slots.  The formulation is ours; the source names several
data centres as future work.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Literal, Self

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, ValidationError, model_validator

from curtailsim.dispatch.plan import Evaluation, Plan, Run, Supply, audit, run_arcs, run_slots
from curtailsim.dispatch.plan import evaluate as evaluate_centre
from curtailsim.dispatch.problem import DispatchProblem, Floats, Task
from curtailsim.dispatch.solver import add_supply, gpu_cliques, relative_gap_of
from curtailsim.linear_program import LinearProgram, LinearResult, Progress, solver_available
from curtailsim.spec import Problem, ScenarioError, Spec

SOURCE = "dispatch problem"


# ------------------------------------------------------------------------------------------------- the problem


class Centre(Spec):
    """One data centre.

    Args:
        name: Name, unique within the problem.
        problem: Its pool, prices and supply, and the tasks that have a mode there, each with its whole tranche.
    """

    name: str
    problem: DispatchProblem


class Transfer(Spec):
    """What it takes to move a task's checkpoint to any other centre.

    Args:
        task: The task.
        hours: Time on the network. [h]
        energy_mwh: Energy of the network, drawn and paid where the checkpoint comes from. [MWh]
    """

    task: str
    hours: PositiveFloat
    energy_mwh: NonNegativeFloat = 0.0

    def increments_mw(self, slot_h: float) -> Floats:
        """Mean power in every slot of a transfer; energy is exact, also in the last, partial slot [MW]."""
        slots = max(math.ceil(self.hours / slot_h - 1e-7), 1)
        elapsed_h = np.minimum(np.arange(slots + 1) * slot_h, self.hours)
        return np.diff(elapsed_h) * (self.energy_mwh / self.hours) / slot_h


class CentresProblem(Spec):
    """Several data centres and the tasks they share.

    Args:
        centres: The data centres, on the same slots.
        transfers: One for every task.
        homes: Where a task's checkpoint lies at the start; a task without a home starts wherever it is placed.
    """

    centres: tuple[Centre, ...] = Field(min_length=1)
    transfers: tuple[Transfer, ...]
    homes: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        first = self.centres[0].problem
        for centre in self.centres:
            if (centre.problem.slot_h, centre.problem.slots) != (first.slot_h, first.slots):
                raise ValueError(f"centre {centre.name} must have the slots of {self.centres[0].name}")
        for transfer in self.transfers:
            here = [task for centre in self.centres for task in centre.problem.tasks if task.name == transfer.task]
            if len({(task.tokens, task.segments) for task in here}) != 1:
                raise ValueError(f"task {transfer.task} must be known, with the same tranche at every centre")
        return self

    @property
    def slots(self) -> int:
        """Slots in the horizon."""
        return self.centres[0].problem.slots

    @property
    def slot_h(self) -> float:
        """Length of a slot. [h]"""
        return self.centres[0].problem.slot_h

    def centre(self, name: str) -> Centre:
        """The centre of that name."""
        return next(centre for centre in self.centres if centre.name == name)

    def transfer(self, task: str) -> Transfer:
        """What it takes to move a task."""
        return next(transfer for transfer in self.transfers if transfer.task == task)

    def places(self, task: str) -> dict[str, Task]:
        """The task as each centre that has a mode for it knows it."""
        return {c.name: t for c in self.centres for t in c.problem.tasks if t.name == task}

    def segments(self, task: str) -> int:
        """Segments of a task's tranche."""
        return next(iter(self.places(task).values())).segments


# -------------------------------------------------------------------------------------------------- plan, audit


class PlacedRun(Run):
    """Segments of one task trained in one mode at one centre without pause.

    Args:
        site: The centre's name.
    """

    site: str

    def unplaced(self) -> Run:
        """The same run as its centre knows it."""
        return Run(task=self.task, mode=self.mode, segments=self.segments, start_slot=self.start_slot)


class Move(Spec):
    """A checkpoint on its way to another centre.

    Args:
        task: The task.
        origin: Centre it leaves.
        destination: Centre it goes to.
        start_slot: Slot at whose start the transfer begins.
    """

    task: str
    origin: str
    destination: str
    start_slot: int = Field(ge=0)


class CentresPlan(Spec):
    """What runs where and when, and what is moved.

    Args:
        slot_h: Length of the slots that `start_slot` counts. [h]
        runs: Runs by start.
        moves: Transfers by start.
    """

    slot_h: PositiveFloat
    runs: tuple[PlacedRun, ...]
    moves: tuple[Move, ...] = ()

    def to_json(self) -> str:
        """The plan as JSON text."""
        return self.model_dump_json(indent=2) + "\n"

    @classmethod
    def from_json(cls, text: str, source: str = "plan") -> CentresPlan:
        """The plan in a JSON text; mistakes are listed under the name of the source."""
        try:
            return cls.model_validate_json(text)
        except ValidationError as error:
            problems = [Problem(".".join(map(str, e["loc"])), e["msg"]) for e in error.errors()]
            raise ScenarioError(source, problems) from error


@dataclass(frozen=True)
class Accounts:
    """A plan's energy and money, centre by centre.

    Attributes:
        by_centre: Each centre's, the transfers that leave it included.
    """

    by_centre: dict[str, Evaluation]

    @property
    def cost_usd(self) -> float:
        """Energy, curtailment and restarts of all centres. [USD]"""
        return math.fsum(found.cost_usd for found in self.by_centre.values())


def audit_plan(problem: CentresProblem, plan: CentresPlan) -> list[Problem]:
    """Everything that keeps a plan from being an answer to the problem: places, overlap, tranche, GPUs, import."""
    found = _unreadable(problem, plan)
    if not found:
        for transfer in problem.transfers:
            found += _path_mistakes(problem, plan, transfer.task)
    if found:
        return found
    for centre in problem.centres:
        mistakes = audit(*part_of(problem, plan, centre))
        found += [Problem(f"sites.{centre.name}.{mistake.path}", mistake.rule) for mistake in mistakes]
    return found


def evaluate(problem: CentresProblem, plan: CentresPlan) -> Accounts:
    """Audit a plan and compute its energy and money.

    Raises:
        ScenarioError: The plan breaks a constraint; all are listed.
    """
    problems = audit_plan(problem, plan)
    if problems:
        raise ScenarioError("plan", problems)
    return Accounts({c.name: evaluate_centre(*part_of(problem, plan, c)) for c in problem.centres})


def part_of(problem: CentresProblem, plan: CentresPlan, centre: Centre) -> tuple[DispatchProblem, Plan]:
    """One centre's part of a plan as a problem and a plan of its own; transfers that leave it are committed power."""
    runs = [run.unplaced() for run in plan.runs if run.site == centre.name]
    tasks = []
    for task in centre.problem.tasks:
        here = sum(run.segments for run in runs if run.task == task.name)
        if here:
            tokens = task.tokens * here / task.segments
            tasks.append(task.model_copy(update={"segments": here, "tokens": tokens}))
    sent = np.asarray(centre.problem.committed_mw or [0.0] * problem.slots, float)
    for move in plan.moves:
        if move.origin == centre.name:
            power = problem.transfer(move.task).increments_mw(problem.slot_h)
            sent[move.start_slot : move.start_slot + len(power)] += power
    update = {"tasks": tuple(tasks), "committed_mw": tuple(sent.tolist())}
    return centre.problem.model_copy(update=update), Plan(slot_h=plan.slot_h, runs=tuple(runs))


def _unreadable(problem: CentresProblem, plan: CentresPlan) -> list[Problem]:
    found = []
    if not math.isclose(plan.slot_h, problem.slot_h):
        found.append(Problem("slot_h", f"must be that of the problem, {problem.slot_h:g} (got {plan.slot_h:g})"))
    tasks, centres = {t.task for t in problem.transfers}, [c.name for c in problem.centres]
    for i, run in enumerate(plan.runs):
        if run.task not in tasks:
            found.append(Problem(f"runs[{i}].task", f"{run.task!r} is unknown ({', '.join(sorted(tasks))})"))
        elif run.site not in centres:
            found.append(Problem(f"runs[{i}].site", f"{run.site!r} is unknown ({', '.join(centres)})"))
        else:
            task = problem.places(run.task).get(run.site)
            if task is None or run.mode not in {mode.label for mode in task.modes}:
                rule = f"{run.mode!r} is not a mode of task {run.task!r} at {run.site}"
                found.append(Problem(f"runs[{i}].mode", rule))
    for i, move in enumerate(plan.moves):
        if move.task not in tasks:
            found.append(Problem(f"moves[{i}].task", f"{move.task!r} is unknown ({', '.join(sorted(tasks))})"))
        for key, name in (("origin", move.origin), ("destination", move.destination)):
            if name not in centres:
                found.append(Problem(f"moves[{i}].{key}", f"{name!r} is unknown ({', '.join(centres)})"))
        if move.origin == move.destination:
            found.append(Problem(f"moves[{i}].destination", f"must not be the origin, {move.origin}"))
    return found


def _path_mistakes(problem: CentresProblem, plan: CentresPlan, name: str) -> list[Problem]:
    """Follow one task: it must be free and present wherever it runs or leaves, and train after every move."""
    found: list[Problem] = []
    steps: list[tuple[str, PlacedRun | Move]] = [(f"runs[{i}]", run) for i, run in enumerate(plan.runs)]
    steps += [(f"moves[{i}]", move) for i, move in enumerate(plan.moves)]
    place, free_from, trained, moved = problem.homes.get(name), 0, 0, ""
    for path, step in sorted(steps, key=lambda item: item[1].start_slot):
        if step.task != name:
            continue
        here = step.origin if isinstance(step, Move) else step.site
        if step.start_slot < free_from:
            rule = f"must be at least {free_from}, when the task is free (got {step.start_slot})"
            found.append(Problem(f"{path}.start_slot", rule))
        if place is not None and here != place:
            found.append(Problem(path, f"is at {here}, but the task is at {place}"))
        if isinstance(step, Move):
            if moved:
                found.append(Problem(path, f"moves the task on without training after {moved}"))
            length = len(problem.transfer(name).increments_mw(problem.slot_h))
            place, moved = step.destination, path
        else:
            task = problem.places(name)[step.site]
            length = run_slots(task, task.mode(step.mode), step.segments, problem.slot_h)
            place, moved, trained = here, "", trained + step.segments
        free_from = step.start_slot + length
        if free_from > problem.slots:
            found.append(Problem(f"{path}.start_slot", f"ends at slot {free_from}, the horizon at {problem.slots}"))
    if moved:
        found.append(Problem(moved, "moves the task without training after it"))
    if trained != problem.segments(name):
        found.append(Problem(f"tasks.{name}", f"must train {problem.segments(name)} segments (got {trained})"))
    return found


# ------------------------------------------------------------------------------------------ the exact formulation


@dataclass
class CentresModel:
    """The mixed-integer program over runs and moves, with the meaning of its columns."""

    program: LinearProgram = field(default_factory=LinearProgram)
    runs: dict[int, PlacedRun] = field(default_factory=dict)
    moves: dict[int, Move] = field(default_factory=dict)
    missing: dict[int, str] = field(default_factory=dict)

    def plan(self, problem: CentresProblem, values: Floats) -> CentresPlan:
        """The plan that a solution has chosen."""
        runs = [run for column, run in self.runs.items() if values[column] > 0.5]
        moves = [move for column, move in self.moves.items() if values[column] > 0.5]
        runs.sort(key=lambda run: (run.start_slot, run.task))
        moves.sort(key=lambda move: (move.start_slot, move.task))
        return CentresPlan(slot_h=problem.slot_h, runs=tuple(runs), moves=tuple(moves))


@dataclass(frozen=True)
class _Nodes:
    """Rows of one task at one centre, by border between slots.

    At `settled` a checkpoint was written here (or the task is at home), so it may wait, train or leave; at `arrived`
    it may only wait or train, which forbids moves that serve to burn energy; every run starts from `launch`.
    """

    settled: list[int]
    arrived: list[int]
    launch: list[int]


@dataclass(frozen=True)
class _CentreRows:
    """Rows of one centre, by slot."""

    gpus: list[int]
    balance: list[int]
    cliques: list[tuple[set[tuple[str, str]], list[int]]]


def build_model(problem: CentresProblem, *, moving: bool = True, elastic: bool = False) -> CentresModel:
    """The problem as a mixed-integer program.

    One binary per run, centre and start, one per move and start, a path through (border, centre) nodes per task:

        path      Σ leaving a node = Σ entering it; one unit from the task's home, or any centre, to the end
        tranche   Σ segments of runs of j at all centres = segments of j                          every task
        GPUs      Σ gpus of runs at s covering t <= free GPUs of s                                every centre, slot
        balance   import + renewable - Σ increments of runs at s - Σ transfers leaving s = base   every centre, slot
        cliques   as in `dispatch.build_run_model`                                                every centre

    Args:
        problem: The problem.
        moving: Tasks may be moved; otherwise each stays at its home or, without one, where it is placed.
        elastic: Allow segments to be missing and minimise their GPU-hours in place of the cost.
    """
    model = CentresModel()
    rows = {centre.name: _centre_rows(model.program, centre) for centre in problem.centres}
    for transfer in problem.transfers:
        _add_task(model, problem, rows, transfer, moving, elastic)
    for centre in problem.centres:
        add_supply(centre.problem, model.program, rows[centre.name].balance, free=elastic)
    return model


def _centre_rows(program: LinearProgram, centre: Centre) -> _CentreRows:
    own, slots = centre.problem, centre.problem.slots
    base = list(own.base_mw())
    gpus, balance = program.rows([-math.inf] * slots, list(own.free_gpus())), program.rows(base, base)
    cliques = []
    for clique in gpu_cliques(own):
        held = {(t.name, m.label) for j, t in enumerate(own.tasks) for m in t.modes if clique.holds(j, m.gpus)}
        cliques.append((held, program.rows([-math.inf] * slots, [1.0] * slots)))
    return _CentreRows(gpus, balance, cliques)


def _add_task(
    model: CentresModel,
    problem: CentresProblem,
    rows: dict[str, _CentreRows],
    transfer: Transfer,
    moving: bool,
    elastic: bool,
) -> None:
    """One task's path, runs and moves."""
    program, name, slots = model.program, transfer.task, problem.slots
    tasks, home = problem.places(name), problem.homes.get(name)
    zero = [0.0] * (slots + 1)
    sink = program.row(-1.0, -1.0)
    segments = problem.segments(name)
    tranche = program.row(segments, segments)
    # a task may also lie at a home that has no mode for it
    there = list(tasks) + ([home] if home is not None and home not in tasks else [])
    nodes = {}
    for place in there:
        flow = [1.0 if home == place else 0.0, *zero[1:]]
        nodes[place] = _Nodes(program.rows(flow, flow), program.rows(zero, zero), program.rows(zero, zero))
    if home is None:
        source = program.row(1.0, 1.0)
        for place in there:
            program.column(0, 0, 1, [(source, 1.0), (nodes[place].arrived[0], -1.0)])
    for place, own in nodes.items():
        _add_waiting(program, own, sink, elastic)
        if place in tasks:
            centre = problem.centre(place)
            _add_runs(model, centre, tasks[place], own, rows[place], tranche, elastic)
    for origin in there if moving else ():
        for destination in tasks:
            if origin != destination:
                _add_moves(model, problem, transfer, (origin, destination), nodes, rows[origin].balance)
    if elastic:
        cost = min(task.segment_gpu_hours() for task in tasks.values())
        model.missing[program.column(cost, 0, segments, [(tranche, 1.0)], integer=True)] = name


def _add_waiting(program: LinearProgram, own: _Nodes, sink: int, elastic: bool) -> None:
    for line in (own.settled, own.arrived):
        for t in range(len(line) - 1):
            program.column(0, 0, 1, [(line[t], 1.0), (line[t + 1], -1.0)])
            program.column(0, 0, 1, [(line[t], 1.0), (own.launch[t], -1.0)])
    for line in (own.settled, own.arrived) if elastic else (own.settled,):
        program.column(0, 0, 1, [(line[-1], 1.0), (sink, -1.0)])


def _add_runs(
    model: CentresModel, centre: Centre, task: Task, own: _Nodes, rows: _CentreRows, tranche: int, elastic: bool
) -> None:
    problem = centre.problem
    for arc in run_arcs(problem, task):
        hit = [clique for held, clique in rows.cliques if (task.name, arc.mode.label) in held]
        for t in range(0, problem.slots - arc.slots + 1, problem.start_every_slots):
            covered = range(t, t + arc.slots)
            entries = [(own.launch[t], 1.0), (own.settled[t + arc.slots], -1.0), (tranche, float(arc.segments))]
            entries += [(rows.gpus[i], float(arc.mode.gpus)) for i in covered]
            entries += [(rows.balance[i], -mw) for i, mw in zip(covered, arc.increments_mw.tolist(), strict=True)]
            entries += [(clique[i], 1.0) for clique in hit for i in covered]
            column = model.program.column(0.0 if elastic else task.restart_usd, 0, 1, entries, integer=True)
            model.runs[column] = PlacedRun(
                task=task.name, mode=arc.mode.label, segments=arc.segments, start_slot=t, site=centre.name
            )


def _add_moves(
    model: CentresModel,
    problem: CentresProblem,
    transfer: Transfer,
    way: tuple[str, str],
    nodes: dict[str, _Nodes],
    balance: list[int],
) -> None:
    power = transfer.increments_mw(problem.slot_h).tolist()
    origin, destination = way
    for t in range(problem.slots - len(power) + 1):
        entries = [(nodes[origin].settled[t], 1.0), (nodes[destination].arrived[t + len(power)], -1.0)]
        entries += [(balance[t + i], -mw) for i, mw in enumerate(power)]
        column = model.program.column(0, 0, 1, entries, integer=True)
        model.moves[column] = Move(task=transfer.task, origin=origin, destination=destination, start_slot=t)


# ------------------------------------------------------------------------------------------------------- solving


@dataclass(frozen=True)
class CentresSolution:
    """A plan, audited, and how good the solver knows it to be.

    Attributes:
        plan: The plan.
        accounts: Its energy and money, from `evaluate`.
        status: `optimal` within the asked gap, or `time_limit`.
        bound_usd: No plan is cheaper. [USD]
        relative_gap: Distance of the plan from the bound. [-]
        time_s: Wall time of the search. [s]
    """

    plan: CentresPlan
    accounts: Accounts
    status: Literal["optimal", "time_limit"]
    bound_usd: float
    relative_gap: float
    time_s: float


def solve(
    problem: CentresProblem,
    *,
    moving: bool = True,
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
    progress: Callable[[Progress], None] | None = None,
) -> CentresSolution:
    """The cheapest plan, within a gap.

    Args:
        problem: The problem.
        moving: Tasks may be moved; otherwise each stays at its home or, without one, where it is placed.
        relative_gap: Stop when the plan is proved to be within this share of the optimum. [-]
        time_limit_s: Stop after this wall time. [s]
        progress: Called with the state of the search.

    Raises:
        ScenarioError: No plan exists (with what is missing), none was found in time, or there is no solver.
    """
    if not solver_available():
        rule = "several centres need HiGHS: pip install 'curtailsim[dispatch]'"
        raise ScenarioError(SOURCE, [Problem("dispatch", rule)])
    began = time.perf_counter()
    model = build_model(problem, moving=moving)
    found = model.program.minimise(relative_gap=relative_gap, time_limit_s=time_limit_s, progress=progress)
    if found.status == "infeasible":
        raise ScenarioError(SOURCE, explain_infeasibility(problem, moving=moving, time_limit_s=time_limit_s))
    if found.values is None:
        rule = f"must be longer: no plan was found within {time_limit_s:g} s, and none is proved impossible"
        raise ScenarioError(SOURCE, [Problem("time_limit_s", rule)])
    plan = model.plan(problem, found.values)
    accounts = evaluate(problem, plan)
    _check_cost(accounts.cost_usd, found)
    gap = relative_gap_of(accounts.cost_usd, found.bound)
    status: Literal["optimal", "time_limit"] = "optimal" if found.status == "optimal" else "time_limit"
    return CentresSolution(plan, accounts, status, found.bound, gap, time.perf_counter() - began)


def _check_cost(cost: float, found: LinearResult) -> None:
    """The auditor's cost lies between the solver's bound and its objective."""
    tolerance = 1e-4 * max(1.0, abs(cost))
    assert found.bound - tolerance <= cost <= found.objective + tolerance, (found.bound, cost, found.objective)


def explain_infeasibility(problem: CentresProblem, *, moving: bool = True, time_limit_s: float = 30.0) -> list[Problem]:
    """Why no plan exists: an import limit, or tranches with the GPU-hours that all centres together lack."""
    found = [problem for centre in problem.centres for problem in _unsupplied(centre)]
    if not found:
        model = build_model(problem, moving=moving, elastic=True)
        result = model.program.minimise(time_limit_s=time_limit_s)
        if result.values is not None:
            found = list(_missing(problem, model, result.values))
    if not found:
        rule = "no plan was found, and none is proved impossible; allow more time, fewer segments or shorter slots"
        found = [Problem("tasks", rule)]
    return found


def _unsupplied(centre: Centre) -> Iterable[Problem]:
    short = np.flatnonzero(np.isinf(Supply.of(centre.problem).cost_usd(centre.problem.base_mw())))
    if len(short):
        rule = f"must carry the idle pool; it cannot in {len(short)} slots, first in slot {short[0]}"
        yield Problem(f"sites.{centre.name}.import_limit_mw", rule)


def _missing(problem: CentresProblem, model: CentresModel, values: Floats) -> Iterable[Problem]:
    for column, name in model.missing.items():
        lacking, segments = round(float(values[column])), problem.segments(name)
        if lacking:
            each = min(task.segment_gpu_hours() for task in problem.places(name).values())
            rule = (
                f"{lacking * each:,.0f} of {segments * each:,.0f} GPU-hours are missing at all centres together "
                f"({lacking} of {segments} segments); lower the tranche, add GPUs or raise import limits"
            )
            yield Problem(f"tasks.{name}.tokens", rule)
