"""Every series that telemetry records against tests/by_hand.py, of models at their start and after training."""

from __future__ import annotations

import math
from functools import cache
from itertools import pairwise
from typing import Any

import by_hand
import numpy as np
import pytest
import torch
from by_hand import Heads, Heard
from models import LENGTH, config, made_fast, windows
from torch import nn

from modernllm.batch import Batch
from modernllm.config.build import build
from modernllm.family.external import External
from modernllm.linear import parameter_roles
from modernllm.model import Decoder
from modernllm.objective import Objective
from modernllm.telemetry.derived import loss_ratio, spike_score
from modernllm.telemetry.noise_scale import NoiseScale
from modernllm.telemetry.observer import Series
from modernllm.telemetry.probe import Probe
from modernllm.telemetry.sharpness import sharpness
from modernllm.telemetry.weights import Weights

LAYERS = 3
DEEP = f"model.n_layers={LAYERS}"
TOLERANCE = 2e-4


@cache
def looked(trained: bool, *overrides: str) -> tuple[Decoder, Heard, Series]:
    """A model, what this file's hooks heard of it, and what telemetry says."""
    model = made_fast(config(DEEP, *overrides))
    learned = [p for name, p in model.named_parameters() if name.endswith("softmax.logits")]
    with torch.no_grad():
        for p in learned:
            p.copy_(torch.linspace(-1, 2, len(p)))
        for name, buffer in model.named_buffers():
            if name.endswith("steps_up"):  # as a router is biased after some hundred steps
                buffer.copy_(torch.arange(-80, 80, 20))
    if trained:
        train(model)
    batch = windows(rows=2, seed=5)
    return model, by_hand.listen(model, batch), Probe(model, "fp32")(batch)


def train(model: Decoder, steps: int = 12) -> None:
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    for step in range(steps):
        batch = windows(rows=2, seed=50 + step)
        nats, auxiliary = Objective(model)(batch)
        ((nats + auxiliary) / batch.n_targets).backward()
        optimizer.step()
        optimizer.zero_grad()


def close(found: dict[str, float], expected: dict[str, float], tolerance: float = TOLERANCE) -> None:
    assert found == pytest.approx(expected, rel=tolerance, abs=1e-7)


both = pytest.mark.parametrize("trained", [pytest.param(False, marks=pytest.mark.slow, id="start"), True])


# --- the stream and its gradients

STREAMS = [
    (),
    ("placement=post",),
    ("placement=no_residual",),
    ("placement=hybrid", "qk_norm=qkv"),
    ("placement=deepnorm", "init=deepnorm"),
    ("placement=residual_dual",),
    ("placement=sandwich", "norm=layernorm"),
    ("branch=rezero", "placement=none"),
    ("branch=layerscale",),
    ("block=parallel",),
    ("block=parallel_norms", "attention=linear"),
]


@both
@pytest.mark.parametrize("overrides", STREAMS, ids=lambda words: " ".join(words) or "default")
def test_stream(overrides: tuple[str, ...], trained: bool) -> None:
    _, heard, found = looked(trained, *overrides)
    places = {"start": heard.into["blocks.0"]} | {f"layer.0{i}": heard.out[f"blocks.{i}"] for i in range(LAYERS)}
    close(found["stream_rms"], {place: by_hand.rms(x) for place, x in places.items()})
    close(found["stream_kurtosis"], {place: by_hand.moments(x)["kurtosis"] for place, x in places.items()}, 1e-3)
    close(found["stream_max"], {place: np.abs(x).max() for place, x in places.items()})
    close(found["stream_massive"], {place: by_hand.massiveness(x) for place, x in places.items()}, 1e-3)
    close(found["effective_rank"], {place: by_hand.effective_rank(x) for place, x in places.items()}, 1e-3)
    close(found["token_cosine"], {place: by_hand.token_cosine(x) for place, x in places.items()}, 1e-3)
    (_, *after), states = places, list(places.values())
    between = [by_hand.cosine_of_tokens(x, y) for x, y in pairwise(states)]
    close(found["stream_cosine"], dict(zip(after, between, strict=True)))
    assert found["growth"]["activation"] == pytest.approx(
        by_hand.growth(states[0], states[-1], LAYERS), rel=1e-3, abs=1e-5
    )


