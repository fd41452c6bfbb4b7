"""Plans made for samples of price and renewable power: by hand, against every plan, and on the clock."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dispatch_worlds import every_plan, number, replay, shown, tiny_tasks
from hypothesis import given, settings
from hypothesis import strategies as st

from curtailsim.dispatch.baselines import anytime, hull
from curtailsim.dispatch.heuristic import best_response
from curtailsim.dispatch.horizon import actual_problem, foreseen_problem
from curtailsim.dispatch.plan import ExpectedSupply, Plan, Run, audit, evaluate, load_and_gpus
from curtailsim.dispatch.planner import OPTIMUM, Planner, Situation
from curtailsim.dispatch.problem import DispatchProblem, Mode, Sample, Task
from curtailsim.dispatch.run import DispatchRun, simulate
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.dispatch.solver import build_run_model, expected_supply_pieces, solve
from curtailsim.dispatch.stochastic import solve_for_mean, solve_for_samples, stochastic_value
from curtailsim.metrics import RunTables
from curtailsim.results import run
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError

pytest.importorskip("highspy")

SCENARIO = Path(__file__).parents[2] / "scenarios" / "grid_knob_stochastic.yaml"
DRAWN = "dispatch.samples=[]", "dispatch.drawn_samples={count: 4, price_sd: 8, generation_sd: 0.4, correlation_h: 2}"


def asked(*overrides: str) -> DispatchScenario:
    """The scenario of two weathers, changed."""
    found = load(SCENARIO, list(overrides))
    assert isinstance(found, DispatchScenario)
    return found


def executed(scenario: DispatchScenario, name: str = OPTIMUM) -> RunTables:
    """The tables of one run."""
    return simulate(scenario, DispatchRun(name))[name]


def weathers(cloudy: float = 1, sunny: float = 1, **changes: Any) -> DispatchProblem:
    """The problem of the scenario: an hour at 1 MW in one of three hours."""
    mode = Mode(label="all", gpus=8, tokens_per_s=1, training_increment_mw=1, restoring_increment_mw=1)
    task = Task(name="a", modes=(mode,), tokens=3600, segments=1, restart_h=0, checkpoint_h=0, restart_usd=0)
    samples = (
        Sample(name="cloudy", weight=cloudy, price_usd_per_mwh=(50, 50, 10), renewable_mw=(0, 0.6, 0)),
        Sample(name="sunny", weight=sunny, price_usd_per_mwh=(50, 50, 90), renewable_mw=(1.5, 0.6, 0)),
    )
    problem = DispatchProblem(
        tasks=(task,),
        slot_h=1,
        price_usd_per_mwh=(0, 0, 0),
        renewable_mw=(0, 0, 0),
        gpus=8,
        idle_mw=0,
        curtailment_usd_per_mwh=0,
    )
    return problem.sampled(samples).model_copy(update=changes)


def starting(slot: int) -> Plan:
    """The task of `weathers` in one of the hours."""
    return Plan(slot_h=1, runs=(Run(task="a", mode="all", segments=1, start_slot=slot),))


# ------------------------------------------------------------------------------------------------------- by hand


def test_expected_costs_by_hand() -> None:
    """Half of 50 and 0, of 20 and 20, of 10 and 90; what is left of the sun is curtailed."""
    problem = weathers()
    found = [evaluate(problem, starting(slot)) for slot in range(3)]
    assert [one.cost_usd for one in found] == pytest.approx([25, 20, 50])
    assert [one.curtailed_mwh for one in found] == pytest.approx([(0.6 + 1.1) / 2, 1.5 / 2, (0.6 + 2.1) / 2])
    assert [one.green_share for one in found] == pytest.approx([0.5, 0.6, 0])
    assert [one.peak_import_mw for one in found] == pytest.approx([1, 0.4, 1])
    assert found[0].grid_mw == pytest.approx([0.5, 0, 0])


def test_the_series_of_a_problem_are_the_means_of_its_samples() -> None:
    """So that a mean is what somebody plans for who does not think of samples."""
    problem = weathers(cloudy=1, sunny=3)
    assert problem.price_usd_per_mwh == pytest.approx((50, 50, 70))
    assert problem.renewable_mw == pytest.approx((1.125, 0.6, 0))
    assert problem.mean_value().samples == ()
    assert [(one.name, one.probability) for one in problem.outcomes()] == [("cloudy", 0.25), ("sunny", 0.75)]


@pytest.mark.parametrize(
    ("sunny", "slot", "cost", "mean_cost", "known"),
    [
        (1, 1, 20.0, 25.0, 5.0),  # as the scenario says
        (3, 0, 12.5, 12.5, 2.5),  # so likely that the plan for the mean is right
        (0.25, 1, 20.0, 20.0, 8.0),  # so unlikely that it is right again: 0.8 x 10 + 0.2 x 0
    ],
)
def test_values_by_hand(sunny: float, slot: int, cost: float, mean_cost: float, known: float) -> None:
    """The plan, the value of the stochastic solution, and that of perfect information, at different odds."""
    problem = weathers(sunny=sunny)
    mean = solve_for_mean(problem, relative_gap=1e-9)
    found = solve_for_samples(problem, mean.plan, relative_gap=1e-9)
    assert found.plan == starting(slot)
    value = stochastic_value(problem, found, mean.plan, relative_gap=1e-9)
    assert value.expected_cost_usd == pytest.approx(cost) == pytest.approx(found.evaluation.cost_usd)
    assert value.mean_value_cost_usd == pytest.approx(mean_cost)
    assert value.wait_and_see_cost_usd == pytest.approx(known)
    assert value.of_the_stochastic_solution_usd == pytest.approx(mean_cost - cost)
    assert value.of_the_stochastic_solution_at_most_usd == pytest.approx(mean_cost - cost, abs=1e-6)
    assert value.of_perfect_information_usd == pytest.approx(cost - known)
    assert value.of_perfect_information_at_most_usd == pytest.approx(cost - known, abs=1e-6)


def test_a_plan_has_to_fit_every_sample() -> None:
    """With a connection of 0.5 MW only the hour with sun in both weathers is left; the mean day would allow another."""
    problem = weathers(import_limit_mw=0.5)
    assert [bool(audit(problem, starting(slot))) for slot in range(3)] == [True, False, True]
    assert "in sample 'cloudy', the limit is 0.5000 MW" in audit(problem, starting(0))[0].rule
    mean = solve_for_mean(problem)
    assert mean.plan == starting(0)
    found = solve_for_samples(problem, mean.plan)
    value = stochastic_value(problem, found, mean.plan)
    assert found.plan == starting(1)
    assert value.mean_value_cost_usd is None and value.of_the_stochastic_solution_usd is None
    assert value.of_perfect_information_usd == pytest.approx(10), "in the cloudy hour 2 the connection is too small"


def test_a_sample_that_cannot_carry_the_idle_pool_is_the_reason() -> None:
    """Nothing is planned for a day on which one of the weathers leaves the pool without power."""
    with pytest.raises(ScenarioError, match="must carry the idle pool; it cannot in 2 slots, first in slot 0"):
        solve(weathers(import_limit_mw=0.1, idle_mw=0.4))


def test_one_sample_is_no_uncertainty() -> None:
    """A certain sample, or the same one several times, is the ordinary problem."""
    certain = weathers().outcomes()[1].problem
    series = certain.price_usd_per_mwh, certain.renewable_mw
    twins = [
        Sample(name=name, weight=weight, price_usd_per_mwh=series[0], renewable_mw=series[1])
        for name, weight in (("x", 1.0), ("y", 4.0))
    ]
    for samples in (twins[:1], twins):
        found = solve(certain.sampled(samples), relative_gap=1e-9)
        assert found.plan == solve(certain, relative_gap=1e-9).plan == starting(0)
        assert found.evaluation.cost_usd == pytest.approx(0)


def test_replay_knows_samples() -> None:
    """A finer meter sees the same samples, and the same expected cost where no slot is used in part."""
    found = replay(weathers(), starting(1), 15)
    assert found.realised.cost_usd == pytest.approx(20) == pytest.approx(found.planned.cost_usd)


def test_samples_must_fit_the_problem() -> None:
    """As many slots, and names that differ."""
    short = Sample(name="x", price_usd_per_mwh=(1,), renewable_mw=(0, 0, 0))
    with pytest.raises(ValueError, match="price_usd_per_mwh of sample 'x' has 1 slots, not 3"):
        DispatchProblem.model_validate({**dict(weathers()), "samples": (short,)})
    twice = weathers().samples[:1] * 2
    with pytest.raises(ValueError, match="sample names must differ: cloudy"):
        weathers().sampled(twice)


# ------------------------------------------------------------------------------------- against every possible plan


@st.composite
def tiny_problems(draw: st.DrawFn) -> DispatchProblem:
    """Four slots, one or two tasks, two or three samples with negative prices, and sometimes a weak connection."""
    slots = 4
    samples = [
        Sample(
            name=name,
            weight=draw(st.sampled_from((1.0, 0.3, 5.0))),
            price_usd_per_mwh=tuple(number(draw, -30, 60) for _ in range(slots)),
            renewable_mw=tuple(number(draw, 0, 2) for _ in range(slots)),
        )
        for name in "pqr"[: draw(st.integers(2, 3))]
    ]
    problem = DispatchProblem(
        tasks=tiny_tasks(draw, "ab"[: draw(st.integers(1, 2))], (4, 8), 10),
        slot_h=1,
        price_usd_per_mwh=(0,) * slots,
        renewable_mw=(0,) * slots,
        gpus=draw(st.sampled_from((8, 12))),
        idle_mw=0.3,
        renewable_usd_per_mwh=draw(st.sampled_from((0.0, 15.0))),
        curtailment_usd_per_mwh=draw(st.sampled_from((0.0, 25.0))),
        import_limit_mw=draw(st.sampled_from((None, 1.2))),
    )
    return problem.sampled(samples)


def expected_cost(problem: DispatchProblem, plan: Plan) -> float:
    """A plan's expected cost slot by slot, each sample supplied at the better of the two ends of its choice."""
    load_mw, gpus = load_and_gpus(problem, plan.runs)
    if (gpus > problem.gpus).any():
        return math.inf
    limit = math.inf if problem.import_limit_mw is None else problem.import_limit_mw
    weights = [sample.weight for sample in problem.samples]
    total = sum(task.restart_usd * len(plan.of(task.name)) for task in problem.tasks)
    for sample, weight in zip(problem.samples, weights, strict=True):
        for power, price, sun in zip(load_mw.tolist(), sample.price_usd_per_mwh, sample.renewable_mw, strict=True):
            least, most = max(0.0, power - limit), min(power, sun)
            if least > most + 1e-9:
                return math.inf
            cost = min(
                price * (power - used)
                + problem.renewable_usd_per_mwh * used
                + problem.curtailment_usd_per_mwh * (sun - used)
                for used in (least, most)
            )
            total += weight / sum(weights) * cost * problem.slot_h
    return total


