"""Checkpoint-aware dispatch: the optimiser, its auditor, its baselines, and the reference day."""

from __future__ import annotations

import itertools
import math
import statistics
from functools import cache

import pytest
from dispatch_worlds import REFERENCE_DAY, Day, every_plan, number, replay, tiny_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from curtailsim.dispatch import solver
from curtailsim.dispatch.baselines import anytime, delay, fixed, fixed_best, hull, linear, mode_only, pause_only
from curtailsim.dispatch.heuristic import best_response, heuristic
from curtailsim.dispatch.plan import (
    Plan,
    Run,
    audit,
    evaluate,
    remaining_problem,
    run_increments_mw,
)
from curtailsim.dispatch.problem import DispatchProblem, Mode, Task
from curtailsim.dispatch.solver import Solution, build_run_model, gpu_cliques, solve
from curtailsim.linear_program import Progress
from curtailsim.parallelism import ACCELERATORS, SHAPES, enumerate_modes, pareto_front
from curtailsim.spec import ScenarioError

pytest.importorskip("highspy")

A100 = ACCELERATORS["A100-80G"]
PUE = 1.2

# Two more days of each kind, from the sources that data/caiso_like_day.csv names.
PRICES = {
    "2 April": (
        *(34.35, 32.03, 34.15, 37.87, 41.76, 44.47, 54.76, 50.69, 40.02, 19.38, 14.23, 9.13),
        *(2.99, 3.06, 0.10, 1.00, 7.05, 26.10, 41.12, 49.84, 44.80, 40.92, 40.00, 37.53),
    ),
    "3 April": REFERENCE_DAY.price,
    "5 April": (
        *(36.62, 33.90, 32.47, 32.46, 37.02, 42.48, 49.57, 51.87, 48.37, 40.57, 35.92, 33.36),
        *(33.30, 24.18, 29.56, 24.43, 27.96, 31.54, 38.42, 41.60, 41.38, 42.31, 38.91, 36.78),
    ),
}
RENEWABLES = {
    "5 April": REFERENCE_DAY.renewable,
    "14 May": (
        *(0.1430, 0.1465, 0.1473, 0.1537, 0.1224, 0.0981, 0.0837, 0.2091, 0.5463, 0.7403, 0.8161, 0.7589),
        *(0.7912, 0.8635, 0.9508, 0.9834, 1.0000, 0.9626, 0.8262, 0.4651, 0.1529, 0.1229, 0.1525, 0.1486),
    ),
    "10 June": (
        *(0.2951, 0.2882, 0.2809, 0.2682, 0.2318, 0.2156, 0.1992, 0.3214, 0.5766, 0.7462, 0.9083, 1.0000),
        *(0.9858, 0.9815, 0.9325, 0.9325, 0.9291, 0.8043, 0.6599, 0.5367, 0.3689, 0.3130, 0.3083, 0.3228),
    ),
}


@cache
def front(model: str, gpus: int) -> tuple[Mode, ...]:
    """The pruned modes of a model on the pool, as dispatch sees them."""
    return tuple(Mode.model_validate(mode) for mode in pareto_front(enumerate_modes(SHAPES[model], A100, gpus).modes))


def reference(
    segments: int = 6,
    slot_h: float = 1.0,
    *,
    gpus: int = 2048,
    ratio: float = 0.9,
    penalty: float = 25.0,
    day: Day = REFERENCE_DAY,
    restart_h: float = 5 / 60,
    checkpoint_h: float = 0.5 / 60,
) -> DispatchProblem:
    """The reference case: a 7B and a 70B tranche on 2,048 A100; the renewable supply stays that of the full pool."""
    tasks = tuple(
        Task(
            name=name,
            modes=front(name, gpus),
            tokens=tokens,
            segments=segments,
            restart_h=restart_h,
            checkpoint_h=checkpoint_h,
        )
        for name, tokens in (("Llama-2-7B", 70e9), ("Llama-2-70B", 26e9))
    )
    slots = day.in_slots(slot_h)
    peak_mw = ratio * A100.rated_mw(2048, PUE)
    return DispatchProblem(
        tasks=tasks,
        slot_h=slot_h,
        price_usd_per_mwh=slots.price,
        renewable_mw=tuple(peak_mw * share for share in slots.renewable),
        gpus=gpus,
        idle_mw=A100.idle_mw(gpus, PUE),
        curtailment_usd_per_mwh=penalty,
    )


