"""The allow-list: what a `_target_` may be, and that refusing one runs and imports nothing."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import open_dict

import modernllm.config.compose
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.config.targets import TargetError, resolve_target
from modernllm.norm.rmsnorm import RMSNorm


def refusal(target: Any, allowed: tuple[str, ...] = ()) -> str:
    with pytest.raises(TargetError) as caught:
        resolve_target(target, allowed)
    return str(caught.value)


@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("modernllm.norm.rmsnorm.RMSNorm", RMSNorm),
        ("torch.nn.Identity", torch.nn.Identity),
        ("torch.nn.modules.activation.GELU", torch.nn.GELU),
        ("torch.optim.SGD", torch.optim.SGD),
        ("torch.optim.sgd.SGD", torch.optim.SGD),
    ],
)
def test_allowed(target: str, found: type):
    assert resolve_target(target, ()) is found


REFUSED = [
    "os.system",
    "builtins.eval",
    "builtins.exec",
    "subprocess.Popen",
    "torch.load",
    "torch.hub.load",
    "torch.Tensor",
    "torch.optim.optimizer.torch.load",
    "torch.nn.modules.module.torch.hub.load",
    "torch.nn.modules.module.torch.nn.Identity",
    "torch.nn.functional.relu",
    "torch.nn.init.normal_",
    "torch.nn.Module.__init__",
    "torch.nn.Module.forward.__globals__",
    "torch.nn.Module.__class__",
    "torch.nn",
    "torch.nnx.Identity",
    "modernllm",
    "modernllmx.norm.RMSNorm",
    "modernllm.norm",
    "modernllm.config.check.os.system",
    "modernllm.config.targets.sys.exit",
    "modernllm.config.targets.import_module",
    "modernllm.config.compose.hydra_compose",
    "modernllm.config.compose.Path",
    "modernllm.config.compose.DictConfig",
    "modernllm.config.check.check",
    "modernllm.__builtins__",
    "modernllm.__builtins__.eval",
    "modernllm.load_run",
]


@pytest.mark.parametrize("target", REFUSED)
def test_refused_without_being_called(target: str, monkeypatch: pytest.MonkeyPatch):
    called = []
    for owner, name in [(os, "system"), (torch, "load"), (torch.hub, "load"), (sys, "exit")]:
        monkeypatch.setattr(owner, name, lambda *args, **kwargs: called.append(args))
    assert "is no class of modernllm, torch.nn or torch.optim" in refusal(target) or "exist" in refusal(target)
    assert called == []


@pytest.mark.parametrize("target", ["", ".", "modernllm..x", "modernllm.norm rmsnorm", "a/b", 3, None, ["x"]])
def test_no_name_at_all(target: Any):
    assert refusal(target).startswith("should be the dotted name of a class")


def test_an_alias_inside_an_allowed_module_stays_foreign(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(modernllm.config.compose, "system", os.system, raising=False)
    monkeypatch.setattr(modernllm.config.compose, "alias", os, raising=False)
    assert "is no class of" in refusal("modernllm.config.compose.system")
    assert "is no class of" in refusal("modernllm.config.compose.alias.system")


@pytest.fixture
def outside(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    """A module that leaves a file behind when it is imported."""
    (tmp_path / "outside_probe.py").write_text(
        f"open({str(tmp_path / 'imported')!r}, 'w').close()\n"
        "class Thing:\n    def __init__(self, a=1): pass\n"
        "def make(b: int): return b\nvalue = 3\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path / "imported"
    sys.modules.pop("outside_probe", None)


def test_outside_is_not_imported_before_it_is_refused(outside: Path):
    for target in ("outside_probe.Thing", "modernllm.outside_probe.Thing", "torch.nn.outside_probe.Thing"):
        refusal(target)
    assert "outside_probe" not in sys.modules
    assert not outside.exists()


def test_listed_is_imported_whether_class_or_function(outside: Path):
    names = ("outside_probe.Thing", "outside_probe.make", "collections.Counter", "outside_probe.value")
    assert resolve_target("outside_probe.Thing", names).__name__ == "Thing"
    assert outside.exists()
    assert resolve_target("outside_probe.make", names)(3) == 3
    assert resolve_target("collections.Counter", names) is Counter
    assert refusal("outside_probe.value", names) == "is neither a class nor a function"
    assert refusal("outside_probe.other", ("outside_probe.other",)).startswith("does not exist: outside_probe")
    assert "cannot be imported" in refusal("not_installed.X", ("not_installed.X",))
    assert "is no class of" in refusal("outside_probe.Thing.__init__", names)


def test_nearest_is_named():
    assert refusal("modernllm.init.FanInn") == ("does not exist: modernllm.init has no FanInn; did you mean FanIn?")
    assert "did you mean rmsnorm?" in refusal("modernllm.norm.rmsnrom.RMSNorm")
    assert "did you mean Identity?" in refusal("torch.nn.Identiti")


def test_check_finds_targets_anywhere():
    cfg = compose([])
    with open_dict(cfg):
        cfg.model.norm.deep = [{"a": {"_target_": "os.system"}}]
        cfg.extra = {"_target_": "torch.hub.load"}
        cfg.init._target_ = "${trainer._target_}x"
    with pytest.raises(ConfigError) as caught:
        check(cfg)
    told = str(caught.value)
    assert "model.norm.deep.0.a._target_=os.system: is no class of" in told
    assert "extra._target_=torch.hub.load: is no class of" in told
    assert "init._target_=modernllm.trainer.Trainerx: does not exist" in told


def test_listed_target_is_checked_like_any_other(outside: Path):
    cfg = compose(["allow_targets=[outside_probe.make,outside_probe.Thing]"])
    with open_dict(cfg):
        cfg.init = {"_target_": "outside_probe.make", "b": 1.5, "c": 2}
        cfg.schedule = {"_target_": "outside_probe.Thing", "a": 2}
    with pytest.raises(ConfigError) as caught:
        check(cfg)
    assert str(caught.value).splitlines() == [
        "init.b=1.5: should be a whole number",
        "init.c=2: make has no c; it takes b. Is it of another init=...? (a choice is switched by its group, "
        "not by _target_)",
    ]
