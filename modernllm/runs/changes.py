"""What is other where a run goes on: nothing that decides what it learns, but its record has one configuration."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from modernllm.runs.directory import RunDirectory, read_json
from modernllm.runs.identity import SECTIONS, WATCHING, leaves_of
from modernllm.runs.record import read_config


def changes(directory: RunDirectory, config: Mapping[str, Any], identity: Mapping[str, Any]) -> list[str]:
    """`trainer.threads=2 (was 1)` and the like, beside what a folder says of its run so far; [] where it says nothing
    that can be read.
    """
    try:
        before = settings(read_config(directory.path / "config.yaml"))
        source = read_json(directory.path / "run.json").get("source")
    except (OSError, ValueError):
        return []
    now = settings(config)
    changed = [key for key in before | now if before.get(key) != now.get(key)]
    said = [f"{key}={json.dumps(now.get(key))} (was {json.dumps(before.get(key))})" for key in changed]
    return said + ["other code"] * (source not in (None, identity["source"]))


def settings(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a run is made of and how it is watched, by dotted key."""
    return dict(leaf for section in (*SECTIONS, *WATCHING) for leaf in leaves_of(section, config.get(section)))
