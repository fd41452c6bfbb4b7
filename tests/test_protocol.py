"""Every mechanism of the published protocol, one at a time, in worlds that can be computed by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import below, cluster, happened, lived, played, site, world

from curtailsim.metrics import RunTables

CLEAN, DIRTY = 50, 500


def two(folder: Path, *, leaves_s: int = 0, joins_s: int = 0, hours: float = 1, **parts: Any) -> RunTables:
    """Site a joins at `joins_s` and leaves at `leaves_s` (0: at once, never); site b is there all the time."""
    pieces = [(0, CLEAN if not joins_s else DIRTY)]
    pieces += [(joins_s, CLEAN)] if joins_s else []
    pieces += [(leaves_s, DIRTY)] if leaves_s else []
    sites = site("a", folder, mci=pieces, cluster=parts.pop("cluster", None) or cluster()), site("b", folder, mci=CLEAN)
    return played(world(*sites, hours=hours, policy=parts.pop("policy", below()), **parts))


def steps(tables: RunTables) -> dict[str, int]:
    """Steps of each site."""
    return {name: values["steps"] for name, values in tables.summary["sites"].items()}


def when(tables: RunTables, event: str) -> list[float]:
    """Times of an event. [s]"""
    return [time for time, _, _ in happened(tables, event)]


# --- control -------------------------------------------------------------------------------------------------------


def test_polling_acts_at_the_next_look(tmp_path: Path) -> None:
    """Looks at 5, 105, 205 ... s: a window from 150 s is acted on at 205 s, its end at 450 s marked at 505 s."""
    tables = played(
        world(
            site("a", tmp_path, mci=[(0, DIRTY), (150, CLEAN), (450, DIRTY)]),
            policy=below(release_delay_s=200),
            control={"poll_interval_s": 100, "first_poll_s": 5},
        )
    )
    assert [
        (205, "window_opened"),
        (205, "provisioning_started"),
        (205, "provisioned"),
        (505, "window_closed"),
        (505, "deprovision_marked"),
        # marked at 505 s, so 200 s old at the look at 705 s; the step that began at 695 s is just finished
        (705, "deprovisioned"),
    ] == lived(tables, "a")


@pytest.mark.parametrize(("blocks", "second_s"), [(False, 240), (True, 480)])
def test_provisioning_blocks_the_poll_loop_or_not(tmp_path: Path, blocks: bool, second_s: int) -> None:
    """Two sites eligible at once are ready after one delay, or after two where the loop waits."""
    slow = cluster(provisioning_delay_s=240)
    sites = site("a", mci=CLEAN, cluster=slow), site("b", mci=CLEAN, cluster=slow)
    control = {"poll_interval_s": 10, "provisioning_blocks": blocks}
    assert [240, second_s] == when(played(world(*sites, policy=below(), control=control)), "provisioned")


@pytest.mark.parametrize(("remarks", "marks"), [(False, [100]), (True, [100, 200])])
def test_a_leaving_site_is_marked_again_or_not(tmp_path: Path, remarks: bool, marks: list[int]) -> None:
    """The site takes 60 s to hand over; the look at 200 s finds it still there."""
    slow = cluster(serialisation_s=150)
    tables = played(
        world(
            site("a", tmp_path, mci=[(0, CLEAN), (100, DIRTY)], cluster=slow),
            policy=below(release_delay_s=0),
            control={"poll_interval_s": 50, "remark_leaving": remarks},
        )
    )
    found = [time for time, event in lived(tables, "a") if event == "deprovision_marked"]
    assert marks[0] == found[0]
    assert (len(found) > 1) == remarks


def test_acquire_delay_passes_over_short_windows(tmp_path: Path) -> None:
    """A window of 100 s is too short for a delay of 300 s, the next one is used from its 300th second on."""
    here = site("a", tmp_path, mci=[(0, DIRTY), (100, CLEAN), (200, DIRTY), (1000, CLEAN)])
    assert [1300] == when(played(world(here, policy=below(acquire_delay_s=300))), "provisioning_started")


# --- rounds --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("opens", "first_s"), [("when_ready", 240), ("at_once", 0)])
def test_a_round_opens_when_a_site_is_ready_or_at_once(opens: str, first_s: int) -> None:
    """The site is ready after 240 s."""
    here = site("a", mci=CLEAN, cluster=cluster(provisioning_delay_s=240))
    assert first_s == when(played(world(here, protocol={"round_opens": opens})), "round_started")[0]


def test_joining_name_query_and_start_up_come_before_the_first_step() -> None:
    """4 s to join, 6 s for the name, 66 + 2 x 9 + 23 s to start in the first round."""
    rules = {"join_s": 4, "name_query_s": 6, "startup_s": 66, "startup_per_site_s": 9, "first_startup_s": 23}
    tables = played(world(site("a"), site("b"), protocol=rules))
    assert [10, 10] == when(tables, "client_connected")
    assert [117, 117] == tables.segments.start_s.tolist()[:2]


@pytest.mark.parametrize(("timer", "steps_each"), [("first_step", 60), ("dispatch", 50)])
def test_the_round_timer_starts_at_the_first_step_or_at_dispatch(timer: str, steps_each: int) -> None:
    """600 s rounds with 100 s of start-up and steps of 10 s."""
    tables = played(world(site("a"), site("b"), protocol={"round_timer_from": timer, "startup_s": 100}))
    assert [steps_each, steps_each] == tables.segments.steps.tolist()[:2]


def test_return_and_aggregation_take_their_time() -> None:
    """A round of 600 s, 21 + 2 x 12 s to return, 2 s to aggregate, then the next."""
    rules = {"return_s": 21, "return_per_site_s": 12, "aggregation_s": 2}
    tables = played(world(site("a"), site("b"), protocol=rules))
    assert [645, 1292] == when(tables, "round_ended")[:2]
    assert [647, 1294] == when(tables, "aggregated")[:2]
    assert [0, 647] == when(tables, "round_started")[:2]


@pytest.mark.parametrize(
    ("alone", "joins_s", "ended_s"),
    [
        ("until_joined", 305, 310),
        ("timer_then_until_joined", 305, 600),
        ("timer_then_until_joined", 705, 710),
    ],
)
def test_a_newcomer_ends_a_single_site_round_at_once_or_after_its_time(
    tmp_path: Path, alone: str, joins_s: int, ended_s: int
) -> None:
    """Steps of 10 s are finished; after the round's 600 s it is looked every 10 s who is there."""
    tables = two(tmp_path, joins_s=joins_s, protocol={"alone": alone, "recheck_s": 10})
    assert ended_s == when(tables, "round_ended")[0]


