"""No tracker: the local record is all there is, and it is complete."""

from __future__ import annotations

from pathlib import Path


class LocalLogger:
    """Mirrors nothing."""

    def __init__(self) -> None:
        self.problems: list[str] = []

    def start(self, *, directory: Path, run_id: str, study: str, arm: str, tags: list[str], config: dict) -> None:
        pass

    def log(self, row: dict) -> None:
        pass

    def event(self, event: dict) -> None:
        pass

    def finish(self, summary: dict, failed: bool) -> None:
        pass
