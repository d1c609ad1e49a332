from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor

from modernllm.embedding.plain import Embedding
from modernllm.quantities import Count, Positive


class NormedEmbedding(Embedding):
    """E[token] / rms(E[token]): a stream of RMS 1 however long the row is, without a gain  (nanochat)"""

    def __init__(self, vocab_size: Count, dim: Count, eps: Positive = 1e-6):
        super().__init__(vocab_size, dim)
        self.dim, self.eps = dim, eps

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return F.rms_norm(super().forward(tokens), (self.dim,), eps=self.eps)
