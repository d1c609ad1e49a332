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
    """

    def __init__(self, model: nn.Module):
        super().__init__()
        self.model = model

    def forward(self, batch: Batch) -> tuple[Float[Tensor, ""], Float[Tensor, ""]]:
        context = Context.of(batch)
        logits = self.model(batch, context)
        return token_losses(logits, batch).sum(), sum(context.losses.values(), start=logits.new_zeros(()))


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
