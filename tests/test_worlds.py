"""Worlds that can be computed by hand: exact seconds, steps, kWh and kg."""

from __future__ import annotations

from pathlib import Path

import pytest
from worlds import ROUNDS, below, built, cluster, flows, happened, lived, played, powers, site, world

from curtailsim.metrics import RunTables
from curtailsim.simulation import HEADLINE


def steps(tables: RunTables) -> dict[str, int]:
    """Steps of each site."""
    return {name: values["steps"] for name, values in tables.summary["sites"].items()}


# --- energy, emissions, cost ---------------------------------------------------------------------------------------


def test_constant_power_constant_intensity() -> None:
    """4 kW of IT at PUE 1.5 for two hours at 500 g/kWh and 80 USD/MWh."""
    tables = played(world(site(cluster=cluster(pue=1.5), average_ci=250, price=80), hours=2))
    found = tables.summary
    assert found["energy_kwh"] == 12.0
    assert found["grid_import_kwh"] == 12.0
    assert found["emissions_kg"] == 6.0
    assert found["emissions_surplus_first_kg"] == 6.0
    assert found["emissions_average_kg"] == 3.0
    assert found["cost"] == pytest.approx(0.96, rel=1e-12)
    assert (found["steps"], found["tokens"], found["runtime_h"]) == (720, 72_000, 2.0)
    assert (found["surplus_available_kwh"], found["curtailed_share"]) == (0.0, None)  # no generation, so no share


def test_intensity_changes_while_the_power_does_not(tmp_path: Path) -> None:
    """4 kW for half an hour at 100 g/kWh and half an hour at 300 g/kWh."""
    tables = played(world(site(folder=tmp_path, mci=[(0, 100), (1800, 300)])))
    assert tables.summary["emissions_kg"] == pytest.approx(0.2 + 0.6, rel=1e-12)
    assert powers(tables) == [(0, 3600, "training", 4)]


def test_surplus_counts_zero_when_it_comes_first(tmp_path: Path) -> None:
    """Of 4 kW, 3 are surplus in the first half hour and 1 in the second, where the grid takes 2 of 3 kW."""
    generation, absorption = [(0, 3), (1800, 3)], [(0, 0), (1800, 2)]
    here = site(folder=tmp_path, generation=generation, absorption=absorption, price=100)
    tables = played(world(here, accounting={"surplus_price_per_mwh": 10}))
    found = tables.summary
    assert (found["surplus_available_kwh"], found["surplus_used_kwh"], found["surplus_wasted_kwh"]) == (2.0, 2.0, 0.0)
    assert (found["energy_kwh"], found["grid_import_kwh"], found["curtailed_share"]) == (4.0, 2.0, 0.5)
    assert (found["emissions_kg"], found["emissions_surplus_first_kg"]) == (2.0, 1.0)
    assert found["cost"] == pytest.approx(0.2 + 0.02, rel=1e-12)


def test_curtailed_share_by_intensity(tmp_path: Path) -> None:
    """Without generation data, energy below a marginal intensity counts as curtailed; exactly at it does not."""
    here = site(folder=tmp_path, mci=[(0, 99), (900, 100), (1800, 101)])
    tables = played(world(here, accounting={"curtailed_share": "mci_below", "curtailed_below_g_per_kwh": 100}))
    assert tables.summary["curtailed_share"] == 0.25


def test_storage_fills_and_empties_inside_an_interval(tmp_path: Path) -> None:
    """2 of 6 kW surplus fill 1 kWh in 1800 s; without surplus 4 kW empty it in 900 s."""
    tables = played(world(site(folder=tmp_path, generation=[(0, 6), (3600, 0)], storage={"capacity_kwh": 1}), hours=2))
    assert flows(tables, "storage_kw", "surplus_wasted_kw", "grid_import_kw") == [
        (0, 1800, 2, 0, 0, 1),
        (1800, 3600, 0, 2, 0, 1),
        (3600, 4500, -4, 0, 0, 0),
        (4500, 7200, 0, 0, 4, 0),
    ]
    found = tables.summary
    assert (found["surplus_available_kwh"], found["surplus_used_kwh"]) == (6.0, 4.0)
    assert (found["surplus_stored_kwh"], found["storage_discharged_kwh"]) == (1.0, 1.0)
    assert (found["surplus_wasted_kwh"], found["grid_import_kwh"], found["energy_kwh"]) == (1.0, 3.0, 8.0)
    assert (found["emissions_surplus_first_kg"], found["curtailed_share"]) == (1.5, 5 / 8)


