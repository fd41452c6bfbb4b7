"""What is a plan of `solver.solve` worth, and how much do simpler views of training overstate or miss?

Two kinds of comparison.  *Plans* that a simpler operator could carry out cost at least as much as the optimum: the
flat plans `fixed` and `fixed_best`, `pause_only` (one mode per task) and `mode_only` (no waiting).  *Relaxations*
forget that training stops only at checkpoints, and promise savings that cannot be had: `hull`, `anytime`, `delay` and
`linear`.

    hull <= anytime <= optimum <= pause_only <= fixed_best <= fixed,   optimum <= mode_only,   hull <= delay

A saving means nothing without its reference: throughout, `fixed` is the reference of a cost cut.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal

from curtailsim.dispatch.heuristic import FlatPlan, flat_plans
from curtailsim.dispatch.plan import ExpectedSupply, Plan, evaluate, run_arcs
from curtailsim.dispatch.problem import DispatchProblem, Mode, Task
from curtailsim.dispatch.solver import (
    Solution,
    add_supply,
    build_run_model,
    explain_infeasibility,
    relative_gap_of,
    solve,
    solve_without_waiting,
)
from curtailsim.linear_program import LinearProgram
from curtailsim.spec import Problem, ScenarioError

# ----------------------------------------------------------------------------- plans a simpler operator could run


def fixed(problem: DispatchProblem) -> Plan:
    """Flat training with the fewest GPUs, then the least energy: the reference of every cost cut."""
    return min(_flat(problem), key=lambda flat: (flat.gpus, flat.evaluation.load_mwh)).plan


def fixed_best(problem: DispatchProblem) -> Plan:
    """Flat training at the least cost."""
    return min(_flat(problem), key=lambda flat: flat.evaluation.cost_usd).plan


def _flat(problem: DispatchProblem) -> list[FlatPlan]:
    found = list(flat_plans(problem))
    if not found:
        rule = "no choice of one mode per task trains every tranche from the start without a pause"
        raise ScenarioError("dispatch problem", [Problem("tasks", rule)])
    return found


def pause_only(problem: DispatchProblem, *, relative_gap: float = 2e-3, time_limit_s: float = 120.0) -> Solution:
    """The cheapest plan in which a task may pause at checkpoints but keeps one mode.

    One program with a binary per mode stalls.  The combinations of modes are solved one by one instead, in the order of
    their relaxed bound, until that bound passes the best plan.

    Args:
        problem: The problem.
        relative_gap: Gap of each combination and of the whole. [-]
        time_limit_s: Time limit of each combination. [s]
    """
    best: Solution | None = None
    bound, spent_s, timed_out = math.inf, 0.0, False
    for relaxed_usd, labels in _mode_combinations_by_bound(problem):
        if best is not None and relaxed_usd >= best.evaluation.cost_usd * (1 - relative_gap):
            bound = min(bound, relaxed_usd)
            break
        restricted = problem.with_modes(labels)
        try:
            found = solve(restricted, relative_gap=relative_gap, time_limit_s=time_limit_s)
        except ScenarioError:
            continue  # the relaxed bound let it pass, whole segments do not
        spent_s += found.time_s
        timed_out = timed_out or found.status != "optimal"
        bound = min(bound, found.bound_usd)
        if best is None or found.evaluation.cost_usd < best.evaluation.cost_usd:
            best = found
    if best is None:
        rule = "no choice of one mode per task trains every tranche, even with pauses"
        raise ScenarioError("dispatch problem", [Problem("tasks", rule)])
    cost = best.evaluation.cost_usd
    bound = min(bound, cost)
    status: Literal["optimal", "time_limit"] = "time_limit" if timed_out else "optimal"
    return Solution(best.plan, evaluate(problem, best.plan), status, bound, relative_gap_of(cost, bound), spent_s)


def _mode_combinations_by_bound(problem: DispatchProblem) -> list[tuple[float, tuple[str, ...]]]:
    """Combinations of one mode per task that the relaxed program accepts, cheapest first."""
    usable = [dict.fromkeys(arc.mode.label for arc in run_arcs(problem, task)) for task in problem.tasks]
    bounds = []
    for labels in itertools.product(*usable):
        result = build_run_model(problem.with_modes(labels)).program.minimise(relax=True)
        if result.values is not None:
            bounds.append((result.objective, labels))
    return sorted(bounds)


def mode_only(problem: DispatchProblem, *, relative_gap: float = 2e-3, time_limit_s: float = 120.0) -> Solution:
    """The cheapest plan in which tasks change modes at checkpoints but never wait before they are done.

    Slots of an hour suit it: on half hours the solver may find no plan in minutes.
    """
    found = solve_without_waiting(problem, relative_gap=relative_gap, time_limit_s=time_limit_s)
    if found is None:
        rule = f"no plan without waiting was found in {time_limit_s:g} s; allow more time or longer slots"
        raise ScenarioError("dispatch problem", [Problem("slot_h", rule)])
    return found


# --------------------------------------------------------------------------------- relaxations: training at will


@dataclass(frozen=True)
class Relaxation:
    """A saving that training cannot deliver.

    Args:
        name: Which view of training.
        cost_usd: What it promises. [USD]
        bound_usd: No promise of this view is cheaper. [USD]
        curtailed_mwh: Renewable energy it leaves unused. [MWh]
        load_mw: Facility power by slot. [MW]
    """

    name: str
    cost_usd: float
    bound_usd: float
    curtailed_mwh: float
    load_mw: tuple[float, ...]


def hull(problem: DispatchProblem) -> Relaxation:
    """Any mixture of modes in any slot, without restarts or checkpoints: a valid lower bound."""
    return _relaxation("hull", problem, *_slot_program(problem, _hull_columns))


def anytime(problem: DispatchProblem, *, relative_gap: float = 2e-3, time_limit_s: float = 120.0) -> Relaxation:
    """One mode per task and slot, changed at will at every slot's border: a valid lower bound by `bound_usd`."""
    program, balance = _slot_program(problem, _anytime_columns)
    return _relaxation("anytime", problem, program, balance, relative_gap, time_limit_s)


