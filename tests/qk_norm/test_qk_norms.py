"""Norms of queries and keys against loops, and what they are for: the size of a query does not matter."""

from __future__ import annotations

import math
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from modernllm.attention.multi_head import GroupedQueryAttention
from modernllm.context import Context
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.position import NoPosition
from modernllm.qk_norm.head import HeadNorm
from modernllm.qk_norm.qkv import QKVNorm
from modernllm.qk_norm.width import WidthNorm

EPS = 1e-3
KINDS = [HeadNorm, WidthNorm, QKVNorm]


def rms(x: Tensor) -> float:
    return math.sqrt(float(x.pow(2).mean()) + EPS)


@pytest.mark.parametrize("kind", KINDS)
def test_the_formula(kind: type[HeadNorm] | type[WidthNorm] | type[QKVNorm]) -> None:
    """A head is divided by its own size, or by that of all heads; the gain is as long as what is normed."""
    module = kind(partial(RMSNorm, eps=EPS), 3, 4).double()
    gain = module.get_parameter("norm.gain")
    nn.init.normal_(gain)
    x, expected = torch.randn(2, 3, 5, 4, dtype=torch.float64), torch.zeros(2, 3, 5, 4, dtype=torch.float64)
    for b in range(2):
        for t in range(5):
            for h in range(3):
                size = rms(x[b, :, t]) if kind is WidthNorm else rms(x[b, h, t])
                entries = gain[4 * h : 4 * h + 4] if kind is WidthNorm else gain
                expected[b, h, t] = x[b, h, t] / size * entries.detach()
    assert gain.shape == ((12,) if kind is WidthNorm else (4,))
    torch.testing.assert_close(module(x), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", [*KINDS, nn.Identity])
def test_the_size_of_queries_does_not_matter(kind: type[nn.Module]) -> None:
    """Nor that of keys; without a norm it does."""
    qk_norm = nn.Identity if kind is nn.Identity else partial(kind, partial(RMSNorm, eps=1e-12))
    attention = GroupedQueryAttention(12, 4, 2, 6, 0, NoPosition(12, 4, 6, 7), bias=False, dropout=0.0, qk_norm=qk_norm)
    x, context = torch.randn(2, 7, 12), Context(positions=torch.arange(7)[None])
    before = attention(x, context)
    with torch.no_grad():
        attention.q.weight *= 10
        attention.k.weight *= 10
    change = float((attention(x, context) - before).detach().abs().max())
    assert change > 1e-2 if kind is nn.Identity else change < 1e-5


@pytest.mark.parametrize("kind", [*KINDS, nn.Identity])
def test_values_are_normed_where_the_choice_says_so(kind: type[nn.Module]) -> None:
    """With queries and keys only, ten times the values are ten times the output."""
    qk_norm = nn.Identity if kind is nn.Identity else partial(kind, partial(RMSNorm, eps=1e-12))
    attention = GroupedQueryAttention(12, 4, 2, 6, 0, NoPosition(12, 4, 6, 7), bias=False, dropout=0.0, qk_norm=qk_norm)
    x, context = torch.randn(2, 7, 12), Context(positions=torch.arange(7)[None])
    before = attention(x, context)
    with torch.no_grad():
        attention.v.weight *= 10
    torch.testing.assert_close(attention(x, context), before if kind is QKVNorm else 10 * before)
