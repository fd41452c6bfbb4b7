"""Who works together, and when is their work merged?  Rounds as a process on the clock.

No site ready: training is suspended.  One: it trains on by itself until another joins or it leaves.  Two or more:
federated rounds of a fixed training time.  Sites join when a round begins; a site that leaves in the middle hands in
the whole steps it has done.  Time comes first and gradients after: how many steps fit is decided on the clock, then
the learner takes exactly those, in no simulated time.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import simpy

from curtailsim.clock import Clock, Process, everybody, settle, to_ms, trigger
from curtailsim.protocol import RoundRules
from curtailsim.recorder import Recorder, Segment
from curtailsim.site import Order, Site


@dataclass(frozen=True)
class Work:
    """Steps for a learner to take.

    Attributes:
        site: Who takes them.
        real_steps: Real optimiser steps.
        global_step: Virtual global step at the first of them; sets the learning rate.
        global_step_increment: What each adds to it.
        examples: Tokens this site has trained on in the round so far: its weight in the average.
        schedule_steps: Virtual global steps of the whole learning-rate schedule.
    """

    site: str
    real_steps: int
    global_step: float
    global_step_increment: float
    examples: int
    schedule_steps: int


@dataclass(frozen=True)
class Outcome:
    """What became of a round's replies.

    Attributes:
        changed: Whether the global model changed.
        rejected: Site and reason of every reply that was refused.
        train_loss: Mean training loss of the real steps, weighted like the average. [nats/byte]
        eval_loss: Held-out loss of the global model afterwards. [nats/byte]
    """

    changed: bool = True
    rejected: Mapping[str, str] = field(default_factory=dict)
    train_loss: float | None = None
    eval_loss: float | None = None


class Learner(Protocol):
    """What learns; messages and replies are its own business."""

    def open(self, number: int, sites: list[Site]) -> dict[str, Any]:
        """A message for each site that is to take part, by site name."""

    def learn(self, message: Any, previous: Any, work: Work) -> tuple[Any, list[float]]:
        """Train from the message's model, or on from the previous reply; the reply and the real steps' losses."""

    def close(self, number: int, replies: dict[str, Any], federated: bool) -> Outcome:
        """Make one model of the replies, in the order of site names."""


class TokensOnlyLearner:
    """Counts the work and learns nothing."""

    def open(self, number: int, sites: list[Site]) -> dict[str, Any]:
        """Everybody takes part."""
        return {site.name: None for site in sites}

    def learn(self, message: Any, previous: Any, work: Work) -> tuple[Any, list[float]]:
        """Nothing to do."""
        return None, []

    def close(self, number: int, replies: dict[str, Any], federated: bool) -> Outcome:
        """Nothing to merge."""
        return Outcome()


@dataclass
class Progress:
    """A site's reply, as far as it has got in a round."""

    message: Any
    reply: Any = None
    steps: int = 0


