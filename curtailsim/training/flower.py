"""Flower on the simulated clock: the sites as a grid, and a learner driven by any Flower strategy.

Replies are handed over in the order of site names, not of arrival.
"""

from __future__ import annotations

import logging
import math
import random
from collections.abc import Callable, Generator, Iterable
from typing import Any, cast

import numpy as np
import simpy
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, MessageType, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid
from flwr.serverapp.strategy import Strategy, strategy_utils
from flwr.supercore.task_identity import TaskIdentity

from curtailsim.clock import Clock
from curtailsim.federation import Federation, Outcome, Work
from curtailsim.site import Site

RUN_ID = 1


def prepare() -> None:
    """Tell Flower who is speaking, and to be quiet: messages cannot be built without an identity."""
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, RUN_ID, 0
    logging.getLogger("flwr").setLevel(logging.ERROR)


class SimGrid(Grid):
    """The sites of a simulation as the nodes of a Flower grid.

    Args:
        env: The clock. [ms]
        federation: Runs the exchanges.
    """

    def __init__(self, env: Clock, federation: Federation) -> None:
        self.env, self.federation = env, federation
        self._by_node = {site.node_id: site for site in federation.sites}

    def site(self, message: Message) -> Site:
        """The site a message is for."""
        return self._by_node[message.metadata.dst_node_id]

    def get_node_ids(self) -> list[int]:
        """Nodes of the sites that are ready."""
        return [site.node_id for site in self.federation.ready()]

    def create_message(
        self, content: RecordDict, message_type: str, dst_node_id: int, group_id: str, ttl: float | None = None
    ) -> Message:
        """A message from the server to a node."""
        return Message(content, dst_node_id=dst_node_id, message_type=message_type, group_id=group_id, ttl=ttl)

    def send_and_receive(self, messages: Iterable[Message], *, timeout: float | None = None) -> list[Message]:
        """Run one timed round on the clock."""
        by_site = {self.site(message).name: message for message in messages}
        if not by_site:
            return []
        self.federation.number += 1

        def exchange() -> Generator[simpy.Event, Any, list[Message]]:
            replies = yield from self.federation.exchange(by_site, timed=True)
            return [progress.reply for progress in replies.values()]

        replies = self.env.run(until=self.env.process(exchange()))
        self.federation.version += 1
        return cast(list[Message], replies)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Only users' apps push and pull; see AppGrid."""
        raise RuntimeError("a strategy exchanges messages with send_and_receive")

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Only users' apps push and pull; see AppGrid."""
        raise RuntimeError("a strategy exchanges messages with send_and_receive")

    def set_run(self, run: Any) -> None:
        """Which run this is does not matter: there is only one."""

    @property
    def run(self) -> Any:
        """Flower's record of the run; a simulation has none."""
        raise RuntimeError("a simulated grid has no Flower run record")


def make_context(site: Site, partition: int, partitions: int, run_config: dict[str, Any] | None = None) -> Context:
    """What a site's ClientApp knows of itself."""
    node_config: dict[str, Any] = {"partition-id": partition, "num-partitions": partitions, "site": site.name}
    return Context(RUN_ID, site.node_id, node_config, RecordDict(), dict(run_config or {}))


class TooFewSites(Exception):
    """A strategy wants more nodes than there are; Flower would sleep until they come."""


