from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.quantities import Probability


class Attend(nn.Module):
    """softmax(q k^T / sqrt(k) + bias) v over the keys that may be seen  (Vaswani et al., 2017)

    Without a mask it is causal. A query that may see nothing gives zeros.
    """

    def __init__(self, dropout: Probability):
        super().__init__()
        self.dropout = dropout

    def forward(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s k"],
        mask: Bool[Tensor, "#b 1 t s"] | None,
        bias: Float[Tensor, "#b h t s"] | None,
    ) -> Float[Tensor, "b h t k"]:
        n_queries, n_keys = q.shape[2], k.shape[2]
        if mask is None and bias is not None:
            mask = q.new_ones(n_queries, n_keys, dtype=bool).tril(n_keys - n_queries)[None, None]
        # SDPA's own causal mask starts at the top left: it is right for equal lengths only, and one last query
        # sees every key anyway
        assert mask is not None or n_queries in (1, n_keys)
        return F.scaled_dot_product_attention(
            q,
            k,
            v,
            attn_mask=mask if bias is None else bias.to(q.dtype).masked_fill(~mask, float("-inf")),
            dropout_p=self.dropout if self.training else 0.0,
            is_causal=mask is None and n_queries > 1,
            enable_gqa=q.shape[1] != k.shape[1],
        )
