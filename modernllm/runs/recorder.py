"""Where a run's numbers go: into its directory first, then to the tracker and the screen."""

from __future__ import annotations

import math
from typing import Any

from modernllm.logger import Logger
from modernllm.report.console import Console
from modernllm.runs.directory import RunDirectory


class Recorder:
    def __init__(self, directory: RunDirectory, logger: Logger, console: Console):
        self.directory, self.logger, self.console = directory, logger, console
        self._told = 0

    def step(self, row: dict[str, Any]) -> None:
        """The one row of a training step."""
        self.directory.metrics(row)
        self.directory.heartbeat(step=row["step"])
        self.logger.log(row)
        self.console.step(row)
        self._tell(row["step"])

    def telemetry(self, row: dict[str, Any]) -> None:
        """Of layers; what is of single tensors stays in the directory, and so does a number that is not finite, since a
        tracker would keep it as the last.
        """
        self.directory.telemetry(row)
        self.logger.log(_finite({key: value for key, value in row.items() if key != "tensors"}))

    def evaluation(self, row: dict[str, Any]) -> None:
        self.directory.metrics(row)
        self.logger.log(row)
        self.console.evaluation(row)

    def event(self, kind: str, step: int, message: str, **details: Any) -> None:
        event = self.directory.event(kind, step, message, **details)
        self.logger.event(event)
        self.console.note(message)

    def _tell(self, step: int) -> None:
        """What went wrong with the tracker, each once."""
        for problem in self.logger.problems[self._told :]:
            self.directory.event("tracker", step, problem)
            self.console.note(problem)
        self._told = len(self.logger.problems)

    def rewind(self, step: int) -> bool:
        """Forget what was recorded after `step`; whether anything had been recorded at all."""
        was_there = (self.directory.path / "metrics.jsonl").exists()
        if was_there:
            self.directory.truncate(step)
        return was_there

    def finish(self, summary: dict[str, Any], failed: bool) -> None:
        self.logger.finish(summary, failed)
        self._tell(summary.get("step", 0))


def _finite(values: dict[str, Any]) -> dict[str, Any]:
    found = {key: _finite(value) if isinstance(value, dict) else value for key, value in values.items()}
    return {key: value for key, value in found.items() if value != {} and not _is_sick(value)}


def _is_sick(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)
