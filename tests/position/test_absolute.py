"""Positions that are added to the embedding: sinusoidal and learned; and none (F-23)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import nn

from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.learned import Learned
from modernllm.position.sinusoidal import Sinusoidal


@pytest.mark.parametrize("dim", [5, 7, 8, 33])
def test_sinusoidal_is_its_formula(dim: int) -> None:
    position = Sinusoidal(dim, 1, dim, 32, base=100.0).bfloat16()
    positions = torch.tensor([[0, 1, 2, 3], [7, 0, 500, 1000]])
    x = torch.randn(2, 4, dim)
    context = Context(positions=positions)
    position.prepare(context)
    expected = [
        [[(math.cos if j % 2 else math.sin)(p / 100.0 ** ((j - j % 2) / dim)) for j in range(dim)] for p in row]
        for row in positions.tolist()
    ]
    torch.testing.assert_close(position.embed(x, context), x + torch.tensor(expected), rtol=0, atol=2e-4)
    assert position.embed(x.bfloat16(), context).dtype == torch.bfloat16


def test_learned_adds_the_vector_of_the_position() -> None:
    position = Learned(6, 1, 6, 32)
    nn.init.normal_(position.table)
    x, positions = torch.randn(2, 3, 6), torch.tensor([[0, 1, 2], [9, 31, 0]])
    context = Context(positions=positions)
    position.prepare(context)
    expected = [[x[b, t] + position.table[positions[b, t]] for t in range(3)] for b in range(2)]
    assert torch.equal(position.embed(x, context), torch.stack([torch.stack(row) for row in expected]))


def test_learned_says_where_its_table_ends() -> None:
    position = Learned(6, 1, 6, 8)
    fits = Context(positions=torch.arange(8)[None])
    assert position.embed(torch.zeros(1, 8, 6), fits).shape == (1, 8, 6)
    with pytest.raises(ValueError, match=r"position=learned has 8 positions and met 9: .*context_length"):
        position.embed(torch.zeros(1, 9, 6), Context(positions=torch.arange(9)[None]))
    with pytest.raises(ValueError, match=r"position=learned has 8 positions and met 13: "):
        position.embed(torch.zeros(1, 1, 6), Context(positions=torch.tensor([[12]]), states=[]))


@pytest.mark.parametrize("kind", [NoPosition, Sinusoidal, Learned])
def test_queries_keys_and_scores_are_left_alone(kind: type[NoPosition]) -> None:
    position, context = kind(8, 2, 4, 32), Context(positions=torch.arange(5)[None])
    position.prepare(context)
    q, k = torch.randn(1, 2, 5, 4), torch.randn(1, 1, 5, 4)
    assert position.rotate(q, k, context) == (q, k)
    assert position.bias(context) is None
    assert position.at(3) is position


def test_no_position_is_nothing() -> None:
    x = torch.randn(1, 5, 8)
    assert NoPosition(8, 2, 4, 32).embed(x, Context(positions=torch.arange(5)[None])) is x
    assert list(NoPosition(8, 2, 4, 32).parameters()) == []
