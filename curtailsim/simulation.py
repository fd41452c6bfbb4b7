"""Build the world of a scenario and run it on one clock: the curtailment-aware run and its baselines."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from curtailsim.accounting import methods
from curtailsim.clock import AT_THE_END, Clock, Process, settle
from curtailsim.controller import Controller
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.energy.signals import site_signals
from curtailsim.federation import Federation, TokensOnlyLearner
from curtailsim.metrics import RunTables, make_tables
from curtailsim.policy import Always, Custom, Threshold
from curtailsim.protocol import RoundRules
from curtailsim.recorder import Recorder
from curtailsim.scenario import Centralized, ContinuousFederated, FlowerApp, Scenario, TokensOnly
from curtailsim.scenario import Site as SiteSpec
from curtailsim.site import Site

HEADLINE = "curtailment_aware"
Watcher = Callable[[str, int, Recorder, int], None]
"""Told a run's name, the clock, what happened so far and the virtual steps done."""


@dataclass(frozen=True)
class Plan:
    """One simulation, which may account for several runs.

    Attributes:
        sites: The sites that may train.
        policy: Who of them should.
        ledgers: For each run, the sites whose power it is accounted with, in the order of `sites`.
        protocol: How a round goes.
        total_steps: Virtual steps in the token budget; None: until the horizon.
        pooled: Train on all sites' text, as one data centre would.
    """

    sites: tuple[SiteSpec, ...]
    policy: Always | Threshold | Custom
    ledgers: Mapping[str, tuple[SiteSpec, ...]]
    protocol: RoundRules
    total_steps: int | None
    pooled: bool = False


def plans(scenario: Scenario) -> Iterator[Plan]:
    """What has to be simulated; centralized baselines that train identically are simulated once."""
    training = tuple(site for site in scenario.sites if site.trains)
    total_steps = scenario.workload.total_steps
    yield Plan(training, scenario.policy, {HEADLINE: training}, scenario.protocol, total_steps)
    for baseline in scenario.baselines:
        yield from _baseline_plans(scenario, baseline)


