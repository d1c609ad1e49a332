"""Norms that end their process in some way when they have been used a few times, that take their time, or wait."""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from modernllm.norm.rmsnorm import RMSNorm
from modernllm.quantities import Count

SPENT = 8
"""Steps that a norm does before it ends the process."""


class Doomed(RMSNorm):
    """rmsnorm, until it isn't"""

    def __init__(self, dim: Count, *, ends: Literal["kill", "raise", "exit", "leave", "return", "255", "hungry"]):
        super().__init__(dim, 1e-6)
        self.ends, self.used = ends, 0

    def forward(self, x: Tensor) -> Tensor:
        self.used += self.training and torch.is_grad_enabled()
        if self.used > SPENT:
            getattr(self, f"_{self.ends}")()
        return super().forward(x)

    def _kill(self) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    def _raise(self) -> None:
        raise RuntimeError("planted")

    def _exit(self) -> None:
        sys.exit(0)

    def _leave(self) -> None:
        os._exit(44)

    def _return(self) -> None:
        os._exit(0)

    def _255(self) -> None:
        os._exit(255)

    def _hungry(self) -> None:
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + (64 << 20), -1))
        self.eaten = bytearray(1 << 30)


class Slow(RMSNorm):
    """rmsnorm, with a rest at every use in training"""

    def __init__(self, dim: Count, *, seconds: float):
        super().__init__(dim, 1e-6)
        self.seconds = seconds

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            time.sleep(self.seconds)
        return super().forward(x)


class Held(RMSNorm):
    """rmsnorm; after as many steps as a file `hold` beside the command says, it waits until that is gone"""

    def __init__(self, dim: Count):
        super().__init__(dim, 1e-6)
        self.used = 0

    def forward(self, x: Tensor) -> Tensor:
        if self.training and torch.is_grad_enabled():
            self._wait()
            self.used += 1
        return super().forward(x)

    def _wait(self) -> None:
        with suppress(FileNotFoundError):
            while self.used >= int(Path("hold").read_text(encoding="utf-8")):
                Path(f"held-{os.getpid()}").touch()
                time.sleep(0.01)


class Refusing(RMSNorm):
    """is not made"""

    def __init__(self, dim: Count, *, error: Literal["KeyError", "SystemExit"]):
        raise {"KeyError": KeyError, "SystemExit": SystemExit}[error]("planted")
