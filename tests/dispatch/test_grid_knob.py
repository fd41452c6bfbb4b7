"""A dispatch plan on the clock: scenario, plan, execution, deviations, results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from dispatch_worlds import shown
from typer.testing import CliRunner

from curtailsim.cli import app
from curtailsim.dispatch.planner import OPTIMUM, Planner, Situation
from curtailsim.dispatch.run import DispatchRun, saved_share, simulate
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.energy.signals import Steps
from curtailsim.metrics import RunTables
from curtailsim.results import Results, run
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError
from curtailsim.training.specs import GptLearner
from curtailsim.training.tasks import TaskLearner, real_steps

pytest.importorskip("highspy")

SCENARIOS = Path(__file__).parents[2] / "scenarios"
QUICK = ("dispatch.slot_h=1", "dispatch.tasks.*.segments=2", "dispatch.baselines=[fixed]", "dispatch.comparators=[]")
TOKENS_ONLY = "training.learner={type: tokens_only}"
A100_IDLE_MW_PER_GPU = 1.2 * 200 / 1e6  # PUE x (60 W board + 140 W host), docs/grid_knob.md

PLAIN = ("dispatch.baselines=[]", "dispatch.comparators=[]")


def quick(*overrides: str) -> DispatchScenario:
    """The reference day on hourly slots, two segments a task, no real learner."""
    found = load(SCENARIOS / "grid_knob.yaml", [*QUICK, TOKENS_ONLY, *overrides])
    assert isinstance(found, DispatchScenario)
    return found


def executed(scenario: DispatchScenario, name: str = OPTIMUM) -> RunTables:
    """The tables of one run."""
    return simulate(scenario, DispatchRun(name))[name]


def happened(tables: RunTables, *names: str) -> list[tuple[float, str, str]]:
    """(hour, event, site) of the events of these names."""
    rows = tables.events[tables.events.event.isin(names)]
    return [(time / 3600, event, site) for time, event, site in zip(rows.time_s, rows.event, rows.site, strict=True)]


@pytest.fixture(scope="module")
def day() -> RunTables:
    """The dispatched reference day."""
    return executed(quick())


# ------------------------------------------------------------------------------------------------- planned, realised


def test_energy_of_the_run_is_that_of_the_plan(day: RunTables) -> None:
    """No jitter, no deviation: the ledger and the plan agree to a millionth."""
    assert day.summary["planned"]["load_mwh"] == pytest.approx(day.summary["load_mwh"], rel=1e-6)
    assert day.summary["energy_kwh"] / 1000 == pytest.approx(day.summary["load_mwh"], rel=1e-9)
    assert day.summary["finished"]


def test_causes_add_up(day: RunTables) -> None:
    """Planned cost and curtailment plus what every cause adds are the realised ones; only slots differ here."""
    summary = day.summary
    for key in ("cost", "curtailed_mwh"):
        added = {cause: found[key] for cause, found in summary["differences"].items()}
        assert summary["planned"][key] + math.fsum(added.values()) == pytest.approx(summary[key], abs=1e-9)
        for cause in ("forecast_error", "deviations", "supply_order"):
            assert added[cause] == pytest.approx(0, abs=1e-4)
    assert summary["cost"] == pytest.approx(
        summary["energy_cost"] + 25 * summary["curtailed_mwh"] + summary["restart_cost"]
    )
    assert summary["restart_cost"] == pytest.approx(sum(summary["restarts"].values()))


def test_ledger_is_idle_pool_plus_increments(day: RunTables) -> None:
    """At every instant the facility draws the idle pool and what each task adds."""
    tasks, ledger = day.extra["tasks"], day.intervals
    for row in ledger.itertuples():
        middle = (row.start_s + row.end_s) / 2
        now = tasks[(tasks.start_s <= middle) & (middle < tasks.end_s)]
        assert len(now) == 2
        assert row.facility_kw == pytest.approx(2048 * A100_IDLE_MW_PER_GPU * 1000 + now.increment_kw.sum())
        assert now.gpus.sum() <= 2048
    assert ledger.start_s.iloc[0] == 0 and ledger.end_s.iloc[-1] == 86_400
    assert np.array_equal(ledger.start_s[1:], ledger.end_s[:-1])


def test_segments_are_whole_and_modes_change_only_between_runs(day: RunTables) -> None:
    """Restore, then segments each with its checkpoint, in one mode, without a gap; then wait."""
    for _, rows in day.extra["tasks"].groupby("task"):
        phases = rows.phase.tolist()
        modes = rows["mode"].tolist()
        assert np.array_equal(rows.start_s[1:], rows.end_s[:-1])
        for before, after, old, new in zip(phases, phases[1:], modes, modes[1:], strict=False):
            allowed = {
                "waiting": {"restoring"},
                "restoring": {"training"},
                "training": {"checkpointing"},
                "checkpointing": {"training", "waiting", "restoring"},
            }
            assert after in allowed[before]
            if after in ("training", "checkpointing"):
                assert old == new
        assert phases.count("checkpointing") == 2


def test_summary_has_what_the_issue_asks_for(day: RunTables) -> None:
    """Cost, curtailment, green share, modes and segments of a run."""
    summary = day.summary
    assert {"cost", "curtailed_mwh", "green_share", "modes_used", "segments"} <= set(summary)
    assert summary["segments"] == {"llama_7b": 2, "llama_70b": 2}
    assert summary["modes_used"] == {name: len(found) for name, found in summary["modes"].items()}
    assert summary["tokens"] == pytest.approx(96e9, rel=1e-3)


def test_flat_plan_by_hand() -> None:
    """256 and 1,024 GPUs from the start: idle pool, five minutes of restore, then training to the end."""
    tables = executed(quick("sites.campus.price={type: constant, value: 50, unit: USD/MWh}"), "fixed")
    idle = 24 * 2048 * A100_IDLE_MW_PER_GPU
    restore = 1.2 * 140 / 1e6 * (256 + 1024) * 5 / 60
    hours = 70e9 / 842_295.4 / 3600 + 1 / 60, 26e9 / 312_264.2 / 3600 + 1 / 60  # two checkpoints of 30 s
    training = 0.124685 * hours[0] + 0.464079 * hours[1]
    assert tables.summary["load_mwh"] == pytest.approx(idle + restore + training, rel=1e-5)
    grid = tables.summary["grid_import_kwh"] / 1000
    assert tables.summary["energy_cost"] == pytest.approx(50 * grid)
    assert tables.summary["modes"] == {"llama_7b": ["tp2-pp2-dp64"], "llama_70b": ["tp4-pp4-dp64"]}


def test_signals_become_exact_slot_means() -> None:
    """A step function that changes inside a slot counts with its time."""
    steps = Steps([0, 1000, 4000], [2.0, 4.0, 10.0])
    assert steps.means([0, 2000, 4000, 8000]).tolist() == [3.0, 4.0, 10.0]


def test_power_is_scaled_by_its_own_peak_and_a_profile_as_it_stands() -> None:
    """The ratio is one of capacities; 0.9 of 2,048 x 640 W x 1.2."""
    plant_mw = 0.9 * 2048 * 640 * 1.2 / 1e6
    assert max(Planner(quick()).actual.renewable_mw) == pytest.approx(plant_mw)
    half = "sites.campus.generation={type: constant, value: 0.5, unit: fraction}"
    assert Planner(quick(half)).actual.renewable_mw == pytest.approx((plant_mw / 2,) * 24)
    power = "sites.campus.generation={type: constant, value: 7, unit: MW}"
    assert Planner(quick(power)).actual.renewable_mw == pytest.approx((plant_mw,) * 24)


# ------------------------------------------------------------------------------------------------------- real training


def test_pausing_and_resuming_changes_no_bit() -> None:
    """A11: segments on new processes, restored from checkpoints, give the weights of an uninterrupted run."""
    spec = GptLearner(layers=1, heads=1, width=16, sequence_bytes=32, batch_sequences=4)
    straight, paused = (TaskLearner(spec, "a", ["a", "b"], 0, 400, 10) for _ in range(2))
    losses = straight.train_segment(0, 400)
    pieces = []
    for first, last in ((0, 95), (95, 200), (200, 205), (205, 400)):
        paused.restore()
        pieces += paused.train_segment(first, last)
    assert losses == pieces and len(losses) == 40
    for name, weights in straight.weights().items():
        assert np.array_equal(weights, paused.weights()[name])


def test_real_steps_do_not_depend_on_where_segments_end() -> None:
    """The first of every stride, whatever the segments."""
    whole = real_steps(0, 100, 7)
    assert whole[:3] == [1, 8, 15]
    assert whole == [step for first in range(0, 100, 9) for step in real_steps(first, min(first + 9, 100), 7)]


def test_every_plan_learns_the_same() -> None:
    """Modes and pauses set speed and power, never the mathematics: same losses, same weights, other times."""
    tiny = "training.learner={type: gpt, layers: 1, heads: 1, width: 16, sequence_bytes: 32, batch_sequences: 4}"
    scenario = load(SCENARIOS / "grid_knob.yaml", [*QUICK, tiny, "training.stride=500"])
    plan, fixed = executed(scenario), executed(scenario, "fixed")
    assert plan.weights_sha256 == fixed.weights_sha256 is not None
    own, other = (made.loss.sort_values(["site", "step"]) for made in (plan, fixed))
    assert own.loss.tolist() == other.loss.tolist() and len(own) == plan.summary["real_steps"]
    assert own.time_s.tolist() != other.time_s.tolist()
    assert {"cost", "surplus_wasted_kwh", "tokens"} <= set(plan.loss.columns)


# ---------------------------------------------------------------------------------------------------------- deviations


def test_failure_loses_the_segment_under_way_and_plans_anew() -> None:
    """Two hours without power: nothing draws any, the lost segment is trained again, and all of it is finished."""
    tables = executed(quick("sites.campus.failures=[{at_h: 2.5, duration_h: 2}]"))
    names = [event for _, event, _ in happened(tables, "site_failed", "site_restored", "replanned")]
    assert names == ["site_failed", "site_restored", "replanned"]
    assert happened(tables, "replanned")[0][0] == 5.0  # the first slot that starts after 4.5 h
    dark = tables.intervals[(tables.intervals.start_s >= 9000) & (tables.intervals.end_s <= 16_200)]
    assert dark.facility_kw.max() == 0 and dark.end_s.max() - dark.start_s.min() == 7200
    assert len(happened(tables, "task_interrupted")) >= 1
    assert tables.summary["finished"]
    assert tables.summary["differences"]["deviations"]["cost"] != 0


def test_an_outage_may_outlast_the_horizon() -> None:
    """Nothing is asked of the plan's energy then, and what was not trained is reported."""
    made = executed(quick("sites.campus.failures=[{at_h: 10, duration_h: 100}]")).summary
    assert not made["finished"] and made["energy_difference"] < -0.3