def test_storage_between_its_limits(tmp_path: Path) -> None:
    """A c-rate of 1/2 limits 2 kWh to 1 kW, and half of the energy stays in it."""
    storage = {"capacity_kwh": 2, "initial_soc": 0.75, "min_soc": 0.5, "c_rate": 0.5}
    tables = played(world(site(folder=tmp_path, generation=[(0, 0), (2700, 8)], storage=storage)))
    assert flows(tables, "storage_kw", "surplus_wasted_kw", "grid_import_kw") == [
        (0, 1800, -1, 0, 3, 1),
        (1800, 2700, 0, 0, 4, 1),
        (2700, 3600, 1, 3, 0, 1.25),
    ]


def test_surplus_of_an_idle_site_is_stored_and_wasted() -> None:
    """A site that never trains fills its battery and curtails the rest; energy is zero, so is no ratio."""
    here = site(mci=500, generation=6, storage={"capacity_kwh": 2})
    found = played(world(here, policy=below())).summary
    assert (found["energy_kwh"], found["emissions_kg"], found["curtailed_share"]) == (0.0, 0.0, None)
    assert (found["surplus_available_kwh"], found["surplus_stored_kwh"]) == (6.0, 2.0)
    assert (found["surplus_used_kwh"], found["surplus_wasted_kwh"]) == (0.0, 4.0)


# --- grid import limit ---------------------------------------------------------------------------------------------


def test_islanded_site_loses_its_power_and_comes_back(tmp_path: Path) -> None:
    """Without any import a site goes off when 2 kW surplus cannot carry 4 kW, inside a step, and returns with 5 kW."""
    here = site(
        folder=tmp_path,
        generation=[(0, 5), (603, 2), (1206, 5)],
        grid_import_limit_kw=0,
        cluster=cluster(provisioning_delay_s=60),
    )
    tables = played(world(here, hours=0.5))
    assert happened(tables) == [
        (0, "window_opened", "a"),
        (0, "provisioning_started", "a"),
        (60, "provisioned", "a"),
        (60, "round_started", ""),
        (603, "power_lost", "a"),
        (603, "deprovisioned", "a"),
        (603, "round_ended", ""),
        (603, "aggregated", ""),
        (1206, "provisioning_started", "a"),
        (1266, "provisioned", "a"),
        (1266, "round_started", ""),
        (1800, "round_truncated", ""),
        (1800, "round_ended", ""),
        (1800, "aggregated", ""),
    ]
    assert powers(tables) == [
        (0, 60, "provisioning", 1),
        (60, 603, "training", 4),
        (603, 1206, "off", 0),
        (1206, 1266, "provisioning", 1),
        (1266, 1800, "training", 4),
    ]
    assert steps(tables) == {"a": 54 + 53}
    found = tables.summary
    assert found["grid_import_kwh"] == 0.0
    assert found["energy_kwh"] == pytest.approx((2 * 60 + 4 * (543 + 534)) / 3600, rel=1e-12)
    assert found["surplus_used_kwh"] == found["energy_kwh"]


def test_islanded_site_never_starts_without_enough_surplus() -> None:
    """3 kW of surplus cannot carry a cluster of 4 kW: it stays off although its window is open."""
    tables = played(world(site(generation=3, grid_import_limit_kw=0)))
    assert happened(tables) == [(0, "window_opened", "a")]
    assert tables.summary["surplus_wasted_kwh"] == 3.0


def test_battery_of_an_islanded_site_runs_out() -> None:
    """1 kWh and 2 kW of surplus carry 4 kW for half an hour."""
    here = site(generation=2, storage={"capacity_kwh": 1, "initial_soc": 1}, grid_import_limit_kw=0)
    tables = played(world(here))
    assert lived(tables, "a") == [
        (0, "window_opened"),
        (0, "provisioning_started"),
        (0, "provisioned"),
        (1800, "power_lost"),
        (1800, "deprovisioned"),
    ]
    assert (tables.summary["energy_kwh"], tables.summary["storage_discharged_kwh"]) == (2.0, 1.0)


# --- windows, delays, hysteresis -----------------------------------------------------------------------------------


