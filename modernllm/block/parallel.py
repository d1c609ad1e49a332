from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor, nn

from modernllm.context import Context
from modernllm.placement import Placement


class ParallelBlock(nn.Module):
    """All sublayers read the same normed input, one join takes their sum  (GPT-J; PaLM)"""

    def __init__(self, sublayers: dict[str, nn.Module], placement: Callable[[str], Placement]):
        super().__init__()
        self.sublayers = nn.ModuleDict(sublayers)
        self.joins = nn.ModuleDict({"parallel": placement("parallel")})

    def open(self, x: Any) -> Any:
        return self.joins["parallel"].open(x)

    def close(self, stream: Any, readout: nn.Module) -> Tensor:
        return self.joins["parallel"].close(stream, readout)

    def forward(self, stream: Any, context: Context) -> Any:
        return self.joins["parallel"](
            stream, lambda h: sum(sublayer(h, context) for sublayer in self.sublayers.values())
        )