@cache
def reference_solution(segments: int) -> Solution:
    """The optimum of the reference case on hourly slots."""
    return solve(reference(segments))


def cost_of(problem: DispatchProblem, plan: Plan) -> float:
    """Audited cost of a plan."""
    return evaluate(problem, plan).cost_usd


# ------------------------------------------------------------------------------------------ worlds computed by hand

FAST = Mode(label="fast", gpus=4, tokens_per_s=1.0, training_increment_mw=2.0, restoring_increment_mw=1.0)
SLOW = Mode(label="slow", gpus=2, tokens_per_s=0.5, training_increment_mw=0.8, restoring_increment_mw=0.4)


def small(
    prices: tuple[float, ...],
    *tasks: Task,
    renewable: float = 0.0,
    gpus: int = 4,
    import_limit_mw: float | None = None,
    start_every_slots: int = 1,
) -> DispatchProblem:
    """Hourly slots with an idle pool of 1 MW."""
    return DispatchProblem(
        tasks=tasks,
        slot_h=1,
        price_usd_per_mwh=prices,
        renewable_mw=(renewable,) * len(prices),
        gpus=gpus,
        idle_mw=1,
        import_limit_mw=import_limit_mw,
        start_every_slots=start_every_slots,
    )


def job(
    *modes: Mode, name: str = "a", hours: float = 2, segments: int = 2, restart_h: float = 0, restart_usd: float = 0
) -> Task:
    """A task that takes so many hours in the fast mode; its checkpoints are free."""
    return Task(
        name=name,
        modes=modes,
        tokens=3600 * hours,
        segments=segments,
        restart_h=restart_h,
        checkpoint_h=0,
        restart_usd=restart_usd,
    )


@pytest.mark.parametrize(
    ("restart_usd", "starts", "cost"),
    [(0, [1, 3], 10 + 20 + 50 + 2 * (10 + 20)), (100, [1], 10 + 20 + 50 + 2 * (10 + 50) + 100)],
    ids=["free restarts", "dear restarts"],
)
def test_two_segments_in_the_cheapest_hours(restart_usd: float, starts: list[int], cost: float) -> None:
    """Two cheap hours are used apart, or the cheapest pair of neighbours where a restart costs more."""
    problem = small((100, 10, 50, 20), job(FAST, restart_usd=restart_usd))
    solution = solve(problem, relative_gap=0)
    assert [run.start_slot for run in solution.plan.runs] == starts
    assert solution.evaluation.cost_usd == pytest.approx(cost + 100)  # the idle pool in the first hour


def test_a_run_restores_then_trains_then_releases() -> None:
    """Half an hour of restore and two hours of training fill two and a half slots."""
    task = job(FAST, restart_h=0.5)
    assert run_increments_mw(task, FAST, 2, slot_h=1).tolist() == [1.5, 2.0, 1.0]
    assert run_increments_mw(task, FAST, 2, slot_h=0.5).tolist() == [1.0, 2.0, 2.0, 2.0, 2.0]


def test_a_run_that_fills_its_slots_takes_no_other() -> None:
    """Thirty runs of a tenth of an hour take three hours, whatever the rounding."""
    task = job(FAST, hours=3, segments=30)
    assert len(run_increments_mw(task, FAST, 30, slot_h=0.1)) == 30


def test_renewable_power_comes_first_unless_importing_pays() -> None:
    """At −30 USD/MWh it is cheaper to import and pay 25 USD/MWh for the curtailment."""
    problem = small((10, -30), job(SLOW, hours=0.5, segments=1), renewable=2)
    plan = Plan(slot_h=1, runs=(Run(task="a", mode="slow", segments=1, start_slot=0),))
    found = evaluate(problem, plan)
    assert found.renewable_used_mw.tolist() == [1.8, 0]
    assert found.grid_mw.tolist() == [0, 1]
    assert found.cost_usd == pytest.approx(25 * 0.2 - 30 + 25 * 2)


