"""Whatever the windows, delays, batteries and limits: nothing is lost and nothing appears."""

from __future__ import annotations

import tempfile
from collections import defaultdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pytest import approx
from worlds import below, cluster, site, world

from curtailsim.federation import Outcome, Work
from curtailsim.metrics import ENERGY_KEYS, RunTables
from curtailsim.scenario import Scenario, load
from curtailsim.simulation import HEADLINE, World, plans

TRANSITIONS = {
    "off": {"provisioning"},
    "provisioning": {"ready", "off"},
    "ready": {"training", "draining", "off"},
    "training": {"ready", "draining", "off"},
    "draining": {"off"},
}
"""What may follow each state, apart from itself."""

bounded = settings(
    max_examples=40, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck)
)


class CountingLearner:
    """Learns nothing, but takes every real step it is asked for and notes it."""

    def __init__(self) -> None:
        self.real_steps: dict[str, int] = defaultdict(int)

    def open(self, number: int, sites: list[Any]) -> dict[str, Any]:
        """Everybody takes part."""
        return {site.name: number for site in sites}

    def learn(self, message: Any, previous: Any, work: Work) -> tuple[Any, list[float]]:
        """Note the steps."""
        self.real_steps[work.site] += work.real_steps
        return message, [1.0] * work.real_steps

    def close(self, number: int, replies: dict[str, Any], federated: bool) -> Outcome:
        """Replies belong to this round."""
        assert set(replies.values()) == {number}
        return Outcome()


class Log(dict[str, str]):
    """A dictionary of states that keeps all that were ever set."""

    def __init__(self) -> None:
        super().__init__()
        self.all: dict[str, list[str]] = defaultdict(lambda: ["off"])

    def __setitem__(self, name: str, state: str) -> None:
        super().__setitem__(name, state)
        self.all[name].append(state)