@both
@pytest.mark.parametrize("overrides", STREAMS, ids=lambda words: " ".join(words) or "default")
def test_branches(overrides: tuple[str, ...], trained: bool) -> None:
    model, heard, found = looked(trained, *overrides)
    expected = {}
    for i in range(LAYERS):
        for site in model.get_submodule(f"blocks.{i}.joins")._modules:
            name = f"blocks.{i}.joins.{site}"
            expected[f"layer.0{i}.{site}"] = by_hand.rms(heard.out[f"{name}.branch"]) / by_hand.rms(heard.into[name])
    close(found["branch_ratio"], expected)


@both
@pytest.mark.parametrize("overrides", STREAMS, ids=lambda words: " ".join(words) or "default")
def test_gradients(overrides: tuple[str, ...], trained: bool) -> None:
    _, heard, found = looked(trained, *overrides)
    assert found["probe"]["loss"] == pytest.approx(by_hand.loss(heard.out["model"], heard.targets), rel=1e-5)
    squares: dict[str, float] = {}
    for name, gradient in heard.gradients.items():
        if name == "start" or (name.startswith("blocks.") and name.count(".") == 1):
            continue
        part, number, *_ = name.split(".")
        layer = f"layer.0{number}" if part == "blocks" else part
        squares[layer] = squares.get(layer, 0.0) + float((gradient**2).sum())
    by_layer = {layer: math.sqrt(square) for layer, square in squares.items()}
    close(found["probe_grad_norm"], by_layer, 1e-3)
    deep = [by_layer[f"layer.0{i}"] for i in range(LAYERS)]
    assert found["grad_slope"]["gradient"] == pytest.approx(by_hand.slope(deep), rel=1e-3, abs=1e-4)
    stream = {"start": heard.gradients["start"]} | {
        f"layer.0{i}": heard.gradients[f"blocks.{i}"] for i in range(LAYERS)
    }
    close(found["stream_grad_rms"], {place: by_hand.rms(x) for place, x in stream.items()}, 1e-3)
    ends = stream["start"], stream[f"layer.0{LAYERS - 1}"]
    assert found["growth"]["gradient"] == pytest.approx(by_hand.growth(*ends, LAYERS), rel=1e-3, abs=1e-4)


# --- attention

HEADS: list[tuple[tuple[str, ...], dict[str, Any]]] = [
    ((), {}),
    (("attention=gqa",), {}),
    (("attention=mqa", "position=none"), {"rope": False}),
    (("attention=window", "model.attention.size=8"), {"window": 8}),
    (("model.attention.softcap=0.5",), {"cap": 0.5}),
    (("model.attention.sinks=zero",), {"sink": "zero"}),
    (("model.attention.sinks=learned", "model.attention.softcap=2.0"), {"sink": "learned", "cap": 2.0}),
    (("qk_norm=head", "model.attention.scale=none"), {"norm": "head", "scale": 1.0}),
    (("qk_norm=width", "model.attention.scale=width"), {"norm": "width", "scale": 1 / 8}),
    (("position=alibi",), {"rope": False, "alibi": True}),
    (("attention=window_gqa", "model.attention.size=1"), {"window": 1}),
    (("attention=gated",), {}),
    (("attention=differential",), {}),
]


