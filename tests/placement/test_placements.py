"""Placements against their equations, with a norm, a branch and a sublayer that are easy to write out (F-20)."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import pytest
import torch
from models import VOCAB, close, config, label, made, tiny, windows
from torch import Tensor, nn

from modernllm.config.build import build_model
from modernllm.config.check import check
from modernllm.config.compose import compose
from modernllm.config.errors import ConfigError
from modernllm.placement import Placement
from modernllm.placement.deepnorm import DeepNormPlacement
from modernllm.placement.hybrid import Hybrid, HybridStar
from modernllm.placement.layernorm_scaling import LayerNormScaling
from modernllm.placement.mix import MixNorm
from modernllm.placement.no_residual import NoResidual
from modernllm.placement.none import NoNorm
from modernllm.placement.post import PostNorm
from modernllm.placement.pre import PreNorm
from modernllm.placement.reordered import Reordered
from modernllm.placement.residual_dual import ResiDual
from modernllm.placement.sandwich import Sandwich

N_LAYERS, LAYER = 8, 2  # the third layer
Make = Callable[..., Placement]


class Standard(nn.Module):
    """(x - mean) / std, and nothing else."""

    def forward(self, x: Tensor) -> Tensor:
        return (x - x.mean(-1, keepdim=True)) / x.std(-1, correction=0, keepdim=True)


class Third(nn.Module):
    def forward(self, y: Tensor) -> Tensor:
        return y / 3


norm = Standard()


def feedforward(kind: Make) -> Make:
    return lambda *args: kind(*args[:-1], "feedforward")


PRE: Callable[[Tensor], Tensor] = lambda x: x + norm(x).sin() / 3  # noqa: E731
POST: Callable[[Tensor], Tensor] = lambda x: norm(x + x.sin() / 3)  # noqa: E731
ADD: Callable[[Tensor], Tensor] = lambda x: x + x.sin() / 3  # noqa: E731
EQUATIONS: dict[str, tuple[Make, Callable[[Tensor], Tensor], int]] = {
    "pre": (PreNorm, PRE, 1),
    "post": (PostNorm, POST, 1),
    "none": (NoNorm, ADD, 0),
    "sandwich": (Sandwich, lambda x: x + norm(norm(x).sin()) / 3, 2),
    "reordered": (Reordered, lambda x: x + norm(x.sin()) / 3, 1),
    "deepnorm": (DeepNormPlacement, lambda x: norm(2 * x + x.sin() / 3), 1),  # (2 * 8)^(1/4) = 2
    "layernorm_scaling": (LayerNormScaling, lambda x: x + (norm(x) / math.sqrt(3)).sin() / 3, 1),
    "mix, third of 8": (partial(MixNorm, post=0.25), PRE, 1),
    "mix, third of 12": (lambda a, b, n, *rest: MixNorm(a, b, 12, *rest, post=0.25), POST, 1),
    "hybrid attention": (Hybrid, ADD, 0),
    "hybrid feed-forward": (feedforward(Hybrid), lambda x: norm(x) + norm(x).sin() / 3, 1),
    "hybrid* attention": (HybridStar, ADD, 0),
    "hybrid* feed-forward": (feedforward(HybridStar), lambda x: norm(x) + norm(x).sin() / 3, 1),
    "hybrid* first attention": (lambda a, b, n, layer, site: HybridStar(a, b, n, 0, site), PRE, 1),
    "hybrid* first feed-forward": (lambda a, b, n, *_: HybridStar(a, b, n, 0, "feedforward"), PRE, 1),
    "no_residual": (NoResidual, lambda x: norm(x).sin() / 3, 1),
}
NAMES = list(EQUATIONS)


def place(make: Make, norm: Callable[[], nn.Module] = Standard) -> Placement:
    return make(norm, Third, N_LAYERS, LAYER, "attention")


@pytest.mark.parametrize("name", NAMES)
def test_the_equation(name: str) -> None:
    x = 1 + torch.randn(2, 5, 8, dtype=torch.float64)
    make, equation, _ = EQUATIONS[name]
    join = place(make)
    assert join.open(x) is x
    torch.testing.assert_close(join(x, torch.sin), equation(x), rtol=0, atol=1e-12)
    torch.testing.assert_close(join.close(x, torch.nn.Tanh()), x.tanh())


def test_the_two_streams_of_residual() -> None:
    """Post-Norm on one; the other adds up what the sublayers write, and is normed at the end."""
    x = 1 + torch.randn(2, 5, 8, dtype=torch.float64)
    join = place(ResiDual)
    stream = join.open(x)
    first, second = x, x
    for _ in range(3):
        stream = join(stream, torch.sin)
        y = first.sin() / 3
        first, second = norm(first + y), second + y
        torch.testing.assert_close(stream, (first, second), rtol=0, atol=1e-12)
    torch.testing.assert_close(join.close(stream, Standard()), first + norm(second), rtol=0, atol=1e-12)


@pytest.mark.parametrize("name", [n for n in NAMES if n not in ("deepnorm", "layernorm_scaling", "no_residual")])
def test_without_norm_most_are_the_residual_connection(name: str) -> None:
    x = torch.randn(2, 5, 8)
    torch.testing.assert_close(place(EQUATIONS[name][0], nn.Identity)(x, torch.sin), x + x.sin() / 3)


@pytest.mark.parametrize("name", [*NAMES, "residual_dual"])
def test_each_makes_its_own_modules(name: str) -> None:
    make, _, n_norms = EQUATIONS.get(name, (ResiDual, None, 1))
    norms: list[nn.Module] = []

    def make_norm() -> nn.Module:
        norms.append(nn.LayerNorm(8))
        return norms[-1]

    first, second = place(make, make_norm), place(make, make_norm)
    assert len(norms) == 2 * n_norms
    assert first.branch is not second.branch
    assert sum(isinstance(module, nn.LayerNorm) for module in first.modules()) == n_norms


@pytest.mark.parametrize(
    ("n_layers", "post", "expected"),
    [(12, 0.25, 3), (8, 0.25, 2), (6, 0.25, 2), (2, 0.25, 1), (4, 0.0, 0), (4, 1.0, 4)],
)
def test_how_many_layers_of_mix_are_post(n_layers: int, post: float, expected: int) -> None:
    kinds = [type(MixNorm(Standard, Third, n_layers, layer, "attention", post)) for layer in range(n_layers)]
    assert kinds == [PostNorm] * expected + [PreNorm] * (n_layers - expected)


@pytest.mark.parametrize("post", ["-0.1", "1.1", "half"])
def test_a_share_that_is_none_is_refused(post: str) -> None:
    with pytest.raises(ConfigError, match=r"model\.placement\.post=.* should be a number >= 0 and <= 1"):
        check(compose(["placement=mix", f"model.placement.post={post}"]))


def test_hybrid_has_no_join_for_a_parallel_block() -> None:
    with pytest.raises(ValueError, match=r"placement=hybrid .*block=parallel .*choose block=serial"):
        Hybrid(Standard, Third, 2, 0, "parallel")


# --- in a model


def same_parameters(model: nn.Module, like: nn.Module) -> nn.Module:
    """Those of `like`, for all that both have."""
    ours, theirs = model.state_dict(), like.state_dict()
    model.load_state_dict(ours | {name: value for name, value in theirs.items() if name in ours})
    return model


def test_limits_of_other_placements() -> None:
    """Whole models, with the same values: DeepNorm of a = 1 is Post-Norm; Mix-LN of share 0 and 1 are Pre- and
    Post-Norm; in a first layer LayerNorm scaling is Pre-Norm."""
    batch = windows()
    post, pre = tiny("placement=post"), tiny("placement=pre")
    deep = tiny("placement=deepnorm", "init=fanin")
    assert not torch.allclose(deep(batch), post(batch))
    for module in deep.modules():
        if isinstance(module, DeepNormPlacement):
            assert module.alpha == math.sqrt(2)  # (2 * 2)^(1/4)
            module.alpha = 1.0
    assert torch.equal(deep(batch), post(batch))
    assert torch.equal(tiny("placement=mix", "model.placement.post=0.0")(batch), pre(batch))
    mixed = tiny("placement=mix", "model.placement.post=1.0", "readout=none")
    assert torch.equal(mixed(batch), post(batch))
    shallow = [made(config(f"placement={name}"), n_layers=1)(batch) for name in ("layernorm_scaling", "pre")]
    assert torch.equal(*shallow)


def over_rms(x: Tensor) -> Tensor:
    return x / (x.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()


def recorded(model: nn.Module) -> dict[str, tuple[Tensor, Tensor]]:
    """What every module was given, and gave, in the forward that follows."""
    seen: dict[str, tuple[Tensor, Tensor]] = {}

    def keep(name: str, module: nn.Module, given: tuple[Tensor], y: Tensor) -> None:
        seen[name] = given[0], y

    for name, module in model.named_modules():
        module.register_forward_hook(partial(keep, name))
    return seen


def test_hybrid_written_out() -> None:
    """Y = X + MHA_QKV(X), X' = Norm(Y) + FFN(Norm(Y)); starred, the first layer is Pre-Norm with normed q, k, v."""
    batch = windows()
    for choice in ("hybrid", "hybrid_star"):
        model = tiny(f"placement={choice}")
        seen = recorded(model)
        model(batch)
        x = model.embedding(batch.tokens)
        for i in range(2):
            first_of_star = choice == "hybrid_star" and i == 0
            given, y = seen[f"blocks.{i}.sublayers.attention"]
            close(given, over_rms(x) if first_of_star else x)
            x = x + y
            given, y = seen[f"blocks.{i}.sublayers.feedforward"]
            close(given, over_rms(x))
            x = (x if first_of_star else over_rms(x)) + y
        close(seen["readout"][0], x)


