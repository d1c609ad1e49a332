from __future__ import annotations

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.attention.multi_head import SoftmaxAttention
from modernllm.attention.softmax import Scale, Sinks
from modernllm.linear import Role, Start
from modernllm.position import NoPosition
from modernllm.quantities import Count, Natural, Positive, Probability


class DifferentialAttention(SoftmaxAttention):
    """(1 - start) norm((A_1 - lambda A_2) V), two softmaxes for each pair of heads  (Ye et al., 2024)

    lambda = exp(a_1 . b_1) - exp(a_2 . b_2) + start, with start = 0.8 - 0.6 exp(-0.3 layer), layers from 0.
    A pair reads values of twice the size, so n_heads heads, which must be even, have the parameters of multi-head
    attention: the authors count pairs.
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
        norm: Callable[[int], nn.Module],
        softcap: Positive | None = None,
        sinks: Sinks = "none",
        scale: Scale = "sqrt",
    ):
        super().__init__(
            dim, n_heads, n_kv_heads, head_dim, layer, position, bias, dropout, qk_norm, softcap, sinks, scale
        )
        for key, heads in (("n_heads", n_heads), ("n_kv_heads", self.n_kv_heads)):
            if heads % 2:
                raise ValueError(
                    f"attention=differential pairs heads: model.{key}={heads} is odd; choose an even model.{key} or "
                    "another attention"
                )
        self.norm = norm(2 * head_dim)
        self.start = 0.8 - 0.6 * math.exp(-0.3 * layer)
        self.a1, self.b1, self.a2, self.b2 = (nn.Parameter(torch.zeros(head_dim)) for _ in range(4))
        self.roles: dict[str, Role] = dict.fromkeys(("a1", "b1", "a2", "b2"), "scale")
        self.starts = dict.fromkeys(self.roles, Start(std=0.1))

    def mix(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s k"],
        mask: Bool[Tensor, "#b 1 t s"] | None,
        bias: Float[Tensor, "#b h t s"] | None,
    ) -> Float[Tensor, "b pairs t kk"]:
        pairs = v.unflatten(1, (-1, 2)).transpose(2, 3).flatten(3)
        y = super().mix(q, k, pairs.repeat_interleave(2, dim=1), mask, bias)
        first, second = y.unflatten(1, (-1, 2)).unbind(2)
        return (1 - self.start) * self.norm(first - self.share() * second)

    def flops(self, length: int) -> float:
        """As multi-head attention, with values twice as wide."""
        return super().flops(length) * 1.5

    def share(self) -> Float[Tensor, ""]:
        """lambda: how much of the second map is taken away."""
        return (self.a1 * self.b1).sum().exp() - (self.a2 * self.b2).sum().exp() + self.start
