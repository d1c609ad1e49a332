"""Gemma 1: LLaMA with a scaled embedding and gains that are kept as 1 + w."""

from dataclasses import replace

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    ENDS,
    FEED_FORWARD,
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    PARTS,
    PRE_NORMS,
    PROJECTIONS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, OneOf, Only, Real, Rope
from modernllm.interop.weights import Rule


def gains_above_one(rules: tuple[Rule, ...]) -> tuple[Rule, ...]:
    return tuple(replace(rule, plus=1.0) if rule.theirs.endswith("norm") else rule for rule in rules)


DESIGN = Design(
    model_type="gemma",
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
        ATTENTION_BIAS,
        Always({"attention": "gqa", "embedding": "scaled", "model.feedforward_bias": False}),
        Only("use_bidirectional_attention", None, "ours sees no future"),
        *no_dropout("attention_dropout"),
    ),
    rules=gains_above_one((*ENDS, *PRE_NORMS, *PROJECTIONS, *FEED_FORWARD)),
    parts=PARTS,
)
