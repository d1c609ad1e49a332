from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import nn

from modernllm.block import Block
from modernllm.context import Context
from modernllm.placement import Placement


class ParallelBlock(Block):
    """All sublayers read the same normed input, one join takes their sum  (GPT-J; PaLM)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__(sublayers, {"parallel": placement("parallel")})

    def forward(self, stream: Any, context: Context) -> Any:
        return self.joins["parallel"](
            stream, lambda h: sum(sublayer(h, context) for sublayer in self.sublayers.values())
        )
