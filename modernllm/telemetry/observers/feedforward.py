from __future__ import annotations

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
CLOSED = 1e-2


class FeedForwards:
    """What reaches W_out in each feed-forward: mean, std, kurtosis and largest entry; where `act` is a rectifier, the
    shares of units that no token turned on (`dead`, max u <= 0) and that fewer than 1 in 1000 did (`near_dead`, the
    dead included).
    """

    def __init__(self) -> None:
        self.found: Series = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        for path, owner in model.named_modules():
            parts = dict(owner.named_children())
            if {"act", "up", "out"} <= parts.keys():
                place = layers.place(path)
                yield parts["out"].register_forward_pre_hook(self._hidden(place))
                if isinstance(parts["act"], RECTIFIERS):
                    yield parts["act"].register_forward_pre_hook(self._units(place))

    def _hidden(self, place: str):
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            self._add("activation", place, moments(args[0]))

        return hook

    def _units(self, place: str):
        def hook(module: nn.Module, args: tuple[Tensor]) -> None:
            (u,) = args
            if u.numel():
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
