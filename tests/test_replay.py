"""A run that ended as non-finite is done again from its folder: the same place, or a word that it is not."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from processes import PATIENCE
from running import TRAIN, events, run

from modernllm import Run
from modernllm.config.errors import ConfigError
from modernllm.nonfinite import bundle
from modernllm.nonfinite.replay import Replayed, lines, replay
from modernllm.report.summary import result

REPLAY = TRAIN.parent / "scripts" / "replay.py"
CPU = torch.device("cpu")
DEEP = ("model.n_layers=10", "placement=none")
"""Overflows before it learns anything."""


def norm(name: str) -> tuple[str, ...]:
    return f"model.norm._target_=faults.{name}", f"allow_targets=[faults.{name}]"


def ended(tmp_path: Path, *words: str, steps: int = 6) -> tuple[Run, dict[str, Any]]:
    """A run that is not finite, and its event."""
    code, done = run(*words, f"trainer.steps={steps}", f"out={tmp_path}")
    assert code == 4
    (event,) = events(done.path, "nonfinite")
    return done, event


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Run:
    return ended(tmp_path_factory.mktemp("deep"), *DEEP)[0]


@pytest.mark.parametrize(
    ("words", "step", "phase", "operation"),
    [
        (DEEP, 1, "forward", None),
        (("optimizer.lr=1e9", "schedule.warmup=0"), None, None, None),
        ((*norm("DriftingNorm"), "model.dropout=0.5"), 2, "forward", "_to_copy"),
        ((*norm("RootNorm"), "model.dropout=0.5", "seed=3"), 1, "backward", "div"),
        ((*norm("RootNorm"), "trainer.precision=bf16", "moe=topk", "trainer.micro_batch=3"), 1, "backward", "div"),
        ((*norm("DriftingNorm"), "trainer.nonfinite=stop", "trainer.precision=fp16"), None, "forward", "_to_copy"),
    ],
    ids=str,
)
def test_the_place_is_found_again(
    words: tuple[str, ...], step: int | None, phase: str | None, operation: str | None, tmp_path: Path
) -> None:
    done, event = ended(tmp_path, *words, steps=20)
    place = event["place"]
    assert place is not None, event["where"]
    assert step in (None, event["step"])
    assert phase in (None, place["phase"])
    assert operation in (None, place["operation"])
    again = replay(done.path, CPU, done.config["allow_targets"])
    assert again.reproduced
    assert again.finding.place == bundle.load(done.path).place
    if "seed=3" in words:  # one micro-batch: the loss is that of the whole step
        assert again.finding.loss == pytest.approx(event["loss"], rel=1e-6)
    assert len(event["windows"]) == 4
    text = "\n".join(lines(again))
    assert f"again on cpu, torch {torch.__version__}: {event['where']} (the same)" in text
    assert text.splitlines()[-1] in ("  loss: not finite", f"  {place['tensor']}: not finite")


def test_the_way_leads_from_the_place_to_the_loss(deep: Run) -> None:
    text = list(lines(replay(deep.path, CPU)))
    (event,) = events(deep.path, "nonfinite")
    assert text[0] == "step 1 in fp32: 4 rows of 32 tokens, 4 at a time"
    start = text.index("from there to the loss:")
    assert text[start + 1] == f"  forward of {event['place']['module']}"
    assert re.match(rf"    {event['place']['operation']}: float32\[.*\] up to .* -> float32\[.*\]", text[start + 2])
    modules = [line for line in text if line.startswith("  forward of ")]
    assert modules[-2:] == ["  forward of head", "  forward of loss"]
    layers = [int(found[1]) for line in modules if (found := re.search(r"blocks\.(\d+)", line))]
    assert layers == sorted(layers)
    assert layers[-1] == 9


def test_the_summary_says_the_place_and_points_to_the_script(deep: Run) -> None:
    text = list(result(deep))
    (event,) = events(deep.path, "nonfinite")
    assert event["where"].endswith("with the initial weights")
    assert f"! non-finite at step 1: loss {event['loss']}; first non-finite: {event['where']}" in text
    assert f"  again, operator by operator: python scripts/replay.py {deep.path}" in text
    assert f"  (from {event['bundle']['megabytes']} MB in nonfinite/step-00000001.pt)" in text


def test_an_infinite_update_is_replayed_from_what_it_left(tmp_path: Path) -> None:
    done, event = ended(tmp_path, "optimizer.lr=1e39", "schedule=constant", "schedule.warmup=0")
    assert (event["step"], event["place"]["phase"], event["place"]["operation"]) == (1, "optimizer", "AdamW")
    assert event["place"]["scalars"]["step"] == 1
    again = replay(done.path, CPU)
    assert again.reproduced
    text = "\n".join(lines(again))
    assert f"recorded on cpu, torch {torch.__version__}: update of embedding.weight (" in text
    assert (
        f"the weights after that update, on cpu, torch {torch.__version__}: embedding.weight float32[259, 32]" in text
    )
    assert "the weights before it are gone" in text
    assert text.endswith("loss: not finite")


def test_an_external_module(tmp_path: Path) -> None:
    target = "faults.Bigram"
    words = ["family=external", f"model.module._target_={target}", f"allow_targets=[{target}]"]
    done, event = ended(tmp_path, *words)
    assert (event["place"]["module"], event["place"]["operation"]) == ("module", "log")
    assert event["place"]["kind"] == "activation"
    assert replay(done.path, CPU, [target]).reproduced


def test_a_skipped_step_is_replayed_and_the_summary_says_so(tmp_path: Path) -> None:
    code, done = run(*norm("RootNorm"), "trainer.nonfinite=skip", "trainer.steps=3", f"out={tmp_path}")
    assert code == 0
    first, *others = events(done.path, "skipped")
    assert first["place"]["node"] == "SqrtBackward0"
    assert len(others) == 2
    assert replay(done.path, CPU, done.config["allow_targets"]).reproduced
    told = [line for line in result(done) if line.startswith("!")]
    assert told == [f"! {first['message']}"]


# --- what is not the same


def test_a_step_that_is_finite_here_is_said_to_be(deep: Run, tmp_path: Path) -> None:
    def shrink(content: dict[str, Any]) -> None:
        for name, weight in content["model"].items():
            if name.endswith("weight"):
                weight.mul_(0.1)

    file = changed(deep, tmp_path, shrink)
    again = replay(file, CPU)
    assert not again.reproduced
    text = list(lines(again))
    assert text[-1].startswith(f"does not reproduce on cpu, torch {torch.__version__}: the step is finite here, loss ")
    assert len(text) == 3


def test_another_place_is_said_to_be_another(deep: Run) -> None:
    again = replay(deep.path, CPU)
    assert again.bundle.place is not None
    other = Replayed(replace(again.bundle, place=replace(again.bundle.place, module="head")), again.finding, CPU)
    assert not other.reproduced
    assert "(not the same place)" in "\n".join(lines(other))


def changed(done: Run, folder: Path, change: Any) -> Path:
    """A copy of a run's bundle, changed."""
    (file,) = (done.path / "nonfinite").iterdir()
    content = torch.load(file, weights_only=True)
    change(content)
    torch.save(content, folder / file.name)
    return folder / file.name


