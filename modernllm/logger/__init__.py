"""Trackers beside the local record: `start`, rows and events, one `finish`; they mirror, never decide."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, runtime_checkable

from modernllm.logger.local import LocalLogger
from modernllm.logger.wandb_logger import WandbLogger

__all__ = ["LocalLogger", "Logger", "WandbLogger"]


@runtime_checkable
class Logger(Protocol):
    """What the trainer calls. No method raises, none waits for the tracker but `finish`, some seconds.

    `problems` grows by one sentence per thing that went wrong with the tracker, each once; the run goes on.
    """

    problems: list[str]

    def start(self, *, directory: Path, run_id: str, study: str, arm: str, tags: list[str], config: dict) -> None: ...

    def log(self, row: dict) -> None:
        """One row of metrics.jsonl, with "step"; nested dicts and non-finite numbers are allowed."""

    def event(self, event: dict) -> None:
        """One row of events.jsonl: "step", "kind", "message"."""

    def finish(self, summary: dict, failed: bool) -> None:
        """The run's own final values; `failed` is for errors, a non-finite run has not failed."""
