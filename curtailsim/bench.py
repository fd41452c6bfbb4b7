"""How fast is the simulator?  Ratios against plain loops and neighbours, so that they hold on any machine.

coupling   a run against the same optimiser steps in a plain PyTorch loop
energy     a year of three microgrids against `vessim.Environment` alone
rounds     a Flower round whose clients do nothing
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from curtailsim.spec import Problem, ScenarioError, near_match

if TYPE_CHECKING:
    from curtailsim.metrics import RunTables
    from curtailsim.scenario import Scenario
    from curtailsim.site import Site
    from curtailsim.training.corpus import Corpus
    from curtailsim.training.flower import StrategyLearner

SCENARIO = Path("scenarios/three_sites.yaml")
PAIRS = 5
QUARTER = ("workload.total_tokens=3.2e9", "duration_h=42", "baselines=[]")
TOKENS_ONLY = ("workload.total_tokens=null", "baselines=[]", "training.learner={type: tokens_only}")
YEAR = (
    *TOKENS_ONLY,
    "start=2021-03-12T00:00:00Z",
    "duration_h=8760",
    *(f"sites.*.{signal}.wrap=true" for signal in ("generation", "absorption", "mci", "price")),
)


def run(what: str = "all") -> Iterator[str]:
    """Measure one thing, or all of them; a line for each figure as it is known.

    Raises:
        ScenarioError: There is no such measurement, or this is not the root of a clone.
    """
    if what not in (*BENCHMARKS, "all"):
        raise ScenarioError("bench", [Problem("what", f"{what!r} is unknown{near_match(what, [*BENCHMARKS, 'all'])}")])
    if not SCENARIO.is_file():
        raise ScenarioError("bench", [Problem(str(SCENARIO), "is not here; start it from the root of a clone")])
    for name, measure in BENCHMARKS.items():
        if what in (name, "all"):
            for line in measure():
                yield f"{name}: {line}"


@dataclass(frozen=True)
class Time:
    """What a piece of work took: by the clock on the wall, and of the processor, which a busy machine disturbs less."""

    wall_s: float
    cpu_s: float


def timed(work: Callable[[], Any]) -> Time:
    """Do it, and take its time."""
    wall_s, cpu_s = time.perf_counter(), time.process_time()
    work()
    return Time(time.perf_counter() - wall_s, time.process_time() - cpu_s)


def _target(value: float, most: float, unit: str = "") -> str:
    verdict = "met" if value <= most else "missed"
    return f"{value:.3g}{unit} (target: at most {most:g}{unit}, {verdict})"


def _ratio(pairs: list[tuple[Time, Time]], most: float) -> str:
    wall, cpu = (median(getattr(a, key) / getattr(b, key) for a, b in pairs) for key in ("wall_s", "cpu_s"))
    listed = ", ".join(f"{a.wall_s:.2f}/{b.wall_s:.2f}" for a, b in pairs)
    return (
        f"A/B = {_target(wall, most)}, median of {len(pairs)} interleaved pairs; by processor time {cpu:.3g}; "
        f"wall time of each pair in s: {listed}"
    )


# --- coupling --------------------------------------------------------------------------------------------------------


def coupling() -> Iterator[str]:
    """The curtailment-aware run against a plain loop: same steps, same batches, same evaluations."""
    import torch

    from curtailsim.scenario import GptLearner, load
    from curtailsim.simulation import HEADLINE, plans, simulate
    from curtailsim.training.corpus import assemble

    scenario = load(SCENARIO, QUARTER)
    assert isinstance(scenario.training.learner, GptLearner)
    corpus, plan = assemble(scenario.training.learner.corpus), next(plans(scenario))
    torch.set_num_threads(scenario.threads)
    tables = simulate(scenario, plan)[HEADLINE]  # warms up, too: traces, text and kernels
    evaluations = 1 + int(tables.rounds.eval_loss.notna().sum())
    yield (
        f"A = curtailment-aware run of {SCENARIO}, a quarter of its tokens and hours, from loaded scenario to tables; "
        f"B = plain PyTorch loop over one model, the same {len(tables.loss):,} optimiser steps on the same batches and "
        f"the same {evaluations} evaluations; {scenario.threads} thread, after imports, reading and a warm-up"
    )
    pairs = []
    for _ in range(PAIRS):
        ours = timed(lambda: simulate(scenario, plan))
        pairs.append((ours, timed(lambda: plain_loop(scenario, corpus, tables))))
    yield _ratio(pairs, 1.05)


def plain_loop(scenario: Scenario, corpus: Corpus, tables: RunTables) -> float:
    """The optimiser steps and evaluations of a run and nothing else; returns the last loss. [nats/byte]."""
    import torch

    from curtailsim.scenario import GptLearner
    from curtailsim.training.corpus import Batches, spaced_windows, split
    from curtailsim.training.model import Gpt, share_storage
    from curtailsim.training.specs import AdamW

    spec = scenario.training.learner
    assert isinstance(spec, GptLearner) and isinstance(spec.inner_optimizer, AdamW)
    own, limit = spec.inner_optimizer, spec.inner_optimizer.gradient_clip
    texts = split(corpus, [site.name for site in scenario.sites], spec.corpus, scenario.seed)
    sizes = (spec.sequence_bytes, spec.batch_sequences, scenario.seed)
    batches = {name: Batches(text.training, *sizes, name) for name, text in texts.items()}
    windows = spaced_windows(corpus.validation, spec.sequence_bytes, spec.evaluation_bytes // spec.sequence_bytes)
    model = Gpt(spec, scenario.seed)
    vector = share_storage(model)
    optimizer = torch.optim.AdamW([vector], own.learning_rate, own.betas, own.epsilon, fused=True, weight_decay=0.0)
    positions = dict.fromkeys(batches, 0)
    losses: list[torch.Tensor] = []
    moments = [0.0, *tables.rounds.time_s[tables.rounds.eval_loss.notna()]]
    steps = [(now, site) for now, site in zip(tables.loss.time_s, tables.loss.site, strict=True)]
    for _, site in sorted([*((now, "") for now in moments), *steps]):
        if not site:
            with torch.no_grad():
                float(model.loss(torch.from_numpy(windows)))
            continue
        optimizer.zero_grad(set_to_none=False)
        loss = model.loss(torch.from_numpy(batches[site][positions[site]]))
        loss.backward()
        if limit is not None:
            torch.nn.utils.clip_grad_norm_([vector], limit)
        optimizer.param_groups[0]["lr"] = own.learning_rate * spec.lr_schedule.factor(len(losses) / len(steps))
        optimizer.step()
        positions[site] += 1
        losses.append(loss.detach())
    return float(torch.stack(losses)[-1])


# --- energy ----------------------------------------------------------------------------------------------------------


def energy() -> Iterator[str]:
    """A year of three sites, in a process of its own each."""
    yield (
        f"three sites of {SCENARIO}, one year at 5 minutes (the traces repeated); A = our curtailment-aware run, "
        "tokens_only, with clusters, policy and tables; B = vessim.Environment and its Recorder, in memory, on the "
        "same microgrids with a constant load; both from signals in memory, each in a process of its own"
    )
    pairs = [(_measure("ours"), _measure("vessim")) for _ in range(3)]
    yield _ratio([(ours.time, theirs.time) for ours, theirs in pairs], 1)
    ours, theirs = (max((pair[index] for pair in pairs), key=lambda one: one.peak_mb) for index in (0, 1))
    yield f"peak memory of the process: A {_target(ours.peak_mb, 500, ' MB')}, B {theirs.peak_mb:.0f} MB"
    yield f"A writes down {ours.rows:,} intervals, B {theirs.rows:,}; reading, not counted: {ours.reading_s:.1f} s"


@dataclass(frozen=True)
class Year:
    """One process of the energy measurement."""

    time: Time
    rows: int
    reading_s: float
    peak_mb: float


def _measure(who: str) -> Year:
    """Run this module in a process of its own."""
    done = subprocess.run([sys.executable, "-m", "curtailsim.bench", who], capture_output=True, text=True, check=True)
    found = json.loads(done.stdout.splitlines()[-1])
    return Year(**{**found, "time": Time(**found["time"])})


def _year(who: str) -> Year:
    """What `_measure` asks for."""
    from curtailsim.energy.neighbour import environment
    from curtailsim.energy.neighbour import simulate as simulate_alone
    from curtailsim.scenario import load
    from curtailsim.simulation import HEADLINE, plans, simulate

    loaded: list[Scenario] = []
    reading = timed(lambda: loaded.append(load(SCENARIO, YEAR)))
    scenario, rows = loaded[0], []
    if who == "ours":
        took = timed(lambda: rows.append(len(simulate(scenario, next(plans(scenario)))[HEADLINE].intervals)))
    else:
        world, recorder = environment(scenario, load_kw=scenario.sites[0].cluster.facility_kw("training"))
        took = timed(lambda: simulate_alone(world, scenario))
        rows.append(len(recorder.log) * len(scenario.sites))
    return Year(took, rows[0], reading.wall_s, _peak_mb())


def _peak_mb() -> float:
    """Peak memory of this process. [MB].

    Linux hands the peak of the parent on to `getrusage` of a child, so it is asked elsewhere there.
    """
    status = Path("/proc/self/status")
    if status.is_file():
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM:"))
        return int(line.split()[1]) / 1024
    import resource

    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / (1024**2 if sys.platform == "darwin" else 1024)


# --- rounds ----------------------------------------------------------------------------------------------------------


def rounds() -> Iterator[str]:
    """Flower rounds on the clock whose clients return what they were sent."""
    import torch

    from curtailsim.scenario import load
    from curtailsim.simulation import World, plans
    from curtailsim.training.build import connect_learner

    torch.set_num_threads(1)
    scenario = load(SCENARIO, [*TOKENS_ONLY, "policy={type: always}", "duration_h=72"])
    took = []
    for _ in range(PAIRS):
        world = World(scenario, next(plans(scenario)))
        learner = _idle_learner(world.sites)
        world.federation.learner = learner
        connect_learner(world.env, world.federation, learner)
        took.append(timed(world.run).wall_s / world.federation.number * 1000)
    size = sum(array.numpy().nbytes for array in learner.arrays.values()) / 1e6
    yield (
        f"{world.federation.number} FedAvg rounds of {len(world.sites)} sites on the clock, microgrids included; "
        f"the clients return the {size:.2f} MB model they were sent"
    )
    listed = ", ".join(f"{one:.2f}" for one in took)
    yield f"{_target(median(took), 10, ' ms')} per round; median of {len(took)} runs: {listed}"


def _idle_learner(sites: list[Site]) -> StrategyLearner:
    """A learner like the built-in one, with its default model, whose clients do nothing."""
    from flwr.app import Context, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    from curtailsim.training.build import build_strategy
    from curtailsim.training.flower import StrategyLearner, make_context, prepare
    from curtailsim.training.learner import initial_arrays, to_record
    from curtailsim.training.specs import FedAvg, GptLearner

    prepare()
    app = ClientApp()

    @app.train()
    def train(message: Message, _: Context) -> Message:
        metrics = MetricRecord({"num-examples": 1, "loss": 0.0})
        return Message(RecordDict({"arrays": message.content["arrays"], "metrics": metrics}), reply_to=message)

    arrays = to_record(initial_arrays(GptLearner(), seed=0))
    contexts = {site.name: make_context(site, number, len(sites)) for number, site in enumerate(sites)}
    return StrategyLearner(build_strategy(FedAvg()), arrays, app, contexts, lambda name: [], lambda arrays: None)


BENCHMARKS: dict[str, Callable[[], Iterator[str]]] = {"coupling": coupling, "energy": energy, "rounds": rounds}

if __name__ == "__main__":
    print(json.dumps(asdict(_year(sys.argv[1]))))
