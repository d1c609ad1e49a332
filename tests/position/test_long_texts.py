"""Texts longer than model.context_length: learned positions refuse, all others go on, with a cache as without."""

from __future__ import annotations

import pytest
import torch
from models import LENGTH, close, tiny, windows
from torch import Tensor

from modernllm.batch import Batch
from modernllm.context import Context
from modernllm.generate import generate
from modernllm.model import Decoder

SCHEMES = ["none", "sinusoidal", "rope", "rope_linear", "rope_ntk", "rope_yarn", "rnope", "alibi", "t5"]
LONG = 2 * LENGTH


def in_parts(model: Decoder, tokens: Tensor, parts: list[int], length: int = 0) -> Tensor:
    states, past, logits = model.states(len(tokens), tokens.shape[1]), 0, []
    for part in tokens.split(parts, dim=1):
        logits.append(model(Batch(part), Context.of(Batch(part), states, past, length)))
        past += part.shape[1]
    return torch.cat(logits, 1).detach()


def spread(model: Decoder) -> Decoder:
    """With a T5 table that is not zero."""
    for name, p in model.named_parameters():
        if name == "position.table":
            torch.nn.init.normal_(p)
    return model


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_cache_beyond_the_context(scheme: str) -> None:
    """F-08: the offset of each part counts."""
    model, tokens = spread(tiny(f"position={scheme}")), windows(rows=2, length=LONG).tokens
    whole = model(Batch(tokens)).detach()
    assert whole.isfinite().all()
    close(in_parts(model, tokens, [20, 1, 5, 1, 30, 7]), whole)
    assert generate(model, tokens[:, :10], LONG - 10).shape == (2, LONG)


def test_learned_positions_end_with_their_table() -> None:
    with pytest.raises(ValueError, match=f"position=learned has {LENGTH} positions and met {LONG}: "):
        tiny("position=learned")(windows(length=LONG))


def test_a_dynamic_base_needs_to_know_the_length() -> None:
    """With it the parts are those of the whole text. Without it, keys are kept as their own part turned them."""
    model, tokens = tiny("position=rope_ntk_dynamic"), windows(rows=2, length=LONG).tokens
    whole, parts = model(Batch(tokens)).detach(), [20, 1, 5, 1, 30, 7]
    close(in_parts(model, tokens, parts, length=LONG), whole)
    close(in_parts(model, tokens[:, :LENGTH], [20, 12]), model(Batch(tokens[:, :LENGTH])))
    assert float((in_parts(model, tokens, parts) - whole).abs().max()) > 1e-2


def test_a_generation_tells_its_length() -> None:
    """Each of its tokens is the most likely one of the text, turned for its full length."""
    model, prompt = tiny("position=rope_ntk_dynamic"), windows(rows=2, length=10).tokens
    text = generate(model, prompt, LONG - 10, temperature=0.0)
    batch = Batch(text[:, :-1])
    logits = model(batch, Context.of(batch, length=LONG))
    assert torch.equal(logits[:, 9:].argmax(-1), text[:, 10:])
    plain = generate(tiny("position=rope"), prompt, LONG - 10, temperature=0.0)
    assert not torch.equal(plain, text)


@pytest.mark.parametrize("scheme", ["rope_linear", "rope_ntk", "rope_ntk_dynamic", "rope_yarn"])
def test_the_scaled_schemes_read_the_weights_of_rope(scheme: str) -> None:
    """A model trained with rope is stretched by loading it: no parameters, and other logits on a long text."""
    rope, stretched = tiny(), tiny(f"position={scheme}")
    stretched.load_state_dict(rope.state_dict())
    batch = windows(rows=1, length=LONG)
    assert float((stretched(batch) - rope(batch)).detach().abs().max()) > 1e-2
