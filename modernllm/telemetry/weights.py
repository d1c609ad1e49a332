"""What one step does to the weights, tensor by tensor: sizes of gradients, weights and of the step itself."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.linear import parameter_roles
from modernllm.optimizer import Optimizer
from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Series, told

NEAR_EPS = 10.0


class Moved(NamedTuple):
    """Norms of each tensor before the step and of what the step added, and the share of its second moments near eps."""

    before: Float[Tensor, " n"]
    step: Float[Tensor, " n"]
    near_eps: Float[Tensor, " n"]


class Weights:
    """`before()` and `after(optimizer)` a step; the difference is the step as it was taken, weight decay included."""

    def __init__(self, model: nn.Module):
        self.names, self.parameters, _ = zip(*parameter_roles(model), strict=True)
        layers = Layers(self.names)
        self.layers = [layers.of(name) for name in self.names]
        self.sizes = [float(p.numel()) for p in self.parameters]
        self.kept: list[Tensor] = []

    @torch.no_grad()
    def before(self) -> None:
        self.kept = [p.clone() for p in self.parameters]

    @torch.no_grad()
    def after(self, optimizer: Optimizer) -> Moved:
        """Nothing here waits for the device."""
        steps = torch._foreach_sub(list(self.parameters), self.kept)
        norms = torch._foreach_norm([*self.kept, *steps])
        n = len(self.kept)
        self.kept = []
        return Moved(torch.stack(norms[:n]), torch.stack(norms[n:]), near_eps(optimizer, list(self.parameters)))

    def series(self, gradients: Float[Tensor, " n"], moved: Moved) -> tuple[Series, Series]:
        """By layer and by tensor: gradient norm and RMS, weight norm, update over weight, moments near eps.

        Squares of norms add up to those of the layer, and of all layers to the whole.
        """
        columns = [values.cpu().tolist() for values in (gradients, *moved)]
        tensors = dict(zip(self.names, zip(self.sizes, *columns, strict=True), strict=True))
        members: dict[str, list[Any]] = {}
        for layer, row in zip(self.layers, tensors.values(), strict=True):
            members.setdefault(layer, []).append(row)
        layers = {layer: _joined(rows) for layer, rows in members.items()}
        return _series(layers), _series(tensors)


def _joined(rows: list[tuple[float, ...]]) -> tuple[float, ...]:
    """Of a layer from its tensors."""
    size = sum(row[0] for row in rows)
    norms = [math.sqrt(sum(row[column] ** 2 for row in rows)) for column in (1, 2, 3)]
    known = [row for row in rows if not math.isnan(row[4])]
    near = sum(row[0] * row[4] for row in known) / sum(row[0] for row in known) if known else math.nan
    return (size, *norms, near)


def _series(rows: dict[str, tuple[float, ...]]) -> Series:
    series: Series = {
        "grad_norm": {name: gradient for name, (_, gradient, _, _, _) in rows.items()},
        "grad_rms": {name: gradient / math.sqrt(size) for name, (size, gradient, _, _, _) in rows.items() if size},
        "weight_norm": {name: weight for name, (_, _, weight, _, _) in rows.items()},
    }
    more: Series = {
        "update_ratio": {name: step / weight for name, (_, _, weight, step, _) in rows.items() if weight},
        "near_eps": {name: near for name, (_, _, _, _, near) in rows.items()},
    }
    return series | told(more)


def near_eps(optimizer: Optimizer, parameters: list[Tensor]) -> Float[Tensor, " n"]:
    """Share of each tensor's second moments with sqrt(v / (1 - b2^t)) < 10 eps, where Adam's step is no longer of the
    size of its rate; NaN where a tensor has none, as under other optimizers.
    """
    shares: dict[Tensor, Tensor] = {}
    for adam in _adams(optimizer):
        for group in adam.param_groups:
            known = [p for p in group["params"] if "exp_avg_sq" in adam.state.get(p, {})]
            if not known:
                continue
            steps = torch.stack([adam.state[p]["step"] for p in known])
            edges = (NEAR_EPS * group["eps"]) ** 2 * (1 - group["betas"][1] ** steps)
            for p, edge in zip(known, edges.unbind(), strict=True):
                shares[p] = torch.count_nonzero(adam.state[p]["exp_avg_sq"] < edge) / p.numel()
    nothing = torch.full((), math.nan, device=parameters[0].device)
    return torch.stack([shares.get(p, nothing) for p in parameters])


def _adams(optimizer: Any) -> list[torch.optim.Adam]:
    """The optimizer, or those of which it is made, as far as they are Adam."""
    parts = [optimizer, *vars(optimizer).values()]
    return [part for part in parts if isinstance(part, torch.optim.Adam)]