def test_late_failure_gives_up_what_cannot_be_trained() -> None:
    """After an outage of most of the day no plan trains everything; what is given up is named."""
    tables = executed(quick("sites.campus.failures=[{at_h: 1, duration_h: 18}]"))
    given_up = tables.events[tables.events.event == "segments_given_up"]
    assert len(given_up) > 0 and not tables.summary["finished"]
    for name, asked in tables.summary["segments_asked"].items():
        lost = given_up[given_up.site == name]["round"].sum()
        assert tables.summary["segments"][name] == asked - lost


def test_baseline_goes_on_in_its_mode_after_a_failure() -> None:
    """Flat training has no plan to make anew: the rest follows as soon as there is power."""
    tables = executed(quick("sites.campus.failures=[{at_h: 2.5, duration_h: 2}]"), "fixed")
    assert [hour for hour, _, _ in happened(tables, "task_started")] == [0, 0, 5, 5]
    assert tables.summary["modes_used"] == {"llama_7b": 1, "llama_70b": 1}
    assert not tables.summary["finished"]  # 23.3 h do not fit into what is left


def test_forecast_error_triggers_a_new_plan_from_the_last_checkpoint() -> None:
    """A flat day was foreseen, a real one comes: the plan is made anew, and the error is a cause of its own."""
    price = "{type: constant, value: 30, unit: USD/MWh}"
    forecast = f"sites.campus.forecast={{price: {price}, generation: {{type: constant, value: 0.3, unit: fraction}}}}"
    replan = "policy.replan={above_mw: 0.1, above_per_mwh: 10, known_h: 24}"
    more = "dispatch.tasks.*.segments=4"
    blind, awake = executed(quick(forecast, more)), executed(quick(forecast, more, replan))
    assert not happened(blind, "replanned") and happened(awake, "replanned")
    assert blind.summary["differences"]["forecast_error"]["cost"] != 0
    assert blind.summary["differences"]["deviations"]["cost"] == pytest.approx(0, abs=1e-4)
    assert awake.summary["cost"] < blind.summary["cost"]
    assert awake.summary["finished"] and blind.summary["finished"]


