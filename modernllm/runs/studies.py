"""The studies of a folder, and their runs: told from status files alone, so that a thousand take a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.runs.directory import RunDirectory


@dataclass(frozen=True)
class Entry:
    """A run folder and its status.json."""

    path: Path
    status: dict[str, Any]

    @property
    def word(self) -> str:
        """The outcome of a run that finished, else its status."""
        status = self.status.get("status", "not started")
        return self.status.get("outcome") or "undecided" if status == "finished" else status


def is_run(path: Path) -> bool:
    return (path / "status.json").exists() or (path / "config.yaml").exists()


def runs_in(study: Path) -> list[Entry]:
    """FileNotFoundError, naming it, where there is no such folder."""
    if not study.is_dir():
        raise FileNotFoundError(f"{study}: no such folder; a study is a folder of runs, as runs/default")
    return [Entry(path, RunDirectory(path).status()) for path in sorted(study.iterdir()) if is_run(path)]


def studies_in(out: Path) -> Iterator[Path]:
    """Folders that hold runs."""
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if path.is_dir() and any(is_run(run) for run in path.iterdir() if run.is_dir()):
            yield path