def delay(problem: DispatchProblem, *, relative_gap: float = 2e-3, time_limit_s: float = 120.0) -> Relaxation:
    """One mode per task for the day, on and off at will: training as a generic delay-tolerant job.

    It knows no checkpoints but no second mode either, so it is neither above nor below the optimum by rule.
    """
    program, balance = _slot_program(problem, _delay_columns)
    return _relaxation("delay", problem, program, balance, relative_gap, time_limit_s)


def linear(problem: DispatchProblem) -> Relaxation:
    """Continuously adjustable power: the energy of the fixed modes at any power the pool can draw.  Not a bound."""
    program = LinearProgram()
    base = list(problem.base_mw())
    balance = program.rows(base, base)
    modes = _modes_of(problem, fixed(problem))
    energy_mwh = sum(
        task.tokens / (3600 * mode.tokens_per_s) * mode.training_increment_mw
        for task, mode in zip(problem.tasks, modes, strict=True)
    )
    most_mw = problem.gpus * max(mode.training_increment_mw / mode.gpus for mode in modes)
    energy = program.row(energy_mwh, energy_mwh)
    gpus_per_mw = problem.gpus / most_mw
    for row, held_usd in zip(balance, problem.slot_h * problem.gpu_value_usd_per_h(), strict=True):
        program.column(gpus_per_mw * held_usd, 0, most_mw, [(energy, problem.slot_h), (row, -1.0)])
    return _relaxation("linear", problem, program, balance)


def _modes_of(problem: DispatchProblem, flat: Plan) -> list[Mode]:
    """The one mode of each task in a flat plan."""
    return [task.mode(flat.of(task.name)[0].mode) for task in problem.tasks]


@dataclass(frozen=True)
class _TaskRows:
    """Rows that the columns of one task refer to."""

    tokens: int  # in hundredths of the tranche, which keeps the coefficients near one
    one_mode: list[int]
    gpus: list[int]
    balance: list[int]


_AddColumns = Callable[[LinearProgram, DispatchProblem, Task, _TaskRows], None]


