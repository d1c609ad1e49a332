"""Qwen 2: LLaMA with biases in queries, keys and values, which ours cannot have without one in the output."""

from __future__ import annotations

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    FULL,
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LLAMA_WEIGHTS,
    PARTS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, Config, Entry, OneOf, Real, Rope, Untold
from modernllm.interop.facts import Facts


class BiasOfThree(Entry):
    """Biases where model.bias has one too many."""

    def read(self, config: Config) -> Facts:
        raise Untold(
            "biases in q, k and v alone: our attention has them in out too (model.bias) or nowhere",
            {"model.bias": True, "model.feedforward_bias": False},
        )

    def write(self, facts: Facts) -> dict[str, object]:
        raise Untold("model.bias: this design has biases in q, k and v alone")


DESIGN = Design(
    model_type="qwen2",
    arch="llama",
    entries=(
        *SIZES,
        KV_HEADS,
        HEAD_SIZE,
        HIDDEN,
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        Rope(),
        Always({"attention": "gqa"}),
        BiasOfThree(),
        FULL,
        *no_dropout("attention_dropout"),
    ),
    rules=LLAMA_WEIGHTS,
    parts=PARTS,
)
