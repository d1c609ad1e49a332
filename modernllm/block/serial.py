from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from modernllm.block import Block
from modernllm.context import Context
from modernllm.placement import Placement


class SerialBlock(Block):
    """One sublayer after the other, each with its own join  (Vaswani et al., 2017)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__(sublayers, {site: placement(site) for site in sublayers})

    def forward(self, stream: Any, context: Context) -> Any:
        for join, sublayer in zip(self.joins.values(), self.sublayers.values(), strict=True):
            stream = join(stream, lambda h: sublayer(h, context))  # noqa: B023 (called at once)
        return stream
