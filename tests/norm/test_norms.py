"""Norms against their formulas, in low precision, and at the edges (F-12)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from modernllm.norm.layernorm import LayerNorm
from modernllm.norm.rmsnorm import RMSNorm

NORMS = [LayerNorm, RMSNorm]


def layernorm(x: list[float], gain: list[float], bias: list[float], eps: float) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((xi - mean) ** 2 for xi in x) / len(x)
    return [g * (xi - mean) / math.sqrt(variance + eps) + b for xi, g, b in zip(x, gain, bias, strict=True)]


def rmsnorm(x: list[float], gain: list[float], eps: float) -> list[float]:
    square = sum(xi**2 for xi in x) / len(x)
    return [g * xi / math.sqrt(square + eps) for xi, g in zip(x, gain, strict=True)]


def spread(module: nn.Module) -> nn.Module:
    """Gains and biases that are not those of the start."""
    for p in module.parameters():
        nn.init.normal_(p, 0.5)
    return module


def test_layernorm_is_its_formula() -> None:
    norm = spread(LayerNorm(7, eps=1e-3).double())
    x = 3 + 2 * torch.randn(2, 3, 7, dtype=torch.float64)
    gain, bias = norm.get_parameter("gain").tolist(), norm.get_parameter("bias").tolist()
    expected = [[layernorm(row, gain, bias, 1e-3) for row in rows] for rows in x.tolist()]
    torch.testing.assert_close(norm(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rmsnorm_is_its_formula() -> None:
    norm = spread(RMSNorm(7, eps=1e-3).double())
    x = 3 + 2 * torch.randn(2, 3, 7, dtype=torch.float64)
    expected = [
        [rmsnorm(row, norm.get_parameter("gain").tolist(), 1e-3) for row in rows] for rows in x.tolist()
    ]
    torch.testing.assert_close(norm(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_rmsnorm_is_layernorm_where_the_mean_is_zero() -> None:
    x = torch.randn(5, 16, dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    torch.testing.assert_close(RMSNorm(16, eps=1e-6).double()(x), LayerNorm(16, eps=1e-6).double()(x))


@pytest.mark.parametrize("gains", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.05, 1e-4])
@pytest.mark.parametrize("norm", NORMS)
def test_bfloat16_is_within_a_hundredth(norm: type, scale: float, gains: torch.dtype) -> None:
    """Of the same numbers in float32; the dtype of what went in comes out, whatever that of the gain."""
    x = (scale * torch.randn(64, 96)).bfloat16()
    y, expected = norm(96).to(gains)(x), norm(96)(x.float())
    assert y.dtype == torch.bfloat16
    assert norm(96)(x.float()).dtype == torch.float32
    assert float((y.float() - expected).detach().norm() / expected.detach().norm()) < 0.01


@pytest.mark.parametrize("norm", NORMS)
def test_zeros_stay_zeros(norm: type) -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    y = norm(8)(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros(2, 8))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm", NORMS)
def test_eps_reaches_the_layer(norm: type) -> None:
    x = torch.tensor([[1e-3, -1e-3]])
    expected: list[Tensor] = [
        1e-3 / (1e-6 + eps) ** 0.5 * torch.tensor([[1.0, -1.0]]) for eps in (1e-6, 1e-2)
    ]
    torch.testing.assert_close(norm(2, eps=1e-6)(x).detach(), expected[0])
    torch.testing.assert_close(norm(2, eps=1e-2)(x).detach(), expected[1])


@pytest.mark.parametrize("norm", NORMS)
def test_the_scale_of_the_input_does_not_matter(norm: type) -> None:
    x = torch.randn(4, 32, dtype=torch.float64)
    module = spread(norm(32, eps=1e-12).double())
    torch.testing.assert_close(module(1000 * x), module(x), rtol=0, atol=1e-9)