def test_hybrid_norms_values() -> None:
    """Ten times the weights of q, k and v change nothing."""
    model, batch = tiny("placement=hybrid"), windows()
    before = model(batch)
    with torch.no_grad():
        for block in model.blocks:
            for part in "qkv":
                block.get_parameter(f"sublayers.attention.{part}.weight").mul_(10)
    close(model(batch), before, 1e-4)


@pytest.mark.parametrize(
    ("choices", "in_blocks", "final"),
    [
        (["placement=sandwich"], 8, 1),
        (["placement=reordered"], 4, 1),
        (["placement=deepnorm"], 4, 0),
        (["placement=residual_dual"], 4, 1),
        (["placement=layernorm_scaling"], 4, 1),
        (["placement=mix"], 4, 1),
        (["placement=hybrid"], 2 + 2 * 3, 1),
        (["placement=hybrid_star"], 3 + 2 * 3, 1),
        (["placement=no_residual"], 4, 1),
    ],
    ids=label,
)
def test_number_of_norms(choices: list[str], in_blocks: int, final: int) -> None:
    """F-20: as many as the equation has, and the final norm that belongs to it."""
    model = tiny(*choices)
    for part, n_norms in ((model.blocks, in_blocks), (model.readout, final), (model, in_blocks + final)):
        assert sum(type(module).__name__ == "RMSNorm" for module in part.modules()) == n_norms
    _, dead = build_model({**config(*choices)["model"], "vocab_size": VOCAB})
    assert dead == []


