"""A step on an accelerator never waits for it: no number is read back, and batches come from pinned memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from models import config, tiny, windows
from reads import Reads
from running import optimizer, trainer

from modernllm.config.build import build
from modernllm.optimizer import HOST

OPTIMIZERS = ["adamw", "lion", "muon", "sgd"]
"""Adafactor, as torch has it, reads two numbers a tensor."""
N_TARGETS = {("_local_scalar_dense", torch.int64): 1}
"""The number of targets, which is read of a batch that lies on the host."""


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch) -> Iterator[Counter[str]]:
    """As if a CPU had to be waited for: how often a tensor was read back without an operator of torch."""
    reads: Counter[str] = Counter()

    def counted(name: str) -> Any:
        read = getattr(torch.Tensor, name)

        def call(tensor: torch.Tensor) -> Any:
            reads[name] += 1
            return read(tensor)

        return call

    for name in ("tolist", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, counted(name))
    HOST.remove("cpu")  # in place: whoever has imported it sees that
    yield reads
    HOST.add("cpu")


@pytest.mark.parametrize("choice", OPTIMIZERS)
@pytest.mark.parametrize(
    ("model", "changed"),
    [
        ([], {"precision": "fp32"}),
        (["model.dropout=0.1", "head=tied"], {"precision": "bf16", "micro_batch": 3, "z_loss": 1e-4}),
        (["arch=llama"], {"precision": "fp16", "nonfinite": "skip"}),
    ],
    ids=["fp32", "bf16", "fp16"],
)
def test_no_step_reads_a_number_back(
    choice: str, model: list[str], changed: dict[str, Any], accelerator: Counter[str], tmp_path: Path
) -> None:
    module = tiny(*model)
    made = trainer(tmp_path, module, optimizer=optimizer(module, choice), every=1, **changed)
    for _ in range(3):
        with Reads() as reads:
            made.train_step()
        made.step += 1
        assert dict(reads.found) == N_TARGETS
    assert not accelerator
    made.recorder.directory.release()


@pytest.mark.parametrize("moe", ["none", "topk_lossfree"])
@pytest.mark.parametrize("choice", OPTIMIZERS)
def test_whatever_the_policy_and_what_is_watched(
    choice: str, moe: str, accelerator: Counter[str], tmp_path: Path
) -> None:
    """Telemetry is due at steps 1 and 3 and not at 2. Experts cost a read a layer: how many tokens each has."""
    for policy in ("stop", "skip", "continue"):
        module = tiny(f"moe={moe}")
        made = trainer(tmp_path / policy, module, optimizer=optimizer(module, choice), every=3, nonfinite=policy)
        for _ in range(3):
            with Reads() as reads:
                made.train_step()
            made.step += 1
            assert dict(reads.found) == N_TARGETS
            assert accelerator == ({} if moe == "none" else {"tolist": 2})
            accelerator.clear()
        assert [*made.telemetry.moved] == [1, 3]  # type: ignore[attr-defined]
        made.recorder.directory.release()


def test_the_noise_of_micro_batches_reads_their_targets_on_the_host(accelerator: Counter[str], tmp_path: Path) -> None:
    module = tiny()
    full = build(config("telemetry=full")["telemetry"] | {"every": 1}, "telemetry", model=module, steps=20)
    made = trainer(tmp_path, module, telemetry=full, micro_batch=1, precision="fp16")
    with Reads() as reads:
        made.train_step()
    assert dict(reads.found) == {("_local_scalar_dense", torch.int64): 1 + 4}
    assert not accelerator
    made.recorder.directory.release()


def test_reads_are_seen() -> None:
    """Each by itself, and what looks like one is none."""
    x, mask = torch.arange(3.0), torch.arange(3) > 0
    asked = {
        "_local_scalar_dense": lambda: float(x[0]),
        "nonzero": lambda: mask.nonzero(),
        "index": lambda: x[mask],
        "index_put_": lambda: x.__setitem__(mask, torch.ones(2)),
        "bincount": lambda: torch.arange(3).bincount(),
        "lift_fresh": lambda: torch.tensor([1.0]),
        "": lambda: (x[torch.arange(2)], x.where(mask, 0.0), torch.full((), 2.0), x.masked_fill(mask, 0.0)),
    }
    for name, ask in asked.items():
        with Reads() as reads:
            ask()
        assert [found for found, _ in reads.found] == ([name] if name else [])


def test_a_batch_goes_to_cuda_from_pinned_memory_while_the_host_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a GPU: what is asked of torch."""
    pinned: list[torch.Tensor] = []
    moved: list[tuple[bool, dict[str, Any]]] = []

    def pin(part: torch.Tensor) -> torch.Tensor:
        assert part.is_contiguous()  # of a slice torch copies an unpinned clone
        pinned.append(part.clone())
        return pinned[-1]

    def to(part: torch.Tensor, device: torch.device, **kwargs: Any) -> torch.Tensor:
        moved.append((any(part is one for one in pinned), {"device": device.type, **kwargs}))
        return part

    batch = windows()
    monkeypatch.setattr(torch.Tensor, "pin_memory", pin)
    monkeypatch.setattr(torch.Tensor, "to", to)
    assert batch.to(torch.device("cpu")) is batch
    assert (pinned, moved) == ([], [])
    there = batch.to(torch.device("cuda"))
    assert moved == [(True, {"device": "cuda", "non_blocking": True})] * 2
    assert torch.equal(there.tokens, batch.tokens)
