"""Beyond the published study: idle GPUs worth something to others, divisible work.  All by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dispatch_worlds import replay, shown

from curtailsim.dispatch.baselines import anytime, hull
from curtailsim.dispatch.heuristic import best_response
from curtailsim.dispatch.plan import Plan, Run, evaluate, load_and_gpus, remaining_problem
from curtailsim.dispatch.planner import OPTIMUM, Planner
from curtailsim.dispatch.problem import DispatchProblem, Mode
from curtailsim.dispatch.run import DispatchRun, simulate
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.dispatch.solver import solve
from curtailsim.metrics import RunTables
from curtailsim.results import run
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError

pytest.importorskip("highspy")

SCENARIOS = Path(__file__).parents[2] / "scenarios"
NO_PLOTS = ("dispatch.baselines=[]", "dispatch.comparators=[]")


def asked(name: str, *overrides: str) -> DispatchScenario:
    """One of the small scenarios."""
    found = load(SCENARIOS / f"grid_knob_{name}.yaml", list(overrides))
    assert isinstance(found, DispatchScenario)
    return found


def executed(scenario: DispatchScenario, name: str = OPTIMUM) -> RunTables:
    """The tables of one run."""
    return simulate(scenario, DispatchRun(name))[name]


def chosen(plan: Plan) -> list[tuple[int, str, int]]:
    """(slot, mode, segments) of the runs of a plan."""
    return [(one.start_slot, one.mode, one.segments) for one in plan.runs]


def optimum_alone(problem: DispatchProblem) -> float:
    """Cost by the shortest path for the only task, without a solver."""
    answer = best_response(problem, problem.tasks[0], *load_and_gpus(problem, ()))
    assert answer is not None
    return answer[0]


# ---------------------------------------------------------------------------------------------- shared pool


def test_shared_pool_by_hand() -> None:
    """Few GPUs in a dear hour, many at less power in cheap ones: 25 + 40 of energy, 20 + 10 of GPUs; as planned."""
    made = executed(asked("shared_pool")).summary
    assert made["cost"] == pytest.approx(95)
    assert (made["energy_cost"], made["opportunity_cost"]) == (pytest.approx(65), pytest.approx(30))
    assert made["restart_cost"] == pytest.approx(0, abs=1e-9)
    assert made["held_gpu_h"] == pytest.approx(500 + 2000)
    assert made["planned"]["cost"] == pytest.approx(95) and made["planned"]["opportunity_cost"] == pytest.approx(30)
    assert made["modes"] == {"batch": ["dense", "spread"]}


def test_shared_pool_plan_and_its_bounds() -> None:
    """The program, the shortest path, the auditor and a finer meter agree; the bounds are none above it."""
    problem = Planner(asked("shared_pool")).foreseen
    found = solve(problem, relative_gap=1e-6)
    assert chosen(found.plan) == [(1, "dense", 2), (2, "spread", 4)]
    assert found.evaluation.opportunity_cost_usd == pytest.approx(30)
    assert found.evaluation.cost_usd == pytest.approx(optimum_alone(problem)) == pytest.approx(95)
    assert replay(problem, found.plan, 15).realised.cost_usd == pytest.approx(95)
    assert hull(problem).cost_usd <= 95 + 1e-6 and anytime(problem).bound_usd <= 95 + 1e-6


def test_worthless_idle_gpus_change_nothing() -> None:
    """Without the value the most efficient mode is best: three hours at 20."""
    made = executed(asked("shared_pool", "dispatch.idle_gpu_value_per_h=0")).summary
    assert made["cost"] == pytest.approx(60) and made["opportunity_cost"] == 0
    assert made["modes"] == {"batch": ["spread"]}


def test_gpus_are_paid_until_a_run_ends() -> None:
    """2.5 hours in slots of one hour are 2.5 hours of 500 GPUs, in the plan and on the clock."""
    scenario = asked("shared_pool", "dispatch.tasks[0].units=5", "dispatch.idle_gpu_value_per_h=1")
    made = executed(scenario, "fixed").summary
    assert made["opportunity_cost"] == pytest.approx(1250) == made["planned"]["opportunity_cost"]


def test_committed_gpus_stay_paid() -> None:
    """What has started is part of the cost of what is left, so that plans from the middle compare."""
    problem = Planner(asked("shared_pool")).foreseen
    plan = Plan(slot_h=1, runs=(Run(task="batch", mode="dense", segments=6, start_slot=0),))
    rest = remaining_problem(problem, plan, 1)
    left = evaluate(rest, Plan(slot_h=1, runs=()))
    assert left.opportunity_cost_usd == pytest.approx(500 * (0.04 + 0.005))
    assert replay(rest, Plan(slot_h=1, runs=()), 15).realised.opportunity_cost_usd == pytest.approx(22.5)


def test_a_plan_from_the_middle_counts_what_is_under_way() -> None:
    """Half an hour of a dense run, 12.50 of energy and 10 of GPUs, then an hour and a half spread: 30 and 7.50."""
    problem = Planner(asked("shared_pool")).foreseen
    plan = Plan(slot_h=1, runs=(Run(task="batch", mode="dense", segments=3, start_slot=0),))
    found = solve(remaining_problem(problem, plan, 1), relative_gap=1e-9)
    assert chosen(found.plan) == [(1, "spread", 3)]
    assert found.evaluation.cost_usd == pytest.approx(60) == pytest.approx(found.bound_usd)


def test_hours_of_a_value_are_repeated_to_the_horizon() -> None:
    """Two values stand for peak and off-peak of every two hours; slots get their means."""
    problem = Planner(asked("shared_pool", "dispatch.idle_gpu_value_per_h=[1, 3]", "dispatch.slot_h=2")).foreseen
    assert problem.idle_gpu_usd_per_h == (2, 2)


# ------------------------------------------------------------------------------------------------- divisible work


def test_divisible_by_hand() -> None:
    """Four units in each cheap hour, three starts of twelve minutes: 3 x 2 MWh x 20 + 3."""
    tables = executed(asked("divisible"))
    made = tables.summary
    assert made["cost"] == pytest.approx(123) and made["restart_cost"] == pytest.approx(3)
    assert made["segments"] == {"inference": 12} and made["finished"]
    assert (made["steps"], made["tokens"], made["real_steps"]) == (12, 0, 0)
    events = tables.events
    finished = (events[events.event == "unit_finished"].time_s / 3600).tolist()
    expected = [hour + 0.4 + 0.2 * unit for hour in (1, 3, 5) for unit in range(4)]
    assert finished == pytest.approx(expected)
    assert not events.event.eq("checkpoint_written").any()


def test_divisible_against_work_that_cannot_stop() -> None:
    """One piece costs at best 1 MW x (20 + 100 + 20 + 100 + 0.2 x 20) and a start; two pieces 2 x 2 x (20 + 40) + 2."""
    problem = Planner(asked("divisible")).foreseen
    task = problem.tasks[0]
    costs = []
    for pieces in (1, 2, 12):
        whole = problem.model_copy(update={"tasks": (task.model_copy(update={"segments": pieces}),)})
        costs.append(solve(whole, relative_gap=1e-6).evaluation.cost_usd)
        assert costs[-1] == pytest.approx(optimum_alone(whole))
    assert costs == pytest.approx([245, 242, 123])
    assert 0 < hull(problem).cost_usd <= anytime(problem).bound_usd + 1e-6 <= 123 + 1e-6


def test_divisible_beside_pretraining() -> None:
    """Both kinds share a pool; a task without a type is a pre-training one."""
    both = (
        "dispatch.tasks=[{name: llama, model: Llama-2-7B, tokens: 4e9, segments: 2},"
        " {type: divisible, name: inference, units: 3, modes: [{name: few, gpus: 256, units_per_h: 1, gpu_w: 500}]}]"
    )
    tables = executed(asked("divisible", both, "dispatch.accelerator=A100-80G"))
    assert tables.summary["segments"] == {"llama": 2, "inference": 3}
    assert tables.summary["tokens"] == pytest.approx(4e9, rel=1e-3)
    names = set(tables.events.event)
    assert {"unit_finished", "checkpoint_written"} <= names


def test_interrupted_units_are_done_again() -> None:
    """An outage loses the unit under way and no other."""
    scenario = asked("divisible", "sites.campus.failures=[{at_h: 1.5, duration_h: 0.25}]", "dispatch.pool_gpus=4000")
    tables = executed(scenario)
    assert tables.summary["finished"]
    assert tables.events.event.eq("unit_finished").sum() == 12
    assert tables.events.event.eq("task_interrupted").sum() == 1


# ---------------------------------------------------------------------------------------------- files, mistakes


@pytest.mark.parametrize(
    ("name", "overrides", "message"),
    [
        ("shared_pool", ["dispatch.idle_gpu_value_per_h=-1"], "dispatch.idle_gpu_value_per_h[0]"),
        ("shared_pool", ["dispatch.idle_gpu_value_per_h=[]"], "dispatch.idle_gpu_value_per_h"),
        ("divisible", ["dispatch.tasks[0].type=divisable"], "did you mean 'divisible'"),
        ("divisible", ["dispatch.tasks[0].segments=3"], "dispatch.tasks[0].segments"),
        ("divisible", ["dispatch.tasks[0].units=0"], "dispatch.tasks[0].units "),
        ("divisible", ["dispatch.tasks[0].modes[1].name=all"], "must have different names"),
        ("divisible", ["dispatch.pool_gpus=10"], "every mode needs more than the pool's 10 GPUs (smallest 1,000)"),
    ],
)
def test_mistakes(name: str, overrides: list[str], message: str) -> None:
    """Each with its path and what to do."""
    with pytest.raises(ScenarioError) as caught:
        asked(name, *overrides)
    assert message in str(caught.value)


def test_results_and_report(tmp_path: Path) -> None:
    """The folder is like any other; opportunity cost has its own column, where there is one."""
    results = run(asked("shared_pool"), tmp_path / "shared")
    summary: dict[str, Any] = results.summary
    assert summary["savings"]["fixed"]["cost_cut"] == pytest.approx(1 - 95 / 122.5)
    assert "GPUs held" in shown(results) and "others would have paid" in shown(results)
    assert dump(load(results.path / "scenario.yaml")) == (results.path / "scenario.yaml").read_text()
    plain = run(asked("divisible", *NO_PLOTS), tmp_path / "divisible")
    assert "GPUs held" not in shown(plain)
    assert plain.summary["catalogue"] == {"inference": {"usable": 2, "offered": 2, "rejected": {}}}


def test_modes_of_other_kinds_are_accepted() -> None:
    """A divisible mode's power is what it adds to the idle pool: 1.2 x 100 x (500 - 200) W."""
    modes = "dispatch.tasks[0].modes=[{name: few, gpus: 100, units_per_h: 36, gpu_w: 500}]"
    scenario = asked("divisible", modes, "dispatch.unallocated_w=200", "dispatch.pue=1.2")
    mode = Planner(scenario).foreseen.tasks[0].modes[0]
    assert mode == Mode(
        label="few", gpus=100, tokens_per_s=0.01, training_increment_mw=0.036, restoring_increment_mw=0.036
    )
