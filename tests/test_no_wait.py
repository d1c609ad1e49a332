"""A step on an accelerator never waits for it: no number is read back, and batches come from pinned memory."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, windows
from running import optimizer, trainer
from torch.utils._python_dispatch import TorchDispatchMode

READS = {"_local_scalar_dense", "equal", "nonzero", "masked_select", "is_nonzero"}
"""Operators that give the host a number, or a shape, that only the device knows."""


class Reads(TorchDispatchMode):
    """Counts them, by operator and type of number."""

    def __init__(self) -> None:
        super().__init__()
        self.found: Counter[tuple[str, torch.dtype]] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = func.overloadpacket.__name__
        if name in READS:
            self.found[name, args[0].dtype] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if a CPU had to be waited for."""
    monkeypatch.setattr("modernllm.optimizer.HOST", set())

    def waits(*_: Any) -> None:
        raise AssertionError("a step reads a tensor back")

    for name in ("tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, waits)


@pytest.mark.usefixtures("accelerator")
@pytest.mark.parametrize("choice", ["adamw", "lion", "muon", "sgd"])
@pytest.mark.parametrize(
    ("model", "changed"),
    [
        ([], {"precision": "fp32"}),
        (["model.dropout=0.1", "head=tied"], {"precision": "bf16", "micro_batch": 3, "z_loss": 1e-4}),
        (["arch=llama"], {"precision": "fp16", "nonfinite": "skip"}),
    ],
    ids=["fp32", "bf16", "fp16"],
)
def test_no_step_reads_a_number_back(choice: str, model: list[str], changed: dict[str, Any], tmp_path: Path) -> None:
    """But the number of targets, of a batch that lies on the host. Adafactor, as torch has it, reads two a tensor."""
    module = tiny(*model)
    made = trainer(tmp_path, module, optimizer=optimizer(module, choice), every=1, **changed)
    for _ in range(3):
        with Reads() as reads:
            made.train_step()
        made.step += 1
        assert dict(reads.found) == {("_local_scalar_dense", torch.int64): 1}
    assert {"_local_scalar_dense"} == {name for name, _ in reads.found}
    made.recorder.directory.release()


def test_reads_are_seen() -> None:
    with Reads() as reads:
        assert float(torch.ones(1)) == 1
        assert torch.ones(2).nonzero().shape == (2, 1)
    assert reads.found == {("_local_scalar_dense", torch.float32): 1, ("nonzero", torch.float32): 1}


def test_a_batch_goes_to_cuda_from_pinned_memory_while_the_host_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what is asked of torch."""
    pinned: list[torch.Tensor] = []
    moved: list[tuple[bool, dict[str, Any]]] = []

    def pin(part: torch.Tensor) -> torch.Tensor:
        pinned.append(part.clone())
        return pinned[-1]

    def to(part: torch.Tensor, device: torch.device, **kwargs: Any) -> torch.Tensor:
        moved.append((any(part is one for one in pinned), {"device": device.type, **kwargs}))
        return part

    batch = windows()
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    batch.to(torch.device("cpu"))
    assert (pinned, moved) == ([], [(False, {"device": "cpu"})] * 2)
    moved.clear()
    there = batch.to(torch.device("cuda"))
    assert moved == [(True, {"device": "cuda", "non_blocking": True})] * 2
    assert torch.equal(there.tokens, batch.tokens)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("choice", ["adamw", "lion", "muon", "sgd"])
def test_cuda_itself_sees_no_wait(choice: str, tmp_path: Path) -> None:
    """Torch raises where the host would wait."""
    model = tiny()
    made = trainer(tmp_path, model.cuda(), device="cuda", optimizer=optimizer(model, choice))
    made.train_step()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for _ in range(3):
            made.train_step()
    finally:
        torch.cuda.set_sync_debug_mode("default")
    made.recorder.directory.release()
