from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from modernllm.embedding.plain import Embedding


class ScaledEmbedding(Embedding):
    """sqrt(d) E[token], so that a table drawn at 1/sqrt(d) gives a stream of RMS 1  (Vaswani et al., 2017; Gemma)"""

    role = "small_embedding"

    def forward(self, tokens: Int[Tensor, "b t"]) -> Float[Tensor, "b t d"]:
        return super().forward(tokens) * self.weight.shape[1] ** 0.5
