"""Rotary positions against complex numbers (F-01, F-02)."""

from __future__ import annotations

import cmath

import pytest
import torch
from torch import Tensor

from modernllm.context import Context
from modernllm.position.rope import RoPE


def context(position: RoPE, positions: Tensor) -> Context:
    made = Context(positions=positions)
    position.prepare(made)
    return made


def turned(x: list[float], p: int, base: float) -> list[float]:
    """The pair (x_2i, x_2i+1) as one complex number, turned by p base^(-2i/k)."""
    turned = [
        complex(x[j], x[j + 1]) * cmath.exp(1j * p * base ** (-j / len(x))) for j in range(0, len(x), 2)
    ]
    return [part for pair in turned for part in (pair.real, pair.imag)]


def rotate(x: Tensor, positions: Tensor, base: float = 10_000.0) -> Tensor:
    position = RoPE(64, 4, x.shape[-1], 32, base)
    q, k = position.rotate(x, x[:, :1], context(position, positions))
    torch.testing.assert_close(q[:, :1], k, rtol=0, atol=1e-6)
    return q


@pytest.mark.parametrize("base", [10_000.0, 500.0])
@pytest.mark.parametrize("shape", [(2, 4, 4, 8), (1, 3, 7, 6), (2, 2, 1, 2)], ids=str)
def test_the_formula(shape: tuple[int, ...], base: float) -> None:
    """Also with as many heads as tokens, where turning along the wrong axis would not raise."""
    x = torch.randn(shape, dtype=torch.float64)
    positions = torch.stack([torch.arange(shape[2]) + 5 * row for row in range(shape[0])])
    expected = [
        [[turned(k, int(p), base) for k, p in zip(head, row, strict=True)] for head in heads]
        for heads, row in zip(x.tolist(), positions.tolist(), strict=True)
    ]
    expected = torch.tensor(expected, dtype=torch.float64)
    torch.testing.assert_close(rotate(x, positions, base), expected, rtol=0, atol=1e-5)


def test_one_row_of_positions_stands_for_all() -> None:
    x, steps = torch.randn(3, 2, 5, 8), torch.arange(5)
    assert torch.equal(rotate(x, steps[None]), rotate(x, steps.expand(3, -1)))


def test_lengths_are_kept_and_the_first_position_is_not_turned() -> None:
    x = torch.randn(2, 4, 100, 16)
    y = rotate(x, torch.arange(100)[None])
    torch.testing.assert_close(y.norm(dim=-1), x.norm(dim=-1), rtol=1e-6, atol=0)
    assert torch.equal(y[:, :, 0], x[:, :, 0])
    assert float((y - x)[:, :, 1:].abs().amax(-1).min()) > 1e-3


@pytest.mark.parametrize(("m", "n"), [(0, 0), (3, 1), (17, 40), (100, 98)])
def test_scores_depend_on_the_distance_alone(m: int, n: int) -> None:
    q, k = torch.randn(2, 1, 1, 1, 32, dtype=torch.float64)

    def score(m: int, n: int) -> float:
        return float((rotate(q, torch.tensor([[m]])) * rotate(k, torch.tensor([[n]]))).sum())

    assert score(m + 200, n + 200) == pytest.approx(score(m, n), abs=1e-4)
    assert abs(score(m + 1, n) - score(m, n)) > 1e-2


def test_the_table_is_precise_after_a_cast_to_bfloat16() -> None:
    """1024 positions, heads of 64: phases made in bf16 are off by almost 2, and positions fall together."""
    position = RoPE(64, 1, 64, 1024).bfloat16()
    turns = position.turns(torch.arange(1024)[None])[0, 0]
    phases = [[p * 10_000.0 ** (-2 * i / 64) for i in range(32)] for p in range(1024)]
    expected = torch.tensor([[cmath.exp(1j * phase) for phase in row] for row in phases])
    assert float((turns - expected).abs().max()) < 2e-4
    assert len(torch.view_as_real(turns).flatten(1).unique(dim=0)) == 1024
    x = torch.randn(1, 1, 1024, 64).bfloat16()
    y, _ = position.rotate(x, x, context(position, torch.arange(1024)[None]))
    assert y.dtype == torch.bfloat16
    exact = rotate(x.double(), torch.arange(1024)[None])
    assert float((y.double() - exact).norm() / exact.norm()) < 0.01


def test_odd_heads_are_refused() -> None:
    with pytest.raises(ValueError, match=r"position=rope .* model\.head_dim=7 is odd; .*model\.n_heads"):
        RoPE(28, 4, 7, 32)