def test_figures_of_a_plan_add_up() -> None:
    """Import and renewable power make the load; used and curtailed energy make what there was."""
    problem = reference(6)
    found = reference_solution(6).evaluation
    assert found.grid_mwh + found.renewable_mwh == pytest.approx(found.load_mwh, abs=1e-9)
    assert found.renewable_mwh + found.curtailed_mwh == pytest.approx(sum(problem.renewable_mw), abs=1e-9)
    assert found.segments == {"Llama-2-7B": 6, "Llama-2-70B": 6}
    assert set(found.summary()) >= {"cost_usd", "curtailed_mwh", "green_share", "modes_used", "segments"}


def test_the_auditor_lists_every_mistake() -> None:
    """Unknown names first; then times and tranche; then GPUs and import."""
    problem = small((1, 1, 1, 1), job(FAST), job(FAST, SLOW, name="b"), import_limit_mw=3)

    def mistakes(*runs: tuple[str, str, int, int], slot_h: float = 1) -> list[tuple[str, str]]:
        plan = Plan(slot_h=slot_h, runs=tuple(Run(task=t, mode=m, segments=k, start_slot=s) for t, m, k, s in runs))
        return [(mistake.path, mistake.rule.split(" (")[0]) for mistake in audit(problem, plan)]

    assert mistakes(("c", "fast", 1, 0), ("a", "slow", 1, 0), slot_h=2) == [
        ("slot_h", "must be that of the problem, 1"),
        ("runs[0].task", "'c' is unknown"),
        ("runs[1].mode", "'slow' is not a mode of task 'a'"),
    ]
    assert mistakes(("a", "fast", 2, 3), ("b", "fast", 2, 0), ("b", "fast", 1, 1)) == [
        ("runs[0].start_slot", "run ends at slot 5, the horizon at 4"),
        ("runs[2].start_slot", "must be at least 2, when the task is free"),
        ("tasks.b", "must train 2 segments"),
    ]
    assert mistakes(("a", "fast", 2, 0), ("b", "fast", 2, 1)) == [
        ("slots[1].gpus", "holds 8 GPUs, the pool has 4"),
        ("slots[1].grid_mw", "imports 5.0000 MW, the limit is 3.0000 MW"),
    ]
    assert mistakes(("a", "fast", 2, 0), ("b", "fast", 2, 2)) == []


def test_evaluate_refuses_a_plan_that_does_not_fit() -> None:
    """A plan with a mistake has no cost."""
    with pytest.raises(ScenarioError, match="must train 2 segments"):
        evaluate(small((1, 1), job(FAST)), Plan(slot_h=1, runs=()))


def test_plan_survives_json() -> None:
    """A plan read back is the plan written."""
    plan = reference_solution(2).plan
    assert Plan.from_json(plan.to_json()) == plan


def test_a_broken_plan_file_is_explained() -> None:
    """Every mistake of a plan file is listed with its place."""
    text = '{"slot_h": 0, "runs": [{"task": "a", "mode": "fast", "segments": 0, "start_slot": 0}]}'
    with pytest.raises(ScenarioError) as error:
        Plan.from_json(text, source="plan.json")
    assert [problem.path for problem in error.value.problems] == ["slot_h", "runs.0.segments"]


def test_names_must_differ() -> None:
    """Runs refer to tasks and modes by name."""
    with pytest.raises(ValueError, match="task names must differ: a"):
        small((1,), job(FAST), job(SLOW))
    with pytest.raises(ValueError, match="mode names must differ: fast"):
        job(FAST, FAST)


def test_series_must_be_as_long_as_the_prices() -> None:
    """A renewable series of another length is a mistake."""
    with pytest.raises(ValueError, match="renewable_mw has 1 slots, price_usd_per_mwh has 2"):
        DispatchProblem(tasks=(), price_usd_per_mwh=(1, 1), renewable_mw=(1,), gpus=1, idle_mw=0)


