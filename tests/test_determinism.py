"""The same scenario gives the same bytes: again, in another folder, with another hash seed, from its own record."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from shared import REPOSITORY
from worlds import below, cluster, site, world

from curtailsim.results import Results, open_results, run
from curtailsim.scenario import load

TABLES = ("events", "intervals", "loss", "rounds")


def scenario(folder: Path) -> dict[str, Any]:
    """Two sites with windows, a battery, baselines and a real model that takes a few dozen real steps."""
    generation, mci = [(0, 9), (1800, 2)], [(0, 500), (600, 50), (2400, 500), (3000, 50)]
    sites = [
        site("texas", folder, mci=mci, generation=generation, storage={"capacity_kwh": 1}, price=30),
        site("california", folder, mci=50, cluster=cluster(step_time_s=7, provisioning_delay_s=100), price=40),
    ]
    learner = {
        "type": "gpt",
        "layers": 1,
        "width": 16,
        "batch_sequences": 2,
        "sequence_bytes": 16,
        "evaluation_bytes": 64,
    }
    return world(
        *sites,
        policy=below(release_delay_s=60),
        training={"learner": learner, "stride": 20, "strategy": {"type": "diloco"}},
        baselines=[{"type": "centralized"}, {"type": "continuous_federated"}],
        seed=3,
    )


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The scenario as a file, beside its traces."""
    folder = tmp_path_factory.mktemp("inputs")
    path = folder / "small.yaml"
    path.write_text(yaml.safe_dump(scenario(folder)))
    return path


@pytest.fixture(scope="module")
def first(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> Results:
    """The results everything is compared with."""
    return run(load(inputs), tmp_path_factory.mktemp("out") / "first")


def command(path: Path, out: Path, hash_seed: str) -> str:
    """Digest of a run in a process of its own."""
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed}
    line = [sys.executable, "-m", "curtailsim", "run", str(path), "--out", str(out), "--quiet"]
    subprocess.run(line, env=environment, check=True, capture_output=True, cwd=out.parent)
    return str(open_results(out).summary["digest"])


def test_run_is_worth_comparing(first: Results) -> None:
    """Dozens of real steps, rounds of both kinds and a loss that falls are in it."""
    own = first.summary["runs"]["curtailment_aware"]
    assert own["real_steps"] == len(first.loss()) > 24
    assert set(first.rounds().kind) == {"federated", "single"}
    assert own["eval_loss_final"] < own["eval_loss_initial"]


def test_twice_is_the_same(first: Results, inputs: Path, tmp_path: Path) -> None:
    """Another folder, the same bytes: every table, every number and the digest."""
    second = run(load(inputs), tmp_path / "elsewhere" / "second")
    assert second.summary == first.summary
    for name in first.runs:
        for table in TABLES:
            assert (second.path / name / f"{table}.csv").read_bytes() == (
                first.path / name / f"{table}.csv"
            ).read_bytes()


def test_hash_seed_does_not_matter(first: Results, inputs: Path, tmp_path: Path) -> None:
    """In a process of its own, started by the command and with another hash seed, the digest is the same."""
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    assert command(inputs, tmp_path / "out", hash_seed) == first.summary["digest"]


def test_resolved_scenario_gives_the_same_digest(first: Results, tmp_path: Path) -> None:
    """The `scenario.yaml` in a results folder runs again to the same digest, and so does its record of itself."""
    again = run(load(first.path / "scenario.yaml"), tmp_path / "again")
    assert again.summary["digest"] == first.summary["digest"]
    assert (again.path / "scenario.yaml").read_bytes() == (first.path / "scenario.yaml").read_bytes()


@pytest.mark.parametrize(
    "override", ["seed=4", "sites.texas.cluster.pue=1.01", "training.round_s=601"], ids=["seed", "energy", "rounds"]
)
def test_other_scenarios_have_other_digests(first: Results, inputs: Path, tmp_path: Path, override: str) -> None:
    """The digest sees the seed, the energy and the rounds."""
    assert run(load(inputs, [override]), tmp_path / "other").summary["digest"] != first.summary["digest"]


@pytest.mark.slow
def test_three_sites(tmp_path: Path) -> None:
    """The shipped scenario, complete, in two processes with different hash seeds."""
    path = REPOSITORY / "scenarios" / "three_sites.yaml"
    assert command(path, tmp_path / "one", "1") == command(path, tmp_path / "two", "2")
