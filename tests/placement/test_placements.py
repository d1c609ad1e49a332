"""Placements against their equations, with a norm, a branch and a sublayer that are easy to write out."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from modernllm.placement import Placement
from modernllm.placement.none import NoNorm
from modernllm.placement.post import PostNorm
from modernllm.placement.pre import PreNorm


class Standard(nn.Module):
    """(x - mean) / std, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


class Third(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y / 3


standard = Standard()
EQUATIONS: list[tuple[type[Placement], Callable[[Tensor], Tensor]]] = [
    (PreNorm, lambda x: x + standard(x).sin() / 3),
    (PostNorm, lambda x: standard(x + x.sin() / 3)),
    (NoNorm, lambda x: x + x.sin() / 3),
]
KINDS = [kind for kind, _ in EQUATIONS]


def place(kind: type[Placement], norm: Callable[[], nn.Module] = Standard) -> Placement:
    return kind(norm, Third, 2, 0, "attention")


@pytest.mark.parametrize(("kind", "equation"), EQUATIONS, ids=[kind.__name__ for kind in KINDS])
def test_the_equation(kind: type[Placement], equation: Callable[[Tensor], Tensor]) -> None:
    x = 1 + torch.randn(2, 5, 8, dtype=torch.float64)
    join = place(kind)
    assert join.open(x) is x
    torch.testing.assert_close(join(x, torch.sin), equation(x), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
def test_without_norm_all_are_the_residual_connection(kind: type[Placement]) -> None:
    x = torch.randn(2, 5, 8)
    assert torch.equal(place(kind, nn.Identity)(x, torch.sin), x + x.sin() / 3)


@pytest.mark.parametrize(("kind", "n_norms"), [(PreNorm, 1), (PostNorm, 1), (NoNorm, 0)])
def test_each_makes_its_own_modules(kind: type[Placement], n_norms: int) -> None:
    norms: list[nn.Module] = []

    def norm() -> nn.Module:
        norms.append(nn.LayerNorm(8))
        return norms[-1]

    first, second = place(kind, norm), place(kind, norm)
    assert len(norms) == 2 * n_norms
    assert first.branch is not second.branch
    assert sum(isinstance(module, nn.LayerNorm) for module in first.modules()) == n_norms
