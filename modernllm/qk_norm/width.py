from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.quantities import Count


class WidthNorm(nn.Module):
    """norm(q) over all heads at once  (Dehghani et al., 2023; OLMo 2)"""

    def __init__(self, norm: Callable[[int], nn.Module], n_heads: Count, head_dim: Count, values: bool = False):
        super().__init__()
        self.norm = nn.Identity() if values else norm(n_heads * head_dim)

    def forward(self, x: Float[Tensor, "b h t k"]) -> Float[Tensor, "b h t k"]:
        heads = x.shape[1]
        return self.norm(x.transpose(1, 2).flatten(2)).unflatten(2, (heads, -1)).transpose(1, 2)
