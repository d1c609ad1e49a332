from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.attention.multi_head import SoftmaxAttention
from modernllm.attention.softmax import Scale, Sinks
from modernllm.linear import Linear
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability


class GatedAttention(SoftmaxAttention):
    """W_out [sigmoid(W_gate x) * y_h]_h: a gate on what each head has read  (Qiu et al., 2025; Qwen3-Next)

    Elementwise there is a gate for every number of a head, headwise one for the head.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        n_kv_heads: Count | None,
        head_dim: Count,
        layer: Natural,
        position: NoPosition,
        bias: bool,
        dropout: Probability,
        qk_norm: Callable[..., nn.Module],
        gates: Literal["elementwise", "headwise"] = "elementwise",
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        super().__init__(
            dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm, softcap, sinks, scale
        )
        self.n_heads = n_heads
        per_head = {"elementwise": head_dim, "headwise": 1}[gates]
        self.gate = Linear(dim, n_heads * per_head, bias, role="gate")
        self.act = nn.Sigmoid()

    def gather(self, y: Float[Tensor, "b h t k"], x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t hk"]:
        gates = self.act(self.gate(x)).unflatten(2, (self.n_heads, -1))
        return (gates * y.transpose(1, 2)).flatten(2)
