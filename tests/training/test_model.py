"""The model: what it starts from, what it may look at, and one vector behind all parameters."""

import math

import pytest
import torch

from curtailsim.training.model import Gpt, share_storage
from curtailsim.training.specs import GptLearner, LrSchedule

SPEC = GptLearner()


def windows(*shape):
    """Reproducible byte values."""
    return torch.randint(256, shape, generator=torch.Generator().manual_seed(0))


def test_size_and_first_loss():
    """The default model has 131,072 weights and starts by finding all bytes equally likely."""
    model = Gpt(SPEC, seed=0)
    assert sum(weight.numel() for weight in model.parameters()) == 131_072
    assert model.loss(windows(4, 65)).item() == pytest.approx(math.log(256), abs=1e-6)


def test_seed_decides_weights():
    """Weights come from the seed alone; the global generator is neither read nor moved."""
    state = torch.get_rng_state()
    first, second, other = (Gpt(SPEC, seed) for seed in (1, 1, 2))
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    assert not torch.equal(first.embedding, other.embedding)


def test_no_position_sees_what_follows():
    """Changing a byte changes the logits from its position on, and order matters."""
    model = Gpt(SPEC, seed=0)
    for weight in model.parameters():
        torch.nn.init.normal_(weight, std=0.1, generator=torch.Generator().manual_seed(weight.numel()))
    text = windows(1, 12)
    changed = text.clone()
    changed[0, 5] = (changed[0, 5] + 1) % 256
    with torch.no_grad():
        before, after, swapped = model(text), model(changed), model(text[:, [1, 0, *range(2, 12)]])
    assert torch.equal(before[:, :5], after[:, :5])
    assert not torch.allclose(before[:, 5:], after[:, 5:])
    assert not torch.allclose(before[:, 2:], swapped[:, 2:])


def test_parameters_share_one_vector():
    """The vector is the model: its gradient is the parameters' gradients, its numbers are theirs."""
    plain, shared = Gpt(SPEC, seed=0), Gpt(SPEC, seed=0)
    vector = share_storage(shared)
    for model in (plain, shared):
        model.loss(windows(2, 17)).backward()
    assert vector.grad is not None
    assert torch.equal(vector.grad, torch.cat([weight.grad.flatten() for weight in plain.parameters()]))
    with torch.no_grad():
        vector.zero_()
    assert all(not weight.any() for weight in shared.parameters())


@pytest.mark.parametrize(
    ("schedule", "expected"),
    [
        ({}, {0: 1, 0.6: 1, 0.8: 0.5, 1: 0, 1.5: 0}),
        ({"warmup_share": 0.2, "final_factor": 0.1}, {0: 0, 0.1: 0.5, 0.2: 1, 0.6: 1, 0.8: 0.55, 1: 0.1, 2: 0.1}),
        ({"clamp": False}, {0.8: 0.5, 1: 0, 1.2: -0.5}),
    ],
    ids=["default", "warmup", "unclamped"],
)
def test_schedule(schedule, expected):
    """The learning-rate factor at hand-computed points."""
    factor = LrSchedule(**schedule).factor
    assert {progress: factor(progress) for progress in expected} == pytest.approx(expected)
