"""A run that goes on in other circumstances: what is other is recorded, with what was before (F-79)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from running import prepare, run

from modernllm.runs import identity
from modernllm.runs.changes import changes, settings
from modernllm.runs.directory import RunDirectory
from modernllm.trainer import Trainer

WORDS = ("trainer.steps=5", "trainer.checkpoint_every=1", "trainer.eval_every=5")


def interrupted_at(step: int, *words: str) -> None:
    taken = Trainer.train_step

    def ends(self: Trainer) -> Any:
        if self.step == step:
            raise KeyboardInterrupt
        return taken(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "train_step", ends)
        with pytest.raises(KeyboardInterrupt):
            run(*WORDS, *words)


def test_what_is_other_is_recorded_with_what_was_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, first = f"out={tmp_path}", ("trainer.micro_batch=3", "telemetry.every=2")
    interrupted_at(0, out)  # leaves no checkpoint: what starts over is not changed
    interrupted_at(2, out, *first)
    interrupted_at(3, out, *first)
    monkeypatch.setattr(identity, "source", lambda: "other")
    code, done = run(*WORDS, out)
    assert code == 0
    assert [(event["kind"], event["step"], event["message"]) for event in done.events] == [
        ("resume", 0, "resumed after step 0"),
        ("resume", 2, "resumed after step 2"),
        ("changed", 3, "goes on with trainer.micro_batch=null (was 3), telemetry.every=null (was 2), other code"),
        ("resume", 3, "resumed after step 3"),
    ]
    assert done.config["trainer"]["micro_batch"] is None
    assert [row["step"] for row in done.metrics if "grad_norm" in row] == [1, 2, 3, 4, 5]


def test_settings_by_key_with_those_that_are_empty() -> None:
    found = settings(
        {"model": {"norm": {"eps": 1e-6}, "extra": {}}, "data": None, "out": "runs", "logger": {"mode": 1}}
    )
    assert found["model.norm.eps"] == 1e-6
    assert (found["model.extra"], found["data"], found["logger.mode"]) == ({}, None, 1)
    assert "out" not in found


def test_a_record_that_cannot_be_read_has_nothing_to_compare_with(tmp_path: Path) -> None:
    made = prepare()
    assert changes(RunDirectory(tmp_path), made.config, made.identity) == []
    (tmp_path / "config.yaml").write_text("a: [")
    assert changes(RunDirectory(tmp_path), made.config, made.identity) == []
