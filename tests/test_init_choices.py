"""Every initialisation against its rule, role by role; muP against the size of updates at many widths (F-21)."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import partial

import pytest
import torch
from models import choices, config, made, made_fast, tiny, windows
from torch import Tensor, nn

from modernllm.linear import Role, parameter_roles
from modernllm.model import Decoder
from modernllm.objective import Objective
from modernllm.optimizer import AdamW, parameter_groups

D, F, V, LAYERS = 32, 88, 61, 8
"""Widths of stream and feed-forward, size of the vocabulary."""


def stds(model: Decoder) -> dict[str, float]:
    """Of every matrix, pooled over the layers, by the last part of its name: q, k, v, out, up, gate, down, head, ..."""
    found = defaultdict(list)
    for name, p in model.named_parameters():
        if p.ndim > 1:
            short = re.sub(r"blocks\.\d+\.sublayers\.", "", name).removesuffix(".weight")
            found[short].append(p.detach().flatten())
    return {name: float(torch.cat(values).std()) for name, values in found.items()}


def table(inside: float, out: float, v: float, up: float, down: float, head: float, embedding: float) -> dict:
    return {
        "attention.q": inside,
        "attention.k": inside,
        "attention.v": v,
        "attention.out": out,
        "feedforward.gate": up,
        "feedforward.up": up,
        "feedforward.out": down,
        "head": head,
        "embedding": embedding,
    }


def same(std: float) -> dict[str, float]:
    return table(std, std, std, std, std, std, std)


FANIN, XAVIER, XAVIER_FF = D**-0.5, D**-0.5, (2 / (D + F)) ** 0.5
SMALL, BETA = (2 / (5 * D)) ** 0.5, 64**-0.25
RULES = {
    "fanin": table(FANIN, FANIN, FANIN, FANIN, F**-0.5, FANIN, 1.0),
    "depth_scaled": table(FANIN, FANIN / 4, FANIN, FANIN, F**-0.5 / 4, FANIN, 1.0),
    "normal": same(0.02),
    "gpt2": same(0.02) | {"attention.out": 0.005, "feedforward.out": 0.005},
    "xavier": table(XAVIER, XAVIER, XAVIER, XAVIER_FF, XAVIER_FF, FANIN, 1.0),
    "small": table(SMALL, SMALL, SMALL, SMALL, SMALL, FANIN, 1.0),
    "zero_out": table(FANIN, 0.0, FANIN, FANIN, 0.0, FANIN, 1.0),
    "deepnorm": table(XAVIER, XAVIER * BETA, XAVIER * BETA, XAVIER_FF * BETA, XAVIER_FF * BETA, FANIN, 1.0),
    "mup": table(FANIN, FANIN, FANIN, FANIN, F**-0.5, FANIN * 2**0.5, 1.0),  # the head is that of width 64
}


def test_every_initialisation_of_ours_has_a_rule() -> None:
    assert {choice.partition("=")[2] for choice in choices("init")} == {*RULES, "own"}


@pytest.mark.parametrize("init", RULES)
def test_the_rule(init: str) -> None:
    """Standard deviations within a tenth, of all the matrices of eight layers."""
    model = made(config(f"init={init}"), n_layers=LAYERS)
    found = stds(model)
    assert found.keys() == RULES[init].keys()
    for name, std in RULES[init].items():
        assert found[name] == pytest.approx(std, rel=0.1)


@pytest.mark.parametrize("choice", ["attention=mla", "attention=gqa", "activation=gelu", "moe=topk", "block=parallel"])
def test_depth_scaled_shrinks_what_writes_into_the_stream(choice: str) -> None:
    """F-21: sqrt(2 * 8) times, and nothing else, whatever the sublayers are made of."""
    cfg = config(choice)
    whole = made_fast(cfg, n_layers=LAYERS)
    scaled = made_fast(cfg | {"init": config("init=depth_scaled")["init"]}, n_layers=LAYERS)
    writers = {name for name, _, role in parameter_roles(scaled) if role == "stream"}
    assert len(writers) >= 2 * LAYERS
    for name, p in scaled.named_parameters():
        expected = whole.get_parameter(name) / (4 if name in writers else 1)
        torch.testing.assert_close(p, expected, rtol=1e-6, atol=0)


def test_what_is_asked_of_a_parameter_is_that_of_its_own_name() -> None:
    """Initialisations that give a parameter the same size give it the same numbers."""
    fanin, deep = tiny(), tiny("init=deepnorm")
    assert torch.equal(deep.embedding.get_parameter("weight"), fanin.embedding.get_parameter("weight"))
    q = "blocks.1.sublayers.attention.q.weight"  # square: Xavier is 1 / fan-in
    torch.testing.assert_close(deep.get_parameter(q), fanin.get_parameter(q))


def test_the_first_gradients_of_zero_out() -> None:
    """Every block starts as the identity; what writes has a gradient, nothing behind it has; at the second all have."""
    model, batch = tiny("init=zero_out"), windows()
    torch.testing.assert_close(model(batch), model.head(model.readout(model.embedding(batch.tokens))))
    optimizer = AdamW(model, lr=1e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.0)
    for step in range(2):
        optimizer.zero_grad()
        Objective(model)(batch)[0].backward()
        moved = {name for name, p in model.named_parameters() if p.grad is not None and p.grad.abs().max() > 0}
        everything = {name for name, _ in model.named_parameters()}
        inner = {name for name in everything if name.startswith("blocks") and ".out." not in name}
        assert moved == (everything - inner if step == 0 else everything)
        optimizer.step()


def test_depth_scaled_keeps_the_stream() -> None:
    """Of one size at any depth, where the default grows with its root."""

    def size(init: str, n_layers: int) -> float:
        read: list[Tensor] = []
        model = made(config(f"init={init}"), n_layers=n_layers)
        model.readout.register_forward_pre_hook(lambda module, given: read.append(given[0]))
        model(windows())
        return float(read[0].detach().pow(2).mean().sqrt())

    assert size("depth_scaled", 32) == pytest.approx(size("depth_scaled", 4), rel=0.1)
    assert size("fanin", 32) > 2 * size("fanin", 4)


# --- muP


def rate(parameter: nn.Parameter) -> float:
    return parameter.lr_scale  # type: ignore[attr-defined]


def test_at_the_base_width_mup_is_fanin() -> None:
    """The same values, and no rate is scaled."""
    model, like = made(config("init=mup", "init.base=32")), tiny()
    for name, p in model.named_parameters():
        assert torch.equal(p, like.get_parameter(name))
        assert rate(p) == 1.0


RATES: dict[Role, float] = {
    "embedding": 1.0,
    "small_embedding": 0.5,  # the stream is sqrt(d) of it
    "position": 1.0,
    "hidden": 0.25,
    "score": 0.25,
    "gate": 0.25,
    "stream": 0.25,
    "head": 0.25,
    "gain": 1.0,
    "bias": 1.0,
    "scale": 1.0,
}


@pytest.mark.parametrize("embedding", ["plain", "scaled"])
def test_the_rates_of_mup(embedding: str) -> None:
    """At four times the base width; the optimizer has them, the decay per step is that of the base width."""
    cfg = config("init=mup", "init.base=8", "position=learned", "norm=layernorm", "branch=layerscale")
    cfg["model"] |= {"bias": True, "embedding": config(f"embedding={embedding}")["model"]["embedding"]}
    model = made(cfg)
    seen = set()
    for _, p, role in parameter_roles(model):
        assert rate(p) == RATES[role]
        seen.add(role)
    assert seen == set(RATES) - {"small_embedding" if embedding == "plain" else "embedding"}
    optimizer = AdamW(model, lr=1e-2, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)
    for group in optimizer.param_groups:
        assert {1e-2 * rate(p) for p in group["params"]} == {group["lr"]}
        assert group["lr"] * group["weight_decay"] in (0.0, pytest.approx(1e-3))
    assert len(optimizer.param_groups) == (2 if embedding == "plain" else 3)
    independent = parameter_groups(parameter_roles(model), 1e-2, 0.1, "independent")
    assert {round(group["lr"] * group["weight_decay"], 12) for group in independent} == {0.0, 0.1}


def test_mup_needs_a_head_of_its_own() -> None:
    with pytest.raises(ValueError, match=r"init=mup .*head=tied .*choose head=untied"):
        made(config("init=mup", "head=tied"))


def updates(init: str, dim: int) -> dict[str, float]:
    """By how much the stream after the embedding and each block, and the logits, move in five steps of Adam (RMS)."""
    cfg = config(f"init={init}", "head=zero")  # drawn as muP says, the first logits shrink with the width
    model = made(cfg, dim=dim, n_heads=dim // 8, n_layers=2)
    places: dict[str, nn.Module] = {"embedding": model.embedding, "logits": model.head}
    places |= {f"block {i}": block for i, block in enumerate(model.blocks)}
    found: dict[str, Tensor] = {}

    def keep(name: str, module: nn.Module, given: object, x: Tensor) -> None:
        found[name] = x.detach()

    for name, module in places.items():
        module.register_forward_hook(partial(keep, name))
    batch = windows(rows=16)
    optimizer = AdamW(model, lr=5e-3, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.0)
    model(batch)
    start = dict(found)
    for _ in range(5):
        optimizer.zero_grad()
        (Objective(model)(batch)[0] / batch.n_targets).backward()
        optimizer.step()
    model(batch)
    return {name: float((found[name] - start[name]).pow(2).mean().sqrt()) for name in places}


def test_the_coordinate_check() -> None:
    """Under muP every activation moves as much at twice the width; under fanin the more, the wider."""
    mup, fanin = ({dim: updates(init, dim) for dim in (32, 128, 256)} for init in ("mup", "fanin"))
    assert mup[256].keys() == {"embedding", "block 0", "block 1", "logits"}
    assert mup[256] == pytest.approx(mup[128], rel=0.1)
    assert mup[128] == pytest.approx(mup[32], rel=0.35)  # at width 32 what is left of the noise still shows
    for name in ("block 0", "block 1", "logits"):
        assert fanin[256][name] > 1.3 * fanin[128][name]
    assert fanin[128]["logits"] > 2 * fanin[32]["logits"]
