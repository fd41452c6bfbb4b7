"""A user's own ServerApp and ClientApp, unmodified, on the simulated clock.

The ServerApp owns the clock while it runs: whenever it waits for replies or nodes, the simulation advances.  A site
runs the ClientApp as soon as it is free, in no simulated time; the reply's `num-examples` then say how long the
site is busy.  A site that leaves before that is done does not reply.

As in a real deployment a site works on one message at a time, and a message that was pushed gets an error for its
reply if nothing better is to come.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, SupportsIndex

import numpy as np
import simpy
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.clientapp import ClientApp
from flwr.common.constant import ErrorCode
from flwr.serverapp import ServerApp
from flwr.serverapp.strategy import strategy_utils

from curtailsim.clock import Clock, everybody, settle, to_ms
from curtailsim.federation import Federation, Outcome
from curtailsim.recorder import Segment
from curtailsim.site import Site
from curtailsim.training.flower import RUN_ID, SimGrid, examples_of, fault_of, loss_of, mean_loss


class SimulationOver(BaseException):
    """The horizon was reached while a ServerApp was waiting; unwinds it, whatever it catches."""


class AppGrid(SimGrid):
    """The grid an unmodified ServerApp drives.

    Args:
        env: The clock. [ms]
        federation: For its sites, counters and recorder.
        client_app: The user's ClientApp.
        contexts: Each site's context, by site name.
        examples_per_step: Examples that make one virtual step.
        evaluate_share: Time of an evaluated example over that of a trained one.
    """

    def __init__(
        self,
        env: Clock,
        federation: Federation,
        client_app: ClientApp,
        contexts: dict[str, Context],
        examples_per_step: int,
        evaluate_share: float,
    ) -> None:
        super().__init__(env, federation)
        self.client_app, self.contexts = client_app, contexts
        self.examples_per_step, self.evaluate_share = examples_per_step, evaluate_share
        self.last_replies: list[Message] = []
        self.failure: Exception | None = None
        self._fractions = dict.fromkeys(contexts, 0.0)
        self._pending: dict[str, tuple[Message, simpy.Process]] = {}
        self._turns = {site.name: simpy.Resource(env) for site in federation.sites}
        self._sent, self._in_client = 0, False

    def get_node_ids(self) -> list[int]:
        """Nodes of the sites that are ready now."""
        self._check_over()
        return super().get_node_ids()

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Send, and wait for all replies, at most `timeout` simulated seconds."""
        self._check_over()
        batch = list(messages)
        if not batch:
            return []
        called = self.env.event()
        works = self._start(batch, called)

        def exchange() -> Generator[simpy.Event, Any, None]:
            done = self.env.process(everybody(works))
            late = [] if timeout is None else [self.env.timeout(round(timeout * 1000))]
            yield self.env.any_of([done, *late])
            called.succeed()
            yield done

        self._advance(self.env.process(exchange()))
        return self._collect(list(zip(batch, works, strict=True)))

    def push_messages(self, messages: Iterable[Message]) -> list[str]:
        """Send without waiting."""
        self._check_over()
        batch = list(messages)
        identities = [f"message-{self._sent + index}" for index in range(len(batch))]
        self._sent += len(batch)
        for message, identity in zip(batch, identities, strict=True):
            message.metadata.__dict__["_message_id"] = identity  # as Flower does; replies refer to it
        works = self._start(batch, self.env.event())
        self._pending.update(zip(identities, zip(batch, works, strict=True), strict=True))
        return identities

    def pull_messages(self, message_ids: Iterable[str]) -> list[Message]:
        """Replies that have arrived; if none has, the clock advances to the next one."""
        self._check_over()
        known = [identity for identity in message_ids if identity in self._pending]
        works = [self._pending[identity][1] for identity in known]
        if works and not any(work.triggered for work in works):
            self._advance(self.env.any_of(works))
        arrived = [self._pending.pop(identity) for identity in known if self._pending[identity][1].triggered]
        usable = self._collect(arrived)
        answered = {reply.metadata.reply_to_message_id for reply in usable}
        others = [message for message, _ in arrived if message.metadata.message_id not in answered]
        error = Error(ErrorCode.NODE_UNAVAILABLE, "no usable reply")
        return usable + [Message(error, reply_to=message) for message in others]

    def wait_for_nodes(self, _: SupportsIndex | float = 0.0) -> None:
        """In place of Flower's wall-clock sleep: advance to the next change of who is ready."""
        self._check_over()
        self._advance(self.federation.membership_change())

    def sleep(self, seconds: SupportsIndex | float) -> None:
        """In place of the ServerApp's own wall-clock sleep: advance by as many simulated seconds.

        A ClientApp's sleep takes no time, since only its `num-examples` do.
        """
        if self._in_client:
            return
        self._check_over()
        self._advance(self.env.timeout(to_ms(float(seconds))))

    def _check_over(self) -> None:
        if self.federation.over:
            raise SimulationOver

    def _advance(self, event: simpy.Event) -> None:
        try:
            self.env.run(until=event | self.federation.ended)
            self._check_over()
            self.env.run(until=settle(self.env))
        except Exception as error:  # of the simulation, not of the app: it must not be caught there
            self.failure = error
            raise SimulationOver from error

    def _start(self, batch: list[Message], called: simpy.Event) -> list[simpy.Process]:
        if any(_kind(message) == MessageType.TRAIN for message in batch):
            names = " ".join(sorted(self.site(message).name for message in batch))
            self.federation.number += 1
            self.federation.version += 1
            self.federation.recorder.event("round_started", round=self.federation.number, detail=names)
            self._began = self.env.now
        return [self.env.process(self._serve(message, called)) for message in batch]

    def _serve(self, message: Message, called: simpy.Event) -> Generator[simpy.Event, Any, Message | None]:
        site, kind, number = self.site(message), _kind(message), self.federation.number
        with self._turns[site.name].request() as turn:
            yield turn
            reply, done = None, False
            if site.ready:
                reply = self._run_client(message, site)
                share = {MessageType.TRAIN: 1.0, MessageType.EVALUATE: self.evaluate_share}.get(kind, 0.0)
                steps = examples_of(reply) / self.examples_per_step
                train_s = steps * share * site.step_ms / 1000
                done = yield site.serve(number, train_s, called, kind == MessageType.TRAIN)
        if reply is None or not done:
            self.federation.recorder.event("reply_lost", site.name, number, "the site left, or the reply came too late")
            return None
        if kind == MessageType.TRAIN:
            self._count(site, steps, None if fault_of(reply) else loss_of(reply))
        return reply

    def _run_client(self, message: Message, site: Site) -> Message:
        self._in_client = True
        try:
            return self.client_app(message, self.contexts[site.name])
        except (Exception, SystemExit) as error:
            self.federation.recorder.event("client_failed", site.name, self.federation.number, repr(error))
            return Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, repr(error)), reply_to=message)
        finally:
            self._in_client = False

    def _count(self, site: Site, exact: float, loss: float | None) -> None:
        """Count whole virtual steps; a fraction is carried over to the site's next reply."""
        total = self._fractions[site.name] + exact
        steps = int(total)
        self._fractions[site.name] = total - steps
        federation, start = self.federation, self.env.now - round(steps * site.step_ms)
        federation.recorder.segments.append(Segment(site.name, federation.number, start, site.step_ms, steps))
        federation.count(site.name, steps, steps)
        if loss is not None:
            federation.recorder.loss(self.env.now, site.name, federation.number, federation.site_steps[site.name], loss)

    def _collect(self, exchanges: list[tuple[Message, simpy.Process]]) -> list[Message]:
        """The usable replies in the order of site names; a round is complete when trained ones arrive."""
        answers = [(self.site(message).name, work.value) for message, work in exchanges if work.value is not None]
        answers.sort(key=lambda answer: answer[0])
        kinds = {_kind(message) for message, _ in exchanges}
        if MessageType.TRAIN in kinds:
            rejected = {name: fault for name, reply in answers if (fault := fault_of(reply))}
            answers = [(name, reply) for name, reply in answers if not fault_of(reply)]
            replies = [reply for _, reply in answers]
            self.last_replies = replies or self.last_replies
            names = list(dict.fromkeys(name for name, _ in answers))
            self.federation.recorder.event("round_ended", round=self.federation.number, detail=" ".join(names))
            outcome = Outcome(bool(replies), rejected, mean_loss(replies), None)
            self.federation.close_round(self._began, names, outcome)
        elif MessageType.EVALUATE in kinds and self.federation.recorder.rounds:
            self.federation.recorder.rounds[-1]["eval_loss"] = mean_loss([reply for _, reply in answers])
        return [reply for _, reply in answers]