def silent(*choices: str) -> nn.Module:
    """Nothing is written into the stream."""
    model = tiny(*choices)
    for name, module in model.named_modules():
        if name.endswith(".out"):
            nn.init.zeros_(module.get_parameter("weight"))
    return model


def stream(model: nn.Module, x: Tensor) -> Tensor:
    """After the blocks, in place of the embedded tokens x."""
    read: list[Tensor] = []
    hooks = [
        model.get_submodule("embedding").register_forward_hook(lambda module, given, y: x),
        model.get_submodule("readout").register_forward_pre_hook(lambda module, given: read.append(given[0])),
    ]
    model(windows(rows=len(x)))
    for hook in hooks:
        hook.remove()
    return read[0]


@pytest.mark.parametrize(
    ("placement", "silence"),
    [
        *((name, "passes") for name in ("pre", "none", "sandwich", "reordered", "layernorm_scaling")),
        ("residual_dual", "passes"),  # in the stream that is normed last
        *((name, "norms") for name in ("post", "deepnorm", "mix", "hybrid", "hybrid_star")),
        ("no_residual", "forgets"),
    ],
)
def test_what_becomes_of_the_stream_where_nothing_is_written(placement: str, silence: str) -> None:
    """F-20: ten times the input is ten times the output, or the same output, or nothing is."""
    model = silent(f"placement={placement}")
    x = 1 + torch.randn(2, 32, 32)
    y, y10 = stream(model, x), stream(model, 10 * x)
    if silence == "passes":
        assert torch.equal(y, x)
        assert torch.equal(y10, 10 * x)
    elif silence == "norms":
        close(y10, y, 1e-4)
        torch.testing.assert_close(y.pow(2).mean(-1), torch.ones(2, 32), rtol=1e-3, atol=0)
    else:
        assert torch.equal(y, torch.zeros(2, 32, 32))


def test_the_init_of_deepnorm_comes_along_and_can_be_overridden() -> None:
    assert config("placement=deepnorm")["init"]["_target_"] == "modernllm.init.DeepNorm"
    assert config("placement=deepnorm", "init=gpt2")["init"]["_target_"] == "modernllm.init.GPT2"
    assert config("init=gpt2", "placement=deepnorm")["init"]["_target_"] == "modernllm.init.GPT2"
    assert config("placement=hybrid")["model"]["qk_norm"]["_target_"] == "modernllm.qk_norm.qkv.QKVNorm"
    assert config("placement=hybrid", "qk_norm=none")["model"]["qk_norm"]["_target_"] == "torch.nn.Identity"
