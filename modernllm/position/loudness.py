"""How loud positions are where the stream starts: the size of what a scheme adds, against that of the tokens."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.model import Decoder

EVEN = 3.0
"""Within this factor both are heard: sines of RMS 0.7 on tokens of RMS 1 are meant so."""


@torch.no_grad()
def loudness(model: Decoder) -> float | None:
    """RMS of what is added to the embedded tokens over one whole context, over their own; None where nothing is."""
    tokens = torch.arange(model.context_length, device=next(model.parameters()).device)[None] % model.vocab_size
    context = Context.of(Batch(tokens))
    model.position.prepare(context)
    embedded = model.embedding(tokens)
    added = model.position.embed(embedded, context) - embedded
    return float(rms(added) / rms(embedded)) if added.any() else None


def rms(x: Float[Tensor, "*b"]) -> Float[Tensor, ""]:
    return x.square().mean().sqrt()
