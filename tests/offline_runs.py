"""What the mirror wrote, as W&B's own reader prints it; and a machine on which nobody has ever used W&B."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from processes import PATIENCE

from modernllm.logger import wandb_logger


def nobody_at_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No key, no network, nothing of the user's own configuration; and a client may take its time to end."""
    for name in [name for name in os.environ if name.startswith("WANDB_")]:
        monkeypatch.delenv(name)
    for name in ("HOME", "WANDB_DIR", "WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(home / "home"))
    monkeypatch.setenv("NETRC", str(home / "netrc"))
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # nothing listens there
    monkeypatch.setattr(wandb_logger, "FINISH_WAIT", PATIENCE)


def inspect_run(file: Path) -> list[dict]:
    """The records of an offline run."""
    command = [sys.executable, "-m", "wandb", "leet", "inspect", "--json", str(file)]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return [json.loads(line, parse_constant=_no_json) for line in lines]


def _no_json(word: str) -> None:
    raise AssertionError(f"{word} is no JSON")


def offline_files(directory: Path) -> list[Path]:
    return sorted(directory.glob("wandb/offline-run-*/run-*.wandb"))


def read(file: Path) -> dict:
    """Records of one kind together: {"run": first, "history": [rows], "summary": merged, ...}."""
    records = inspect_run(file)
    of = {kind: [r[kind] for r in records if r["type"] == kind] for kind in {r["type"] for r in records}}
    summary: dict = {}
    for record in of["summary"]:
        summary |= record["update"]
    return of | {"summary": summary, "history": [h["item"] for h in of["history"]], "run": of["run"][0]}