def test_a_federated_round_goes_on_with_one_site(tmp_path: Path) -> None:
    """In the published protocol, the other one having left at 300 s; its 30 steps are merged at the very end."""
    rules = {"alone": "timer_then_until_joined", "round_timer_from": "dispatch"}
    tables = two(tmp_path, leaves_s=300, protocol=rules)
    assert [0] == when(tables, "round_started")
    assert {"a": 30, "b": 360} == steps(tables)
    assert ["a b"] == tables.rounds.sites.tolist()


@pytest.mark.parametrize(("late", "ended_s"), [("round_end", 600), ("closes_round", 300)])
def test_a_leavers_update_waits_or_closes_the_round(tmp_path: Path, late: str, ended_s: int) -> None:
    """Site a leaves at 300 s of a round of 600 s."""
    assert ended_s == when(two(tmp_path, leaves_s=300, protocol={"late_update": late}), "round_ended")[0]


@pytest.mark.parametrize(
    ("rules", "off_s"),
    [
        ({}, 340),
        ({"leaver_waits": "round_end"}, 640),
        ({"leaver_waits": "round_end", "stop_timeout_s": 60}, 360),
    ],
)
def test_a_leaver_waits_for_its_reply_or_for_the_round(tmp_path: Path, rules: dict[str, Any], off_s: int) -> None:
    """It leaves at 300 s, needs 40 s to reply; the round ends when b has replied at 640 s."""
    tables = two(tmp_path, leaves_s=300, protocol={"return_s": 40, **rules})
    assert off_s == when(tables, "deprovisioned")[0]
    assert "a b" == tables.rounds.sites[0]


def test_what_takes_too_long_is_lost(tmp_path: Path) -> None:
    """40 s to reply with a limit of 20 s: the work is done and paid for, but not merged."""
    tables = two(tmp_path, leaves_s=300, protocol={"return_s": 40, "stop_timeout_s": 20})
    assert [320] == when(tables, "stop_forced")
    assert [320] == when(tables, "deprovisioned")
    assert "b" == tables.rounds.sites[0]
    assert 30 == steps(tables)["a"]


@pytest.mark.parametrize(("reaches", "off_s", "steps_a"), [(True, 50, 0), (False, 110, 1)])
def test_a_stop_reaches_a_loading_site_or_not(tmp_path: Path, reaches: bool, off_s: int, steps_a: int) -> None:
    """It leaves after 50 of 100 s of loading: at once, or it loads on, trains, and is stopped after 60 s."""
    rules = {"startup_s": 100, "stop_reaches_loading": reaches, "stop_timeout_s": 60}
    tables = two(tmp_path, leaves_s=50, protocol=rules)
    assert off_s == when(tables, "deprovisioned")[0]
    assert steps_a == steps(tables)["a"]
    assert "b" == tables.rounds.sites[0]


@pytest.mark.parametrize(
    ("split", "parts"),
    [
        ({"budget_split": "by_speed"}, {"a": 20, "b": 10}),
        ({"budget_split": "equal"}, {"a": 15, "b": 15}),
        ({"uneven_shares": {"a": 1, "b": 4}}, {"a": 6, "b": 24}),
    ],
)
def test_the_budget_is_split_by_speed_equally_or_unevenly(split: dict[str, Any], parts: dict[str, int]) -> None:
    """30 steps are left; b takes twice as long for a step."""
    sites = site("a"), site("b", cluster=cluster(step_time_s=20))
    tables = played(world(*sites, workload={"total_tokens": 3000}, protocol=split))
    assert parts == steps(tables)


def test_an_exhausted_site_hangs_and_its_reply_is_lost() -> None:
    """10 steps, then 665 s of idling; nobody replies, nothing is merged, and training is over."""
    tables = played(world(site("a"), workload={"total_tokens": 1000}, protocol={"exhaustion_hang_s": 665}))
    assert [765] == when(tables, "reply_lost")
    assert [] == when(tables, "aggregated")
    assert [765] == when(tables, "training_finished")
    assert 10 == tables.summary["steps"]
    assert (100 * 4 + 665 * 1) / 3600 == pytest.approx(tables.summary["energy_kwh"])