def test_started_runs_are_never_touched_by_a_new_plan() -> None:
    """A plan made in the middle commits the run under way to its checkpoint."""
    planner = Planner(quick())
    first = planner.plan(Situation(0))
    early = tuple(old for old in first.runs if old.start_slot < 3)
    second = planner.plan(Situation(3, early))
    for new in second.runs:
        mine = [old for old in early if old.task == new.task]
        task = planner.foreseen.task(new.task)
        for old in mine:
            end_h = old.start_slot + task.run_h(task.mode(old.mode), old.segments)
            assert new.start_slot >= math.ceil(end_h - 1e-6)


def test_rolling_days_finish_their_tranches_by_midnight(tmp_path: Path) -> None:
    """Two days, planned at each midnight; a tranche is done when its day is over."""
    scenario = load(
        SCENARIOS / "grid_knob_caiso_week.yaml",
        [*QUICK, TOKENS_ONLY, "duration_h=48", "dispatch.gap=0.02"],
    )
    tables = executed(scenario)
    assert [hour for hour, _, _ in happened(tables, "plan_computed")] == [0, 24]
    for name in ("llama_7b", "llama_70b"):
        first_day = tables.rounds[(tables.rounds.sites == name) & (tables.rounds.time_s <= 86_400)]
        assert len(first_day) == 2
    assert tables.summary["finished"]
    assert tables.summary["planned"]["load_mwh"] == pytest.approx(tables.summary["load_mwh"], rel=1e-6)


