from __future__ import annotations

import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.embedding.plain import Embedding
from modernllm.linear import Start
from modernllm.quantities import Count, Positive


class TiedHead(nn.Module):
    """E x: the embedding table is the output matrix too  (Press and Wolf, 2017)

    `std` is that of the table's start in place of the initialisation's.
    """

    def __init__(self, dim: Count, vocab_size: Count, embedding: Embedding, std: Positive | None = None):
        super().__init__()
        self.weight = embedding.weight
        # a table of unit rows would give logits of standard deviation sqrt(d)
        embedding.roles["weight"] = "small_embedding"
        self.roles = embedding.roles
        self.starts = {} if std is None else {"weight": Start(std=std)}

    def flops(self, length: int) -> float:
        return 2.0 * self.weight.numel()

    def forward(self, x: Float[Tensor, "b t d"]) -> Float[Tensor, "b t v"]:
        return F.linear(x, self.weight)
