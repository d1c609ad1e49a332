from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from modernllm.block import Block
from modernllm.context import Context
from modernllm.placement import Placement


class ParallelNormsBlock(Block):
    """x + sum_i (join_i(x, f_i) - x): side by side, each sublayer with its own norm  (GPT-NeoX)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__(sublayers, {site: placement(site) for site in sublayers})
        if not isinstance(self.open(torch.empty(0)), Tensor):
            raise ValueError(
                "block=parallel_norms adds up what sublayers do to one stream: placement=residual_dual has two; "
                "choose block=parallel or another placement"
            )

    def forward(self, stream: Tensor, context: Context) -> Tensor:
        joined = [
            join(stream, lambda h: sublayer(h, context))  # noqa: B023 (called at once)
            for join, sublayer in zip(self.joins.values(), self.sublayers.values(), strict=True)
        ]
        return sum(joined[1:], start=joined[0]) - (len(joined) - 1) * stream
