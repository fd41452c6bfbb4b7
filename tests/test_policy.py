"""Who should train now: built-in decisions, a user's own, and how its mistakes are explained."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from worlds import happened, lived, played, powers, site, world

from curtailsim.policy import Always, SiteView, Threshold
from curtailsim.scenario import dump, load
from curtailsim.spec import ScenarioError


def view(name: str, **values: float) -> SiteView:
    """A site that draws 2 kW while it trains."""
    return SiteView(name, "off", values, 2.0)


def test_always_selects_everybody() -> None:
    """Whatever the signals, which it does not even watch."""
    assert set(Always().select(0, [view("a"), view("b", mci=900)])) == {"a", "b"}
    assert Always().watches == frozenset()


@pytest.mark.parametrize(
    ("options", "views", "selected"),
    [
        ({"threshold_g_per_kwh": 100}, [view("a", mci=99.9), view("b", mci=100), view("c", mci=100.1)], {"a"}),
        (
            {"signal": "price", "threshold_per_mwh": 0},
            [view("a", price=-0.1), view("b", price=0), view("c", price=1)],
            {"a"},
        ),
        ({"signal": "surplus"}, [view("a", surplus=2.1), view("b", surplus=2), view("c", surplus=0)], {"a"}),
        ({"signal": "surplus", "threshold_kw": 0}, [view("a", surplus=0.1), view("b", surplus=0)], {"a"}),
    ],
    ids=["mci", "price", "own_power", "surplus"],
)
def test_threshold_is_strict(options: dict[str, Any], views: list[SiteView], selected: set[str]) -> None:
    """Only what is better than the threshold is selected; a value exactly at it is not."""
    assert set(Threshold(type="threshold", **options).select(0, views)) == selected


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"type": "threshold"}, "policy  signal 'mci' needs threshold_g_per_kwh"),
        ({"type": "threshold", "signal": "price"}, "policy  signal 'price' needs threshold_per_mwh"),
        (
            {"type": "threshold", "threshold_kw": 3},
            "threshold_kw does not go with signal 'mci'; use threshold_g_per_kwh",
        ),
        ({"type": "treshold"}, "policy.type  'treshold' is unknown; did you mean 'threshold'?"),
        ({"type": "threshold", "threshhold_g_per_kwh": 1}, "unknown key; did you mean 'threshold_g_per_kwh'?"),
        ({"type": "always", "release_delay_s": -1}, "policy.release_delay_s  must be at least 0 (got -1)"),
        (
            {"type": "threshold", "signal": "price", "threshold_per_mwh": 3},
            "sites[0].price  is required by the policy's signal",
        ),
        ({"type": "apps.absent:Policy"}, "'apps.absent:Policy' cannot be imported"),
        ({"type": "apps.policies:Absent"}, "'apps.policies:Absent' cannot be imported"),
        ({"type": "apps.policies:Cheapest", "cuont": 2}, "apps.policies:Cheapest refuses its arguments"),
        ({"type": "apps.policies:Selectless"}, "apps.policies:Selectless has no method select(now_s, sites)"),
    ],
    ids=[
        "no_threshold",
        "no_price_threshold",
        "other_threshold",
        "type",
        "key",
        "negative",
        "signal_missing",
        "module",
        "class",
        "argument",
        "select",
    ],
)
def test_mistakes_are_found_at_load(policy: dict[str, Any], message: str) -> None:
    """One clear message each."""
    with pytest.raises(ScenarioError) as caught:
        load(world(site(), policy=policy))
    assert message in str(caught.value)


def test_custom_policy(tmp_path: Path) -> None:
    """A user's class is asked whenever a signal changes, gets its own arguments, and shares the hysteresis."""
    cheap = [(0, 10), (1200, 30)]
    policy = {"type": "apps.policies:Cheapest", "count": 1, "release_delay_s": 100}
    scenario = world(site("a", tmp_path, price=cheap), site("b", price=20), policy=policy)
    tables = played(scenario)
    assert lived(tables, "a") == [
        (0, "window_opened"),
        (0, "provisioning_started"),
        (0, "provisioned"),
        (1200, "window_closed"),
        (1200, "deprovision_marked"),
        (1300, "deprovisioned"),
    ]
    assert powers(tables, "b") == [(0, 1200, "off", 0), (1200, 3600, "training", 4)]
    both = played({**scenario, "policy": {**policy, "count": 2}})
    assert happened(both, "window_closed") == []


