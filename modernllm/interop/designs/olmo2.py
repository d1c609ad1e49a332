"""OLMo 2: a norm after each sublayer and none before it, queries and keys normed over all heads."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    ENDS,
    FEED_FORWARD,
    GATED,
    HIDDEN,
    KV_HEADS,
    LAYER,
    OUR_LAYER,
    PARTS,
    PROJECTIONS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, HeadSize, OneOf, Real, Rope
from modernllm.interop.weights import modules

DESIGN = Design(
    model_type="olmo2",
    arch="olmo2",
    entries=(
        *SIZES,
        KV_HEADS,
        HeadSize(),
        HIDDEN,
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        Rope(),
        ATTENTION_BIAS,
        Always({"attention": "gqa", "qk_norm": "width", "model.feedforward_bias": False}),
        *no_dropout("attention_dropout"),
    ),
    rules=(
        *ENDS,
        *PROJECTIONS,
        *FEED_FORWARD,
        *modules(
            OUR_LAYER,
            LAYER,
            {
                "post_attention_layernorm": "joins.attention.norm",
                "post_feedforward_layernorm": "joins.feedforward.norm",
                "self_attn.q_norm": "sublayers.attention.q_norm.norm",
                "self_attn.k_norm": "sublayers.attention.k_norm.norm",
            },
        ),
    ),
    parts=PARTS,
)
