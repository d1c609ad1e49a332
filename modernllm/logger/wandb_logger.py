"""The local record mirrored to W&B: online where that works, else offline, never in the way of the run."""

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from modernllm.logger.mirror_process import MirrorProcess
from modernllm.logger.mirrored import flatten
from modernllm.quantities import Positive

SCRIPT = Path(__file__).with_name("wandb_client.py")
FINISH_WAIT = 15.0  # seconds for the last rows; W&B keeps the rest on disk
MODES = {
    "online": "online",
    "run": "online",
    "shared": "online",
    "offline": "offline",
    "dryrun": "offline",
    "disabled": "disabled",
}
TAG_LIMIT = JOB_TYPE_LIMIT = ID_LIMIT = 64  # refused by the server above, offline runs only when they are synced
NAME_LIMIT = 128


class WandbLogger:
    """Mirrors a run to W&B from a process of its own.

    `mode` None means: WANDB_MODE, else online if the client has credentials, else offline. A server that has
    not answered within `timeout` seconds costs one problem and the run is mirrored offline, for scripts/sync.py.
    """

    def __init__(
        self,
        project: str = "modernllm",
        entity: str | None = None,
        mode: Literal["online", "offline", "disabled"] | None = None,
        timeout: Positive = 8.0,
    ) -> None:
        if not 0 < len(project) <= NAME_LIMIT or re.search(r"[/\\#?%:]", project):
            raise ValueError(
                f"logger.project={project!r}: W&B takes 1 to {NAME_LIMIT} characters, none of / \\ # ? % :"
            )
        self.project = project
        self.entity = entity
        self.mode = mode
        self.timeout = timeout
        self.problems: list[str] = []
        self._process: MirrorProcess | None = None
        self._directory = Path()

    def start(self, *, directory: Path, run_id: str, study: str, arm: str, tags: list[str], config: dict) -> None:
        try:
            mode = choose_mode(self.mode, os.environ)
        except ValueError as error:
            self._problem(f"W&B: {error}, continuing offline")
            mode = "offline"
        if mode == "disabled":
            return
        self._directory = directory / "wandb"
        try:
            self._directory.mkdir(parents=True, exist_ok=True)
            agents = agents_id(os.environ)
            goes_on = bool(agents) or (self._directory / "id").exists()
            identity = agents or own_id(self._directory / "id", run_id)
        except OSError as error:
            self._problem(f"tracker lost: {error}; the local record is complete")
            return
        init = {
            "project": self.project,
            "entity": self.entity,
            "dir": str(directory.absolute()),
            "id": identity,
            # else an upload that is begun again writes over its own rows instead of after them
            "resume": "allow" if goes_on else None,
            "name": shorten(run_id, NAME_LIMIT),
            "group": shorten(study, NAME_LIMIT) or None,
            "job_type": shorten(arm, JOB_TYPE_LIMIT) or None,
            "tags": list(dict.fromkeys(shorten(tag, TAG_LIMIT) for tag in tags if tag.strip())),
            "config": without_gaps(config),
        }
        # a process per try: a client that failed once holds on to the run id and waits for the server at exit
        starts = [
            {"do": "start", "mode": try_mode, "quiet": mode == "auto", "timeout": self.timeout, "init": init}
            for try_mode in (["offline"] if mode == "offline" else ["online", "offline"])
        ]
        try:
            self._process = MirrorProcess(SCRIPT, self._directory / "client.log", starts, self._problem)
        except RuntimeError as error:  # no more threads
            self._problem(f"tracker lost: {error}; the local record is complete")

    def log(self, row: dict) -> None:
        if self._process:
            self._process.send({"do": "log", "row": flatten(row)})

    def event(self, event: dict) -> None:
        if self._process:
            self._process.send({"do": "event", "event": event})

    def finish(self, summary: dict, failed: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        last = {"do": "finish", "summary": flatten(summary), "failed": failed}
        if not process.close(last, FINISH_WAIT):
            self._problem(
                f"W&B had not finished after {FINISH_WAIT:g} s and was ended; python scripts/sync.py "
                f"{self._directory.parent} uploads what it wrote; the local record is complete"
            )

    def _problem(self, sentence: str) -> None:
        if sentence not in self.problems:
            self.problems.append(sentence)


def choose_mode(explicit: str | None, environment: Mapping[str, str]) -> str:
    """The setting, else WANDB_MODE, else "auto": online if the client finds credentials, offline if not."""
    if explicit:
        return explicit
    asked = environment.get("WANDB_MODE", "").strip().lower()
    if asked and asked not in MODES:
        raise ValueError(f"WANDB_MODE={asked} is none of {', '.join(MODES)}")
    return MODES.get(asked, "auto")


def without_gaps(config: Mapping[str, Any]) -> dict[str, Any]:
    """Nested as it is, so that W&B can group, filter and plot by `model.dim`: keys that have dots in themselves it
    cannot. An empty dict is "{}": as a dict it ends the client of a resumed run (wandb#11366).
    """
    return {
        str(key): without_gaps(value) if isinstance(value, dict) and value else "{}" if value == {} else value
        for key, value in config.items()
    }


def shorten(text: str, limit: int) -> str:
    """At most `limit` characters; a hash replaces what is cut, so that different texts stay different."""
    if len(text) <= limit:
        return text
    return f"{text[: limit - 9]}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def agents_id(environment: Mapping[str, str]) -> str:
    """The id that `wandb agent` has given to the run that it starts; "" without an agent."""
    return environment.get("WANDB_RUN_ID", "") if "WANDB_SWEEP_ID" in environment else ""


def own_id(file: Path, run_id: str) -> str:
    """The id of this run directory in W&B, kept in `file`, so that a resumed run continues it.

    It is not the bare run id: that is a hash of the configuration, and the same run in another study, on a
    colleague's machine or started afresh would write into the same W&B run.
    """
    if file.exists() and (known := file.read_text().strip()):
        return known
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", run_id).strip("-")
    identity = f"{shorten(readable, ID_LIMIT - 7)}-{secrets.token_hex(3)}"
    file.write_text(identity + "\n")
    return identity
