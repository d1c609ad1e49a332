from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.linear import Linear
from modernllm.quantities import Count, Positive, Probability


class GatedFeedForward(nn.Module):
    """W_out (act(W_gate x) * W_up x)  (GLU, Dauphin et al., 2017; in the feed-forward, Shazeer, 2020)

    The variants differ in `act`: sigmoid is GLU, the identity is bilinear, and ReLU, GELU and SiLU (Swish) name theirs.
    Three matrices of 2/3 `expansion` d have the parameters of the plain feed-forward's two of `expansion` d; rounded
    to a multiple of 8.
    """

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
        hidden = hidden or max(8, 8 * round(expansion * dim / 12))
        self.gate = Linear(dim, hidden, bias, role="gate")
        self.up = Linear(dim, hidden, bias, role="hidden")
        self.act = act()
        self.out = Linear(hidden, dim, bias, role="stream")
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        return self.dropout(self.out(self.act(self.gate(x)) * self.up(x)))
