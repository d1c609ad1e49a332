from __future__ import annotations

import math

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from modernllm.batch import Batch
from modernllm.linear import parameter_roles
from modernllm.objective import token_losses
from modernllm.telemetry.probe import untouched


def sharpness(model: nn.Module, batch: Batch, iterations: int) -> float:
    """Largest eigenvalue (by size) of the Hessian of the mean loss, by power iteration on Hessian-vector products

    v <- H v / |H v| from a vector that is always the same; the Rayleigh quotient v H v of the last. In float32, about
    2 `iterations` backward passes. NaN where the model cannot be differentiated twice, or the numbers are not finite.
    """
    parameters = [p for _, p, _ in parameter_roles(model) if p.requires_grad]
    draw = torch.Generator().manual_seed(0)
    v = [torch.randn(p.shape, generator=draw).to(p.device, p.dtype) for p in parameters]
    v = _unit(v)
    largest = torch.full((), math.nan)
    try:
        with untouched(model), torch.enable_grad(), sdpa_kernel(SDPBackend.MATH):
            loss = token_losses(model(batch), batch).sum() / max(1, batch.n_targets)
            gradients = torch.autograd.grad(loss, parameters, create_graph=True, materialize_grads=True)
            for _ in range(iterations):
                products = [(g * direction).sum() for g, direction in zip(gradients, v, strict=True) if g.requires_grad]
                hv = torch.autograd.grad(
                    torch.stack(products).sum(), parameters, retain_graph=True, materialize_grads=True
                )
                largest = sum(((a * b).sum() for a, b in zip(v, hv, strict=True)), start=torch.zeros(()).to(v[0]))
                v = _unit(list(hv))
    except (RuntimeError, TypeError):  # an operator without a second derivative; no gradient depends on a parameter
        return math.nan
    found = float(largest)
    return found if math.isfinite(found) else math.nan


def _unit(v: list[Tensor]) -> list[Tensor]:
    size = torch.stack(torch._foreach_norm(v)).norm()
    return [part.detach() / size for part in v]
