"""Optimizers: made with `optimizer(model, lr)`, torch's own underneath; decay goes by the role of a parameter."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from modernllm.linear import Role, parameter_roles
from modernllm.quantities import NonNegative, Positive, Probability

DECAYED: tuple[Role, ...] = ("hidden", "gate", "stream", "head")
"""Matrices. Tables, gains and biases are not decayed: shrinking them only changes a scale."""


def parameter_groups(model: nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Every parameter in exactly one of two groups: decayed, and not."""
    decayed, kept = [], []
    for _, parameter, role in parameter_roles(model):
        (decayed if role in DECAYED else kept).append(parameter)
    return [{"params": decayed, "weight_decay": weight_decay}, {"params": kept, "weight_decay": 0.0}]


class AdamW(torch.optim.AdamW):
    """Adam with decoupled decay: w <- w - lr (m / (sqrt(v) + eps) + weight_decay w)  (Loshchilov and Hutter, 2019)

    Fused, because the fused kernel reads `found_inf` on the device: a poisoned step is skipped without waiting.
    """

    def __init__(
        self,
        model: nn.Module,
        lr: Positive,
        betas: list[Probability],
        eps: Positive,
        weight_decay: NonNegative,
    ):
        if len(betas) != 2:
            raise ValueError(f"optimizer.betas={betas}: two numbers are needed, such as [0.9, 0.95]")
        super().__init__(
            parameter_groups(model, weight_decay), lr=lr, betas=(betas[0], betas[1]), eps=eps, fused=True
        )