@settings(max_examples=25, derandomize=True, deadline=None)
@given(problem=tiny_problems())
def test_optimum_of_tiny_problems(problem: DispatchProblem) -> None:
    """The best of all plans, by its own sums; the auditor agrees; knowing is never dearer, the mean never cheaper."""
    costs = [(expected_cost(problem, plan), plan) for plan in every_plan(problem)]
    best, best_plan = min(costs, key=lambda pair: pair[0], default=(math.inf, None))
    if math.isinf(best):
        with pytest.raises(ScenarioError):
            solve(problem, relative_gap=0)
        return
    assert best_plan is not None
    assert evaluate(problem, best_plan).cost_usd == pytest.approx(best, abs=1e-9)
    mean = solve_for_mean(problem, relative_gap=0)
    found = solve_for_samples(problem, mean.plan, relative_gap=0)
    assert found.evaluation.cost_usd == pytest.approx(best, abs=1e-5)
    assert hull(problem).cost_usd <= best + 1e-6
    assert anytime(problem, relative_gap=0).bound_usd <= best + 1e-6
    value = stochastic_value(problem, found, mean.plan, relative_gap=0)
    assert value.of_perfect_information_usd >= -1e-9
    assert value.of_the_stochastic_solution_usd is None or value.of_the_stochastic_solution_usd >= -1e-9
    if len(problem.tasks) == 1:
        answer = best_response(problem, problem.tasks[0], *load_and_gpus(problem, ()))
        assert answer is not None and answer[0] == pytest.approx(best)


