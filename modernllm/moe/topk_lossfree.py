from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.moe.losses import usage
from modernllm.moe.router import Score
from modernllm.moe.topk import TopK
from modernllm.quantities import Count, Natural, NonNegative, Positive


class LossFreeTopK(TopK):
    """Top-k with experts chosen by s + b and weighted by s; after each step b += rate sign(mean load - load)
    (Wang et al., 2024; DeepSeek-V3)

    The bias is kept as a number of steps up, a whole number, which no change of dtype rounds.
    """

    steps_up: Int[Tensor, " e"]
    load: Int[Tensor, " e"]

    def __init__(
        self,
        expert: Callable[..., nn.Module],
        dim: Count,
        n_experts: Count,
        k: Count,
        shared: Natural,
        hidden: Count | None,
        score: Score,
        renormalise: bool,
        scale: Positive,
        n_groups: Count,
        groups: Count,
        balance: NonNegative,
        router_z: NonNegative,
        rate: NonNegative,
    ):
        super().__init__(
            expert, dim, n_experts, k, shared, hidden, score, renormalise, scale, n_groups, groups, balance, router_z
        )
        self.rate = rate
        self.register_buffer("steps_up", torch.zeros(n_experts, dtype=torch.long))
        self.register_buffer("load", torch.zeros(n_experts, dtype=torch.long), persistent=False)

    def reset(self) -> None:
        self.steps_up.zero_()
        self.load.zero_()

    def preference(self, scores: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        return scores + self.rate * self.steps_up

    def account(
        self,
        logits: Float[Tensor, "b t e"],
        scores: Float[Tensor, "b t e"],
        chosen: Int[Tensor, "b t k"],
        counted: Bool[Tensor, "b t"],
        context: Context,
    ) -> None:
        super().account(logits, scores, chosen, counted, context)
        if self.training:
            self.load += usage(chosen, len(self.load), counted).sum(0)

    def tallies(self) -> list[Int[Tensor, " e"]]:
        return [self.load]

    @torch.no_grad()
    def after_step(self, held: Float[Tensor, ""]) -> None:
        """Move the bias by the tokens of the whole step, unless the step was not taken (`held` is 1)."""
        gap = self.load.sum() - len(self.load) * self.load  # E times the distance to the mean
        self.steps_up += gap.sign() * (held == 0)
        self.load.zero_()
