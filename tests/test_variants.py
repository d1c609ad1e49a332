"""Every choice of every group, alone and in pairs: trained, saved, blind to the future, decayed by role."""

from __future__ import annotations

import io
import math
import re
from functools import partial
from itertools import chain, combinations
from typing import Any

import pytest
import torch
from models import (
    CHOICES,
    GROUPS,
    LENGTH,
    VOCAB,
    awake,
    choices,
    close,
    config,
    label,
    made,
    made_fast,
    paired,
    tiny,
    windows,
)
from pairwise import covering
from reads import Reads
from running import optimizer as shipped
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from modernllm.attention.attend import Attend
from modernllm.batch import IGNORED, Batch
from modernllm.config.tree import CONFIG_DIR, read_tree
from modernllm.context import Context
from modernllm.linear import parameter_roles, parameter_starts
from modernllm.model import Decoder
from modernllm.moe.topk import TopK
from modernllm.objective import Objective
from modernllm.optimizer import AdamW

VARIANTS = [
    *([choice] for choice in CHOICES),
    ["model.bias=true"],
    ["model.bias=true", "position=learned"],
    ["model.bias=true", "position=alibi", "attention=gqa"],
    ["model.position.layout=half", "model.position.fraction=0.5"],
    ["model.head_dim=12", "model.hidden=20"],
    ["attention=gqa", "model.n_kv_heads=4"],
    ["norm=layernorm", "position=learned", "activation=gelu", "head=tied", "init=gpt2", "model.bias=true"],
    ["placement=post", "position=sinusoidal", "embedding=scaled", "head=tied", "activation=relu"],
    ["block=parallel", "attention=mqa", "norm=layernorm"],
    ["placement=none", "block=parallel"],
    ["placement=post", "block=parallel"],
    ["placement=post", "readout=norm", "attention=gqa"],
    ["qk_norm=width", "attention=gqa", "norm=layernorm", "model.bias=true"],
    ["placement=hybrid_star", "attention=gqa", "norm=layernorm", "branch=layerscale", "model.bias=true"],
    ["placement=residual_dual", "readout=none", "block=parallel", "head=tied_softcapped"],
    ["attention=window", "model.attention.size=16", "model.attention.sinks=learned", "model.n_kv_heads=2"],
    ["attention=bigbird", "model.attention.size=12", "model.attention.softcap=2.0", "position=alibi"],
    ["attention=mla", "model.attention.q_rank=12", "model.attention.sinks=zero", "model.bias=true"],
    ["attention=gated", "model.attention.gates=headwise", "model.attention.scale=width", "model.bias=true"],
    ["attention=differential", "model.n_kv_heads=2", "model.attention.softcap=5.0", "qk_norm=head"],
]

UNTURNED = {f"position={scheme}" for scheme in ("none", "learned", "sinusoidal", "alibi", "t5")}
IDLE = {"attention.k.bias": UNTURNED}
"""Parameters whose gradient is zero but for rounding, and the choices that make it so: the softmax does not
see what is added to all scores of a query, and that is what a bias adds to keys that are not turned."""

ASLEEP = {
    "head=zero": lambda name: not name.startswith("head"),
    "init=zero_out": lambda name: name.startswith("blocks") and ".out." not in name,
    "branch=rezero": lambda name: name.startswith("blocks") and not name.endswith("branch.scale"),
}
"""What has no gradient at the first step, because what it goes through starts at zero."""

UNDECAYED_MATRICES = {"embedding.weight", "position.table"}

CANNOT_WORK: dict[frozenset[str], str] = {
    **{
        frozenset({choice, f"position={position}"}): f"position={position} .*attention={attention}, in layer 0"
        for position in ("alibi", "t5")
        for attention in ("linear", "performer", "retention", "deltanet")
        for choice in (f"attention={attention}", *(["layers=hybrid"] if attention == "linear" else []))
    },
    frozenset({"layers=moe_every", "moe=none"}): "layers=moe_every .*moe=none",
    **{
        frozenset({f"placement={hybrid}", "block=parallel"}): "placement=hybrid .*block=parallel"
        for hybrid in ("hybrid", "hybrid_star")
    },
    **{
        frozenset({"attention=mla", normed}): r"attention=mla .*qk_norm"
        for normed in ("qk_norm=head", "qk_norm=width", "qk_norm=qkv", "placement=hybrid", "placement=hybrid_star")
    },
    frozenset({"block=parallel_norms", "placement=residual_dual"}): "block=parallel_norms .*residual_dual",
    **{frozenset({"init=mup", head}): "init=mup .*head=tied" for head in ("head=tied", "head=tied_softcapped")},
}
"""Pairs of choices that are refused, and what the error says."""