@settings(max_examples=50, derandomize=True, deadline=None)
@given(problem=tiny_problems(), share=st.floats(0, 1))
def test_pieces_of_supply_are_the_mean_over_samples(problem: DispatchProblem, share: float) -> None:
    """Filling the cheapest pieces first costs what the samples cost on average, up to the weakest of them."""
    pieces = expected_supply_pieces(problem)
    assert (np.diff(pieces.usd_per_mwh) <= 1e-9).all(), "dearest first"
    most = np.minimum(pieces.width_mw.sum(axis=1), 5.0)
    left, cost = share * most, np.zeros(problem.slots)
    for width, slope in zip(pieces.width_mw.T[::-1], pieces.usd_per_mwh.T[::-1], strict=True):
        filled = np.minimum(left, width)
        left, cost = left - filled, cost + filled * slope
    offset = problem.curtailment_usd_per_mwh * pieces.available_mw
    whole = ExpectedSupply.of(problem).cost_usd(share * most)
    assert cost.sum() + offset == pytest.approx(float(whole.sum()), abs=1e-6)


def test_the_program_needs_no_rows_for_samples() -> None:
    """A sample adds one column per slot."""
    plain, sampled = (build_run_model(problem).program.size for problem in (weathers().mean_value(), weathers()))
    assert sampled == (plain[0], plain[1] + 3)


