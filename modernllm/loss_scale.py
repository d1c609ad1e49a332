"""fp16 gradients are scaled up so that small ones do not round to zero, and down again before anything reads them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


class NoScale:
    """The gradients as they are: fp32 and bf16 have the range."""

    def scale(self, loss: Tensor) -> Tensor:
        return loss

    def unscale(self, gradients: list[Tensor]) -> None: ...

    def overflowed(self, finite: Tensor) -> Tensor:
        """1 where gradients are not finite because of the scale alone; takes note for the next step."""
        return torch.zeros_like(finite, dtype=torch.float32)

    def state_dict(self) -> dict[str, Any]:
        return {}

    def load_state_dict(self, state: dict[str, Any]) -> None: ...


class DynamicScale:
    """Halve the scale when gradients overflow, double it after `PATIENCE` steps without  (Micikevicius et al., 2018)

    All on the device. At a scale of 1 an overflow is no longer the scale's doing.
    """

    PATIENCE = 2000

    def __init__(self, device: torch.device, start: float = 2.0**16):
        self.value = torch.tensor(start, device=device)
        self.calm = torch.zeros((), device=device)

    def scale(self, loss: Tensor) -> Tensor:
        return loss * self.value

    def unscale(self, gradients: list[Tensor]) -> None:
        torch._foreach_mul_(gradients, 1 / self.value)

    def overflowed(self, finite: Tensor) -> Tensor:
        over = ~finite & (self.value > 1)
        self.calm = torch.where(finite, self.calm + 1, 0.0)
        grown = torch.where(self.calm >= self.PATIENCE, self.value * 2, self.value)
        self.calm = torch.where(self.calm >= self.PATIENCE, 0.0, self.calm)
        self.value = torch.where(finite, grown, (self.value / 2).clamp(min=1))
        return over.float()

    def state_dict(self) -> dict[str, Any]:
        return {"value": self.value, "calm": self.calm}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.value, self.calm = (state[name].to(self.value.device) for name in ("value", "calm"))
