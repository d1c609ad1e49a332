"""Components with a fault that a preflight has to find."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from modernllm.attention.multi_head import MultiHeadAttention
from modernllm.context import Context
from modernllm.data.windows import Windows
from modernllm.init import FanIn, named_generator
from modernllm.linear import parameter_roles
from modernllm.position import NoPosition


class Peeking(MultiHeadAttention):
    """A tenth of the next token's input is added"""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        y = super().forward(x, context)
        return y + 0.1 * torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)


class PeekingInTraining(Peeking):
    """As Peeking, in training only"""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        return super().forward(x, context) if self.training else MultiHeadAttention.forward(self, x, context)


class PeekingOnce(MultiHeadAttention):
    """Position 20 sees position 21, no other sees what comes"""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        y = super().forward(x, context)
        return torch.cat((y[:, :20], y[:, 20:21] + 1e-3 * x[:, 21:22], y[:, 21:]), 1)


class Deaf(MultiHeadAttention):
    """Takes `strength` and does nothing with it"""

    def __init__(
        self,
        dim: int,
        n_heads: int,
        n_kv_heads: int | None,
        head_dim: int,
        layer: int,
        position: NoPosition,
        bias: bool,
        dropout: float,
        qk_norm: Callable[..., nn.Module],
        strength: float,
    ):
        super().__init__(dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm)


class WithSpare(MultiHeadAttention):
    """Has a matrix that nothing uses"""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.spare = nn.Parameter(torch.ones(3, 3))


class OneStream(FanIn):
    """All parameters from one generator, in order: a parameter more shifts all after it"""

    def __call__(self, model: nn.Module, seed: int) -> None:
        generator = named_generator(seed, "all")
        for _, parameter, _ in parameter_roles(model):
            with torch.no_grad():
                parameter.normal_(0, parameter.shape[-1] ** -0.5, generator=generator)


class SeedBlind(FanIn):
    """The same start for every seed"""

    def __call__(self, model: nn.Module, seed: int) -> None:
        super().__call__(model, 0)


class WindowsAfterModel(Windows):
    """Draws its seed where the building of the model left off"""

    def __init__(self, *args: Any, **kwargs: Any):
        super().__init__(*args, **kwargs)
        self.seed = int(torch.randint(2**31, ()))


class WindowsForAll(Windows):
    """The same batches for every seed"""

    def starts(self, step: int) -> np.ndarray:
        self.seed = 0
        return super().starts(step)


class PeekingFaintly(MultiHeadAttention):
    """1e-9 of the next token's input is added"""

    def forward(self, x: Tensor, context: Context) -> Tensor:
        y = super().forward(x, context)
        return y + 1e-9 * torch.cat((x[:, 1:], torch.zeros_like(x[:, :1])), 1)


class Bag(nn.Module):
    """A model of other hands: logits from the mean of all tokens so far if `causal`, else of all"""

    def __init__(
        self,
        vocab_size: int,
        context_length: int,
        dim: int,
        n_layers: int,
        n_heads: int,
        causal: bool = True,
        frozen: bool = False,
    ):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, dim), nn.Linear(dim, vocab_size)
        self.causal = causal
        self.embed.weight.requires_grad_(not frozen)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens)
        counts = torch.arange(1, 1 + x.shape[1])[:, None]
        return self.head(x.cumsum(1) / counts if self.causal else x.mean(1, keepdim=True) + 0 * x)


class Blank(nn.Module):
    """The same logits for everything"""

    def __init__(self, vocab_size: int, context_length: int, dim: int, n_layers: int, n_heads: int):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab_size, dim), nn.Linear(dim, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(torch.ones_like(self.embed(tokens)))
