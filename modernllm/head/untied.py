from __future__ import annotations

from modernllm.embedding.plain import Embedding
from modernllm.linear import Linear
from modernllm.quantities import Count


class UntiedHead(Linear):
    """W x with a matrix of its own"""

    def __init__(self, dim: Count, vocab_size: Count, embedding: Embedding):
        super().__init__(dim, vocab_size, bias=False, role="head")
