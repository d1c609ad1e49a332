"""Which layer has what: as a table, and where a pattern is the uniform one."""

from __future__ import annotations

import pytest
import torch
from models import close, config, made, tiny, windows
from torch import nn

from modernllm.layers.alternate import Alternate
from modernllm.layers.moe_every import MoEEvery
from modernllm.layers.uniform import Uniform
from modernllm.model import Decoder
from modernllm.moe.none import Dense


class Site(nn.Module):
    def __init__(self, layer: int, kind: object):
        super().__init__()
        self.layer, self.kind = layer, kind


class Other(nn.Module):
    pass


def of(kind: object):
    """A factory that says what it was asked for."""
    return lambda layer, asked=kind: nn.Identity() if asked is Dense else Site(layer, asked)


def kinds(pattern: Uniform, n_layers: int) -> list[str]:
    """`a` and `o` for the attentions, `E` where there are experts, `-` where there are none."""
    found = []
    for layer in range(n_layers):
        sites = pattern(layer)
        assert list(sites) == ["attention", "feedforward"]
        mixer, experts = sites["attention"], sites["feedforward"]
        assert isinstance(mixer, Site)
        assert mixer.layer == layer
        found.append(("o" if mixer.kind is Other else "a") + ("E" if isinstance(experts, Site) else "-"))
    return found


def test_uniform() -> None:
    assert kinds(Uniform(of("full"), of("experts"), 3), 3) == ["aE"] * 3


@pytest.mark.parametrize(("period", "pattern"), [(2, "oaoaoaoa"), (3, "ooaooaoo"), (4, "oooaoooa"), (9, "oooooooo")])
def test_alternate(period: int, pattern: str) -> None:
    assert kinds(Alternate(of("full"), of("experts"), 8, Other, period), 8) == [f"{c}E" for c in pattern]


@pytest.mark.parametrize(
    ("period", "first_dense", "pattern"),
    [(2, 0, "-E-E-E"), (1, 0, "EEEEEE"), (1, 1, "-EEEEE"), (1, 3, "---EEE"), (2, 2, "---E-E"), (3, 0, "--E--E")],
)
def test_moe_every(period: int, first_dense: int, pattern: str) -> None:
    assert kinds(MoEEvery(of("full"), of("experts"), 6, period, first_dense), 6) == [f"a{c}" for c in pattern]


def test_places_for_experts_that_there_are_none_of() -> None:
    def feedforward(layer: int, kind: object = Dense) -> nn.Module:
        return nn.Linear(1, 1)

    with pytest.raises(ValueError, match=r"layers=moe_every .*moe=none has none: choose moe=topk"):
        MoEEvery(of("full"), feedforward, 2, 1, 0)(0)


def shape(model: Decoder) -> list[tuple[str, str]]:
    return [
        (type(block.sublayers["attention"]).__name__, type(block.sublayers["feedforward"]).__name__)
        for block in model.blocks
    ]


FULL, DENSE = "MultiHeadAttention", "GatedFeedForward"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["layers=alternate"], [("WindowAttention", DENSE), (FULL, DENSE)] * 2),
        (["layers=hybrid"], [("LinearAttention", DENSE)] * 3 + [(FULL, DENSE)]),
        (["layers=hybrid", "attention@model.layers.other=deltanet", "attention=gqa", "model.layers.period=2"],
         [("DeltaNet", DENSE), ("GroupedQueryAttention", DENSE)] * 2),
        (["layers=alternate", "moe=topk"], [("WindowAttention", "TopK"), (FULL, "TopK")] * 2),
        (["layers=moe_every"], [(FULL, DENSE), (FULL, "TopK")] * 2),
        (["layers=moe_every", "moe=topk_lossfree", "model.layers.period=1", "model.layers.first_dense=1"],
         [(FULL, DENSE)] + [(FULL, "LossFreeTopK")] * 3),
    ],
    ids=str,
)  # fmt: skip
def test_patterns_by_name(words: list[str], expected: list[tuple[str, str]]) -> None:
    assert shape(tiny(*words, "model.n_layers=4")) == expected


def test_what_the_second_attention_is_told() -> None:
    model = tiny("layers=alternate", "model.layers.other.size=3", "model.bias=true", "model.head_dim=6")
    window, full = (block.sublayers["attention"] for block in model.blocks)
    assert window.size == 3
    assert window.q.weight.shape == full.q.weight.shape == (24, 32)
    assert window.q.bias is not None
    assert (window.layer, full.layer) == (0, 1)


@pytest.mark.parametrize(
    ("words", "same"),
    [
        (["layers=alternate", "model.layers.other.size=32"], []),
        (["layers=hybrid", "attention@model.layers.other=mha", "attention=gqa"], []),
        (["layers=hybrid", "attention@model.layers.other=linear"], ["attention=linear"]),
        (["layers=moe_every", "model.layers.period=1"], ["moe=topk"]),
        (["layers=moe_every", "model.layers.first_dense=2"], []),
    ],
    ids=str,
)
@torch.no_grad()
def test_patterns_that_are_uniform(words: list[str], same: list[str]) -> None:
    """A window as long as the text, another attention that is the same, experts everywhere or nowhere."""
    close(made(config(*words))(windows()), made(config(*same))(windows()))
