"""Blocks against their equations, with sublayers that are easy to write out."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn

from modernllm.block.parallel import ParallelBlock
from modernllm.block.serial import SerialBlock
from modernllm.context import Context
from modernllm.placement import Placement
from modernllm.placement.post import PostNorm
from modernllm.placement.pre import PreNorm

CONTEXT = Context(positions=torch.arange(5)[None])


class Sine(nn.Module):
    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert context is CONTEXT
        return x.sin()


class Square(nn.Module):
    def forward(self, x: Tensor, context: Context) -> Tensor:
        assert context is CONTEXT
        return x**2


def norm() -> nn.Module:
    return nn.LayerNorm(8, eps=0.0, dtype=torch.float64)


def make(kind: type[SerialBlock] | type[ParallelBlock], placement: type[Placement]) -> SerialBlock | ParallelBlock:
    sublayers: dict[str, nn.Module] = {"attention": Sine(), "feedforward": Square()}
    return kind(sublayers, partial(placement, norm, nn.Identity, 2, 0))


def n(x: Tensor) -> Tensor:
    return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


def serial_pre(x: Tensor) -> Tensor:
    x = x + n(x).sin()
    return x + n(x) ** 2


def serial_post(x: Tensor) -> Tensor:
    x = n(x + x.sin())
    return n(x + x**2)


def parallel_pre(x: Tensor) -> Tensor:
    return x + n(x).sin() + n(x) ** 2


def parallel_post(x: Tensor) -> Tensor:
    return n(x + x.sin() + x**2)


@pytest.mark.parametrize(
    ("kind", "placement", "equation"),
    [
        (SerialBlock, PreNorm, serial_pre),
        (SerialBlock, PostNorm, serial_post),
        (ParallelBlock, PreNorm, parallel_pre),
        (ParallelBlock, PostNorm, parallel_post),
    ],
)
def test_the_equation(kind, placement, equation) -> None:
    x, block = torch.randn(2, 5, 8, dtype=torch.float64), make(kind, placement)
    assert block.open(x) is x
    torch.testing.assert_close(block(x, CONTEXT), equation(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize(("kind", "n_joins"), [(SerialBlock, 2), (ParallelBlock, 1)])
def test_a_join_for_each_sublayer_or_one_for_all(kind, n_joins: int) -> None:
    block = make(kind, PreNorm)
    assert sum(isinstance(module, nn.LayerNorm) for module in block.modules()) == n_joins
    assert list(block.sublayers) == ["attention", "feedforward"]