@pytest.fixture(params=VARIANTS, ids=label)
def variant(request: pytest.FixtureRequest) -> list[str]:
    return request.param


@pytest.fixture
def fresh(variant: list[str]) -> Decoder:
    return tiny(*variant)


@pytest.fixture
def model(fresh: Decoder) -> Decoder:
    """With nothing in it at zero, where its outputs would say nothing."""
    return awake(fresh)


def adamw(model: nn.Module, lr: float = 1e-3) -> AdamW:
    return AdamW(model, lr=lr, betas=[0.9, 0.95], eps=1e-8, weight_decay=0.1)


def mean_loss(model: nn.Module, batch: Batch) -> Tensor:
    return Objective(model)(batch)[0] / batch.n_targets


def gradients(model: nn.Module, batch: Batch) -> dict[str, Tensor]:
    model.zero_grad()
    Objective(model)(batch)[0].backward()
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_the_groups_of_the_model_are_found() -> None:
    expected = "norm placement position activation attention qk_norm moe block branch layers embedding head"
    assert set(GROUPS) >= {*expected.split(), "readout", "init"}
    assert {"norm=rmsnorm", "placement=post", "position=rope", "init=gpt2", "qk_norm=head"} <= set(CHOICES)


def test_it_trains(variant: list[str], fresh: Decoder) -> None:
    """Every parameter is reached, at the first step and after three, and each step changes all of them."""
    model, optimizer = fresh, adamw(fresh.train())
    idle = tuple(suffix for suffix, because in IDLE.items() if because & set(variant))
    asleep = [ASLEEP[choice] for choice in variant if choice in ASLEEP]
    for step in range(4):
        found = gradients(model, windows(seed=step))
        assert set(found) == {name for name, _ in model.named_parameters()}
        largest = max(float(gradient.abs().max()) for gradient in found.values())
        assert 0 < largest < math.inf
        still = {name for name, g in found.items() if not float(g.abs().max()) > 1e-6 * largest}
        sleeping = {name for name in found if step == 0 and any(sleeps(name) for sleeps in asleep)}
        assert still == {name for name in found if name.endswith(idle)} | sleeping
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        optimizer.step()
        assert all(p.isfinite().all() for p in model.parameters())
        unchanged = {name for name, p in model.named_parameters() if torch.equal(p, before[name])}
        assert unchanged <= sleeping


def test_a_step_asks_its_device_for_nothing(fresh: Decoder) -> None:
    """No number, no shape and no constant that an accelerator would have to be waited for. How many tokens each of its
    experts has a list on the host knows, which is no operator: test_no_wait.py counts those.
    """
    batch = windows()
    with Reads() as reads:
        Objective(fresh.train())(batch)[0].backward()
    assert not reads.found


def test_the_start_is_as_the_initialisation_says(fresh: Decoder) -> None:
    """Not many times worse than knowing nothing, whatever the parts."""
    loss = float(mean_loss(fresh, windows(rows=16)).detach())
    assert math.log(VOCAB) - 0.05 < loss < 3 * math.log(VOCAB)


def test_it_is_saved_and_loaded(variant: list[str], model: Decoder) -> None:
    batch, file = windows(), io.BytesIO()
    torch.save(model.state_dict(), file)
    file.seek(0)
    other = tiny(*variant, seed=1)
    assert not torch.equal(other(batch), model(batch))
    other.load_state_dict(torch.load(file, weights_only=True))
    assert torch.equal(other(batch), model(batch))


# --- nothing sees the future (F-19)