def _slot_program(problem: DispatchProblem, add_columns: _AddColumns) -> tuple[LinearProgram, list[int]]:
    """A program over slots rather than runs; returns it with its balance rows.

    The tranche is a minimum: where curtailment is charged, spare computing pays, and an equality would push this
    bound above the optimum.
    """
    program = LinearProgram()
    slots = problem.slots
    gpus = program.rows([-math.inf] * slots, list(problem.free_gpus()))
    base = list(problem.base_mw())
    balance = program.rows(base, base)
    for task in problem.tasks:
        tokens = program.row(100.0, math.inf)
        one_mode = program.rows([-math.inf] * slots, [1.0] * slots)
        add_columns(program, problem, task, _TaskRows(tokens, one_mode, gpus, balance))
    return program, balance


def _usable(problem: DispatchProblem, task: Task) -> Iterator[Mode]:
    return (mode for mode in task.modes if mode.gpus <= problem.gpus)


def _work(problem: DispatchProblem, task: Task, mode: Mode, rows: _TaskRows, slot: int) -> list[tuple[int, float]]:
    """Entries of a mode that trains through a slot: its tokens and its power."""
    hundredths = 100 * mode.tokens_per_s * 3600 * problem.slot_h / task.tokens
    return [(rows.tokens, hundredths), (rows.balance[slot], -mode.training_increment_mw)]


def _held_usd(problem: DispatchProblem, mode: Mode, slot: int) -> float:
    """What others would have paid for the GPUs of a mode that trains through a slot."""
    return mode.gpus * problem.slot_h * float(problem.gpu_value_usd_per_h()[slot])


def _hull_columns(program: LinearProgram, problem: DispatchProblem, task: Task, rows: _TaskRows) -> None:
    for mode in _usable(problem, task):
        for t in range(task.first_slot, problem.slots):
            held = [(rows.one_mode[t], 1.0), (rows.gpus[t], float(mode.gpus))]
            program.column(_held_usd(problem, mode, t), 0, 1, _work(problem, task, mode, rows, t) + held)


def _anytime_columns(program: LinearProgram, problem: DispatchProblem, task: Task, rows: _TaskRows) -> None:
    for mode in _usable(problem, task):
        for t in range(task.first_slot, problem.slots):
            on = program.row(-math.inf, 0)
            entries = [*_work(problem, task, mode, rows, t), (on, 1.0)]
            program.column(_held_usd(problem, mode, t), 0, 1, entries)  # a run may hold its last slot in part
            held = [(rows.one_mode[t], 1.0), (rows.gpus[t], float(mode.gpus))]
            program.column(0, 0, 1, [*held, (on, -1.0)], integer=True)


def _delay_columns(program: LinearProgram, problem: DispatchProblem, task: Task, rows: _TaskRows) -> None:
    picked = program.row(1, 1)
    for mode in _usable(problem, task):
        on = program.rows([-math.inf] * problem.slots, [0.0] * problem.slots)
        program.column(0, 0, 1, [(picked, 1.0), *((row, -1.0) for row in on)], integer=True)
        for t in range(task.first_slot, problem.slots):
            held = [(rows.one_mode[t], 1.0), (rows.gpus[t], float(mode.gpus)), (on[t], 1.0)]
            program.column(_held_usd(problem, mode, t), 0, 1, _work(problem, task, mode, rows, t) + held)


def _relaxation(
    name: str,
    problem: DispatchProblem,
    program: LinearProgram,
    balance: list[int],
    relative_gap: float = 2e-3,
    time_limit_s: float = 120.0,
) -> Relaxation:
    """Add the supply side, solve, and read the load back from it."""
    first = program.size[1]
    add_supply(problem, program, balance)
    result = program.minimise(relative_gap=relative_gap, time_limit_s=time_limit_s)
    if result.status == "infeasible":
        raise ScenarioError("dispatch problem", explain_infeasibility(problem))
    if result.values is None:
        rule = f"the {name} comparison found no answer in {time_limit_s:g} s"
        raise ScenarioError("dispatch problem", [Problem("tasks", rule)])
    load = result.values[first:].reshape(problem.slots, -1).sum(axis=1)
    curtailed = ExpectedSupply.of(problem).curtailed_mwh(load)
    return Relaxation(name, result.objective, result.bound, curtailed, tuple(load.tolist()))
