"""Which plan of a pool costs least?  The dispatch problem as a mixed-integer program over runs, solved exactly."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

import numpy as np

from curtailsim.dispatch.heuristic import heuristic
from curtailsim.dispatch.plan import (
    Evaluation,
    ExpectedSupply,
    Plan,
    Run,
    evaluate,
    held_gpu_hours,
    plan_of,
    run_arcs,
    run_starts,
)
from curtailsim.dispatch.problem import DispatchProblem, Floats, Task
from curtailsim.linear_program import LinearProgram, LinearResult, Progress, solver_available
from curtailsim.spec import Problem, ScenarioError

SOLVER_GAP_USD = 1e-6
"""HiGHS takes a plan for optimal whose cost is so close to the bound (its option mip_abs_gap). [USD]"""


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
            for t in run_starts(problem, task, arc):
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
    """Columns for the supply of every slot, at its expected cost or, if `free`, at none.

    The cost of what is curtailed and of GPUs held whatever is planned belongs to no column: it is in the offset.

    What a load costs in one outcome has two pieces, import and renewable power, the cheaper one first.  The mean over
    outcomes is a convex function too, with one more piece than there are outcomes, so that columns for its pieces
    supply every outcome in its cheapest way without rows of its own.
    """
    hours = 0.0 if free else problem.slot_h
    pieces = expected_supply_pieces(problem)
    for row, widths, slopes in zip(balance, pieces.width_mw, pieces.usd_per_mwh, strict=True):
        for width, slope in zip(widths.tolist(), slopes.tolist(), strict=True):
            program.column(hours * slope, 0, width, [(row, 1.0)])
    program.offset += hours * problem.curtailment_usd_per_mwh * pieces.available_mw
    if not free:
        program.offset += float(problem.gpu_value_usd_per_h() @ held_gpu_hours(problem, ()))


class SupplyPieces(NamedTuple):
    """The expected cost of supply in pieces of constant marginal cost, dearest first.

    `width_mw` and `usd_per_mwh` have a row per slot and a column per piece; `available_mw` is the expected renewable
    power of all slots together.
    """

    width_mw: Floats
    usd_per_mwh: Floats
    available_mw: float


def expected_supply_pieces(problem: DispatchProblem) -> SupplyPieces:
    """The merit order of every slot, over all outcomes."""
    renewable_cost = problem.renewable_usd_per_mwh - problem.curtailment_usd_per_mwh
    parts = ExpectedSupply.of(problem).parts
    first_mw, first_cost, second_cost, most_mw = (np.zeros((len(parts), problem.slots)) for _ in range(4))
    for s, (share, supply) in enumerate(parts):
        renewable_first = renewable_cost <= supply.price
        first_mw[s] = np.where(renewable_first, supply.renewable_mw, supply.import_limit_mw)
        first_cost[s] = share * np.where(renewable_first, renewable_cost, supply.price)
        second_cost[s] = share * np.where(renewable_first, supply.price, renewable_cost)
        most_mw[s] = supply.renewable_mw + supply.import_limit_mw
    most = most_mw.min(axis=0)
    edges = np.vstack([np.zeros(problem.slots), np.minimum(np.sort(first_mw, axis=0), most), most])
    with np.errstate(invalid="ignore"):
        widths = np.nan_to_num(np.diff(edges, axis=0), nan=0.0, posinf=math.inf)  # from infinity to infinity: nothing
    rank = first_mw.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable")
    slopes = np.array([np.where(rank < k, second_cost, first_cost).sum(axis=0) for k in range(len(parts) + 1)])
    available = math.fsum(share * float(supply.renewable_mw.sum()) for share, supply in parts)
    return SupplyPieces(widths[::-1].T, slopes[::-1].T, available)


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
        is_proved = relative_gap_of(cost, bound) <= relative_gap + 1e-6
        if not is_proved and found.status == "time_limit":
            return _solution(problem, known, "time_limit", bound, began)
        cheap_enough = cost - relative_gap * abs(cost)
        # a search that was wide enough would find the same again: what is left is the solver's rounding
        if is_proved or cheap_enough <= cutoff:
            return _solution(problem, known, "optimal", bound, began)
        cutoff = cheap_enough


def _cheapest(problem: DispatchProblem, plans: Iterable[Plan | None]) -> Plan | None:
    return min((p for p in plans if p is not None), key=lambda p: evaluate(problem, p).cost_usd, default=None)


def _audited_plan(problem: DispatchProblem, model: RunModel, result: LinearResult) -> Plan | None:
    """The plan in a solution, after checking its cost against the solver's; none without a solution.

    The solver's own cost can be the higher one, since a search that stops early need not have supplied the plan's load
    in the cheapest way.
    """
    if result.values is None:
        return None
    plan = plan_of(problem, model.chosen(result.values))
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
    """Distance of a cost from its bound as a share of the cost; zero where it is below the solver's own [-]."""
    distance = cost_usd - bound_usd
    return 0.0 if distance <= SOLVER_GAP_USD else distance / max(abs(cost_usd), SOLVER_GAP_USD)


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
    supply = ExpectedSupply.of(problem)
    cost = supply.cost_usd(problem.base_mw())
    short = np.flatnonzero(np.isinf(cost))
    if not len(short):
        return []
    needed = max(float((problem.base_mw() - own.renewable_mw).max()) for _, own in supply.parts)
    rule = (
        f"must carry the idle pool; it cannot in {len(short)} slots, first in slot {short[0]}; {needed:.4g} MW would do"
    )
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
    for relax in (True, False):
        missing = _missing_segments(problem, relax, time_limit_s)
        if missing:
            repair = "lower the tranche or add GPUs"
            if problem.import_limit_mw is not None:
                unlimited = problem.model_copy(update={"import_limit_mw": None})
                without = _missing_segments(unlimited, relax, time_limit_s)
                limit = f"import_limit_mw ({problem.import_limit_mw:g} MW)"
                if not without:
                    repair = f"without {limit} none would be; raise it"
                elif _gpu_hours(without) < 0.999 * _gpu_hours(missing):
                    repair = (
                        f"in all {_gpu_hours(without):,.0f} would be without {limit}; lower the tranche or raise it"
                    )
            return [_missing(task, count, "at least " if relax else "", repair) for task, count in missing]
    return []


def _missing_segments(problem: DispatchProblem, relax: bool, time_limit_s: float) -> list[tuple[Task, float]]:
    """Segments that do not fit, by task, where there are any."""
    model = build_run_model(problem, elastic=True)
    values = model.program.minimise(relax=relax, time_limit_s=time_limit_s).values
    if values is None:
        return []
    counts = [(task, float(values[column])) for column, task in model.missing.items()]
    return [(task, count) for task, count in counts if count > 1e-6]


def _gpu_hours(missing: Iterable[tuple[Task, float]]) -> float:
    return sum(count * task.segment_gpu_hours() for task, count in missing)


def _missing(task: Task, segments: float, at_least: str, repair: str) -> Problem:
    need, gpu_h = task.segments * task.segment_gpu_hours(), segments * task.segment_gpu_hours()
    rule = (
        f"{at_least}{gpu_h:,.0f} of {need:,.0f} GPU-hours are missing "
        f"({segments:.2f} of {task.segments} segments); {repair}"
    )
    return Problem(f"tasks.{task.name}.tokens", rule)
