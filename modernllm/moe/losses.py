"""Auxiliary losses of a router, as sums over the counted tokens: divided by their number they are the mean."""

from __future__ import annotations

from jaxtyping import Bool, Float, Int
from torch import Tensor


def usage(chosen: Int[Tensor, "b t k"], n_experts: int, counted: Bool[Tensor, "b t"]) -> Int[Tensor, "b e"]:
    """How many counted tokens of each row go to each expert."""
    tallies = counted[..., None].expand_as(chosen).long().flatten(1)
    return tallies.new_zeros(len(chosen), n_experts).scatter_add(1, chosen.flatten(1), tallies)


def balance_loss(
    scores: Float[Tensor, "b t e"], chosen: Int[Tensor, "b t k"], counted: Bool[Tensor, "b t"]
) -> Float[Tensor, ""]:
    """sum_e f_e P_e of each row, once for each of its counted tokens: f_e is the share of the row's tokens that go to
    expert e, times E / k, and P_e the mean of its score over that of all  (sequence-wise; DeepSeek-V3)

    1 where all experts are used alike, E / k where k experts are all that is used. By row, so that it does not depend
    on how a batch is cut; and of this layer alone.
    """
    n_experts, k = scores.shape[-1], chosen.shape[-1]
    n_tokens = counted.sum(1, keepdim=True)
    shares = scores / scores.sum(-1, keepdim=True).clamp_min(1e-20)
    mean = (shares * counted[..., None]).sum(1) / n_tokens.clamp_min(1)
    return (usage(chosen, n_experts, counted) * mean).sum() * (n_experts / k)


def z_loss(logits: Float[Tensor, "b t e"], counted: Bool[Tensor, "b t"]) -> Float[Tensor, ""]:
    """logsumexp(logits)^2 of each counted token, which keeps the logits small  (ST-MoE; Zoph et al., 2022)"""
    return (logits.logsumexp(-1).square() * counted).sum()
