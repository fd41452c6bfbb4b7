"""The results folder keeps its contract, and is never a folder that only looks complete."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from worlds import below, cluster, site, world

import curtailsim
from curtailsim import plots, simulation
from curtailsim.report import notes
from curtailsim.results import Results, open_results, run
from curtailsim.scenario import load
from curtailsim.spec import ScenarioError

RUNS = ["curtailment_aware", "centralized_a", "centralized_b", "continuous_federated"]
FILES = ["comparison.png", "manifest.json", "power.png", "scenario.yaml", "summary.json", "timeline.png"]
ENERGY = {
    "energy_kwh",
    "emissions_kg",
    "emissions_surplus_first_kg",
    "surplus_available_kwh",
    "surplus_used_kwh",
    "surplus_wasted_kwh",
    "curtailed_share",
    "grid_import_kwh",
    "cost",
}
TRAINING = {
    "runtime_h",
    "tokens",
    "steps",
    "real_steps",
    "rounds",
    "loss_initial",
    "loss_final",
    "eval_loss_initial",
    "eval_loss_final",
}
COLUMNS = {
    "events": ["time_s", "event", "site", "round", "detail"],
    "intervals": [
        "site",
        "start_s",
        "end_s",
        "state",
        "facility_kw",
        "generation_kw",
        "absorption_kw",
        "surplus_used_kw",
        "surplus_wasted_kw",
        "storage_kw",
        "grid_import_kw",
        "mci_g_per_kwh",
        "price_per_mwh",
    ],
    "loss": ["time_s", "site", "round", "step", "tokens", "loss"],
    "rounds": ["round", "time_s", "tokens", "train_loss", "eval_loss"],
}
TINY: dict[str, Any] = {
    "learner": {"type": "gpt", "layers": 1, "width": 16, "batch_sequences": 2, "evaluation_bytes": 128},
    "stride": 20,
}


def tiny(**parts: Any) -> dict[str, Any]:
    """Two sites for an hour, with both kinds of baseline; one of them never in a window."""
    sites = (site("a", mci=50, generation=9, absorption=3, price=40), site("b", mci=500, price=40))
    baselines = [{"type": "centralized"}, {"type": "continuous_federated"}]
    return world(*sites, policy=below(), baselines=baselines, **parts)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Results:
    """A complete folder with real training."""
    return run(load(tiny(training=TINY)), tmp_path_factory.mktemp("results") / "world")


@pytest.fixture
def undrawn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures take most of the time of a small run."""
    monkeypatch.setattr(plots, "draw", lambda *_: None)


def test_files(finished: Results) -> None:
    """Names are fixed; everything of a run is in a folder of its name."""
    there = sorted(path.name for path in finished.path.iterdir() if path.is_file())
    assert set(FILES) <= set(there)
    assert sorted(path.name for path in finished.path.iterdir() if path.is_dir()) == sorted(RUNS)
    for name in RUNS:
        tables = {path.name for path in (finished.path / name).iterdir()}
        assert {f"{table}.csv" for table in COLUMNS} <= tables
    assert [path.name for path in finished.path.parent.iterdir()] == ["world"]


def test_summary(finished: Results) -> None:
    """Every key of the contract, for every run and site."""
    summary = finished.summary
    assert {"scenario", "seed", "digest", "accounting", "runs", "emission_ratio"} <= summary.keys()
    assert list(summary["runs"]) == RUNS == finished.runs
    assert list(summary["emission_ratio"]) == RUNS[1:]
    for found in summary["runs"].values():
        assert (ENERGY | TRAINING | {"sites"}) <= found.keys()
        for values in found["sites"].values():
            assert ENERGY <= values.keys()
    assert list(summary["runs"]["centralized_a"]["sites"]) == ["a"]
    assert len(summary["digest"]) == 64


@pytest.mark.parametrize("table", COLUMNS)
@pytest.mark.parametrize("name", RUNS)
def test_columns(finished: Results, table: str, name: str) -> None:
    """Every column of the contract, in the file and in the frame."""
    header = (finished.path / name / f"{table}.csv").read_text().splitlines()[0].split(",")
    frame = getattr(finished, table)(name)
    assert isinstance(frame, pd.DataFrame)
    assert set(COLUMNS[table]) <= set(header)
    assert list(frame.columns) == header
    assert len(frame) > 0


def test_sites_add_up(finished: Results) -> None:
    """A run's energies are the sums of its sites', and shares are shares."""
    for found in finished.summary["runs"].values():
        for key in ENERGY - {"curtailed_share"}:
            assert found[key] == pytest.approx(sum(one[key] for one in found["sites"].values()), rel=1e-12, abs=1e-12)
        assert found["curtailed_share"] is None or 0 <= found["curtailed_share"] <= 1


def test_manifest(finished: Results) -> None:
    """What a reader needs to trust or repeat the run."""
    manifest = finished.manifest
    assert manifest["status"] == "complete"
    assert {"scenario", "versions", "threads", "commit", "wall_time_s", "python"} <= manifest.keys()
    assert {"flwr", "torch", "simpy", "vessim"} <= manifest["versions"].keys()


@pytest.mark.usefixtures("undrawn")
def test_resolved_scenario_gives_the_same_digest(finished: Results, tmp_path: Path) -> None:
    """`scenario.yaml` of a results folder is a scenario like any other."""
    again = run(load(finished.path / "scenario.yaml"), tmp_path / "again")
    assert again.summary["digest"] == finished.summary["digest"]


