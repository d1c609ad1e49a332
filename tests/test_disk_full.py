"""A full disk in the middle of a run (F-85): one clear error, the old checkpoint good, and with room it goes on.
Where it is the tracker's, training does not notice.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
from offline_runs import nobody_at_home
from processes import PATIENCE, until
from running import prepare, run

from modernllm import checkpoint, load_run
from modernllm.trainer import Trainer

TRAIN = Path(__file__).parents[1] / "train.py"
WORDS = (
    "size=nano data=synthetic data.n_documents=40 logger=local trainer.steps=12 trainer.checkpoint_every=4 "
    "trainer.eval_every=100 trainer.validation_tokens=256 trainer.threads=1"
)


@contextmanager
def disk(folder: Path, size: str) -> Iterator[None]:
    """`folder` on a disk of its own."""
    folder.mkdir(parents=True)
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes root on Linux")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", folder], check=True)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for one checkpoint of nano (2.8 MB), not for two."""
    with disk(tmp_path / "disk", "5m"):
        yield tmp_path / "disk"


def fill(folder: Path) -> None:
    with (folder / "filler").open("wb", buffering=0) as file, suppress(OSError):
        while True:
            file.write(bytes(4096))


def train(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAIN), *WORDS.split(), f"out={out}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)


def test_a_full_disk_keeps_what_was_good(small_disk: Path) -> None:
    done = train(small_disk)
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith("error: cannot write the checkpoint ")
    assert "step-00000008.pt" in done.stderr
    assert "No space left on device; it needs about 2." in done.stderr
    (folder,) = (small_disk / "default").iterdir()
    assert [path.name for path in (folder / "checkpoints").iterdir()] == ["step-00000004.pt"]
    assert checkpoint.load(folder / "checkpoints" / "step-00000004.pt")["step"] == 4
    assert load_run(folder).word == "failed"
    subprocess.run(["mount", "-o", "remount,size=64m", small_disk], check=True)
    again = train(small_disk)
    assert again.returncode == 0, again.stderr
    finished = load_run(folder)
    assert finished.status["status"] == "finished"
    assert [row["step"] for row in finished.metrics if "loss" in row] == list(range(1, 13))
    assert "resumed after step 4" in [event["message"] for event in finished.events]


@pytest.mark.slow
def test_a_full_disk_of_the_tracker_is_one_event(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F-82: once its client is at work there is no room left; W&B goes on without a word."""
    nobody_at_home(tmp_path, monkeypatch)
    step = Trainer.train_step

    def fills(self: Trainer) -> Any:
        if self.step == 6:
            mirror: Any = self.recorder.logger
            until(mirror._process._lines.empty)  # the client has begun, and has the rows so far
            fill(self.recorder.directory.path / "wandb")
        return step(self)

    monkeypatch.setattr(Trainer, "train_step", fills)
    words = ("trainer.steps=12", "telemetry.every=1", "logger=wandb", "logger.mode=offline", f"out={tmp_path}")
    with disk(tmp_path / "default" / prepare(*words).run_id / "wandb", "1m"):
        code, done = run(*words)
    assert (code, done.status["status"]) == (0, "finished")
    assert [row["step"] for row in done.metrics if "grad_norm" in row] == list(range(1, 13))
    (event,) = [event for event in done.events if event["kind"] == "tracker"]
    told = "W&B cannot write (No space left on device), rows may be missing there; the local record has them all"
    assert event["message"] == told
