"""`trainer.compile=true`: the same run, from other code; names, hooks and checkpoints are those of the bare model."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch
from models import tiny, windows
from running import copied, events, fit, metrics, prepare, same, trainer
from torch import Tensor

from modernllm import checkpoint
from modernllm.compilation import compiled
from modernllm.objective import Objective

pytestmark = [  # torch's own: where it imports inductor, and where a graph breaks, as at the experts
    pytest.mark.filterwarnings("ignore:.torch.jit.script_method. is deprecated:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf:UserWarning"),
    pytest.mark.skipif("config.getoption('--shapes')", reason="dynamo does not read what checks shapes"),
]


def losses(folder: Path, *overrides: str, **changed: Any) -> list[float]:
    fit(trainer(folder, tiny(*overrides), **{"steps": 6, "eval_every": 3} | changed))
    return [row["loss"] for row in metrics(folder)]


def compare(tmp_path: Path, tolerance: float, *overrides: str, **changed: Any) -> None:
    plain = losses(tmp_path / "plain", *overrides, **changed)
    other = losses(tmp_path / "compiled", *overrides, compile=True, **changed)
    assert other == pytest.approx(plain, abs=tolerance)
    assert len(set(plain)) == 6


def test_a_compiled_run_has_the_losses_of_the_plain_one(tmp_path: Path) -> None:
    """The default model, dropout included; without any warning."""
    compare(tmp_path, 1e-5, "model.n_layers=1", "model.dropout=0.1")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("overrides", "changed", "tolerance"),
    [
        (["moe=topk"], {}, 1e-5),
        (["moe=topk_lossfree"], {}, 1e-5),
        (["arch=llama"], {"z_loss": 1e-4}, 1e-5),
        (["position=rope_ntk_dynamic"], {}, 1e-5),
        ([], {"micro_batch": 3}, 1e-5),
        ([], {"precision": "bf16"}, 5e-3),  # what is fused is not rounded in between
    ],
    ids=str,
)
def test_so_do_other_models(overrides: list[str], changed: dict[str, Any], tolerance: float, tmp_path: Path) -> None:
    compare(tmp_path, tolerance, *overrides, **changed)


class Counted:
    """In place of inductor: graphs run as they are, and are counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch):
        self.graphs, compile = 0, torch.compile
        monkeypatch.setattr(torch, "compile", lambda module, **_: compile(module, backend=self))

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Any:
        self.graphs += 1
        return graph.forward


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> Counted:
    return Counted(monkeypatch)


@pytest.mark.parametrize("saved", [False, True])
@pytest.mark.parametrize("loaded", [False, True])
def test_checkpoints_are_anyones(saved: bool, loaded: bool, counted: Counted, tmp_path: Path) -> None:
    """F-45: no name has a prefix, and whoever saved it, compiled or not, the other goes on from it."""
    plain = trainer(tmp_path / "plain", steps=6, eval_every=3)
    fit(plain)
    fit(trainer(tmp_path / "run", steps=3, eval_every=3, schedule=plain.update.schedule, compile=saved))
    (newest,) = checkpoint.complete(tmp_path / "run" / "checkpoints")
    assert checkpoint.load(newest)["model"].keys() == plain.model.state_dict().keys() == copied(tiny()).keys()
    assert not any(name.startswith(("_orig_mod.", "module.")) for name in copied(tiny()))
    fit(trainer(tmp_path / "run", steps=6, eval_every=3, compile=loaded))
    assert counted.graphs == saved + loaded
    (resumed,) = events(tmp_path / "run", "resume")
    assert resumed["step"] == 3
    expected = [row["loss"] for row in metrics(tmp_path / "plain")]
    assert [row["loss"] for row in metrics(tmp_path / "run")] == pytest.approx(expected, abs=1e-5)


def test_hooks_see_the_bare_model(counted: Counted, tmp_path: Path) -> None:
    """Also those of after it was compiled, which compiled code never calls."""
    made, seen = trainer(tmp_path, steps=1, eval_every=1, compile=True), []
    fit(made)
    made.model.get_submodule("blocks.1.sublayers.attention").register_forward_hook(lambda *_: seen.append(1))
    made.model(windows())
    assert (counted.graphs, seen) == (1, [1])


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (lambda w: {f"_orig_mod.{name}": p for name, p in w.items()}, "those of torch.compile around a model"),
        (lambda w: {f"module.{name}": p for name, p in w.items()}, "those of DistributedDataParallel around a model"),
        (lambda w: {n: p for n, p in w.items() if n != "head.weight"}, "names 1 missing, head.weight among them$"),
        (lambda w: w | {"more": torch.zeros(1)}, "names 1 unexpected, more among them$"),
    ],
)
def test_weights_of_other_names_are_refused(change: Any, told: str) -> None:
    """F-45: nothing is loaded in part."""
    model = tiny()
    before = copied(model)
    with pytest.raises(ValueError, match=rf"these weights are another model's: .*{told}"):
        checkpoint.restore(model, change(copied(tiny(seed=1))))
    assert same(copied(model), before)


def test_every_run_of_a_process_is_compiled(counted: Counted) -> None:
    """Dynamo gives up on code that it has compiled too often, and says nothing."""
    with torch._dynamo.config.patch(recompile_limit=2):
        for dim in (8, 16, 24, 32):
            compiled(Objective(tiny(f"model.dim={dim}", "model.n_layers=1")))(windows())
    assert counted.graphs == 4


def test_a_machine_without_a_compiler_is_told_before_anything_is_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    with pytest.raises(ValueError, match=r"trainer\.compile=true: .* a C\+\+ compiler, and no-such-compiler is not on"):
        prepare("trainer.compile=true", f"out={tmp_path}")
    assert os.listdir(tmp_path) == []
