"""Gemma 2: norms on both sides of each sublayer, windows in every second layer, soft-caps."""

from __future__ import annotations

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ATTENTION_BIAS,
    ENDS,
    FEED_FORWARD,
    GATED,
    HEAD_SIZE,
    HIDDEN,
    KV_HEADS,
    LAYER,
    OUR_LAYER,
    PARTS,
    PROJECTIONS,
    SIZES,
    no_dropout,
)
from modernllm.interop.designs.gemma import gains_above_one
from modernllm.interop.entries import Always, Config, Entry, OneOf, Only, Real, Rope, Same, Untold
from modernllm.interop.facts import Facts
from modernllm.interop.weights import modules


class Windows(Entry):
    """`layer_types`: windows, but in each period-th layer."""

    def read(self, config: Config) -> Facts:
        kinds = config["layer_types"]
        period = kinds.index("full_attention") + 1 if "full_attention" in kinds else len(kinds) + 1
        if period < 2 or kinds != self.kinds(len(kinds), period):
            raise Untold(f"layer_types={','.join(kinds)}: ours has windows in all layers but each period-th")
        return {"layers": "alternate", "model.layers.period": period}

    def write(self, facts: Facts) -> dict[str, object]:
        if facts.get("layers") != "alternate":
            raise Untold(f"layers={facts.get('layers')}: this design has windows in all layers but each period-th")
        return {"layer_types": self.kinds(facts["model.n_layers"], facts["model.layers.period"])}

    @staticmethod
    def kinds(n_layers: int, period: int) -> list[str]:
        return ["full_attention" if (layer + 1) % period == 0 else "sliding_attention" for layer in range(n_layers)]


HEADS = {
    (True, True): "tied_softcapped",
    (False, True): "softcapped",
    (True, False): "tied",
    (False, False): "untied",
}
"""Tied, capped -> our head."""


class Caps(Entry):
    """`final_logit_softcapping` and tying are one choice of ours, the head."""

    def read(self, config: Config) -> Facts:
        cap = config["final_logit_softcapping"]
        head = HEADS[bool(config["tie_word_embeddings"]), cap is not None]
        return {"head": head} | ({} if cap is None else {"model.head.cap": float(cap)})

    def write(self, facts: Facts) -> dict[str, object]:
        for (tied, capped), head in HEADS.items():
            if head == facts.get("head"):
                return {
                    "tie_word_embeddings": tied,
                    "final_logit_softcapping": float(facts["model.head.cap"]) if capped else None,
                }
        raise Untold(f"head={facts.get('head')}: this design has {', '.join(HEADS.values())}")


class Scale(Entry):
    """`query_pre_attn_scalar`: scores are divided by its root, and by that of the size of a head in ours."""

    def read(self, config: Config) -> Facts:
        cases = {config["head_dim"]: "sqrt", 1: "none", config["head_dim"] ** 2: "width"}
        if config["query_pre_attn_scalar"] not in cases:
            raise Untold(
                f"query_pre_attn_scalar={config['query_pre_attn_scalar']}: ours is model.head_dim={config['head_dim']}"
            )
        scale = cases[config["query_pre_attn_scalar"]]
        return {"model.attention.scale": scale, "model.layers.other.scale": scale}

    def write(self, facts: Facts) -> dict[str, object]:
        size = facts["model.head_dim"]
        return {"query_pre_attn_scalar": {"sqrt": size, "none": 1, "width": size**2}[facts["model.attention.scale"]]}


DESIGN = Design(
    model_type="gemma2",
    arch="gemma2",
    entries=(
        *SIZES,
        KV_HEADS,
        HEAD_SIZE,
        HIDDEN,
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_activation", GATED),
        Caps(),
        Rope(),
        Windows(),
        Scale(),
        Same("sliding_window", "model.layers.other.size"),
        Real("attn_logit_softcapping", "model.attention.softcap", "model.layers.other.softcap"),
        ATTENTION_BIAS,
        Always({"attention": "gqa", "attention@model.layers.other": "window", "model.feedforward_bias": False}),
        Only("use_bidirectional_attention", None, "ours sees no future"),
        *no_dropout("attention_dropout"),
    ),
    rules=gains_above_one(
        (
            *ENDS,
            *PROJECTIONS,
            *FEED_FORWARD,
            *modules(
                OUR_LAYER + "joins.",
                LAYER,
                {
                    "input_layernorm": "attention.norm",
                    "post_attention_layernorm": "attention.out_norm",
                    "pre_feedforward_layernorm": "feedforward.norm",
                    "post_feedforward_layernorm": "feedforward.out_norm",
                },
            ),
        )
    ),
    parts=PARTS,
)
