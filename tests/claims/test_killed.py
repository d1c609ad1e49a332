"""What is done to the processes of a claim: no verdict comes of it, and the same command goes on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from held_runs import held, hold, let_go
from processes import catches, children_of, is_alive, until
from test_claim import SAID

from modernllm.runs.directory import read_rows

ROOT = Path(__file__).parents[2]
PLANTED = ROOT / "tests" / "executor"
HELD = ["size=nano", "model.dim=32", "model.n_layers=1", "model.context_length=32", "data=synthetic",
        "data.n_documents=40", "trainer.batch_size=4", "trainer.steps=40", "trainer.validation_tokens=256",
        "norm=held", "allow_targets=[planted.Held]"]  # fmt: skip
TWICE = {"tuning": [10], "evaluation": [0, 1, 2]}
GO_ON = "stopped; the same command goes on from here\n"


def begin(folder: Path, **changed: Any) -> subprocess.Popen[str]:
    """The script as a person starts it, in a session of its own, with a claim whose runs can be held."""
    (folder / "mine.yaml").write_text(yaml.safe_dump(SAID | {"base": HELD, "seeds": TWICE} | changed))
    return subprocess.Popen(
        [sys.executable, str(ROOT / "scripts" / "check_claim.py"), "claim=mine.yaml", "logger=local", "workers=2",
         f"config_dir={PLANTED / 'planted_configs'}"],
        cwd=folder, env=os.environ | {"PYTHONPATH": str(PLANTED)}, text=True, start_new_session=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip


def finish(hearing: subprocess.Popen[str]) -> tuple[int, str]:
    """Exit code and what was said on standard error."""
    _, err = hearing.communicate(timeout=300)
    return hearing.returncode, err


def at_work(folder: Path, hearing: subprocess.Popen[str]) -> list[int]:
    """The processes of runs that are held in the middle of a step."""
    assert hearing.poll() is None, finish(hearing)
    return held(folder)


def verdict_of(folder: Path) -> dict[str, Any] | None:
    path = folder / "runs" / "verdicts" / "claim-mine" / "verdict.json"
    return json.loads(path.read_text()) if path.exists() else None


def one_run(hearing: subprocess.Popen[str], workers: list[int]) -> None:
    os.kill(workers[0], signal.SIGKILL)


def command(hearing: subprocess.Popen[str], workers: list[int]) -> None:
    hearing.kill()


def child(hearing: subprocess.Popen[str], workers: list[int]) -> None:
    os.kill(*children_of(hearing.pid), signal.SIGKILL)


def ctrl_c(hearing: subprocess.Popen[str], workers: list[int]) -> None:
    os.killpg(hearing.pid, signal.SIGINT)


def terminate(hearing: subprocess.Popen[str], workers: list[int]) -> None:
    hearing.terminate()


Deed = Callable[[subprocess.Popen[str], list[int]], None]
DONE: list[tuple[Deed, int, str]] = [
    (one_run, 1, "ended in the middle: killed by hand, or for want of memory\nthe same command goes on with them\n"),
    (command, -9, ""),
    (child, 137, "error: killed by signal 9 (Killed) before it came to an end\n"),
    (ctrl_c, 130, GO_ON),
    (terminate, 143, GO_ON),
]


@pytest.mark.slow
def test_whatever_is_killed_the_same_command_comes_to_the_same_verdict(tmp_path: Path) -> None:
    calm, disturbed = tmp_path / "calm", tmp_path / "disturbed"
    for folder in (calm, disturbed):
        folder.mkdir()
    for deed, code, told in DONE:
        hold(disturbed, 10)  # more than are rehearsed and timed before
        hearing = begin(disturbed)
        workers = until(lambda: at_work(disturbed, hearing))  # noqa: B023 (called here)
        deed(hearing, workers)
        until(lambda: not catches(workers[0], signal.SIGTERM))  # noqa: B023 (it is gone, or told to be)
        let_go(disturbed)
        ended, err = finish(hearing)
        assert (ended, told in err) == (code, True), (deed, ended, err)
        until(lambda: not any(map(is_alive, workers)))  # noqa: B023
        assert verdict_of(disturbed) is None, deed
    ledger = read_rows(disturbed / "runs" / "verdicts" / "claim-mine" / "ledger.jsonl")
    assert [row["event"] for row in ledger] == ["frozen"]
    codes = [finish(begin(folder))[0] for folder in (calm, disturbed)]
    found, expected = verdict_of(disturbed), verdict_of(calm)
    assert found
    assert expected
    assert codes == [expected["exit_code"]] * 2
    for key in ("verdict", "exit_code", "line", "cells", "scope"):
        assert found[key] == expected[key]


@pytest.mark.slow
def test_ctrl_c_before_the_first_run(tmp_path: Path) -> None:
    """In the middle of what is looked at before."""
    hold(tmp_path, 0)
    hearing = begin(tmp_path)
    until(lambda: at_work(tmp_path, hearing))
    os.killpg(hearing.pid, signal.SIGINT)
    assert finish(hearing) == (130, "stopped\n")
    assert verdict_of(tmp_path) is None
    assert not list(tmp_path.glob("runs/claim-mine/*"))
