"""Unmodified Flower apps run on the simulated clock: time from their examples, availability from the windows."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from apps import mailbox, regression
from worlds import below, built, cluster, happened, lived, played, powers, site, world

from curtailsim.simulation import HEADLINE
from curtailsim.spec import ScenarioError


@pytest.fixture(autouse=True)
def _fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Nobody sleeps in wall-clock time, and the apps start without memories."""

    def refuse(seconds: float) -> None:
        raise AssertionError(f"slept {seconds} s of wall-clock time")

    monkeypatch.setattr(time, "sleep", refuse)
    for memory in (regression.results, regression.unwound, mailbox.replies, mailbox.polls):
        memory.clear()
    yield


def app(name: str = "regression", **run_config: Any) -> dict[str, Any]:
    """A user's apps as a learner: ten examples make a step of 10 s."""
    config = {"strategy": "fedavg", "nodes": 2, "rounds": 3, **run_config}
    apps = {"server_app": f"apps.{name}:server_app", "client_app": f"apps.{name}:client_app"}
    return {"learner": {"type": "flower_app", **apps, "examples_per_step": 10, "run_config": config}}


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_time_is_charged_from_examples(strategy: str) -> None:
    """120 trained examples are 12 steps of 10 s; 60 evaluated ones at a third of that are 20 s."""
    tables = played(world(site("a"), site("b"), training=app(strategy=strategy)))
    assert happened(tables, "round_started", "round_ended", "aggregated", "training_finished") == [
        (0, "round_started", ""),
        (120, "round_ended", ""),
        (120, "aggregated", ""),
        (140, "round_started", ""),
        (260, "round_ended", ""),
        (260, "aggregated", ""),
        (280, "round_started", ""),
        (400, "round_ended", ""),
        (400, "aggregated", ""),
        (420, "training_finished", ""),
    ]
    assert powers(tables, "a") == powers(tables, "b") == [(0, 420, "training", 4), (420, 3600, "off", 0)]
    found = tables.summary
    assert (found["steps"], found["real_steps"], found["tokens"], found["rounds"]) == (72, 72, 7200, 3)
    assert found["energy_kwh"] == pytest.approx(2 * 4 * 420 / 3600, rel=1e-12)
    assert tables.rounds[["time_s", "sites", "steps"]].to_numpy().tolist() == [
        [120, "a b", 24],
        [260, "a b", 24],
        [400, "a b", 24],
    ]


@pytest.mark.parametrize("strategy", ["fedavg", "fedadam"])
def test_app_learns_and_its_losses_are_recorded(strategy: str) -> None:
    """The app's own result says the same as our tables, and its loss falls; a client keeps its context's state."""
    tables = played(world(site("a"), site("b"), training=app(strategy=strategy)))
    (result,) = regression.results
    metrics = [result.train_metrics_clientapp[number] for number in (1, 2, 3)]
    assert [record["calls"] for record in metrics] == [1, 2, 3]
    assert tables.rounds.train_loss.tolist() == pytest.approx([record["train_loss"] for record in metrics], rel=1e-12)
    evaluated = [result.evaluate_metrics_clientapp[number]["eval_loss"] for number in (1, 2, 3)]
    assert tables.rounds.eval_loss.tolist() == pytest.approx(evaluated, rel=1e-12)
    assert evaluated[2] < 0.9 * evaluated[0]
    assert tables.loss.time_s.tolist() == [120, 120, 260, 260, 400, 400]
    assert tables.loss.site.tolist() == ["a", "b"] * 3
    assert tables.loss.step.tolist() == [12, 12, 24, 24, 36, 36]


def test_speed_is_the_clusters() -> None:
    """The same examples take a slower cluster longer, and a WAN link its time; the round waits for both."""
    network = {"rate_mbit_per_s": 1.6}
    slow = cluster(step_time_s=20, network=network, serialisation_s=3)
    tables = played(world(site("a"), site("b", cluster=slow), training=app(rounds=1)))
    assert powers(tables, "a")[:3] == [(0, 120, "training", 4), (120, 263, "waiting", 1), (263, 283, "training", 4)]
    assert [row for row in powers(tables, "b") if row[2] != "off"] == [
        (0, 10, "transfer", 1),
        (10, 250, "training", 4),
        (250, 253, "serialisation", 1),
        (253, 273, "transfer", 1),
        (273, 313, "training", 4),
    ]
    assert tables.summary["bytes_moved"] == 2e6 * (3 + 3)


