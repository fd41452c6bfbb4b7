"""Federated strategies: Flower's own, DiLoCo, and yours."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from logging import INFO
from typing import Any

import numpy as np
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import (
    FedAdagrad,
    FedAdam,
    FedAvg,
    FedAvgM,
    FedMedian,
    FedProx,
    FedTrimmedAvg,
    FedYogi,
    Strategy,
)
from flwr.supercore import log

from curtailsim.policy import build_object, load_object
from curtailsim.training.specs import CustomStrategy
from curtailsim.training.specs import Strategy as StrategySpec

ELASTIC: dict[str, Any] = {
    "min_train_nodes": 1,
    "min_available_nodes": 1,
    "min_evaluate_nodes": 0,
    "fraction_evaluate": 0.0,
}
"""Rounds with whoever is there; held-out loss is computed centrally, so nobody is asked to evaluate."""


class ElasticFedAvgM(FedAvgM):
    """FedAvgM that starts every round from the weights it is given.

    Flower's own remembers its latest result instead, which is the same unless the global model moved in between: a
    site that trains alone moves it without a round of the strategy.
    """

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Take over the global weights, then configure the round as FedAvgM does."""
        self.current_arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)


class DiLoCo(FedAvg):
    """Distributed low-communication training: outer SGD with Nesterov momentum.

    The pseudo-gradient is the global weights before a round minus the averaged weights after it. The outer optimiser
    is `torch.optim.SGD` itself, so an outer step equals PyTorch's bit by bit.

    Args:
        learning_rate: Outer learning rate. [-]
        momentum: Decay of the outer velocity. [-]
        **kwargs: Arguments of `FedAvg`.

    Attributes:
        current_arrays: Global weights of the round under way.
        momentum_vector: Outer velocity of every array; None before the first step.

    References:
        Douillard et al., DiLoCo: Distributed low-communication training of language models, 2023. arXiv:2311.08105
    """

    def __init__(self, learning_rate: float = 0.7, momentum: float = 0.9, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.learning_rate, self.momentum = learning_rate, momentum
        self.current_arrays: ArrayRecord | None = None
        self.momentum_vector: dict[str, np.ndarray] | None = None

    def summary(self) -> None:
        """Log summary configuration of the strategy."""
        log(INFO, "\t├──> DiLoCo settings:")
        log(INFO, "\t│\t├── Outer learning rate: %s", self.learning_rate)
        log(INFO, "\t│\t└── Outer momentum: %s", self.momentum)
        super().summary()

    def configure_train(
        self, server_round: int, arrays: ArrayRecord, config: ConfigRecord, grid: Grid
    ) -> Iterable[Message]:
        """Remember the global weights, then configure the round as FedAvg does."""
        self.current_arrays = arrays
        return super().configure_train(server_round, arrays, config, grid)

    def aggregate_train(
        self, server_round: int, replies: Iterable[Message]
    ) -> tuple[ArrayRecord | None, MetricRecord | None]:
        """Average the replies, then take an outer step from the weights before the round."""
        averaged, metrics = super().aggregate_train(server_round, replies)
        if averaged is None:
            return averaged, metrics
        if self.current_arrays is None:
            raise AggregationError("DiLoCo knows no weights before the round; call `configure_train` first.")
        return self._outer_step(self.current_arrays, averaged), metrics

    def _outer_step(self, before: ArrayRecord, averaged: ArrayRecord) -> ArrayRecord:
        # arrays are stepped one by one, not joined: vectorised kernels round their last elements differently
        after = {name: torch.from_numpy(array.numpy()) for name, array in averaged.items()}
        weights = {name: torch.from_numpy(before[name].numpy()).to(average.dtype) for name, average in after.items()}
        optimizer = torch.optim.SGD(weights.values(), self.learning_rate, self.momentum, nesterov=True)
        for name, weight in weights.items():
            weight.grad = weight - after[name]
            if self.momentum_vector is not None:
                optimizer.state[weight]["momentum_buffer"] = torch.from_numpy(self.momentum_vector[name])
        optimizer.step()
        self.momentum_vector = {name: optimizer.state[w]["momentum_buffer"].numpy() for name, w in weights.items()}
        return ArrayRecord({name: Array(weight.numpy()) for name, weight in weights.items()})


def build_strategy(spec: StrategySpec) -> Strategy:
    """The Flower strategy a scenario asks for, ready for rounds in which one site is enough."""
    if isinstance(spec, CustomStrategy):
        return _custom(spec)
    return _STRATEGIES[spec.type](**ELASTIC, **spec.model_dump(exclude={"type"}))


def snapshot(strategy: Strategy) -> dict[str, dict[str, np.ndarray]]:
    """Optimiser state of a strategy for a checkpoint: arrays by the name of the state, then of the array.

    Strategies outside the FedAvgM, FedOpt and DiLoCo families are without state, or keep it under other names and
    have methods `snapshot` and `restore` of their own, which are used.
    """
    if hasattr(strategy, "snapshot"):
        return strategy.snapshot()
    states = {name: getattr(strategy, name, None) for name in _STATES}
    return {name: _by_name(state) for name, state in states.items() if state is not None}


def restore(strategy: Strategy, state: Mapping[str, Mapping[str, np.ndarray]]) -> None:
    """Continue a strategy from a snapshot of one like it."""
    if hasattr(strategy, "restore"):
        strategy.restore(state)
        return
    for name, arrays in state.items():
        copies = {key: value.copy() for key, value in arrays.items()}
        setattr(strategy, name, list(copies.values()) if isinstance(strategy, FedAvgM) else copies)


def _by_name(state: Mapping[str, np.ndarray] | list[np.ndarray]) -> dict[str, np.ndarray]:
    items = state.items() if isinstance(state, Mapping) else ((str(k), value) for k, value in enumerate(state))
    return {key: value.copy() for key, value in items}


def _custom(spec: CustomStrategy) -> Strategy:
    cls = load_object(spec.class_path)
    if not isinstance(cls, type) or not issubclass(cls, Strategy):
        raise ValueError(f"{spec.class_path} is no subclass of flwr.serverapp.strategy.Strategy")
    # Flower's own family waits for two nodes unless told otherwise
    made: Strategy = build_object(spec.class_path, {**(ELASTIC if issubclass(cls, FedAvg) else {}), **spec.options})
    return made


_STATES = ("momentum_vector", "m_t", "v_t")

_STRATEGIES: dict[str, type[FedAvg]] = {
    "fedavg": FedAvg,
    "fedavgm": ElasticFedAvgM,
    "fedadam": FedAdam,
    "fedyogi": FedYogi,
    "fedadagrad": FedAdagrad,
    "fedprox": FedProx,
    "fedmedian": FedMedian,
    "fedtrimmedavg": FedTrimmedAvg,
    "diloco": DiLoCo,
}
