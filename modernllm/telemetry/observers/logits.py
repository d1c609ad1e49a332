from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from modernllm.telemetry.layers import Layers
from modernllm.telemetry.observer import Series, first_tensor
from modernllm.telemetry.statistics import number


class Logits:
    """What the model gives: mean and RMS of the logits, mean and largest log Z = log sum exp. With the loss still
    good, a mean that falls and falls is the drift that z-loss holds back.
    """

    def __init__(self) -> None:
        self.found: Series = {}

    def attach(self, model: nn.Module, layers: Layers) -> Iterator[RemovableHandle]:
        yield model.register_forward_hook(self._logits)

    @torch.no_grad()
    def _logits(self, module: nn.Module, args: Any, output: Any) -> None:
        z = first_tensor(output)
        if z is None or not z.numel():
            return
        z = z.float()
        normaliser = z.logsumexp(-1)
        values = {
            "mean": z.mean(),
            "rms": z.square().mean().sqrt(),
            "log_z": normaliser.mean(),
            "log_z_max": normaliser.max(),
        }
        self.found = {"logits": {name: number(value) for name, value in values.items()}}

    def series(self) -> Series:
        return self.found
