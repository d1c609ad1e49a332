from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from modernllm.context import Context
from modernllm.placement import Placement


class ParallelNormsBlock(nn.Module):
    """x + sum_i (join_i(x, f_i) - x): side by side, each sublayer with its own norm  (GPT-NeoX)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__()
        self.sublayers = nn.ModuleDict(sublayers)
        self.joins = nn.ModuleDict({site: placement(site) for site in sublayers})

    def open(self, x: Tensor) -> Any:
        stream = next(iter(self.joins.values())).open(x)
        if not isinstance(stream, Tensor):
            raise ValueError(
                "block=parallel_norms adds up what sublayers do to one stream: placement=residual_dual has two; "
                "choose block=parallel or another placement"
            )
        return stream

    def close(self, stream: Any, readout: nn.Module) -> Tensor:
        return next(iter(self.joins.values())).close(stream, readout)

    def forward(self, stream: Any, context: Context) -> Any:
        joined = [
            self.joins[site](stream, lambda h: sublayer(h, context))  # noqa: B023 (called at once)
            for site, sublayer in self.sublayers.items()
        ]
        return sum(joined) - (len(joined) - 1) * stream
