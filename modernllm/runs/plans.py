"""What sweeps meant to run, kept beside their study: a run that is not there, or no longer, can be missed.

`<out>/.plans/<study>/<digest of its runs>.json`, a file a sweep: the same sweep again replaces its own and no other's,
so several go into one study, also at the same time.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from filelock import FileLock

from modernllm.runs.directory import read_json, to_json, write_atomically
from modernllm.runs.identity import SECTIONS, digest

FOLDER = ".plans"
KNOWN = ("run_id", "choices", "overrides", "dead_switches", "corpus", "tokenizer", "validation")
"""What run.json says of a run that is known before it is started."""


@dataclass(frozen=True)
class Intended:
    """A run as it was planned; `identity` has KNOWN, and its origin."""

    run_id: str
    config: dict[str, Any]
    identity: dict[str, Any]


@dataclass(frozen=True)
class Intent:
    """One sweep: its runs, and the words of the command that makes them. `path` is its file."""

    path: Path
    study: Path
    command: tuple[str, ...]
    runs: tuple[Intended, ...]


def write_intent(study: Path, command: Sequence[str], runs: Sequence[Intended]) -> Intent:
    """Atomically. OSError where there is no room or no right to write."""
    folder = folder_of(study)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{digest(sorted(run.run_id for run in runs))[:10]}.json"
    content = {"command": list(command), "runs": [asdict(run) for run in runs]}
    with FileLock(folder / ".lock"):  # the same sweep may be started twice at once
        write_atomically(path, json.dumps(to_json(content), ensure_ascii=False, allow_nan=False) + "\n")
    return Intent(path, study, tuple(command), tuple(runs))


def folder_of(study: Path) -> Path:
    """Not in the study, which holds runs and nothing else."""
    named = study if study.name not in ("", "..") else study.resolve()
    return named.parent / FOLDER / named.name


def intents_in(study: Path) -> tuple[list[Intent], list[str]]:
    """The plans of a study, and of each that cannot be read what is wrong with it."""
    found, damaged = [], []
    for path in sorted(folder_of(study).glob("*.json")):
        try:
            found.append(_read(path, study))
        except (OSError, ValueError, KeyError, TypeError) as error:
            why = str(error) if isinstance(error, OSError) else "it is no plan of a sweep"
            damaged.append(f"{path} is damaged: {why}; the same sweep writes it anew, or delete it")
    return found, damaged


def _read(path: Path, study: Path) -> Intent:
    """KeyError or TypeError where it says too little of a run to tell what that would have been."""
    content = read_json(path)
    return Intent(path, study, tuple(map(str, content["command"])), tuple(map(_intended, content["runs"])))


def _intended(each: dict[str, Any]) -> Intended:
    config, identity = each["config"], {key: each["identity"][key] for key in (*KNOWN, "origin")}
    _ = [dict(config[name]) for name in SECTIONS], config["seed"]
    return Intended(str(each["run_id"]), config, identity)
