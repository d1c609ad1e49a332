"""What tests that kill need to know of processes."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

PATIENCE = 200.0
"""Seconds that nothing takes unless it never comes, or many others are at work."""


def until(what: Callable[[], T], seconds: float = PATIENCE) -> T:
    """What it says, once that is true."""
    deadline = time.monotonic() + seconds
    while not (found := what()):
        assert time.monotonic() < deadline, "it never came"
        time.sleep(0.02)
    return found


def is_alive(pid: int) -> bool:
    """Whether it still does anything; a zombie does not."""
    try:
        return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return False


def has_taken(pid: int, number: int) -> bool:
    """Whether no such signal waits for it any more: of two that wait, it would see one."""
    words = dict(line.split(":\t", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return not (int(words["SigPnd"], 16) | int(words["ShdPnd"], 16)) >> (number - 1) & 1


def catches(pid: int, number: int) -> bool:
    """Whether it does something of its own about such a signal; what is gone does nothing."""
    try:
        (mask,) = [line for line in Path(f"/proc/{pid}/status").read_text().splitlines() if line.startswith("SigCgt:")]
    except OSError:
        return False
    return bool(int(mask.split()[1], 16) >> (number - 1) & 1)


def children_of(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
