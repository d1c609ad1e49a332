from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from modernllm.context import Context
from modernllm.moe.losses import balance_loss, z_loss
from modernllm.moe.router import SCORES, Router, Score, best
from modernllm.quantities import Count, Natural, NonNegative, Positive


class TopK(nn.Module):
    """scale sum over the k best experts of w_e expert_e(x) + sum of the shared experts, where w is score(W x), divided
    by the sum of the k weights if `renormalise`  (Shazeer et al., 2017; Mixtral; DeepSeekMoE)

    Every token gets its k experts, however many others they have: nothing is dropped. Each token chooses for itself,
    which is causal. `hidden=None` makes experts as wide as the dense feed-forward. Added to the loss, a layer:
    `balance` times the balance loss and `router_z` times the z-loss.
    """

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
    ):
        super().__init__()
        if n_experts % n_groups or groups > n_groups or k > groups * n_experts // n_groups:
            raise ValueError(
                f"model.moe: k={k} experts cannot be chosen out of groups={groups} of n_groups={n_groups} groups of "
                f"n_experts={n_experts}: n_groups should divide n_experts, and groups * n_experts / n_groups be at "
                "least k"
            )
        make = expert if hidden is None else lambda: expert(hidden=hidden)
        self.k, self.n_groups, self.groups = k, n_groups, groups
        self.renormalise, self.scale = renormalise, scale
        self.balance, self.router_z = balance, router_z
        self.router = Router(dim, n_experts)
        self.shares = {"experts": k / n_experts}
        self.score = SCORES[score]()
        self.experts = nn.ModuleList(make() for _ in range(n_experts))
        self.shared = nn.ModuleList(make() for _ in range(shared))

    def forward(self, x: Float[Tensor, "b t d"], context: Context) -> Float[Tensor, "b t d"]:
        logits = self.router(x)
        scores = self.score(logits)
        chosen = best(self.preference(scores.detach()), self.k, self.n_groups, self.groups)
        weights = scores.gather(-1, chosen)
        if self.renormalise:
            weights = weights / weights.sum(-1, keepdim=True).clamp_min(1e-20)
        if (counted := context.counted) is not None:
            self.account(logits, scores, chosen, counted, context)
        y = mixture(self.experts, x, chosen, self.scale * weights, context)
        return sum((expert(x, context) for expert in self.shared), start=y)

    def preference(self, scores: Float[Tensor, "b t e"]) -> Float[Tensor, "b t e"]:
        """By what experts are chosen; they are weighted by their scores."""
        return scores

    def account(
        self,
        logits: Float[Tensor, "b t e"],
        scores: Float[Tensor, "b t e"],
        chosen: Int[Tensor, "b t k"],
        counted: Bool[Tensor, "b t"],
        context: Context,
    ) -> None:
        context.add_loss("balance", self.balance * balance_loss(scores, chosen, counted))
        context.add_loss("router_z", self.router_z * z_loss(logits, counted))


def mixture(
    experts: nn.ModuleList,
    x: Float[Tensor, "b t d"],
    chosen: Int[Tensor, "b t k"],
    weights: Float[Tensor, "b t k"],
    context: Context,
) -> Float[Tensor, "b t d"]:
    """sum_k weights_k expert_(chosen_k)(x): tokens sorted by expert, each expert called once on all that are its own.

    An expert without a token is called on none: its gradient is zero and not missing, so that every optimizer
    treats it by one rule. How many tokens each has is all that a step asks of its device, once in every layer.
    """
    k, flat = chosen.shape[-1], chosen.flatten()
    order = flat.argsort(stable=True)
    # bincount would ask a CUDA device for the smallest and the largest entry first
    counts = flat.new_zeros(len(experts)).scatter_add(0, flat, torch.ones_like(flat)).tolist()
    parts = x.flatten(0, 1)[order // k].split(counts)
    done = torch.cat([expert(part[None], context)[0] for expert, part in zip(experts, parts, strict=True)])
    back = done[order.argsort()].view(*chosen.shape, -1)
    return (back * weights[..., None]).sum(2).to(x.dtype)
