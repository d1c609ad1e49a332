"""What a model costs, counted by hand on paper and by torch while it runs."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from models import CHOICES, FOREIGN, GROUPS, LENGTH, VOCAB, choices, config, label, tiny, windows
from torch import nn

from modernllm.attention.softmax import keys_seen
from modernllm.context import Context
from modernllm.cost import (
    cache_bytes_per_token,
    cost,
    executed_flops_per_token,
    flops_per_token,
    parameter_counts,
    planned_cost,
)
from modernllm.model import Decoder

D, LAYERS, HEADS, SIZE = 32, 2, 4, 8
"""Width, layers, query heads, and what a head has of the width, as in models.SIZES."""
PART = LENGTH
"""Texts here are no longer than one part of a recurrent form."""


# --- parameters

ATTENTION, SWIGLU, NORMS, FINAL = 4 * D * D, 3 * D * 88, 2 * D, D
BODY = LAYERS * (ATTENTION + SWIGLU + NORMS) + FINAL
TABLE = VOCAB * D
EXPERT, ROUTER = SWIGLU, 8 * D
GQA = 2 * D * D + 2 * D * 16
MLA = D * 4 * (8 + 4) + D * 32 + 32 + 32 * 4 * 8 + 32 * 4 * 8 + D * 4 + 4 * 8 * D
LATENT_AND_NORM = 32
"""The gain of the latent's norm, which is no matrix."""

PARAMETERS: dict[str, tuple[int, int, int, int]] = {
    "": (BODY, BODY, TABLE, TABLE),
    "head=tied": (BODY, BODY, TABLE, 0),
    "position=learned": (BODY, BODY, TABLE + LENGTH * D, TABLE),
    "attention=gqa": (BODY + LAYERS * (GQA - ATTENTION), BODY + LAYERS * (GQA - ATTENTION), TABLE, TABLE),
    "attention=mqa": (BODY - LAYERS * 2 * D * (D - 8), BODY - LAYERS * 2 * D * (D - 8), TABLE, TABLE),
    "activation=relu": (BODY + LAYERS * (256 * D - SWIGLU), BODY + LAYERS * (256 * D - SWIGLU), TABLE, TABLE),
    "attention=mla": (BODY + LAYERS * (MLA - ATTENTION), BODY + LAYERS * (MLA - ATTENTION), TABLE, TABLE),
    "attention=window": (BODY, BODY, TABLE, TABLE),
    "moe=topk": (BODY + LAYERS * (7 * EXPERT + ROUTER), BODY + LAYERS * (EXPERT + ROUTER), TABLE, TABLE),
    "moe=topk model.moe.n_experts=6 model.moe.k=1 model.moe.shared=2 model.moe.hidden=24": (
        BODY + LAYERS * (8 * 3 * D * 24 + 6 * D - SWIGLU),
        BODY + LAYERS * (3 * 3 * D * 24 + 6 * D - SWIGLU),
        TABLE,
        TABLE,
    ),
    "moe=topk layers=moe_every": (BODY + 7 * EXPERT + ROUTER, BODY + EXPERT + ROUTER, TABLE, TABLE),
}
"""Words -> without tables and head: all, and those that a token meets; the tables; the head."""


@pytest.mark.parametrize("words", PARAMETERS, ids=lambda words: words or "default")
def test_each_parameter_is_counted_once(words: str) -> None:
    body, met, tables, head = PARAMETERS[words]
    model = tiny(*words.split())
    assert parameter_counts(model) == {
        "total": body + tables + head,
        "active": met + tables + head,
        "non_embedding": body,
        "embedding": tables,
        "head": head,
    }
    assert sum(p.numel() for p in model.parameters()) == body + tables + head


# --- FLOPs


@dataclass(frozen=True)
class Hand:
    """Of one layer, for a token: weights that it meets; multiplications between tokens, by the algorithm and, where
    that is another number, as torch executes them.
    """

    weights: int
    between: float
    executed: float
    cached: float
    """Numbers kept for each of LENGTH tokens."""


def softmax(weights: int = ATTENTION + SWIGLU, width: int = 2 * D, seen: float = (LENGTH + 1) / 2, kv: int = 2 * D):
    """Scores and values of `width` numbers a query and key: the algorithm takes the keys seen, torch all."""
    return Hand(weights, width * seen, width * LENGTH, kv)


def recurrent(matrix: int, numbers: float, features: int = 0, weights: int = ATTENTION + SWIGLU, wide: int = 0):
    """A state written and read token by token; in one part, all pairs within it too."""
    return Hand(weights, HEADS * (features + matrix), HEADS * (features + matrix + PART * wide), numbers / LENGTH)