class SeesAll(Attend):
    def forward(self, q, k, v, mask, bias):
        return super().forward(q, k, v, torch.ones(1, 1, q.shape[2], k.shape[2], dtype=torch.bool), bias)


def leaking(model: Decoder) -> Decoder:
    """What these tests are there to notice."""
    for module in model.modules():
        if isinstance(module, Attend):
            module.__class__ = SeesAll
    return model


def change_of_prefix(model: Decoder, length: int) -> float:
    """By how much the logits before `length` move, relative to the largest, when what follows is changed."""
    batch = windows()
    tokens = batch.tokens.clone()
    tokens[:, length:] = (tokens[:, length:] + 7) % VOCAB
    before, after = model(batch).detach(), model(Batch(tokens)).detach()
    assert not torch.equal(before[:, length:], after[:, length:])
    return float((before - after)[:, :length].abs().max() / before.abs().max())


def reach(model: Decoder, position: int) -> list[int]:
    """The positions on which the logits at `position` depend, by gradient."""
    embedded: list[Tensor] = []

    def keep(module: nn.Module, given: object, x: Tensor) -> None:
        embedded.append(x)

    hook = model.embedding.register_forward_hook(keep)
    logits = model(windows(rows=1))[0, position]
    hook.remove()
    (gradient,) = torch.autograd.grad((logits * torch.randn_like(logits)).sum(), embedded[0])
    return gradient[0].abs().sum(-1).nonzero().flatten().tolist()


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_no_position_sees_its_future(model: Decoder, training: bool) -> None:
    model.train(training)
    assert max(change_of_prefix(model, length) for length in (1, 3, 7, 15, 31)) <= 1e-6
    for position in (0, 6, 14, 30):
        assert reach(model, position) == list(range(position + 1))


def test_a_leak_would_be_noticed() -> None:
    model = leaking(tiny())
    assert change_of_prefix(model, 15) > 1e-2
    assert reach(model, 6) == list(range(LENGTH))


def losses_on_fresh_tokens(model: Decoder) -> Tensor:
    """Means over 50 of 200 steps on uniform tokens that never come again."""
    optimizer, losses = adamw(model.train(), lr=1e-2), []
    for step in range(200):
        optimizer.zero_grad()
        loss = mean_loss(model, windows(rows=8, seed=step))
        loss.backward()
        optimizer.step()
        losses.append(loss.detach())
    return torch.stack(losses).view(4, 50).mean(1)


@pytest.mark.slow
@pytest.mark.parametrize(
    "variant",
    [[], ["placement=post"], ["position=learned", "attention=gqa"], ["position=none", "block=parallel"]],
    ids=label,
)
def test_fresh_random_tokens_cannot_be_predicted(variant: list[str]) -> None:
    assert float(losses_on_fresh_tokens(tiny(*variant)).min()) >= math.log(VOCAB) - 0.02


@pytest.mark.slow
def test_a_leak_would_predict_them() -> None:
    assert float(losses_on_fresh_tokens(leaking(tiny())).min()) < 1.0


# --- weight decay (F-46)


def decayed_by(groups: list[dict[str, Any]]) -> set[nn.Parameter]:
    return {p for group in groups if group["weight_decay"] for p in group["params"]}


def test_every_parameter_is_in_one_group(model: Decoder) -> None:
    groups = adamw(model).param_groups
    assert {group["weight_decay"] for group in groups} == {0.1, 0.0}
    members = [p for group in groups for p in group["params"]]
    assert len(members) == len(set(members)) == len(list(model.parameters()))
    assert set(members) == set(model.parameters())
    matrices = {name for name, p in model.named_parameters() if p.ndim > 1} - UNDECAYED_MATRICES
    decayed = decayed_by(groups)
    assert {name for name, p in model.named_parameters() if p in decayed} == matrices
    assert len(matrices) >= 12
    for choice in read_tree([CONFIG_DIR])["optimizer"]:
        members = [p for group in shipped(model, choice).param_groups for p in group["params"]]
        assert len(members) == len(set(members)), choice
        assert set(members) == set(model.parameters()), choice


