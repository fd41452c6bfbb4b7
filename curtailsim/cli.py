"""The command line: run, check, report, compare, regress, data, bench."""

from __future__ import annotations

import json
import math
import signal
import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from curtailsim.recorder import Recorder
    from curtailsim.scenario import Scenario

app = typer.Typer(
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
    help="What happens to emissions, cost, wasted renewable energy and the loss when a language model is trained "
    "only where and when renewable power would otherwise be thrown away?  One scenario file, one simulated clock, "
    "real Flower and PyTorch training, one reproducible run.",
)
data_app = typer.Typer(
    no_args_is_help=True, help="Generate and verify the traces of the built-in scenarios, or fetch published ones."
)
app.add_typer(data_app, name="data")


def _finite(value: float | None) -> float | None:
    """Refuse nan and inf, which no bound of Click's does."""
    if value is not None and not math.isfinite(value):
        raise typer.BadParameter(f"{value} is not a finite number.")
    return value


ScenarioFile = Annotated[
    Path, typer.Argument(metavar="SCENARIO", help="Scenario file, such as scenarios/three_sites.yaml.")
]
ResultsFolder = Annotated[Path, typer.Argument(metavar="RESULTS", help="Results folder, such as results/three_sites.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="PATH=VALUE", help="Override a value, such as policy.release_delay_s=300 (repeatable)."
    ),
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing but mistakes.")]
Json = Annotated[bool, typer.Option("--json", help="Print the summary as JSON, and nothing else.")]


@app.command()
def run(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Results folder; results/<scenario name> by default.")] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Run a scenario with its baselines and write a results folder."""
    with _mistakes() as under_way:
        from curtailsim import results
        from curtailsim.scenario import load

        loaded = load(scenario, overrides or ())
        under_way.begin(out if out is not None else Path("results") / loaded.name)
        with _progress(loaded, hidden=quiet or as_json) as (started, watcher):
            done = results.run(loaded, out, watcher, started)
        if as_json:
            print(json.dumps(done.summary, indent=2))
        elif not quiet:
            from curtailsim.report import show

            console = _console()
            show(done, console)
            figures = ", ".join(sorted(path.name for path in done.path.glob("*.png")))
            console.print(f"Results: {done.path} ({figures}, summary.json, tables per run)")


@app.command()
def check(scenario: ScenarioFile, overrides: Overrides = None, quiet: Quiet = False) -> None:
    """Validate a scenario and its traces without running it."""
    with _mistakes():
        from curtailsim.energy.signals import scenario_signals
        from curtailsim.results import check_learner
        from curtailsim.scenario import load

        loaded = load(scenario, overrides or ())
        check_learner(loaded)
        if quiet:
            return
        for site, signals in scenario_signals(loaded).items():
            for name, summary in signals.summaries.items():
                print(f"{site}.{name}: {summary}")
            for warning in signals.warnings:
                print(f"{site}: warning: {warning}")
        span = f"{loaded.duration_h:g} h from {loaded.start:%Y-%m-%dT%H:%MZ}"
        print(f"{scenario}: no mistakes; {len(loaded.sites)} sites, {span}")


@app.command()
def report(
    results: ResultsFolder,
    as_json: Json = False,
    as_markdown: Annotated[
        bool, typer.Option("--markdown", help="Print the comparison with published figures as a Markdown table.")
    ] = False,
) -> None:
    """Print the tables of a results folder again."""
    with _mistakes(), _damages(results):
        from curtailsim.report import show
        from curtailsim.results import open_results
        from curtailsim.spec import Problem, ScenarioError

        if as_json and as_markdown:
            raise ScenarioError("report", [Problem("--markdown", "cannot go with --json; choose one of them")])
        opened = open_results(results)
        if as_json:
            print(json.dumps(opened.summary, indent=2))
        elif as_markdown:
            from curtailsim.reference import markdown

            print(markdown(opened))
        else:
            show(opened, _console())


@app.command()
def compare(
    results: ResultsFolder,
    other: Annotated[Path | None, typer.Argument(metavar="[OTHER]", help="Results folder to compare with.")] = None,
    events: Annotated[
        Path | None,
        typer.Option(
            "--events", metavar="LOG.csv", help="Event log to compare with: a published one, or an events.csv."
        ),
    ] = None,
    run_name: Annotated[
        str | None,
        typer.Option(
            "--run",
            metavar="NAME",
            help="Only this run; else the numbers of all, and the events of the first one.",
        ),
    ] = None,
    clients: Annotated[
        list[str] | None,
        typer.Option(
            "--client",
            metavar="NAME=SITE",
            help="Site of a client of the log (repeatable); by default client_0=california, client_1=texas, "
            "client_2=south_australia.",
        ),
    ] = None,
    within: Annotated[
        float | None,
        typer.Option(
            min=0,
            callback=_finite,
            metavar="SECONDS",
            help="Events farther apart than this are no pair; no limit by default.",
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON, and nothing else.")] = False,
) -> None:
    """Compare a run with another one, number by number and event by event, or with an event log.

    Differences are RESULTS minus OTHER or LOG.csv: a positive time error is late, a missing event is only in the
    other, an extra one only in RESULTS.  Events are paired by kind, site and order.
    """
    with _mistakes(), _damages(results, other):
        from curtailsim import compare as comparing

        found = comparing.compare(results, other, log=events, run=run_name, clients=clients or (), within_s=within)
        if as_json:
            print(json.dumps(found.to_json(), indent=2))
        else:
            comparing.show(found, _console())


@app.command()
def regress(
    scenario: ScenarioFile,
    overrides: Overrides = None,
    update: Annotated[bool, typer.Option("--update", help="Rewrite the expected values instead of comparing.")] = False,
    out: Annotated[Path | None, typer.Option(help="Keep the results folder here.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run a scenario and compare it with scenarios/expected/<name>.json; exit code 1 if anything moved."""
    with _mistakes():
        from curtailsim import regression
        from curtailsim.scenario import load

        loaded = load(scenario, overrides or ())
        with _progress(loaded, hidden=quiet) as (started, watcher):
            outcome = regression.regress(loaded, scenario, update=update, out=out, watcher=watcher, started=started)
        if not quiet or outcome.moved:
            _console().print(outcome.table())
    if outcome.moved:
        raise typer.Exit(1)


@app.command()
def modes(
    model: Annotated[
        str | None, typer.Argument(metavar="[MODEL]", help="Model, such as Llama-2-70B; not needed for --calibration.")
    ] = None,
    accelerator: Annotated[str, typer.Option(help="GPU: A100-80G or H100.")] = "A100-80G",
    gpus: Annotated[int, typer.Option(min=1, help="GPUs in the pool.")] = 2048,
    pue: Annotated[float, typer.Option(min=1, callback=_finite, help="Power usage effectiveness.")] = 1.2,
    everything: Annotated[bool, typer.Option("--all", help="List all usable modes, not only the front.")] = False,
    plot: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw throughput against power, with the front.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibration", help="Print the model's error for every published training run.")
    ] = False,
) -> None:
    """List the (TP, PP, DP) modes a model can be trained in on a pool: speed, power, and why others are rejected."""
    with _mistakes():
        from curtailsim.modes_report import ModesReport, calibration_parts
        from curtailsim.spec import Problem, ScenarioError

        console = _console()
        if model is None and not calibrate:
            raise ScenarioError("modes", [Problem("MODEL", "is required; name one, such as Llama-2-70B")])
        if model is not None:
            found = ModesReport.of(model, accelerator, gpus, pue)
            console.print(*found.parts(everything), sep="\n")
            if plot is not None:
                found.plot(plot)
                console.print(f"Figure: {plot}")
        if calibrate:
            console.print(*calibration_parts(), sep="\n")


@app.command()
def sweep(
    file: Annotated[Path, typer.Argument(metavar="SWEEP", help="Sweep file, such as scenarios/sweeps/pool.yaml.")],
    overrides: Overrides = None,
    out: Annotated[Path | None, typer.Option(help="Folder; results/<sweep name> by default.")] = None,
    quiet: Quiet = False,
) -> None:
    """Run a scenario at every point of a sweep: one table, one figure; what is infeasible is recorded as such."""
    with _mistakes():
        from curtailsim import sweep as sweeps

        asked = sweeps.load(file, overrides or ())
        done = sweeps.run(asked, out, None if quiet else sweeps.Reporter(_console()))
        if not quiet:
            _console().print(sweeps.table(done))
            _console().print(f"Results: {done.path} (sweep.csv, {', '.join(done.figures)}, points)")


@app.command()
def bench(
    what: Annotated[str, typer.Argument(help="coupling, energy, rounds, or all.")] = "all",
) -> None:
    """Measure the simulator against plain loops and its neighbours; ratios, so they hold on any machine."""
    with _mistakes():
        from curtailsim import bench as benchmarks

        for line in benchmarks.run(what):
            print(line, flush=True)


@data_app.command("generate")
def data_generate(
    out: Annotated[Path, typer.Option(help="Folder to write to.")] = Path("data"),
    start: Annotated[str | None, typer.Option(help="First instant, UTC, such as 2021-03-01.")] = None,
    days: Annotated[int | None, typer.Option(min=1, help="Days to write.")] = None,
    seed: Annotated[int | None, typer.Option(min=0, help="Seed of the weather and the grid.")] = None,
) -> None:
    """Write the synthetic traces of California, Texas and South Australia (needs the extra curtailsim[data])."""
    with _mistakes(), _generator_mistakes():
        from curtailsim import generator
        from curtailsim.spec import Problem, ScenarioError

        if out.exists() and not out.is_dir():
            raise ScenarioError("--out", [Problem(str(out), "is a file; name a folder, or one that is to be made")])
        asked: dict[str, Any] = {"start": start, "days": days, "seed": seed}
        chosen = {key: value for key, value in asked.items() if value is not None}
        print(f"wrote {generator.generate(out, **chosen)} and the files it lists")


@data_app.command("verify")
def data_verify(folder: Annotated[Path, typer.Argument(help="Folder with a manifest.json.")] = Path("data")) -> None:
    """Regenerate the traces in memory and compare them with a folder; exit code 1 if they differ."""
    with _mistakes(), _generator_mistakes():
        from curtailsim import generator

        checks = generator.verify(folder)
        for found in checks:
            print(f"{folder / found.name}: {found.detail}")
    if not all(found.equal for found in checks):
        raise typer.Exit(1)


@data_app.command("fetch")
def data_fetch(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Which data set: curtail-llm.")],
    out: Annotated[Path | None, typer.Option(help="Folder to write to; CURTAILSIM_DATA by default, else data.")] = None,
) -> None:
    """Download a published trace, checked, unless it is there already; it is not ours to ship."""
    with _mistakes():
        from curtailsim import download

        print(download.fetch(name, out))


class _UnderWay:
    """Where a run that is interrupted leaves what it has."""

    def __init__(self) -> None:
        self.partial: Path | None = None
        self._before: int | None = None

    def begin(self, target: Path) -> None:
        """A run with this results folder is about to begin."""
        self.partial = target.with_name(f"{target.name}.partial")
        self._before = self._inode()

    def left(self) -> bool:
        """Whether it left a folder there: the one that may have been there before is another one."""
        return self.partial is not None and self._inode() not in (None, self._before)

    def _inode(self) -> int | None:
        return self.partial.stat().st_ino if self.partial is not None and self.partial.exists() else None


@contextmanager
def _mistakes() -> Iterator[_UnderWay]:
    """A user's mistake is one message and exit code 2; an interruption is exit code 130.

    What goes wrong in a user's Strategy or ServerApp is shown with its traceback, and with one line before it that
    says whose it is.
    """
    from curtailsim.spec import ScenarioError

    under_way = _UnderWay()
    _asked_to_stop.clear()
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, _interrupt)
    if (here := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, here)  # a user's own modules, as with `python -m`
    try:
        yield under_way
    except ScenarioError as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None
    except KeyboardInterrupt:
        left = f"; what was finished is in {under_way.partial}" if under_way.left() else ""
        print(f"interrupted{left}", file=sys.stderr)
        raise typer.Exit(130) from None
    except SystemExit as error:  # none of ours: a user's code would end the program without a word
        print(f"{_part_at_fault(error) or 'something'} called sys.exit({error.code!r}):", file=sys.stderr)
        raise RuntimeError(f"sys.exit({error.code!r})") from error
    except Exception as error:
        if part := _part_at_fault(error):
            print(f"{part} failed with {type(error).__name__}; its traceback:", file=sys.stderr)
        raise


def _part_at_fault(error: BaseException) -> str | None:
    """Which part of a user's own an exception comes from: a strategy or a ServerApp; None if from neither."""
    chain: list[BaseException] = []
    here: BaseException | None = error
    while here is not None and here not in chain:
        chain.append(here)
        here = here.__cause__ or here.__context__
    frames = [frame for one in chain for frame, _ in traceback.walk_tb(one.__traceback__)]
    for frame in frames:
        owner = type(frame.f_locals.get("self"))
        is_strategy = any(f"{base.__module__}.{base.__name__}".startswith(STRATEGY) for base in owner.__mro__)
        if is_strategy and not owner.__module__.startswith(("flwr.", "curtailsim.")):
            return f"the strategy {owner.__module__}:{owner.__qualname__}"
    for frame in frames:
        if frame.f_code.co_name == "run_server_app" and frame.f_locals["grid"].failure is None:
            main = frame.f_locals["app"]._main
            return f"the ServerApp of {getattr(main, '__module__', 'yours')}"
    return None


STRATEGY = "flwr.serverapp.strategy.strategy.Strategy"


@contextmanager
def _damages(*folders: Path | None) -> Iterator[None]:
    """What a results folder lacks that a run has written is one message and exit code 2."""
    from curtailsim.spec import Problem, ScenarioError

    try:
        yield
    except (KeyError, TypeError, AttributeError, IndexError, OSError) as error:
        named = ", ".join(str(folder) for folder in folders if folder is not None)
        rule = f"is damaged: its files are not as a run writes them ({error!r:.80}); run the scenario again"
        raise ScenarioError(named, [Problem("results", rule)]) from error


@contextmanager
def _generator_mistakes() -> Iterator[None]:
    """A request the generator cannot meet, or a folder it cannot use, is one message and exit code 2."""
    from curtailsim.generator import GeneratorError

    try:
        yield
    except (GeneratorError, OSError) as error:
        print(error, file=sys.stderr)
        raise typer.Exit(2) from None


_asked_to_stop = Event()


def _interrupt(*_: Any) -> None:
    """Stop here; and at the next sign of progress, should some library's import swallow it."""
    _asked_to_stop.set()
    raise KeyboardInterrupt


def _console() -> Any:
    from rich.console import Console

    return Console() if sys.stdout.isatty() else Console(width=150)


@contextmanager
def _progress(scenario: Scenario, hidden: bool) -> Iterator[tuple[Any, Any]]:
    """A bar per simulation, in simulated time, with the loss and the sites' states."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TaskProgressColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.fields[info]}"),
    )
    horizon, total = scenario.horizon_ms, scenario.total_steps
    with Progress(*columns, console=Console(stderr=True), disable=hidden) as progress:
        tasks: dict[str, Any] = {}

        def started(names: list[str]) -> None:
            for name in names:
                tasks[name] = progress.add_task(name, total=1.0, info="", start=False)

        def watcher(name: str, now_ms: int, recorder: Recorder, steps: int) -> None:
            if _asked_to_stop.is_set():
                raise KeyboardInterrupt
            task = tasks[name]
            if not progress.tasks[task].started:
                progress.start_task(task)
            over = recorder.events[-1][1] == "run_ended"
            done = 1.0 if over else max(now_ms / horizon, steps / total if total else 0.0)
            progress.update(task, completed=done, info=_status(now_ms, recorder))

        yield started, watcher


def _status(now_ms: int, recorder: Recorder) -> str:
    loss = next((row["eval_loss"] for row in reversed(recorder.rounds) if row["eval_loss"] is not None), None)
    states = ", ".join(f"{site} {state}" for site, state in recorder.states.items() if state != "off") or "all off"
    return f"t = {now_ms / 3.6e6:6.1f} h" + (f"  loss {loss:.3f}" if loss is not None else "") + f"  {states}"