def test_looking_ahead_moves_work_to_the_cheap_day(tmp_path: Path) -> None:
    """Power costs 10 today and 1,000 tomorrow: who looks ahead trains both tranches today, who does not trains one."""
    (tmp_path / "price.csv").write_text(
        "time,price\n2026-01-01T00:00:00Z,10\n2026-01-02T00:00:00Z,1000\n2026-01-03T00:00:00Z,1\n"
    )
    scenario = {
        "name": "two_days",
        "start": "2026-01-01T00:00:00Z",
        "duration_h": 48,
        "sites": [
            {
                "name": "campus",
                "price": {"type": "trace", "path": str(tmp_path / "price.csv"), "value": "price", "unit": "USD/MWh"},
            }
        ],
        "policy": {"type": "dispatch_plan"},
        "dispatch": {
            "pool_gpus": 512,
            "tasks": [{"name": "only", "model": "Llama-2-7B", "tokens": 40e9, "segments": 2}],
            "tranche_h": 24,
            "slot_h": 1,
            "baselines": [],
        },
        "training": {"learner": {"type": "tokens_only"}},
    }
    trained_today = []
    for look_ahead in (1, 2):
        tables = executed(load(scenario, [f"dispatch.look_ahead_tranches={look_ahead}"]))
        assert tables.summary["finished"] and len(tables.rounds) == 4
        trained_today.append(int((tables.rounds.time_s <= 86_400).sum()))
    assert trained_today == [2, 4]


