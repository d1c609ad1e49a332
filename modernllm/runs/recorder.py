"""Where a run's numbers go: into its directory first, then to the tracker and the screen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

from torch import nn

from modernllm import checkpoint
from modernllm.logger import Logger, mirrored
from modernllm.report.console import Console
from modernllm.runs.directory import RunDirectory

OFTEN, TOLD = ("skipped", "overflow"), 5
"""Kinds of events that may come at every step, and how many of each the console tells."""


class Recorder:
    """`changed` is what is other than before where the run goes on."""

    def __init__(self, directory: RunDirectory, logger: Logger, console: Console, changed: Sequence[str] = ()):
        self.directory, self.logger, self.console, self.changed = directory, logger, console, changed
        self._told = 0
        self._events: Counter[str] = Counter()

    def step(self, row: dict[str, Any]) -> None:
        """The one row of a training step."""
        self.directory.metrics(row)
        self.directory.heartbeat(step=row["step"])
        self.logger.log(row)
        self.console.step(row)
        self._tell(row["step"])

    def telemetry(self, row: dict[str, Any]) -> None:
        self.directory.telemetry(row)
        self.logger.log(mirrored.telemetry(row))

    def evaluation(self, row: dict[str, Any]) -> None:
        self.directory.metrics(row)
        self.logger.log(row)
        self.console.evaluation(row)

    def event(self, kind: str, step: int, message: str, **details: Any) -> None:
        event = self.directory.event(kind, step, message, **details)
        self.logger.event(event)
        self._events[kind] += 1
        if kind not in OFTEN or self._events[kind] < TOLD:
            self.console.note(message)
        elif self._events[kind] == TOLD:
            self.console.note(f"{message} (others of the kind stand in events.jsonl only)")

    def _tell(self, step: int) -> None:
        """What went wrong with the tracker, each once."""
        for problem in self.logger.problems[self._told :]:
            self.directory.event("tracker", step, problem)
            self.console.note(problem)
        self._told = len(self.logger.problems)

    def weights(self, name: str, model: nn.Module) -> None:
        """The weights by themselves, for other programs."""
        checkpoint.save_weights(self.directory.checkpoints / f"{name}.safetensors", model)

    def checkpoint(self, step: int, content: dict[str, Any], keep: int) -> None:
        """What to go on from, once the steps that it stands for are on the disk."""
        self.directory.sync()
        checkpoint.save(self.directory.checkpoints, step, content, keep)

    def rewind(self, step: int) -> bool:
        """Forget what was recorded after `step`; whether anything had been recorded at all."""
        was_there = (self.directory.path / "metrics.jsonl").exists()
        if was_there:
            self.directory.truncate(step)
        if self.changed and step > 0:  # what starts over has nothing of before
            self.event("changed", step, f"goes on with {', '.join(self.changed)}")
        return was_there

    def finish(self, summary: dict[str, Any], failed: bool) -> None:
        self.logger.finish(summary, failed)
        self._tell(summary.get("step", 0))


class Unrecorded(Recorder):
    """On every rank but the first, which records what they do together: the folder is read and nothing is written."""

    def __init__(self, directory: RunDirectory):
        self.directory = directory

    def step(self, row: dict[str, Any]) -> None: ...

    def telemetry(self, row: dict[str, Any]) -> None: ...

    def evaluation(self, row: dict[str, Any]) -> None: ...

    def event(self, kind: str, step: int, message: str, **details: Any) -> None: ...

    def weights(self, name: str, model: nn.Module) -> None: ...

    def checkpoint(self, step: int, content: dict[str, Any], keep: int) -> None: ...

    def rewind(self, step: int) -> bool:
        return False

    def finish(self, summary: dict[str, Any], failed: bool) -> None: ...
