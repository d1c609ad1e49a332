"""What float32 statistics are for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from modernllm.norm.layernorm import LayerNorm
from modernllm.norm.low_precision import LowLayerNorm, LowRMSNorm
from modernllm.norm.rmsnorm import RMSNorm

PAIRS = [(LowRMSNorm, RMSNorm), (LowLayerNorm, LayerNorm)]


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_without_autocast_they_are_the_norms_themselves(low: type[nn.Module], high: type[nn.Module]) -> None:
    x = torch.randn(3, 5, 16)
    torch.testing.assert_close(low(16)(x), high(16)(x), rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(("low", "high"), PAIRS)
def test_in_bf16_they_are_coarser(low: type[nn.Module], high: type[nn.Module]) -> None:
    """8 bits of mantissa: within 2 %, and further off than the norm in float32, whose output keeps its type."""
    x = 3 * torch.randn(64, 4096)
    exact = high(4096)(x)
    with torch.autocast("cpu", torch.bfloat16):
        coarse, fine = low(4096)(x), high(4096)(x)
    assert coarse.dtype == fine.dtype == torch.float32
    error = (coarse - exact).norm() / exact.norm()
    assert 5e-4 < error < 2e-2
    assert (fine - exact).norm() / exact.norm() < error / 100


def test_in_fp16_squares_overflow() -> None:
    """300^2 is above 65504: the root mean square is infinite and the output nothing."""
    x = torch.full((1, 8), 300.0)
    with torch.autocast("cpu", torch.float16):
        assert torch.equal(LowRMSNorm(8)(x), torch.zeros(1, 8))
        torch.testing.assert_close(RMSNorm(8)(x), torch.ones(1, 8))
        torch.testing.assert_close(LowRMSNorm(8)(x / 300 * 255), torch.ones(1, 8), rtol=2e-3, atol=0)
