from __future__ import annotations

import math

import torch
from jaxtyping import Float, Int
from torch import Tensor

from modernllm.position import ScoreBias
from modernllm.quantities import Count


class ALiBi(ScoreBias):
    """score(i, j) - m_h |i - j| with slopes m_h = 2^(-8h/H), h = 1 ... H  (Press et al., 2022)

    Where H is no power of two: the slopes of the next smaller power P, then every second slope of 2 P, as in the
    authors' code.
    """

    def __init__(self, dim: Count, n_heads: Count, head_dim: Count, context_length: Count):
        super().__init__(dim, n_heads, head_dim, context_length)
        self.slopes = slopes(n_heads)

    def of_distance(self, distance: Int[Tensor, "#b t s"]) -> Float[Tensor, "#b h t s"]:
        # a list would be copied from the host, for which a CUDA device is waited for
        steepness = torch.stack([distance.new_full((), slope, dtype=torch.float32) for slope in self.slopes])
        return -steepness[:, None, None] * distance[:, None].abs()


def slopes(n_heads: int) -> list[float]:
    """In float64, the steepest of each list first."""
    power = 2 ** math.floor(math.log2(n_heads))
    whole = [2 ** (-8 * h / power) for h in range(1, power + 1)]
    return whole + [2 ** (-8 * h / (2 * power)) for h in range(1, 2 * (n_heads - power), 2)]
