"""LLaMA 1 to 3."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LLAMA_WEIGHTS,
    PARTS,
    SIZES,
    TIED,
    bias,
    no_dropout,
)
from modernllm.interop.entries import Always, OneOf, Real, Rope

DESIGN = Design(
    model_type="llama",
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
        bias("mlp_bias", "model.feedforward_bias"),
        Always({"attention": "gqa"}),
        *no_dropout("attention_dropout"),
    ),
    rules=LLAMA_WEIGHTS,
    parts=PARTS,
)
