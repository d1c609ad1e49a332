"""StableLM: LLaMA with LayerNorm and a quarter of each head turned, in series or in parallel."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ENDS,
    FEED_FORWARD,
    GATED,
    HIDDEN,
    KV_HEADS,
    LAYER,
    NO_BIAS,
    OUR_LAYER,
    PARTS,
    PRE_NORMS,
    PROJECTIONS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, HeadSize, OneOf, Only, Real, Rope
from modernllm.interop.weights import Rule

DESIGN = Design(
    model_type="stablelm",
    arch="llama",
    entries=(
        *SIZES,
        KV_HEADS,
        HeadSize(),
        HIDDEN,
        Always({"attention": "gqa", "norm": "layernorm"}),
        Real("layer_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        OneOf("use_parallel_residual", {True: {"block": "parallel"}, False: {"block": "serial"}}),
        TIED,
        Rope(partial=True),
        NO_BIAS,
        Only("use_qkv_bias", False, "our attention has biases in out too (model.bias) or nowhere"),
        Only("qk_layernorm", False, "our norms of queries and keys have one gain for all heads"),
        *no_dropout("hidden_dropout", "attention_dropout"),
    ),
    rules=(
        *ENDS,
        *PRE_NORMS,
        Rule(LAYER + "input_layernorm", (OUR_LAYER + "joins.parallel.norm",)),
        *PROJECTIONS,
        *FEED_FORWARD,
    ),
    parts=PARTS,
)
