"""A small GPT over bytes, made to be trained on one processor core."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from curtailsim.training.specs import GptLearner

VOCABULARY = 256
ROTARY_BASE = 1000.0
"""Longest wavelength of the rotary positions over 2 pi; short, because the windows are. [byte]"""


class Block(nn.Module):
    """One pre-norm transformer block without biases: attention, then a GELU network four times as wide.

    Both output projections start at zero, so that an untrained block passes its input through.

    Args:
        width: Length of the residual stream.
        heads: Attention heads.
        generator: Source of the initial weights.

    Shapes:
        x (B, T, WIDTH), rotation (T, 1, WIDTH / HEADS / 2), complex.
    """

    def __init__(self, width: int, heads: int, generator: torch.Generator) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = _uniform(3 * width, width, generator)
        self.out = nn.Parameter(torch.zeros(width, width))
        self.up = _uniform(4 * width, width, generator)
        self.down = nn.Parameter(torch.zeros(width, 4 * width))

    def forward(self, x: Tensor, rotation: Tensor) -> Tensor:
        """Add what attention and the network have to say to the residual stream."""
        x = x + F.linear(self._attend(_norm(x), rotation), self.out)
        return x + F.linear(F.gelu(F.linear(_norm(x), self.up)), self.down)

    def _attend(self, x: Tensor, rotation: Tensor) -> Tensor:
        heads, size = self.heads, x.shape[-1] // self.heads
        # split, not slices: their gradients are joined in one copy instead of being added to zeros
        qk, v = F.linear(x, self.qkv).unflatten(-1, (3 * heads, size)).split([2 * heads, heads], dim=-2)
        turned = torch.view_as_complex(qk.unflatten(-1, (size // 2, 2))) * rotation
        q, k = torch.view_as_real(turned).flatten(-2).chunk(2, dim=-2)
        y = F.scaled_dot_product_attention(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2), is_causal=True)
        return y.transpose(1, 2).flatten(-2)


class Gpt(nn.Module):
    """Byte-level GPT with rotary positions, norms without parameters and an untied head that starts at zero.

    The zero head makes the first loss exactly ln 256 = 5.545 nats per byte: every byte is equally likely.

    Args:
        spec: Sizes of the model.
        seed: Seed of the initial weights; PyTorch's global generator is left alone.

    Shapes:
        windows (B, T) of byte values -> logits (B, T, 256), T up to `sequence_bytes`.

    References:
        Radford et al., Language models are unsupervised multitask learners, 2019.
        Su et al., RoFormer: Enhanced transformer with rotary position embedding, 2021. arXiv:2104.09864
    """

    rotation: Tensor

    def __init__(self, spec: GptLearner, seed: int) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        self.embedding = nn.Parameter(torch.empty(VOCABULARY, spec.width).normal_(generator=generator))
        self.blocks = nn.ModuleList(Block(spec.width, spec.heads, generator) for _ in range(spec.layers))
        self.head = nn.Parameter(torch.zeros(VOCABULARY, spec.width))
        self.register_buffer("rotation", _rotation(spec.sequence_bytes, spec.width // spec.heads), persistent=False)

    def forward(self, windows: Tensor) -> Tensor:
        """Logits of the byte that follows each position."""
        x = F.embedding(windows, self.embedding)
        rotation = self.rotation[: windows.shape[1]]
        for block in self.blocks:
            x = block(x, rotation)
        return F.linear(_norm(x), self.head)

    def loss(self, windows: Tensor) -> Tensor:
        """Mean cross-entropy, in nats, of predicting each byte of windows (B, T + 1) from those before it."""
        return F.cross_entropy(self(windows[:, :-1]).flatten(0, 1), windows[:, 1:].flatten())


def share_storage(model: nn.Module) -> nn.Parameter:
    """Move all parameters of a model, and their gradients, into one vector of N numbers.

    The parameters become views of the vector. Clipping, optimiser and checkpoints then deal with one tensor, which
    saves many small kernels per step.

    Returns:
        The vector (N); its `grad` is what a backward pass adds to.
    """
    parameters = list(model.parameters())
    vector = nn.Parameter(torch.cat([p.detach().flatten() for p in parameters]))
    vector.grad = torch.zeros_like(vector)
    sizes = [p.numel() for p in parameters]
    for parameter, value, grad in zip(parameters, vector.detach().split(sizes), vector.grad.split(sizes), strict=True):
        parameter.data = value.view_as(parameter)
        parameter.grad = grad.view_as(parameter)
    return vector


def _norm(x: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:])


def _uniform(rows: int, columns: int, generator: torch.Generator) -> nn.Parameter:
    """Weights that keep the variance of a normed input."""
    bound = (3 / columns) ** 0.5
    return nn.Parameter(torch.empty(rows, columns).uniform_(-bound, bound, generator=generator))


def _rotation(positions: int, size: int) -> Tensor:
    """Unit complex numbers (POSITIONS, 1, SIZE / 2) that turn a head's pairs by position."""
    frequencies = ROTARY_BASE ** (-torch.arange(0, size, 2) / size)
    angles = torch.outer(torch.arange(positions, dtype=torch.float32), frequencies)
    return torch.polar(torch.ones_like(angles), angles).unsqueeze(1)
