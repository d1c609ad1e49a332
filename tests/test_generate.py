"""Generated text: as without a cache, the same for the same seed, and without a trace in the training."""

from __future__ import annotations

import pytest
import torch
from models import VOCAB, label, tiny, windows
from torch import Tensor

from modernllm.batch import Batch
from modernllm.generate import generate
from modernllm.model import Decoder

PROMPT = windows(rows=3, length=6).tokens


def greedy(model: Decoder, tokens: Tensor, n_tokens: int) -> Tensor:
    """The whole text again for every token."""
    for _ in range(n_tokens):
        tokens = torch.cat((tokens, model(Batch(tokens))[:, -1].argmax(-1, keepdim=True)), 1)
    return tokens


@pytest.mark.parametrize(
    "variant",
    [
        [],
        ["attention=gqa", "position=learned"],
        ["attention=mqa", "position=sinusoidal", "placement=post"],
        ["block=parallel", "position=none", "head=tied"],
    ],
    ids=label,
)
def test_the_cache_changes_no_token(variant: list[str]) -> None:
    model = tiny(*variant)
    text = generate(model, PROMPT, 20, temperature=0.0)
    assert torch.equal(text, greedy(model, PROMPT, 20))
    assert text.shape == (3, 26)
    assert len(text[:, 6:].unique()) > 3


def test_a_seed_is_a_text() -> None:
    model = tiny()
    first = generate(model, PROMPT, 20, seed=1)
    assert torch.equal(first[:, :6], PROMPT)
    assert torch.equal(first, generate(model, PROMPT, 20, seed=1))
    assert not torch.equal(first, generate(model, PROMPT, 20, seed=2))
    assert 0 <= int(first.min()) <= int(first.max()) < VOCAB


def test_it_leaves_no_trace() -> None:
    """F-92: no draw from torch's own generator, the mode of before, no gradient."""
    model, state = tiny("model.dropout=0.5").train(), torch.get_rng_state()
    text = generate(model, PROMPT, 5)
    assert torch.equal(torch.get_rng_state(), state)
    assert model.training
    assert all(module.training for module in model.modules())
    assert torch.equal(text, generate(model.eval(), PROMPT, 5))
    assert not model.training


def test_tokens_come_with_their_probability() -> None:
    """400 draws of one next token; at a low temperature the most likely one only."""
    model = tiny()
    prompt = PROMPT[:1].expand(400, -1)
    with torch.no_grad():
        logits = model(Batch(PROMPT[:1]))[0, -1]
    for temperature in (1.0, 2.0):
        drawn = generate(model, prompt, 1, temperature)[:, -1]
        counts = torch.bincount(drawn, minlength=VOCAB).double()
        expected = 400 * (logits / temperature).softmax(-1).double()
        assert float(((counts - expected) ** 2 / expected).sum()) < 60 + 4 * 120**0.5  # chi2 of 60: sd sqrt(120)
    assert generate(model, prompt, 1, temperature=1e-3)[:, -1].unique().tolist() == [int(logits.argmax())]


def test_a_logit_that_is_not_finite_ends_the_text() -> None:
    model = tiny()
    with torch.no_grad():
        model.head.get_parameter("weight")[3] = float("nan")
    assert torch.equal(generate(model, PROMPT, 5), PROMPT)


def test_learned_positions_end() -> None:
    """The last token that a table of 32 allows is the 33rd: it is drawn, never read."""
    model = tiny("position=learned")
    assert generate(model, PROMPT, 27).shape == (3, 33)
    with pytest.raises(ValueError, match=r"position=learned has 32 positions and met 33"):
        generate(model, PROMPT, 28)
    assert generate(tiny(), PROMPT, 40).shape == (3, 46)
