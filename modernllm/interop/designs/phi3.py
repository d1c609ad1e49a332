"""Phi-3: LLaMA with fused queries, keys and values, and fused gate and up."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ENDS,
    GATED,
    HIDDEN,
    KV_HEADS,
    LAYER,
    NO_BIAS,
    OUR_LAYER,
    PARTS,
    PRE_NORMS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import HeadSize, OneOf, Real, Rope, Window
from modernllm.interop.weights import Rule

DESIGN = Design(
    model_type="phi3",
    arch="llama",
    entries=(
        *SIZES,
        KV_HEADS,
        HeadSize(),
        HIDDEN,
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        Rope(partial=True),
        Window(),
        NO_BIAS,
        *no_dropout("resid_pdrop", "embd_pdrop", "attention_dropout"),
    ),
    rules=(
        *ENDS,
        *PRE_NORMS,
        Rule(LAYER + "self_attn.qkv_proj", tuple(f"{OUR_LAYER}sublayers.attention.{part}" for part in "qkv")),
        Rule(LAYER + "self_attn.o_proj", (OUR_LAYER + "sublayers.attention.out",)),
        Rule(
            LAYER + "mlp.gate_up_proj",
            (OUR_LAYER + "sublayers.feedforward.gate", OUR_LAYER + "sublayers.feedforward.up"),
        ),
        Rule(LAYER + "mlp.down_proj", (OUR_LAYER + "sublayers.feedforward.out",)),
    ),
    parts=PARTS,
)
