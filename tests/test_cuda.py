"""What only a CUDA device can show: `pytest -m gpu` on a machine with one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, windows
from running import copied, fit, metrics, optimizer, same, trainer
from torch import Tensor

from modernllm.precision import reproducible
from modernllm.trainer import Trainer

DEVICE = "cuda"
OPTIMIZERS = ["adamw", "lion", "muon", "sgd"]
POISONED = "blocks.1.sublayers.attention.q.weight"

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def on_device(folder: Path, *words: str, choice: str = "adamw", device: str = DEVICE, **changed: Any) -> Trainer:
    """The trainer of a tiny model, with its optimizer made as a run makes it: of a model that is there already."""
    model = tiny(*words).to(device)
    return trainer(folder, model, device=device, optimizer=optimizer(model, choice), **changed)


def losses(folder: Path) -> list[float]:
    return [row["loss"] for row in metrics(folder)]


@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype feature")
@pytest.mark.parametrize("policy", ["stop", "skip", "continue"])
@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_cuda_itself_sees_no_wait(choice: str, policy: str, tmp_path: Path) -> None:
    """Torch raises where the host would wait, with telemetry due in every other step, dropout, cuts and a scale."""
    made = on_device(
        tmp_path, "model.dropout=0.1", choice=choice, nonfinite=policy, micro_batch=3, precision="fp16", every=2
    )
    made.train_step()  # a first step takes memory, and builds the optimizer's state
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            made.step += 1
            made.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    made.recorder.directory.release()


def test_the_host_does_not_wait_for_a_batch() -> None:
    """A megabyte of pageable memory, or of a slice, would wait for all that the device has still to do."""
    batch, device = windows(rows=64, length=2048), torch.device(DEVICE)
    batch.to(device)  # pinned memory is taken once
    torch.cuda.synchronize()
    torch.cuda._sleep(1_000_000_000)  # cycles: about half a second
    batch.to(device)
    assert not torch.cuda.current_stream().query()
    torch.cuda.synchronize()


@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_the_latch_holds_where_the_host_reads_late(choice: str, tmp_path: Path) -> None:
    """The poisoned step and all after it leave weights and moments as they were, to the bit."""
    made, seen = poisoned(tmp_path, 3, choice=choice, eval_every=8)
    assert fit(made).first_nonfinite_step == 3
    assert same(copied(made.model), seen[3])
    assert not same(seen[3], seen[2])
    assert max(seen) > 3  # the device has gone on
    assert [row["step"] for row in metrics(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_a_skipped_step_leaves_the_weights(choice: str, tmp_path: Path) -> None:
    made, seen = poisoned(tmp_path, 3, choice=choice, nonfinite="skip", steps=6)
    assert fit(made).step == 6
    assert same(seen[4], seen[3])
    assert not same(seen[5], seen[4])
    assert [row["step"] for row in metrics(tmp_path, "skipped")] == [3]


def poisoned(folder: Path, at: int, **changed: Any) -> tuple[Trainer, dict[int, dict[str, Tensor]]]:
    """A trainer in which a gradient is NaN at step `at`; the weights with which each step began."""
    made, seen = on_device(folder, **changed), {}

    def poison(gradient: Tensor) -> Tensor:
        seen[made.step + 1] = copied(made.model)
        return gradient * math.nan if made.step + 1 == at else gradient

    made.model.get_parameter(POISONED).register_hook(poison)
    return made, seen


@pytest.mark.parametrize("choice", [*OPTIMIZERS, "adafactor"])
def test_it_learns_what_a_cpu_learns(choice: str, tmp_path: Path) -> None:
    """Up to the order of sums: two cuts on a CPU are 1e-6 apart after 20 steps, and 3e-5 under Muon, which works in
    bfloat16.
    """
    for device in ("cpu", DEVICE):
        fit(on_device(tmp_path / device, choice=choice, device=device))
    tolerance = 1e-2 if choice == "muon" else 1e-4
    assert losses(tmp_path / DEVICE) == pytest.approx(losses(tmp_path / "cpu"), abs=tolerance)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_an_interrupted_run_goes_on_bit_for_bit(precision: str, tmp_path: Path) -> None:
    """Deterministic, with dropout and cuts."""
    asked: dict[str, Any] = {"deterministic": True, "precision": precision, "micro_batch": 3, "checkpoint_every": 5}
    whole = on_device(tmp_path / "whole", "model.dropout=0.1", **asked)
    fit(whole)
    part = on_device(tmp_path / "part", "model.dropout=0.1", **asked)
    part.model.train()
    with reproducible(True):
        part.resume()
        while part.step < 7:  # as if it were killed after the checkpoint of step 5
            part.advance()
    part.recorder.directory.release()
    again = on_device(tmp_path / "part", "model.dropout=0.1", **asked)
    fit(again)
    assert metrics(tmp_path / "part") == metrics(tmp_path / "whole")
    assert same(copied(again.model), copied(whole.model))


def test_a_scale_that_overflows_is_halved_and_the_run_goes_on(tmp_path: Path) -> None:
    made = on_device(tmp_path, precision="fp16")
    made.scale.value.fill_(2.0**28)  # type: ignore[union-attr]
    fit(made)
    held = [row["step"] for row in metrics(tmp_path, "overflowed")]
    assert held[:3] == [1, 2, 3]
    assert len(held) < 20
    assert float(made.scale.value) == 2.0 ** (28 - len(held))  # type: ignore[union-attr]


def test_a_compiled_run_has_the_losses_of_the_plain_one(tmp_path: Path) -> None:
    for compile in (False, True):
        fit(on_device(tmp_path / str(compile), "model.dropout=0.1", compile=compile))
    assert losses(tmp_path / "True") == pytest.approx(losses(tmp_path / "False"), abs=1e-4)
