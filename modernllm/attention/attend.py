from __future__ import annotations

from contextlib import nullcontext

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from modernllm.precision import working_dtype
from modernllm.quantities import Positive, Probability


class Attend(nn.Module):
    """softmax(scale q k^T + bias) v over the keys that may be seen  (Vaswani et al., 2017)

    Without a mask it is causal. A query that may see nothing gives zeros. On a CPU it is computed in float32 whatever q
    and k are: torch's 16-bit kernel there takes up to five times as long for texts of a few hundred tokens.
    """

    def __init__(self, scale: Positive, dropout: Probability):
        super().__init__()
        self.scale, self.dropout = scale, dropout

    def forward(
        self,
        q: Float[Tensor, "b h t k"],
        k: Float[Tensor, "b g s k"],
        v: Float[Tensor, "b g s n"],
        mask: Bool[Tensor, "#b 1 t s"] | None,
        bias: Float[Tensor, "#b h t s"] | None,
    ) -> Float[Tensor, "b h t n"]:
        n_queries, n_keys = q.shape[2], k.shape[2]
        dtype = working_dtype(v)
        on_cpu = q.device.type == "cpu" and dtype.itemsize < torch.float32.itemsize
        if on_cpu:
            q, k, v = q.float(), k.float(), v.float()
        if bias is not None:
            hidden = ~(causal(q, k) if mask is None else mask)
            mask = bias.to(q.dtype).masked_fill(hidden, float("-inf"))
        # SDPA's own causal mask starts at the top left: it is right for equal lengths only, and one last query
        # sees every key anyway
        assert mask is not None or n_queries in (1, n_keys)
        with torch.autocast("cpu", enabled=False) if on_cpu else nullcontext():
            y = F.scaled_dot_product_attention(
                q,
                k,
                v,
                attn_mask=mask,
                dropout_p=self.dropout if self.training else 0.0,
                is_causal=mask is None and n_queries > 1,
                scale=self.scale,
                enable_gqa=q.shape[1] != k.shape[1],
            )
        return y.to(dtype)


def causal(q: Float[Tensor, "b h t k"], k: Float[Tensor, "b g s k"]) -> Bool[Tensor, "1 1 t s"]:
    """The last query sees every key, the one before it all but the last."""
    n_queries, n_keys = q.shape[2], k.shape[2]
    return q.new_ones(n_queries, n_keys, dtype=torch.bool).tril(n_keys - n_queries)[None, None]
