"""How quick something is, whatever else the machine does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable


def cpu_seconds(work: Callable[[], object], tries: int = 3) -> float:
    """Of this process, for the quickest of so many times that `work` is done: others on the same core only add."""
    return min(_once(work) for _ in range(tries))


def _once(work: Callable[[], object]) -> float:
    before = time.process_time()
    work()
    return time.process_time() - before
