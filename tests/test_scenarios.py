"""The scenarios that come with the product are what they say they are."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml
from shared import shared_data

from curtailsim import plots
from curtailsim.results import run
from curtailsim.scenario import load

FOLDER = Path(__file__).parents[1] / "scenarios"
FILES = sorted(FOLDER.glob("*.yaml"))
TOKENS_ONLY = "training.learner={type: tokens_only}"


def located(path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A scenario, with the shared data where it asks for it; skipped where that is absent."""
    if "CURTAILSIM_DATA" in path.read_text():
        monkeypatch.setenv("CURTAILSIM_DATA", str(shared_data("curtail_llm_mci.csv").parent))
    return path


def test_there_are_scenarios() -> None:
    """The list is not empty by mistake."""
    assert {"three_sites", "real_trace"} <= {path.stem for path in FILES}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_opens_with_its_question(path: Path) -> None:
    """The first comment says what the scenario answers."""
    lines = path.read_text().splitlines()
    comment = [line for line in lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]]
    assert "?" in " ".join(comment)


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_loads(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a mistake, under the name of its file."""
    assert load(located(path, monkeypatch)).name == path.stem


@pytest.mark.parametrize("name", ["three_sites", "real_trace"])
def test_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All baselines; the curtailment-aware run emits least and uses the same tokens."""
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    scenario = load(located(FOLDER / f"{name}.yaml", monkeypatch), [TOKENS_ONLY])
    summary = run(scenario, tmp_path / name).summary
    assert list(summary["runs"]) == [
        "curtailment_aware",
        "centralized_california",
        "centralized_texas",
        "centralized_south_australia",
        "continuous_federated",
    ]
    assert all(0 < ratio < 1 for ratio in summary["emission_ratio"].values())
    own = summary["runs"]["curtailment_aware"]
    if name == "three_sites":
        assert {found["steps"] for found in summary["runs"].values()} == {24_414}
        assert all(values["steps"] > 1000 for values in own["sites"].values())
    assert own["steps"] <= 24_414
    assert own["loss_final"] is None


@pytest.mark.parametrize("path", sorted((FOLDER / "expected").glob("*.json")), ids=lambda path: path.stem)
def test_expected_values_belong_to_a_scenario(path: Path) -> None:
    """And are numbers by path."""
    assert (FOLDER / f"{path.stem}.yaml").is_file()
    content = json.loads(path.read_text())
    assert content
    assert all(value is None or isinstance(value, int | float) for value in content.values())


def test_three_sites_is_the_workload_of_the_paper() -> None:
    """561M parameters, 524,288 tokens a step, 4 x A100 at 0.468 and 2.024 kW, 240 / 600 / 600 s, 7 days."""
    content = yaml.safe_load((FOLDER / "three_sites.yaml").read_text())
    scenario = load(FOLDER / "three_sites.yaml")
    assert scenario.workload.parameters == 561e6
    assert scenario.workload.tokens_per_step == 524_288
    for site in scenario.sites:
        cluster = site.cluster
        assert (cluster.accelerator, cluster.count, cluster.idle_kw, cluster.train_kw) == ("A100-80G", 4, 0.468, 2.024)
        assert cluster.provisioning_delay_s == 240
    assert (scenario.training.round_s, scenario.policy.release_delay_s, scenario.duration_h) == (600, 600, 168)
    assert [one["type"] for one in content["baselines"]] == ["centralized", "continuous_federated"]
