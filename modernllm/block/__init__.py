"""Blocks: made with `block(sublayers, placement)`, used as `(stream, context) -> stream`.

`sublayers` maps a site ("attention", "feedforward") to its module; `placement(site)` makes the join of a site.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

from torch import Tensor, nn

from modernllm.placement import Placement


class Block(nn.Module):
    """The stream is opened by the first block's first join and closed by the last block's."""

    def __init__(self, sublayers: dict[str, nn.Module], joins: dict[str, Placement]):
        super().__init__()
        self.sublayers = nn.ModuleDict(sublayers)
        self.joins = nn.ModuleDict(joins)

    @property
    def placements(self) -> list[Placement]:
        """The joins, in order."""
        return list(cast(Iterable[Placement], self.joins.values()))

    def open(self, x: Tensor) -> Any:
        return self.placements[0].open(x)

    def close(self, stream: Any, readout: nn.Module) -> Tensor:
        return self.placements[-1].close(stream, readout)
