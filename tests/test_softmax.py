"""The derivative of a softmax that is sure of its answer: exact values, by formula and by autograd."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

TABLE = [
    # z1 - z2, sigma_1, sigma_2, d sigma_1 / d z_1
    (2.0, 0.8807970779778824, 0.11920292202211756, 0.10499358540350652),
    (5.0, 0.9933071490757151, 0.006692850924284856, 0.006648056670790155),
    (10.0, 0.9999546021312976, 4.539786870243439e-05, 4.5395807735951675e-05),
]


def jacobian(z: Tensor) -> Tensor:
    found = torch.autograd.functional.jacobian(lambda x: x.softmax(0), z)
    assert isinstance(found, Tensor)
    return found


@pytest.mark.parametrize(("gap", "first", "second", "slope"), TABLE)
def test_two_classes(gap: float, first: float, second: float, slope: float) -> None:
    """sigma_i (1 - sigma_i) on the diagonal, -sigma_i sigma_j beside it; here all four have one size."""
    assert first == pytest.approx(1 / (1 + math.exp(-gap)), rel=1e-15)
    assert second == pytest.approx(1 / (1 + math.exp(gap)), rel=1e-14)
    assert slope == pytest.approx(1 / (2 + 2 * math.cosh(gap)), rel=1e-14)
    z = torch.tensor([gap, 0.0], dtype=torch.float64)
    torch.testing.assert_close(z.softmax(0), torch.tensor([first, second], dtype=torch.float64), rtol=1e-14, atol=0)
    signs = torch.tensor([[1.0, -1.0], [-1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(jacobian(z), slope * signs, rtol=1e-10, atol=0)
    torch.testing.assert_close(jacobian(z.float()), (slope * signs).float(), rtol=3e-3, atol=0)


def test_rounding_first_is_not_exact() -> None:
    """0.88 * 0.12 is 0.1056: what is multiplied must not be rounded before."""
    assert round(0.88 * 0.12, 4) == 0.1056
    assert round(TABLE[0][3], 5) == 0.10499
    assert [round(row[3], 5) for row in TABLE] == [0.10499, 0.00665, 0.00005]


def test_more_classes() -> None:
    """The same two formulas."""
    z = torch.tensor([2.0, -1.0, 0.5, 3.0], dtype=torch.float64)
    sigma = [math.exp(a) / sum(math.exp(b) for b in z.tolist()) for a in z.tolist()]
    expected = [[s * (1 - s) if i == j else -s * r for j, r in enumerate(sigma)] for i, s in enumerate(sigma)]
    torch.testing.assert_close(jacobian(z), torch.tensor(expected, dtype=torch.float64), rtol=1e-12, atol=1e-15)


def test_a_shift_changes_nothing() -> None:
    """So subtracting the maximum, which softmax does anyway, cures no saturation."""
    z = torch.tensor([10.0, 0.0], dtype=torch.float64)
    torch.testing.assert_close(jacobian(z - z.max()), jacobian(z), rtol=1e-12, atol=0)
    assert torch.equal((z - z.max()).softmax(0), z.softmax(0))
    assert torch.equal((z + 1e4).softmax(0), z.softmax(0))
