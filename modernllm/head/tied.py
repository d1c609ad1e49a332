from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.embedding.plain import Embedding
from modernllm.quantities import Count


class TiedHead(nn.Module):
    """E x: the embedding table is the output matrix too  (Press and Wolf, 2017)"""

    def __init__(self, dim: Count, vocab_size: Count, embedding: Embedding):
        super().__init__()
        self.weight = embedding.weight
        # a table of unit rows would give logits of standard deviation sqrt(d)
        embedding.roles["weight"] = "small_embedding"
        self.roles = embedding.roles

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        return F.linear(x, self.weight)