def test_only_the_decayed_shrink(model: Decoder) -> None:
    optimizer = adamw(model)
    decayed = decayed_by(optimizer.param_groups)
    before = {p: p.detach().clone() for p in model.parameters()}
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    optimizer.step()
    for p, old in before.items():
        if p in decayed:
            torch.testing.assert_close(p.detach(), old * (1 - 1e-3 * 0.1), rtol=1e-6, atol=0)
            assert float(p.detach().norm()) < float(old.norm())
        else:
            assert torch.equal(p, old)


# --- pairing (F-90, F-91)


def test_draws_before_the_build_do_not_matter(variant: list[str]) -> None:
    first = made(config(*variant))
    torch.rand(64)
    second, other = made(config(*variant)), tiny(*variant, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters(), strict=True))
    pairs = zip(first.parameters(), other.parameters(), strict=True)
    drawn = [(a, b) for a, b in pairs if float(a.detach().max() - a.detach().min()) > 0]
    assert len(drawn) >= 12
    assert not any(torch.equal(a, b) for a, b in drawn)


@pytest.mark.parametrize("choice", [choice for choice in CHOICES if not choice.startswith("init=")])
def test_shared_parameters_start_equal(choice: str) -> None:
    """The same name, shape, role and initialisation: the same values, bit for bit, whatever else the variant has."""

    def starts(cfg: dict[str, Any]) -> dict[tuple[object, ...], Tensor]:
        model = made_fast(cfg | {"init": config()["init"]})  # a placement may bring its own
        own = parameter_starts(model)
        return {(name, p.shape, role, own.get(p)): p for name, p, role in parameter_roles(model)}

    ours, default = starts(config(choice)), starts(config())
    shared = ours.keys() & default.keys()
    assert [key[0] for key in shared if not torch.equal(ours[key], default[key])] == []
    matrices = [key for key, p in default.items() if p.ndim > 1]
    assert sum(key in shared for key in matrices) >= len(matrices) // 2


# --- caches, padding, documents (F-05, F-09, F-57)


def decoded(model: Decoder, tokens: Tensor, parts: list[int]) -> Tensor:
    """The logits of `tokens`, given in parts of these lengths."""
    states, past, logits = model.states(len(tokens), tokens.shape[1]), 0, []
    for part in tokens.split(parts, dim=1):
        batch = Batch(part)
        logits.append(model(batch, Context.of(batch, states, past)))
        past += part.shape[1]
    return torch.cat(logits, 1)


PARTS = [[5, 1, 3, 1, 1, 4, 17], [1] * LENGTH, [LENGTH]]


@pytest.mark.parametrize("parts", PARTS, ids=["chunks", "one by one", "at once"])
def test_decoding_with_a_cache(model: Decoder, parts: list[int]) -> None:
    """F-05: as the full forward, however the text is cut."""
    tokens = windows().tokens
    with torch.no_grad():
        close(decoded(model, tokens, parts), model(Batch(tokens)))


@pytest.mark.parametrize("position", choices("position"))
@pytest.mark.parametrize("attention", choices("attention"))
def test_decoding_with_every_attention_and_position(attention: str, position: str) -> None:
    if frozenset({attention, position}) in CANNOT_WORK:
        pytest.skip("refused, see test_pairs")
    model, tokens = made_fast(paired(attention, position)), windows().tokens
    with torch.no_grad():
        close(decoded(model, tokens, PARTS[0]), model(Batch(tokens)))


def test_padding_on_the_left(model: Decoder) -> None:
    """A padded row has the logits of the same text alone."""
    batch = windows(rows=3)
    mask = torch.ones_like(batch.tokens, dtype=torch.bool)
    mask[1, :12] = False
    logits = model(Batch(batch.tokens, mask=mask))
    close(logits[1, 12:], model(Batch(batch.tokens[1:2, 12:]))[0])
    close(logits[[0, 2]], model(batch)[[0, 2]])


