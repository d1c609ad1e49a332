from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from modernllm.context import Context
from modernllm.placement import Placement


class SerialBlock(nn.Module):
    """One sublayer after the other, each with its own join  (Vaswani et al., 2017)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__()
        self.sublayers = nn.ModuleDict(sublayers)
        self.joins = nn.ModuleDict({site: placement(site) for site in sublayers})

    def open(self, x: Any) -> Any:
        return next(iter(self.joins.values())).open(x)

    def close(self, stream: Any, readout: nn.Module) -> Tensor:
        *_, last = self.joins.values()
        return last.close(stream, readout)

    def forward(self, stream: Any, context: Context) -> Any:
        for site, sublayer in self.sublayers.items():
            stream = self.joins[site](stream, lambda h: sublayer(h, context))  # noqa: B023 (called at once)
        return stream
