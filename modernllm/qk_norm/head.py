from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Count


class HeadNorm(nn.Module):
    """norm(q_h) for every head h, one gain for all heads  (Henry et al., 2020; Qwen3)"""

    def __init__(self, norm: Callable[[int], nn.Module], n_heads: Count, head_dim: Count, values: bool = False):
        super().__init__()
        self.norm = nn.Identity() if values else norm(head_dim)

    def forward(self, x: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t k"]:
        return self.norm(x)