def test_a_row_that_is_padding(model: Decoder) -> None:
    """F-09: rows and positions without a key leave the others, and every gradient, as they are alone."""
    batch = windows(rows=3)
    mask = torch.ones_like(batch.tokens, dtype=torch.bool)
    mask[1], mask[2, :5] = False, False
    assert batch.targets is not None
    targets = batch.targets.where(mask, IGNORED)
    padded = Batch(batch.tokens, targets, mask=mask)
    loss, found = mean_loss(model, padded), gradients(model, padded)
    assert loss.isfinite()
    kept = Batch(batch.tokens[[0, 2]], targets[[0, 2]], mask=mask[[0, 2]])
    close(loss, mean_loss(model, kept))
    close(model(padded)[0], model(Batch(batch.tokens[:1]))[0])
    expected = gradients(model, kept)
    assert found.keys() == expected.keys()
    for name in found:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)


def test_documents_in_one_row_are_apart(model: Decoder) -> None:
    """F-57: logits and gradients of the second are those of it alone; without segments they are not."""
    batch = windows(rows=2)
    assert batch.targets is not None
    segments = torch.zeros_like(batch.tokens)
    segments[:, 13:] = 1
    targets = batch.targets.where(segments == 1, IGNORED)
    packed = Batch(batch.tokens, targets, segments=segments)
    alone = Batch(batch.tokens[:, 13:], targets[:, 13:])
    close(model(packed)[:, 13:], model(alone))
    close(model(packed)[:, :13], model(batch)[:, :13])
    found, expected = gradients(model, packed), gradients(model, alone)
    for name in expected:
        torch.testing.assert_close(found[name], expected[name], rtol=1e-4, atol=1e-5)
    together = model(Batch(batch.tokens, targets))[:, 13:]
    assert float((together - model(alone)).detach().abs().max()) > 1e-3


# --- dropout and precision


def test_dropout_is_off_in_eval(variant: list[str]) -> None:
    """F-47: bitwise; and on in training."""
    model, batch = awake(made(config(*variant), dropout=0.5)), windows()
    assert torch.equal(model(batch), model(batch))
    assert torch.equal(model(batch), awake(tiny(*variant))(batch))
    model.train()
    assert not torch.equal(model(batch), model(batch))


def test_bfloat16_products(model: Decoder) -> None:
    """Under autocast the stream and the gradients stay float32; the loss is that of float32 within 1 %."""
    batch, streams = windows(), []
    model.readout.register_forward_pre_hook(lambda module, given: streams.extend(tree_leaves(given)))
    with torch.autocast("cpu", torch.bfloat16):
        logits = model(batch)
        found = gradients(model, batch)
        loss = mean_loss(model, batch)
        with torch.no_grad():
            apart = (decoded(model, batch.tokens, PARTS[0]) - logits).abs().amax(-1) > 0.03 * logits.abs().max()
    # rounded otherwise, a token near a tie may go to other experts
    assert float(apart.float().mean()) <= (0.05 if any(isinstance(m, TopK) for m in model.modules()) else 0.0)
    assert logits.dtype == torch.bfloat16
    assert {stream.dtype for stream in streams} == {loss.dtype} == {torch.float32}
    assert all(gradient.isfinite().all() for gradient in found.values())
    assert float(loss.detach()) == pytest.approx(float(mean_loss(model, batch).detach()), rel=0.01)


# --- pairs


def problem(first: str, second: str) -> str | None:
    """What is wrong with a pair that should work, or that should be refused in words."""
    expected = CANNOT_WORK.get(frozenset({first, second}))
    try:
        model = awake(made_fast(paired(first, second)))
    except ValueError as error:
        return None if expected and re.search(expected, str(error)) else f"refused: {error}"
    if expected:
        return "is not refused"
    try:
        with torch.no_grad():
            logits = model(windows(rows=2))
    except ValueError as error:
        return f"refused too late, when it is used: {error}"
    if logits.shape != (2, LENGTH, VOCAB) or not logits.isfinite().all():
        return f"logits {tuple(logits.shape)}, largest {float(logits.abs().max())}"
    # little is left of norm=dyt without residuals
    return None if float(logits.std()) > 1e-8 else "the same logits everywhere"


