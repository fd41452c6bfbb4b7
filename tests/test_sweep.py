"""Sweeps: one table over a grid of overrides, for any kind of scenario."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import yaml
from typer.testing import CliRunner
from worlds import site, world

from curtailsim import sweep
from curtailsim.cli import app
from curtailsim.spec import ScenarioError

SCENARIOS = Path(__file__).parents[1] / "scenarios"


def written(folder: Path, scenario: dict[str, Any], **parts: Any) -> Path:
    """A sweep file beside its scenario."""
    (folder / "world.yaml").write_text(yaml.safe_dump(scenario))
    path = folder / "some.yaml"
    path.write_text(yaml.safe_dump({"scenario": "world.yaml", **parts}))
    return path


def test_sweep_of_a_federated_scenario(tmp_path: Path) -> None:
    """PUE and power vary: energy is PUE x power x hours at every point, and the figure is drawn."""
    path = written(
        tmp_path,
        world(site("a"), baselines=[{"type": "centralized"}]),
        vary=[
            {"path": "sites.*.cluster.pue", "values": [1.0, 1.5]},
            {"path": "sites.a.cluster.train_kw", "values": [4], "name": "kw"},
        ],
        columns=["energy_kwh", "sites.a.steps", "emission_ratio.centralized_a"],
    )
    done = sweep.run(sweep.load(path), tmp_path / "out")
    assert done.table[["pue", "kw", "status"]].values.tolist() == [[1.0, 4, "complete"], [1.5, 4, "complete"]]
    assert done.table["energy_kwh"].tolist() == pytest.approx([4, 6])
    assert done.table["emission_ratio.centralized_a"].tolist() == [1, 1]
    assert (tmp_path / "out" / "sweep.png").is_file()
    assert pd.read_csv(tmp_path / "out" / "sweep.csv")["sites.a.steps"].tolist() == done.table["sites.a.steps"].tolist()
    assert len(list((tmp_path / "out" / "points").iterdir())) == 2


def test_infeasible_points_are_rows_with_their_reason(tmp_path: Path) -> None:
    """A7: 1,152 GPUs cannot train the day, 1,280 can; the sweep goes on."""
    pytest.importorskip("highspy")
    path = tmp_path / "pool.yaml"
    content = {
        "scenario": str(SCENARIOS / "grid_knob.yaml"),
        "set": [
            "training.learner={type: tokens_only}",
            "dispatch.slot_h=1",
            "dispatch.tasks.*.segments=2",
            "dispatch.renewable_ratio_gpus=2048",
            "dispatch.comparators=[]",
            "dispatch.baselines=[fixed]",
        ],
        "vary": [{"path": "dispatch.pool_gpus", "values": [1152, 1280]}],
        "runs": ["dispatch_plan", "fixed"],
        "columns": ["planned.cost", "curtailed_mwh"],
    }
    path.write_text(yaml.safe_dump(content))
    lines: list[str] = []

    def report(number: int, total: int, rows: list[dict[str, Any]], asked: sweep.Sweep) -> None:
        lines.append(f"{number}/{total} {rows[0]['status']}")

    done = sweep.run(sweep.load(path), tmp_path / "out", report)
    assert done.table.status.tolist() == ["infeasible", "infeasible", "complete", "complete"]
    assert "GPU-hours are missing" in done.table.reason[0]
    assert done.table["planned.cost"][2] <= done.table["planned.cost"][3]
    assert lines == ["1/2 infeasible", "2/2 complete"]


@pytest.mark.parametrize(
    ("parts", "message"),
    [
        ({"columns": []}, "columns"),
        ({"vary": [{"path": "seed", "values": [1]}, {"path": "seed", "values": [2]}]}, "same name"),
        ({"figure": {"y": ["cost"]}}, "is not in columns"),
        ({"figure": {"x": "pue", "y": ["energy_kwh"]}}, "is no axis"),
        ({"vary": [{"path": "sites.b.cluster.pue", "values": [1]}]}, "has no 'b' there"),
        ({"colums": ["x"]}, "colums"),
    ],
    ids=["columns", "names", "y", "x", "path", "key"],
)
def test_mistakes(tmp_path: Path, parts: dict[str, Any], message: str) -> None:
    """A sweep file's mistakes, and those of its points, are found before anything is run."""
    good = {"vary": [{"path": "seed", "values": [1, 2]}], "columns": ["energy_kwh"]}
    with pytest.raises(ScenarioError) as caught:
        sweep.load(written(tmp_path, world(site("a")), **{**good, **parts}))
    assert message in str(caught.value)


def test_command_prints_the_table_and_refuses_a_foreign_folder(tmp_path: Path) -> None:
    """One line per point, the table, exit code 2 where the folder is something else's."""
    path = written(tmp_path, world(site("a")), vary=[{"path": "seed", "values": [1]}], columns=["energy_kwh"])
    found = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "out")])
    assert found.exit_code == 0 and "[1/1]" in found.output and "energy_kwh" in found.output
    again = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path / "out"), "--quiet"])
    assert again.exit_code == 0 and again.output == ""
    taken = CliRunner().invoke(app, ["sweep", str(path), "--out", str(tmp_path)])
    assert taken.exit_code == 2 and "is no sweep's folder" in taken.output


@pytest.mark.parametrize("path", sorted((SCENARIOS / "sweeps").glob("*.yaml")), ids=lambda path: path.stem)
def test_built_in_sweeps_load(path: Path) -> None:
    """Every built-in study is well formed at each of its points."""
    assert len(sweep.load(path).points) >= 3
