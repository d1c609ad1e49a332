"""Feed-forwards against loops over their hidden units."""

from __future__ import annotations

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from modernllm.activation.feedforward import FeedForward
from modernllm.activation.gated import GatedFeedForward
from modernllm.context import Context

CONTEXT = Context(positions=torch.arange(5)[None])

SCALARS: dict[type[nn.Module], Callable[[float], float]] = {
    nn.ReLU: lambda u: max(0.0, u),
    nn.GELU: lambda u: u * (1 + math.erf(u / math.sqrt(2))) / 2,
    nn.SiLU: lambda u: u / (1 + math.exp(-u)),
}


def affine(module: nn.Module, x: list[float]) -> list[float]:
    weight, bias = module.get_parameter("weight").tolist(), module.get_parameter("bias").tolist()
    return [
        sum(w * xi for w, xi in zip(row, x, strict=True)) + b for row, b in zip(weight, bias, strict=True)
    ]


@pytest.mark.parametrize("act", SCALARS)
@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_the_formula(kind: type[FeedForward] | type[GatedFeedForward], act: type[nn.Module]) -> None:
    feedforward = kind(3, 5, bias=True, dropout=0.0, act=act).double()
    x = 2 * torch.randn(2, 4, 3, dtype=torch.float64)
    f = SCALARS[act]

    def row(x: list[float]) -> list[float]:
        up = affine(feedforward.up, x)
        if isinstance(feedforward, GatedFeedForward):
            gate = affine(feedforward.gate, x)
            return affine(feedforward.out, [f(g) * u for g, u in zip(gate, up, strict=True)])
        return affine(feedforward.out, [f(u) for u in up])

    expected = torch.tensor([[row(t) for t in b] for b in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(feedforward(x, CONTEXT), expected, rtol=0, atol=1e-12)


def n_parameters(kind: type[FeedForward] | type[GatedFeedForward], dim: int) -> int:
    return sum(p.numel() for p in kind(dim, None, bias=False, dropout=0.0, act=nn.SiLU).parameters())


@pytest.mark.parametrize("dim", [3, 6, 96, 192, 768])
def test_two_and_three_matrices_have_as_many_parameters(dim: int) -> None:
    assert n_parameters(FeedForward, dim) == n_parameters(GatedFeedForward, dim) == 8 * dim**2


@pytest.mark.parametrize("dim", [8, 32, 64, 128, 512, 1000])
def test_and_nearly_as_many_where_three_does_not_divide(dim: int) -> None:
    """8/3 d rounded to a multiple of 8 is off by 4 hidden units at most."""
    assert abs(n_parameters(GatedFeedForward, dim) - n_parameters(FeedForward, dim)) <= 4 * 3 * dim
    assert n_parameters(GatedFeedForward, dim) % (8 * 3 * dim) == 0


@pytest.mark.parametrize("kind", [FeedForward, GatedFeedForward])
def test_hidden_and_bias_are_obeyed(kind: type[FeedForward] | type[GatedFeedForward]) -> None:
    feedforward = kind(4, 7, bias=False, dropout=0.0, act=nn.ReLU)
    assert feedforward.up.weight.shape == (7, 4)
    assert feedforward.out.weight.shape == (4, 7)
    assert {name for name, _ in feedforward.named_parameters() if name.endswith("bias")} == set()


def test_a_gate_that_is_open_leaves_the_product() -> None:
    """With relu and a gate of one, the gated feed-forward is linear: W_out W_up x."""
    gated = GatedFeedForward(4, 6, bias=True, dropout=0.0, act=nn.ReLU)
    nn.init.zeros_(gated.gate.weight)
    nn.init.ones_(gated.gate.bias)
    x = torch.randn(1, 5, 4)
    torch.testing.assert_close(gated(x, CONTEXT), gated.out(gated.up(x)))
