"""A results folder: written aside and moved into place when it is complete, and opened again as pandas frames.

results/<scenario>/summary.json manifest.json scenario.yaml timeline.png comparison.png
                   <run>/events.csv intervals.csv loss.csv rounds.csv segments.csv
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

from curtailsim import simulation
from curtailsim.dispatch.centres_scenario import CentresScenario
from curtailsim.dispatch.scenario import DispatchScenario
from curtailsim.energy.signals import scenario_signals
from curtailsim.metrics import RunTables, ratio
from curtailsim.scenario import FILE_KEYS, Scenario, TokensOnly, dump
from curtailsim.simulation import HEADLINE, Watcher
from curtailsim.spec import Problem, ScenarioError

PACKAGES = ("curtailsim", "flwr", "numpy", "pandas", "simpy", "torch", "vessim")
TABLES = ("events", "intervals", "loss", "rounds", "segments")


@dataclass(frozen=True)
class Results:
    """A finished results folder.

    Attributes:
        path: Where it is.
    """

    path: Path

    @cached_property
    def summary(self) -> dict[str, Any]:
        """All numbers."""
        return _read_json(self.path / "summary.json")

    @cached_property
    def manifest(self) -> dict[str, Any]:
        """Status, resolved scenario, versions and wall time."""
        return _read_json(self.path / "manifest.json")

    @property
    def runs(self) -> list[str]:
        """Run names, the curtailment-aware one or that of the dispatched plan first."""
        return list(self.summary["runs"])

    def events(self, run: str | None = None) -> pd.DataFrame:
        """What happened: time_s, event, site, round, detail."""
        return self._table(run, "events")

    def intervals(self, run: str | None = None) -> pd.DataFrame:
        """Power per site, in half-open intervals that tile the horizon."""
        return self._table(run, "intervals")

    def loss(self, run: str | None = None) -> pd.DataFrame:
        """Training loss of every real step, against time, tokens, kWh and kg CO2."""
        return self._table(run, "loss")

    def rounds(self, run: str | None = None) -> pd.DataFrame:
        """Rounds with training and held-out loss, against time, tokens, kWh and kg CO2."""
        return self._table(run, "rounds")

    def segments(self, run: str | None = None) -> pd.DataFrame:
        """Virtual steps: step k of a row ends at start_s + k x step_s."""
        return self._table(run, "segments")

    def tasks(self, run: str | None = None) -> pd.DataFrame:
        """Phase, mode, GPUs and power above the idle pool's of every task of a dispatched pool, in intervals."""
        return self._table(run, "tasks")

    def samples(self, run: str | None = None) -> pd.DataFrame:
        """Price and renewable power by slot in every sample that a dispatched pool was planned for."""
        return self._table(run, "samples")

    def _table(self, run: str | None, table: str) -> pd.DataFrame:
        """A table of a run, of the first one unless another is named."""
        run = self.runs[0] if run is None else run
        if run not in self.runs:
            raise KeyError(f"{self.path} has no run {run!r} ({', '.join(self.runs)})")
        frame = pd.read_csv(self.path / run / f"{table}.csv", keep_default_na=True)
        for column in ("site", "detail", "sites"):
            if column in frame:
                frame[column] = frame[column].fillna("")
        return frame


def open_results(path: str | Path) -> Results:
    """Open a complete results folder.

    Raises:
        ScenarioError: There is none, or its run failed or is still going on.
    """
    results = Results(Path(path))
    if not (results.path / "manifest.json").is_file():
        raise ScenarioError(
            str(path), [Problem("manifest.json", "is missing: this is no results folder; check the path")]
        )
    status = results.manifest.get("status")
    if status != "complete":
        raise ScenarioError(str(path), [Problem("status", f"is {status!r}: this run did not finish; run it again")])
    return results