class Federation:
    """Runs the rounds.

    Args:
        env: The clock. [ms]
        sites: All sites.
        learner: What learns.
        recorder: Where everything is written down.
        tokens_per_step: Tokens in one virtual step.
        total_steps: Virtual steps after which training is complete; None: at the horizon.
        schedule_steps: Virtual steps of the learning-rate schedule.
        training: Anything with round_s, report_every_s, stride and lr_clock.
        protocol: How a round goes.
    """

    def __init__(
        self,
        env: Clock,
        sites: list[Site],
        learner: Learner,
        recorder: Recorder,
        *,
        tokens_per_step: int,
        total_steps: int | None,
        schedule_steps: int,
        training: Any,
        protocol: RoundRules,
    ) -> None:
        self.env, self.sites, self.learner, self.recorder = env, sites, learner, recorder
        self.tokens_per_step, self.total_steps, self.schedule_steps = tokens_per_step, total_steps, schedule_steps
        self.training, self.protocol = training, protocol
        self.number, self.version, self.steps, self.real_steps = 0, 0, 0, 0
        self.site_steps = dict.fromkeys((site.name for site in sites), 0)
        self.over = False
        self.finished, self.ended = env.event(), env.event()
        self._changed, self._joined = env.event(), env.event()
        self._counted = (0, 0)
        self._known: set[str] = set()
        for site in sites:
            site.watchers.append(self._notice)

    def ready(self) -> list[Site]:
        """Sites that can be asked to work, in the order of their names."""
        return sorted((site for site in self.sites if site.ready), key=lambda site: site.name)

    def run(self) -> Process:
        """Round after round, until the token budget is used up or the simulation ends."""
        at_once = self.protocol.round_opens == "at_once"
        while not self.over:
            if at_once:
                self._open("")
            if self.total_steps is not None and self.steps >= self.total_steps:
                self.finish()
                return
            sites = yield from self._wait_for_sites()
            if not sites:
                return
            if not at_once:
                self._open(" ".join(site.name for site in sites))
            yield from self._greet(sites)
            sites = [site for site in sites if site.ready]
            if sites:
                yield from self._round(sites)

    def finish(self) -> None:
        """Training is complete."""
        if not self.over:
            self.over = True
            self.recorder.event("training_finished", detail=f"{self.steps} steps")
            self.finished.succeed()

    def end(self) -> None:
        """The simulation is over: close the round where it stands."""
        if self.number and any(site.state == "training" for site in self.sites):
            self.recorder.event("round_truncated", round=self.number)
        self.over = True
        for site in self.sites:
            site.end()
        trigger(self._changed)
        trigger(self.ended)

    def membership_change(self) -> simpy.Event:
        """An event for the next time a site becomes ready or leaves."""
        self._changed = self.env.event()
        return self._changed

    def exchange(
        self, messages: dict[str, Any], *, timed: bool, report: Callable[[str, Progress], bool] | None = None
    ) -> Generator[simpy.Event, Any, dict[str, Progress]]:
        """Let sites work on their messages and collect the replies.

        Args:
            messages: For each site name, what the learner makes of it.
            timed: Call the round after its training time; otherwise when another site is ready to join.
            report: Told a site's progress every now and then; returns whether it may go on.

        Returns:
            For each site that took a step and replied, its progress, in the order of site names.
        """
        sites = [site for site in self.sites if site.name in messages]
        called, started, over = self.env.event(), self.env.event(), self.env.event()
        progress = {site.name: Progress(messages[site.name]) for site in sites}
        shares, base, protocol = self._shares(sites), self.steps, self.protocol
        self._joined = self.env.event()
        works: dict[str, simpy.Process] = {}
        for site in sites:
            order = Order(
                self.number,
                called,
                self._learning(progress[site.name], base, len(sites)),
                started,
                most_steps=shares[site.name],
                fetch=site.holds != self.version,
                startup_s=protocol.startup(len(sites), self.number == 1),
                return_s=lambda: protocol.giving_back(sum(site.state != "off" for site in sites)),
                over=over,
            )
            if report is not None:
                order.report_every_ms = to_ms(self.training.report_every_s or self.training.round_s)
                order.report = _reporting(report, site.name, progress[site.name], called)
            site.holds = None
            works[site.name] = site.work(order)
            if protocol.late_update == "closes_round":
                self.env.process(self._close_when_left(site, works[site.name], called))
        done = self.env.process(everybody(list(works.values())))
        yield from self._call(timed, called, started, done)
        trigger(called)
        yield done
        over.succeed()
        return {name: progress[name] for name in sorted(progress) if works[name].value is not None}

    def _call(self, timed: bool, called: simpy.Event, started: simpy.Event, done: simpy.Event) -> Process:
        """Wait until the round is to be called."""
        alone_goes_on = self.protocol.alone == "timer_then_until_joined"
        if not timed and not alone_goes_on:
            yield self.env.any_of([self._joined, called, done])
            return
        if self.protocol.round_timer_from == "first_step":
            yield self.env.any_of([started, done])
        yield self.env.any_of([self.env.timeout(to_ms(self.training.round_s)), called, done])
        while alone_goes_on and not called.triggered and not done.triggered and self._connected() == 1:
            yield self.env.any_of([self.env.timeout(to_ms(self.protocol.recheck_s)), called, done])

    def _close_when_left(self, site: Site, work: simpy.Process, called: simpy.Event) -> Process:
        yield work
        if site.leaving:
            trigger(called)

    def _connected(self) -> int:
        return sum(site.connected for site in self.sites)

    def _open(self, names: str) -> None:
        self.number += 1
        self.recorder.event("round_started", round=self.number, detail=names)

    def _wait_for_sites(self) -> Generator[simpy.Event, Any, list[Site]]:
        """The sites that are ready, as soon as there are any; none when the simulation is over."""
        while True:
            yield settle(self.env)
            sites = self.ready()
            if sites or self.over:
                return [] if self.over else sites
            yield self.membership_change()

    def _greet(self, sites: list[Site]) -> Process:
        """Get to know the newcomers."""
        new = [site for site in sites if site.name not in self._known]
        if new and self.protocol.name_query_s:
            yield self.env.any_of([self.env.timeout(to_ms(self.protocol.name_query_s)), self.ended])
        for site in new:
            self._known.add(site.name)
            self.recorder.event("client_connected", site.name, self.number)

    def _round(self, sites: list[Site]) -> Process:
        began, federated = self.env.now, len(sites) > 1
        messages = self.learner.open(self.number, sites)
        if not messages:  # the strategy wants other sites than these
            self.close_round(began, [], Outcome(changed=False))
            yield self.membership_change()
            return

        def report(name: str, progress: Progress) -> bool:
            outcome = self.learner.close(self.number, {name: progress.reply}, federated=False)
            self._write("report", began, name, outcome)
            return outcome.changed

        replies = yield from self.exchange(messages, timed=federated, report=None if federated else report)
        listed = " ".join(replies)
        self.recorder.event("round_ended", round=self.number, detail=listed)
        outcome = Outcome(changed=False)
        if replies:
            if self.protocol.aggregation_s:
                yield self.env.any_of([self.env.timeout(to_ms(self.protocol.aggregation_s)), self.ended])
            outcome = self.learner.close(self.number, {name: p.reply for name, p in replies.items()}, federated)
        self.version += outcome.changed
        self.close_round(began, list(replies), outcome, "federated" if federated else "single")
        if outcome.changed and not federated:
            self._holds(next(iter(replies)))

    def close_round(self, began_ms: int, names: list[str], outcome: Outcome, kind: str = "federated") -> None:
        """Write down a finished round.

        Args:
            began_ms: When it began. [ms]
            names: Who replied.
            outcome: What became of the replies.
            kind: federated, single, or report (from within a single-site round).
        """
        listed = " ".join(names)
        if not names:
            self.recorder.event("round_empty", round=self.number, detail="nobody replied; the model stays as it was")
        if outcome.changed:
            self.recorder.event("aggregated", round=self.number, detail=listed)
        self._write(kind, began_ms, listed, outcome)

    def count(self, name: str, steps: int, real_steps: int) -> None:
        """Add steps a site has taken."""
        self.site_steps[name] += steps
        self.steps += steps
        self.real_steps += real_steps

    def _holds(self, name: str) -> None:
        """A site that trained alone holds the new model already."""
        site = next(site for site in self.sites if site.name == name)
        if site.state != "off":
            site.holds = self.version

    def _learning(self, progress: Progress, base: int, sites: int) -> Callable[[Segment, int], Any]:
        """How a site of this round learns: from `base` global steps on, `sites` of them in parallel."""
        stride = self.training.stride
        pace = sites if self.training.lr_clock == "all_sites" else 1

        def learn(segment: Segment, first: int) -> Progress:
            before = self.site_steps[segment.site] - first
            reals = range((before + first) // stride + 1, (before + segment.steps) // stride + 1)
            ends = [real * stride - before for real in reals]
            work = Work(
                segment.site,
                len(ends),
                base + pace * (ends[0] - 1) if ends else base,
                pace * stride,
                segment.steps * self.tokens_per_step,
                self.schedule_steps,
            )
            progress.reply, losses = self.learner.learn(progress.message, progress.reply, work)
            for end, loss in zip(ends, losses, strict=False):
                self.recorder.loss(segment.end_ms(end), segment.site, segment.round, before + end, loss)
            self.count(segment.site, segment.steps - first, len(losses))
            progress.steps = segment.steps
            return progress

        return learn

    def _shares(self, sites: list[Site]) -> dict[str, int | None]:
        """What is left of the budget, shared out in whole steps; largest remainders first."""
        if self.total_steps is None:
            return dict.fromkeys((site.name for site in sites), None)
        left = self.total_steps - self.steps
        weights = {site.name: self._weight(site) for site in sites}
        exact = {name: left * weight / sum(weights.values()) for name, weight in weights.items()}
        shares: dict[str, int | None] = {name: int(share) for name, share in exact.items()}
        spare = left - sum(int(share) for share in exact.values())
        for name in sorted(exact, key=lambda name: (int(exact[name]) - exact[name], name))[:spare]:
            shares[name] = int(exact[name]) + 1
        return shares

    def _weight(self, site: Site) -> float:
        if self.protocol.uneven_shares is not None:
            return self.protocol.uneven_shares[site.name]
        return 1 / site.step_ms if self.protocol.budget_split == "by_speed" else 1.0

    def _write(self, kind: str, began: int, names: str, outcome: Outcome) -> None:
        for name, reason in outcome.rejected.items():
            self.recorder.event("reply_rejected", name, self.number, reason)
        steps, real_steps = self._counted
        self._counted = self.steps, self.real_steps
        self.recorder.round(
            round=self.number,
            kind=kind,
            start_ms=began,
            sites=names,
            steps=self.steps - steps,
            real_steps=self.real_steps - real_steps,
            tokens=self.steps * self.tokens_per_step,
            train_loss=outcome.train_loss,
            eval_loss=outcome.eval_loss,
        )

    def _notice(self, site: Site) -> None:
        """A site became ready or left."""
        if site.state == "off":
            self._known.discard(site.name)
        trigger(self._changed)
        if any(site.ready and site.phase == "waiting" for site in self.sites):
            trigger(self._joined)


def _reporting(
    report: Callable[[str, Progress], bool], name: str, progress: Progress, called: simpy.Event
) -> Callable[[Any], None]:
    def tell(_: Any) -> None:
        if not report(name, progress) and not called.triggered:
            called.succeed()

    return tell