# --- foreign files


def test_a_foreign_bundle_names_nothing_outside_the_allow_list(deep: Run, tmp_path: Path) -> None:
    theft = {"_target_": "shutil.copy", "src": str(deep.path / "run.json"), "dst": str(tmp_path / "stolen")}

    def steal(content: dict[str, Any]) -> None:
        content["config"]["model"]["norm"] = theft
        content["config"]["allow_targets"] = ["shutil.copy"]

    with pytest.raises(ConfigError, match=r"model.norm._target_=shutil.copy: is no class of modernllm"):
        replay(changed(deep, tmp_path, steal), CPU)
    assert not (tmp_path / "stolen").exists()


def test_a_norm_of_ones_own_is_named_again(tmp_path: Path) -> None:
    done, _ = ended(tmp_path, *norm("RootNorm"))
    with pytest.raises(ConfigError, match=r"model.norm._target_=faults.RootNorm"):
        replay(done.path, CPU)


class Touch:
    """Runs code when it is unpickled."""

    def __init__(self, path: Path):
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


def test_what_is_no_bundle_is_refused_and_runs_nothing(tmp_path: Path) -> None:
    torch.save({"step": 1, "config": Touch(tmp_path / "ran")}, tmp_path / "step-00000001.pt")
    for content in (None, b"garbage"):
        if content is not None:
            (tmp_path / "step-00000001.pt").write_bytes(content)
        with pytest.raises(ValueError, match=r"step-00000001.pt is no step to replay") as error:
            replay(tmp_path / "step-00000001.pt", CPU)
        assert "\n" not in str(error.value)
    assert not (tmp_path / "ran").exists()
    with pytest.raises(FileNotFoundError, match="has no step to replay"):
        replay(tmp_path, CPU)


# --- the commands


@pytest.mark.slow
def test_a_real_run_and_the_real_script(tmp_path: Path) -> None:
    words = [*DEEP, "size=nano", "data=synthetic", "data.n_documents=40", "logger=local", "trainer.threads=1"]
    trained = command(tmp_path, TRAIN, *words, "trainer.steps=5", "trainer.batch_size=2")
    assert trained.returncode == 4, trained.stderr
    (pointer,) = [line for line in trained.stdout.splitlines() if "scripts/replay.py" in line]
    folder = pointer.rpartition(" ")[2]
    again = command(tmp_path, REPLAY, folder)
    assert (again.returncode, again.stderr) == (0, "")
    assert "(the same)" in again.stdout
    assert again.stdout.splitlines()[-1] == "  loss: not finite"
    nowhere = command(tmp_path, REPLAY, "nowhere")
    assert nowhere.returncode == 1
    assert nowhere.stderr.startswith("error: ")


def command(folder: Path, script: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(script), *words], cwd=folder, capture_output=True, text=True, timeout=PATIENCE, check=False
    )
