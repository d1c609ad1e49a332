"""Mistral: LLaMA with a window, or without one where it is null."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LLAMA_WEIGHTS,
    NO_BIAS,
    PARTS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import OneOf, Real, Rope, Window

DESIGN = Design(
    model_type="mistral",
    arch="mistral",
    entries=(
        *SIZES,
        KV_HEADS,
        HEAD_SIZE,
        HIDDEN,
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        Rope(),
        Window(),
        NO_BIAS,
        *no_dropout("attention_dropout"),
    ),
    rules=LLAMA_WEIGHTS,
    parts=PARTS,
)
