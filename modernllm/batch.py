"""What a model is given: tokens, and what to predict at each of them.

Shape legend of the whole package: b batch, t time (queries), s time (keys), d width, h heads, g kv heads,
k size of a head, f hidden width of the feed-forward, v vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, fields
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

IGNORED = -100
"""Target of a position that is no part of the loss."""


@dataclass(frozen=True)
class Batch:
    """`targets[b, t]` is the token that should follow `tokens[b, :t + 1]`, or IGNORED.

    `segments` numbers the documents of a packed row: a position sees its own segment only.
    `mask` is True at real tokens and False at padding.
    """

    tokens: Int[Tensor, "b t"]
    targets: Int[Tensor, "b t"] | None = None
    segments: Int[Tensor, "b t"] | None = None
    mask: Bool[Tensor, "b t"] | None = None

    def __post_init__(self) -> None:
        refuse_numbers("Batch.mask", self.mask)
        if self.mask is not None and self.mask.shape != self.tokens.shape:
            raise ValueError(
                f"Batch.mask has shape {tuple(self.mask.shape)}: should be that of the tokens, "
                f"{tuple(self.tokens.shape)}; which key a query may see follows from it, causally"
            )

    @classmethod
    def from_windows(cls, windows: Int[Tensor, "b t_plus_1"]) -> Batch:
        """Windows of t + 1 tokens: the first t are read, the last t predicted."""
        return cls(tokens=windows[:, :-1], targets=windows[:, 1:])

    @property
    def n_targets(self) -> int:
        """Positions that count in the loss."""
        return 0 if self.targets is None else int((self.targets != IGNORED).sum())

    def _map(self, function) -> Batch:
        parts = {field.name: getattr(self, field.name) for field in fields(self)}
        done: dict[str, Any] = {name: part if part is None else function(part) for name, part in parts.items()}
        return Batch(**done)

    def to(self, device: torch.device) -> Batch:
        """To a CUDA device through pinned memory, the only kind from which it copies while the host goes on."""
        if device == self.tokens.device:
            return self
        if device.type == "cuda":
            return self._map(lambda part: part if part.is_cuda else pinned(part).to(device, non_blocking=True))
        return self._map(lambda part: part.to(device))

    def split(self, size: int) -> Iterator[Batch]:
        """Micro-batches of at most `size` rows, in order."""
        if 0 < len(self.tokens) <= size:
            yield self
            return
        for start in range(0, self.tokens.shape[0], size):
            yield self._map(lambda part: part[start : start + size])  # noqa: B023 (called at once)

    def share(self, rank: int, of: int) -> Batch:
        """The rows of one of so many ranks: as even as can be, in order."""
        rows = len(self.tokens)
        start, stop = rows * rank // of, rows * (rank + 1) // of
        return self._map(lambda part: part[start:stop])


def pinned(part: Tensor) -> Tensor:
    """In memory from which a device copies by itself, and in one piece: of a slice torch sends an unpinned clone."""
    return part.contiguous().pin_memory()


def refuse_numbers(name: str, mask: Tensor | None) -> None:
    """0 and 1 read as added to scores, or -inf and 0 read as true and false, would hide the wrong keys."""
    if mask is not None and mask.dtype != torch.bool:
        raise ValueError(f"{name} is {mask.dtype}: should be torch.bool, True where a token may be seen")
