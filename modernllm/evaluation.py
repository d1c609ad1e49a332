"""Validation loss, token-weighted over a fixed list of windows."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import NamedTuple

import torch
from jaxtyping import Int
from torch import Tensor, nn

from modernllm.batch import IGNORED, Batch
from modernllm.distributed import OneProcess
from modernllm.objective import token_losses


class Loss(NamedTuple):
    """Nats per target token, and bits per byte of the text behind the targets."""

    nats_per_token: float
    bits_per_byte: float


@contextmanager
def evaluating(model: nn.Module):
    """Eval mode inside, the mode of before outside."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


@contextmanager
def kept_buffers(model: nn.Module) -> Iterator[None]:
    """Afterwards every buffer is the tensor that it was, with the numbers that it had."""
    own = [(module, name, buffer) for module in model.modules() for name, buffer in module._buffers.items()]
    values = [(buffer, buffer.clone()) for buffer in model.buffers()]
    try:
        yield
    finally:
        for module, name, buffer in own:
            module._buffers[name] = buffer
        with torch.no_grad():
            for buffer, value in values:
                buffer.copy_(value)


@torch.no_grad()
def evaluate(
    model: nn.Module,
    batches: Iterable[Batch],
    token_bytes: Int[Tensor, " v"],
    autocast: AbstractContextManager,
    group: OneProcess | None = None,
) -> Loss:
    """Sums over all target tokens, divided once: how the windows are batched, and dealt to the ranks of a group, does
    not matter. ValueError if none.
    """
    group = group or OneProcess()
    nats, n_targets, n_bytes = 0.0, 0, 0
    with evaluating(model), autocast:
        for batch in group.deal(list(batches)):
            assert batch.targets is not None
            nats += float(token_losses(model(batch), batch).cpu().double().sum())  # MPS has no float64
            targets = batch.targets[batch.targets != IGNORED]
            n_targets += len(targets)
            n_bytes += int(token_bytes[targets].sum())
    nats, n_targets, n_bytes = group.total(nats, n_targets, n_bytes)
    if not n_targets:
        raise ValueError("there is nothing to evaluate: no position of these batches has a target")
    return Loss(nats / n_targets, nats / math.log(2) / n_bytes if n_bytes else math.nan)
