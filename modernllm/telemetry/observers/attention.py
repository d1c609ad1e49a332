from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modernllm.attention.attend import Attend, causal
from modernllm.attention.explicit import ExplicitAttend
from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Series

QUERIES = 512
"""Of so many queries of a row, evenly spread, the maps are looked at."""
SINK = 0.3


class Maps(NamedTuple):
    """What a softmax attention attends to, in float32, and the products behind it before cap, bias and mask."""

    products: Float[Tensor, "b h t s"]
    weights: Float[Tensor, "b h t s"]
    seen: Bool[Tensor, "#b 1 t s"]


class Attention:
    """Each head: its largest logit |q k| scale (of keys that may be seen), H_i / log(keys that i sees) averaged over
    queries that see two or more, and whether the first key takes more than 0.3 of the attention, as a share of heads
    (Zhai et al., 2023; Gu et al., 2024).

    The fused kernels keep no scores, so they are worked out again from the q and k that `Attend` was given.
    """

    def __init__(self) -> None:
        self.found: Series = {"attention_max_logit": {}, "attention_entropy": {}, "attention_sinks": {}}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        for path, module in model.named_modules():
            if isinstance(module, Attend):
                yield module.register_forward_pre_hook(self._map(layers.place(path)), with_kwargs=True)

    def _map(self, place: str):
        def hook(attend: Attend, args: tuple, named: dict) -> None:
            maps = attention_maps(attend, *args, **named)
            logits, entropy, sink = (values.tolist() for values in (_logits(maps), _entropy(maps), _sink(maps)))
            for head, (logit, h) in enumerate(zip(logits, entropy, strict=True)):
                name = f"{place}.head.{head:02}"
                self.found["attention_max_logit"][name], self.found["attention_entropy"][name] = logit, h
            self.found["attention_sinks"][place] = sum(share > SINK for share in sink) / len(sink)

        return hook

    def series(self) -> Series:
        return self.found


@torch.no_grad()
def attention_maps(
    attend: Attend,
    q: Float[Tensor, "b h t k"],
    k: Float[Tensor, "b g s k"],
    v: Float[Tensor, "b g s n"],
    mask: Bool[Tensor, "#b 1 t s"] | None,
    bias: Float[Tensor, "#b h t s"] | None,
) -> Maps:
    """Of at most QUERIES queries a row. A query that may see nothing has weights of zero."""
    some = slice(None, None, -(-q.shape[2] // QUERIES))
    seen = (causal(q, k) if mask is None else mask)[:, :, some]
    with torch.autocast(q.device.type, enabled=False):
        by_group = q[:, :, some].float().unflatten(1, (k.shape[1], -1))
        products = attend.scale * (by_group @ k.float()[:, :, None].transpose(-1, -2)).flatten(1, 2)
        explicit = isinstance(attend, ExplicitAttend)
        scores = attend.cap(products) if explicit else products
        scores = scores if bias is None else scores + bias[:, :, some]
        scores = scores.masked_fill(~seen, float("-inf"))
        weights = attend.softmax(scores) if explicit else scores.softmax(-1)
    return Maps(products, weights.masked_fill(~seen, 0.0), seen)


def _logits(maps: Maps) -> Float[Tensor, " h"]:
    return maps.products.abs().masked_fill(~maps.seen, 0.0).amax((0, 2, 3))


def _entropy(maps: Maps) -> Float[Tensor, " h"]:
    """In units of what an even spread would have; a sink's share is left out, and a query of which it takes all."""
    total = maps.weights.sum(-1)
    among = maps.weights / total.where(total > 0, 1.0)[..., None]
    n_keys = maps.seen.sum(-1).expand(total.shape)
    choosing = (n_keys > 1) & ~(total == 0)
    share = torch.special.entr(among).sum(-1) / n_keys.clamp_min(2).log()
    return share.masked_fill(~choosing, 0.0).sum((0, 2)) / choosing.sum((0, 2))


def _sink(maps: Maps) -> Float[Tensor, " h"]:
    return maps.weights[..., 0].mean((0, 2))
