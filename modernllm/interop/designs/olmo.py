"""OLMo 1: LLaMA with norms that learn nothing."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    ENDS,
    FEED_FORWARD,
    GATED,
    HIDDEN,
    KV_HEADS,
    PARTS,
    PROJECTIONS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, HeadSize, OneOf, Only, Rope

DESIGN = Design(
    model_type="olmo",
    arch="llama",
    entries=(
        *SIZES,
        KV_HEADS,
        HeadSize(),
        HIDDEN,
        OneOf("hidden_act", GATED),
        TIED,
        Rope(),
        ATTENTION_BIAS,
        Always(
            {"attention": "gqa", "norm": "nonparametric", "model.norm.eps": 1e-5, "model.feedforward_bias": False},
        ),
        Only("clip_qkv", None, "our queries, keys and values are not clipped"),
        *no_dropout("attention_dropout"),
    ),
    rules=(*ENDS, *PROJECTIONS, *FEED_FORWARD),
    parts=PARTS,
)
