"""Several data centres: where and when tasks train, what is moved, and what that is worth."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from typer.testing import CliRunner

from curtailsim.cli import app
from curtailsim.dispatch import solver
from curtailsim.dispatch.centres import (
    Centre,
    CentresPlan,
    CentresProblem,
    Move,
    PlacedRun,
    Transfer,
    audit_plan,
    evaluate,
    solve,
)
from curtailsim.dispatch.centres_clock import FIXED_PLACEMENT, centres_problem
from curtailsim.dispatch.centres_run import simulate
from curtailsim.dispatch.centres_scenario import CentresScenario
from curtailsim.dispatch.plan import Supply, run_increments_mw
from curtailsim.dispatch.planner import OPTIMUM, Planner
from curtailsim.dispatch.problem import DispatchProblem, Mode, Task
from curtailsim.dispatch.run import DispatchRun
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.metrics import RunTables
from curtailsim.results import run
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError

pytest.importorskip("highspy")

SCENARIOS = Path(__file__).parents[2] / "scenarios"
TWO = SCENARIOS / "grid_knob_two_centres.yaml"
TOKENS_ONLY = "training.learner={type: tokens_only}"
TINY = "training.learner={type: gpt, layers: 1, heads: 1, width: 16, sequence_bytes: 32, batch_sequences: 4}"
EXACT = 1e-6


def task(name: str = "only", power_mw: float = 1.0, segments: int = 2, gpus: int = 100) -> Task:
    """Segments of one hour in one mode; no time is lost at a restart, which costs one dollar."""
    mode = Mode(label="m", gpus=gpus, tokens_per_s=1, training_increment_mw=power_mw, restoring_increment_mw=0)
    return Task(name=name, modes=(mode,), tokens=3600 * segments, segments=segments, restart_h=0, checkpoint_h=0)


def centre(name: str, prices: tuple[float, ...], *tasks: Task, gpus: int = 100, **more: object) -> Centre:
    """A centre on hourly slots whose idle pool draws nothing."""
    renewable = more.pop("renewable_mw", (0.0,) * len(prices))
    problem = {
        "tasks": tasks,
        "slot_h": 1,
        "price_usd_per_mwh": prices,
        "renewable_mw": renewable,
        "gpus": gpus,
        "idle_mw": 0,
        **more,
    }
    return Centre(name=name, problem=DispatchProblem.model_validate(problem))


WEST, EAST = (10.0, 100.0, 100.0, 100.0), (100.0, 100.0, 10.0, 100.0)


def two(energy_mwh: float = 0.2, **homes: str) -> CentresProblem:
    """Power is cheap in the first hour in the west and in the third in the east; a transfer takes half an hour."""
    transfer = Transfer(task="only", hours=0.5, energy_mwh=energy_mwh)
    centres = (centre("west", WEST, task()), centre("east", EAST, task()))
    return CentresProblem(centres=centres, transfers=(transfer,), homes=homes)


def placed(site: str, start_slot: int, segments: int = 1, name: str = "only") -> PlacedRun:
    """A run of the only mode."""
    return PlacedRun(task=name, mode="m", segments=segments, start_slot=start_slot, site=site)


# ----------------------------------------------------------------------------------------------------------- by hand


def test_optimum_by_hand() -> None:
    """10 in the west, 0.2 MWh x 100 for the transfer, 10 in the east, two restarts: 42; in one place 111."""
    found, stay = solve(two(), relative_gap=EXACT), solve(two(), moving=False, relative_gap=EXACT)
    assert found.accounts.cost_usd == pytest.approx(10 + 20 + 10 + 2)
    assert found.plan.moves == (Move(task="only", origin="west", destination="east", start_slot=1),)
    assert [(r.site, r.start_slot) for r in found.plan.runs] == [("west", 0), ("east", 2)]
    assert {name: part.cost_usd for name, part in found.accounts.by_centre.items()} == pytest.approx(
        {"west": 31, "east": 11}
    )
    assert stay.accounts.cost_usd == pytest.approx(10 + 100 + 1) and stay.plan.moves == ()


def test_dear_transfer_is_not_worth_it() -> None:
    """At 1 MWh a transfer costs 100, more than the 69 it would save beside its own energy."""
    assert solve(two(energy_mwh=1.0), relative_gap=EXACT).plan.moves == ()


def test_home_is_where_a_task_starts() -> None:
    """From the east: with moves it goes west never (its cheap hour is over on arrival); without it stays east."""
    found = solve(two(only="east"), relative_gap=EXACT)
    assert found.accounts.cost_usd == pytest.approx(10 + 100 + 1)
    assert {r.site for r in found.plan.runs} == {"east"}
    first = solve(two(only="west"), relative_gap=EXACT)
    assert first.accounts.cost_usd == pytest.approx(42)


def test_nothing_is_moved_only_to_burn_energy() -> None:
    """Surplus costs 1,000 per MWh left unused, yet a transfer has to be followed by training at its destination."""
    renewable = (0.0, 0.0, 0.0, 5.0)
    problem = CentresProblem(
        centres=(
            centre("west", (1.0,) * 4, task(), renewable_mw=renewable, curtailment_usd_per_mwh=1000),
            centre("east", (1.0,) * 4, task(), renewable_mw=renewable, curtailment_usd_per_mwh=1000),
        ),
        transfers=(Transfer(task="only", hours=1, energy_mwh=3),),
    )
    found = solve(problem, relative_gap=EXACT)
    assert found.plan.moves == () and audit_plan(problem, found.plan) == []


# ------------------------------------------------------------------------------------------------------- brute force


def paths(problem: CentresProblem, name: str) -> Iterator[tuple[list[PlacedRun], list[Move]]]:
    """Every way to train a task: at each hour wait, train some segments, or leave if a run ended here."""
    places, total = problem.places(name), problem.segments(name)
    move_slots = math.ceil(problem.transfer(name).hours)

    def onward(
        t: int, site: str, done: int, may_move: bool, runs: list[PlacedRun], moves: list[Move]
    ) -> Iterator[tuple[list[PlacedRun], list[Move]]]:
        if done == total:
            yield runs, moves
            return
        if t >= problem.slots:
            return
        yield from onward(t + 1, site, done, may_move, runs, moves)
        for count in range(1, total - done + 1):
            if t + count <= problem.slots:
                more = [*runs, placed(site, t, count, name)]
                yield from onward(t + count, site, done + count, True, more, moves)
        for other in places if may_move else ():
            if other != site and t + move_slots <= problem.slots:
                move = Move(task=name, origin=site, destination=other, start_slot=t)
                yield from onward(t + move_slots, other, done, False, runs, [*moves, move])

    home = problem.homes.get(name)
    for start in places if home is None else (home,):
        yield from onward(0, start, 0, home is not None, [], [])


def brute_force(problem: CentresProblem) -> float:
    """The least cost over all combinations of paths; infinite where none fits."""
    names = [transfer.task for transfer in problem.transfers]
    best = math.inf
    for combination in itertools.product(*(list(paths(problem, name)) for name in names)):
        cost = 0.0
        for own in problem.centres:
            load, gpus = np.array(own.problem.base_mw()), np.zeros(problem.slots)
            for runs, moves in combination:
                for step in (r for r in runs if r.site == own.name):
                    known = own.problem.task(step.task)
                    power = run_increments_mw(known, known.modes[0], step.segments, 1)
                    load[step.start_slot : step.start_slot + len(power)] += power
                    gpus[step.start_slot : step.start_slot + len(power)] += known.modes[0].gpus
                    cost += known.restart_usd
                for move in (m for m in moves if m.origin == own.name):
                    power = problem.transfer(move.task).increments_mw(1)
                    load[move.start_slot : move.start_slot + len(power)] += power
            cost += float(Supply.of(own.problem).cost_usd(load).sum())
            if (gpus > own.problem.gpus).any():
                cost = math.inf
        best = min(best, cost)
    return best


@pytest.mark.parametrize("seed", range(12))
def test_brute_force_agrees(seed: int) -> None:
    """Two centres, two tasks, four hours, random prices (also negative), supplies, limits and homes."""
    draw = random.Random(seed)
    sizes = [draw.choice((1, 2)) for _ in range(2)]
    centres = []
    for name in ("west", "east"):
        tasks = [task(f"t{i}", draw.uniform(0.5, 2), size, draw.choice((50, 100))) for i, size in enumerate(sizes)]
        limit = draw.choice((None, 2.5))
        prices = tuple(draw.uniform(-30, 100) for _ in range(4))
        renewable = tuple(draw.uniform(0, 1.5) for _ in range(4))
        centres.append(centre(name, prices, *tasks, renewable_mw=renewable, import_limit_mw=limit))
    transfers = tuple(
        Transfer(task=f"t{i}", hours=draw.choice((0.5, 1.5)), energy_mwh=draw.uniform(0, 0.5)) for i in range(2)
    )
    homes = draw.choice(({}, {"t0": "east"}))
    problem = CentresProblem(centres=tuple(centres), transfers=transfers, homes=homes)
    expected = brute_force(problem)
    if math.isinf(expected):
        with pytest.raises(ScenarioError, match="missing"):
            solve(problem, relative_gap=EXACT)
    else:
        found = solve(problem, relative_gap=EXACT)
        assert found.accounts.cost_usd == pytest.approx(expected, abs=1e-4)
        assert found.bound_usd <= expected + 1e-6


def test_one_centre_is_the_ordinary_dispatch() -> None:
    """The same cost as `solver.solve`, with two tasks that share the pool."""
    tasks = task("a", 1.0, 3, 50), task("b", 1.5, 2, 100)
    own = centre("campus", (50.0, 10.0, 80.0, 20.0, 30.0, 5.0), *tasks, renewable_mw=(0.5,) * 6)
    transfers = tuple(Transfer(task=name, hours=1, energy_mwh=1) for name in "ab")
    ordinary = solver.solve(own.problem, relative_gap=EXACT)
    found = solve(CentresProblem(centres=(own,), transfers=transfers), relative_gap=EXACT)
    assert found.accounts.cost_usd == pytest.approx(ordinary.evaluation.cost_usd, abs=1e-4)


# ------------------------------------------------------------------------------------------------------------- audit


@pytest.mark.parametrize(
    ("runs", "moves", "message"),
    [
        ([placed("west", 0), placed("east", 2)], [], "is at east, but the task is at west"),
        ([placed("west", 0), placed("east", 1)], [(1, "west", "east")], "must be at least 2"),
        ([placed("west", 0, 2)], [(2, "west", "east")], "without training after it"),
        ([placed("west", 0), placed("west", 3)], [(1, "west", "east"), (2, "east", "west")], "moves the task on"),
        ([placed("west", 0)], [], "must train 2 segments"),
        ([placed("west", 3, 2)], [], "the horizon at 4"),
        ([placed("north", 0, 2)], [], "'north' is unknown"),
        ([placed("west", 0, 2)], [(2, "west", "west")], "must not be the origin"),
    ],
    ids=["teleport", "early", "idle_move", "chain", "tranche", "horizon", "unknown", "nowhere"],
)
def test_audit_finds(runs: list[PlacedRun], moves: list[tuple[int, str, str]], message: str) -> None:
    """Whatever a plan breaks is named."""
    made = tuple(Move(task="only", origin=o, destination=d, start_slot=t) for t, o, d in moves)
    plan = CentresPlan(slot_h=1, runs=tuple(runs), moves=made)
    assert any(message in problem.rule for problem in audit_plan(two(), plan))
    with pytest.raises(ScenarioError):
        evaluate(two(), plan)


def test_audit_counts_gpus_and_transfers_of_each_centre() -> None:
    """Two tasks do not fit one pool, and a transfer counts against the import limit of the centre it leaves."""
    tasks = task("a", 1.0, 1), task("b", 1.0, 2)
    problem = CentresProblem(
        centres=(centre("west", WEST, *tasks, import_limit_mw=1.5), centre("east", EAST, *tasks)),
        transfers=(Transfer(task="a", hours=1), Transfer(task="b", hours=1, energy_mwh=1)),
    )
    both = CentresPlan(slot_h=1, runs=(placed("west", 1, 1, "a"), placed("west", 0, 2, "b")))
    paths_found = [problem.path for problem in audit_plan(problem, both)]
    assert paths_found == ["sites.west.slots[1].gpus", "sites.west.slots[1].grid_mw"]
    leaving = CentresPlan(
        slot_h=1,
        runs=(placed("west", 1, 1, "a"), placed("west", 0, 1, "b"), placed("east", 2, 1, "b")),
        moves=(Move(task="b", origin="west", destination="east", start_slot=1),),
    )
    assert [problem.path for problem in audit_plan(problem, leaving)] == ["sites.west.slots[1].grid_mw"]


def test_infeasible_says_what_is_missing() -> None:
    """Five segments of 100 GPU-hours do not fit four hours, and a move loses one more hour."""
    long = task(segments=5)
    problem = CentresProblem(
        centres=(centre("west", WEST, long), centre("east", EAST, long)), transfers=(Transfer(task="only", hours=1),)
    )
    with pytest.raises(ScenarioError, match=r"100 of 500 GPU-hours are missing .* \(1 of 5 segments\)"):
        solve(problem)
    dark = centre("dark", WEST, task(), import_limit_mw=0).model_copy()
    short = dark.model_copy(update={"problem": dark.problem.model_copy(update={"idle_mw": 1.0})})
    with pytest.raises(ScenarioError, match=r"sites\.dark\.import_limit_mw .*idle pool"):
        solve(problem.model_copy(update={"centres": (problem.centres[0], short)}))


# ------------------------------------------------------------------------------------------------- scenario, clock


def centres(*overrides: str) -> CentresScenario:
    """The scenario of two centres, without a real learner."""
    found = load(TWO, [TOKENS_ONLY, *overrides])
    assert isinstance(found, CentresScenario)
    return found


@pytest.fixture(scope="module")
def day() -> RunTables:
    """The executed plan."""
    return simulate(centres(), DispatchRun(OPTIMUM))[OPTIMUM]


def test_scenario_by_hand(day: RunTables) -> None:
    """Golden mode of 256 GPUs: 842,295.4 tokens/s at 0.186125 MW; a segment at each site, 94.3 GB in between."""
    restart_h, segment_h = 5 / 60, 8.5e9 / 842_295.4 / 3600 + 0.5 / 60
    restore_mw, train_mw = 1.2 * 256 * (200 + 140) / 1e6, 0.186125

    def site_cost(scale: float, transfer_mwh: float) -> float:
        """Cost of a segment in three hours at 10 with 0.1 MW of wind; a transfer is paid at 100."""
        first = restart_h * restore_mw + (1 - restart_h) * train_mw
        last = (restart_h + segment_h - 2) * train_mw
        loads = np.array([first, train_mw, last]) * scale
        grid, unused = np.maximum(loads - 0.1, 0).sum(), np.maximum(0.1 - loads, 0).sum()
        return float(10 * grid + 25 * unused + 100 * transfer_mwh + 1)

    gigabytes = 6_738_415_616 * 14 / 1e9
    expected = {"west": site_cost(1, 0.06 * gigabytes / 1000), "east": site_cost(1.3 / 1.2, 0)}
    planned = {name: found["planned"]["cost"] for name, found in day.summary["sites"].items()}
    assert planned == pytest.approx(expected, rel=1e-4)
    assert day.summary["planned"]["cost"] == pytest.approx(sum(expected.values()), rel=1e-4)
    assert day.summary["bytes_moved"] == pytest.approx(gigabytes * 1e9)
    assert day.summary["transfer_mwh"] == pytest.approx(0.06 * gigabytes / 1000, rel=1e-4)
    assert day.summary["moves"] == {"llama_7b": 1} and day.summary["finished"]


def test_events_of_a_move(day: RunTables) -> None:
    """The checkpoint leaves at 3 h, arrives 75.47 s later, and is restored at 4 h."""
    names = ("task_started", "checkpoint_written", "transfer_started", "task_moved", "task_finished")
    rows = day.events[day.events.event.isin(names)]
    written = 5 * 60 + 30 + 8.5e9 / 842_295.4
    expected = [0, written, 10_800, 10_800 + 8 * 6_738_415_616 * 14 / 1e10, 14_400]
    assert rows.event.tolist() == [*names[:4], "task_started", "checkpoint_written", "task_finished"]
    assert rows.time_s.tolist()[:5] == pytest.approx(expected, abs=0.01)
    assert "west to east, 94.3 GB" in rows.detail.tolist()


def test_every_centre_has_its_own_ledger(day: RunTables) -> None:
    """Each tiles the horizon and carries the idle pool and the tasks that are there, transfers included."""
    tasks = day.extra["tasks"]
    for name, own in day.intervals.groupby("site", observed=True):
        assert own.start_s.iloc[0] == 0 and own.end_s.iloc[-1] == 8 * 3600
        assert np.array_equal(own.start_s[1:], own.end_s[:-1])
        for row in own.itertuples():
            middle = (row.start_s + row.end_s) / 2
            here = tasks[(tasks.start_s <= middle) & (middle < tasks.end_s) & (tasks.site == name)]
            assert row.facility_kw == pytest.approx(here.increment_kw.sum())
            assert row.network_kw == pytest.approx(here[here.phase == "moving"].increment_kw.sum())


def test_energy_and_money_add_up(day: RunTables) -> None:
    """Energy is that of the plan; sites sum to the whole; causes lead from the plan's cost to the ledger's."""
    summary = day.summary
    assert summary["load_mwh"] == pytest.approx(summary["planned"]["load_mwh"], rel=1e-6)
    for key in ("cost", "curtailed_mwh", "load_mwh", "transfer_mwh", "segments"):
        total = sum(found[key] for found in summary["sites"].values())
        assert total == pytest.approx(sum(summary[key].values()) if key == "segments" else summary[key])
    for key in ("cost", "curtailed_mwh"):
        added = sum(found[key] for found in summary["differences"].values())
        assert summary["planned"][key] + added == pytest.approx(summary[key])


def test_one_site_is_the_ordinary_scenario() -> None:
    """The reference day with a network and nowhere to go: the same cost, planned and bounded, as without."""
    quick = ["dispatch.slot_h=1", "dispatch.tasks.*.segments=1", "dispatch.comparators=[]", "dispatch.gap=0.001"]
    plain = load(SCENARIOS / "grid_knob.yaml", [TOKENS_ONLY, *quick])
    alone = load(SCENARIOS / "grid_knob.yaml", [TOKENS_ONLY, *quick, "dispatch.baselines=[]", "dispatch.wan={}"])
    assert isinstance(plain, DispatchScenario) and isinstance(alone, CentresScenario)
    problem, ordinary = centres_problem(alone), Planner(plain).foreseen
    assert problem.centres[0].problem == ordinary
    cost = solver.solve(ordinary, relative_gap=0.001).evaluation.cost_usd
    found = solve(problem, relative_gap=0.001)
    assert found.accounts.cost_usd == pytest.approx(cost, rel=2e-3)
    assert found.plan.moves == ()


def test_results_folder_and_report(tmp_path: Path) -> None:
    """Moved or not, the model is the same, and the report says what moving is worth."""
    scenario = load(TWO, [TINY, "training.stride=2000"])
    folder = run(scenario, tmp_path / "day")
    summary = folder.summary
    assert summary["system"] == "dispatch_centres" and folder.runs == [OPTIMUM, FIXED_PLACEMENT]
    own, fixed = (summary["runs"][name] for name in (OPTIMUM, FIXED_PLACEMENT))
    assert own["eval_loss_final"] == fixed["eval_loss_final"] is not None
    assert summary["coordination"]["value"] == pytest.approx(fixed["cost"] - own["cost"])
    assert summary["coordination"]["value_planned"] == pytest.approx(53.74, abs=0.01)
    assert fixed["moves"] == {"llama_7b": 0} and set(fixed["modes"]["llama_7b"]) == {"west: tp2-pp2-dp64"}
    assert (folder.path / "dispatch.png").is_file() and set(folder.tasks().site) == {"west", "east"}
    assert dump(load(folder.path / "scenario.yaml")) == (folder.path / "scenario.yaml").read_text()
    shown = CliRunner().invoke(app, ["report", str(folder.path)]).output
    for text in ("Value of coordination: 53.00", "dispatch_plan, east", "94.3", "10,000 Mbit/s"):
        assert text in shown


def test_same_scenario_same_bytes(tmp_path: Path) -> None:
    """Twice the same digest, and the same ledger when the plan is read from its file."""
    once, twice = (run(centres(), tmp_path / name) for name in ("once", "twice"))
    assert once.summary["digest"] == twice.summary["digest"]
    plan = once.path / OPTIMUM / "plan.json"
    again = simulate(centres(f"policy.plan={plan}"), DispatchRun(OPTIMUM))[OPTIMUM]
    ledger = pd.read_csv(once.path / OPTIMUM / "intervals.csv")
    assert again.intervals.facility_kw.tolist() == pytest.approx(ledger.facility_kw.tolist())
    assert again.intervals.end_s.tolist() == ledger.end_s.tolist()


def test_without_a_plan_that_stays_the_reason_is_told(tmp_path: Path) -> None:
    """A task at home where it cannot train: only with a move is there a plan."""
    overrides = ["sites[0].pool_gpus=8", "dispatch.tasks[0].home=west", "dispatch.tasks[0].tokens=8e9"]
    summary = run(centres(*overrides), tmp_path / "day").summary
    assert summary["coordination"] is None and summary["runs"][OPTIMUM]["moves"] == {"llama_7b": 1}
    assert "GPU-hours are missing" in summary["impossible"][FIXED_PLACEMENT]


def test_impossible_scenario_ends_with_code_2(tmp_path: Path) -> None:
    """What is missing is told, and nothing is left behind."""
    more = ["--set", TOKENS_ONLY, "--set", "dispatch.tasks[0].tokens=30e9"]
    found = CliRunner().invoke(app, ["run", str(TWO), "--out", str(tmp_path / "no"), "--quiet", *more])
    assert found.exit_code == 2 and "GPU-hours are missing at all centres together" in found.output


def test_mistakes_are_listed_together() -> None:
    """Every mistake with its path."""
    overrides = [
        "sites[1].name=west",
        "dispatch.tasks[0].home=north",
        "dispatch.comparators=[hull]",
        "dispatch.samples=[{name: dear, price_scale: 2}]",
        "sites[0].failures=[{at_h: 1, duration_h: 1}]",
        "sites[1].price.value=nothing",
        "sites[0].renewable_ratio=null",
        "sites[1].generation.unit=fraction",
        "dispatch.slot_h=3",
    ]
    with pytest.raises(ScenarioError) as caught:
        load(TWO, overrides)
    paths_found = {problem.path for problem in caught.value.problems}
    assert {
        "sites[1].name",
        "dispatch.tasks[0].home",
        "dispatch.comparators",
        "dispatch.samples",
        "sites[0].failures",
        "sites[1].generation.unit",
        "dispatch.slot_h",
    } <= paths_found
    assert any(path.startswith("sites[1].price") for path in paths_found)


def test_unknown_keys_and_values_are_mistakes() -> None:
    """As everywhere else."""
    overrides = ["sites[0].accelerator=H10", "sites[0].gpus=3", "dispatch.wan.rate_mbit_per_s=0", "sites[1].pue=0.5"]
    with pytest.raises(ScenarioError) as caught:
        load(TWO, overrides)
    text = str(caught.value)
    for part in ("sites[0].accelerator", "sites[0].gpus", "dispatch.wan.rate_mbit_per_s", "sites[1].pue"):
        assert part in text
