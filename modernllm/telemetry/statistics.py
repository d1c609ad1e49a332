"""Numbers that describe a tensor. None of them raises, whatever it holds: what cannot be told is NaN."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

TOKENS = 256
"""Of so many tokens, evenly spread, the singular values are taken."""
ROUNDING = 1e-12
"""Variance of a constant of size 1, by the rounding of its mean."""


def number(value: Tensor) -> float:
    """The one number of a tensor, on the host."""
    return float(value.detach())


def scaled(x: Float[Tensor, "*b"]) -> tuple[Float[Tensor, "*b"], Float[Tensor, ""]]:
    """x / max |x| in float32, and that maximum: squares below 1e-45 are 0, and gradients that vanish get there.

    What has no finite maximum above zero, or nothing in it, stays as it is.
    """
    x = x.detach().float()
    largest = x.abs().max() if x.numel() else x.new_ones(())
    largest = torch.where((largest > 0) & largest.isfinite(), largest, 1.0)
    return x / largest, largest


def norm(x: Float[Tensor, "*b"]) -> Float[Tensor, ""]:
    """sqrt(sum x^2)"""
    x, largest = scaled(x)
    return x.norm() * largest


def rms(x: Float[Tensor, "*b"]) -> float:
    """sqrt(mean x^2)"""
    return number(norm(x)) / math.sqrt(x.numel()) if x.numel() else math.nan


def moments(x: Float[Tensor, "*b"]) -> dict[str, float]:
    """`mean`, `std`, `kurtosis` E (x - mean)^4 / std^4 (3 for a Gaussian, NaN for a constant) and `max` |x|."""
    if not x.numel():
        return dict.fromkeys(("mean", "std", "kurtosis", "max"), math.nan)
    unit, largest = scaled(x)
    mean = unit.mean()
    squares = (unit - mean).square()
    variance = squares.mean()
    kurtosis = squares.square().mean() / torch.where(variance > ROUNDING, variance, math.nan).square()
    found = {"mean": mean * largest, "std": variance.sqrt() * largest, "kurtosis": kurtosis}
    return {name: number(value) for name, value in found.items()} | {"max": number(x.detach().float().abs().max())}


def massiveness(x: Float[Tensor, "*b"]) -> float:
    """max |x| / median |x|: a massive activation is some thousand times the median  (Sun et al., 2024)"""
    if not x.numel():
        return math.nan
    size = x.abs().flatten().float()
    return number(size.max()) / number(size.median()) if number(size.median()) else math.nan


def cosine(x: Float[Tensor, "*b d"], y: Float[Tensor, "*c e"]) -> float:
    """Mean over the tokens of the cosine between x and y; NaN where their shapes differ."""
    if x.shape != y.shape or not x.numel():
        return math.nan
    (x, _), (y, _) = scaled(x), scaled(y)
    return number(((x * y).sum(-1) / (x.norm(dim=-1) * y.norm(dim=-1))).mean())


def pairwise_cosine(x: Float[Tensor, "b t d"]) -> float:
    """Mean cosine between two different tokens of a row: 1 where all have become one  (Dong et al., 2021)

    From the sum of the unit vectors: (|sum u|^2 - t) / (t (t - 1)).
    """
    t = x.shape[1]
    if t < 2 or not x.numel():
        return math.nan
    x, _ = scaled(x)
    unit = x / x.norm(dim=-1, keepdim=True)
    return number(((unit.sum(1).square().sum(-1) - t) / (t * (t - 1))).mean())


def effective_rank(x: Float[Tensor, "*b d"]) -> float:
    """exp of the entropy of the singular values' shares, of at most TOKENS tokens  (Roy and Vetterli, 2007)"""
    rows = x.flatten(0, -2)
    if not rows.numel():
        return math.nan
    n = min(TOKENS, len(rows))
    rows = rows[torch.arange(n, device=rows.device) * len(rows) // n].detach().cpu().double()
    gram = rows @ rows.T if len(rows) < rows.shape[1] else rows.T @ rows
    if not gram.isfinite().all():
        return math.nan  # the solver would not converge
    values = torch.linalg.eigvalsh(gram).clamp_min(0).sqrt()
    shares = values / values.sum()
    return number(torch.special.entr(shares).sum().exp())


def slope(y: Sequence[float]) -> float:
    """Of the least-squares line of log y_l against log l, l = 1, 2, ...; NaN for fewer than 3 or one without log."""
    if len(y) < 3 or not all(value > 0 and math.isfinite(value) for value in y):
        return math.nan
    u, v = [math.log(depth) for depth in range(1, len(y) + 1)], [math.log(value) for value in y]
    mean_u, mean_v = sum(u) / len(u), sum(v) / len(v)
    above = sum((a - mean_u) * (b - mean_v) for a, b in zip(u, v, strict=True))
    return above / sum((a - mean_u) ** 2 for a in u)


def growth(first: Float[Tensor, "*b d"], last: Float[Tensor, "*c e"], n_layers: int) -> float:
    """log(|v'| / |v|) / n_layers, with v and v' the means over all tokens at the first and last layer: ideally 0
    (OLMo 2, 2025)
    """
    if not (first.numel() and last.numel() and n_layers):
        return math.nan
    v, grown = (number(norm(x.detach().float().flatten(0, -2).mean(0))) for x in (first, last))
    ratio = grown / v if v else math.nan
    return math.log(ratio) / n_layers if ratio > 0 and math.isfinite(ratio) else math.nan
