"""One site's inner loop: real optimiser steps on a real model, and the Flower client around it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from torch import Tensor, nn

from curtailsim.streams import stream
from curtailsim.training.corpus import Batches, spaced_windows
from curtailsim.training.model import VOCABULARY, Gpt, share_storage
from curtailsim.training.specs import AdamW, GptLearner, InnerOptimizer, Sgd

Arrays = Mapping[str, np.ndarray]
"""Weights by name, as float32 arrays."""

UNTRAINED_LOSS = math.log(VOCABULARY)
"""Loss of a model that has not learned anything: all bytes are equally likely. [nat/byte]"""

EVALUATED_AT_ONCE = 512
"""Windows in one forward pass of an evaluation, which bounds its memory whatever is evaluated. [-]"""


class GptTrainer:
    """Trains the model at one site.

    A trainer owns what stays at a site: inner optimiser state and the position in the site's data. Weights come with
    every call and go back with its result. Nothing global is read or written, so what other trainers do, and when,
    changes nothing; results are reproducible bit by bit for a given number of PyTorch threads, which the caller sets.

    Args:
        spec: Model, optimiser, schedule and batches.
        shard: Text to train on.
        site: Name of the site, which names its random streams.
        seed: Seed of the scenario.
        validation: The site's held-out text, for Flower's evaluate messages.

    Attributes:
        position: Optimiser steps taken at this site, i.e. number of its next batch. [-]
        last_losses: Training loss of every step of the latest call of `train`. [nat/byte]
        round_loss: Mean training loss of the latest round in which a step was taken. [nat/byte]
    """

    def __init__(self, spec: GptLearner, shard: bytes, site: str, seed: int, validation: bytes = b"") -> None:
        self.spec, self.site, self.validation = spec, site, validation
        self.position = 0
        self.last_losses: list[float] = []
        self.round_loss = UNTRAINED_LOSS
        self._round_losses: list[float] = []
        self._anchor: Tensor | None = None
        self._batches = Batches(shard, spec.sequence_bytes, spec.batch_sequences, seed, site)
        self._model = Gpt(spec, _model_seed(seed))
        self._vector = share_storage(self._model)
        self._weights = {name: weight.detach().numpy() for name, weight in self._model.named_parameters()}
        self._optimizers = _inner_optimizers(spec.inner_optimizer, self._model, self._vector)

    def train(
        self,
        arrays: Arrays | ArrayRecord,
        *,
        steps: int,
        global_step: float,
        global_step_increment: float,
        schedule_steps: int,
        proximal_mu: float = 0.0,
        continued: bool = False,
    ) -> tuple[dict[str, np.ndarray], list[float]]:
        """Take real optimiser steps from the given weights.

        Args:
            arrays: Weights to start from.
            steps: Optimiser steps to take. [-]
            global_step: Step of the whole run at the first step here; sets the learning rate. [-]
            global_step_increment: Global steps that one step here stands for. [-]
            schedule_steps: Global steps of the whole learning-rate schedule. [-]
            proximal_mu: Pull towards the weights the round began with (FedProx). [-]
            continued: Whether the call goes on with the round of the call before it. Otherwise it begins a round,
                which is where inner optimiser state is reset if the specification says so.

        Returns:
            The new weights, and the training loss of every step in nats per byte.
        """
        self._load(arrays)
        if not continued:
            self._begin_round(pulled=proximal_mu > 0)
        losses = []
        for step in range(steps):
            progress = (global_step + step * global_step_increment) / schedule_steps
            losses.append(self._step(progress, proximal_mu))
        self.last_losses = torch.stack(losses).tolist() if losses else []
        self._round_losses += self.last_losses
        if self._round_losses:
            self.round_loss = math.fsum(self._round_losses) / len(self._round_losses)
        if not torch.isfinite(self._vector).all():
            self._forget()  # a server refuses such weights, but moments kept here would spoil every later round
        return {name: weight.copy() for name, weight in self._weights.items()}, self.last_losses

    def evaluate(self, arrays: Arrays | ArrayRecord, text: bytes) -> float:
        """Mean loss on windows spread evenly over a text: the same bytes at every call. [nat/byte]."""
        self._load(arrays)
        sequence_bytes = self.spec.sequence_bytes
        windows = spaced_windows(text, sequence_bytes, self.spec.evaluation_bytes // sequence_bytes)
        with torch.no_grad():
            losses = [self._model.loss(part) * len(part) for part in torch.from_numpy(windows).split(EVALUATED_AT_ONCE)]
        return float(sum(losses)) / len(windows)

    def snapshot(self) -> dict[str, Any]:
        """Everything a checkpoint between rounds needs of this site, as a plain dictionary of numbers and arrays."""
        return {
            "position": self.position,
            "round_loss": self.round_loss,
            "weights": self._vector.detach().numpy().copy(),
            "optimizer": [
                {name: value.numpy().copy() for name, value in optimizer.state[parameter].items() if value is not None}
                for optimizer, parameter in self._optimized()
            ],
        }

    def restore(self, snapshot: Mapping[str, Any]) -> None:
        """Continue from a snapshot, of this or of another trainer of the same kind."""
        self.position, self.round_loss = snapshot["position"], snapshot["round_loss"]
        self._vector.detach().copy_(torch.from_numpy(snapshot["weights"]))
        for (optimizer, parameter), state in zip(self._optimized(), snapshot["optimizer"], strict=True):
            optimizer.state[parameter] = {name: torch.from_numpy(value.copy()) for name, value in state.items()}

    def _optimized(self) -> Iterator[tuple[torch.optim.Optimizer, Tensor]]:
        """All optimised tensors, each with its optimiser."""
        for optimizer in self._optimizers:
            for group in optimizer.param_groups:
                for parameter in group["params"]:
                    yield optimizer, parameter

    def _begin_round(self, pulled: bool) -> None:
        self._round_losses = []
        self._anchor = self._vector.detach().clone() if pulled else None
        if self.spec.inner_optimizer_state == "reset":
            self._forget()

    def _forget(self) -> None:
        for optimizer in self._optimizers:
            optimizer.state.clear()

    def _step(self, progress: float, proximal_mu: float) -> Tensor:
        """One optimiser step on the next batch; returns its loss."""
        spec = self.spec.inner_optimizer
        grad = self._vector.grad
        assert grad is not None
        grad.zero_()
        loss = self._model.loss(torch.from_numpy(self._batches[self.position]))
        loss.backward()
        if self._anchor is not None:
            grad.add_(self._vector.detach() - self._anchor, alpha=proximal_mu)
        if spec.gradient_clip is not None:
            grad.mul_(torch.clamp(spec.gradient_clip / (grad.norm() + 1e-6), max=1.0))
        factor = self.spec.lr_schedule.factor(progress)
        for optimizer in self._optimizers:
            optimizer.param_groups[0]["lr"] = optimizer.defaults["lr"] * factor
            optimizer.step()
        self.position += 1
        return loss.detach()

    def _load(self, arrays: Arrays | ArrayRecord) -> None:
        """Copy weights into the model; some of Flower's strategies return float64, the model computes in float32."""
        values = from_record(arrays) if isinstance(arrays, ArrayRecord) else arrays
        if values.keys() != self._weights.keys():
            raise ValueError(f"{self.site} expects the weights {sorted(self._weights)}, got {sorted(values)}")
        for name, weight in self._weights.items():
            np.copyto(weight, values[name], casting="same_kind")