def run(
    scenario: Scenario | DispatchScenario,
    out: str | Path | None = None,
    watcher: Watcher | None = None,
    started: Callable[[list[str]], None] = lambda names: None,
) -> Results:
    """Run a scenario with all its baselines.

    Args:
        scenario: What is asked.
        out: Results folder; `results/<scenario name>` when absent. A complete folder there is replaced at the end.
        watcher: Told what happens, for progress.
        started: Told the first run's name of every simulation to come.

    Raises:
        ScenarioError: The place for the results is taken by something else.
    """
    target = Path(out) if out is not None else Path("results") / scenario.name
    engine = _engine(scenario)
    todo = list(engine.plans(scenario))
    started([next(iter(plan.ledgers)) for plan in todo])
    _pin_threads(scenario)
    learner = check_learner(scenario)
    with _folder(target, scenario, learner) as folder:
        tables: dict[str, RunTables] = {}
        for plan in todo:
            for name, made in engine.simulate(scenario, plan, watcher).items():
                tables[name] = made
                _write_tables(folder / name, made)
        _write_json(folder / "summary.json", summarise(scenario, tables, folder))
        _draw(folder, scenario, tables)
    return Results(target)


def _engine(scenario: Scenario | DispatchScenario) -> Any:
    """The module that plans and simulates a scenario of this kind."""
    if isinstance(scenario, CentresScenario):
        from curtailsim.dispatch import centres_run

        return centres_run
    if isinstance(scenario, DispatchScenario):
        from curtailsim.dispatch import run as dispatch_run

        return dispatch_run
    return simulation


def _draw(folder: Path, scenario: Scenario | DispatchScenario, tables: dict[str, RunTables]) -> None:
    if isinstance(scenario, CentresScenario):
        from curtailsim.dispatch import centres_plots

        centres_plots.draw(folder, scenario, tables)
    elif isinstance(scenario, DispatchScenario):
        from curtailsim.dispatch import plots as dispatch_plots

        dispatch_plots.draw(folder, scenario, tables)
    else:
        from curtailsim import plots

        plots.draw(folder, scenario, tables)


def summarise(scenario: Scenario | DispatchScenario, tables: dict[str, RunTables], folder: Path) -> dict[str, Any]:
    """The content of `summary.json`."""
    digest = _digest(scenario, tables, folder)
    currencies = {signals.currency for signals in scenario_signals(scenario).values()} - {None}
    currency = next(iter(currencies), None)
    if isinstance(scenario, DispatchScenario):
        return dict(_engine(scenario).summarise(scenario, tables, digest, currency))
    runs = {name: made.summary for name, made in tables.items()}
    own = runs[HEADLINE]
    keys = {"emission_ratio": "emissions_kg", "emission_ratio_surplus_first": "emissions_surplus_first_kg"}
    ratios = {
        title: {name: ratio(own[key], values[key]) for name, values in runs.items() if name != HEADLINE}
        for title, key in keys.items()
    }
    if scenario.accounting.method == "surplus_first":
        ratios["emission_ratio"] = ratios["emission_ratio_surplus_first"]
    return {
        "scenario": scenario.name,
        "seed": scenario.seed,
        "digest": digest,
        "accounting": scenario.accounting.model_dump(mode="json"),
        "currency": currency,
        **ratios,
        "runs": runs,
    }


def _digest(scenario: Scenario | DispatchScenario, tables: dict[str, RunTables], folder: Path) -> str:
    """SHA-256 over the scenario, every table's bytes and every final model; places of files do not enter it."""
    total = hashlib.sha256(json.dumps(_without_paths(scenario.model_dump(mode="json")), sort_keys=True).encode())
    for name in sorted(tables):
        for table in (*TABLES, *sorted(tables[name].extra)):
            total.update(f"{name}/{table}".encode() + (folder / name / f"{table}.csv").read_bytes())
        total.update(str(tables[name].weights_sha256).encode())
    return total.hexdigest()


def _without_paths(value: Any) -> Any:
    """A resolved scenario with the content of its files instead of their places."""
    if isinstance(value, list):
        return [_without_paths(item) for item in value]
    if not isinstance(value, dict):
        return value
    dropped = "sources" if value.get("type") == "files" else None
    kept = {key: _without_paths(item) for key, item in value.items() if key != dropped}
    for kind, key in FILE_KEYS.items():
        if kept.get("type") == kind and isinstance(kept.get(key), str):
            kept[key] = hashlib.sha256(Path(kept[key]).read_bytes()).hexdigest()
    return kept


