"""Numbers that describe a tensor, held against their definitions, and given anything at all."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from modernllm.telemetry.statistics import (
    cosine,
    effective_rank,
    growth,
    massiveness,
    moments,
    pairwise_cosine,
    rms,
    slope,
)

VALUES = st.sampled_from([0.0, 1.0, -2.5, 1e-30, 3e38, math.nan, math.inf, -math.inf])


@st.composite
def tensors(draw: st.DrawFn) -> Tensor:
    """Of three dimensions, any of which may be 0: mixed, constant or all NaN."""
    shape = draw(st.tuples(*(st.integers(0, 4) for _ in range(3))))
    few = draw(st.lists(VALUES, min_size=1, max_size=5))
    kind = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    return torch.tensor(few).repeat(100)[: math.prod(shape)].view(shape).to(kind)


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(1))


def test_moments_of_known_numbers() -> None:
    x = torch.tensor([1.0, 1.0, -1.0, -1.0])
    assert moments(x) == {"mean": 0.0, "std": 1.0, "kurtosis": 1.0, "max": 1.0}
    assert moments(drawn(200_000))["kurtosis"] == pytest.approx(3.0, abs=0.05)
    assert rms(torch.tensor([3.0, -4.0])) == pytest.approx(12.5**0.5)
    assert massiveness(torch.tensor([0.5, -1.0, 1.0, 1.0, 2000.0])) == 2000.0


@pytest.mark.parametrize("size", [1e-30, 1e-18, 1e18, 1e30])
def test_sizes_whose_squares_are_out_of_range(size: float) -> None:
    """Gradients that vanish are as small, and their squares 0 in float32."""
    x, y = drawn(2, 5, 7), drawn(2, 5, 7).flip(1)
    assert rms(size * x) == pytest.approx(size * rms(x), rel=1e-5)
    of, whole = moments(size * x), moments(x)
    scaled = {name: value * (1 if name == "kurtosis" else size) for name, value in whole.items()}
    assert of == pytest.approx(scaled, rel=1e-4, abs=1e-7 * size)
    assert cosine(size * x, y) == pytest.approx(cosine(x, y), rel=1e-4)
    assert pairwise_cosine(size * x) == pytest.approx(pairwise_cosine(x), rel=1e-4)
    assert growth(size * x, size * 3 * x, 2) == pytest.approx(math.log(3) / 2, rel=1e-4)
    assert effective_rank(size * x) == pytest.approx(effective_rank(x), rel=1e-4)


def test_a_constant_has_no_kurtosis() -> None:
    """However its mean is rounded."""
    for value in (0.1, 1e-20, -3e7, 0.0):
        assert math.isnan(moments(torch.full((7, 999), value))["kurtosis"])


def test_cosines() -> None:
    x = drawn(2, 5, 7)
    assert cosine(x, 3 * x) == pytest.approx(1.0)
    assert cosine(x, -x) == pytest.approx(-1.0)
    each = torch.nn.functional.cosine_similarity(x[:, :, None], x[:, None], dim=-1)
    off = each.masked_fill(torch.eye(5, dtype=torch.bool), 0.0).sum() / (2 * 5 * 4)
    assert pairwise_cosine(x) == pytest.approx(float(off), abs=1e-6)
    assert pairwise_cosine(torch.ones(2, 5, 7)) == pytest.approx(1.0)
    assert math.isnan(cosine(x, x[..., 1:]))


def test_effective_rank() -> None:
    assert effective_rank(torch.eye(6)[None]) == pytest.approx(6.0)
    assert effective_rank(drawn(1, 9, 1) * drawn(1, 1, 5)) == pytest.approx(1.0, abs=1e-3)
    x = drawn(2, 300, 8)
    spread = [number * 600 // 256 for number in range(256)]
    values = torch.linalg.svdvals(x.flatten(0, 1)[spread].double())
    shares = values / values.sum()
    assert effective_rank(x) == pytest.approx(math.exp(-float((shares * shares.log()).sum())), rel=1e-6)


def test_slope_and_growth() -> None:
    assert slope([3 * n**-0.5 for n in range(1, 9)]) == pytest.approx(-0.5)
    assert math.isnan(slope([1.0, 2.0]))
    assert math.isnan(slope([1.0, 0.0, 2.0]))
    x = drawn(2, 3, 4)
    assert growth(x, math.e**2 * x, 4) == pytest.approx(0.5)


@given(x=tensors(), y=tensors())
def test_nothing_raises(x: Tensor, y: Tensor) -> None:
    found = [rms(x), *moments(x).values(), massiveness(x), cosine(x, y), pairwise_cosine(x), effective_rank(x)]
    found.append(growth(x, y, 3))
    found.append(slope(x.flatten(1).float().sum(1).tolist()))
    assert all(isinstance(value, float) for value in found)