def test_custom_policy_survives_dumping(tmp_path: Path) -> None:
    """The resolved scenario names the class and its arguments, and runs alike."""
    policy = {"type": "apps.policies:Cheapest", "count": 2, "minimum_stay_s": 5}
    scenario = load(world(site("a", price=1), policy=policy))
    path = tmp_path / "scenario.yaml"
    path.write_text(dump(scenario))
    again = load(path)
    assert again.policy.model_dump() == {
        "type": "apps.policies:Cheapest",
        "count": 2,
        "acquire_delay_s": 0.0,
        "release_delay_s": 0.0,
        "minimum_stay_s": 5.0,
    }
    assert again == scenario


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (["b"], "apps.policies:Answers  select wants 'b', which is no site (a)"),
        ("a", "apps.policies:Answers  select must return the names of sites, such as {'a'} (got 'a')"),
        (None, "apps.policies:Answers  select must return the names of sites, such as {'a'} (got None)"),
        (True, "apps.policies:Answers  select must return the names of sites, such as {'a'} (got True)"),
    ],
    ids=["unknown", "string", "nothing", "truth"],
)
def test_wrong_answers_are_explained(answer: Any, message: str) -> None:
    """What a user's policy must not answer is explained while it runs."""
    with pytest.raises(ScenarioError) as caught:
        played(world(site("a"), policy={"type": "apps.policies:Answers", "answer": answer}))
    assert message in str(caught.value)


def test_no_sites_is_an_answer() -> None:
    """A policy that selects nobody leaves everything off."""
    tables = played(world(site("a"), policy={"type": "apps.policies:Answers", "answer": []}))
    assert powers(tables) == [(0, 3600, "off", 0)]


BROKEN = {
    "syntax": ("def x(:", "cannot be imported: its module raises SyntaxError"),
    "at_import": ("raise RuntimeError('mine')", "raises RuntimeError: mine (broken_at_import.py, line 1)"),
    "exit": ("raise SystemExit(1)", "cannot be imported: its module raises SystemExit: 1"),
    "key": ("class Policy:\n def __init__(self): raise KeyError('k')", "cannot be built: it raises KeyError: 'k'"),
    "name": ("class Polciy: pass", "has no 'Policy'; did you mean 'Polciy'?"),
    "no_class": ("Policy = 3", "is no class (it is 3)"),
}


@pytest.mark.parametrize("name", BROKEN)
def test_broken_modules_are_explained(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever a user's module or constructor raises: one message with the reference and the exception."""
    text, words = BROKEN[name]
    (tmp_path / f"broken_{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(ScenarioError) as caught:
        load(world(site(), policy={"type": f"broken_{name}:Policy"}))
    (problem,) = caught.value.problems
    assert f"broken_{name}:Policy" in problem.rule
    assert words in problem.rule


@pytest.mark.parametrize("reference", ["...:x", ".a:x", "a..b:x", "a:1"])
def test_references_that_are_none(reference: str) -> None:
    """They could not be imported from anywhere."""
    with pytest.raises(ScenarioError, match="name a module and an object in it, such as my_module:app"):
        load(world(site(), policy={"type": reference}))


def test_a_slip_in_one_of_our_keys() -> None:
    """A further key is the user's own argument, but may have been meant as ours."""
    with pytest.raises(ScenarioError, match="did you mean 'release_delay_s'"):
        load(world(site(), policy={"type": "apps.policies:Cheapest", "count": 1, "release_delay": 2}))
