"""Folders that others made, and records that a fault has cut short."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
import yaml
from running import run

from modernllm import Run
from modernllm.config.errors import ConfigError
from modernllm.runs.directory import read_rows

WORDS = (
    "trainer.steps=12",
    "trainer.checkpoint_every=4",
    "trainer.eval_every=4",
    "schedule=constant",
    "trainer.keep=9",
)


@pytest.fixture
def done(tmp_path: Path) -> Run:
    code, finished = run(*WORDS, f"out={tmp_path}")
    assert code == 0
    return finished


def again(done: Run) -> Run:
    """The same command once more, after the machine went down before the last step was marked."""
    (done.path / "status.json").write_text(json.dumps({"status": "running", "step": 8}))
    code, finished = run(*WORDS, f"out={done.path.parents[1]}")
    assert code == 0
    assert finished.path == done.path
    return finished


def test_a_foreign_folder_names_nothing_outside_the_allow_list(done: Run, tmp_path: Path) -> None:
    config = yaml.safe_load((done.path / "config.yaml").read_text())
    config["init"] = {"_target_": "shutil.copy", "src": str(done.path / "run.json"), "dst": str(tmp_path / "stolen")}
    config["allow_targets"] = ["shutil.copy"]
    (done.path / "config.yaml").write_text(yaml.safe_dump(config))
    with pytest.raises(ConfigError, match=r"init._target_=shutil.copy: is no class of modernllm"):
        run("trainer.steps=20", f"resume={done.path}", f"out={tmp_path}")
    assert not (tmp_path / "stolen").exists()


@pytest.mark.parametrize("content", ["a: [", "- 1", "os: 1", ""])
def test_a_folder_without_a_configuration_is_refused_by_name(done: Run, content: str) -> None:
    (done.path / "config.yaml").write_text(content)
    with pytest.raises(ValueError, match=r"config.yaml is (damaged|no configuration of a run)"):
        run("trainer.steps=20", f"resume={done.path}", f"out={done.path.parents[1]}")


@pytest.mark.parametrize("status", ["", "[1]", "{}", "garbage"])
def test_a_lost_status_loses_no_work(done: Run, status: str) -> None:
    (done.path / "status.json").write_text(status)
    code, finished = run(*WORDS, f"out={done.path.parents[1]}")
    assert code == 0
    assert finished.losses == done.losses
    assert finished.val_loss == done.val_loss


@pytest.mark.parametrize("kept", [0, 3, 6, 11])
def test_a_record_behind_its_checkpoints_is_made_up_for(done: Run, kept: int) -> None:
    """A power cut: the checkpoint reached the disk and the last rows did not."""
    rows = [row for row in read_rows(done.path / "metrics.jsonl") if row["step"] <= kept]
    (done.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"step": 1')
    finished = again(done)
    assert [row["step"] for row in finished.metrics if "grad_norm" in row] == list(range(1, 13))
    assert finished.losses == done.losses
    assert finished.val_loss == done.val_loss
    assert finished.outcome == done.outcome


def test_a_lost_last_evaluation_is_made_again(done: Run) -> None:
    rows = [row for row in read_rows(done.path / "metrics.jsonl") if not (row["step"] == 12 and "val_loss" in row)]
    (done.path / "metrics.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert again(done).val_loss == done.val_loss


def test_a_torn_line_of_no_text_is_left_out(done: Run) -> None:
    with (done.path / "metrics.jsonl").open("ab") as file:
        file.write(b'\xff\xfe{"st')
    assert again(done).losses == done.losses


def test_a_damaged_record_is_named(done: Run) -> None:
    text = (done.path / "metrics.jsonl").read_text().splitlines()
    (done.path / "metrics.jsonl").write_text("\n".join([*text[:3], "garbage", *text[3:]]) + "\n")
    with pytest.raises(ValueError, match=r"metrics.jsonl, line 4 is damaged: .*; overwrite=true runs it again"):
        run(*WORDS, f"out={done.path.parents[1]}")


def test_what_is_no_checkpoint_of_ours_is_passed_over(done: Run) -> None:
    folder = done.path / "checkpoints"
    torch.save([1], folder / "step-00000099.pt")
    (folder / "step-copy.pt").write_bytes(b"")
    assert again(done).losses == done.losses