def initial_arrays(spec: GptLearner, seed: int) -> dict[str, np.ndarray]:
    """Weights every site of a scenario starts from."""
    return {name: weight.detach().numpy() for name, weight in Gpt(spec, _model_seed(seed)).named_parameters()}


def to_record(arrays: Arrays) -> ArrayRecord:
    """Weights as Flower sends them."""
    record = ArrayRecord()
    for name, value in arrays.items():
        record[name] = Array(value)
    return record


def from_record(record: ArrayRecord) -> dict[str, np.ndarray]:
    """Weights as NumPy arrays."""
    return {name: array.numpy() for name, array in record.items()}


def client_app(trainers: Mapping[int, GptTrainer]) -> ClientApp:
    """Flower client app that trains for real, one trainer per `partition-id`.

    A train message's `config` holds `real-steps` (optimiser steps to take), `num-examples` (weight of the reply:
    tokens of virtual work), `global-step`, `global-step-increment` and `schedule-steps` (see `GptTrainer.train`).
    `proximal-mu` (FedProx) and `continued` (same round as the message before) may be there. The reply's `metrics` are
    `num-examples` and `loss`, the mean over the round's steps.

    Flower demands the same metrics of every reply. A site that did virtual work but was due no real step returns the
    weights it got and the loss of its latest round with steps, or the untrained model's before its first step. The
    losses of single steps stay in `GptTrainer.last_losses`, because Flower averages every metric it gets.

    Args:
        trainers: Trainer of each partition.
    """
    app = ClientApp()

    @app.train()
    def train(message: Message, context: Context) -> Message:
        trainer, config = trainers[_partition(context)], message.content.config_records["config"]
        arrays, _ = trainer.train(
            message.content.array_records["arrays"],
            steps=int(_number(config["real-steps"])),
            global_step=_number(config["global-step"]),
            global_step_increment=_number(config["global-step-increment"]),
            schedule_steps=int(_number(config["schedule-steps"])),
            proximal_mu=_number(config.get("proximal-mu", 0.0)),
            continued=bool(config.get("continued", False)),
        )
        metrics = MetricRecord({"num-examples": int(_number(config["num-examples"])), "loss": trainer.round_loss})
        return Message(RecordDict({"arrays": to_record(arrays), "metrics": metrics}), reply_to=message)

    @app.evaluate()
    def evaluate(message: Message, context: Context) -> Message:
        trainer = trainers[_partition(context)]
        loss = trainer.evaluate(message.content.array_records["arrays"], trainer.validation)
        metrics = MetricRecord({"num-examples": trainer.spec.evaluation_bytes, "loss": loss})
        return Message(RecordDict({"metrics": metrics}), reply_to=message)

    return app


def _partition(context: Context) -> int:
    return int(context.node_config["partition-id"])


def _number(value: object) -> float:
    assert isinstance(value, int | float), f"expected a number in the config, got {value!r}"
    return value


def _model_seed(seed: int) -> int:
    return int(stream(seed, "model").integers(2**63))


def _inner_optimizers(spec: InnerOptimizer, model: Gpt, vector: nn.Parameter) -> list[torch.optim.Optimizer]:
    """PyTorch's optimisers for all weights, each with one group of parameters."""
    lr, decay = spec.learning_rate, spec.weight_decay
    if isinstance(spec, AdamW):
        return [torch.optim.AdamW([vector], lr, spec.betas, spec.epsilon, weight_decay=decay, fused=True)]
    if isinstance(spec, Sgd):
        return [torch.optim.SGD([vector], lr, spec.momentum, weight_decay=decay, nesterov=spec.nesterov)]
    rest = [model.embedding, model.head]
    return [
        torch.optim.Muon(model.blocks.parameters(), lr, weight_decay=decay, momentum=spec.momentum),
        torch.optim.AdamW(rest, spec.adamw_learning_rate, spec.adamw_betas, weight_decay=0.0, fused=True),
    ]
