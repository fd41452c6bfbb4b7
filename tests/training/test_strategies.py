"""Strategies: built from a scenario, DiLoCo equal to PyTorch's SGD, state that survives a checkpoint."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import Array, ArrayRecord, ConfigRecord, Message, MetricRecord, RecordDict
from flwr.serverapp.exception import AggregationError
from flwr.serverapp.strategy import FedAvg, FedAvgM
from flwr.supercore.task_identity import TaskIdentity
from pydantic import TypeAdapter, ValidationError

from curtailsim.training import specs
from curtailsim.training.strategies import DiLoCo, build_strategy, restore, snapshot

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0

NAMES = ["fedavg", "fedavgm", "fedadam", "fedyogi", "fedadagrad", "fedprox", "fedmedian", "fedtrimmedavg", "diloco"]


class Patient(FedAvg):
    """A user's strategy."""

    def __init__(self, patience: int = 1, **kwargs) -> None:
        super().__init__(**kwargs)
        self.patience = patience


class Nodes:
    """A grid with some nodes, all of them ready."""

    def __init__(self, count):
        self.count = count

    def get_node_ids(self):
        """Nodes that may be asked."""
        return list(range(1, self.count + 1))


def parse(**options):
    """A strategy as a scenario would give it."""
    return TypeAdapter(specs.Strategy).validate_python(options)


def random_arrays(seed):
    """Weights of odd sizes, so that vectorised kernels have a rest."""
    random = np.random.default_rng(seed)
    return {name: random.normal(size=shape).astype(np.float32) for name, shape in {"a": (37, 13), "b": (101,)}.items()}


def record(arrays):
    """Weights as Flower sends them."""
    return ArrayRecord({name: Array(value) for name, value in arrays.items()})


def play(strategy, number, arrays, replies, weights):
    """One round: the strategy's messages are answered with the given weights."""
    messages = strategy.configure_train(number, record(arrays), ConfigRecord(), Nodes(len(replies)))
    answers = []
    for message, reply, weight in zip(messages, replies, weights, strict=True):
        metrics = MetricRecord({"num-examples": weight, "loss": 1.0})
        answers.append(Message(RecordDict({"arrays": record(reply), "metrics": metrics}), reply_to=message))
    result, _ = strategy.aggregate_train(number, answers)
    return {name: array.numpy() for name, array in result.items()}


def assert_equal(actual, expected):
    """Equal bit by bit."""
    assert actual.keys() == expected.keys()
    for name in expected:
        np.testing.assert_array_equal(actual[name], expected[name])


@pytest.mark.parametrize("name", NAMES)
def test_one_site_is_enough(name):
    """Every strategy runs rounds of one, two and three sites, asks nobody to evaluate, and moves the weights."""
    strategy = build_strategy(parse(type=name))
    arrays = random_arrays(0)
    for number, sites in enumerate([1, 2, 3], start=1):
        after = play(
            strategy, number, arrays, [random_arrays(10 * number + k) for k in range(sites)], [1, 2, 3][:sites]
        )
        assert any(not np.array_equal(after[key], arrays[key]) for key in arrays)
        assert not strategy.configure_evaluate(number, record(after), ConfigRecord(), Nodes(sites))
        arrays = {key: value.astype(np.float32) for key, value in after.items()}


def test_options_reach_flower():
    """What a scenario sets is what Flower's strategy has."""
    strategy = build_strategy(parse(type="fedadam", eta=0.5, tau=0.25, beta_1=0.1, beta_2=0.2))
    assert (strategy.eta, strategy.tau, strategy.beta_1, strategy.beta_2) == (0.5, 0.25, 0.1, 0.2)
    assert build_strategy(parse(type="fedprox", proximal_mu=0.3)).proximal_mu == 0.3


def test_outer_step_is_torch_sgd():
    """DiLoCo's weights equal those of torch.optim.SGD with Nesterov momentum, bit by bit, over several rounds."""
    strategy = build_strategy(parse(type="diloco"))
    arrays = random_arrays(0)
    weights = {name: torch.from_numpy(value.copy()) for name, value in arrays.items()}
    optimizer = torch.optim.SGD(weights.values(), lr=0.7, momentum=0.9, nesterov=True)
    for number in range(1, 5):
        replies = [random_arrays(10 * number + k) for k in range(3)]
        averaged = play(FedAvg(fraction_evaluate=0.0), number, arrays, replies, [3, 1, 2])
        for name, weight in weights.items():
            weight.grad = weight - torch.from_numpy(averaged[name])
        optimizer.step()
        arrays = play(strategy, number, arrays, replies, [3, 1, 2])
        assert_equal(arrays, {name: weight.numpy() for name, weight in weights.items()})
        assert all(value.dtype == np.float32 for value in arrays.values())


