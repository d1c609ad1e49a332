"""What can be seen of MPS without one: it has no float64, and a generator of its own."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from models import tiny
from running import copied, fit, optimizer, same, trainer
from torch import Tensor

from modernllm.nonfinite.examine import Moment


@pytest.fixture
def no_float64(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if every tensor were on MPS but those that were brought to the host."""
    on_host: list[Tensor] = []
    double = torch.Tensor.double

    def cpu(tensor: Tensor) -> Tensor:
        on_host.append(tensor.detach().clone())
        return on_host[-1]

    def refused(tensor: Tensor) -> Tensor:
        memory = tensor.untyped_storage().data_ptr()
        assert any(memory == one.untyped_storage().data_ptr() for one in on_host), "MPS has no float64"
        return double(tensor)

    monkeypatch.setattr(torch.Tensor, "cpu", cpu)
    monkeypatch.setattr(torch.Tensor, "double", refused)


@pytest.mark.usefixtures("no_float64")
def test_nothing_is_float64_on_the_device(tmp_path: Path) -> None:
    """Neither what is evaluated nor what is seen of the model, to which most numbers of the record belong."""
    made = trainer(tmp_path, tiny("moe=topk"), every=1)
    made.advance()
    made.read_back()
    made.evaluate()
    made.probe()
    made.recorder.directory.release()
    with pytest.raises(AssertionError, match="MPS has no float64"):
        torch.ones(1).double()


@pytest.mark.parametrize("kind", ["cuda", "mps"])
def test_the_generator_of_a_device_is_kept_and_put_back(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Beside that of the host; dropout on the device draws from it."""
    device, state = torch.device(kind), torch.arange(4, dtype=torch.uint8)
    given: list[Any] = []
    module = SimpleNamespace(get_rng_state=lambda device: state, set_rng_state=lambda *what: given.append(what))
    monkeypatch.setattr(torch, "get_device_module", lambda device: module)
    began = Moment.now(device, {})
    drawn = torch.rand(3)
    assert began.generators.keys() == {"cpu", kind}
    began.restore(device)
    assert given == [(state, device)]
    assert torch.equal(torch.rand(3), drawn)
    given.clear()
    Moment({"cpu": began.generators["cpu"]}, {}).restore(device)  # of a run on another machine
    assert not given


@pytest.mark.parametrize("choice", ["adamw", "lion", "muon", "sgd"])
def test_where_no_kernel_reads_the_latch_the_trainer_does(
    choice: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A poisoned step is not taken, and no kernel is given a latch that it would refuse."""
    monkeypatch.setattr("modernllm.update.FUSED", set())
    model, seen = tiny(), dict[int, dict[str, Tensor]]()
    made = trainer(tmp_path, model, optimizer=optimizer(model, choice), steps=6, eval_every=6)

    def poison(gradient: Tensor) -> Tensor:
        seen[made.step + 1] = copied(model)
        return gradient * math.nan if made.step == 2 else gradient

    model.get_parameter("blocks.1.sublayers.attention.q.weight").register_hook(poison)
    assert fit(made).first_nonfinite_step == 3
    assert same(copied(model), seen[3])
    assert not same(seen[3], seen[2])
    assert getattr(made.update.optimizer, "found_inf", None) is None