def pieces(values: list[float], horizon_s: int) -> st.SearchStrategy[list[tuple[int, float]]]:
    """A step function that changes at whole minutes."""
    stamps = st.sets(st.integers(1, horizon_s // 60 - 1), max_size=6)
    return stamps.flatmap(
        lambda chosen: st.tuples(*(st.sampled_from(values) for _ in range(len(chosen) + 1))).map(
            lambda drawn: list(zip([0, *(60 * minute for minute in sorted(chosen))], drawn, strict=True))
        )
    )


@st.composite
def drawn_sites(draw: st.DrawFn, horizon_s: int) -> list[dict[str, Any]]:
    """One to three sites, not written to files yet."""
    sites = []
    for name in "cab"[: draw(st.integers(1, 3))]:
        network = {"rate_mbit_per_s": draw(st.sampled_from([1.6, 0.05])), "power_kw": 2.5, "energy_kwh_per_gb": 0.1}
        made = cluster(
            step_time_s=draw(st.sampled_from([1.7, 7, 10, 61.3, 400])),
            provisioning_delay_s=draw(st.sampled_from([0, 45, 300.5])),
            model_load_s=draw(st.sampled_from([0, 5.25])),
            serialisation_s=draw(st.sampled_from([0, 3])),
            pue=draw(st.sampled_from([1, 1.3])),
            network=draw(st.sampled_from([{}, network])),
        )
        parts: dict[str, Any] = {"name": name, "cluster": made}
        parts["mci"] = draw(pieces([50.0, 99.9, 100.0, 500.0], horizon_s))
        if draw(st.booleans()):
            parts["generation"] = draw(pieces([0.0, 1.5, 3.7, 6.0, 40.0], horizon_s))
            parts["absorption"] = draw(pieces([0.0, 1.0, 5.0], horizon_s))
            if draw(st.booleans()):
                low, start = sorted(draw(st.tuples(st.sampled_from([0.0, 0.2]), st.sampled_from([0.2, 0.7, 1.0]))))
                parts["storage"] = {
                    "capacity_kwh": draw(st.sampled_from([0.01, 0.7, 2.0])),
                    "initial_soc": start,
                    "min_soc": low,
                    "c_rate": draw(st.sampled_from([None, 0.5, 3])),
                }
            parts["grid_import_limit_kw"] = draw(st.sampled_from([None, None, 0, 3, 5.3]))
        sites.append(parts)
    return sites


@st.composite
def drawn_worlds(draw: st.DrawFn) -> dict[str, Any]:
    """A scenario whose signals are still pieces."""
    horizon_s = draw(st.sampled_from([1800, 3600, 5000]))
    delays = {
        "release_delay_s": draw(st.sampled_from([0, 50, 600])),
        "minimum_stay_s": draw(st.sampled_from([0, 0, 400])),
    }
    return {
        "sites": draw(drawn_sites(horizon_s)),
        "hours": horizon_s / 3600,
        "policy": draw(st.sampled_from([{"type": "always"}, below(**delays)])),
        "workload": draw(st.sampled_from([{}, {"total_tokens": 20_000}])),
        "training": {
            "round_s": draw(st.sampled_from([100, 600, 1234.5])),
            "stride": draw(st.sampled_from([1, 3, 20])),
        },
    }


def checked(drawn: dict[str, Any], folder: Path) -> Scenario:
    """The scenario, its signals written to a folder."""
    sites = [site(folder=folder, **parts) for parts in drawn["sites"]]
    return load(world(*sites, **{key: value for key, value in drawn.items() if key != "sites"}))


def run(scenario: Scenario, also_at_ms: list[int] | None = None) -> tuple[World, RunTables, Log]:
    """Run with a counting learner; look at the microgrids at further times, if any are given."""
    made, log = World(scenario, next(plans(scenario))), Log()
    made.federation.learner, made.recorder.states = CountingLearner(), log

    def look() -> Any:
        for stamp in also_at_ms or []:
            yield made.env.timeout(stamp - made.env.now)
            for microgrid in made.ledgers[HEADLINE]:
                microgrid.advance(stamp)

    made.env.process(look())
    made.run()
    return made, made.tables()[HEADLINE], log


def check_energy(scenario: Scenario, tables: RunTables) -> None:
    """Balance, limits and tiling of every site."""
    for spec in scenario.sites:
        own = tables.intervals[tables.intervals.site == spec.name].reset_index(drop=True)
        assert own.start_s[0] == 0
        assert own.end_s.iloc[-1] == scenario.horizon_ms / 1000
        assert (own.start_s[1:].to_numpy() == own.end_s[:-1].to_numpy()).all()
        assert (own.end_s > own.start_s).all()
        discharge_kw = -own.storage_kw.clip(upper=0)
        balance = own.surplus_kw - own.surplus_used_kw - own.surplus_stored_kw - own.surplus_wasted_kw
        assert balance.abs().max() <= 1e-9
        assert (own.facility_kw - own.surplus_used_kw - discharge_kw - own.grid_import_kw).abs().max() <= 1e-9
        assert own.facility_kw.tolist() == [spec.cluster.facility_kw(phase) for phase in own.phase]
        expected = (own.generation_kw - own.absorption_kw).clip(lower=0)
        assert own.surplus_kw.to_numpy() == approx(expected.to_numpy(), abs=1e-9)
        parts = ["surplus_used_kw", "surplus_stored_kw", "surplus_wasted_kw", "grid_import_kw", "facility_kw"]
        assert (own[parts] >= 0).all(axis=None)
        if spec.grid_import_limit_kw is not None:
            over = own.grid_import_kw > spec.grid_import_limit_kw + 1e-9
            assert ((own.end_s - own.start_s)[over] <= 0.0010001).all()
        check_battery(spec.storage, own)


def check_battery(storage: Any, own: pd.DataFrame) -> None:
    """The level moves by what goes in and out, and stays within its limits."""
    if storage is None:
        assert (own.storage_kw == 0).all()
        return
    level = np.concatenate([[storage.capacity_kwh * storage.initial_soc], own.stored_kwh])
    moved = own.storage_kw * (own.end_s - own.start_s) / 3600
    assert np.diff(level) == approx(moved.to_numpy(), abs=1e-9)
    assert level.min() >= storage.capacity_kwh * storage.min_soc - 1e-9
    assert level.max() <= storage.capacity_kwh + 1e-9
    if storage.c_rate is not None:
        assert own.storage_kw.abs().max() <= storage.capacity_kwh * storage.c_rate + 1e-9


def check_work(made: World, tables: RunTables) -> None:
    """No step is lost or counted twice."""
    scenario, summary, stride = made.scenario, tables.summary, made.scenario.training.stride
    assert summary["tokens"] == summary["steps"] * scenario.workload.tokens_per_step
    assert sum(own["steps"] for own in summary["sites"].values()) == summary["steps"] == tables.rounds.steps.sum()
    assert summary["real_steps"] == len(tables.loss) == tables.rounds.real_steps.sum()
    budget = scenario.workload.total_steps
    finished = (tables.events.event == "training_finished").any()
    assert budget is None or summary["steps"] <= budget
    assert finished <= (summary["steps"] == budget)
    for spec in scenario.sites:
        steps = summary["sites"][spec.name]["steps"]
        losses = tables.loss[tables.loss.site == spec.name]
        assert made.federation.learner.real_steps[spec.name] == steps // stride == len(losses)
        assert losses.step.tolist() == list(range(stride, steps + 1, stride))
        assert losses.time_s.is_monotonic_increasing
        trained_s = summary["sites"][spec.name]["hours"]["training"] * 3600
        drained_s = summary["sites"][spec.name]["hours"]["draining"] * 3600
        assert (
            steps * spec.cluster.step_s(scenario.workload) <= trained_s + drained_s + 0.001 * len(tables.rounds) + 1e-6
        )


def check_events(made: World, tables: RunTables, log: Log) -> None:
    """Events are in order and within the horizon; states follow each other as they may."""
    assert tables.events.time_s.is_monotonic_increasing
    assert tables.events.time_s.min() == 0
    assert tables.events.time_s.max() == made.scenario.horizon_ms / 1000
    for states in log.all.values():
        assert all(after == before or after in TRANSITIONS[before] for before, after in pairwise(states))
    opened: dict[str, int] = defaultdict(int)
    for event, name in tables.events[["event", "site"]].itertuples(index=False):
        opened[name] += {"window_opened": 1, "window_closed": -1}.get(event, 0)
        assert opened[name] in (0, 1)


@bounded
@given(drawn_worlds())
def test_nothing_is_lost(drawn: dict[str, Any]) -> None:
    """Energy, surplus, batteries, steps, states and events of any world add up."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = checked(drawn, Path(folder))
        made, tables, log = run(scenario)
    check_energy(scenario, tables)
    check_work(made, tables)
    check_events(made, tables, log)
    totals = tables.summary
    assert totals["surplus_available_kwh"] == approx(
        totals["surplus_used_kwh"] + totals["surplus_stored_kwh"] + totals["surplus_wasted_kwh"], rel=1e-9, abs=1e-9
    )
    assert totals["energy_kwh"] == approx(
        totals["surplus_used_kwh"] + totals["storage_discharged_kwh"] + totals["grid_import_kwh"], rel=1e-9, abs=1e-9
    )
    for key in ENERGY_KEYS:
        if key != "curtailed_share" and totals[key] is not None:
            assert totals[key] == approx(sum(own[key] for own in totals["sites"].values()), rel=1e-9, abs=1e-12)


def halved(values: list[tuple[int, float]]) -> list[tuple[int, float]]:
    """The same step function with twice the stamps."""
    return sorted([*values, *((stamp + 30, value) for stamp, value in values)])


@settings(bounded, max_examples=20)
@given(drawn_worlds(), st.lists(st.integers(1, 1_799_999), max_size=20))
def test_splitting_changes_no_total(drawn: dict[str, Any], looks_ms: list[int]) -> None:
    """Twice the stamps, and looking at a microgrid in between, change nothing but the number of intervals."""
    twice = {**drawn, "sites": [{**own} for own in drawn["sites"]]}
    for own in twice["sites"]:
        own |= {key: halved(own[key]) for key in ("mci", "generation", "absorption") if key in own}
    with tempfile.TemporaryDirectory() as folder:
        whole, split = checked(drawn, Path(folder)), checked(twice, Path(folder))
        expected = run(whole)[1]
        actual = run(split, sorted(set(looks_ms)))[1]
    assert actual.events.equals(expected.events)
    for key in (*ENERGY_KEYS, "steps", "runtime_h"):
        assert (actual.summary[key] is None) == (expected.summary[key] is None)
        if expected.summary[key] is not None:
            assert actual.summary[key] == approx(expected.summary[key], rel=1e-9, abs=1e-12)
