from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.quantities import Count, Positive, Probability


class FeedForward(nn.Module):
    """W_out act(W_up x), four times wider inside  (Vaswani et al., 2017)"""

    def __init__(
        self,
        dim: Count,
        hidden: Count | None,
        bias: bool,
        dropout: Probability,
        act: Callable[[], nn.Module],
        expansion: Positive = 4.0,
    ):
        super().__init__()
        hidden = hidden or round(expansion * dim)
        self.up = Linear(dim, hidden, bias, role="hidden")
        self.act = act()
        self.out = Linear(hidden, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        return self.dropout(self.out(self.act(self.up(x))))
