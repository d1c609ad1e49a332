"""Norms against their formulas, in low precision, and at the edges (F-12)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from torch import Tensor, nn

from modernllm.norm.dyt import DynamicTanh
from modernllm.norm.layernorm import LayerNorm
from modernllm.norm.layernorm_nobias import LayerNormNoBias
from modernllm.norm.nonparametric import NonParametric
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.norm.scalenorm import ScaleNorm

EPS = 1e-3


def standard(x: list[float]) -> list[float]:
    mean = sum(x) / len(x)
    variance = sum((xi - mean) ** 2 for xi in x) / len(x)
    return [(xi - mean) / math.sqrt(variance + EPS) for xi in x]


def over_rms(x: list[float]) -> list[float]:
    return [xi / math.sqrt(sum(xj**2 for xj in x) / len(x) + EPS) for xi in x]


FORMULAS: dict[type[nn.Module], Callable[..., float]] = {
    LayerNorm: lambda x, i, gain, bias: gain[i] * standard(x)[i] + bias[i],
    LayerNormNoBias: lambda x, i, gain: gain[i] * standard(x)[i],
    NonParametric: lambda x, i: standard(x)[i],
    RMSNorm: lambda x, i, gain: gain[i] * over_rms(x)[i],
    ScaleNorm: lambda x, i, scale: scale[0] * x[i] / math.sqrt(sum(xj**2 for xj in x) + len(x) * EPS),
    DynamicTanh: lambda x, i, scale, gain, bias: gain[i] * math.tanh(scale[0] * x[i]) + bias[i],
}
"""Of one vector x, entry i of the norm; the parameters by their names."""

NORMS: list[type[nn.Module]] = list(FORMULAS)
WITH_EPS = [norm for norm in NORMS if norm is not DynamicTanh]
MAKE: dict[type[nn.Module], Callable[[int], nn.Module]] = {
    norm: partial(norm, eps=EPS) if norm in WITH_EPS else norm for norm in NORMS
}


def spread(module: nn.Module) -> nn.Module:
    """Gains and biases that are not those of the start."""
    for p in module.parameters():
        nn.init.normal_(p, 0.5)
    return module


@pytest.mark.parametrize("norm", NORMS)
def test_the_formula(norm: type[nn.Module]) -> None:
    module = spread(MAKE[norm](7).double())
    parameters = {name: p.tolist() for name, p in module.named_parameters()}
    x = 3 + 2 * torch.randn(2, 3, 7, dtype=torch.float64)
    expected = [[[FORMULAS[norm](row, i, **parameters) for i in range(7)] for row in rows] for rows in x.tolist()]
    torch.testing.assert_close(module(x), torch.tensor(expected, dtype=torch.float64), rtol=0, atol=1e-12)


def test_where_the_mean_is_zero_the_standard_deviation_is_the_rms() -> None:
    x = torch.randn(5, 16, dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    expected = RMSNorm(16, eps=EPS).double()(x)
    for norm in (LayerNorm, LayerNormNoBias, NonParametric):
        torch.testing.assert_close(MAKE[norm](16).double()(x), expected)


def test_scalenorm_starts_as_rmsnorm() -> None:
    """A vector of length sqrt(d) has RMS 1."""
    x = torch.randn(5, 16)
    torch.testing.assert_close(ScaleNorm(16, EPS)(x), RMSNorm(16, EPS)(x), rtol=0, atol=1e-6)


def test_dyt_starts_as_a_line_and_ends_as_a_sign() -> None:
    module, x = DynamicTanh(16, start=0.25), torch.randn(5, 16)
    torch.testing.assert_close(module(1e-3 * x), 0.25e-3 * x, rtol=1e-6, atol=0)
    torch.testing.assert_close(module(1e6 * x), x.sign())


@pytest.mark.parametrize("gains", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.05, 1e-4])
@pytest.mark.parametrize("norm", NORMS)
def test_bfloat16_is_within_a_hundredth(norm: Callable[[int], nn.Module], scale: float, gains: torch.dtype) -> None:
    """Of the same numbers in float32; what comes out has the dtype of what went in, whatever that of the gain."""
    x = (scale * torch.randn(64, 96)).bfloat16()
    y, expected = norm(96).to(gains)(x), norm(96)(x.float())
    assert y.dtype == torch.bfloat16
    assert norm(96)(x.float()).dtype == torch.float32
    assert float((y.float() - expected).detach().norm() / expected.detach().norm()) < 0.01


@pytest.mark.parametrize("norm", WITH_EPS)
def test_a_large_mean_square_does_not_overflow(norm: Callable[[int], nn.Module]) -> None:
    """In float16 squares end at 65504: statistics are in float32."""
    x = torch.full((1, 64), 300.0)
    x[:, ::2] = -300.0
    y = norm(64).half()(x.half())
    torch.testing.assert_close(y.float(), x / 300, rtol=1e-3, atol=0)


@pytest.mark.parametrize("norm", NORMS)
def test_zeros_stay_zeros(norm: Callable[[int], nn.Module]) -> None:
    x = torch.zeros(2, 8, requires_grad=True)
    y = norm(8)(x)
    y.sum().backward()
    assert torch.equal(y, torch.zeros(2, 8))
    assert x.grad is not None
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm", WITH_EPS)
def test_eps_reaches_the_layer(norm: Callable[..., nn.Module]) -> None:
    x = torch.tensor([[1e-3, -1e-3]])
    expected: list[Tensor] = [1e-3 / (1e-6 + eps) ** 0.5 * torch.tensor([[1.0, -1.0]]) for eps in (1e-6, 1e-2)]
    torch.testing.assert_close(norm(2, eps=1e-6)(x).detach(), expected[0])
    torch.testing.assert_close(norm(2, eps=1e-2)(x).detach(), expected[1])


@pytest.mark.parametrize("norm", WITH_EPS)
def test_the_scale_of_the_input_does_not_matter(norm: Callable[..., nn.Module]) -> None:
    x = torch.randn(4, 32, dtype=torch.float64)
    module = spread(norm(32, eps=1e-12).double())
    torch.testing.assert_close(module(1000 * x), module(x), rtol=0, atol=1e-9)


@pytest.mark.parametrize("dim", [1, 5, 33])
@pytest.mark.parametrize("norm", NORMS)
def test_odd_widths(norm: Callable[[int], nn.Module], dim: int) -> None:
    """F-23"""
    y = norm(dim)(torch.randn(3, dim))
    assert y.shape == (3, dim)
    assert y.isfinite().all()
