"""Building: plain values, errors in the constructor's own words, dead switches."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from modernllm.batch import Batch
from modernllm.config.build import build, build_model, resolve
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.schedule import Cosine

NANO = ["size=nano", "model.dim=8", "model.n_layers=2", "model.n_heads=2", "model.context_length=4"]


def refused(node: dict[str, Any], key: str = "it", **supplied: Any) -> str:
    with pytest.raises(ConfigError) as caught:
        build(node, key, **supplied)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None
    return str(caught.value)


def test_resolve_is_plain_and_has_no_references_left():
    plain = resolve(compose(["seed=${trainer.steps}", "study='${out}'"]))
    assert (plain["seed"], plain["study"]) == (1000, "runs")
    assert type(plain) is dict
    assert type(plain["model"]["norm"]) is dict
    assert type(plain["optimizer"]["betas"]) is list
    assert "${" not in OmegaConf.to_yaml(OmegaConf.create(plain))


def test_partial_takes_what_the_program_supplies():
    made = build({"_target_": "modernllm.schedule.Cosine", "_partial_": True, "warmup": 0.5}, "schedule", steps=10)
    assert isinstance(made, Cosine)
    assert made.peak == 5
    whole = build({"_target_": "modernllm.schedule.Cosine", "steps": 20}, "schedule")
    assert whole.peak == 2


def test_lists_arrive_as_lists():
    made = build(OmegaConf.create({"_target_": "modernllm.norm.rmsnorm.RMSNorm", "dim": [2, 3]}), "norm")
    assert made.gain.shape == (2, 3)


NODE = {"_target_": "modernllm.optimizer.AdamW", "betas": [0.9], "eps": 1e-8, "weight_decay": 0.1, "lr": 1.0}
WORDS = "optimizer.betas=[0.9]: two numbers are needed, such as [0.9, 0.95]"


def test_the_constructors_words_arrive_unwrapped():
    assert refused({**NODE, "model": None}) == WORDS
    assert refused({**NODE, "_partial_": True}, model=torch.nn.Linear(1, 1)) == WORDS


def test_what_is_missing_is_named_all_at_once():
    node = {"_target_": "modernllm.optimizer.AdamW", "_partial_": True, "eps": 1e-8}
    assert refused(node, "optimizer", model=None).splitlines() == [
        "optimizer.lr: is not set; optimizer.lr=... sets it",
        "optimizer.betas: is not set; optimizer.betas=... sets it",
        "optimizer.weight_decay: is not set; optimizer.weight_decay=... sets it",
    ]


def test_supplied_and_configured_must_agree():
    node = {"_target_": "modernllm.schedule.Cosine", "_partial_": True, "steps": 10}
    assert build(node, "schedule", steps=10).steps == 10
    assert build({**node, "steps": None}, "schedule", steps=3).steps == 3
    assert refused(node, "schedule", steps=11) == "schedule.steps=10: is 11 here, leave it out"


def model(*overrides: str, vocab_size: int = 7) -> tuple[torch.nn.Module, list[str]]:
    return build_model(compose([*NANO, *overrides]).model, vocab_size=vocab_size)


def test_model_is_built_and_runs():
    made, dead = model()
    assert dead == []
    tokens = torch.zeros(1, 4, dtype=torch.long)
    assert made(Batch(tokens, tokens)).shape == (1, 4, 7)


@pytest.mark.parametrize(
    ("overrides", "dead"),
    [
        (["placement=none"], ["norm"]),
        (["placement=none", "norm=none"], ["norm"]),
        (["placement=none", "readout=norm"], []),
        (["placement=post"], []),
        (["norm=none"], []),
    ],
)
def test_dead_switches(overrides: list[str], dead: list[str]):
    assert model(*overrides)[1] == dead


def test_counting_use_changes_nothing():
    counted, _ = model("head=tied")
    plain = build(compose([*NANO, "head=tied"]).model, "model", vocab_size=7)
    assert {n: p.shape for n, p in counted.named_parameters()} == {n: p.shape for n, p in plain.named_parameters()}


@pytest.mark.parametrize(
    ("overrides", "told"),
    [
        (["model.n_heads=3"], "model.n_heads=3 does not divide model.dim=8"),
        (["attention=mqa", "model.n_kv_heads=2"], "attention=mqa has one key head"),
        (["+model.norm.dim=3"], "model.norm.dim=3: is set by the model, leave it out"),
        (["+model.attention.dropout=0.5"], "model.attention.dropout=0.5: is set by the model, leave it out"),
    ],
)
def test_pairs_that_cannot_work(overrides: list[str], told: str):
    with pytest.raises(ConfigError) as caught:
        model(*overrides)
    assert str(caught.value).startswith(told)


def test_model_node_must_be_partial():
    node = {"_target_": "torch.nn.Identity"}
    with pytest.raises(ConfigError, match=r"model\._partial_"):
        build_model(node)
