"""The whole decoder: what its equation implies, and what it refuses (F-20, F-23)."""

from __future__ import annotations

import pytest
import torch
from models import LENGTH, SIZES, VOCAB, config, label, made, tiny, windows
from torch import Tensor, nn

from modernllm.batch import Batch
from modernllm.config.build import build_model
from modernllm.context import Context
from modernllm.model import Decoder
from modernllm.norm.layernorm import LayerNorm
from modernllm.norm.rmsnorm import RMSNorm
from modernllm.position import NoPosition

NORMS = {"norm=rmsnorm": RMSNorm, "norm=layernorm": LayerNorm}


def stream_after_blocks(model: Decoder, x: Tensor) -> Tensor:
    context = Context(positions=torch.arange(x.shape[1])[None])
    assert isinstance(model.position, NoPosition)
    model.position.prepare(context)
    for block in model.blocks:
        x = block(x, context)
    return x


def silent(model: Decoder) -> Decoder:
    """Nothing is written into the stream."""
    for name, module in model.named_modules():
        if name.endswith(".out"):
            nn.init.zeros_(module.get_parameter("weight"))
    return model


@pytest.mark.parametrize("block", ["block=serial", "block=parallel"])
@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(("placement", "passes"), [("pre", True), ("none", True), ("post", False)])
def test_silent_sublayers(placement: str, passes: bool, norm: str, block: str) -> None:
    """Pre-Norm and no norm hand the stream on, ten times the input ten times as large; Post-Norm does not."""
    model = silent(tiny(f"placement={placement}", norm, block))
    x = 1 + torch.randn(2, LENGTH, 32)
    y, y10 = stream_after_blocks(model, x), stream_after_blocks(model, 10 * x)
    if passes:
        assert torch.equal(y, x)
        assert torch.equal(y10, 10 * x)
    else:
        torch.testing.assert_close(y10, y, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(y.pow(2).mean(-1), torch.ones(2, LENGTH), rtol=1e-3, atol=0)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize(
    ("choices", "in_blocks", "final"),
    [
        (["placement=pre"], 2 * 2, 1),
        (["placement=post"], 2 * 2, 0),
        (["placement=none"], 0, 0),
        (["placement=pre", "block=parallel"], 2, 1),
        (["placement=post", "block=parallel"], 2, 0),
        (["placement=post", "readout=norm"], 2 * 2, 1),
        (["placement=pre", "readout=none"], 2 * 2, 0),
    ],
    ids=label,
)
def test_number_of_norms(choices: list[str], in_blocks: int, final: int, norm: str) -> None:
    """Pre-Norm has exactly one final norm, Post-Norm none beyond its own."""
    model = tiny(norm, *choices)
    for part, n_norms in ((model.blocks, in_blocks), (model.readout, final), (model, in_blocks + final)):
        assert sum(isinstance(module, NORMS[norm]) for module in part.modules()) == n_norms


@pytest.mark.parametrize(
    ("choices", "dead"),
    [
        ([], []),
        (["norm=layernorm"], []),
        (["norm=layernorm", "placement=none"], ["norm"]),
        (["placement=none", "readout=norm"], []),
    ],
    ids=label,
)
def test_a_norm_that_nothing_uses_is_a_dead_switch(choices: list[str], dead: list[str]) -> None:
    _, found = build_model({**config(*choices)["model"], "vocab_size": VOCAB})
    assert found == dead


def test_the_whole_is_its_equation() -> None:
    """head(readout(blocks(embed(tokens)))), with a branch that changes every sublayer's output."""

    class Half(nn.Module):
        def __init__(self, dim: int, n_layers: int, layer: int):
            super().__init__()
            assert (dim, n_layers) == (32, 2)
            layers.append(layer)

        def forward(self, y: Tensor) -> Tensor:
            return y / 2

    layers: list[int] = []
    model = made(config("position=learned", "embedding=scaled", "block=serial"), branch=Half)
    assert layers == [0, 0, 1, 1]
    tokens, context = windows().tokens, Context(positions=torch.arange(LENGTH)[None])
    assert isinstance(model.embedding.weight, Tensor)
    x = 32**0.5 * model.embedding.weight[tokens] + model.position.get_parameter("table")
    for block in model.blocks:
        assert isinstance(block.sublayers, nn.ModuleDict)
        assert isinstance(block.joins, nn.ModuleDict)
        for site in ("attention", "feedforward"):
            normed = block.joins[site].get_submodule("norm")(x)
            x = x + block.sublayers[site](normed, context) / 2
    expected = model.readout.get_submodule("norm")(x) @ model.head.get_parameter("weight").T
    torch.testing.assert_close(model(Batch(tokens)), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"n_heads": 5}, r"model\.n_heads=5 does not divide model\.dim=32: .*\[1, 2, 4, 8, 16, 32\]"),
        ({"n_heads": 64}, r"model\.n_heads=64 does not divide model\.dim=32"),
        ({"head_dim": 7}, r"position=rope .*model\.head_dim=7 is odd"),
        ({"n_heads": 32}, r"position=rope .*model\.head_dim=1 is odd"),
        ({"n_kv_heads": 2}, r"attention=mha .*model\.n_kv_heads=2 .*model\.n_heads=4"),
    ],
    ids=str,
)
def test_sizes_that_do_not_fit(keys: dict[str, int], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        made(config(), **keys)


@pytest.mark.parametrize("position", ["none", "learned", "sinusoidal"])
def test_odd_sizes(position: str) -> None:
    """F-23: odd widths and heads work wherever nothing turns pairs."""
    model = made(config(f"position={position}"), dim=33, n_heads=3)
    assert model(windows()).isfinite().all()


def test_heads_need_not_fill_the_width() -> None:
    model = made(config(), n_heads=5, head_dim=6)
    assert model.get_parameter("blocks.0.sublayers.attention.q.weight").shape == (30, 32)
    assert model.get_parameter("blocks.0.sublayers.attention.out.weight").shape == (32, 30)
    assert model(windows()).isfinite().all()


def test_a_table_ends_where_the_context_does() -> None:
    """Learned positions refuse a longer text; the others have no end."""
    longer = windows(rows=1, length=LENGTH + 1)
    with pytest.raises(ValueError, match=r"position=learned has 32 positions and met 33: .*context_length"):
        tiny("position=learned")(longer)
    for position in ("none", "rope", "sinusoidal"):
        assert tiny(f"position={position}")(longer).isfinite().all()


def test_the_sizes_of_these_tests_are_those_of_the_models() -> None:
    model = tiny()
    assert [len(model.blocks), *model.head.get_parameter("weight").shape] == [2, VOCAB, 32]
    assert model.context_length == LENGTH
    assert f"model.context_length={LENGTH}" in SIZES


def test_where_dropout_drops() -> None:
    """In training: half of the embedded tokens and of what each sublayer writes; the rest is doubled."""
    model, written = made(config("placement=none"), dropout=0.5).train(), []
    model.blocks[0].register_forward_pre_hook(lambda module, given: written.append(given[0]))
    for block in model.blocks:
        for site in ("attention", "feedforward"):
            sublayer = block.get_submodule(f"sublayers.{site}")
            sublayer.register_forward_hook(lambda module, given, y: written.append(y))
    batch = windows()
    model(batch)
    assert len(written) == 1 + 2 * 2
    for x in written:
        assert float((x == 0).float().mean()) == pytest.approx(0.5, abs=0.03)
    kept = written[0] != 0
    assert torch.equal(written[0][kept], 2 * model.embedding(batch.tokens)[kept])


@pytest.mark.parametrize("choices", [[], ["attention=gqa"], ["position=learned"]], ids=label)
def test_states_are_empty_caches(choices: list[str]) -> None:
    states = tiny(*choices).states(3, 10)
    heads = 2 if "attention=gqa" in choices else 4
    assert [state.elements() for state in states] == [2 * 3 * 10 * heads * 8] * 2
