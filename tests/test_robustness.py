"""What hostile but realistic use must not do: lose data, lose a finished run, or hide that training went wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from worlds import played, site, world

from curtailsim.results import run
from curtailsim.scenario import load
from curtailsim.spec import ScenarioError

GPT = {
    "type": "gpt",
    "layers": 1,
    "heads": 2,
    "width": 32,
    "sequence_bytes": 32,
    "batch_sequences": 4,
    "evaluation_bytes": 256,
}


def mistakes(scenario: dict[str, Any]) -> str:
    """What loading a scenario complains about."""
    with pytest.raises(ScenarioError) as caught:
        load(scenario)
    return str(caught.value)


def test_a_folder_that_is_not_ours_is_kept(tmp_path: Path) -> None:
    """A manifest.json does not make a results folder: data folders have one too."""
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "manifest.json").write_text("{}", encoding="utf-8")
    with pytest.raises(ScenarioError, match="is no results folder"):
        run(load(world(site())), tmp_path / "data")
    assert ["manifest.json"] == [path.name for path in (tmp_path / "data").iterdir()]


def test_a_failed_run_does_not_overwrite_somebody_elses_partial_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes another name."""
    (tmp_path / "out.partial").mkdir()
    (tmp_path / "out.partial" / "mine").write_text("precious", encoding="utf-8")

    def broken(*_: object) -> None:
        raise RuntimeError("the disk is on fire")

    monkeypatch.setattr("curtailsim.plots.draw", broken)
    with pytest.raises(RuntimeError, match="on fire"):
        run(load(world(site())), tmp_path / "out")
    assert "precious" == (tmp_path / "out.partial" / "mine").read_text(encoding="utf-8")
    (made,) = [path for path in tmp_path.iterdir() if path.name not in ("out.partial",)]
    assert "failed" == json.loads((made / "manifest.json").read_text(encoding="utf-8"))["status"]


@pytest.mark.parametrize("name", [".", "..", ".hidden", "a/b"])
def test_a_name_cannot_leave_the_results_folder(name: str) -> None:
    """It names a folder."""
    assert "name" in mistakes(world(site(), name=name))


def test_a_diverged_run_is_complete_and_says_so(tmp_path: Path) -> None:
    """Its last training loss is no number; summary.json has null, and the model never became worse than at first."""
    wild = {"type": "sgd", "learning_rate": 1e18, "gradient_clip": None}
    training = {"learner": {**GPT, "inner_optimizer": wild}}
    results = run(load(world(site(), hours=0.1, training=training)), tmp_path / "out")
    found = results.summary["runs"]["curtailment_aware"]
    assert found["loss_final"] is None
    assert found["eval_loss_final"] == found["eval_loss_initial"]
    assert "reply_rejected" in set(results.events().event)


def test_a_merged_model_that_is_not_finite_is_refused(tmp_path: Path) -> None:
    """A server optimiser can diverge where no site does; the last good model stays."""
    training = {"learner": GPT, "round_s": 60, "strategy": {"type": "fedadam", "eta": 1e18, "tau": 1e-18}}
    tables = played(world(site("a"), site("b"), hours=0.1, training=training))
    assert "the merged model" in " ".join(tables.events.detail)
    assert tables.rounds.eval_loss.notna().all()


def test_a_users_own_keys_are_not_taken_for_files() -> None:
    """`path` names a file in a trace only."""
    config = {"path": "data", "plan": "nightly", "sources": "all"}
    learner = {"type": "flower_app", "server_app": "a:b", "client_app": "a:b", "examples_per_step": 1}
    scenario = load(world(site(), training={"learner": {**learner, "run_config": config}}))
    assert config == scenario.training.learner.run_config  # type: ignore[union-attr]


def test_settings_an_app_would_ignore_are_refused() -> None:
    """A token budget ends nothing that ends by itself."""
    learner = {"type": "flower_app", "server_app": "a:b", "client_app": "a:b", "examples_per_step": 1}
    budget = {"workload": {"total_tokens": 1000}}
    assert "workload.total_tokens" in mistakes(world(site(), training={"learner": learner}, **budget))
    assert "round_s" in mistakes(world(site(), training={"learner": learner, "round_s": 60}))


def test_a_baselines_own_rules_are_checked_too() -> None:
    """Shares must name its sites, and its budget must be a step at least."""
    shares = {"type": "continuous_federated", "protocol": {"uneven_shares": {"b": 1}}}
    assert "baselines[0].protocol.uneven_shares" in mistakes(world(site("a"), site("b"), baselines=[shares]))
    small = {"type": "centralized", "total_tokens": 50}
    assert "baselines[0].total_tokens" in mistakes(world(site("a"), baselines=[small]))


@pytest.mark.parametrize("change", [{"pue": 1e30}, {"train_kw": 1e30}, {"step_time_s": 1e30}])
def test_numbers_beyond_anything_real_are_refused(change: dict[str, float]) -> None:
    """They would overflow much later."""
    from worlds import cluster

    assert "check its unit" in mistakes(world(site(cluster=cluster(**change))))


def test_site_names_do_not_leak_into_other_words() -> None:
    """A site may be called like a word of an event's text."""
    names = site("steps"), site("x")
    scenario = load(world(*names, workload={"total_tokens": 300}, baselines=[{"type": "centralized"}]))
    from curtailsim.simulation import plans, simulate

    runs = {name: made for plan in plans(scenario) for name, made in simulate(scenario, plan).items()}
    events = runs["centralized_x"].events
    assert ["3 steps"] == events[events.event == "training_finished"].detail.tolist()
    assert ["x"] == events[events.event == "round_started"].detail.tolist()