# -------------------------------------------------------------------------------------------------- scenario and files


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A results folder of the quick day."""
    return run(quick("dispatch.comparators=[linear, hull]"), tmp_path_factory.mktemp("runs") / "day")


def test_results_folder_is_like_any_other(folder: Results) -> None:
    """Manifest, resolved scenario, tables, plan, figures; the resolved scenario loads to the same one."""
    assert folder.manifest["status"] == "complete" and folder.runs == [OPTIMUM, "fixed"]
    for table in ("events", "intervals", "loss", "rounds", "segments", "tasks"):
        assert isinstance(pd.read_csv(folder.path / OPTIMUM / f"{table}.csv"), pd.DataFrame)
    assert set(folder.tasks().task) == {"llama_7b", "llama_70b"} and len(folder.intervals(OPTIMUM)) > 24
    assert {path.name for path in folder.path.glob("*.png")} == {"dispatch.png", "costs.png"}
    again = load(folder.path / "scenario.yaml")
    assert dump(again) == (folder.path / "scenario.yaml").read_text()
    text = json.dumps(folder.summary)
    assert "time_s" not in text  # wall time is in solver.json and nowhere else


def test_comparators_are_ordered(folder: Results) -> None:
    """Linear and hull promise more than the plan; the savings name their reference."""
    summary = folder.summary
    plan = summary["runs"][OPTIMUM]["planned"]["cost"]
    assert summary["comparators"]["hull"]["cost"] <= plan <= summary["runs"]["fixed"]["planned"]["cost"]
    assert summary["comparators"]["linear"]["overstated"] > 0.1
    assert 0.1 < summary["savings"]["fixed"]["cost_cut"] < summary["savings"]["fixed"]["cost_cut_planned"] < 0.25
    assert {name: found["usable"] for name, found in summary["catalogue"].items()} == {
        "llama_7b": 135,
        "llama_70b": 111,
    }


def test_same_scenario_same_bytes(folder: Results, tmp_path: Path) -> None:
    """Twice the same, and the same again when its plan is read from a file."""
    twice = run(quick("dispatch.comparators=[linear, hull]"), tmp_path / "twice")
    assert twice.summary["digest"] == folder.summary["digest"]
    plan = folder.path / OPTIMUM / "plan.json"
    from_file = run(quick(f"policy.plan={plan}", "dispatch.baselines=[]"), tmp_path / "file")
    tables = [results.path / OPTIMUM / "intervals.csv" for results in (folder, from_file)]
    assert tables[0].read_bytes() == tables[1].read_bytes()


def test_plan_that_does_not_fit_is_refused_with_all_its_mistakes(folder: Results, tmp_path: Path) -> None:
    """A file with a plan for another problem says why it is none for this one."""
    plan = folder.path / OPTIMUM / "plan.json"
    with pytest.raises(ScenarioError, match="must train 4 segments") as caught:
        run(quick(f"policy.plan={plan}", "dispatch.tasks.*.segments=4"), tmp_path / "no")
    assert len(caught.value.problems) == 2
    assert not (tmp_path / "no").exists()


def test_report_shows_system_two(folder: Results) -> None:
    """Runs, comparators, causes and tasks, each under its name."""
    shown = CliRunner().invoke(app, ["report", str(folder.path)]).output
    for text in ("dispatch_plan", "saved by", "overstated by", "slot averaging", "llama_70b", "of the optimum"):
        assert text in shown


def test_a_saving_is_a_share_of_what_there_is_to_save() -> None:
    """Who is paid 20 where another is paid 10 has gained as much again; of nothing there is no share."""
    assert saved_share(50, 40) == pytest.approx(0.2)
    assert saved_share(-10, -20) == pytest.approx(1)
    assert saved_share(0, -5) is None and saved_share(None, 1) is None


def test_energy_may_be_free(tmp_path: Path) -> None:
    """A price of zero leaves nothing to save, and no traceback."""
    free = "sites.campus.price={type: constant, value: 0, unit: USD/MWh}"
    spare = "dispatch.curtailment_per_mwh=0", "dispatch.tasks.*.restart_cost=0", "dispatch.comparators=[hull]"
    summary = run(quick(free, *spare, "dispatch.baselines=[fixed]"), tmp_path / "free").summary
    assert summary["savings"]["fixed"]["cost_cut"] is None is summary["comparators"]["hull"]["overstated"]


def test_too_small_a_pool_says_what_is_missing(tmp_path: Path) -> None:
    """A7: 1,152 GPUs cannot train both tranches; exit code 2, the tranche, and the GPU-hours it lacks."""
    arguments = [str(SCENARIOS / "grid_knob.yaml"), "--out", str(tmp_path / "no"), "--quiet", "--set", TOKENS_ONLY]
    for override in (*QUICK, "dispatch.pool_gpus=1152", "dispatch.renewable_ratio_gpus=2048"):
        arguments += ["--set", override]
    found = CliRunner().invoke(app, ["run", *arguments])
    assert found.exit_code == 2
    assert "GPU-hours are missing" in found.output and "lower the tranche or add GPUs" in found.output


def test_measured_modes_are_planned_with() -> None:
    """Speed and power of a measured mode are the measured ones; it adds what is above its idle share."""
    measured = "dispatch.tasks[0].measurements=[{mode: tp2-pp2-dp64, tokens_per_s: 9e5, facility_mw: 0.15}]"
    plain, own = (Planner(quick(*more)).foreseen.tasks[0].mode("tp2-pp2-dp64") for more in ((), (measured,)))
    assert own.tokens_per_s == 9e5 > plain.tokens_per_s
    assert own.training_increment_mw == pytest.approx(0.15 - 1.2 * 256 * 200e-6)
    with pytest.raises(ScenarioError, match=r"tasks\[0\].measurements\[0\].mode +'tp3' is no usable mode"):
        quick("dispatch.tasks[0].measurements=[{mode: tp3, tokens_per_s: 1, facility_mw: 1}]")


@pytest.mark.parametrize("megawatts", [0.05, 185])
def test_a_measured_power_must_be_possible(megawatts: float) -> None:
    """256 GPUs draw 61 kW when idle and at most 197; anything far from it is another unit."""
    with pytest.raises(
        ScenarioError, match=r"measurements\[0\].facility_mw +must be the facility power of its 256 GPUs"
    ):
        quick(f"dispatch.tasks[0].measurements=[{{mode: tp2-pp2-dp64, tokens_per_s: 9e5, facility_mw: {megawatts}}}]")


def test_what_went_wrong_on_the_clock_is_said(tmp_path: Path) -> None:
    """More import than the connection carries, as the forecast promised sun; work that an outage left undone."""
    sunny = "sites.campus.forecast={generation: {type: constant, value: 1, unit: fraction}}"
    weak = run(quick(sunny, "dispatch.import_limit_mw=0.6", *PLAIN), tmp_path / "weak")
    above = weak.summary["runs"][OPTIMUM]["import_above_limit"]
    assert above["slots"] > 0 and f"in {above['slots']} slots, by up to {above['most_mw']:.3f} MW" in shown(weak)
    dark = run(quick("sites.campus.failures=[{at_h: 10, duration_h: 100}]", *PLAIN), tmp_path / "dark")
    assert "left segments or units untrained" in shown(dark) and "imports more" not in shown(dark)


def test_without_a_solver_a_heuristic_plans(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan is executed all the same, nothing is said to be proved, and what needs HiGHS says so."""
    for module in ("dispatch.solver", "dispatch.planner"):
        monkeypatch.setattr(f"curtailsim.{module}.solver_available", lambda: False)
    scenario = quick("dispatch.baselines=[fixed, pause_only]", "dispatch.comparators=[hull, heuristic]")
    results = run(scenario, tmp_path / "day")
    summary = results.summary
    assert shown(results).count("pip install 'curtailsim[dispatch]'") == 2
    assert summary["runs"][OPTIMUM]["solver"] == {"status": "heuristic", "bound": None, "gap": None, "plans": 1}
    assert summary["runs"][OPTIMUM]["finished"] and summary["comparators"]["heuristic"]["cost"] > 0
    assert "needs HiGHS" in summary["impossible"]["pause_only"]
    assert "needs HiGHS" in summary["comparators"]["hull"]["reason"]