@both
@pytest.mark.parametrize(("overrides", "made_of"), HEADS, ids=lambda part: " ".join(part) or "default")
def test_attention(overrides: tuple[str, ...], made_of: dict[str, Any], trained: bool) -> None:
    """From the weights and what the attention reads."""
    model, heard, found = looked(trained, *overrides)
    of = Heads(**{"n_heads": 4, "head_dim": 8, "scale": 8**-0.5} | made_of)
    for i in range(LAYERS):
        name = f"blocks.{i}.sublayers.attention"
        weights = {key: by_hand.exact(p) for key, p in model.get_submodule(name).named_parameters()}
        dots = by_hand.products(of, weights, heard.into[name])
        seen = by_hand.visible(of, LENGTH)
        if of.window == 1:  # no query has a choice
            assert not any(place.startswith(f"layer.0{i}") for place in found.get("attention_entropy", {}))
            continue
        sinks = weights.get("attend.softmax.logits", np.zeros(4))
        _same(found, i, by_hand.attention_numbers(of, dots, seen, sinks))


@both
@pytest.mark.parametrize("choice", ["attention=mla", "attention=bigbird", "position=t5"])
def test_attention_of_what_attend_is_given(choice: str, trained: bool) -> None:
    """Whatever made the queries, keys, bias and mask."""
    more = ("model.attention.size=4", "model.attention.random=3") if choice == "attention=bigbird" else ()
    _, heard, found = looked(trained, choice, *more)
    for i in range(LAYERS):
        given = heard.attended[i]
        q, k = by_hand.exact(given["q"]), by_hand.exact(given["k"])
        dots = q.shape[-1] ** -0.5 * np.einsum("bhik,bhjk->bhij", q, k)
        causal = by_hand.visible(Heads(4, 8, 1.0), LENGTH)
        seen = causal if given["mask"] is None else given["mask"][:, 0].numpy()
        bias = None if given["bias"] is None else by_hand.exact(given["bias"])
        assert not (seen & ~causal).any()
        _same(found, i, by_hand.attention_numbers(Heads(4, 8, 1.0), dots, seen, np.zeros(4), bias))


def _same(found: Series, layer: int, expected: dict[str, Any]) -> None:
    for series in ("max_logit", "entropy"):
        of_layer = [x for place, x in found[f"attention_{series}"].items() if place.startswith(f"layer.0{layer}.")]
        assert of_layer == pytest.approx(expected[series], rel=TOLERANCE, abs=1e-6)
    assert found["attention_sinks"][f"layer.0{layer}"] == expected["sinks"]


# --- feed-forwards and experts


@both
@pytest.mark.parametrize("choice", ["activation=relu", "activation=relu2", "activation=reglu", "activation=swiglu"])
def test_feedforward(choice: str, trained: bool) -> None:
    _, heard, found = looked(trained, choice, "model.bias=true")
    for i in range(LAYERS):
        place, name = f"layer.0{i}", f"blocks.{i}.sublayers.feedforward"
        hidden = heard.into[f"{name}.out"]
        told = {key: found[f"activation_{key}"][place] for key in ("mean", "std", "kurtosis", "max")}
        close(told, by_hand.moments(hidden), 1e-3)
        if choice != "activation=swiglu":
            u = heard.into[f"{name}.act"]
            on = [sum(1 for value in u[..., f].flatten() if value > 0) / u[..., f].size for f in range(u.shape[-1])]
            assert found["units_dead"][place] == pytest.approx(sum(share == 0 for share in on) / len(on))
            assert found["units_near_dead"][place] == pytest.approx(sum(share < 1e-3 for share in on) / len(on))
        if choice in ("activation=reglu", "activation=swiglu"):
            gate, of = heard.out[f"{name}.act"], by_hand.moments(heard.out[f"{name}.act"])
            closed = sum(abs(value) < 0.01 for value in gate.flatten()) / gate.size
            told = {key: found[f"gate_{key}"][f"{place}.feedforward"] for key in ("mean", "std", "closed")}
            close(told, {"mean": of["mean"], "std": of["std"], "closed": closed}, 1e-3)


