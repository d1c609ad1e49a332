"""Text from a model, one token after the other, with its cache where it has one."""

from __future__ import annotations

import torch
from jaxtyping import Int
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.evaluation import evaluating
from modernllm.model import Decoder
from modernllm.quantities import Count, NonNegative


@torch.no_grad()
def generate(
    model: nn.Module,
    prompt: Int[Tensor, "b t"],
    n_tokens: Count,
    temperature: NonNegative = 1.0,
    seed: int = 0,
) -> Int[Tensor, "b s"]:
    """`prompt` and `n_tokens` more, drawn from softmax(logits / temperature) with a generator of its own (0: the
    most likely token). A token that is not finite in its logits ends the text early.
    """
    generator = torch.Generator().manual_seed(seed)
    n_rows, past = prompt.shape[0], 0
    length = prompt.shape[1] + n_tokens
    states = model.states(n_rows, length) if isinstance(model, Decoder) else None
    tokens, new = prompt, prompt
    with evaluating(model):
        for _ in range(n_tokens):
            batch = Batch(tokens if states is None else new)
            context = Context.of(batch) if states is None else Context.of(batch, states, past, length)
            logits = model(batch, context)[:, -1].float().cpu()
            past += new.shape[1]
            if not logits.isfinite().all():
                break
            if temperature == 0:
                new = logits.argmax(-1, keepdim=True)
            else:
                new = torch.multinomial((logits / temperature).softmax(-1), 1, generator=generator)
            new = new.to(prompt.device)
            tokens = torch.cat((tokens, new), 1)
    return tokens
