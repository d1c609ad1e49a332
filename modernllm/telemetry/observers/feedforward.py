from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from modernllm.activation.relu2 import SquaredReLU
from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Series
from modernllm.telemetry.statistics import moments, number

RECTIFIERS = (nn.ReLU, nn.ReLU6, SquaredReLU)
"""Zero below zero: only their units can die."""
NEAR_DEAD = 1e-3
ENOUGH = 32
"""Tokens: a unit that half of all tokens turn on is off for so many with a chance of 2^-32."""
CLOSED = 1e-2


class FeedForwards:
    """What reaches W_out in each feed-forward: mean, std, kurtosis and largest entry; of rectifiers, whosever they are,
    the shares of units that no token turned on (`dead`, max u <= 0) and that fewer than 1 in 1000 did (`near_dead`, the
    dead included). An expert that fewer than ENOUGH tokens came to is told nothing of: its units had no chance.
    """

    def __init__(self) -> None:
        self.found: Series = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        for path, owner in model.named_modules():
            parts = dict(owner.named_children())
            if {"act", "up", "out"} <= parts.keys():
                place = layers.place(path)
                yield parts["out"].register_forward_pre_hook(self._hidden(place))
            if isinstance(owner, RECTIFIERS):
                yield owner.register_forward_pre_hook(self._units(layers.place(path)))

    def _hidden(self, place: str):
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            self._add("activation", place, moments(args[0]))

        return hook

    def _units(self, place: str):
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            u = args[0]
            if place in self.found.get("units_dead", {}):  # one module for several layers: of which, nobody can tell
                self._add("units", place, {"dead": math.nan, "near_dead": math.nan})
            elif u.ndim > 1 and u[..., :1].numel() >= ENOUGH:
                on = (u.detach() > 0).flatten(0, -2).float().mean(0)
                shares = {"dead": (on == 0).float().mean(), "near_dead": (on < NEAR_DEAD).float().mean()}
                self._add("units", place, {name: number(share) for name, share in shares.items()})

        return hook

    def _add(self, group: str, place: str, values: dict[str, float]) -> None:
        for name, value in values.items():
            self.found.setdefault(f"{group}_{name}", {})[place] = value

    def series(self) -> Series:
        return self.found


class Gates:
    """act(gate(x)) where something is multiplied by it: mean, std, and the share that lets less than 1 % through."""

    def __init__(self) -> None:
        self.found: Series = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        for path, owner in model.named_modules():
            parts = dict(owner.named_children())
            if {"act", "gate"} <= parts.keys():
                kind = "feedforward" if "up" in parts else "attention"
                yield parts["act"].register_forward_hook(self._gate(f"{layers.place(path)}.{kind}"))

    def _gate(self, place: str):
        def hook(module: nn.Module, args: tuple[Tensor], gate: Tensor) -> None:
            found = moments(gate)
            closed = number((gate.detach().abs() < CLOSED).float().mean()) if gate.numel() else torch.nan
            for name, value in (("mean", found["mean"]), ("std", found["std"]), ("closed", closed)):
                self.found.setdefault(f"gate_{name}", {})[place] = value

        return hook

    def series(self) -> Series:
        return self.found