# ------------------------------------------------------------------------------------------------ from a scenario


def test_scenario_by_hand() -> None:
    """Planned for 20, and paid 20 as the day turns out cloudy; who planned for the mean pays 50."""
    tables = executed(asked())
    made = tables.summary
    assert made["cost"] == pytest.approx(20) == pytest.approx(made["planned"]["cost"])
    assert made["planned"]["curtailed_mwh"] == pytest.approx(0.75) and made["curtailed_mwh"] == pytest.approx(0)
    assert made["differences"]["forecast_error"] == {"cost": pytest.approx(0), "curtailed_mwh": pytest.approx(-0.75)}
    found = made["stochastic"]
    assert (found["expected_cost"], found["mean_value_cost"], found["wait_and_see_cost"]) == pytest.approx((20, 25, 5))
    assert found["value_of_stochastic_solution"] == pytest.approx(5)
    assert found["value_of_perfect_information"] == pytest.approx(15)
    assert found["samples"]["sunny"] == pytest.approx(
        {"probability": 0.5, "cost": 20, "mean_value_cost": 0, "wait_and_see_cost": 0}
    )
    sunny = tables.extra["samples"].query("sample == 'sunny'")
    assert sunny.renewable_mw.tolist() == [1.5, 0.6, 0] and sunny.price_per_mwh.tolist() == [50, 50, 90]
    mean = executed(asked(), "mean_value").summary
    assert mean["stochastic"] is None
    assert (mean["planned"]["cost"], mean["cost"]) == (pytest.approx(25), pytest.approx(50))