def test_replay_moves_the_last_partial_slot() -> None:
    """A quarter of an hour at 2 MW is 0.5 MW over the slot, which renewable power covers; the meter sees an import."""
    problem = small((40,), job(FAST, hours=0.25, segments=1), renewable=1.5)
    plan = Plan(slot_h=1, runs=(Run(task="a", mode="fast", segments=1, start_slot=0),))
    twice = replay(problem, plan, step_min=15)
    assert twice.planned.load_mwh == pytest.approx(twice.realised.load_mwh)
    assert (twice.planned.grid_mwh, twice.planned.curtailed_mwh) == (0, 0)
    assert twice.realised.load_mw.tolist() == [3, 1, 1, 1]
    assert twice.realised.grid_mwh == pytest.approx(0.25 * 1.5)
    assert twice.realised.curtailed_mwh == pytest.approx(0.75 * 0.5)


def test_coarse_starts() -> None:
    """With starts at every second slot the cheap odd hours are out of reach."""
    problem = small((50, 1, 50, 1), job(FAST, hours=1, segments=1), start_every_slots=2)
    assert solve(problem).plan.runs[0].start_slot in (0, 2)
    assert heuristic(problem).runs[0].start_slot in (0, 2)  # type: ignore[union-attr]


# ------------------------------------------------------------------------------------- against every possible plan


@st.composite
def tiny_problems(draw: st.DrawFn) -> DispatchProblem:
    """Five slots, two tasks, negative prices, import limits, overheads."""
    slots = 5
    return DispatchProblem(
        tasks=tiny_tasks(draw, "ab", (4, 6, 8, 12), 20),
        slot_h=1,
        price_usd_per_mwh=tuple(number(draw, -30, 60) for _ in range(slots)),
        renewable_mw=tuple(number(draw, 0, 2) for _ in range(slots)),
        gpus=draw(st.sampled_from((8, 12, 16))),
        idle_mw=0.3,
        renewable_usd_per_mwh=draw(st.sampled_from((0.0, 15.0))),
        curtailment_usd_per_mwh=draw(st.sampled_from((0.0, 25.0))),
        import_limit_mw=draw(st.sampled_from((None, 2.0))),
    )


@settings(max_examples=20, derandomize=True, deadline=None)
@given(problem=tiny_problems())
def test_optimum_of_tiny_problems(problem: DispatchProblem) -> None:
    """The solver finds the best of all plans, or says that there is none; the relaxation promises no less."""
    best = min((cost_of(problem, p) for p in every_plan(problem) if not audit(problem, p)), default=math.inf)
    if math.isinf(best):
        with pytest.raises(ScenarioError):
            solve(problem, relative_gap=0)
    else:
        assert cost_of(problem, solve(problem, relative_gap=0).plan) == pytest.approx(best, abs=1e-5)
        assert hull(problem).cost_usd <= best + 1e-6


def one_task(index: int, segments: int) -> DispatchProblem:
    """One task of the reference case alone, with 60 % of the renewable supply."""
    both = reference(segments)
    renewable = tuple(0.6 * power for power in both.renewable_mw)
    return both.model_copy(update={"tasks": (both.tasks[index],), "renewable_mw": renewable})


def shortest_path_cost(problem: DispatchProblem) -> float:
    """Cost of a single task by dynamic programming."""
    answer = best_response(problem, problem.tasks[0], problem.base_mw(), problem.gpus - problem.free_gpus())
    assert answer is not None
    return answer[0]


@pytest.mark.parametrize(("index", "cost"), [(0, 216.411860), (1, 417.830463)], ids=["7B", "70B"])
@pytest.mark.parametrize("segments", [3, pytest.param(12, marks=pytest.mark.slow)])
def test_shortest_path_is_the_optimum_of_one_task(index: int, segments: int, cost: float) -> None:
    """For a single task dynamic programming and the mixed-integer program agree."""
    problem = one_task(index, segments)
    program = build_run_model(problem).program
    assert program.minimise(relative_gap=0).objective == pytest.approx(shortest_path_cost(problem), abs=1e-5)
    assert shortest_path_cost(one_task(index, 12)) == pytest.approx(cost, abs=1e-5)


