"""The loss of a batch, as one module: what is compiled and wrapped for several devices."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from modernllm.batch import IGNORED, Batch
from modernllm.context import Context


class Objective(nn.Module):
    """Sum over the target tokens of -log p(target), in float32, and of the auxiliary losses.

    Sums, since only the caller knows how many targets the whole step has: a mean of means depends on the cut.
    `z_loss` (log Z)^2 is one of them: it keeps the logits' normaliser near 1  (PaLM, Chowdhery et al., 2022: 1e-4).
    """

    def __init__(self, model: nn.Module, z_loss: float = 0.0):
        super().__init__()
        self.model, self.z_loss = model, z_loss

    def forward(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        context = Context.of(batch)
        logits = self.model(batch, context)
        nats = token_losses(logits, batch)
        if self.z_loss:  # a backward pass through all logits more
            context.add_loss("z", self.z_loss * log_normalisers(logits, nats, batch).square().sum())
        return nats.sum(), sum(context.losses.values(), start=nats.new_zeros(()))


def token_losses(logits: Float[Tensor, "b t v"], batch: Batch) -> Float[Tensor, "b t"]:
    """-log p of each target in nats, zero where it is ignored."""
    assert batch.targets is not None
    flat = F.cross_entropy(
        logits.flatten(0, 1).to(torch.float32),
        batch.targets.flatten(),
        ignore_index=IGNORED,
        reduction="none",
    )
    return flat.view(batch.targets.shape)


def log_normalisers(logits: Float[Tensor, "b t v"], nats: Float[Tensor, "b t"], batch: Batch) -> Float[Tensor, "b t"]:
    """log sum exp of each position's logits, zero where the target is ignored: -log p(target) plus its logit."""
    assert batch.targets is not None
    counted = batch.targets != IGNORED
    chosen = logits.gather(-1, batch.targets.where(counted, 0)[..., None])[..., 0]
    return (nats + chosen.to(torch.float32)).where(counted, 0.0)
