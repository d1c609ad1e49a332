"""`trainer.compile=true`: the loss and its gradients through torch.compile, with the numbers of the run without it."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable

import torch
from torch import Tensor

from modernllm.batch import Batch
from modernllm.objective import Objective


def compiled(objective: Objective) -> Callable[[Batch], tuple[Tensor, Tensor]]:
    """What other runs of this process compiled is forgotten: after eight variants dynamo silently gives up.

    Dropout draws what it would draw uncompiled, since a run is the same run either way.
    """
    torch.compiler.reset()
    return torch.compile(objective, options={"fallback_random": True})


def require_compiler(device: torch.device) -> None:
    """ValueError where torch would find none in the first step: it writes C++ for a CPU, for CUDA a launcher in C."""
    language, variable, usual = ("C", "CC", "gcc") if device.type == "cuda" else ("C++", "CXX", "g++")
    name = os.environ.get(variable) or {"darwin": "clang++", "win32": "cl"}.get(sys.platform, usual)
    if not shutil.which(name):
        raise ValueError(
            f"trainer.compile=true: torch compiles through a {language} compiler, and {name} is not on this machine; "
            f"install it, name another one in ${variable}, or leave trainer.compile=false"
        )