def test_clique_rows_change_the_bound_alone() -> None:
    """The rows lift the relaxed bound and leave the optimum."""
    problem = reference(2)
    with_rows, without = build_run_model(problem).program, build_run_model(problem, cliques=False).program
    assert with_rows.minimise(relax=True).objective > without.minimise(relax=True).objective + 1
    best, same = with_rows.minimise(relative_gap=0), without.minimise(relative_gap=0)
    assert same.objective == pytest.approx(best.objective, abs=1e-5)


def test_cliques_of_the_reference_case() -> None:
    """Any 7B run excludes the 70B on 2,048 GPUs; 1,024 GPUs for the 7B exclude 1,280 for the 70B; and so on."""
    problem = reference(6)
    smallest = [min(mode.gpus for mode in task.modes) for task in problem.tasks]
    assert [(clique.first_gpus, clique.second_gpus) for clique in gpu_cliques(problem)] == [
        (smallest[0], 2048),
        (1024, 1280),
        (2048, smallest[1]),
    ]


# -------------------------------------------------------------------------------------------------- the reference day


@pytest.mark.parametrize(
    ("segments", "fixed_usd", "fixed_best_usd", "optimum_usd"),
    [
        (1, 485.98, 429.02, 405.42),
        (2, 486.18, 429.22, 402.48),
        (4, 486.57, 429.62, 395.64),
        (6, 486.97, 430.02, 391.24),
    ],
)
def test_golden_costs(segments: int, fixed_usd: float, fixed_best_usd: float, optimum_usd: float) -> None:
    """Costs of the reference case on hourly slots; the optimum may be missed by the gap."""
    problem = reference(segments)
    solution = reference_solution(segments)
    assert cost_of(problem, fixed(problem)) == pytest.approx(fixed_usd, abs=0.01)
    assert cost_of(problem, fixed_best(problem)) == pytest.approx(fixed_best_usd, abs=0.01)
    assert optimum_usd - 0.01 <= solution.evaluation.cost_usd <= optimum_usd * 1.002 + 0.01
    assert solution.bound_usd <= optimum_usd + 0.01
    assert solution.evaluation.curtailed_mwh <= 0.30


def test_order_of_the_baselines() -> None:
    """Relaxations promise less than the optimum costs, simpler plans cost more; each within the gap."""
    problem = reference(6)
    optimum = reference_solution(6).evaluation.cost_usd
    chain = [
        hull(problem).cost_usd,
        anytime(problem).cost_usd,
        optimum,
        pause_only(problem).evaluation.cost_usd,
        cost_of(problem, fixed_best(problem)),
        cost_of(problem, fixed(problem)),
    ]
    for lower, upper in itertools.pairwise(chain):
        assert lower <= upper * 1.002
    assert hull(problem).cost_usd <= delay(problem).cost_usd


def test_simpler_views_overstate_the_saving() -> None:
    """Continuous power promises at least ten points too much, a delay-tolerant job some."""
    problem = reference(6)
    reference_usd, optimum = cost_of(problem, fixed(problem)), reference_solution(6).evaluation.cost_usd
    assert optimum - linear(problem).cost_usd >= 0.10 * reference_usd
    assert delay(problem).cost_usd < optimum


@pytest.mark.parametrize("gpus", [768, 896, 1024, 1152])
def test_small_pools_cannot_finish(gpus: int) -> None:
    """Up to 1,152 GPUs a tranche does not fit, and the error says how many GPU-hours are missing."""
    problem = reference(6, gpus=gpus)
    with pytest.raises(ScenarioError, match=r"GPU-hours.* missing") as error:
        solve(problem)
    assert all(problem.path.endswith(".tokens") for problem in error.value.problems)
    with pytest.raises(ScenarioError, match="missing"):
        hull(problem)


def test_1280_gpus_can_finish() -> None:
    """The slowest flat pair fits 1,280 GPUs."""
    problem = reference(6, gpus=1280)
    assert max(evaluate(problem, fixed(problem)).gpus_busy) == 1280