@pytest.mark.usefixtures("undrawn")
def test_json_has_no_nan(tmp_path: Path) -> None:
    """What does not exist is null: no price, no window, no baseline's emissions."""
    scenario = world(site("a", mci=500), policy=below(), baselines=[{"type": "centralized"}])
    scenario["sites"][0]["mci"]["value"] = 0.0
    text = (run(load(scenario, ["policy.threshold_g_per_kwh=0"]), tmp_path / "out").path / "summary.json").read_text()
    summary = json.loads(text, parse_constant=pytest.fail)
    assert summary["emission_ratio"] == {"centralized_a": None}
    own = summary["runs"]["curtailment_aware"]
    assert (own["steps"], own["energy_kwh"], own["curtailed_share"], own["cost"]) == (0, 0, None, None)
    assert (own["loss_final"], own["eval_loss_final"]) == (None, None)


def test_unknown_run(finished: Results) -> None:
    """The error lists what there is."""
    with pytest.raises(KeyError, match=r"no run 'centralized' \(.*centralized_a"):
        finished.rounds("centralized")


def test_python_api(finished: Results) -> None:
    """The names the package offers."""
    assert curtailsim.open_results(finished.path).summary == finished.summary
    assert {"load", "run", "open_results"} <= set(curtailsim.__all__)
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        curtailsim.walk  # noqa: B018 - asking for it is the test


# --- folders that are not what they should be ----------------------------------------------------------------------


def test_refuses_a_folder_of_something_else(tmp_path: Path) -> None:
    """Nobody's files are moved away."""
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(ScenarioError, match="exists and is no results folder; choose another place"):
        run(load(tiny()), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.tex"]


def test_refuses_a_file(tmp_path: Path) -> None:
    """A file is no place for a folder."""
    (tmp_path / "out").write_text("precious")
    with pytest.raises(ScenarioError, match="exists and is no results folder"):
        run(load(tiny()), tmp_path / "out")
    assert (tmp_path / "out").read_text() == "precious"


@pytest.mark.usefixtures("undrawn")
def test_an_empty_folder_is_free(tmp_path: Path) -> None:
    """It may have been made for this."""
    (tmp_path / "out").mkdir()
    assert run(load(tiny()), tmp_path / "out").manifest["status"] == "complete"


@pytest.mark.usefixtures("undrawn")
def test_a_complete_folder_is_replaced(tmp_path: Path) -> None:
    """Whole: nothing of the run before stays."""
    run(load(tiny()), tmp_path / "out")
    (tmp_path / "out" / "stale.txt").write_text("from before")
    again = run(load(tiny(), ["seed=1"]), tmp_path / "out")
    assert again.summary["seed"] == 1
    assert not (tmp_path / "out" / "stale.txt").exists()
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


class Stop(Exception):
    """Something unforeseen."""


@pytest.mark.parametrize(("error", "status"), [(Stop, "failed"), (KeyboardInterrupt, "interrupted")])
@pytest.mark.usefixtures("undrawn")
def test_what_stops_leaves_a_partial_folder(
    error: type[BaseException], status: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the runs that were finished; the complete folder before stays as it was."""
    before = run(load(tiny()), tmp_path / "out").summary
    simulate, seen = simulation.simulate, []

    def stopping(*arguments: Any) -> Any:
        seen.append(arguments)
        if len(seen) > 1:
            raise error
        return simulate(*arguments)

    monkeypatch.setattr(simulation, "simulate", stopping)
    with pytest.raises(error):
        run(load(tiny(), ["seed=1"]), tmp_path / "out")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial"]
    assert open_results(tmp_path / "out").summary == before
    partial = tmp_path / "out.partial"
    assert json.loads((partial / "manifest.json").read_text())["status"] == status
    assert (partial / "curtailment_aware" / "intervals.csv").is_file()
    assert not (partial / "summary.json").exists()
    with pytest.raises(ScenarioError, match=f"is '{status}': this run did not finish; run it again"):
        open_results(partial)


def test_opening_what_is_no_results_folder(tmp_path: Path) -> None:
    """Neither nothing nor some other folder."""
    for path in (tmp_path, tmp_path / "nowhere"):
        with pytest.raises(ScenarioError, match="this is no results folder; check the path"):
            open_results(path)
    (tmp_path / "manifest.json").write_text("{")
    with pytest.raises(ScenarioError, match="cannot be read"):
        open_results(tmp_path)


def test_a_site_that_never_takes_part_is_pointed_out(tmp_path: Path) -> None:
    """Its model is still on the way when the others' round ends, again and again; its power was for nothing."""
    slow = cluster(network={"rate_mbit_per_s": 0.02})  # 2 MB take 800 s, longer than a round of 600 s
    sites = [site("a", mci=50), site("b", mci=50), site("c", mci=50, cluster=slow)]
    scenario = load(world(*sites, hours=2, policy=below(), baselines=[]))
    text = "\n".join(line.plain for line in notes(run(scenario, tmp_path / "slow")))
    assert "Warning, c: on for 2.0 h in curtailment_aware and in no round; its events.csv says why" in text
    assert "Warning, a" not in text
