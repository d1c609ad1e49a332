from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from modernllm.context import Context
from modernllm.position.rope import Fraction, Layout, RoPE
from modernllm.quantities import Count, Factor, Positive


class YaRN(RoPE):
    """RoPE with slow pairs slowed down, fast ones kept, and scores times (0.1 ln factor + 1)^2  (Peng et al., 2023)

    Pairs that turn more than `beta_fast` times within the trained context are kept, those that turn less than
    `beta_slow` times turn `factor` times slower, and between them it changes linearly with the number of the pair: so
    it is in the authors' code and Hugging Face's, while the paper's equation is linear in the number of turns.
    `original_context=null` is model.context_length.
    """

    def __init__(
        self,
        dim: Count,
        n_heads: Count,
        head_dim: Count,
        context_length: Count,
        base: Positive = 10_000.0,
        fraction: Fraction = 1.0,
        layout: Layout = "interleaved",
        factor: Factor = 4.0,
        original_context: Count | None = None,
        beta_fast: Positive = 32.0,
        beta_slow: Positive = 1.0,
    ):
        super().__init__(dim, n_heads, head_dim, context_length, base, fraction, layout)
        if base <= 1 or beta_fast < beta_slow:
            raise ValueError(
                f"position=rope_yarn needs model.position.base={base:g} above 1, and model.position.beta_fast="
                f"{beta_fast:g} no smaller than model.position.beta_slow={beta_slow:g}: fast pairs turn more often"
            )
        self.factor, self.original_context = factor, original_context or context_length
        self.beta_fast, self.beta_slow = beta_fast, beta_slow
        self.magnitude = 0.1 * math.log(factor) + 1  # of q and of k, so it comes squared into the scores

    def pair_of(self, n_turns: float) -> float:
        """The i at which context / (2 pi base^(2i/k)), the turns of a pair within the trained context, is `n_turns`."""
        return self.n_turned * math.log(self.original_context / (2 * math.pi * n_turns), self.base) / 2

    def frequencies(self, context: Context) -> Float[Tensor, "#b 1 1 pairs"]:
        first = max(math.floor(self.pair_of(self.beta_fast)), 0)
        last = min(math.ceil(self.pair_of(self.beta_slow)), self.n_turned - 1)
        ramp = max(last - first, 0.001)  # one of no length is a step
        pairs = torch.arange(self.n_turned // 2, device=context.positions.device)
        interpolated = ((pairs - first) / ramp).clamp(0, 1)
        return super().frequencies(context) * (1 + interpolated * (1 / self.factor - 1))
