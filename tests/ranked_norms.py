"""Norms that end rank 1 of a run in some way after a few steps, or hold every rank there for as long as is asked."""

from __future__ import annotations

import os
import signal
import time
from multiprocessing import parent_process
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from modernllm.norm.rmsnorm import RMSNorm
from modernllm.quantities import Count

SPENT = 4
"""Uses in training before rank 1 ends."""
HOLD = "hold"
"""A file in the folder of the command: while it is there, a norm that never ends waits."""
Way = Literal["never", "kill", "raise", "leave", "deaf", "unmade", "stillborn"]


class Ending(RMSNorm):
    """rmsnorm, until it isn't"""

    def __init__(self, dim: Count, eps: float, *, ends: Way):
        super().__init__(dim, eps)
        self.ends, self.used = ends, 0
        if parent_process() is not None:  # the first rank was started by no process of ours
            {"unmade": self._raise, "stillborn": self._kill}.get(ends, bool)()

    def forward(self, x: Tensor) -> Tensor:
        self.used += self.training and torch.is_grad_enabled()
        if self.used > SPENT and torch.distributed.is_initialized():
            if torch.distributed.get_rank() == 1:
                {"kill": self._kill, "raise": self._raise, "leave": self._leave, "deaf": self._kill}.get(
                    self.ends, bool
                )()
            elif self.ends == "deaf":
                time.sleep(1000)  # hears of nothing, as a rank that waits for nccl
        while self.ends == "never" and self.used > SPENT and Path(HOLD).exists():
            time.sleep(0.02)
        return super().forward(x)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _raise(self) -> None:
        raise RuntimeError("planted")

    def _leave(self) -> None:
        os._exit(44)