def test_two_windows_and_one_provisioning_delay(tmp_path: Path) -> None:
    """Two windows of ten minutes, two minutes of provisioning, one minute of release delay."""
    mci = [(0, 500), (600, 50), (1200, 500), (2400, 50), (3000, 500)]
    here = site(folder=tmp_path, mci=mci, cluster=cluster(provisioning_delay_s=120))
    tables = played(world(here, policy=below(release_delay_s=60)))
    assert happened(tables) == [
        (600, "window_opened", "a"),
        (600, "provisioning_started", "a"),
        (720, "provisioned", "a"),
        (720, "round_started", ""),
        (1200, "window_closed", "a"),
        (1200, "deprovision_marked", "a"),
        (1260, "deprovisioned", "a"),
        (1260, "round_ended", ""),
        (1260, "aggregated", ""),
        (2400, "window_opened", "a"),
        (2400, "provisioning_started", "a"),
        (2520, "provisioned", "a"),
        (2520, "round_started", ""),
        (3000, "window_closed", "a"),
        (3000, "deprovision_marked", "a"),
        (3060, "deprovisioned", "a"),
        (3060, "round_ended", ""),
        (3060, "aggregated", ""),
    ]
    assert steps(tables) == {"a": 54 + 54}
    assert tables.summary["energy_kwh"] == pytest.approx(2 * (120 * 1 + 540 * 4) / 3600, rel=1e-12)
    kilowatt_seconds_times_intensity = 2 * (120 * 50 + 480 * 4 * 50 + 60 * 4 * 500)
    assert tables.summary["emissions_kg"] == pytest.approx(kilowatt_seconds_times_intensity / 3.6e6, rel=1e-12)


@pytest.mark.parametrize(
    ("signal", "threshold", "values"),
    [
        ("mci", {"threshold_g_per_kwh": 100}, (100.0, 99.9, 100.0)),
        ("price", {"threshold_per_mwh": 0}, (0.0, -0.1, 0.0)),
        ("surplus", {"threshold_kw": 3}, (3.0, 3.1, 3.0)),
        ("surplus", {}, (4.0, 4.1, 4.0)),
    ],
    ids=["mci", "price", "surplus", "own_power"],
)
def test_exactly_at_the_threshold_the_window_is_closed(
    tmp_path: Path, signal: str, threshold: dict[str, float], values: tuple[float, float, float]
) -> None:
    """For an hour the signal equals the threshold, then it is better by a hair for ten minutes."""
    pieces = list(zip((0, 3600, 4200), values, strict=True))
    name = "generation" if signal == "surplus" else signal
    here = site(folder=tmp_path, **{name: pieces})
    tables = played(world(here, hours=2, policy={"type": "threshold", "signal": signal, **threshold}))
    assert happened(tables, "window_opened", "window_closed") == [
        (3600, "window_opened", "a"),
        (4200, "window_closed", "a"),
    ]
    assert steps(tables) == {"a": 60}


@pytest.mark.parametrize(("release_delay_s", "starts"), [(0, 15), (30, 15), (120, 1)], ids=["none", "short", "longer"])
def test_oscillation_and_hysteresis(tmp_path: Path, release_delay_s: float, starts: int) -> None:
    """99.9, 100.1, 99.9 ... every minute: a release delay beyond the period keeps the site on."""
    mci = [(60 * minute, 100.1 if minute % 2 else 99.9) for minute in range(30)]
    tables = played(world(site(folder=tmp_path, mci=mci), hours=0.5, policy=below(release_delay_s=release_delay_s)))
    assert len(happened(tables, "window_opened")) == 15
    assert len(happened(tables, "provisioning_started")) == starts


def test_window_reopens_during_the_release_delay(tmp_path: Path) -> None:
    """The mark is lifted, the site trains on, and the next closing counts from its own beginning."""
    mci = [(0, 50), (600, 500), (660, 50), (1200, 500)]
    tables = played(world(site(folder=tmp_path, mci=mci), policy=below(release_delay_s=120)))
    assert happened(tables) == [
        (0, "window_opened", "a"),
        (0, "provisioning_started", "a"),
        (0, "provisioned", "a"),
        (0, "round_started", ""),
        (600, "window_closed", "a"),
        (600, "deprovision_marked", "a"),
        (660, "window_opened", "a"),
        (660, "deprovision_mark_cleared", "a"),
        (1200, "window_closed", "a"),
        (1200, "deprovision_marked", "a"),
        (1320, "deprovisioned", "a"),
        (1320, "round_ended", ""),
        (1320, "aggregated", ""),
    ]
    assert steps(tables) == {"a": 132}