def test_mistakes_are_listed_together() -> None:
    """Every mistake with its path, as in any other scenario."""
    with pytest.raises(ScenarioError) as caught:
        load(
            SCENARIOS / "grid_knob.yaml",
            ["dispatch.tasks[0].model=Llama-2-7", "dispatch.gap=0", "dispatch.pool=3", "policy.type=dispatch"],
        )
    text = str(caught.value)
    for part in (
        "dispatch.tasks[0].model",
        "did you mean 'Llama-2-7B'",
        "dispatch.gap",
        "dispatch.pool ",
        "policy.type",
    ):
        assert part in text


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["dispatch.slot_h=0.7"], "must divide duration_h"),
        (["dispatch.tranche_h=5"], "must divide duration_h"),
        (["dispatch.tasks[1].name=llama_7b"], "is there twice"),
        (["dispatch.renewable_ratio=null"], "add dispatch.renewable_ratio"),
        (["dispatch.pool_gpus=8"], "has no usable mode on 8 GPUs"),
        (["policy.plan=nowhere.json"], "is no file"),
        (["policy.replan={known_h: 3}"], "needs above_mw or above_per_mwh"),
        (["sites[0].failures=[{at_h: 30, duration_h: 1}]"], "must be below duration_h"),
        (["duration_h=48"], "sites[0].price"),
    ],
    ids=["slot", "tranche", "names", "ratio", "modes", "plan", "replan", "failure", "trace"],
)
def test_cross_checks(overrides: list[str], message: str) -> None:
    """What no single key shows is found when the scenario is loaded."""
    with pytest.raises(ScenarioError) as caught:
        load(SCENARIOS / "grid_knob.yaml", overrides)
    assert message in str(caught.value)