def _baseline_plans(scenario: Scenario, baseline: Centralized | ContinuousFederated) -> Iterator[Plan]:
    chosen = [s for s in scenario.sites if (s.name in baseline.sites if baseline.sites else s.trains)]
    if baseline.sites is None and isinstance(baseline, Centralized):
        chosen = list(scenario.sites)
    if baseline.provisioned:
        ready = {"provisioning_delay_s": 0.0}
        chosen = [s.model_copy(update={"cluster": s.cluster.model_copy(update=ready)}) for s in chosen]
    total_steps = scenario.workload.total_steps
    if baseline.total_tokens is not None:
        total_steps = int(baseline.total_tokens // scenario.workload.tokens_per_step)
    protocol = baseline.protocol or scenario.protocol
    if isinstance(baseline, ContinuousFederated):
        yield Plan(tuple(chosen), Always(), {"continuous_federated": tuple(chosen)}, protocol, total_steps)
        return
    alike: dict[Any, list[SiteSpec]] = {}
    for site in chosen:
        limited = None if site.grid_import_limit_kw is None else site.name
        alike.setdefault((site.cluster, limited), []).append(site)
    for group in alike.values():
        ledgers = {f"centralized_{site.name}": (site,) for site in group}
        yield Plan((group[0],), Always(), ledgers, protocol, total_steps, pooled=True)


def simulate(scenario: Scenario, plan: Plan, watcher: Watcher | None = None) -> dict[str, RunTables]:
    """Run one plan.

    Returns:
        The tables of each run it accounts for, by run name.
    """
    world = World(scenario, plan, watcher)
    world.run()
    return world.tables()


class World:
    """Everything of one simulation, on one clock.

    Args:
        scenario: What is asked.
        plan: Which part of it.
        watcher: For progress.
    """

    def __init__(self, scenario: Scenario, plan: Plan, watcher: Watcher | None = None) -> None:
        self.scenario, self.plan, self.watcher = scenario, plan, watcher
        self.env = Clock()
        self.recorder = Recorder(self.env, self._observe if watcher else None)
        powered = {site.name: site for sites in plan.ledgers.values() for site in sites}
        signals = {name: site_signals(s, scenario.start, scenario.horizon_ms) for name, s in powered.items()}
        self.ledgers = {
            run: [
                SiteMicrogrid(s.name, signals[s.name], s.storage, s.grid_import_limit_kw, scenario.horizon_ms)
                for s in sites
            ]
            for run, sites in plan.ledgers.items()
        }
        node_ids = {site.name: number for number, site in enumerate(scenario.sites, 1)}
        self.sites = [
            Site(
                self.env,
                site.name,
                node_ids[site.name],
                site.cluster,
                scenario.workload,
                [microgrids[index] for microgrids in self.ledgers.values()],
                self.recorder,
                plan.protocol,
            )
            for index, site in enumerate(plan.sites)
        ]
        self.app: Callable[[], None] | None = None
        self.weights: Callable[[], Any] = lambda: None
        self.learner = self._learner()
        self.federation = Federation(
            self.env,
            self.sites,
            self.learner,
            self.recorder,
            tokens_per_step=scenario.workload.tokens_per_step,
            total_steps=plan.total_steps,
            schedule_steps=self._schedule_steps(),
            training=scenario.training,
            protocol=plan.protocol,
        )
        self.controller = Controller(self.env, plan.policy, scenario.control, self.sites, signals, self.recorder)
        self._connect()

    def run(self) -> None:
        """To the horizon."""
        self.recorder.event("run_started")
        for microgrids in self.ledgers.values():
            for microgrid in microgrids:
                self.env.process(_operate(self.env, microgrid))
        self.env.process(self.controller.run())
        self.env.process(self._stop_when_finished())
        over = self.env.process(self._end())
        if self.app is not None:
            self.env.run(until=settle(self.env))
            self.app()
        else:
            self.env.process(self.federation.run())
        self.env.run(until=over)
        self.env.run(until=settle(self.env, AT_THE_END))
        for microgrids in self.ledgers.values():
            for microgrid in microgrids:
                microgrid.close()
        self.recorder.event("run_ended")

    def tables(self) -> dict[str, RunTables]:
        """The results of each run this world accounts for."""
        weights = _digest(self.weights())
        found = {
            run: make_tables(
                self.recorder,
                microgrids,
                names=dict(zip((s.name for s in self.sites), (s.name for s in self.plan.ledgers[run]), strict=True)),
                tokens_per_step=self.scenario.workload.tokens_per_step,
                bytes_moved={site.name: site.bytes_moved for site in self.sites},
                eval_loss_initial=getattr(self.learner, "eval_loss_initial", None),
                weights_sha256=weights,
                accounting=self.scenario.accounting,
                real_steps=self.federation.real_steps,
                total_steps=self.plan.total_steps,
            )
            for run, microgrids in self.ledgers.items()
        }
        for run, tables in found.items():
            sites = list(self.plan.ledgers[run])
            tables.summary["methods"] = methods(self.scenario, sites, tables.intervals, tables.events, tables.segments)
        return found

    def _learner(self) -> Any:
        kind = self.scenario.training.learner
        if isinstance(kind, TokensOnly | FlowerApp):
            return TokensOnlyLearner()
        from curtailsim.training.build import build_learner

        return build_learner(self.scenario, self.sites, self.plan.pooled)

    def _connect(self) -> None:
        """Tie a real learner to the grid of this world's sites."""
        kind = self.scenario.training.learner
        if isinstance(kind, TokensOnly):
            return
        from curtailsim.training.build import connect_app, connect_learner

        if isinstance(kind, FlowerApp):
            self.app, self.weights = connect_app(self.env, self.federation, kind, self.scenario.seed)
        else:
            self.weights = connect_learner(self.env, self.federation, self.learner)

    def _schedule_steps(self) -> int:
        """As asked; else the token budget; without one, what one site could train all the time."""
        one_site = max(1, int(self.scenario.horizon_ms / min(site.step_ms for site in self.sites)))
        return self.scenario.training.schedule_steps or self.plan.total_steps or one_site

    def _stop_when_finished(self) -> Process:
        yield self.federation.finished
        self.controller.stop()

    def _end(self) -> Process:
        yield settle(self.env, delay_ms=self.scenario.horizon_ms)
        self.federation.over = True  # what ends at the horizon has ended; nothing begins there
        yield settle(self.env, AT_THE_END)
        self.federation.end()

    def _observe(self, recorder: Recorder) -> None:
        assert self.watcher is not None
        steps = self.federation.steps if hasattr(self, "federation") else 0
        self.watcher(next(iter(self.ledgers)), self.env.now, recorder, steps)


def _operate(env: Clock, microgrid: SiteMicrogrid) -> Process:
    """A microgrid as a process: wait for its next change point, advance, and again."""
    while env.now < microgrid.horizon_ms:
        yield env.timeout(microgrid.wake_ms - env.now)
        microgrid.advance(env.now)


def _digest(arrays: Any) -> str | None:
    """SHA-256 over named arrays; None if there are none."""
    if arrays is None:
        return None
    total = hashlib.sha256()
    for name in sorted(arrays):
        total.update(name.encode() + arrays[name].tobytes())
    return total.hexdigest()
