from __future__ import annotations

from modernllm.embedding.plain import Embedding
from modernllm.linear import Linear, Start
from modernllm.quantities import Count, NonNegative


class UntiedHead(Linear):
    """W x with a matrix of its own

    `std` is that of its start in place of the initialisation's; at 0 all tokens are as likely and the first loss is
    log V, and at the first step nothing but W has a gradient.
    """

    def __init__(self, dim: Count, vocab_size: Count, embedding: Embedding, std: NonNegative | None = None):
        super().__init__(dim, vocab_size, bias=False, role="head")
        self.starts = {} if std is None else {"weight": Start(std=std)}
