"""What a run is made of, and the name that follows from it."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

SECTIONS = ("model", "init", "optimizer", "schedule", "trainer", "data", "tokenizer")
"""Of a configuration: those that decide what a run learns."""
RUN_LEVEL = ("micro_batch", "threads", "deterministic", "compile", "eval_every", "checkpoint_every", "keep", "profile",
             "held_out", "ranks")  # fmt: skip
"""Trainer keys that do not change what is learned; what is measured on is known by its hash."""
WATCHING = ("logger", "telemetry")
"""Groups that say how a run is watched."""
NAMELESS = (*WATCHING, "trainer", "sweep", "executor")
"""Groups that say how a run is watched or cut, not what it is."""


MEANT: dict[str, Callable[[dict[str, Any]], Any]] = {
    "head_dim": lambda model: model["dim"] // model["n_heads"],
    "feedforward_bias": lambda model: model["bias"],
}
"""What null stands for in a decoder: written out, it makes no other run."""


def leaves_of(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    """Leaves of nested mappings by dotted keys, which begin with `key`; an empty mapping is one."""
    if isinstance(value, Mapping) and value:
        for name, inner in value.items():
            yield from leaves_of(f"{key}.{name}", inner)
    else:
        yield key, value


def scientific(config: dict[str, Any], data: dict[str, str], device: str, dead: list[str]) -> dict[str, Any]:
    """The part of a configuration that decides the result: not paths, logging, telemetry, nor how a batch is cut.

    Components that nothing reads (`dead`) are left out, so that two runs that differ in them alone are one.
    """
    trainer = {key: value for key, value in config["trainer"].items() if key not in RUN_LEVEL}
    trainer["device"] = device
    trainer["batch_tokens"] = trainer.pop("batch_size") * config["model"]["context_length"]
    return {
        "model": {
            key: _or_null(key, value, config["model"]) for key, value in config["model"].items() if key not in dead
        },
        "init": config["init"],
        "optimizer": config["optimizer"],
        "schedule": config["schedule"],
        "trainer": trainer,
        "data": data,
        "seed": config["seed"],
    }


def _or_null(key: str, value: Any, model: dict[str, Any]) -> Any:
    return None if key in MEANT and value == MEANT[key](model) else value


def digest(content: Any) -> str:
    """SHA-256 of a plain value, independent of the order of its keys and of whether 1.0 was written 1."""
    return hashlib.sha256(json.dumps(_one_form(content), sort_keys=True).encode()).hexdigest()


def _one_form(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _one_form(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_one_form(item) for item in value]
    return int(value) if isinstance(value, float) and value.is_integer() else value


def run_name(
    choices: Mapping[str, str], expected: Mapping[str, str | None], dead: list[str], seed: int, config_hash: str
) -> str:
    """`<size>-<choices that are not the expected ones>-s<seed>-<hash>`, safe as a folder name.

    It follows from what is run, not from how it was asked for: one run has one name.
    """
    unlike = [
        f"{group}_{choice}"
        for group, choice in sorted(choices.items())
        if choice != expected.get(group) and group not in {"size", *NAMELESS, *dead}
    ]
    readable = "-".join([choices["size"], *unlike])
    safe = "".join(c if c.isalnum() or c in "-_." else "_" for c in readable)[:120]
    return f"{safe}-s{seed}-{config_hash[:10]}"


@cache
def source() -> str:
    """SHA-256 of the files of this package, as they were when this process first asked."""
    package, found = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        found.update(f"{path.relative_to(package)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return found.hexdigest()


def code_state() -> dict[str, Any]:
    """Commit and whether the working tree differs from it, of the source that runs; None outside a checkout."""

    def git(*words: str) -> str | None:
        done = subprocess.run(
            ["git", "-C", str(Path(__file__).parent), *words], capture_output=True, text=True, check=False
        )
        return done.stdout.strip() if done.returncode == 0 else None

    try:
        changes = git("status", "--porcelain", "--untracked-files=no")
        return {"commit": git("rev-parse", "HEAD"), "dirty": None if changes is None else bool(changes)}
    except OSError:  # no git
        return {"commit": None, "dirty": None}


def installed(package: str) -> str | None:
    """Its version; None where it is only a folder on the path, as a clone that was not installed."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def environment() -> dict[str, Any]:
    """Versions and machine, without anything that names a person or a place."""
    packages = ("modernllm", "torch", "numpy", "hydra-core", "omegaconf", "datasets", "tiktoken", "wandb")
    return {
        "versions": {"python": platform.python_version()} | {name: installed(name) for name in packages},
        "machine": {"system": platform.platform(), "processor": platform.machine(), "cores": os.cpu_count()},
        "code": code_state(),
        "source": source(),
        "command": sys.argv[1:],
    }
