"""The command line: what it prints, where, with which exit code, and what it leaves behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import Result
from typer.testing import CliRunner
from worlds import below, site, world

from curtailsim import plots, simulation
from curtailsim.cli import app

PYTHON = [sys.executable, "-m", "curtailsim"]
LONG = {"learner": {"type": "gpt"}, "stride": 1}


def tiny(folder: Path, **parts: Any) -> Path:
    """A scenario file of two sites and one hour, one of them always in its window."""
    content = world(site("california", mci=50), site("texas", mci=500), policy=below(), **parts)
    content.pop("name")
    path = folder / "tiny.yaml"
    path.write_text(yaml.safe_dump({**content, "baselines": [{"type": "centralized"}]}))
    return path


def curtailsim(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(autouse=True)
def _undrawn_and_elsewhere(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(plots, "draw", lambda *_: None)
    monkeypatch.chdir(tmp_path)


# --- help ----------------------------------------------------------------------------------------------------------


def test_help_is_quick_and_light() -> None:
    """Less than 1.5 s of processor time, without torch, flwr or pandas."""
    child = subprocess.Popen([*PYTHON, "--help"], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    printed = child.stdout.read()
    _, status, usage = os.wait4(child.pid, 0)
    child.returncode = os.waitstatus_to_exitcode(status)
    child.stdout.close()
    assert child.returncode == 0
    assert all(command in printed for command in ("run", "check", "report", "regress", "data", "bench"))
    assert usage.ru_utime + usage.ru_stime < 1.5
    listed = subprocess.run([sys.executable, "-X", "importtime", *PYTHON[1:], "--help"], capture_output=True, text=True)
    imported = {line.split("|")[-1].strip() for line in listed.stderr.splitlines()}
    assert "curtailsim.cli" in imported
    assert not {"torch", "flwr", "pandas", "matplotlib", "vessim"} & imported


@pytest.mark.parametrize("command", ["run", "check", "report", "regress", "bench", "data"])
def test_every_command_explains_itself(command: str) -> None:
    """With its arguments."""
    done = curtailsim(command, "--help")
    assert done.exit_code == 0
    assert "Usage:" in done.stdout


# --- run -----------------------------------------------------------------------------------------------------------


def test_run_prints_tables_and_the_place_of_the_results(tmp_path: Path) -> None:
    """By default that is results/<scenario name> under the working directory."""
    done = curtailsim("run", tiny(tmp_path))
    assert done.exit_code == 0
    for words in ("curtailment_aware", "centralized_texas", "by site", "Horizon: 1 h", "Results: results/tiny"):
        assert words in done.stdout
    assert (tmp_path / "results" / "tiny" / "summary.json").is_file()


def test_quiet_prints_nothing(tmp_path: Path) -> None:
    """Neither tables nor a progress bar."""
    done = curtailsim("run", tiny(tmp_path), "--quiet", "--out", tmp_path / "out")
    assert (done.exit_code, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "out" / "summary.json").is_file()


def test_json_prints_the_summary_only(tmp_path: Path) -> None:
    """Ready for another program."""
    done = curtailsim("run", tiny(tmp_path), "--json", "--out", tmp_path / "out")
    assert (done.exit_code, done.stderr) == (0, "")
    assert json.loads(done.stdout) == json.loads((tmp_path / "out" / "summary.json").read_text())


def test_set_reaches_every_corner(tmp_path: Path) -> None:
    """One site by name, all of them, and whole sections."""
    path = tiny(tmp_path)
    overrides = ("sites.texas.cluster.pue=1.5", "sites.*.cluster.idle_kw=2", "seed=7", "policy={type: always}")
    done = curtailsim("run", path, "--json", *(part for one in overrides for part in ("--set", one)))
    assert done.exit_code == 0
    found = json.loads(done.stdout)
    resolved = yaml.safe_load((tmp_path / "results" / "tiny" / "scenario.yaml").read_text())
    assert [one["cluster"]["pue"] for one in resolved["sites"]] == [1.0, 1.5]
    assert [one["cluster"]["idle_kw"] for one in resolved["sites"]] == [2.0, 2.0]
    assert (found["seed"], resolved["policy"]["type"]) == (7, "always")
    energy = {name: values["energy_kwh"] for name, values in found["runs"]["curtailment_aware"]["sites"].items()}
    assert energy["texas"] == pytest.approx(1.5 * energy["california"])


def test_a_mistake_in_set_is_explained(tmp_path: Path) -> None:
    """Like one in the file."""
    done = curtailsim("run", tiny(tmp_path), "--set", "sites.nevada.cluster.pue=1.5")
    assert (done.exit_code, done.stdout) == (2, "")
    assert "has no 'nevada' there (california, texas)" in done.stderr


def test_results_of_somebody_else(tmp_path: Path) -> None:
    """A folder that is no results folder stays as it is."""
    (tmp_path / "notes.txt").write_text("mine")
    done = curtailsim("run", tiny(tmp_path), "--out", tmp_path)
    assert done.exit_code == 2
    assert "exists and is no results folder; choose another place" in done.stderr


# --- check, report, bench ------------------------------------------------------------------------------------------


def test_check(tmp_path: Path) -> None:
    """Says what was checked, and writes nothing."""
    path = tiny(tmp_path)
    done = curtailsim("check", path)
    assert done.exit_code == 0
    assert done.stdout.endswith(f"{path}: no mistakes; 2 sites, 1 h from 2026-01-01T12:00Z\n")
    assert (curtailsim("check", path, "--quiet").stdout, list(tmp_path.iterdir())) == ("", [path])


def test_report_prints_the_same_again(tmp_path: Path) -> None:
    """From the folder alone."""
    ran = curtailsim("run", tiny(tmp_path)).stdout
    (tmp_path / "tiny.yaml").unlink()
    reported = curtailsim("report", tmp_path / "results" / "tiny").stdout
    assert ran.startswith(reported)
    summary = json.loads(curtailsim("report", tmp_path / "results" / "tiny", "--json").stdout)
    assert summary["scenario"] == "tiny"


def test_report_of_nothing(tmp_path: Path) -> None:
    """A wrong path is a mistake, not a traceback."""
    done = curtailsim("report", tmp_path / "results" / "none")
    assert done.exit_code == 2
    assert "this is no results folder; check the path" in done.stderr


def test_bench_knows_its_names() -> None:
    """And where it has to be started."""
    unknown = curtailsim("bench", "energi")
    assert unknown.exit_code == 2
    assert "did you mean 'energy'?" in unknown.stderr
    assert "start it from the root of a clone" in curtailsim("bench", "rounds").stderr


# --- regress -------------------------------------------------------------------------------------------------------


def test_regress_without_expected_values(tmp_path: Path) -> None:
    """Says how to make them."""
    path = tiny(tmp_path)
    done = curtailsim("regress", path)
    assert done.exit_code == 2
    assert f"does not exist yet; write it with: curtailsim regress {path} --update" in done.stderr
    assert list(tmp_path.iterdir()) == [path]


def test_regress(tmp_path: Path) -> None:
    """Nothing moved, then a thousandth did."""
    path = tiny(tmp_path)
    updated = curtailsim("regress", path, "--update")
    assert updated.exit_code == 0
    assert "rewritten" in updated.stdout
    expected = tmp_path / "expected" / "tiny.json"
    assert sorted(tmp_path.iterdir()) == [expected.parent, path]
    assert list(expected.parent.iterdir()) == [expected]
    same = curtailsim("regress", path)
    assert same.exit_code == 0
    assert "nothing moved" in same.stdout
    assert curtailsim("regress", path, "--quiet").stdout == ""
    moved = curtailsim("regress", path, "--set", "sites.california.cluster.train_kw=4.004", "--quiet")
    assert moved.exit_code == 1
    row = next(line for line in moved.stdout.splitlines() if "runs.curtailment_aware.energy_kwh" in line)
    assert [cell.strip() for cell in row.strip("│").split("│")] == [
        "runs.curtailment_aware.energy_kwh",
        "moved",
        "4",
        "4.004",
        "+0.001",
    ]
    assert "runs.curtailment_aware.steps" not in moved.stdout


def test_regress_says_what_is_missing_and_new(tmp_path: Path) -> None:
    """A run that is gone, and one that was not expected."""
    path = tiny(tmp_path)
    curtailsim("regress", path, "--update")
    other = curtailsim("regress", path, "--set", "baselines=[{type: continuous_federated}]")
    assert other.exit_code == 1
    lines = other.stdout.splitlines()
    assert any("runs.centralized_texas.steps" in line and "missing" in line for line in lines)
    assert any("runs.continuous_federated.steps" in line and "new" in line for line in lines)


def test_regress_keeps_the_results_if_asked(tmp_path: Path) -> None:
    """And throws them away otherwise."""
    path = tiny(tmp_path)
    curtailsim("regress", path, "--update", "--out", tmp_path / "kept")
    assert curtailsim("report", tmp_path / "kept").exit_code == 0


def test_regress_with_a_broken_file(tmp_path: Path) -> None:
    """Half a file is a mistake, not a traceback."""
    path = tiny(tmp_path)
    (tmp_path / "expected").mkdir()
    for content in ("{", "[]", '{"a": "b"}'):
        (tmp_path / "expected" / "tiny.json").write_text(content)
        done = curtailsim("regress", path)
        assert done.exit_code == 2
        assert "--update" in done.stderr


def test_loss_may_move_a_little() -> None:
    """2 % up or down; everything else not at all; None is a value of its own."""
    from curtailsim.regression import compare

    old = {"runs.a.eval_loss_final": 2.0, "runs.a.energy_kwh": 2.0, "runs.a.steps": 3, "emission_ratio.b": None}
    assert list(compare(old, {**old, "runs.a.eval_loss_final": 2.039})) == []
    assert list(compare(old, {**old, "runs.a.energy_kwh": 2.0 * (1 + 9e-10)})) == []
    for key, value in {"eval_loss_final": 2.05, "energy_kwh": 2.0 * (1 + 2e-9), "steps": 4}.items():
        assert [found.path for found in compare(old, {**old, f"runs.a.{key}": value})] == [f"runs.a.{key}"]
    assert [found.kind for found in compare(old, {**old, "emission_ratio.b": 0.1})] == ["moved"]


# --- what goes wrong while it runs ---------------------------------------------------------------------------------


def status(folder: Path) -> str:
    """Status in a folder's manifest."""
    return str(json.loads((folder / "manifest.json").read_text())["status"])


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted(number: signal.Signals, tmp_path: Path) -> None:
    """What is there is kept apart; the complete folder before stays as it was."""
    path, out = tiny(tmp_path), tmp_path / "out"
    before = curtailsim("run", path, "--json", "--out", out).stdout
    tiny(tmp_path, training=LONG, hours=1000)
    heard = partial(signal.signal, signal.SIGINT, signal.SIG_DFL)  # a shell has its background jobs ignore Ctrl-C
    command = [*PYTHON, "run", str(path), "--out", str(out)]
    child = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=heard)
    started = tmp_path / f".out.{child.pid}.running" / "scenario.yaml"
    deadline = time.monotonic() + 60
    while not started.exists() and time.monotonic() < deadline and child.poll() is None:
        time.sleep(0.05)
    time.sleep(0.3)
    child.send_signal(number)
    _, printed = child.communicate(timeout=60)
    # Python ends itself by SIGINT if it was executing a text of code just then; a shell calls that 130, too.
    assert child.returncode in (130, -signal.SIGINT), printed
    assert printed.splitlines()[-1].startswith("interrupted; what was finished is in ")
    assert "out.partial" in " ".join(printed.splitlines()[-2:])
    assert "Traceback" not in printed
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "out.partial", "tiny.yaml"]
    assert status(tmp_path / "out.partial") == "interrupted"
    assert curtailsim("report", out, "--json").stdout == before
    refused = curtailsim("report", tmp_path / "out.partial")
    assert refused.exit_code == 2
    assert "'interrupted'" in refused.stderr


