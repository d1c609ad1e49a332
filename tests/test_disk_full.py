"""A full disk in the middle of a run (F-85): one clear error, the old checkpoint good, and with room it goes on."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from modernllm import checkpoint, load_run

TRAIN = Path(__file__).parents[1] / "train.py"
WORDS = (
    "size=nano data=synthetic data.n_documents=40 logger=local trainer.steps=12 trainer.checkpoint_every=4 "
    "trainer.eval_every=100 trainer.validation_tokens=256 trainer.threads=1"
)


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """Room for one checkpoint of nano (2.8 MB), not for two."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=5m", "tmpfs", folder], capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("mounting a small disk takes root on Linux")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def train(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(TRAIN), *WORDS.split(), f"out={out}"]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


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
