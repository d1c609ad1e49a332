"""Ctrl-C and SIGTERM once: finish the step and keep everything; twice: stop at once."""

from __future__ import annotations

import signal
import threading
from types import FrameType
from typing import Any


class Interrupt:
    """Inside the `with`, `signal` is the number of the first signal that came, else None."""

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.signal: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def __enter__(self) -> Interrupt:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python forbids handlers
            self._before = {number: signal.signal(number, self._note) for number in self.SIGNALS}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.signal = number
        self._restore()

    def __exit__(self, *exception: object) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