@pytest.mark.parametrize("choice", CHOICES)
def test_pairs(choice: str) -> None:
    """Two choices work together, or are refused in words: this one with every later one of another group."""
    group = choice.partition("=")[0]
    others = [c for c in CHOICES[CHOICES.index(choice) :] if c.partition("=")[0] != group]
    assert {other: wrong for other in others if (wrong := problem(choice, other))} == {}


COMPONENTS = {group: [choice for choice in choices(group) if choice in CHOICES] for group in GROUPS}
COMBINATIONS = covering(COMPONENTS, CANNOT_WORK.keys())
"""Models of one choice of each group, in which every pair occurs that is not refused."""


def fault(model: Decoder, batch: Batch) -> str | None:
    """What a model sees before it is there, or what in it learns nothing; experts without a token may not."""
    logits: list[Tensor] = []
    unvisited: list[str] = []

    def note(name: str, module: nn.Module, given: tuple[Tensor, ...]) -> None:
        if given[0].shape[1] == 0:
            unvisited.append(f"{name}.")

    hooks = [model.register_forward_hook(lambda module, given, made: logits.append(made.detach()))]
    for name, module in model.named_modules():
        if re.search(r"experts\.\d+$", name):
            hooks.append(module.register_forward_pre_hook(partial(note, name)))
    found = gradients(model, batch)
    for hook in hooks:
        hook.remove()
    without = [
        name
        for name, _ in model.named_parameters()
        if name not in found
        or not found[name].isfinite().all()
        or not (found[name].any() or name.startswith(tuple(unvisited)))
    ]
    if without:
        return f"no gradient, or none that is finite: {without}"
    tokens, before = batch.tokens.clone(), logits[0]
    tokens[:, 13:] = (tokens[:, 13:] + 7) % VOCAB
    with torch.no_grad():
        change = (model(Batch(tokens)) - before).abs() / before.abs().max()
    if float(change[:, :13].max()) > 1e-6:
        return f"the future is seen: {float(change[:, :13].max()):.1e}"
    return None if float(change[:, 13:].max()) > 1e-3 else "the tokens do not matter"


def test_the_combinations_have_every_pair() -> None:
    wanted = {
        frozenset((a, b))
        for a in chain(*COMPONENTS.values())
        for b in chain(*COMPONENTS.values())
        if a.partition("=")[0] != b.partition("=")[0]
    }
    had = {frozenset(pair) for combination in COMBINATIONS for pair in combinations(combination, 2)}
    assert had == wanted - CANNOT_WORK.keys()
    assert {len(combination) for combination in COMBINATIONS} == {len(GROUPS)}
    assert len(COMBINATIONS) < 2 * len(COMPONENTS["attention"]) * len(COMPONENTS["placement"])


@pytest.mark.parametrize("training", [False, True], ids=["eval", "train"])
def test_every_pair_sees_no_future_and_trains_whole(training: bool) -> None:
    batch, faults = windows(rows=2), {}
    for combination in COMBINATIONS:
        model = awake(made_fast(paired(*combination))).train(training)
        if wrong := fault(model, batch):
            faults[" ".join(combination)] = wrong
    assert faults == {}


def test_what_the_combinations_would_show() -> None:
    assert "future is seen" in (fault(leaking(tiny()), windows(rows=2)) or "")
    model = tiny("attention=gqa")
    model.get_parameter("blocks.1.sublayers.attention.k.weight").requires_grad_(False)
    assert "blocks.1.sublayers.attention.k.weight" in (fault(model, windows(rows=2)) or "")
    assert "no gradient" in (fault(tiny("branch=rezero"), windows(rows=2)) or "")
    assert fault(tiny("moe=topk"), windows(rows=1, length=14)) is None  # most experts have no token


@pytest.mark.parametrize("readout", choices("readout"))
@pytest.mark.parametrize("placement", choices("placement"))
def test_merged_pairs_are_composed_pairs(placement: str, readout: str) -> None:
    """Where one choice picks another, merging and composing agree: the one that is named wins."""
    cfg, composed, batch = paired(placement, readout), config(placement, readout), windows()
    assert (cfg["model"], cfg["init"]) == (composed["model"], composed["init"])
    assert torch.equal(made_fast(cfg)(batch), made(cfg)(batch))