def _kind(message: Message) -> str:
    return message.metadata.message_type.split(".")[0]


def run_server_app(app: ServerApp, grid: AppGrid, run_config: dict[str, Any], seed: int) -> None:
    """Run a ServerApp to its end or to the end of the simulation."""
    _seed_everything(seed)
    context = Context(RUN_ID, 0, {}, RecordDict(), dict(run_config))
    with _simulated_sleep(grid):
        try:
            app(grid, context)
        except SimulationOver:
            if grid.failure is not None:
                raise grid.failure from None
            return
        except SystemExit as error:  # it would end everything without a word
            raise RuntimeError(f"the ServerApp ended the program: sys.exit({error.code!r})") from error
    grid.federation.finish()


@contextmanager
def _simulated_sleep(grid: AppGrid) -> Iterator[None]:
    """Flower sleeps until enough nodes are there, an app perhaps between polls: let the simulation advance instead."""
    flower_sleep, own_sleep, owner = strategy_utils.sleep, time.sleep, threading.get_ident()

    def sleep(seconds: SupportsIndex | float) -> None:
        """Other threads have nothing to do with the simulation."""
        (grid.sleep if threading.get_ident() == owner else own_sleep)(seconds)

    strategy_utils.sleep, time.sleep = grid.wait_for_nodes, sleep
    try:
        yield
    finally:
        strategy_utils.sleep, time.sleep = flower_sleep, own_sleep


def _seed_everything(seed: int) -> None:
    """Apps and Flower's sampling draw from global generators."""
    import torch

    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 - an app's own NumPy code may use the global generator
    torch.manual_seed(seed)
