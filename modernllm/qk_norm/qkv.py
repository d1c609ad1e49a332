from __future__ import annotations

from collections.abc import Callable

from torch import nn

from modernllm.qk_norm.head import HeadNorm
from modernllm.quantities import Count


class QKVNorm(HeadNorm):
    """norm(q_h), norm(k_h) and norm(v_h) for every head h  (HybridNorm, Zhuo et al., 2025)"""

    def __init__(self, norm: Callable[[int], nn.Module], n_heads: Count, head_dim: Count, values: bool = False):
        super().__init__(norm, n_heads, head_dim)
