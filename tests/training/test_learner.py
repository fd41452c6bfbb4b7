"""One site's inner loop: reproducible, resumable, independent of others, and it learns."""

import logging

import numpy as np
import pytest
import torch
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.supercore.task_identity import TaskIdentity

from curtailsim.training.corpus import assemble, byte_entropy, split
from curtailsim.training.learner import (
    UNTRAINED_LOSS,
    GptTrainer,
    client_app,
    from_record,
    initial_arrays,
    to_record,
)
from curtailsim.training.specs import AdamW, GptLearner, Muon, PythonCorpus, Sgd

logging.getLogger("flwr").setLevel(logging.ERROR)

SMALL = GptLearner(layers=1, width=32, batch_sequences=4, sequence_bytes=32, evaluation_bytes=256)
TEXT = b"".join(b"the %d bottles on the wall number %d\n" % (k, k * k) for k in range(2000))


@pytest.fixture(autouse=True)
def _one_thread():
    """Results depend on the number of threads; small models are fastest with one."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    TaskIdentity.task_id, TaskIdentity.run_id, TaskIdentity.node_id = 1, 1, 0
    yield
    torch.set_num_threads(threads)


def trainer(spec=SMALL, site="x"):
    """A trainer of the small model on the small text."""
    return GptTrainer(spec, TEXT, site, seed=0, validation=TEXT[-2000:])


def train(trainer, arrays, steps, done=0, **options):
    """Some steps of a run of 100."""
    return trainer.train(arrays, steps=steps, global_step=done, global_step_increment=1, schedule_steps=100, **options)


def equal(first, second):
    """Whether two sets of weights are the same bit by bit."""
    return first.keys() == second.keys() and all(np.array_equal(first[name], second[name]) for name in first)


START = initial_arrays(SMALL, seed=0)


def test_same_steps_same_bits():
    """Two identical trainers agree bit by bit, whatever another one and the global generators do in between."""
    first, second, other = trainer(), trainer(), trainer(site="y")
    expected, expected_losses = train(first, START, 6)
    half, half_losses = train(second, START, 3)
    torch.manual_seed(7)
    other_result, _ = train(other, START, 3)
    actual, losses = train(second, half, 3, done=3)
    assert equal(actual, expected)
    assert half_losses + losses == expected_losses
    assert not equal(other_result, half)


OPTIMIZERS = {
    "adamw": AdamW(),
    "sgd": Sgd(type="sgd", learning_rate=0.1),
    "muon": Muon(type="muon"),
    "plain_sgd": Sgd(type="sgd", momentum=0, gradient_clip=None),
}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_interrupted_is_uninterrupted(optimizer):
    """Five and seven steps are twelve steps, also with a checkpoint in between and another trainer after it."""
    spec = SMALL.model_copy(update={"inner_optimizer": optimizer})
    straight, _ = train(trainer(spec), START, 12)
    first, resumed = trainer(spec), trainer(spec)
    arrays, _ = train(first, START, 5)
    resumed.restore(first.snapshot())
    assert resumed.position == 5
    assert equal(train(resumed, arrays, 7, done=5)[0], straight)
    assert equal(train(first, arrays, 7, done=5)[0], straight)


def test_reset_forgets_at_rounds_only():
    """With `reset` a new round starts from fresh moments, as a fresh optimiser does; the middle of a round does not."""
    spec = SMALL.model_copy(update={"inner_optimizer_state": "reset"})
    kept, reset, fresh, whole = trainer(), trainer(spec), trainer(spec), trainer(spec)
    arrays, _ = train(kept, START, 5)
    assert equal(train(reset, START, 5)[0], arrays)
    fresh.position = 5
    after_keep, after_reset, after_fresh = (train(t, arrays, 7, done=5)[0] for t in (kept, reset, fresh))
    assert not equal(after_reset, after_keep)
    assert equal(after_reset, after_fresh)
    train(whole, START, 5)
    assert equal(train(whole, arrays, 7, done=5, continued=True)[0], after_keep)


def test_learning_rate_follows_the_global_step():
    """At the end of the schedule nothing moves; in the middle a step differs from one at the beginning."""
    early, late, over = (train(trainer(), START, 1, done=done)[0] for done in (0, 80, 100))
    assert equal(over, START)
    assert not equal(early, late)
    sites, _ = trainer().train(START, steps=2, global_step=94, global_step_increment=6, schedule_steps=100)
    alone, _ = train(trainer(), START, 1, done=94)
    assert equal(sites, alone)  # the second step of one among six sites is at global step 100: the rate is zero


def test_proximal_term_pulls_back():
    """FedProx keeps sites nearer to the model their round began with."""

    def distance(mu):
        site = trainer()
        arrays, _ = train(site, START, 5, proximal_mu=mu)
        arrays, _ = train(site, arrays, 5, done=5, proximal_mu=mu, continued=True)
        return sum(float(np.square(arrays[name] - START[name]).sum()) for name in START)

    assert distance(10.0) < distance(0.0)


def test_evaluation_moves_nothing():
    """Held-out loss is the same at every call and leaves training as it was."""
    first, second = trainer(), trainer()
    arrays, _ = train(first, START, 5)
    train(second, START, 5)
    losses = [first.evaluate(arrays, TEXT[-3000:]) for _ in range(2)]
    assert losses[0] == losses[1] < UNTRAINED_LOSS
    assert first.evaluate(START, TEXT[-3000:]) == pytest.approx(UNTRAINED_LOSS)
    assert equal(train(first, arrays, 3, done=5)[0], train(second, arrays, 3, done=5)[0])


def test_no_steps_no_change():
    """A call without steps returns the weights it got, and does not count as data read."""
    site = trainer()
    arrays, losses = train(site, START, 0)
    assert equal(arrays, START)
    assert (losses, site.position, site.round_loss) == ([], 0, UNTRAINED_LOSS)


def test_other_weights_are_refused():
    """Weights of another model are named, not broadcast; float64 ones, as FedAdam makes them, are taken."""
    with pytest.raises(ValueError, match="expects the weights"):
        train(trainer(), {"w": np.zeros(3)}, 1)
    doubles = {name: value.astype(np.float64) for name, value in START.items()}
    assert equal(train(trainer(), doubles, 2)[0], train(trainer(), START, 2)[0])


def test_a_diverged_round_is_forgotten():
    """Weights that became infinite leave no trace in the moments of the next round."""
    site, fresh = trainer(), trainer()
    broken, _ = train(site, {**START, "head": np.full_like(START["head"], np.inf)}, 2)
    assert not all(np.isfinite(value).all() for value in broken.values())
    fresh.position = site.position
    assert equal(train(site, START, 3)[0], train(fresh, START, 3)[0])


def test_records_are_lossless():
    """Weights survive the way through Flower bit by bit."""
    record = to_record(START)
    assert isinstance(record, ArrayRecord)
    assert equal(from_record(record), START)
    assert equal(train(trainer(), record, 2)[0], train(trainer(), START, 2)[0])


def send(app, kind, **config):
    """A message to partition 1, as a strategy sends it."""
    content = RecordDict({"arrays": to_record(START), "config": ConfigRecord(config)})
    return app(Message(content, dst_node_id=1, message_type=kind), Context(1, 1, {"partition-id": 1}, RecordDict(), {}))


def test_client_app_trains():
    """A train message is answered with the trainer's weights, the given weight and the mean loss of the round."""
    site = trainer()
    app = client_app({0: trainer(site="y"), 1: site})
    clock = {"global-step": 0.0, "global-step-increment": 1.0, "schedule-steps": 100, "num-examples": 7000}
    idle = send(app, "train", **clock, **{"real-steps": 0})
    assert dict(idle.content["metrics"]) == {"num-examples": 7000, "loss": UNTRAINED_LOSS}
    assert equal(from_record(idle.content["arrays"]), START)
    reply = send(app, "train", **clock, **{"real-steps": 3, "server-round": 1})
    expected, losses = train(trainer(), START, 3)
    assert equal(from_record(reply.content["arrays"]), expected)
    assert site.last_losses == losses
    assert dict(reply.content["metrics"]) == {"num-examples": 7000, "loss": pytest.approx(np.mean(losses))}
    send(app, "train", **clock, **{"real-steps": 2, "continued": True})
    carried = send(app, "train", **clock, **{"real-steps": 0, "continued": True})
    assert carried.content["metrics"]["loss"] == pytest.approx(np.mean([*losses, *train_losses_after(3, 2)]))
    assert site.last_losses == []


def train_losses_after(done, steps):
    """Losses of steps from the initial weights, after a trainer has done some."""
    site = trainer()
    train(site, START, done)
    return site.train(START, steps=steps, global_step=0, global_step_increment=1, schedule_steps=100, continued=True)[1]


def test_client_app_evaluates():
    """An evaluate message is answered with the loss on the site's own held-out text."""
    reply = send(client_app({1: trainer()}), "evaluate")
    assert dict(reply.content["metrics"]) == {"num-examples": 256, "loss": pytest.approx(UNTRAINED_LOSS)}


def test_it_learns():
    """A hundred steps on Python's own text bring the held-out loss below the entropy of single bytes."""
    spec = GptLearner(corpus=PythonCorpus(source_limit_bytes=300_000))
    text = assemble(spec.corpus)
    shard = split(text, ["x"], spec.corpus, seed=0)["x"].training
    site = GptTrainer(spec, shard, "x", seed=0)
    arrays = initial_arrays(spec, seed=0)
    before = site.evaluate(arrays, text.validation)
    arrays, _ = train(site, arrays, 100)
    assert before == pytest.approx(UNTRAINED_LOSS)
    assert site.evaluate(arrays, text.validation) < byte_entropy(text.validation) - 0.3