SEEN_BY_WINDOW = (sum(range(1, 9)) + 24 * 8) / 32
SEEN_BY_BIGBIRD = (sum(range(1, 12)) + 21 * 11) / 32
GATE = D * D

FLOPS = {
    "": softmax(),
    "head=tied": softmax(),
    "embedding=scaled position=t5 norm=layernorm model.bias=true": softmax(),
    "placement=none position=none activation=relu": softmax(ATTENTION + 2 * D * 128),
    "activation=geglu model.hidden=40": softmax(ATTENTION + 3 * D * 40),
    "attention=gqa": softmax(GQA + SWIGLU, kv=2 * 16),
    "attention=gqa model.n_kv_heads=1 block=parallel": softmax(2 * D * D + 2 * D * 8 + SWIGLU, kv=2 * 8),
    "attention=mqa position=learned": softmax(2 * D * D + 2 * D * 8 + SWIGLU, kv=2 * 8),
    "model.head_dim=12 position=alibi": softmax(4 * D * 48 + SWIGLU, width=2 * 48, kv=2 * 48),
    "attention=mha model.attention.softcap=5.0 model.attention.sinks=learned": softmax(),
    "attention=gated": softmax(ATTENTION + SWIGLU + GATE),
    "attention=differential": softmax(width=D + 2 * D),
    "attention=window model.attention.size=8": softmax(seen=SEEN_BY_WINDOW, kv=2 * D * 8 // 32),
    "attention=bigbird model.attention.size=6 model.attention.globals=2 model.attention.random=3": softmax(
        seen=SEEN_BY_BIGBIRD
    ),
    "attention=window_gqa model.attention.size=8": softmax(GQA + SWIGLU, seen=SEEN_BY_WINDOW, kv=2 * 16 * 8 // 32),
    "attention=mla": softmax(MLA - LATENT_AND_NORM + SWIGLU, width=HEADS * (8 + 4 + 8), kv=32 + 4),
    "moe=topk": softmax(ATTENTION + 2 * EXPERT + ROUTER),
    "moe=topk_lossfree": softmax(ATTENTION + 3 * EXPERT + ROUTER),
    "attention=linear": recurrent(2 * 8 * 9, HEADS * 8 * 9, wide=8 + 8 + 8 + 1),
    "attention=retention": recurrent(2 * 8 * 8, HEADS * 8 * 8, weights=ATTENTION + SWIGLU + GATE, wide=16),
    "attention=performer": recurrent(2 * 64 * 9, HEADS * (64 * 9 + 1), features=2 * 8 * 64, wide=64 + 9),
    # the triangular system, PART^2 / 2 products a column, is not counted by torch
    "attention=deltanet": recurrent(3 * 8 * 8, HEADS * 8 * 8, weights=ATTENTION + SWIGLU + D * HEADS, wide=3 * 8),
}


@pytest.mark.parametrize("words", FLOPS, ids=lambda words: words or "default")
def test_flops_and_cache_by_hand(words: str) -> None:
    """Two for each product: by the algorithm, and as torch executes it. The head is a product, the embedding none."""
    hand, model = FLOPS[words], tiny(*words.split())
    assert flops_per_token(model, LENGTH) == pytest.approx(2 * (LAYERS * (hand.weights + hand.between) + TABLE))
    assert executed_flops_per_token(model, LENGTH) == 2 * (LAYERS * (hand.weights + hand.executed) + TABLE)
    assert cache_bytes_per_token(model, LENGTH) == pytest.approx(4 * LAYERS * hand.cached)


def test_layers_that_differ() -> None:
    """A window on one layer, experts on the other."""
    model = tiny("layers=alternate", "model.layers.other.size=8")
    seen = SEEN_BY_WINDOW + (LENGTH + 1) / 2
    assert flops_per_token(model, LENGTH) == 2 * (LAYERS * (ATTENTION + SWIGLU) + 2 * D * seen + TABLE)
    model = tiny("moe=topk", "layers=moe_every")
    weights = 2 * ATTENTION + 3 * SWIGLU + ROUTER
    assert flops_per_token(model, LENGTH) == 2 * (weights + 2 * 2 * D * (LENGTH + 1) / 2 + TABLE)


def test_the_cache_is_in_the_dtype_of_the_model_and_a_state_in_float32() -> None:
    for words, factor in (("attention=gqa", 2), ("attention=mla", 2), ("attention=linear", 4)):
        model = tiny(words).to(torch.bfloat16)
        assert cache_bytes_per_token(model, LENGTH) == factor * LAYERS * FLOPS[words].cached


def test_a_longer_text_of_a_window_costs_less_a_token() -> None:
    window, full = tiny("attention=window", "model.attention.size=8"), tiny()
    assert [cache_bytes_per_token(window, length) for length in (8, 16, 64)] == [512.0, 256.0, 64.0]
    assert [cache_bytes_per_token(full, length) for length in (8, 16, 64)] == [512.0] * 3
    growth = flops_per_token(window, 4096) - flops_per_token(window, 2048)
    assert growth == pytest.approx(4 * LAYERS * D * 28 / 4096)  # the first 7 queries, which see less, weigh less
    assert flops_per_token(full, 4096) - flops_per_token(full, 2048) == 4 * LAYERS * D * 1024


@pytest.mark.parametrize("words", [[], ["attention=window"], ["attention=bigbird"]], ids=label)
@pytest.mark.parametrize("length", [1, 5, 32, 100])
def test_the_keys_seen_are_those_of_the_mask(words: list[str], length: int) -> None:
    attention = tiny(*words).blocks[0].sublayers["attention"]  # type: ignore[index,union-attr]
    context = Context.of(windows(rows=1, length=length))
    mask = attention.visible(context)  # type: ignore[operator,union-attr]
    mask = context.seen() if mask is None else mask
    seen = keys_seen(length, attention.most_seen)  # type: ignore[union-attr,arg-type]
    assert seen == pytest.approx(float(mask.sum()) / length)
    assert seen == keys_seen(length) if length <= 16 else seen <= keys_seen(length)


@pytest.mark.parametrize("choice", CHOICES)
def test_every_choice_states_its_cost(choice: str) -> None:
    """The algorithm never takes more than is executed, and of what stands between tokens alone may take less."""
    model = tiny(choice)
    found, executed = flops_per_token(model, LENGTH), executed_flops_per_token(model, LENGTH)
    shortest = flops_per_token(model, 1)
    assert shortest <= found <= executed
    assert executed_flops_per_token(model, 1) == pytest.approx(shortest, rel=0.02)  # one token is not masked
    assert executed - found <= 2 * LAYERS * HEADS * PART * (64 + 9)


# --- models of other hands


class OfOtherHands(nn.Module):
    """x + W x, of torch's own parts: it says nothing of its cost."""

    def __init__(self, dim: int):
        super().__init__()
        self.inner = nn.Linear(dim, dim)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.inner(x)


def test_a_part_that_says_nothing_is_counted_as_it_runs() -> None:
    model = tiny()
    model.readout = OfOtherHands(D)
    assert flops_per_token(model, LENGTH) == executed_flops_per_token(model, LENGTH)
    assert executed_flops_per_token(model, LENGTH) == executed_flops_per_token(tiny(), LENGTH) + 2 * D * D


@pytest.mark.parametrize("family", ["hf_llama", "x_transformers"])
def test_families_of_other_hands(family: str) -> None:
    """Matrices as ours, and attention as the full square, whatever kernel they ask for."""
    pytest.importorskip({"hf_llama": "transformers"}.get(family, family))
    state = torch.get_rng_state()
    found = planned_cost({**config(f"family={family}")["model"], "vocab_size": VOCAB})
    assert torch.equal(torch.get_rng_state(), state)
    flops = found["flops_per_token"]["algorithmic"]
    feed_forward = {"hf_llama": 3 * D * 88, "x_transformers": 3 * D * 85}[family]
    assert flops == 2 * (LAYERS * (ATTENTION + feed_forward + 2 * D * LENGTH) + TABLE)
    assert found["parameters"]["embedding"] == TABLE
    assert found["cache_bytes_per_token"] is None


# --- plans


@pytest.mark.parametrize("choice", [f"{group}={name}" for group in GROUPS for name in GROUPS[group][:3]])
def test_a_plan_is_what_the_model_costs(choice: str) -> None:
    if choice in FOREIGN:
        pytest.skip("for models of other hands")
    assert planned_cost({**config(choice)["model"], "vocab_size": VOCAB}) == cost(tiny(choice), LENGTH)


def test_a_plan_makes_no_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tens of thousands of layers' worth of numbers would not fit."""
    made: list[Decoder] = []
    build = Decoder.__init__

    def keep(self: Decoder, **supplied: object) -> None:
        build(self, **supplied)  # type: ignore[arg-type]
        made.append(self)

    monkeypatch.setattr(Decoder, "__init__", keep)
    cfg = config()["model"] | {"vocab_size": 50_000, "dim": 16_384, "n_heads": 128, "context_length": 8192}
    found = planned_cost(cfg)
    assert found["parameters"]["total"] > 3e9
    assert {p.device.type for model in made for p in model.parameters()} == {"meta"}
    assert len(made) == 1


def test_the_attentions_are_all_counted_by_hand() -> None:
    assert {choice for choice in choices("attention") if not any(choice in words for words in FLOPS)} == set()
