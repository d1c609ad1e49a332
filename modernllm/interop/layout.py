"""A model with interleaved rotary pairs as the same one with half-split pairs: the dimensions of queries and keys in
another order, which no product of the two notices.
"""

from __future__ import annotations

import re

import torch
from torch import Tensor

from modernllm.interop.facts import Facts

TURNED = re.compile(r"\.attention\.(q|k|q_norm\.norm|k_norm\.norm)\.(weight|bias|gain)$")
"""What has a row for each dimension of queries or keys."""


def halved(facts: Facts, state: dict[str, Tensor]) -> tuple[Facts, dict[str, Tensor]]:
    """Both in the half layout, that of Hugging Face's classes, where attention is of softmax over heads of one size;
    latent attention, which they have in both layouts, is left as it is.
    """
    interleaved = facts.get("model.position.layout") == "interleaved"
    if not interleaved or facts.get("attention") == "mla":
        return facts, state
    order = halves(facts["model.head_dim"], facts["model.position.fraction"])
    moved = {name: _reordered(tensor, order) if TURNED.search(name) else tensor for name, tensor in state.items()}
    return facts | {"model.position.layout": "half"}, moved


def halves(head_dim: int, fraction: float) -> Tensor:
    """Where each dimension of a head is taken from: evens, odds, then those that are not turned."""
    turned = round(fraction * head_dim)
    return torch.cat((torch.arange(0, turned, 2), torch.arange(1, turned, 2), torch.arange(turned, head_dim)))


def _reordered(tensor: Tensor, order: Tensor) -> Tensor:
    return tensor.unflatten(0, (-1, len(order)))[:, order.to(tensor.device)].flatten(0, 1)