def test_diloco_needs_a_round():
    """An outer step without weights to step from is refused; a round without replies changes nothing."""
    message = Message(RecordDict(), dst_node_id=1, message_type="train")
    content = RecordDict({"arrays": record(random_arrays(0)), "metrics": MetricRecord({"num-examples": 1})})
    with pytest.raises(AggregationError):
        DiLoCo(fraction_evaluate=0.0).aggregate_train(1, [Message(content, reply_to=message)])
    assert DiLoCo(fraction_evaluate=0.0).aggregate_train(1, []) == (None, None)


def test_fedavgm_equals_flower():
    """Round after round the elastic FedAvgM is Flower's own."""
    ours = build_strategy(parse(type="fedavgm", server_learning_rate=0.8, server_momentum=0.6))
    flower = FedAvgM(fraction_evaluate=0.0, server_learning_rate=0.8, server_momentum=0.6)
    arrays = random_arrays(0)
    for number in range(1, 4):
        replies = [random_arrays(10 * number + k) for k in range(2)]
        expected = play(flower, number, arrays, replies, [1, 2])
        arrays = play(ours, number, arrays, replies, [1, 2])
        assert_equal(arrays, expected)


def test_fedavgm_follows_a_site_that_trained_alone():
    """Sites that find nothing to change leave the model where a single site has brought it in between."""
    strategy = build_strategy(parse(type="fedavgm", server_momentum=0.5))
    play(strategy, 1, random_arrays(0), [random_arrays(0)], [1])
    alone = random_arrays(1)
    assert_equal(play(strategy, 2, alone, [alone], [1]), alone)


@pytest.mark.parametrize("name", ["fedavgm", "fedadam", "fedyogi", "fedadagrad", "diloco"])
def test_checkpoint(name):
    """A strategy restored from a snapshot goes on as the one it was taken of."""
    straight, resumed = build_strategy(parse(type=name)), build_strategy(parse(type=name))
    arrays = play(straight, 1, random_arrays(0), [random_arrays(1), random_arrays(2)], [1, 2])
    restore(resumed, snapshot(straight))
    again, expected = (play(s, 2, arrays, [random_arrays(3)], [1]) for s in (resumed, straight))
    assert_equal(again, expected)


def test_custom_strategy():
    """A user's class gets its options, and rounds of one site unless it asks for more."""
    strategy = build_strategy(parse(**{"type": "custom", "class": f"{__name__}:Patient", "options": {"patience": 3}}))
    assert isinstance(strategy, Patient)
    assert (strategy.patience, strategy.min_available_nodes) == (3, 1)


def test_custom_strategy_survives_dumping():
    """A resolved scenario names the class as the user did."""
    spec = parse(**{"type": "custom", "class": "my_module:MyStrategy"})
    assert spec.model_dump() == {"type": "custom", "class": "my_module:MyStrategy", "options": {}}


@pytest.mark.parametrize(
    "options",
    [
        {"type": "fedaverage"},
        {"type": "diloco", "momentum": 1.0},
        {"type": "fedtrimmedavg", "beta": 0.5},
        {"type": "custom", "class": "my_module.MyStrategy"},
        {"type": "fedavg", "server_momentum": 0.5},
    ],
    ids=["unknown", "momentum", "beta", "no_colon", "foreign_key"],
)
def test_mistakes_are_refused(options):
    """Strategies that cannot be are refused when the scenario is read."""
    with pytest.raises(ValidationError):
        parse(**options)


@pytest.mark.parametrize(
    "options",
    [
        {"heads": 5},
        {"evaluation_bytes": 100},
        {"lr_schedule": {"warmup_share": 0.7}},
        {"inner_optimizer": {"type": "sgd", "momentum": 0, "nesterov": True}},
        {"corpus": {"type": "python", "split": "dirichlet"}},
        {"corpus": {"type": "python", "dirichlet_alpha": 1}},
    ],
    ids=["heads", "windows", "schedule", "nesterov", "alpha_missing", "alpha_unused"],
)
def test_learner_mistakes_are_refused(options):
    """Settings of the learner that do not fit together are refused when the scenario is read."""
    with pytest.raises(ValidationError):
        specs.GptLearner.model_validate({"type": "gpt", **options})
