"""Checkpoints: plain tensors and plain containers, written whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch

KEEP = 2
"""Complete checkpoints kept: the newest, and one to fall back on."""


def save(folder: Path, step: int, content: dict[str, Any]) -> Path:
    """Write `step-<step>.pt` by way of a temporary file, then forget all but the newest KEEP. OSError if the disk is
    full, with older checkpoints intact.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{step:08d}.pt"
    temporary = path.with_suffix(".tmp")
    try:
        with temporary.open("wb") as file:
            torch.save({"step": step, **content}, file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, RuntimeError) as error:  # torch hides a full disk in a RuntimeError
        temporary.unlink(missing_ok=True)
        raise OSError(f"cannot write the checkpoint {path}: {error.__context__ or error}") from error
    for old in [*complete(folder)[KEEP:], *folder.glob("step-*.tmp")]:  # a killed writer leaves its part behind
        old.unlink()
    return path


def complete(folder: Path) -> list[Path]:
    """Checkpoints, newest first."""
    return sorted(folder.glob("step-*.pt"), reverse=True)


def load(path: Path) -> dict[str, Any]:
    return torch.load(path, map_location="cpu", weights_only=True)


def load_newest(folder: Path) -> tuple[dict[str, Any] | None, list[str]]:
    """The newest checkpoint that can be read, and a sentence for each that cannot."""
    broken = []
    for path in complete(folder):
        try:
            return load(path), broken
        except Exception as error:  # whatever a truncated archive raises
            broken.append(f"checkpoint {path.name} cannot be read ({type(error).__name__}), falling back")
    return None, broken