def test_what_is_not_said_of_a_sample_is_as_foreseen() -> None:
    """Scales, weights, and another time of the same record: an hour later the third hour's price is there first."""
    scenario = asked(
        "start=2026-01-01T00:00:00Z",
        "duration_h=2",
        "dispatch.samples=[{name: half, weight: 3, price_scale: 2, generation_scale: 0.5}, {name: later, shift_h: 1}]",
    )
    problem = foreseen_problem(scenario)
    half, later = problem.samples
    assert (half.price_usd_per_mwh, half.renewable_mw) == ((100, 100), (0, 0.3))
    assert (later.price_usd_per_mwh, later.renewable_mw) == ((50, 10), (0.6, 0))
    assert [one.probability for one in problem.outcomes()] == [0.75, 0.25]


def test_samples_vary_about_the_forecast() -> None:
    """They say what may happen as seen beforehand; what happens is the site's own."""
    scenario = asked(
        "sites.campus.forecast={price: {type: constant, value: 7, unit: USD/MWh}}",
        "dispatch.samples=[{name: as_foreseen}, {name: dear, price_scale: 3}]",
        "dispatch.baselines=[fixed]",
    )
    problem = foreseen_problem(scenario)
    assert problem.samples[0].price_usd_per_mwh == (7, 7, 7) and problem.price_usd_per_mwh == (14, 14, 14)
    assert actual_problem(scenario).price_usd_per_mwh == (50, 50, 10)


def test_a_cloudy_sample_is_not_scaled_to_the_peak_of_the_plant() -> None:
    """A power with a ratio is scaled by the peak of what happens, in the samples and in a forecast too."""
    weak = "{type: constant, value: 0.3, unit: MW}"
    scenario = asked(
        "dispatch.renewable_ratio=0.9",
        f"sites.campus.forecast={{generation: {weak}}}",
        f"dispatch.samples=[{{name: weak, generation: {weak}}}, {{name: as_foreseen}}]",
    )
    plant_mw = scenario.dispatch.gpu.rated_mw(1000, 1) * 0.9
    assert max(actual_problem(scenario).renewable_mw) == pytest.approx(plant_mw)
    for sample in foreseen_problem(scenario).samples:
        assert sample.renewable_mw == pytest.approx([plant_mw / 2] * 3)


def test_drawn_samples_have_the_asked_statistics() -> None:
    """Standard deviations, correlation in time and with each other, from a thousand samples of constant signals."""
    scenario = asked(
        "dispatch.samples=[]",
        "duration_h=4",
        "sites.campus.price={type: constant, value: 40, unit: USD/MWh}",
        "sites.campus.generation={type: constant, value: 2, unit: MW}",
        "dispatch.drawn_samples={count: 1000, price_sd: 8, generation_sd: 0.1, correlation_h: 2}",
        "dispatch.drawn_samples.cross_correlation=-0.6",
    )
    problem = foreseen_problem(scenario)
    price = np.array([sample.price_usd_per_mwh for sample in problem.samples])
    power = np.array([sample.renewable_mw for sample in problem.samples])
    assert price.mean(axis=0) == pytest.approx([40] * 4, abs=0.8)
    assert price.std(axis=0) == pytest.approx([8] * 4, rel=0.08)
    assert power.std(axis=0) == pytest.approx([0.2] * 4, rel=0.08)
    assert np.corrcoef(price[:, 0], price[:, 2])[0, 1] == pytest.approx(math.exp(-1), abs=0.08)
    assert np.corrcoef(power[:, 1], power[:, 2])[0, 1] == pytest.approx(math.exp(-0.5), abs=0.08)
    assert np.corrcoef(price[:, 3], power[:, 3])[0, 1] == pytest.approx(-0.6, abs=0.08)
    assert problem.price_usd_per_mwh == pytest.approx(price.mean(axis=0))