def test_window_reopens_exactly_when_the_release_delay_is_over(tmp_path: Path) -> None:
    """At the same instant the open window counts: the decision comes first, then the delay runs out."""
    mci = [(0, 50), (600, 500), (720, 50)]
    tables = played(world(site(folder=tmp_path, mci=mci), policy=below(release_delay_s=120)))
    assert lived(tables, "a")[-2:] == [(720, "window_opened"), (720, "deprovision_mark_cleared")]
    assert steps(tables) == {"a": 360}


@pytest.mark.parametrize(
    ("provisioning_delay_s", "gone_s"), [(30, 30 + 600), (300, 300 + 600)], ids=["after_ready", "while_provisioning"]
)
def test_minimum_stay(tmp_path: Path, provisioning_delay_s: float, gone_s: float) -> None:
    """A window of one minute: the site stays for ten minutes from when it is ready."""
    here = site(folder=tmp_path, mci=[(0, 50), (60, 500)], cluster=cluster(provisioning_delay_s=provisioning_delay_s))
    tables = played(world(here, policy=below(minimum_stay_s=600)))
    assert lived(tables, "a")[-1] == (gone_s, "deprovisioned")
    assert steps(tables) == {"a": 60}


def test_window_closes_while_provisioning(tmp_path: Path) -> None:
    """Without a minimum stay the site is given back before it was ever ready; its energy counts."""
    here = site(folder=tmp_path, mci=[(0, 50), (60, 500)], cluster=cluster(provisioning_delay_s=300))
    tables = played(world(here, policy=below(release_delay_s=30)))
    assert lived(tables, "a") == [
        (0, "window_opened"),
        (0, "provisioning_started"),
        (60, "window_closed"),
        (60, "deprovision_marked"),
        (90, "deprovisioned"),
    ]
    assert powers(tables) == [(0, 90, "provisioning", 1), (90, 3600, "off", 0)]


def test_no_window_ever_opens() -> None:
    """The run ends normally: no step, no energy, no round."""
    tables = played(world(site("a"), site("b"), policy=below()))
    assert happened(tables) == []
    found = tables.summary
    assert [found[key] for key in ("steps", "tokens", "rounds", "energy_kwh", "runtime_h")] == [0, 0, 0, 0.0, 0]
    assert powers(tables) == [(0, 3600, "off", 0)]


def test_all_leave_then_come_back(tmp_path: Path) -> None:
    """With nobody there training is suspended and costs nothing; it goes on when the windows open again."""
    mci = [(0, 50), (300, 500), (2700, 50)]
    tables = played(world(site("a", tmp_path, mci=mci), site("b", tmp_path, mci=mci), policy=below()))
    assert happened(tables, *ROUNDS) == [
        (0, "round_started", ""),
        (300, "round_ended", ""),
        (300, "aggregated", ""),
        (2700, "round_started", ""),
        (3300, "round_ended", ""),
        (3300, "aggregated", ""),
        (3300, "round_started", ""),
        (3600, "round_truncated", ""),
        (3600, "round_ended", ""),
        (3600, "aggregated", ""),
    ]
    assert powers(tables, "b") == [(0, 300, "training", 4), (300, 2700, "off", 0), (2700, 3600, "training", 4)]
    assert steps(tables) == {"a": 120, "b": 120}


# --- rounds and membership -----------------------------------------------------------------------------------------


def test_two_sites_eligible_at_the_same_instant() -> None:
    """Sites provision in parallel: both are ready after one delay, not after two."""
    slow = cluster(provisioning_delay_s=300)
    tables = played(world(site("b", cluster=slow), site("a", cluster=slow), hours=0.5))
    assert happened(tables, "provisioning_started", "provisioned", "round_started", "round_ended") == [
        (0, "provisioning_started", "b"),
        (0, "provisioning_started", "a"),
        (300, "provisioned", "b"),
        (300, "provisioned", "a"),
        (300, "round_started", ""),
        (900, "round_ended", ""),
        (900, "round_started", ""),
        (1500, "round_ended", ""),
        (1500, "round_started", ""),
        (1800, "round_ended", ""),
    ]
    assert tables.rounds.sites.tolist() == ["a b", "a b", "a b"]
    assert steps(tables) == {"b": 150, "a": 150}


