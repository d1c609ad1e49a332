from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from modernllm.telemetry.observer import Series, told


class NoiseScale:
    """|G|^2 ~ (B |g_B|^2 - b |g_b|^2) / (B - b), S ~ (|g_b|^2 - |g_B|^2) / (1/b - 1/B), from the first micro-batch of b
    and the step of B target tokens  (McCandlish et al., 2018)

    Both are noisy and unbiased, so they are recorded apart: the scale S / |G|^2, in tokens, is that of their means.
    """

    def __init__(self, parameters: Sequence[Tensor]):
        self.parameters = parameters
        self.first: dict[int, tuple[int, int, Tensor]] = {}

    @torch.no_grad()
    def accumulated(self, step: int, n: int, n_targets: int, scale: Tensor) -> None:
        """After the backward of a micro-batch of n targets, whose gradient has the weight n / n_targets; only the first
        of a step is looked at, and none that is the whole step.
        """
        present = [p.grad for p in self.parameters if p.grad is not None]
        if step in self.first or not 0 < n < n_targets or not present:
            return
        norm = torch.stack(torch._foreach_norm(present)).norm() / scale * (n_targets / n)
        self.first = {step: (n, n_targets, norm.square())} | self.first

    def series(self, step: int, gradients: Float[Tensor, " n"]) -> Series:
        """Of a step from the norms of its gradients; empty where it was not cut."""
        if step not in self.first:
            return {}
        small, large, square = self.first.pop(step)
        of_small, of_large = float(square), float(gradients.double().square().sum())
        return told(
            {
                "noise": {
                    "signal": (large * of_large - small * of_small) / (large - small),
                    "variance": (of_small - of_large) / (1 / small - 1 / large),
                }
            }
        )
