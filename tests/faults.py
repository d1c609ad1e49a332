"""Modules that make something that is not finite, each in its own way, once they are armed."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from modernllm.norm.rmsnorm import RMSNorm


class Fault(nn.Module):
    """x -> x until `armed`."""

    def __init__(self):
        super().__init__()
        self.armed = False

    def forward(self, x: Tensor) -> Tensor:
        return self.trouble(x) if self.armed else x

    def trouble(self, x: Tensor) -> Tensor:
        raise NotImplementedError


class Overflow(Fault):
    """x^2 / mean(x^2) in fp16, whose squares end at 65504: inf / inf."""

    def trouble(self, x: Tensor) -> Tensor:
        squares = (512 * x).half().square()
        return (squares / squares.mean(-1, keepdim=True)).to(x.dtype)


class LogOfZero(Fault):
    """0 log 0"""

    def trouble(self, x: Tensor) -> Tensor:
        p = torch.relu(x - 1e6)
        return x + p * p.log()


class Division(Fault):
    """x / 0"""

    def trouble(self, x: Tensor) -> Tensor:
        return x / torch.relu(x - 1e6)


class RootOfZero(Fault):
    """sqrt(0), whose derivative is infinite."""

    def trouble(self, x: Tensor) -> Tensor:
        return x + (0 * x).sqrt()


class MaskedRow(Fault):
    """A softmax by hand, zero in rows that may see nothing: NaN times 0 in the backward pass."""

    def trouble(self, x: Tensor) -> Tensor:
        blind = torch.zeros(x.shape[:2], dtype=torch.bool, device=x.device)
        blind[:, 3] = True
        scores = x + torch.zeros_like(x).masked_fill(blind[..., None], float("-inf"))
        exponentials = (scores - scores.amax(-1, keepdim=True).detach()).exp()
        weights = exponentials / exponentials.sum(-1, keepdim=True)
        return x + torch.where(blind[..., None], 0.0, weights)


class MaskedRowOfOurs(Fault):
    """The same with torch's softmax: NaN in the forward pass already."""

    def trouble(self, x: Tensor) -> Tensor:
        scores = x.masked_fill(torch.ones_like(x, dtype=torch.bool), float("-inf"))
        return x + scores.softmax(-1)


class DriftingNorm(RMSNorm):
    """An RMSNorm that overflows in fp16 once its gain has moved."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        moved = (self.gain.detach() != 1).any()
        return y + (y * moved * 1e6).half()


class Bigram(nn.Module):
    """A table from token to logits that takes the logarithm of zero."""

    def __init__(self, vocab_size: int, context_length: int, dim: int, n_layers: int, n_heads: int):
        super().__init__()
        self.table = nn.Embedding(vocab_size, vocab_size)

    def forward(self, tokens: Tensor) -> Tensor:
        logits = self.table(tokens)
        return logits + (0 * logits).log()


class RootNorm(RMSNorm):
    """An RMSNorm whose derivative is infinite."""

    def forward(self, x: Tensor) -> Tensor:
        y = super().forward(x)
        return y + (0 * y).sqrt()
