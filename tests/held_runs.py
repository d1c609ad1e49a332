"""Runs with norm=held (tests/executor/planted.py): each waits in the middle of a step until all are let go."""

from __future__ import annotations

from pathlib import Path

from processes import is_alive


def hold(folder: Path, steps: int) -> None:
    """Runs of commands that are started in `folder`, after so many steps each."""
    for mark in folder.glob("held-*"):  # of earlier ones, whose numbers others may have by now
        mark.unlink()
    (folder / "hold").write_text(str(steps), encoding="utf-8")


def let_go(folder: Path) -> None:
    (folder / "hold").unlink()


def held(folder: Path, number: int = 1) -> list[int]:
    """Their processes, once there are so many."""
    found = [int(mark.name.partition("-")[2]) for mark in folder.glob("held-*")]
    found = [pid for pid in found if is_alive(pid)]
    return found if len(found) >= number else []
