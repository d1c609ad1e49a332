"""Measurements that need no training: what a formula says of numbers drawn here and now."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from jaxtyping import Float

from modernllm.attention.softmax import SCALES, Scale


def score_variance_slope(head_dims: list[int], samples: int, scale: Scale = "none") -> Float[np.ndarray, " 1"]:
    """Slope of log Var(scale · q·k) against log d_k, for queries and keys of independent N(0, 1) entries.

    1 without a scale, since the variance is d_k; 0 with 1/sqrt(d_k) (Vaswani et al., 2017, section 3.2.1, footnote 4).
    """
    variances = [float((SCALES[scale](width) * _scores(width, samples, 1)).var()) for width in head_dims]
    return np.array([np.polyfit(np.log(head_dims), np.log(variances), 1)[0]])


def softmax_gradient_ratio(head_dims: list[int], keys: int, rows: int, scale: Scale) -> Float[np.ndarray, " 1"]:
    """tr J at the smallest head over tr J at the largest; J = diag(p) - p pᵀ is the derivative of the softmax p of a
    row of scores, and tr J = 1 - Σ p².
    """
    traces = [_trace(width, keys, rows, scale) for width in (min(head_dims), max(head_dims))]
    return np.array([traces[0] / traces[1]])


def softmax_gradient_spread(head_dims: list[int], keys: int, rows: int, scale: Scale) -> Float[np.ndarray, " 1"]:
    """max tr J / min tr J over the heads: 1 where the width of a head does not matter."""
    traces = [_trace(width, keys, rows, scale) for width in head_dims]
    return np.array([max(traces) / min(traces)])


def _trace(head_dim: int, keys: int, rows: int, scale: Scale) -> float:
    probabilities = (SCALES[scale](head_dim) * _scores(head_dim, rows, keys)).softmax(-1)
    return float((1 - probabilities.square().sum(-1)).mean())


def _scores(head_dim: int, rows: int, keys: int) -> torch.Tensor:
    generator = torch.Generator().manual_seed(head_dim)
    q = torch.randn(rows, 1, head_dim, generator=generator, dtype=torch.float64)
    k = torch.randn(rows, keys, head_dim, generator=generator, dtype=torch.float64)
    return (q * k).sum(-1)


MEASUREMENTS: dict[str, Callable[..., Float[np.ndarray, " n"]]] = {
    measure.__name__: measure for measure in (score_variance_slope, softmax_gradient_ratio, softmax_gradient_spread)
}
"""By the name that a claim's probe has."""
