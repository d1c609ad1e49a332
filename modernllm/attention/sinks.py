"""Softmaxes whose weights add up to less than one: a query may attend to nothing."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Count


class ZeroSink(nn.Module):
    """exp(s_i) / (1 + sum_j exp(s_j)), the "softmax off by one"  (Miller, 2023)"""

    def forward(self, scores: Float[Tensor, "b h t s"]) -> Float[Tensor, "b h t s"]:
        return _softmax(scores, scores.new_zeros(scores.shape[1]))


class LearnedSink(nn.Module):
    """exp(s_i) / (exp(z_h) + sum_j exp(s_j)), a number z_h for every head  (gpt-oss, 2025)

    It starts as the sink of zero.
    """

    def __init__(self, n_heads: Count):
        super().__init__()
        self.logits = nn.Parameter(torch.zeros(n_heads))
        self.roles = {"logits": "bias"}

    def forward(self, scores: Float[Tensor, "b h t s"]) -> Float[Tensor, "b h t s"]:
        return _softmax(scores, self.logits.to(scores.dtype))


def _softmax(scores: Tensor, sink: Float[Tensor, " h"]) -> Tensor:
    """Over the keys and one more, which has no value."""
    more = sink[:, None, None].expand(*scores.shape[:3], 1)
    return torch.cat((scores, more), -1).softmax(-1)[..., :-1]
