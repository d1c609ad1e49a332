"""Causal attention without a softmax, part by part: every pair within a part, a matrix of fixed size between parts.

The cost grows with the length, not with its square; one part is the parallel form, parts of one token the recurrent.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

PART = 64
"""Tokens in a part: where the pairs within it cost about as much as the matrix, for heads of usual size."""


@dataclass(frozen=True)
class Reach:
    """How much arrives: of key j at query i `within` the part, of the `old` matrix at each query, of each key in the
    `new` matrix, and of the old in the new (`kept`).
    """

    part: slice
    within: Float[Tensor, "#b #h c c"]
    old: Float[Tensor, "#b #h c 1"]
    new: Float[Tensor, "#b #h c 1"]
    kept: Float[Tensor, "#b #h 1 1"]


def reaches(
    level: Float[Tensor, "#b #h t"], start: Float[Tensor, "#b #h 1"], segments: Int[Tensor, "b t"] | None
) -> list[Reach]:
    """exp(level_i - level_j) of token j at a later i of the same segment, where `level` never rises within one;
    `start` is the level of the matrix that is brought along.
    """
    length = level.shape[-1]
    documents = torch.zeros_like(level[:1, :1], dtype=torch.long) if segments is None else segments[:, None]
    levels = torch.cat((start.expand(*level.shape[:-1], 1), level), -1)
    documents = torch.cat((documents[..., :1], documents), -1)  # what is brought along is of the first document

    def of(keys: slice, queries: slice) -> Tensor:
        gap = levels[..., queries, None] - levels[..., None, keys]
        apart = documents[..., queries, None] != documents[..., None, keys]
        return gap.masked_fill(apart, float("-inf"))

    found = []
    for first in range(0, length, PART):
        last = min(first + PART, length)
        before, tokens, end = slice(first, first + 1), slice(first + 1, last + 1), slice(last, last + 1)
        future = torch.ones(last - first, last - first, dtype=torch.bool, device=level.device).triu(1)
        found.append(
            Reach(
                slice(first, last),
                of(tokens, tokens).masked_fill(future, float("-inf")).exp(),
                of(before, tokens).exp(),
                of(tokens, end).exp().transpose(-1, -2),
                of(before, end).exp(),
            )
        )
    return found


Values = Callable[[Tensor, Tensor, Reach], Tensor]
"""(keys of a part, the matrix before it, its reach) -> what is written at these keys."""


def scan(
    q: Float[Tensor, "b h t m"],
    k: Float[Tensor, "b h t m"],
    values: Values,
    matrix: Float[Tensor, "b h m n"],
    reaches: list[Reach],
) -> tuple[Float[Tensor, "b h t n"], Float[Tensor, "b h m n"]]:
    """y_i = sum over j <= i of reach(j, i) (q_i . k_j) v_j, and the matrix sum_j reach(j, end) k_j v_j^T."""
    outputs = []
    for reach in reaches:
        queries, keys = q[:, :, reach.part], k[:, :, reach.part]
        v = values(keys, matrix, reach)
        outputs.append((queries @ keys.mT * reach.within) @ v + queries @ matrix * reach.old)
        matrix = matrix * reach.kept + (keys * reach.new).mT @ v
    return torch.cat(outputs, 2), matrix
