"""Checkpoints that can go: they are most of a study's size, and no part of its record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modernllm.checkpoint import complete
from modernllm.runs.directory import RunDirectory
from modernllm.runs.studies import Entry

Keep = Literal["weights", "newest", "nothing"]
"""`newest`: one checkpoint to go on from, and the weights; `weights`: the best and the last alone; or neither."""


@dataclass(frozen=True)
class Freed:
    entry: Entry
    files: list[Path]

    @property
    def bytes(self) -> int:
        return sum(path.stat().st_size for path in self.files)


def prunable(entries: list[Entry], keep: Keep) -> Iterator[Freed]:
    """Files of finished runs that the rule lets go. What is running, interrupted or failed may still go on."""
    for entry in entries:
        if entry.status.get("status") == "finished" and (files := list(_files(entry, keep))):
            yield Freed(entry, files)


def _files(entry: Entry, keep: Keep) -> Iterator[Path]:
    folder = entry.path / "checkpoints"
    resumable = complete(folder) if folder.is_dir() else []  # newest first
    yield from resumable[1:] if keep == "newest" else resumable
    if keep == "nothing":
        yield from sorted(folder.glob("*.safetensors"))


def free(freed: Freed) -> None:
    """Delete, while nobody else can be at work on the run. RunningElsewhere if somebody is."""
    directory = RunDirectory(freed.entry.path)
    directory.acquire()
    try:
        for path in freed.files:
            path.unlink(missing_ok=True)
    finally:
        directory.release()