@pytest.mark.parametrize(
    ("problem", "key", "rule"),
    [
        (small((1, 1), job(FAST, hours=3)), "tokens", "4 GPU-hours are missing: even fast"),
        (small((1, 1), job(FAST), gpus=2), "modes", "every mode needs more than the pool's 2 GPUs"),
        (small((1, 1), job(FAST), import_limit_mw=0.5), "import_limit_mw", "it cannot in 2 slots, first in slot 0"),
        (
            small((1, 1, 1), job(FAST), job(FAST, name="b")),
            "tokens",
            "at least 4 of 8 GPU-hours are missing",
        ),
    ],
    ids=["too long", "too large", "idle pool", "together"],
)
def test_an_impossible_problem_says_why(problem: DispatchProblem, key: str, rule: str) -> None:
    """One task too long, one mode too large, no power for the idle pool, or two tasks that do not fit together."""
    with pytest.raises(ScenarioError) as error:
        solve(problem)
    assert [problem.path.split(".")[-1] for problem in error.value.problems] == [key]
    assert rule in str(error.value)


def test_whole_segments_can_be_what_does_not_fit() -> None:
    """Two tasks of 1.5 h in one segment each fit three hours of a pool, but not three whole slots."""
    problem = small((1, 1, 1), job(FAST, hours=1.5, segments=1), job(FAST, name="b", hours=1.5, segments=1))
    with pytest.raises(ScenarioError, match=r"6 of 6 GPU-hours are missing \(1\.00 of 1 segments\)"):
        solve(problem)


def test_a_weak_connection_is_named_as_the_reason() -> None:
    """Idle pool and task need 3 MW; with 2.5 MW it is not GPUs that are missing."""
    weak = small((1, 1, 1), job(FAST), import_limit_mw=2.5)
    with pytest.raises(ScenarioError, match=r"without import_limit_mw \(2\.5 MW\) none would be; raise it"):
        solve(weak)


