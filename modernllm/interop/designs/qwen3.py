"""Qwen 3: LLaMA with normed heads."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    FULL,
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LAYER,
    LLAMA_WEIGHTS,
    OUR_LAYER,
    PARTS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, OneOf, Real, Rope
from modernllm.interop.weights import modules

DESIGN = Design(
    model_type="qwen3",
    arch="qwen3",
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
        Always({"attention": "gqa", "qk_norm": "head", "model.feedforward_bias": False}),
        FULL,
        *no_dropout("attention_dropout"),
    ),
    rules=(
        *LLAMA_WEIGHTS,
        *modules(
            OUR_LAYER + "sublayers.attention.", LAYER + "self_attn.", {"q_norm": "q_norm.norm", "k_norm": "k_norm.norm"}
        ),
    ),
    parts=PARTS,
)
