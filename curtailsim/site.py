"""One site: its cluster's life on the clock, and the work it does in a round.

    off -> provisioning -> ready -> training -> ... -> draining -> off

A site that has to leave finishes the optimiser step it is in, hands its work over and goes off.  A site whose power
fails stops at once; the whole steps it finished are kept, as they are when the simulation ends.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import simpy

from curtailsim.clock import Clock, Process, to_ms
from curtailsim.cluster import Cluster, Workload
from curtailsim.energy.microgrid import SiteMicrogrid
from curtailsim.protocol import RoundRules
from curtailsim.recorder import Recorder, Segment, finish_ms, steps_done


@dataclass
class Order:
    """What a site is asked to do in a round.

    Attributes:
        round: Number of the round.
        called: Triggered when the round is called: finish the step you are in and reply.
        learn: Trains exactly so many steps of a segment, from step `first` on, and returns the reply so far.
        started: Triggered by the first site that begins its first step.
        most_steps: Steps after which there is nothing left to do; None: no limit.
        fetch: The site does not hold the model and has to fetch it first.
        report_every_ms: Report while training, this often; None: only at the end. [ms]
        report: Receives the reply so far.
        startup_s: From dispatch to the first step, beside the cluster's own phases. [s]
        return_s: From the last step to the reply, beside the cluster's own phases; asked for at that time. [s]
        over: Triggered when the round has ended.
    """

    round: int
    called: simpy.Event
    learn: Callable[[Segment, int], Any]
    started: simpy.Event
    most_steps: int | None = None
    fetch: bool = True
    report_every_ms: int | None = None
    report: Callable[[Any], None] = lambda reply: None
    startup_s: float = 0.0
    return_s: Callable[[], float] = lambda: 0.0
    over: simpy.Event | None = None


class Site:
    """A place with one cluster and one or more ledgers of its power.

    Args:
        env: The clock. [ms]
        name: Site name.
        node_id: Its Flower node.
        cluster: Its accelerators.
        workload: The virtual model.
        microgrids: Where its facility power is drawn from; more than one when identical runs are accounted together.
        recorder: Where it writes what happens.
        protocol: How it deals with the server.
    """

    def __init__(
        self,
        env: Clock,
        name: str,
        node_id: int,
        cluster: Cluster,
        workload: Workload,
        microgrids: list[SiteMicrogrid],
        recorder: Recorder,
        protocol: RoundRules,
    ) -> None:
        self.env, self.name, self.node_id, self.protocol = env, name, node_id, protocol
        self.cluster, self.workload, self.microgrids, self.recorder = cluster, workload, microgrids, recorder
        self.step_ms = cluster.step_s(workload) * 1000
        self.watchers: list[Callable[[Site], None]] = []
        self.state, self.phase, self.round = "off", "off", 0
        self.ready_ms = 0
        self.holds: int | None = None
        self.bytes_moved = 0.0
        self.connected = False
        self._network_kw, self._ended, self._released, self._killed = 0.0, False, False, False
        for microgrid in microgrids:
            microgrid.on_short = self._power_lost
        self._leaving = self._gone = env.event()
        self._working: simpy.Process | None = None
        self._round_over: simpy.Event | None = None

    @property
    def facility_kw(self) -> float:
        """Facility power now. [kW]"""
        return self.cluster.facility_kw(self.phase)

    @property
    def ready(self) -> bool:
        """Whether it can be asked to work."""
        return self.connected and self.state in ("ready", "training") and not self.leaving

    @property
    def leaving(self) -> bool:
        """Whether it has been told to leave and is not off yet."""
        return self._leaving.triggered

    def start(self) -> None:
        """Provision the cluster."""
        assert self.state == "off", self.state
        self._leaving, self._gone = self.env.event(), self.env.event()
        self._released = self._killed = self.connected = False
        self.env.process(self._live())

    def leave(self) -> None:
        """Give the cluster back, gracefully."""
        if self.state != "off" and not self._leaving.triggered:
            self._leaving.succeed()

    def release(self) -> None:
        """There is nothing left to do: go off."""
        if self.state != "off" and not self._leaving.triggered:
            self._released = True
            self._leaving.succeed()

    def fail(self, why: str) -> None:
        """Stop at once."""
        if self.state != "off" and not self._gone.triggered:
            self.recorder.event(why, self.name, self.round)
            self._gone.succeed()

    def end(self) -> None:
        """The simulation is over: stop where you are."""
        self._ended = True
        if not self._gone.triggered:
            self._gone.succeed()

    def work(self, order: Order) -> simpy.Process:
        """Do what a round asks; the process's value is the reply, or None."""
        self._round_over = order.over
        self._working = self.env.process(self._work(order))
        return self._working

    def serve(self, round: int, train_s: float, called: simpy.Event, hand_over: bool) -> simpy.Process:
        """Work for a fixed time, all or nothing; the process's value is whether it was completed."""
        self._working = self.env.process(self._serve(round, train_s, called, hand_over))
        return self._working

    def become(self, phase: str, network_kw: float = 0.0) -> None:
        """Enter a phase: the state follows from it, and the microgrids see the new power. [kW]"""
        state = {"off": "off", "provisioning": "provisioning", "training": "training"}.get(phase, "ready")
        if self._leaving.triggered and state in ("ready", "training"):
            state = "draining"
        if (state == "training") != (self.state == "training"):
            change = "training_started" if state == "training" else "training_stopped"
            self.recorder.event(change, self.name, self.round)
        self.state, self.phase, self._network_kw = state, phase, network_kw
        self.recorder.state(self.name, state)
        for microgrid in self.microgrids:
            microgrid.set_load(self.env.now, state, phase, self.facility_kw, network_kw)
            if microgrid.import_limit_kw is not None:
                self.env.process(self._watch(microgrid))

    def _tell(self) -> None:
        for watcher in self.watchers:
            watcher(self)

    def _power_lost(self) -> None:
        self.fail("power_lost")

    def _watch(self, microgrid: SiteMicrogrid) -> Process:
        """Look when a battery is empty that was not foreseen to be before the load changed."""
        yield self.env.timeout(max(microgrid.wake_ms - self.env.now, 0))
        microgrid.advance(self.env.now)

    def _live(self) -> Process:
        self.become("provisioning")
        self.recorder.event("provisioning_started", self.name)
        if (yield from self._wait(self.cluster.provisioning_delay_s)):
            self.ready_ms = self.env.now
            self.become("waiting")
            self.recorder.event("provisioned", self.name)
            if (yield from self._wait(self.protocol.join_s)):
                self.connected = True
                self._tell()
            yield self.env.any_of([self._leaving, self._gone])
            if not self._gone.triggered:
                self.become(self.phase, self._network_kw)
                if not self._released:
                    self.recorder.event("deprovision_started", self.name, self.round)
                self._tell()
        yield from self._drain()
        if self._ended:
            return
        self.holds = None
        self.become("off")
        self.recorder.event("released" if self._released else "deprovisioned", self.name)
        self._tell()
        yield self.env.timeout(to_ms(self.protocol.exit_s))
        if self.state == "off":
            self.connected = False

    def _wait(self, duration_s: float) -> Process:
        """Wait; whether nothing came in between."""
        over = self.env.timeout(to_ms(duration_s))
        yield self.env.any_of([over, self._leaving, self._gone])
        return over.processed and not self._leaving.triggered and not self._gone.triggered

    def _drain(self) -> Process:
        """Let the work come to an end; what takes too long is lost."""
        work, protocol = self._working, self.protocol
        if work is None or self._gone.triggered:
            return
        waits_for_round = protocol.leaver_waits == "round_end" and self._round_over is not None
        end = self._round_over if waits_for_round else work
        if end is None or end.triggered or self._released:
            return
        late = [] if protocol.stop_timeout_s is None else [self.env.timeout(to_ms(protocol.stop_timeout_s))]
        yield self.env.any_of([end, self._gone, *late])
        if work.is_alive and not self._gone.triggered:
            self.recorder.event("stop_forced", self.name, self.round, "it took too long; its work is lost")
            self._killed = True
            self._gone.succeed()
            yield work

    def _work(self, order: Order) -> Process:
        self.round = order.round
        reply = None
        ready = order.most_steps != 0 and (not order.fetch or (yield from self._fetch(order.called)))
        if ready and (yield from self._phase("model_load", order.startup_s, order.called)):
            reply = yield from self._train(order)
        if reply is not None:
            yield from self._hand_over(order.return_s())
        self._rest()
        return None if self._killed else reply

    def _serve(self, round: int, train_s: float, called: simpy.Event, hand_over: bool) -> Process:
        self.round = round
        done = yield from self._fetch(called)
        done = done and (yield from self._phase("training", train_s, called))
        if done and hand_over:
            yield from self._hand_over()
        self._rest()
        return done and not self._gone.triggered

    def _hand_over(self, return_s: float = 0.0) -> Process:
        """Write the model out and send it to the server, whatever happens but a power failure."""
        yield from self._phase("serialisation", self.cluster.serialisation_s + return_s)
        yield from self._transfer()

    def _fetch(self, called: simpy.Event) -> Process:
        """Get the model and load it; whether that was completed."""
        received = yield from self._transfer(called)
        return received and (yield from self._phase("model_load", self.cluster.model_load_s, called))

    def _transfer(self, called: simpy.Event | None = None) -> Process:
        duration_s = self.cluster.network.transfer_s(self.workload.model_bytes)
        began = self.env.now
        network_kw = 0.0
        if duration_s:
            energy_kwh = self.cluster.network.energy_kwh_per_gb * self.workload.model_bytes / 1e9
            network_kw = energy_kwh / (duration_s / 3600)
        done = yield from self._phase("transfer", duration_s, called, network_kw)
        share = 1.0 if done or not duration_s else (self.env.now - began) / (duration_s * 1000)
        self.bytes_moved += share * self.workload.model_bytes
        return done

    def _phase(
        self, phase: str, duration_s: float, called: simpy.Event | None = None, network_kw: float = 0.0
    ) -> Process:
        """Be in a phase; whether it was completed.  With `called` it is given up when called or leaving."""
        stops = [] if called is None else [called, *([self._leaving] if self.protocol.stop_reaches_loading else [])]
        if self._gone.triggered or (duration_s == 0 and any(stop.triggered for stop in stops)):
            return False
        if duration_s == 0:
            return True
        self.become(phase, network_kw)
        over = self.env.timeout(to_ms(duration_s))
        yield self.env.any_of([over, self._gone, *stops])
        return over.processed and not self._gone.triggered

    def _train(self, order: Order) -> Process:
        """Take whole steps until called, until leaving or until there is nothing left; the reply."""
        segment = Segment(self.name, order.round, self.env.now, self.step_ms, 0)
        if self._gone.triggered:
            return None
        self.become("training")
        self.recorder.segments.append(segment)
        if not order.started.triggered:
            order.started.succeed()
        reply, learnt = None, 0
        limit = None if order.most_steps is None else segment.end_ms(order.most_steps)
        deaf = self._leaving.triggered and not self.protocol.stop_reaches_loading
        stops = [order.called, self._gone, *([] if deaf else [self._leaving])]
        while True:
            wake = [t for t in (limit, self._next_report(segment, order)) if t is not None]
            # A condition made of conditions dies with the first that triggers, so each wait is built anew.
            yield self.env.any_of([*stops, *(self.env.timeout(t - self.env.now) for t in wake)])
            stopped = any(stop.triggered for stop in stops)
            over = stopped or self.env.now == limit
            if stopped and not self._gone.triggered:
                yield from self._finish_step(segment, limit)
            segment.steps = steps_done(self.env.now - segment.start_ms, self.step_ms)
            if order.most_steps is not None:
                segment.steps = min(segment.steps, order.most_steps)
            if segment.steps > learnt:
                reply = order.learn(segment, learnt)
                learnt = segment.steps
                if not over:
                    order.report(reply)
            if over:
                break
        if not stopped and self.protocol.exhaustion_hang_s:
            self.become("waiting")
            yield self.env.any_of([self.env.timeout(to_ms(self.protocol.exhaustion_hang_s)), self._gone])
            self.recorder.event("reply_lost", self.name, order.round, "it ran out of data and hung")
            return None
        return reply

    def _next_report(self, segment: Segment, order: Order) -> int | None:
        if order.report_every_ms is None:
            return None
        passed = (self.env.now - segment.start_ms) // order.report_every_ms
        return segment.start_ms + (passed + 1) * order.report_every_ms

    def _finish_step(self, segment: Segment, limit: int | None) -> Process:
        """Complete the step the site is in (none if it is just between two)."""
        elapsed = self.env.now - segment.start_ms
        done = steps_done(elapsed, self.step_ms)
        end = self.env.now if finish_ms(done, self.step_ms) == elapsed else segment.end_ms(done + 1)
        if limit is not None:
            end = min(end, limit)
        if end > self.env.now:
            yield self.env.any_of([self.env.timeout(end - self.env.now), self._gone])

    def _rest(self) -> None:
        if not self._gone.triggered:
            self.become("waiting")
