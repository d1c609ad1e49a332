"""Mixtral: experts in every layer, stacked into one tensor with gate and up in it."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ENDS,
    EXPERTS,
    GATED,
    HEAD_SIZE,
    KV_HEADS,
    NO_BIAS,
    PARTS,
    PRE_NORMS,
    PROJECTIONS,
    SIZES,
    TIED,
    no_dropout,
)
from modernllm.interop.entries import Always, OneOf, Only, Real, Rope, Same, Window

DESIGN = Design(
    model_type="mixtral",
    arch="mixtral",
    entries=(
        *SIZES,
        KV_HEADS,
        HEAD_SIZE,
        Same("intermediate_size", "model.hidden", "model.moe.hidden"),
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        Rope(),
        Window(),
        NO_BIAS,
        Same("num_local_experts", "model.moe.n_experts"),
        Same("num_experts_per_tok", "model.moe.k"),
        Always({"moe": "topk", "model.moe.shared": 0, "model.moe.n_groups": 1, "model.moe.groups": 1}),
        Only("router_jitter_noise", 0.0, "our routers have no noise"),
        *no_dropout("attention_dropout"),
    ),
    rules=(*ENDS, *PRE_NORMS, *PROJECTIONS, *EXPERTS),
    parts=PARTS,
)
