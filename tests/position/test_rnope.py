"""RoPE in some layers, no positions in the others."""

from __future__ import annotations

import pytest
import torch
from models import LENGTH, close, tiny, windows

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.position import NoPosition
from modernllm.position.rnope import RNoPE


@pytest.mark.parametrize(
    ("period", "turned"), [(2, [1, 0, 1, 0, 1, 0, 1, 0]), (4, [1, 1, 1, 0, 1, 1, 1, 0]), (1, [0] * 8), (9, [1] * 8)]
)
def test_every_period_th_layer_has_no_positions(period: int, turned: list[int]) -> None:
    position = RNoPE(32, 4, 8, 64, period=period)
    assert [int(position.at(layer) is position) for layer in range(8)] == turned
    assert {type(position.at(layer)) for layer in range(8) if not turned[layer]} <= {NoPosition}


def test_one_preparation_serves_both() -> None:
    position, context = RNoPE(32, 4, 8, 64), Context(positions=torch.arange(5)[None])
    position.prepare(context)
    q, k = torch.randn(1, 4, 5, 8), torch.randn(1, 2, 5, 8)
    turned, kept = (position.at(layer).rotate(q, k, context) for layer in (0, 1))
    assert kept[0] is q
    assert float((turned[0] - q)[:, :, 1:].abs().amax(-1).min()) > 1e-3
    assert position.at(0).bias(context) is position.at(1).bias(context) is None


@pytest.mark.parametrize(("period", "same"), [(1, "position=none"), (3, "position=rope")])
def test_its_limits(period: int, same: str) -> None:
    """Of two layers: with a period of one all have no positions, with three none is left out."""
    model = tiny("position=rnope", f"model.position.period={period}")
    assert torch.equal(model(windows()), tiny(same)(windows()))


def test_the_order_of_the_layers() -> None:
    """Layer 0 turns and layer 1 does not: each equals the layer of a model of one kind."""
    mixed, rope, none = tiny("position=rnope"), tiny("position=rope"), tiny("position=none")
    batch, x = windows(), torch.randn(4, LENGTH, 32)
    context = Context.of(Batch(batch.tokens))
    for layer, model in ((0, rope), (1, none)):
        outputs = []
        for scheme in (mixed, model):
            scheme.position.prepare(context)
            outputs.append(scheme.blocks[layer](x, context))
        assert torch.equal(*outputs)
        other = none if model is rope else rope
        other.position.prepare(context)
        with pytest.raises(AssertionError):
            close(outputs[0], other.blocks[layer](x, context))