# --------------------------------------------------------------------------------------------------------- acceptance


@pytest.mark.slow
def test_headline(tmp_path: Path) -> None:
    """A4 and A5 on the clock: the reference day with half-hour slots and twelve segments."""
    overrides = [TOKENS_ONLY, "dispatch.baselines=[fixed]", "dispatch.comparators=[linear, delay]"]
    summary: dict[str, Any] = run(load(SCENARIOS / "grid_knob.yaml", overrides), tmp_path / "day").summary
    plan, fixed = summary["runs"][OPTIMUM], summary["runs"]["fixed"]
    saved = summary["savings"]["fixed"]
    assert 0.185 <= saved["cost_cut_planned"] <= 0.205 and 0.175 <= saved["cost_cut"] <= 0.20
    assert fixed["curtailed_mwh"] == pytest.approx(1.032, abs=0.001)
    assert plan["planned"]["curtailed_mwh"] <= 0.05 and plan["curtailed_mwh"] <= 0.15
    assert all(1 <= count <= 4 for count in plan["modes_used"].values())
    assert summary["comparators"]["linear"]["overstated"] >= 0.10
    assert summary["comparators"]["delay"]["overstated"] > 0
    assert plan["solver"]["status"] == "optimal" and plan["solver"]["gap"] <= 0.005


@pytest.mark.slow
def test_week(tmp_path: Path) -> None:
    """Seven plans, one a day, each carried out; the week saves and curtails less."""
    summary = run(load(SCENARIOS / "grid_knob_caiso_week.yaml", [TOKENS_ONLY]), tmp_path / "week").summary
    plan = summary["runs"][OPTIMUM]
    assert plan["solver"]["plans"] == 7 and plan["finished"]
    assert summary["savings"]["fixed"]["cost_cut"] > 0.1
    assert plan["curtailed_mwh"] < summary["runs"]["fixed"]["curtailed_mwh"]
