"""The record on disk: strict, whole after a kill, and held by one process at a time."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from filelock import FileLock
from hypothesis import given
from hypothesis import strategies as st
from running import run

from modernllm.report.summary import result
from modernllm.runs import directory as module
from modernllm.runs.directory import (
    RunDirectory,
    RunningElsewhere,
    from_json,
    read_rows,
    to_json,
    write_atomically,
)
from modernllm.runs.record import load_run
from modernllm.trainer import Trainer


def strict(text: str) -> Any:
    """JSON as the standard has it: no NaN, no Infinity."""

    def refuse(word: str) -> None:
        raise AssertionError(f"{word} is no JSON")

    return json.loads(text, parse_constant=refuse)


@pytest.fixture
def held(tmp_path: Path) -> Iterator[RunDirectory]:
    directory = RunDirectory(tmp_path / "run")
    directory.acquire()
    yield directory
    directory.release()


# --- numbers


KINDS = [float, np.float32, np.float64, lambda number: torch.tensor(number), lambda number: np.array(number)]


@pytest.mark.parametrize("kind", KINDS, ids=["float", "float32", "float64", "tensor", "array"])
def test_non_finite_numbers_stay_apart_and_the_json_strict(kind: Any, held: RunDirectory) -> None:
    """F-80."""
    numbers = [math.nan, math.inf, -math.inf, 0.5]
    for step, number in enumerate(numbers):
        held.metrics({"step": step, "loss": kind(number), "grad": {"block.0": kind(number), "all": [kind(number)]}})
    lines = (held.path / "metrics.jsonl").read_text().splitlines()
    assert [strict(line)["loss"] for line in lines] == ["NaN", "Infinity", "-Infinity", 0.5]
    rows, _ = held.rows()
    assert math.isnan(rows[0]["loss"])
    assert math.isnan(rows[0]["grad"]["block.0"])
    assert [row["loss"] for row in rows[1:]] == numbers[1:]
    assert [row["grad"] for row in rows[1:]] == [{"block.0": n, "all": [n]} for n in numbers[1:]]


PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5).map("x".__add__),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
)


@given(PLAIN)
def test_what_is_written_is_what_is_read(value: Any) -> None:
    assert from_json(strict(json.dumps(to_json(value), allow_nan=False))) == value


def test_scalars_of_numpy_and_torch_become_plain() -> None:
    found = to_json({1: np.int64(3), "b": np.bool_(True), "t": (torch.tensor(2), torch.tensor(False))})
    assert found == {"1": 3, "b": True, "t": [2, False]}
    assert [type(v) for v in (found["1"], found["b"], *found["t"])] == [int, bool, int, bool]


# --- files


def test_a_row_is_on_disk_at_once(held: RunDirectory) -> None:
    for step in range(3):
        held.metrics({"step": step})
        assert len((held.path / "metrics.jsonl").read_text().splitlines()) == step + 1


@pytest.mark.parametrize("torn", ['{"step": 3, "lo', '{"step": 3}', "{"])
def test_a_torn_last_line_is_left_out(torn: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.jsonl"
    assert read_rows(path) == []
    path.write_text('{"step": 1}\n{"step": 2}\n' + torn)
    assert read_rows(path) == [{"step": 1}, {"step": 2}]


def test_truncate_drops_what_came_later_and_a_torn_line(tmp_path: Path) -> None:
    directory = RunDirectory(tmp_path)
    directory.truncate(3)  # nothing there yet
    for step in range(1, 6):
        directory.metrics({"step": step, "loss": math.inf if step == 2 else 1.0})
        directory.event("kind", step, f"at {step}", more=step)
        directory.telemetry({"step": step, "grad_norm": {"layer.00": 1.0}})
    directory.release()
    with (tmp_path / "metrics.jsonl").open("a") as file:
        file.write('{"step": 6, "los')
    again = RunDirectory(tmp_path)
    again.truncate(3)
    again.metrics({"step": 4})
    again.release()
    metrics, events = again.rows()
    assert [row["step"] for row in metrics] == [1, 2, 3, 4]
    assert metrics[1]["loss"] == math.inf
    assert events == [{"step": step, "kind": "kind", "message": f"at {step}", "more": step} for step in range(1, 4)]
    assert [row["step"] for row in again.telemetry_rows()] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["events.jsonl", "metrics.jsonl", "telemetry.jsonl"]


def test_what_is_recorded_after_truncating_is_kept(held: RunDirectory) -> None:
    for step in (1, 2):
        held.metrics({"step": step})
        held.event("kind", step, "")
    held.truncate(1)
    held.metrics({"step": 3})
    held.event("kind", 4, "")
    metrics, events = held.rows()
    assert ([row["step"] for row in metrics], [event["step"] for event in events]) == ([1, 3], [1, 4])


def test_a_file_is_replaced_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "status.json"
    write_atomically(path, "old")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(module.os, "replace", killed)
        with pytest.raises(KeyboardInterrupt):
            write_atomically(path, "new")
    assert path.read_text() == "old"
    write_atomically(path, "newer")
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("status.json", "newer")]


def test_the_heartbeat_is_slow(held: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [100.0]
    monkeypatch.setattr(module.time, "monotonic", lambda: clock[0])
    held.mark("running", step=0)
    seen = []
    for step in range(1, 13):
        clock[0] += 1.0
        held.heartbeat(step=step)
        seen.append(held.status()["step"])
    assert seen == [0, 0, 0, 0, 0, 6, 6, 6, 6, 6, 6, 12]
    assert held.status()["pid"] == os.getpid()


def test_clear_keeps_the_lock(held: RunDirectory) -> None:
    held.open({"a": 1}, {"b": math.nan})
    held.metrics({"step": 1})
    held.checkpoints.mkdir()
    held.clear()
    assert [path.name for path in held.path.iterdir()] == [".lock"]
    with pytest.raises(RunningElsewhere):
        RunDirectory(held.path).acquire()


def test_a_kill_while_it_clears_leaves_no_finished_run(held: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    held.metrics({"step": 1})
    held.mark("finished", outcome="ok")

    def killed(*_: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Path, "iterdir", killed)
    with pytest.raises(KeyboardInterrupt):
        held.clear()
    assert held.status() == {}


def test_a_row_that_does_not_fit_is_told_once_and_the_run_is_free_again(held: RunDirectory) -> None:
    """What is left of it in memory is written when the file is closed, and fails there once more, without a name."""
    (held.path / "metrics.jsonl").symlink_to("/dev/full")
    with pytest.raises(OSError, match=r"cannot write .*/metrics.jsonl: No space left on device; .* MB are free there"):
        held.metrics({"step": 1})
    held.release()
    held.acquire()


def test_config_and_identity_read_back(held: RunDirectory) -> None:
    config = {"z": 1, "a": {"b": [1e-6, None, "é"], "clip": math.inf}}
    held.open(config, {"floor": math.inf, "name": "é"})
    assert yaml.safe_load((held.path / "config.yaml").read_text("utf-8")) == config
    assert list(yaml.safe_load((held.path / "config.yaml").read_text("utf-8"))) == ["z", "a"]
    assert strict((held.path / "run.json").read_text("utf-8")) == {"floor": "Infinity", "name": "é"}


# --- one process at a time


HOLDER = """
import sys, time
from pathlib import Path
from modernllm.runs.directory import RunDirectory
directory = RunDirectory(Path(sys.argv[1]))
directory.acquire()
directory.mark("running", step=3)
print("held", flush=True)
time.sleep(600)
"""


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that is at work on tmp_path / "run"."""
    words = [sys.executable, "-c", HOLDER, str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        assert process.stdout.readline() == "held\n"
        yield process
        process.kill()


def test_a_running_run_is_refused_and_a_dead_one_is_interrupted(tmp_path: Path, holder: subprocess.Popen[str]) -> None:
    """F-69 and F-86."""
    mine = RunDirectory(tmp_path / "run")
    assert mine.status()["status"] == "running"
    with pytest.raises(RunningElsewhere, match="run is being run by another process: wait for it"):
        mine.acquire()
    os.kill(holder.pid, signal.SIGKILL)
    holder.wait()
    assert mine.status()["status"] == "interrupted"
    assert json.loads((tmp_path / "run" / "status.json").read_text())["status"] == "running"
    mine.acquire()
    assert RunDirectory(tmp_path / "run").status()["status"] == "running"  # ours
    mine.mark("finished")
    mine.release()
    assert RunDirectory(tmp_path / "run").status()["status"] == "finished"


@pytest.fixture
def looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunDirectory:
    """A run whose process is gone, while another looks at it, until this one has asked once."""
    dead = RunDirectory(tmp_path)
    dead.mark("running", step=3)
    looking = FileLock(tmp_path / ".lock")
    looking.acquire()
    monkeypatch.setattr(module, "LOOK", 60.0)
    monkeypatch.setattr(module, "GLANCE", 60.0)
    monkeypatch.setattr(time, "sleep", lambda seconds: looking.release())
    return dead


def test_who_only_looks_keeps_nobody_from_a_run(looked_at: RunDirectory) -> None:
    looked_at.acquire()
    looked_at.release()


def test_who_only_looks_is_not_taken_for_the_run(looked_at: RunDirectory) -> None:
    assert looked_at.status()["status"] == "interrupted"


def test_a_run_without_a_status_has_none(tmp_path: Path) -> None:
    assert RunDirectory(tmp_path).status() == {}
    with pytest.raises(FileNotFoundError, match=r"is no run folder: it has no config\.yaml, no run\.json, no status"):
        load_run(tmp_path)


# --- a run that is done


def test_a_finished_run_is_left_as_it_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    code, done = run("trainer.steps=2", f"out={tmp_path}")
    before = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in done.path.rglob("*") if path.is_file()}
    monkeypatch.delattr(Trainer, "fit")  # nothing is trained
    again, same = run("trainer.steps=2", f"out={tmp_path}", "trainer.micro_batch=1", "trainer.eval_every=1")
    assert (code, again) == (0, 0)
    assert list(result(same)) == list(result(done))
    after = {path: (path.stat().st_mtime_ns, path.read_bytes()) for path in done.path.rglob("*") if path.is_file()}
    assert before == after
