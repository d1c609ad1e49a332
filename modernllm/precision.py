"""What a step is computed in, and on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Literal

import torch
from torch import Tensor
from torch.utils import deterministic as memory

Precision = Literal["fp32", "bf16", "fp16"]


def autocast(precision: Precision, device: torch.device) -> AbstractContextManager:
    """fp32 as it is, or matrix products in 16 bits with weights, stream and loss in fp32."""
    if precision == "fp32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16 if precision == "bf16" else torch.float16)


def working_dtype(x: Tensor) -> torch.dtype:
    """That of autocast where it is on, else that of the input."""
    kind = x.device.type
    return torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else x.dtype


FILL = "fill_uninitialized_memory"
"""Torch's setting that fills new memory with NaN under deterministic algorithms, at a price in every step."""


def is_deterministic(asked: bool | None, device: torch.device) -> bool:
    """Unless asked for: on a CPU, where it costs next to nothing."""
    return device.type == "cpu" if asked is None else asked


@contextmanager
def reproducible(on: bool) -> Iterator[None]:
    """The same numbers every time, or an error from an operator that cannot; what was set before returns."""
    algorithms, filling = torch.are_deterministic_algorithms_enabled(), getattr(memory, FILL)
    torch.use_deterministic_algorithms(on)
    setattr(memory, FILL, False)  # nothing here reads what it has not written
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(algorithms)
        setattr(memory, FILL, filling)


def pick_device(name: Literal["auto", "cpu", "cuda", "mps"]) -> torch.device:
    """`auto` takes an accelerator where there is one; a named one that is missing is an error."""
    present = {"cpu": True, "cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        return torch.device("cuda" if present["cuda"] else "mps" if present["mps"] else "cpu")
    if not present[name]:
        raise ValueError(
            f"trainer.device={name}: this machine has none that torch {torch.__version__} can use; "
            f"choose one of auto, {', '.join(kind for kind, there in present.items() if there)}"
        )
    return torch.device(name)


def threads_each(threads: int | None, ranks: int) -> int:
    """So many as were asked for, or an equal share of the cores for every rank of a run."""
    return threads or max(1, usable_cores() // ranks)


def usable_cores() -> int:
    """Cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
