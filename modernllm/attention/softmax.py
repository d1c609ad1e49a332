"""What every softmax attention can be told about its scores: `softcap`, `sinks` and `scale`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

from torch import nn

from modernllm.attention.attend import Attend
from modernllm.attention.explicit import ExplicitAttend, SoftCap
from modernllm.attention.sinks import LearnedSink, ZeroSink
from modernllm.quantities import Count, Positive, Probability

Sinks = Literal["none", "zero", "learned"]
Scale = Literal["sqrt", "none", "width"]

SINKS: dict[Sinks, Callable[[int], nn.Module]] = {
    "none": lambda n_heads: nn.Softmax(dim=-1),
    "zero": lambda n_heads: ZeroSink(),
    "learned": LearnedSink,
}

SCALES: dict[Scale, Callable[[int], float]] = {
    "sqrt": lambda head_dim: 1 / math.sqrt(head_dim),  # scores of unit queries and keys have variance 1
    "none": lambda head_dim: 1.0,
    "width": lambda head_dim: 1 / head_dim,  # muP: trained queries and keys are correlated (Yang et al., 2022)
}


def keys_seen(length: int, most: int | None = None) -> float:
    """By a query, as the mean over a text of `length` tokens, where none sees more than the `most`."""
    most = length if most is None else min(most, length)
    return most - most * (most - 1) / (2 * length)


def make_attend(
    n_heads: Count,
    head_dim: Count,
    dropout: Probability,
    softcap: Positive | None,
    sinks: Sinks,
    scale: Scale,
) -> Attend:
    """The fused kernels where they can do what is asked for, else one score after the other."""
    factor = SCALES[scale](head_dim)
    if softcap is None and sinks == "none":
        return Attend(factor, dropout)
    cap = nn.Identity() if softcap is None else SoftCap(softcap)
    return ExplicitAttend(factor, dropout, cap, SINKS[sinks](n_heads))