def test_drawn_samples_depend_on_the_seed_alone() -> None:
    """The same seed draws the same; fewer samples are the first ones of more; no generation is negative."""
    four = foreseen_problem(asked(*DRAWN)).samples
    assert four == foreseen_problem(asked(*DRAWN)).samples
    assert four[:2] == foreseen_problem(asked(*DRAWN, "dispatch.drawn_samples.count=2")).samples
    assert four != foreseen_problem(asked(*DRAWN, "seed=1")).samples
    wild = foreseen_problem(asked(*DRAWN, "dispatch.drawn_samples.generation_sd=3")).samples
    assert min(min(sample.renewable_mw) for sample in wild) == 0


def test_what_has_become_known_is_the_same_in_all_samples() -> None:
    """A new plan at slot 1 that sees one slot ahead: only the last hour is uncertain."""
    planner = Planner(asked())
    seen = planner.forecast(Situation(1, known_slots=1))
    cloudy, sunny = seen.samples
    assert cloudy.price_usd_per_mwh == (50, 50, 10) and sunny.price_usd_per_mwh == (50, 50, 90)
    assert cloudy.renewable_mw == sunny.renewable_mw == (0, 0.6, 0) == seen.renewable_mw
    assert seen.price_usd_per_mwh == (50, 50, 50)
    rest = planner.problem(Situation(1, known_slots=1))
    assert rest.samples[1].price_usd_per_mwh == (50, 90)


def test_a_surprise_leads_to_a_new_plan_for_what_is_left() -> None:
    """The sun of the first hour does not come, so the second plan knows the weather, waits for hour 2 and pays 10."""
    replan = "policy.replan={above_mw: 0.1, known_h: 2}"
    made = executed(asked(replan))
    assert made.summary["cost"] == pytest.approx(10)
    assert made.events.event.tolist().count("replanned") == 1
    assert made.summary["stochastic"]["expected_cost"] == pytest.approx(20), "what the first plan was made for"


def test_tranches_are_planned_for_their_samples() -> None:
    """An hour of work in every three hours: the second tranche has a plan of its own, the figures are of the first."""
    constant = "{type: constant, value: %s, unit: %s}"
    scenario = asked(
        "duration_h=6",
        "dispatch.tranche_h=3",
        f"sites.campus.price={constant % (40, 'USD/MWh')}",
        f"sites.campus.generation={constant % (0.5, 'MW')}",
        "dispatch.samples=[{name: weak, generation_scale: 0}, {name: strong, generation_scale: 2}]",
        "dispatch.baselines=[]",
    )
    made = executed(scenario).summary
    assert made["segments"] == {"batch": 2} and made["solver"]["plans"] == 2
    assert made["stochastic"]["expected_cost"] == pytest.approx(20)
    assert made["planned"]["cost"] == pytest.approx(40) == pytest.approx(made["cost"])


def test_who_plans_for_the_mean_plans_as_often() -> None:
    """Both make a plan per tranche, and a new one after a surprise: the cloudy first hour leads both to hour 2."""
    tranches = "duration_h=2", "dispatch.tranche_h=1"
    assert executed(asked(*tranches), "mean_value").summary["solver"]["plans"] == 2
    tables = executed(asked("policy.replan={above_per_mwh: 1, above_mw: 0.1, known_h: 2}"), "mean_value")
    assert tables.events.event.tolist().count("replanned") == 1


def test_baselines_answer_for_all_samples_too() -> None:
    """A flat plan's promise is an expected cost; a plan for the mean that does not fit is none."""
    assert executed(asked(), "fixed").summary["planned"]["cost"] == pytest.approx(25)
    narrow = asked("dispatch.import_limit_mw=0.5")
    assert simulate(narrow, DispatchRun("mean_value")) == {}
    assert executed(narrow).summary["stochastic"]["mean_value_breaks"]


def test_a_plan_of_the_users_own_is_judged_by_the_samples(tmp_path: Path) -> None:
    """It is executed, and promises its expected cost; what other plans would be worth is not asked."""
    task = Run(task="batch", mode="all", segments=1, start_slot=2)
    path = tmp_path / "plan.json"
    path.write_text(Plan(slot_h=1, runs=(task,)).to_json())
    made = executed(asked(f"policy.plan={path}")).summary
    assert (made["planned"]["cost"], made["cost"]) == (pytest.approx(50), pytest.approx(10))
    assert made["stochastic"] is None