def test_without_a_solver_the_heuristic_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HiGHS is missing the plan is good, and nothing is claimed about its bound."""
    monkeypatch.setattr(solver, "solver_available", lambda: False)
    problem = reference(6)
    solution = solve(problem)
    assert (solution.status, solution.bound_usd) == ("heuristic", -math.inf)
    optimum = reference_solution(6).evaluation.cost_usd
    assert optimum / 1.002 <= solution.evaluation.cost_usd <= 1.04 * optimum
    with pytest.raises(ScenarioError, match="none is proved impossible"):
        solve(small((1, 1, 1), job(FAST), job(FAST, name="b")))


def test_without_time_the_known_plan_is_the_answer() -> None:
    """The start plan guards the result where the search has no time."""
    problem = reference(6)
    start = reference_solution(6).plan
    solution = solve(problem, time_limit_s=0, start=start)
    assert (solution.status, solution.plan) == ("time_limit", start)


def test_a_start_plan_must_fit() -> None:
    """A start plan of another problem is refused."""
    with pytest.raises(ScenarioError, match="plan has"):
        solve(reference(6), start=reference_solution(2).plan)


def test_progress_is_reported() -> None:
    """Every better plan is reported with the bound."""
    seen: list[Progress] = []
    solve(reference(4), progress=seen.append)
    assert seen
    assert all(step.bound_usd <= step.best_usd for step in seen)


@pytest.mark.parametrize("slot", [1, 9, 15])
def test_replanning_an_optimal_plan_keeps_its_cost(slot: int) -> None:
    """With nothing learnt, the rest of the horizon is planned as before."""
    problem = reference(4)
    first = solve(problem, relative_gap=0)
    rest = solve(remaining_problem(problem, first.plan, slot), relative_gap=0)
    kept = [run for run in first.plan.runs if run.start_slot < slot]
    moved = [run.model_copy(update={"start_slot": run.start_slot + slot}) for run in rest.plan.runs]
    assert cost_of(problem, Plan(slot_h=1, runs=(*kept, *moved))) == pytest.approx(first.evaluation.cost_usd)


def test_equal_problems_have_equal_plans() -> None:
    """The search is repeatable where it stops by its gap."""
    assert solve(reference(4)).plan == reference_solution(4).plan


# ------------------------------------------------------------------------------------------------- longer acceptance


@pytest.mark.slow
def test_mode_choice_is_worth_more_than_waiting() -> None:
    """Without waiting nearly all of the saving is left; without modes it is not."""
    problem = reference(6)
    optimum = reference_solution(6).evaluation.cost_usd
    no_waiting = mode_only(problem).evaluation.cost_usd
    assert optimum <= no_waiting * 1.002
    assert no_waiting < pause_only(problem).evaluation.cost_usd


@pytest.mark.slow
def test_headline() -> None:
    """Half hours and twelve segments: planned and realised figures of the reference case."""
    problem = reference(12, 0.5)
    solution = solve(problem, relative_gap=5e-3)
    flat, best = replay(problem, fixed(problem)), replay(problem, solution.plan)
    assert solution.status == "optimal"
    assert 0.185 <= 1 - best.planned.cost_usd / flat.planned.cost_usd <= 0.205
    assert 0.175 <= 1 - best.realised.cost_usd / flat.realised.cost_usd <= 0.20
    assert flat.planned.curtailed_mwh == pytest.approx(1.032, abs=0.001)
    assert best.planned.curtailed_mwh <= 0.05
    assert best.realised.curtailed_mwh <= 0.15
    assert all(2 <= modes <= 4 for modes in best.planned.modes_used.values())
    assert best.planned.load_mwh == pytest.approx(best.realised.load_mwh, rel=1e-6)
    assert abs(best.relative_cost_error) < 0.025


@pytest.mark.slow
def test_checkpoints_pay_less_and_less() -> None:
    """Free checkpoints, each division of the day within the next: cost never rises, and twelve capture most."""
    costs = [solve(reference(k, checkpoint_h=0)).evaluation.cost_usd for k in (1, 2, 4, 12, 24)]
    for finer, coarser in itertools.pairwise(reversed(costs)):
        assert finer <= coarser * 1.002
    assert costs == pytest.approx([405.20, 402.27, 394.02, 388.76, 386.79], rel=0.002)
    assert costs[0] - costs[3] > 0.8 * (costs[0] - costs[4])


@pytest.mark.slow
def test_more_renewable_power_than_load() -> None:
    """From a ratio of 1.25 to 1.5 curtailment and green share rise; cost rises where curtailment is dear."""
    golden = {8: (319.7, 307.3), 25: (354.9, 395.8)}
    for penalty, costs in golden.items():
        found = [solve(reference(6, ratio=ratio, penalty=penalty)).evaluation for ratio in (1.25, 1.5)]
        assert [evaluation.cost_usd for evaluation in found] == pytest.approx(list(costs), rel=0.003)
        assert found[0].curtailed_mwh < found[1].curtailed_mwh
        assert found[0].green_share < found[1].green_share


@pytest.mark.slow
def test_slow_restarts_cost_flexibility() -> None:
    """Cost rises with the restart time; at half an hour one mode per task is left."""
    found = [solve(reference(6, restart_h=minutes / 60)).evaluation for minutes in (0, 15, 30)]
    assert [evaluation.cost_usd for evaluation in found] == pytest.approx([391.2, 402.9, 410.2], rel=0.003)
    assert list(found[-1].modes_used.values()) == [1, 1]


@pytest.mark.slow
def test_other_days() -> None:
    """Nine pairs of days: the saving and the curtailment removed stay in their range."""
    cuts, removed = [], []
    for price, renewable in itertools.product(PRICES.values(), RENEWABLES.values()):
        problem = reference(6, day=Day(price, renewable))
        flat, best = evaluate(problem, fixed(problem)), solve(problem, relative_gap=1e-2).evaluation
        cuts.append(1 - best.cost_usd / flat.cost_usd)
        removed.append(1 - best.curtailed_mwh / flat.curtailed_mwh)
    assert min(cuts) >= 0.13
    assert statistics.median(cuts) == pytest.approx(0.225, abs=0.015)
    assert max(cuts) <= 0.33
    assert min(removed) >= 0.9