def test_crashed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A bug is shown as one; the folder says that the run failed."""

    def broken(*_: Any) -> None:
        raise OSError("ours")

    monkeypatch.setattr(simulation, "simulate", broken)
    done = curtailsim("run", tiny(tmp_path), "--out", tmp_path / "out")
    assert done.exit_code == 1
    assert isinstance(done.exception, OSError)
    assert status(tmp_path / "out.partial") == "failed"
    assert not (tmp_path / "out").exists()


def test_a_policy_that_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake in a user's own class is theirs: one message, and a folder that says that the run failed."""
    text = "class Policy:\n    def select(self, now_s, sites):\n        raise OSError('mine')\n"
    (tmp_path / "shaky.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    done = curtailsim("run", tiny(tmp_path), "--out", tmp_path / "out", "--set", "policy={type: 'shaky:Policy'}")
    assert done.exit_code == 2
    assert "select failed at 0 s with OSError('mine')" in done.stderr
    assert status(tmp_path / "out.partial") == "failed"


STRATEGY = """
from flwr.serverapp.strategy import FedAvg
class Shaky(FedAvg):
    def aggregate_train(self, server_round, replies):
        {what}
"""


@pytest.mark.parametrize(
    ("what", "kind", "words"),
    [
        ("raise OSError('mine')", OSError, "the strategy shaky_0:Shaky failed with OSError; its traceback:"),
        ("raise SystemExit(3)", RuntimeError, "the strategy shaky_1:Shaky called sys.exit(3):"),
    ],
    ids=["exception", "exit"],
)
def test_a_strategy_that_fails(
    what: str, kind: type[Exception], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A bug in a user's own strategy is shown as one, and whose it is; the folder says that the run failed."""
    module = words.split()[2].partition(":")[0]
    (tmp_path / f"{module}.py").write_text(STRATEGY.format(what=what))
    monkeypatch.syspath_prepend(tmp_path)
    path = tiny(tmp_path, training=LONG | {"strategy": {"type": "custom", "class": f"{module}:Shaky"}})
    done = curtailsim("run", path, "--out", tmp_path / "out", "--set", "policy={type: always}", "--quiet")
    assert done.exit_code == 1
    assert isinstance(done.exception, kind)
    assert done.stderr == words + "\n"
    assert status(tmp_path / "out.partial") == "failed"
    assert not (tmp_path / "out").exists()


def test_interrupted_before_anything_is_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No folder is spoken of where there is none."""
    from curtailsim import results

    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(results, "run", interrupted)
    done = curtailsim("run", tiny(tmp_path), "--quiet")
    assert (done.exit_code, done.stderr) == (130, "interrupted\n")


# --- what commands refuse ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["modes", "Llama-2-7B", "--pue", "nan"], "nan is not a finite number"),
        (["compare", "a", "b", "--within", "nan"], "nan is not a finite number"),
        (["report", "a", "--json", "--markdown"], "--markdown  cannot go with --json"),
        (["sweep", "tiny.yaml"], "is a scenario, not a sweep; run it with: curtailsim run tiny.yaml"),
        (["data", "generate", "--out", "tiny.yaml"], "tiny.yaml  is a file; name a folder"),
    ],
    ids=["pue", "within", "two_forms", "sweep", "generate"],
)
def test_refused(arguments: list[str], words: str, tmp_path: Path) -> None:
    """One message, exit code 2, and no traceback."""
    tiny(tmp_path)
    done = curtailsim(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert words in done.stderr


@pytest.mark.parametrize(
    ("name", "content"), [("manifest", "[1]"), ("manifest", "null"), ("summary", "{}"), ("summary", "3")]
)
def test_damaged_results(name: str, content: str, tmp_path: Path) -> None:
    """A folder whose files are not as a run writes them is a mistake, not a traceback."""
    out = tmp_path / "out"
    curtailsim("run", tiny(tmp_path), "--quiet", "--out", out)
    (out / f"{name}.json").write_text(content)
    for arguments in (["report", out], ["compare", out, out]):
        done = curtailsim(*arguments)
        assert (done.exit_code, done.stdout) == (2, "")
        assert "run the scenario again" in done.stderr