def test_sites_finish_their_step_when_the_round_is_called() -> None:
    """Steps of 7 s and 10 s: called at 600 s, one site needs until 602 s and the other waits for it."""
    tables = played(world(site("a"), site("b", cluster=cluster(step_time_s=7)), hours=0.5))
    assert happened(tables, "round_started") == [
        (0, "round_started", ""),
        (602, "round_started", ""),
        (1204, "round_started", ""),
    ]
    assert powers(tables, "a")[:3] == [(0, 600, "training", 4), (600, 602, "waiting", 1), (602, 1202, "training", 4)]
    assert tables.rounds.steps.tolist() == [60 + 86, 60 + 86, 59 + 85]


def test_site_that_leaves_in_the_middle_of_a_round_hands_in_its_work(tmp_path: Path) -> None:
    """One of two leaves at 905 s: it completes the step it is in, and the round goes on without it."""
    pieces = [(0, 50), (905, 500)]
    tables = played(world(site("a", mci=50), site("b", tmp_path, mci=pieces), policy=below(), hours=0.5))
    assert lived(tables, "b")[-3:] == [(905, "window_closed"), (905, "deprovision_marked"), (910, "deprovisioned")]
    assert powers(tables, "b") == [(0, 910, "training", 4), (910, 1800, "off", 0)]
    assert tables.rounds[["round", "kind", "time_s", "sites", "steps"]].to_numpy().tolist() == [
        [1, "federated", 600, "a b", 120],
        [2, "federated", 1200, "a b", 60 + 31],
        [3, "report", 1800, "a", 60],
        [3, "single", 1800, "a", 0],
    ]
    assert tables.summary["tokens"] == 27_100


def test_newcomer_waits_for_the_next_federated_round(tmp_path: Path) -> None:
    """A third site is ready at 905 s, idles until the round ends at 1200 s, and takes part from then on."""
    late = site("c", tmp_path, mci=[(0, 500), (905, 50)])
    tables = played(world(site("a", mci=50), site("b", mci=50), late, policy=below(), hours=0.5))
    assert powers(tables, "c") == [(0, 905, "off", 0), (905, 1200, "waiting", 1), (1200, 1800, "training", 4)]
    assert tables.rounds.sites.tolist() == ["a b", "a b", "a b c"]


def test_newcomer_calls_a_single_site_round(tmp_path: Path) -> None:
    """A site that trains alone completes its step at 910 s when another is ready at 905 s; then they go together."""
    late = site("b", tmp_path, mci=[(0, 500), (905, 50)])
    tables = played(world(site("a", mci=50), late, policy=below(), hours=0.5))
    assert happened(tables, "round_started", "round_ended") == [
        (0, "round_started", ""),
        (910, "round_ended", ""),
        (910, "round_started", ""),
        (1510, "round_ended", ""),
        (1510, "round_started", ""),
        (1800, "round_ended", ""),
    ]
    assert powers(tables, "a") == [(0, 1800, "training", 4)]
    assert powers(tables, "b") == [(0, 905, "off", 0), (905, 910, "waiting", 1), (910, 1800, "training", 4)]
    assert steps(tables) == {"a": 91 + 60 + 29, "b": 60 + 29}


# --- the end -------------------------------------------------------------------------------------------------------


def test_horizon_is_no_multiple_of_the_step() -> None:
    """Steps of 7 s in 3601.5 s: 514 whole ones, but power is drawn to the end."""
    tables = played(world(site(cluster=cluster(step_time_s=7)), hours=3601.5 / 3600))
    assert (tables.summary["steps"], tables.summary["runtime_h"]) == (514, 3598 / 3600)
    assert tables.summary["energy_kwh"] == pytest.approx(4 * 3601.5 / 3600, rel=1e-12)
    assert powers(tables) == [(0, 3601.5, "training", 4)]


def test_end_inside_a_round() -> None:
    """900 s are one and a half rounds: the second is truncated, its energy counted, its 42 whole steps kept."""
    fast = cluster(step_time_s=7)
    tables = played(world(site("a", cluster=fast), site("b", cluster=fast), hours=0.25))
    assert happened(tables, *ROUNDS) == [
        (0, "round_started", ""),
        (602, "round_ended", ""),
        (602, "aggregated", ""),
        (602, "round_started", ""),
        (900, "round_truncated", ""),
        (900, "round_ended", ""),
        (900, "aggregated", ""),
    ]
    assert steps(tables) == {"a": 86 + 42, "b": 86 + 42}
    assert tables.summary["energy_kwh"] == 2.0


