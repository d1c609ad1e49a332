from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.attention.attend import Attend, causal
from modernllm.quantities import Positive, Probability


class ExplicitAttend(Attend):
    """softmax(cap(scale q k^T) + bias) v, every score a number in memory: what the fused kernels cannot do

    Scores and weights are float32 whatever q and k are, as inside those kernels. A bias is added to capped scores, so
    that a cap does not flatten distances.
    """

    def __init__(self, scale: Positive, dropout: Probability, cap: nn.Module, softmax: nn.Module):
        super().__init__(scale, dropout)
        self.cap, self.softmax = cap, softmax

    def forward(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s n"],
        mask: Bool[Tensor, "#b 1 t s"] | None,
        bias: Float[Tensor, "#b h t s"] | None,
    ) -> Float[Tensor, "b h t n"]:
        wide = torch.promote_types(q.dtype, torch.float32)
        hidden = ~(causal(q, k) if mask is None else mask)
        nothing = hidden.all(-1, keepdim=True)  # such a row stays finite, and what it reads is zeroed after
        with torch.autocast(q.device.type, enabled=False):
            by_group = q.to(wide).unflatten(1, (k.shape[1], -1))
            products = by_group @ k.to(wide)[:, :, None].transpose(-1, -2)
            scores = self.cap(products.flatten(1, 2) * self.scale)
            scores = scores if bias is None else scores + bias
            weights = self.softmax(scores.masked_fill(hidden & ~nothing, float("-inf")))
            weights = F.dropout(weights, self.dropout, self.training)
            by_group = weights.to(v.dtype).unflatten(1, (v.shape[1], -1))
            return (by_group @ v[:, :, None]).flatten(1, 2).masked_fill(nothing, 0.0)


class SoftCap(nn.Module):
    """c tanh(x / c): scores between -c and c  (Gemma 2, 2024)"""

    def __init__(self, cap: Positive):
        super().__init__()
        self.cap = cap

    def forward(self, scores: Float[Tensor, "b h t s"]) -> Float[Tensor, "b h t s"]:
        return self.cap * (scores / self.cap).tanh()