def test_waiting_for_nodes_takes_simulated_time_only(tmp_path: Path) -> None:
    """Two of two nodes are wanted and one is there for 40 minutes: the clock advances, nobody sleeps."""
    began = time.monotonic()
    late = site("b", tmp_path, mci=[(0, 500), (2400, 50)], cluster=cluster(provisioning_delay_s=120))
    tables = played(world(site("a", mci=50), late, policy=below(), training=app(rounds=1)))
    assert time.monotonic() - began < 240
    assert happened(tables, "round_started", "training_finished") == [
        (2520, "round_started", ""),
        (2660, "training_finished", ""),
    ]
    assert powers(tables, "a")[:2] == [(0, 2520, "waiting", 1), (2520, 2660, "training", 4)]


def test_sample_of_two_of_one_site_waits_until_the_end() -> None:
    """The second node never comes: the run ends normally at the horizon, with no step."""
    tables = played(world(site("a"), training=app()))
    assert tables.events.event.iloc[-1] == "run_ended"
    assert (tables.summary["steps"], tables.summary["rounds"], tables.summary["energy_kwh"]) == (0, 0, 1.0)
    assert (regression.results, regression.unwound) == ([], [True])


def test_no_window_ever_opens() -> None:
    """Nor does a run without any site ready do anything but end."""
    tables = played(world(site("a"), site("b"), policy=below(), training=app()))
    assert (tables.summary["steps"], tables.summary["energy_kwh"]) == (0, 0.0)
    assert regression.unwound == [True]


def test_window_that_closes_loses_the_reply(tmp_path: Path) -> None:
    """A site that leaves in the middle of its work does not reply; its energy counts, and the round goes on."""
    tables = played(
        world(site("a", mci=50), site("b", tmp_path, mci=[(0, 50), (65, 500)]), policy=below(), training=app(rounds=1))
    )
    assert happened(tables, "reply_lost", "round_ended", "aggregated") == [
        (65, "reply_lost", "b"),
        (120, "round_ended", ""),
        (120, "aggregated", ""),
    ]
    assert lived(tables, "b")[-1] == (65, "deprovisioned")
    assert powers(tables, "b") == [(0, 65, "training", 4), (65, 3600, "off", 0)]
    assert tables.rounds.sites.tolist() == ["a"]
    assert {name: own["steps"] for name, own in tables.summary["sites"].items()} == {"a": 12, "b": 0}


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("raises", "error: RuntimeError('out of memory')"),
        ("nan", "array weight is not finite"),
        ("zero", "num-examples is 0"),
        ("missing", "num-examples is None"),
    ],
)
def test_unusable_reply_is_refused(how: str, reason: str) -> None:
    """One client fails: its reply is refused with an event, and the model is the other's."""
    made = built(world(site("a"), site("b"), training=app(rounds=1, second=how)))
    tables = made.tables()[HEADLINE]
    rejected = tables.events[tables.events.event == "reply_rejected"]
    assert rejected[["time_s", "site", "detail"]].to_numpy().tolist() == [[120, "b", reason]]
    assert len(happened(tables, "client_failed")) == (how == "raises")
    (result,) = regression.results
    assert made.weights().keys() == {"0.weight"}
    np.testing.assert_array_equal(result.arrays["weight"].numpy(), made.weights()["0.weight"])
    assert tables.rounds.sites.tolist() == ["a"]


def test_no_usable_reply_at_all() -> None:
    """Both of two sites that could reply are gone or failing: the model stays as it was and the app goes on."""
    second = site("b", mci=50)
    tables = played(
        world(site("a"), second, policy=below(600), training=app(nodes=1, rounds=2, second="zero", fraction=0.5))
    )
    assert tables.summary["rounds"] == 2
    assert len(regression.results) == 1


def test_horizon_inside_the_app() -> None:
    """The simulation ends within the second round: the app is unwound, and nothing it catches keeps it alive."""
    tables = played(world(site("a"), site("b"), hours=200 / 3600, training=app()))
    assert happened(tables, "round_started", "round_ended", "round_truncated") == [
        (0, "round_started", ""),
        (120, "round_ended", ""),
        (140, "round_started", ""),
        (200, "round_truncated", ""),
    ]
    assert (regression.results, regression.unwound) == ([], [True])
    assert powers(tables) == [(0, 200, "training", 4)]
    assert tables.summary["steps"] == 24


def test_round_that_ends_exactly_at_the_horizon_counts() -> None:
    """The replies of the last instant are aggregated; the evaluation after them is not begun."""
    tables = played(world(site("a"), site("b"), hours=120 / 3600, training=app()))
    assert happened(tables, "round_ended", "aggregated", "round_started") == [
        (0, "round_started", ""),
        (120, "round_ended", ""),
        (120, "aggregated", ""),
    ]
    assert tables.summary["steps"] == 24


