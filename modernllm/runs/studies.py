"""The studies of a folder, and their runs: told from status files alone, so that a thousand take a second."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.config.nearest import did_you_mean
from modernllm.runs.directory import RunDirectory
from modernllm.runs.plans import intents_in
from modernllm.runs.progress import progress
from modernllm.runs.record import read_identity

RECORD = ("config.yaml", "run.json", "status.json")


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


def study_at(word: str, root: Path) -> Path:
    """By path, or by name in `root`; FileNotFoundError says where it was looked for."""
    for path in (Path(word).expanduser(), root / word):
        if path.exists():
            return path
    hint = did_you_mean(word, (path.name for path in studies_in(root)))
    raise FileNotFoundError(f"{word}: no such folder, and no study of that name in root={root}{hint}")


def without_runs(folder: Path) -> str:
    """What to say of a folder that holds none: it may be one of studies."""
    names = [path.name for path in studies_in(folder)]
    return f"{folder}: no runs in it" + (f"; it is a folder of studies: {', '.join(names)}" if names else "")


def runs_in(study: Path) -> list[Entry]:
    """FileNotFoundError, naming it, where there is no such folder."""
    if not study.is_dir():
        raise FileNotFoundError(f"{study}: no such folder; a study is a folder of runs, as runs/default")
    return [Entry(path, RunDirectory(path).status()) for path in sorted(study.iterdir()) if is_run(path)]


def planned_in(study: Path) -> list[Entry]:
    """Runs that sweeps planned and of which there is no folder, each once."""
    intents, _ = intents_in(study)
    names = dict.fromkeys(run.run_id for intent in intents for run in intent.runs)
    return [Entry(study / name, {"status": "planned"}) for name in names if not (study / name).exists()]


def others_in(study: Path) -> list[Path]:
    """What stands in a study and is no run."""
    return [path for path in sorted(study.iterdir()) if not is_run(path)]


def damage(entry: Entry) -> str:
    """What is wrong with the record of a run that is not at work, as far as a glance tells; "" if nothing."""
    if entry.word == "running":
        return ""
    missing = [name for name in RECORD if not (entry.path / name).exists()]
    if missing:
        return f"it has no {', no '.join(missing)}"
    try:
        name = read_identity(entry.path / "run.json")["run_id"]
    except (OSError, ValueError) as error:
        return str(error)
    if name != entry.path.name:
        return f"it is the record of {name}"
    if entry.status.get("status") == "finished" and progress(entry.path) is None:
        return "it is finished and has no steps"
    return "" if "time" in entry.status else "its status.json is damaged"


def studies_in(out: Path) -> Iterator[Path]:
    """Folders that hold runs."""
    for path in sorted(out.iterdir()) if out.is_dir() else ():
        if path.is_dir() and any(is_run(run) for run in path.iterdir() if run.is_dir()):
            yield path