def test_near_dead_units_of_many_tokens() -> None:
    """Of 3000 tokens: on for none, for 2, for 3 and for all of them."""
    model = External(vocab_size=9, context_length=3000, dim=4, n_layers=1, n_heads=1, module=lambda *sizes: Rectified())
    found = Probe(model, "fp32")(Batch.from_windows(torch.arange(3001)[None] % 9))
    assert found["units_dead"] == {"relu": 0.25}
    assert found["units_near_dead"] == {"relu": 0.5}  # 2 of 3000 are fewer than 1 in 1000, 3 are not


class Rectified(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.relu = nn.Embedding(9, 9), nn.ReLU()

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        place = torch.arange(tokens.shape[1])
        u = torch.stack([place - 5000, place - 2997.5, place - 2996.5, place + 1.0], -1)
        return self.embedding(tokens) + self.relu(u).sum() * 0


def test_of_experts_with_few_tokens_nothing_is_said() -> None:
    """One token turns half of the units on: the others are not dead."""
    _, heard, found = looked(False, "moe=topk", "activation=relu", "model.moe.n_experts=16")
    for i in range(LAYERS):
        n_tokens = [heard.into[f"blocks.{i}.sublayers.feedforward.experts.{e}.act"].size / 128 for e in range(16)]
        assert min(n_tokens) < 8 < max(n_tokens)
        told = {place for place in found.get("units_dead", {}) if place.startswith(f"layer.0{i}")}
        assert told == {f"layer.0{i}.experts.{e}" for e, n in enumerate(n_tokens) if n >= 32}


def test_a_rectifier_that_several_layers_share_is_told_nothing_of() -> None:
    model = looked(False, "activation=relu")[0]
    shared = nn.ReLU()
    for block in model.blocks:
        block.get_submodule("sublayers.feedforward").act = shared
    try:
        assert "units_dead" not in Probe(model, "fp32")(windows(rows=2))
    finally:
        looked.cache_clear()


@both
@pytest.mark.parametrize("choice", ["moe=topk", "moe=topk_lossfree"])
def test_router(choice: str, trained: bool) -> None:
    model, heard, found = looked(trained, choice)
    for i in range(LAYERS):
        name = f"blocks.{i}.sublayers.feedforward"
        logits, n_experts = heard.out[f"{name}.router"].reshape(-1, 8), 8
        if choice == "moe=topk":
            scores = np.exp(logits) / np.exp(logits).sum(-1, keepdims=True)
            up = np.zeros(n_experts)
        else:
            scores = 1 / (1 + np.exp(-logits))
            up = 0.001 * by_hand.exact(model.get_buffer(f"{name}.steps_up"))
        load = [0] * n_experts
        for token in scores:
            for expert in sorted(range(n_experts), key=lambda e: -(token + up)[e])[:2]:
                load[expert] += 1
        entropies = [entropy(token / token.sum()) / math.log(n_experts) for token in scores]
        told = {key: found[f"router_{key}"][f"layer.0{i}"] for key in ("max_load", "idle", "load_entropy", "entropy")}
        close(
            told,
            {
                "max_load": max(load) * n_experts / sum(load),
                "idle": load.count(0) / n_experts,
                "load_entropy": entropy(np.array(load) / sum(load)) / math.log(n_experts),
                "entropy": sum(entropies) / len(entropies),
            },
        )


def entropy(shares: np.ndarray) -> float:
    return -sum(p * math.log(p) for p in shares if p > 0)


# --- logits


@both
@pytest.mark.parametrize("choice", ["head=untied", "head=tied", "head=softcapped", "embedding=scaled"])
def test_logits(choice: str, trained: bool) -> None:
    _, heard, found = looked(trained, choice)
    z = heard.out["model"]
    normalisers = by_hand.log_normalisers(z)
    expected = {"mean": z.mean(), "rms": by_hand.rms(z), "log_z": normalisers.mean(), "log_z_max": normalisers.max()}
    close(found["logits"], expected)


# --- what a step does to the weights


@pytest.mark.parametrize("choice", ["adamw", "sgd", "muon"])
def test_weights_over_several_steps(choice: str) -> None:
    """Each tensor before and after its third step, gradients before clipping, decay included, moments as Adam's."""
    model = made_fast(config("activation=relu"))
    shipped = config(f"optimizer={choice}")["optimizer"] | {"lr": 0.02, "weight_decay": 0.5}
    optimizer = build(shipped | ({"eps": 1e-4} if "eps" in shipped else {}), "optimizer", model=model)
    names = [name for name, _, _ in parameter_roles(model)]
    second = {name: np.zeros(1) for name in names}
    watch = Weights(model)
    for step in range(1, 4):
        batch = windows(rows=2, seed=step)
        nats, _ = Objective(model)(batch)
        (nats / batch.n_targets).backward()
        gradients = {name: by_hand.exact(p.grad) for name, p, _ in parameter_roles(model) if p.grad is not None}
        second = {name: 0.95 * second[name] + 0.05 * gradients[name] ** 2 for name in names}
        old = {name: by_hand.exact(p).copy() for name, p, _ in parameter_roles(model)}
        norms = torch.stack([p.grad.norm() for _, p, _ in parameter_roles(model) if p.grad is not None])
        watch.before()
        optimizer.step()
        moved = watch.after(optimizer)
        optimizer.zero_grad()
    layers, tensors = watch.series(norms, moved)
    new = {name: by_hand.exact(p) for name, p, _ in parameter_roles(model)}

    def size(members: list[str], of: dict[str, np.ndarray]) -> float:
        return math.sqrt(sum(float((of[name] ** 2).sum()) for name in members))

    change = {name: new[name] - old[name] for name in names}
    groups = {name: [name] for name in names} | {"layer.01": [n for n in names if n.startswith("blocks.1.")]}
    for place, members in groups.items():
        found = layers if place == "layer.01" else tensors
        n = sum(old[name].size for name in members)
        assert found["grad_norm"][place] == pytest.approx(size(members, gradients), rel=1e-4)
        assert found["grad_rms"][place] == pytest.approx(size(members, gradients) / math.sqrt(n), rel=1e-4)
        assert found["weight_norm"][place] == pytest.approx(size(members, old), rel=1e-5)
        assert found["update_ratio"][place] == pytest.approx(size(members, change) / size(members, old), rel=1e-3)
        adam = [m for m in members if choice == "adamw" or (choice == "muon" and old[m].ndim == 1)]
        if choice == "muon" and place in ("embedding.weight", "head.weight"):
            adam = members
        low = [np.sqrt(second[m] / (1 - 0.95**3)) < 10 * 1e-4 for m in adam]
        if low:
            share = sum(int(each.sum()) for each in low) / sum(each.size for each in low)
            assert found["near_eps"][place] == pytest.approx(share, abs=2e-3)
        else:
            assert place not in found.get("near_eps", {})


# --- what follows from the losses of a run


def losses(n: int, seed: int) -> list[float]:
    """Falling, with noise, some jumps, and a few that are not finite."""
    draw = np.random.default_rng(seed)
    values = 2 + 3 * np.exp(-np.arange(n) / (n / 5)) + 0.05 * draw.standard_normal(n)
    for step in draw.integers(0, n, 9):
        values[step] += draw.choice([-0.5, 0.4, 0.9, math.nan, math.inf])
    return values.tolist()


@pytest.mark.parametrize("n", [300, 800, 1499, 1500, 2600])
def test_spikes_and_ratios(n: int) -> None:
    """One step after the other, with all that came before."""
    window, sigmas = (1000, 7) if n >= 1500 else (128, 6)
    for seed in range(3):
        values, expected = losses(n, seed), []
        middle = range(round(0.1 * n), round(0.9 * n))
        for index in middle:
            before = np.array([value for value in values[:index] if math.isfinite(value)][-window:])
            away = values[index] - before.mean()
            away = abs(away) if n >= 1500 else away
            if not math.isfinite(values[index]) or away >= sigmas * math.sqrt(((before - before.mean()) ** 2).mean()):
                expected.append(index + 1)
        found = spike_score(values)
        assert found is not None
        assert found.steps == expected
        assert found.percent == pytest.approx(100 * len(expected) / len(middle))
        finite = [(step, value) for step, value in enumerate(values, 1) if math.isfinite(value)]
        ratios = [(v / min(w for _, w in finite[:i]), step) for i, (step, v) in enumerate(finite) if i]
        jumps = sum(ratio > 1.2 for ratio, _ in ratios) + n - len(finite)
        assert loss_ratio(values) == (max(ratios)[0], max(ratios)[1], jumps)


@pytest.mark.parametrize(("n", "window", "sigmas"), [(800, 128, 6), (2600, 1000, 7)])
@pytest.mark.parametrize("index", [520, 1300])
def test_spikes_stand_out_of_just_the_values_before(n: int, window: int, sigmas: int, index: int) -> None:
    """One part in 10,000 more than the bound, and less: another window or deviation would say so of neither or both."""
    index = min(index, n - 200)
    values = (2 + 0.05 * np.random.default_rng(index).standard_normal(n)).tolist()
    before = np.array(values[max(0, index - window) : index])
    bound = sigmas * math.sqrt(((before - before.mean()) ** 2).mean())
    for share, told in ((1.0001, True), (0.9999, False)):
        values[index] = float(before.mean() + share * bound)
        found = spike_score(values)
        assert found is not None
        assert (index + 1 in found.steps) == told


# --- noise scale and sharpness


def test_noise_scale_has_no_bias() -> None:
    """Gradients of n tokens are G plus noise of variance S / n: on average the estimates are G^2 and S."""
    signal, variance, small, large, size = 0.3, 50.0, 8, 32, 10
    draw, p = np.random.default_rng(0), nn.Parameter(torch.zeros(size))
    noise, rows = NoiseScale([p]), []
    mean = np.full(size, math.sqrt(signal / size))
    for step in range(4000):
        tokens = mean + draw.normal(0, math.sqrt(variance / size), (large, size))
        p.grad = torch.tensor(tokens[:small].sum(0) / large, dtype=torch.float32)  # as the first micro-batch leaves it
        noise.accumulated(step, small, large, torch.tensor(1.0))
        whole = torch.tensor(np.sqrt(((tokens.mean(0)) ** 2).sum()), dtype=torch.float32)
        rows.append(noise.series(step, whole[None])["noise"])
    for key, true in (("signal", signal), ("variance", variance)):
        values = np.array([row[key] for row in rows])
        assert values.mean() == pytest.approx(true, abs=4 * values.std() / math.sqrt(len(values)))
    assert np.mean([row["variance"] for row in rows]) == pytest.approx(variance, rel=0.05)
    assert np.mean([row["signal"] for row in rows]) == pytest.approx(signal, rel=0.25)


def test_sharpness_of_a_transformer_is_the_largest_eigenvalue_of_its_hessian() -> None:
    """All of its second derivatives, one row after the other."""
    sizes = ("model.dim=4", "model.n_heads=2", "model.n_layers=1", "model.hidden=8")
    model = made_fast(config(*sizes), vocab_size=7)
    draw = torch.Generator().manual_seed(0)
    batch = Batch.from_windows(torch.randint(7, (2, 9), generator=draw))
    parameters = list(model.parameters())
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        loss = nn.functional.cross_entropy(model(batch).flatten(0, 1), batch.targets.flatten())
        first = torch.cat([g.flatten() for g in torch.autograd.grad(loss, parameters, create_graph=True)])
        rows = [
            torch.cat([g.flatten() for g in torch.autograd.grad(x, parameters, retain_graph=True)]).double()
            for x in first
        ]
    hessian = torch.stack(rows).numpy()
    values = np.linalg.eigvalsh((hessian + hessian.T) / 2)
    largest = values[np.abs(values).argmax()]
    assert sharpness(model, batch, 100) == pytest.approx(largest, rel=1e-2)
    assert sharpness(model, batch, 20) == pytest.approx(largest, rel=0.1)
