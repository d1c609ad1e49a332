"""How large the entries of a tensor are."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves


@dataclass(frozen=True)
class Magnitude:
    """`largest` and `smallest` are |x| over the finite entries (0 where there is none); the others are counted."""

    name: str
    """Of a parameter or buffer; empty for what was computed."""
    shape: list[int]
    dtype: str
    largest: float
    smallest: float
    nan: int
    positive: int
    """Entries that are +inf."""
    negative: int
    """Entries that are -inf."""

    @property
    def broken(self) -> int:
        return self.nan + self.positive + self.negative

    @classmethod
    def of(cls, x: Tensor, name: str = "") -> Magnitude:
        x = x.detach()
        x = torch.view_as_real(x.resolve_conj()) if x.is_complex() else x
        finite = x[x.isfinite()].abs()
        largest, smallest = (float(finite.max()), float(finite.min())) if finite.numel() else (0.0, 0.0)
        return cls(
            name=name,
            shape=list(x.shape),
            dtype=str(x.dtype).removeprefix("torch."),
            largest=largest,
            smallest=smallest,
            nan=int(x.isnan().sum()),
            positive=int((x == torch.inf).sum()),
            negative=int((x == -torch.inf).sum()),
        )


def is_broken(x: Tensor) -> bool:
    """Whether an entry is not finite. Waits for the device."""
    return not bool(x.detach().isfinite().all())


def measurable(value: Any) -> Iterator[Tensor]:
    """The tensors in a nest of containers that can hold a number that is not finite."""
    for leaf in tree_leaves(value):
        there = isinstance(leaf, Tensor) and leaf.layout == torch.strided and leaf.device.type != "meta"
        if there and leaf.numel() and (leaf.is_floating_point() or leaf.is_complex()):
            yield leaf
