from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from modernllm.embedding.plain import Embedding
from modernllm.head.tied import TiedHead
from modernllm.head.untied import UntiedHead
from modernllm.quantities import Count, NonNegative, Positive


def softcap(z: Tensor, cap: float) -> Tensor:
    """cap tanh(z / cap): z where it is small, never beyond +-cap"""
    return cap * torch.tanh(z / cap)


class SoftcappedHead(UntiedHead):
    """cap tanh(W x / cap)  (Bello et al., 2017; Gemma 2)"""

    def __init__(
        self,
        dim: Count,
        vocab_size: Count,
        embedding: Embedding,
        std: NonNegative | None = None,
        cap: Positive = 30.0,
    ):
        super().__init__(dim, vocab_size, embedding, std)
        self.cap = cap

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:  # type: ignore[override]
        return softcap(super().forward(x), self.cap)


class TiedSoftcappedHead(TiedHead):
    """cap tanh(E x / cap)  (Gemma 2)"""

    def __init__(
        self,
        dim: Count,
        vocab_size: Count,
        embedding: Embedding,
        std: Positive | None = None,
        cap: Positive = 30.0,
    ):
        super().__init__(dim, vocab_size, embedding, std)
        self.cap = cap

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        return softcap(super().forward(x), self.cap)