def test_without_a_solver_the_heuristic_plans_for_samples(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same plan, exact for one task, with nothing proved."""
    monkeypatch.setattr("curtailsim.dispatch.solver.solver_available", lambda: False)
    found = executed(asked("dispatch.comparators=[]")).summary["stochastic"]
    assert found["value_of_stochastic_solution"] == pytest.approx(5)
    assert found["value_of_stochastic_solution_at_most"] is None
    assert found["value_of_perfect_information_at_most"] is None


# ------------------------------------------------------------------------------------------------- files, mistakes


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dispatch.samples[1].name=cloudy"], "dispatch.samples[1]  'cloudy' is there twice"),
        (["dispatch.samples[0].weight=0"], "dispatch.samples[0].weight"),
        (["dispatch.samples[0].wieght=2"], "did you mean 'weight'"),
        (["dispatch.samples[1].shift_h=48"], "dispatch.samples[1].price"),
        (["dispatch.samples[1].price.unit=EUR/MWh"], "must be in USD, as the site's price (got EUR)"),
        (["sites.campus.forecast={price: {type: constant, value: 1, unit: EUR/MWh}}"], "must be in USD"),
        (["dispatch.samples[1].generation.unit=fraction"], "dispatch.samples[1].generation.unit"),
        (["dispatch.samples[1].generation.path=gone.csv"], "dispatch.samples[1].generation"),
        (["sites.campus.generation=null"], "dispatch.samples[1].generation  is about a generation that"),
        (["dispatch.drawn_samples={count: 3, price_sd: 1, generation_sd: 0, correlation_h: 1}"], "a second source"),
        ([DRAWN[0]], "dispatch.baselines[1]  'mean_value' needs samples"),
        ([*DRAWN, "sites.campus.generation=null"], "dispatch.drawn_samples.generation_sd"),
        ([*DRAWN, "dispatch.drawn_samples.count=0"], "dispatch.drawn_samples.count"),
        ([*DRAWN, "dispatch.drawn_samples.cross_correlation=2"], "dispatch.drawn_samples.cross_correlation"),
        ([*DRAWN, "dispatch.drawn_samples.correlation_h=0"], "dispatch.drawn_samples.correlation_h"),
    ],
)
def test_mistakes(overrides: list[str], message: str) -> None:
    """Each with its path and what to do."""
    with pytest.raises(ScenarioError) as caught:
        asked(*overrides)
    assert message in str(caught.value)


def test_results_and_report(tmp_path: Path) -> None:
    """The folder reads back, the report says what planning for samples is worth, the figure has the samples."""
    results = run(asked(), tmp_path / "weathers")
    text = shown(results)
    assert "value of the stochastic solution" in text and "planned costs are expected ones" in text
    assert "Samples: cloudy, sunny" in text
    assert (results.path / OPTIMUM / "samples.csv").is_file()
    assert dump(load(results.path / "scenario.yaml")) == (results.path / "scenario.yaml").read_text()
    again = run(load(results.path / "scenario.yaml"), tmp_path / "again")
    assert again.summary["digest"] == results.summary["digest"]
    many = run(asked(*DRAWN, "dispatch.drawn_samples.count=14", "dispatch.comparators=[]"), tmp_path / "many")
    assert "and 2 more" in shown(many) and "14 drawn around the forecast; deviations 8 per MWh" in shown(many)
    narrow = run(asked("dispatch.import_limit_mw=0.5", "dispatch.comparators=[]"), tmp_path / "narrow")
    assert "cannot be carried out in every sample: imports 1.0000 MW" in shown(narrow)
    assert "mean_value" in narrow.summary["impossible"]
    plain = run(asked(DRAWN[0], "name=plain", "dispatch.baselines=[]", "dispatch.comparators=[]"), tmp_path / "plain")
    assert "stochastic" not in shown(plain)