class StrategyLearner:
    """Trains real models at the sites and merges them by a Flower strategy.

    A site that trains alone exchanges nothing, so its model becomes the global one as it is: no outer step.

    Args:
        strategy: Any Flower strategy.
        arrays: Initial global model.
        client_app: What every site runs; takes `real-steps`, `global-step` and so on from a message's config.
        contexts: Each site's context, by site name.
        losses: The per-step training losses of a site's last training.
        evaluate: Held-out loss of a global model. [nats/byte]
        seed: Of the strategy's sampling.
    """

    def __init__(
        self,
        strategy: Strategy,
        arrays: ArrayRecord,
        client_app: ClientApp,
        contexts: dict[str, Context],
        losses: Callable[[str], list[float]],
        evaluate: Callable[[ArrayRecord], float | None],
        seed: int = 0,
    ) -> None:
        self.strategy, self.arrays, self.client_app, self.contexts = strategy, arrays, client_app, contexts
        self.losses, self.evaluate, self.seed = losses, evaluate, seed
        self.eval_loss_initial = self.eval_loss = evaluate(arrays)
        self.grid: SimGrid | None = None

    def open(self, number: int, sites: list[Site]) -> dict[str, Message]:
        """What the strategy sends to the sites it picks; nothing if it wants more sites than there are."""
        assert self.grid is not None
        state, flower_sleep = random.getstate(), strategy_utils.sleep
        random.seed(f"{self.seed} strategy {number}")  # Flower's sampling draws from the global generator
        strategy_utils.sleep = _refuse_to_sleep  # type: ignore[assignment]
        try:
            messages = list(self.strategy.configure_train(number, self.arrays, ConfigRecord(), self.grid))
        except TooFewSites:
            return {}
        finally:
            random.setstate(state)
            strategy_utils.sleep = flower_sleep
        return {self.grid.site(message).name: message for message in messages}

    def learn(self, message: Message, previous: Message | None, work: Work) -> tuple[Message, list[float]]:
        """Let the site's ClientApp take exactly the steps that fitted."""
        arrays = message.content["arrays"] if previous is None else previous.content["arrays"]
        config = ConfigRecord(
            {
                **message.content.config_records["config"],
                "real-steps": work.real_steps,
                "num-examples": work.examples,
                "global-step": float(work.global_step),
                "global-step-increment": float(work.global_step_increment),
                "schedule-steps": work.schedule_steps,
                "continued": previous is not None,
            }
        )
        content = RecordDict({"arrays": arrays, "config": config})
        request = Message(content, dst_node_id=message.metadata.dst_node_id, message_type=MessageType.TRAIN)
        reply = self.client_app(request, self.contexts[work.site])
        return reply, self.losses(work.site)

    def close(self, number: int, replies: dict[str, Message], federated: bool) -> Outcome:
        """Refuse what is unusable, and merge the rest."""
        rejected = {name: fault for name, reply in replies.items() if (fault := fault_of(reply))}
        good = [reply for name, reply in replies.items() if name not in rejected]
        if not good:
            return Outcome(False, rejected, None, self.eval_loss)
        arrays: ArrayRecord | None
        if federated:
            arrays, _ = self.strategy.aggregate_train(number, good)
        else:
            arrays = good[0].content.array_records["arrays"]
        fault = "the strategy made no model of the replies" if arrays is None else not_finite(arrays)
        eval_loss = None if fault or arrays is None else self.evaluate(arrays)
        if eval_loss is not None and not math.isfinite(eval_loss):
            fault = "its held-out loss is not finite"
        if fault or arrays is None:
            return Outcome(False, {**rejected, "": f"the merged model: {fault}"}, None, self.eval_loss)
        self.arrays, self.eval_loss = arrays, eval_loss
        return Outcome(True, rejected, mean_loss(good), self.eval_loss)


def _refuse_to_sleep(_: float) -> None:
    raise TooFewSites


def metrics_of(reply: Message) -> MetricRecord:
    """The (first) metrics of a reply; empty when there are none."""
    if reply.has_error():
        return MetricRecord()
    return next(iter(reply.content.metric_records.values()), MetricRecord())


def fault_of(reply: Message) -> str | None:
    """Why a reply must not be merged; None if it may."""
    if reply.has_error():
        return f"error: {reply.error.reason}"
    examples = metrics_of(reply).get("num-examples")
    if not isinstance(examples, int | float) or not math.isfinite(examples) or examples <= 0:
        return f"num-examples is {examples}"
    faults = (not_finite(record) for record in reply.content.array_records.values())
    return next((fault for fault in faults if fault), None)


def not_finite(arrays: ArrayRecord) -> str | None:
    """Which array holds something that is no finite number; None if none does."""
    for key, array in arrays.items():
        values = array.numpy()
        if values.dtype.kind == "f" and not np.isfinite(values).all():
            return f"array {key} is not finite"
    return None


LOSS_NAMES = ("loss", "train_loss", "train-loss", "eval_loss", "eval-loss")


def loss_of(reply: Message) -> float | None:
    """The loss a reply reports under any usual name; None if it reports none."""
    metrics = metrics_of(reply)
    values = (metrics[name] for name in LOSS_NAMES if name in metrics)
    return next((float(value) for value in values if isinstance(value, int | float) and math.isfinite(value)), None)


def mean_loss(replies: list[Message]) -> float | None:
    """Mean of the replies' losses, weighted by their examples; None if no reply reports one."""
    pairs = [(examples_of(reply), loss_of(reply)) for reply in replies]
    known = [(weight, loss) for weight, loss in pairs if loss is not None]
    total = sum(weight for weight, _ in known)
    return sum(weight * loss for weight, loss in known) / total if total else None


def examples_of(reply: Message) -> float:
    """`num-examples` of a reply; 0 when it is an error or says nothing usable."""
    value = 0 if reply.has_error() else metrics_of(reply).get("num-examples", 0)
    return max(float(value), 0.0) if isinstance(value, int | float) and math.isfinite(value) else 0.0
