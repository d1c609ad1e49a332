from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.quantities import Count


class External(nn.Module):
    """Any module from tokens [b t] to logits [b t v], causal by itself

    `module(vocab_size, context_length, dim, n_layers, n_heads)` makes it; it draws its own initial values, from a
    generator that the run's seed sets.
    """

    def __init__(
        self,
        *,
        vocab_size: Count,
        context_length: Count,
        dim: Count,
        n_layers: Count,
        n_heads: Count,
        module: Callable[[int, int, int, int, int], nn.Module],
    ):
        super().__init__()
        self.vocab_size, self.context_length = vocab_size, context_length
        self.module = module(vocab_size, context_length, dim, n_layers, n_heads)

    def forward(self, batch: Batch, context: Context | None = None) -> Float[Tensor, "b t v"]:
        """ValueError where the batch has what such a module cannot be told."""
        if batch.mask is not None or batch.segments is not None:
            raise ValueError("family=external: a module from tokens to logits knows no padding and no segments")
        return self.module(batch.tokens)