def test_end_while_provisioning() -> None:
    """The energy of a cluster that is never ready counts too."""
    tables = played(world(site(cluster=cluster(provisioning_delay_s=7200))))
    assert (tables.summary["energy_kwh"], tables.summary["steps"]) == (1.0, 0)


def test_nothing_begins_at_the_horizon(tmp_path: Path) -> None:
    """A round that ends at the horizon is complete, no other follows, and a window from then on is not seen."""
    late = site("c", tmp_path, mci=[(0, 500), (1200, 50)])
    tables = played(world(site("a", mci=50), site("b", mci=50), late, hours=1200 / 3600, policy=below()))
    assert happened(tables, *ROUNDS) == [
        (0, "round_started", ""),
        (600, "round_ended", ""),
        (600, "aggregated", ""),
        (600, "round_started", ""),
        (1200, "round_ended", ""),
        (1200, "aggregated", ""),
    ]
    assert lived(tables, "c") == []
    assert tables.summary["rounds"] == 2


@pytest.mark.parametrize("closes_s", [590, 600], ids=["before_the_last", "on_the_last"])
def test_window_closes_exactly_at_the_end_of_a_step(tmp_path: Path, closes_s: int) -> None:
    """No further step begins, and the one that ends is neither lost nor late."""
    tables = played(world(site(folder=tmp_path, mci=[(0, 50), (closes_s, 500)]), hours=1 / 6 + 0.01, policy=below()))
    assert steps(tables) == {"a": closes_s // 10}
    assert lived(tables, "a")[-1] == (closes_s, "deprovisioned")


# --- token budget --------------------------------------------------------------------------------------------------


def test_budget_of_one_site() -> None:
    """5,050 tokens are 50 steps of 100; the site is given back when they are done."""
    tables = played(world(site(), workload={"total_tokens": 5050}))
    assert happened(tables, *ROUNDS) == [
        (0, "round_started", ""),
        (500, "round_ended", ""),
        (500, "aggregated", ""),
        (500, "training_finished", ""),
    ]
    assert powers(tables) == [(0, 500, "training", 4), (500, 3600, "off", 0)]
    assert tables.summary["tokens"] == 5000


def test_budget_of_sites_of_different_speed() -> None:
    """40 steps at 10 s and 30 s each: shared 30 to 10, both are done at 300 s."""
    tables = played(world(site("a"), site("b", cluster=cluster(step_time_s=30)), workload={"total_tokens": 4000}))
    assert steps(tables) == {"a": 30, "b": 10}
    assert happened(tables, "training_finished") == [(300, "training_finished", "")]


def test_budget_that_does_not_divide() -> None:
    """150 steps: 120 in the first round, the last 30 in a shorter one; 50 steps among three are 17, 17 and 16."""
    tables = played(world(site("a"), site("b"), workload={"total_tokens": 15_000}))
    assert tables.rounds[["time_s", "steps"]].to_numpy().tolist() == [[600, 120], [750, 30]]
    three = played(world(site("a"), site("b"), site("c"), workload={"total_tokens": 5000}))
    assert steps(three) == {"a": 17, "b": 17, "c": 16}
    assert happened(three, "training_finished") == [(170, "training_finished", "")]


def test_budget_used_up_exactly_at_the_horizon() -> None:
    """The last step ends with the simulation: it counts, and training is finished."""
    tables = played(world(site(), workload={"total_tokens": 36_000}))
    assert happened(tables, "training_finished", "round_truncated") == [(3600, "training_finished", "")]
    assert tables.summary["tokens"] == 36_000


# --- model transfer, load, serialisation ---------------------------------------------------------------------------

SLOW = cluster(
    network={"rate_mbit_per_s": 1.6, "power_kw": 2, "energy_kwh_per_gb": 0.5},
    model_load_s=5,
    model_load_kw=3,
    serialisation_s=3,
    serialisation_kw=2.5,
)
"""2 MB (1e6 parameters of 2 bytes) take 10 s at 1.6 Mbit/s and 0.001 kWh outside the site."""


def test_phases_around_a_federated_round() -> None:
    """Fetch 10 s, load 5 s, train 600 s, write 3 s, send 10 s - twice; then again up to the horizon."""
    tables = played(world(site("a", cluster=SLOW), site("b", cluster=SLOW), hours=1266 / 3600))
    assert (
        powers(tables)
        == powers(tables, "b")
        == [
            (0, 10, "transfer", 2),
            (10, 15, "model_load", 3),
            (15, 615, "training", 4),
            (615, 618, "serialisation", 2.5),
            (618, 638, "transfer", 2),
            (638, 643, "model_load", 3),
            (643, 1243, "training", 4),
            (1243, 1246, "serialisation", 2.5),
            (1246, 1266, "transfer", 2),
        ]
    )
    assert steps(tables) == {"a": 120, "b": 120}
    per_site = 2 * (10 * 2 + 5 * 3 + 600 * 4 + 3 * 2.5 + 10 * 2) + 10 * 2
    assert tables.summary["energy_kwh"] == pytest.approx(2 * per_site / 3600, rel=1e-12)
    assert tables.summary["bytes_moved"] == 2 * 5 * 2e6
    assert tables.summary["network_energy_kwh"] == pytest.approx(2 * 5 * 0.001, rel=1e-12)
    assert tables.summary["network_emissions_kg"] == pytest.approx(2 * 5 * 0.001 * 0.5, rel=1e-12)


def test_site_that_trained_alone_holds_the_model(tmp_path: Path) -> None:
    """It sends its model when another joins and need not fetch it back; the newcomer has to."""
    late = site("b", tmp_path, mci=[(0, 500), (300, 50)], cluster=SLOW)
    tables = played(world(site("a", mci=50, cluster=SLOW), late, policy=below(), hours=0.1))
    assert powers(tables, "a") == [
        (0, 10, "transfer", 2),
        (10, 15, "model_load", 3),
        (15, 305, "training", 4),
        (305, 308, "serialisation", 2.5),
        (308, 318, "transfer", 2),
        (318, 360, "training", 4),
    ]
    assert powers(tables, "b") == [
        (0, 300, "off", 0),
        (300, 318, "waiting", 1),
        (318, 328, "transfer", 2),
        (328, 333, "model_load", 3),
        (333, 360, "training", 4),
    ]
    assert steps(tables) == {"a": 29 + 4, "b": 2}
    assert tables.summary["bytes_moved"] == 3 * 2e6


@pytest.mark.parametrize(
    ("closes_s", "phases", "moved"),
    [
        (8, [(0, 8, "transfer", 2)], 1.6e6),
        (12, [(0, 10, "transfer", 2), (10, 12, "model_load", 3)], 2e6),
    ],
    ids=["transfer", "model_load"],
)
def test_restore_is_aborted_when_the_site_leaves(
    tmp_path: Path, closes_s: int, phases: list[tuple[float, float, str, float]], moved: float
) -> None:
    """A site that leaves while it restores the model sends nothing back; energy and bytes so far are counted."""
    here = site(folder=tmp_path, mci=[(0, 50), (closes_s, 500)], cluster=SLOW)
    tables = played(world(here, policy=below(), hours=0.1))
    assert powers(tables) == [*phases, (closes_s, 360, "off", 0)]
    assert happened(tables, "round_ended", "round_empty", "aggregated") == [
        (closes_s, "round_ended", ""),
        (closes_s, "round_empty", ""),
    ]
    assert tables.summary["bytes_moved"] == pytest.approx(moved, rel=1e-12)
    assert tables.summary["network_energy_kwh"] == pytest.approx(moved / 1e9 * 0.5, rel=1e-12)
    assert tables.summary["energy_kwh"] == pytest.approx(sum((e - s) * kw for s, e, _, kw in phases) / 3600, rel=1e-12)


def test_site_hands_over_after_its_window_has_closed(tmp_path: Path) -> None:
    """A site that leaves writes and sends its model while it drains."""
    here = site(folder=tmp_path, mci=[(0, 50), (100, 500)], cluster=SLOW)
    tables = played(world(here, policy=below(), hours=0.1))
    assert powers(tables)[2:] == [
        (15, 105, "training", 4),
        (105, 108, "serialisation", 2.5),
        (108, 118, "transfer", 2),
        (118, 360, "off", 0),
    ]
    own = tables.intervals[tables.intervals.state == "draining"]
    assert (own.start_s.min(), own.end_s.max()) == (100, 118)
    assert steps(tables) == {"a": 9}


def test_site_whose_model_arrives_when_the_round_is_called_sends_nothing() -> None:
    """It fitted no step, so it neither replies nor keeps the others waiting."""
    far = site("b", cluster=cluster(network={"rate_mbit_per_s": 16 / 600}))
    tables = played(world(site("a"), far, hours=1200 / 3600))
    assert happened(tables, "round_started") == [(0, "round_started", ""), (600, "round_started", "")]
    assert tables.rounds.sites.tolist() == ["a", "a"]
    assert powers(tables, "a") == [(0, 1200, "training", 4)]


# --- independence --------------------------------------------------------------------------------------------------

TINY = {"type": "gpt", "layers": 1, "width": 16, "batch_sequences": 2, "sequence_bytes": 16, "evaluation_bytes": 64}


def test_fourth_idle_site_changes_nothing() -> None:
    """The first three sites keep their text, batches, losses and weights when an idle fourth is added."""
    training = {"learner": {**TINY, "corpus": {"type": "python", "split": "by_source"}}, "stride": 20}
    three = [site(name, mci=50) for name in ("c", "a", "b")]
    scenarios = [
        world(*three, policy=below(), training=training),
        world(*three, site("d"), policy=below(), training=training),
    ]
    without, with_idle = (built(scenario).tables()[HEADLINE] for scenario in scenarios)
    assert without.summary["real_steps"] == 54
    assert with_idle.loss.equals(without.loss)
    assert with_idle.rounds.equals(without.rounds)
    assert with_idle.weights_sha256 == without.weights_sha256
    assert powers(with_idle, "d") == [(0, 3600, "off", 0)]


def test_reply_that_is_not_finite_is_refused() -> None:
    """A learning rate that blows up: both replies are refused with an event, and the model stays as it was."""
    wild = {"type": "sgd", "learning_rate": 1e18, "gradient_clip": None}
    constant = {"final_factor": 1.0}
    training = {"learner": {**TINY, "inner_optimizer": wild, "lr_schedule": constant}, "stride": 20}
    tables = played(world(site("a"), site("b"), training=training, hours=600 / 3600))
    assert happened(tables, "reply_rejected", "aggregated") == [
        (600, "reply_rejected", "a"),
        (600, "reply_rejected", "b"),
    ]
    assert tables.summary["eval_loss_final"] == tables.summary["eval_loss_initial"]
    assert (tables.summary["steps"], tables.summary["real_steps"]) == (120, 6)


@pytest.mark.parametrize("sites", [1, 2])
def test_strategy_that_wants_more_sites_waits_on_the_clock(tmp_path: Path, sites: int) -> None:
    """Flower's sampling would sleep for ever in wall-clock time; here training begins when the second site joins."""
    options = {"min_available_nodes": 2, "min_train_nodes": 2, "fraction_evaluate": 0.0}
    strategy = {"type": "custom", "class": "flwr.serverapp.strategy:FedAvg", "options": options}
    listed = [site("a", mci=50), site("b", tmp_path, mci=[(0, 500), (1200, 50)])][:sites]
    tables = played(world(*listed, policy=below(), training={"learner": TINY, "stride": 60, "strategy": strategy}))
    assert tables.summary["steps"] == {1: 0, 2: 480}[sites]
    if sites == 2:
        assert happened(tables, "aggregated")[0] == (1800, "aggregated", "")


def test_sampling_of_a_strategy_is_seeded_by_the_scenario() -> None:
    """Which half of four sites a strategy picks depends on the scenario's seed alone."""
    options = {"fraction_train": 0.5, "fraction_evaluate": 0.0}
    strategy = {"type": "custom", "class": "flwr.serverapp.strategy:FedAvg", "options": options}
    training = {"learner": TINY, "stride": 60, "strategy": strategy}

    def sampled(seed: int) -> tuple[str, ...]:
        return tuple(played(world(*(site(name) for name in "abcd"), seed=seed, training=training)).rounds.sites)

    assert sampled(1) == sampled(1)
    assert len({sampled(seed) for seed in (1, 2, 3)}) > 1
    assert [len(names.split()) for names in sampled(1)] == [2] * 6