def check_learner(scenario: Scenario | DispatchScenario) -> dict[str, str]:
    """Find what is wrong with a real learner before anything is run, and what a manifest should say of it.

    Raises:
        ScenarioError: Text is missing, or apps cannot be imported.
    """
    if isinstance(scenario.training.learner, TokensOnly):
        return {}
    if isinstance(scenario, DispatchScenario):
        from curtailsim.training.tasks import check_learners

        names = [task.name for task in scenario.dispatch.pretraining]
        return check_learners(scenario.training.learner, names, scenario.seed)
    from curtailsim.training.build import check_learner as check

    return check(scenario)


def _pin_threads(scenario: Scenario | DispatchScenario) -> None:
    """One thread count for every run: sums over more threads round differently."""
    if not isinstance(scenario.training.learner, TokensOnly):
        import torch

        torch.set_num_threads(scenario.threads)


@contextmanager
def _folder(target: Path, scenario: Scenario | DispatchScenario, learner: dict[str, str]) -> Iterator[Path]:
    """A folder to write to, which becomes `target` if all goes well and `<target>.partial` if not."""
    folder = target.with_name(f".{target.name}.{os.getpid()}.running")
    try:
        if not _may_replace(target):
            rule = "exists and is no results folder; choose another place"
            raise ScenarioError("--out", [Problem(str(target), rule)])
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise ScenarioError("--out", [Problem(str(target), f"cannot be written: {error.strerror}")]) from None
    began = time.monotonic()
    manifest = {**_manifest(scenario), **learner, "status": "running"}
    _write_json(folder / "manifest.json", manifest)
    (folder / "scenario.yaml").write_text(dump(scenario), encoding="utf-8")
    status, place = "failed", target.with_name(f"{target.name}.partial")
    if not _may_replace(place):
        place = target.with_name(f"{target.name}.{os.getpid()}.partial")
    try:
        yield folder
        status, place = "complete", target
    except KeyboardInterrupt:
        status = "interrupted"
        raise
    finally:
        manifest.update(status=status, wall_time_s=round(time.monotonic() - began, 3))
        _write_json(folder / "manifest.json", manifest)
        _move(folder, place)


def _may_replace(place: Path) -> bool:
    """Whether nothing but results of ours, or nothing at all, is in a place."""
    if not place.exists():
        return True
    if not place.is_dir():
        return False
    if not any(place.iterdir()):
        return True
    try:
        manifest = json.loads((place / "manifest.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and {"status", "scenario", "versions"} <= set(manifest)


def _move(folder: Path, place: Path) -> None:
    """Put a folder where another may be; that one goes only when the new one is in place."""
    old = place.with_name(f".{place.name}.{os.getpid()}.old")
    if place.exists():
        place.rename(old)
    folder.rename(place)
    shutil.rmtree(old, ignore_errors=True)


def _manifest(scenario: Scenario | DispatchScenario) -> dict[str, Any]:
    signals = scenario_signals(scenario)
    return {
        "scenario": scenario.model_dump(mode="json"),
        "signals": {name: found.summaries for name, found in signals.items()},
        "warnings": {name: found.warnings for name, found in signals.items() if found.warnings},
        "threads": scenario.threads,
        "python": platform.python_version(),
        "versions": {package: version(package) for package in PACKAGES},
        "commit": _commit(),
    }


def _commit() -> str | None:
    """Commit of the product's own checkout, if it is one; with a + when it has changes."""
    here = Path(__file__).parent
    try:
        ask = ["git", "-C", str(here), "describe", "--always", "--abbrev=40", "--dirty=+", "--exclude=*"]
        found = subprocess.run(ask, capture_output=True, text=True, timeout=10, check=False)
    except (OSError, subprocess.SubprocessError):
        return None
    return found.stdout.strip() or None


def _write_tables(folder: Path, tables: RunTables) -> None:
    folder.mkdir()
    for name in TABLES:
        getattr(tables, name).to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    for name, table in tables.extra.items():
        table.to_csv(folder / f"{name}.csv", index=False, lineterminator="\n")
    for name, text in tables.documents.items():
        (folder / name).write_text(text, encoding="utf-8")


def _write_json(path: Path, content: Any) -> None:
    text = json.dumps(_finite(content), indent=2, allow_nan=False, default=str)
    path.write_text(text + "\n", encoding="utf-8")


def _finite(value: Any) -> Any:
    """JSON knows no NaN: what is not a number is null."""
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ScenarioError(str(path), [Problem("file", f"cannot be read ({error}); run the scenario again")]) from None
    return dict(content)
