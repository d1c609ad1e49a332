from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modernllm.moe.router import best
from modernllm.moe.topk import TopK
from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Series
from modernllm.telemetry.statistics import number


class Routers:
    """Where tokens go: the busiest expert's load over the mean load, the share of experts without a token, and two
    entropies in units of log E, of the load and of a token's scores, the mean over tokens.
    """

    def __init__(self) -> None:
        self.found: Series = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        for path, module in model.named_modules():
            if isinstance(module, TopK):
                yield module.router.register_forward_hook(self._routes(module, layers.place(path)))

    def _routes(self, owner: TopK, place: str):
        @torch.no_grad()
        def hook(router: nn.Module, args: tuple[Tensor], logits: Tensor) -> None:
            scores = owner.score(logits)
            n_experts = scores.shape[-1]
            chosen = best(owner.preference(scores), owner.k, owner.n_groups, owner.groups)
            load = torch.bincount(chosen.flatten(), minlength=n_experts).float()
            values = {
                "max_load": load.max() / load.mean(),
                "idle": (load == 0).float().mean(),
                "load_entropy": _entropy(load),
                "entropy": _entropy(scores).mean(),
            }
            for name, value in values.items():
                self.found.setdefault(f"router_{name}", {})[place] = number(value)

        return hook

    def series(self) -> Series:
        return self.found


def _entropy(parts: Tensor) -> Tensor:
    """Of the shares of the parts, over the log of their number."""
    shares = parts / parts.sum(-1, keepdim=True)
    return torch.special.entr(shares).sum(-1) / math.log(max(2, parts.shape[-1]))
