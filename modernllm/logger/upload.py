"""What of a run has still to go to W&B, and its way there.

The way is the client's own `wandb sync`: it replays the file that the mirror wrote, with its times, alerts and end,
continues a resumed run where the server stands, and marks what has arrived. Rows rebuilt from metrics.jsonl would need
all of that once more. Its exit code is 0 whatever happens, so its marks are what counts here. An upload that is begun
again writes over the rows of a first start; rows of a later one are written once more, at the same steps.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from modernllm.logger.mirror_process import environment
from modernllm.logger.server import LOGIN, server
from modernllm.logger.wandb_client import ORPHAN_SECONDS
from modernllm.runs.directory import read_rows
from modernllm.runs.studies import Entry

Word = Literal["uploaded", "to upload", "already there", "still running", "nothing to upload", "failed"]
EMPTY = 7
"""Bytes of a file that nothing was written to but its heading."""
TORN = "incomplete record"
"""What the client says of a file that a kill cut: it has uploaded all that is whole, and leaves it unmarked."""
SHOWN = "View run"
"""What it says of a run that it has told the server of."""
UNWRITTEN = "its client was ended before it wrote; the local record is complete"


@dataclass(frozen=True)
class Standing:
    """`files` are those to upload, oldest first."""

    word: Word
    why: str = ""
    files: tuple[Path, ...] = ()


def standing(entry: Entry) -> Standing:
    """How a run stands, as far as its folder tells."""
    if entry.word == "running":
        return Standing("still running", "its rows are still coming")
    files = sorted((entry.path / "wandb").glob("*run-*/run-*.wandb"), key=_start)
    if not files:
        return Standing("nothing to upload", "it has no mirror (logger=local)")
    written = [path for path in files if path.stat().st_size > EMPTY]
    if not written:
        return Standing("nothing to upload", UNWRITTEN)
    waiting = tuple(path for path in written if not _arrived(path, entry))
    if not waiting:
        return Standing("already there")
    silence = time.time() - max(path.stat().st_mtime for path in waiting)
    if entry.status.get("status") != "finished" and silence < ORPHAN_SECONDS:  # as long as a client lives on
        return Standing("still running", f"its client wrote {silence:.0f} s ago")
    return Standing("to upload", files=waiting)


def _start(file: Path) -> str:
    """When it was started: run-20261130_120000-id, or offline-run-..."""
    return file.parent.name.removeprefix("offline-")


def mark(file: Path) -> Path:
    """Where the client marks a file as uploaded."""
    return file.with_name(f"{file.name}.synced")


def _arrived(file: Path, entry: Entry) -> bool:
    """Marked, or of a run that was online to its end."""
    return _is_marked(file) or (not file.parent.name.startswith("offline-") and _was_told_all(entry))


def _is_marked(file: Path) -> bool:
    """And not written to since."""
    return mark(file).exists() and mark(file).stat().st_mtime >= file.stat().st_mtime


def _was_told_all(entry: Entry) -> bool:
    """Whether a run that was online ended by itself or by an error of its own, with no trouble of its mirror's."""
    trouble = any(event["kind"] == "tracker" for event in read_rows(entry.path / "events.jsonl"))
    return not trouble and not {"outcome", "reason"}.isdisjoint(entry.status)


def upload(run: Path, files: Sequence[Path], timeout: float) -> Standing:
    """Upload `files` of a run, in order; what the client says is in `wandb/sync.log`. ValueError if nobody is logged
    in, or with a key that is none.
    """
    torn = arrived = False
    for file in files:  # a call each: one that finds a torn file leaves those after it
        log = run / "wandb" / "sync.log"
        said, late = _sync(run, file, log, timeout)
        if "No API key configured" in said:  # so it would be with every run
            raise ValueError(LOGIN.format(server=server()))
        if "WANDB_API_KEY invalid" in said:
            raise ValueError(_complaint(said))
        if TORN in said and SHOWN not in said:
            continue  # cut before the run itself was written
        if TORN in said:
            mark(file).touch()  # it will not grow any more
            torn = True
        if not _is_marked(file):
            why = f"no end within {timeout:g} s{_retried(run)}; the next call goes on" if late else _complaint(said)
            return Standing("failed", why or f"the client says nothing of it in {log}")
        arrived = True
    if not arrived:
        return Standing("nothing to upload", UNWRITTEN)
    return Standing("uploaded", "but for torn last rows, which the local record has" if torn else "")


def _sync(run: Path, file: Path, log: Path, timeout: float) -> tuple[str, bool]:
    """What the client said, and whether it had to be ended."""
    command = [sys.executable, "-P", "-m", "wandb", "sync", "--include-online", "--include-synced"]
    late = False
    with log.open("wb") as output:  # no pipe, which a service of the client's would keep open
        try:
            subprocess.run(
                [*command, str(file.resolve())],
                cwd=run,
                env={**environment(), "WANDB_DIR": str(run.resolve())},  # its logs go where they are looked for
                stdin=subprocess.DEVNULL,  # no prompt can be answered
                stdout=output,
                stderr=subprocess.STDOUT,
                timeout=timeout,
                check=False,
            )
        except subprocess.TimeoutExpired:
            late = True
    return log.read_text(encoding="utf-8", errors="replace"), late


def _complaint(said: str) -> str:
    """The last error that the client named."""
    lines = [line.removeprefix("wandb: ") for line in said.splitlines()]
    errors = [line.partition(" ")[2] for line in lines if line.startswith(("ERROR ", "Error: "))]
    return errors[-1] if errors else ""


def _retried(run: Path) -> str:
    """What the server answered last to a client that tried again and again; it says so only to its own log."""
    logs = sorted((run / "wandb" / "logs").glob("debug-sync.*.log"))
    lines = logs[-1].read_text(encoding="utf-8", errors="replace").splitlines() if logs else []
    codes = re.findall(r'"status":(\d+)', " ".join(line for line in lines if "retrying HTTP error" in line))
    return f" (the server answers {codes[-1]})" if codes else ""