def test_clients_own_sleep_takes_no_time() -> None:
    """Only examples take time at a site: an hour's sleep in the ClientApp changes nothing."""
    awake, asleep = (played(world(site("a"), site("b"), training=app(sleeps=sleeps))) for sleeps in (False, True))
    assert asleep.events.equals(awake.events)
    assert asleep.loss.equals(awake.loss)


def test_sampling_is_seeded_by_the_scenario() -> None:
    """Which half of four sites Flower samples depends on the scenario's seed alone."""

    def sampled(seed: int) -> list[str]:
        sites = [site(name) for name in "abcd"]
        return played(world(*sites, seed=seed, training=app(rounds=6, fraction=0.5))).rounds.sites.tolist()

    assert sampled(1) == sampled(1)
    assert len({tuple(sampled(seed)) for seed in (1, 2, 3)}) > 1
    assert all(len(names.split()) == 2 for names in sampled(1))


def test_push_and_pull() -> None:
    """An app that polls by itself: 100 and 200 examples take 100 s and 200 s; every poll sees what has arrived."""
    tables = played(world(site("a"), site("b"), training=app("mailbox")))
    assert mailbox.replies == [(1, False), (2, False)]
    assert mailbox.polls == [1, 0]
    assert happened(tables, "round_ended", "training_finished") == [
        (100, "round_ended", ""),
        (200, "round_ended", ""),
        (203, "training_finished", ""),
    ]
    assert powers(tables, "a")[:2] == [(0, 100, "training", 4), (100, 203, "waiting", 1)]
    assert tables.summary["steps"] == 30


def test_polling_waits_in_simulated_time() -> None:
    """The app sleeps 7 s at a time until a cluster is there after 60 s: the first look that finds it is at 63 s."""
    tables = played(world(site("a", cluster=cluster(provisioning_delay_s=60)), training=app("mailbox", nodes=1)))
    assert happened(tables, "round_started", "round_ended") == [(63, "round_started", ""), (163, "round_ended", "")]


def test_messages_to_one_site_are_worked_on_in_turn() -> None:
    """Two messages of 100 examples each keep a site busy for 200 s."""
    tables = played(world(site("a"), training=app("mailbox", nodes=1, each=2)))
    assert mailbox.replies == [(1, False), (1, False)]
    assert powers(tables)[:2] == [(0, 200, "training", 4), (200, 203, "waiting", 1)]
    assert tables.summary["steps"] == 20


def test_pushed_message_that_is_lost_gets_an_error(tmp_path: Path) -> None:
    """A site that leaves answers with an error, as Flower does, so that an app that counts replies goes on."""
    leaving = site("b", tmp_path, mci=[(0, 50), (60, 500)])
    tables = played(world(site("a", mci=50), leaving, policy=below(), training=app("mailbox")))
    assert sorted(mailbox.replies) == [(1, False), (2, True)]
    assert happened(tables, "reply_lost") == [(60, "reply_lost", "b")]
    assert mailbox.polls[-1] == 0


@pytest.mark.parametrize(
    ("key", "reference", "message"),
    [
        (
            "server_app",
            "apps.absent:server_app",
            "training.learner.server_app  'apps.absent:server_app' cannot be imported",
        ),
        (
            "server_app",
            "apps.regression:absent",
            "training.learner.server_app  'apps.regression:absent' cannot be imported",
        ),
        ("client_app", "apps.regression:no_app", "training.learner.client_app  must be a ClientApp (got str)"),
        (
            "server_app",
            "apps.regression:old_app",
            "training.learner.server_app  apps.regression:old_app has no @app.main()",
        ),
    ],
    ids=["module", "name", "kind", "server_fn"],
)
def test_mistakes_are_explained(key: str, reference: str, message: str) -> None:
    """An app that cannot be loaded, or is none, is one clear message."""
    training = app()
    training["learner"][key] = reference
    with pytest.raises(ScenarioError) as caught:
        built(world(site("a"), training=training))
    assert message in str(caught.value)


def test_failing_simulation_is_not_swallowed_by_the_app(tmp_path: Path) -> None:
    """A mistake that shows while the app waits is raised, even if the app catches every exception."""
    wrong = {"type": "apps.policies:Answers", "answer": ["atlantis"], "from_s": 60}
    late = site("b", tmp_path, mci=[(0, 50), (60, 500)])
    with pytest.raises(ScenarioError, match="select wants 'atlantis', which is no site"):
        played(world(site("a"), late, policy=wrong, training=app()))
    assert (regression.results, regression.unwound) == ([], [True])
