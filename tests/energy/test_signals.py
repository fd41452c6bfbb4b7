"""Signals on the scenario's clock: step functions, what a site makes of them, and what cannot be used."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import vessim
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds import START, site, world

from curtailsim.energy.signals import Steps, site_signals
from curtailsim.scenario import Site, load
from curtailsim.spec import ScenarioError


def signals(folder: Path | None = None, horizon_s: int = 3600, **parts: Any) -> Any:
    """The signals of a site of these parts."""
    return site_signals(Site.model_validate(site(folder=folder, **parts)), START, horizon_s * 1000)


def test_value_holds_until_the_next_stamp() -> None:
    """Half-open pieces; Vessim may ask in seconds or with a timedelta."""
    steps = Steps([0, 1000, 2500], [1.0, 2.0, 3.0])
    assert [steps.at_ms(now) for now in (0, 999, 1000, 2499, 2500, 10**9)] == [1, 1, 2, 2, 3, 3]
    assert [steps.at(0.999), steps.at(1.0), steps.at(timedelta(seconds=2.5))] == [1, 2, 3]
    assert isinstance(steps, vessim.Signal)


def test_equal_neighbours_are_one_step() -> None:
    """Stamps that change nothing are no change points."""
    steps = Steps([0, 1000, 2000, 3000], [5.0, 5.0, 6.0, 6.0])
    assert (steps.times_ms, steps.values) == ([0, 2000], [5.0, 6.0])


step_functions = st.lists(st.integers(1, 20), unique=True, max_size=6).flatmap(
    lambda stamps: st.lists(st.sampled_from([0.0, 1.0, 2.5]), min_size=len(stamps) + 1, max_size=len(stamps) + 1).map(
        lambda values: Steps([0, *sorted(stamps)], values)
    )
)


@settings(derandomize=True, database=None, deadline=None)
@given(step_functions, step_functions)
def test_combination_is_pointwise(left: Steps, right: Steps) -> None:
    """A combined step function has at every instant the function of both values, and no needless change point."""
    both = left.combine(right, lambda a, b: a - b)
    assert [both.at_ms(now) for now in range(25)] == [left.at_ms(now) - right.at_ms(now) for now in range(25)]
    assert all(before != after for before, after in zip(both.values, both.values[1:], strict=False))


def test_surplus_is_what_the_grid_does_not_take(tmp_path: Path) -> None:
    """Generation minus absorption, never below zero; all of it where nothing is said about absorption."""
    found = signals(tmp_path, generation=[(0, 5), (1200, 2)], absorption=[(0, 3), (600, 6), (1800, 0)])
    surplus = found.steps["surplus"]
    assert (surplus.times_ms, surplus.values) == ([0, 600_000, 1_800_000], [2.0, 0.0, 2.0])
    assert signals(generation=5).steps["surplus"].values == [5.0]


def test_balance_of_load_must_run_and_export_limit(tmp_path: Path) -> None:
    """max(load - must-run, 0) + export limit, whose parts change at different times."""
    constant = {"type": "constant", "unit": "kW"}
    absorption = {
        "type": "balance",
        "load": site(folder=tmp_path, generation=[(0, 5), (600, 3)])["generation"],
        "must_run": {**constant, "value": 4},
        "export_limit": site(folder=tmp_path, generation=[(0, 1), (1200, 2)])["generation"],
    }
    found = signals(generation=3, absorption=absorption).steps
    assert (found["absorption"].times_ms, found["absorption"].values) == ([0, 600_000, 1_200_000], [2.0, 1.0, 2.0])
    assert found["surplus"].values == [1.0, 2.0, 1.0]


def test_only_the_horizon_counts(tmp_path: Path) -> None:
    """Changes from the horizon on are cut off, and the value in force at the start is stamped with it."""
    found = signals(tmp_path, horizon_s=900, mci=[(0, 1), (600, 2), (900, 3), (1200, 4)])
    assert (found.steps["mci"].times_ms, found.steps["mci"].values) == ([0, 600_000], [1.0, 2.0])


def test_currency_comes_from_the_price() -> None:
    """Prices in EUR/MWh are reported in EUR."""
    assert signals(price={"type": "constant", "value": 1, "unit": "EUR/MWh"}).currency == "EUR"
    assert signals().currency is None


def test_negative_absorption_counts_as_nothing() -> None:
    """The grid then takes nothing, with a warning."""
    found = signals(generation=5, absorption=-1)
    assert found.steps["absorption"].values == [0.0]
    assert any("below zero" in warning for warning in found.warnings)


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"generation": -1}, "sites[0].generation  must not be negative (lowest -1 kW)"),
        ({"absorption": 1}, "absorption needs generation"),
        ({"storage": {"capacity_kwh": 1}}, "storage needs generation"),
        ({"generation": 1, "storage": {"capacity_kwh": 1, "min_soc": 0.5}}, "initial_soc 0.0 is below min_soc 0.5"),
        ({"mci": {"type": "constant", "value": 1}}, "sites[0].mci.unit  is required"),
        ({"mci": {"type": "constant", "value": 1, "unit": "kW"}}, "sites[0].mci"),
    ],
    ids=["negative", "absorption", "storage", "soc", "no_unit", "wrong_unit"],
)
def test_mistakes_are_explained(parts: dict[str, Any], message: str) -> None:
    """One clear message each."""
    with pytest.raises(ScenarioError) as caught:
        load(world(site(**parts)))
    assert message in str(caught.value)


def test_trace_shorter_than_the_horizon(tmp_path: Path) -> None:
    """The message says what is covered and what is asked for."""
    with pytest.raises(ScenarioError, match=r"sites\[0\].mci .*covers .* but .* is asked for"):
        load(world(site(folder=tmp_path, mci=[(0, 1), (600, 2)]), hours=48))


def test_different_currencies_are_refused() -> None:
    """Costs in different currencies cannot be added up."""
    sites = [
        site(name, price={"type": "constant", "value": 1, "unit": unit})
        for name, unit in (("a", "EUR/MWh"), ("b", "USD/MWh"))
    ]
    with pytest.raises(ScenarioError, match="prices are in different currencies"):
        load(world(*sites))
