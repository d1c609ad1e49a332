"""DeepSeek-V3: latent attention with interleaved pairs, experts chosen by a biased sigmoid within groups."""

from __future__ import annotations

from collections.abc import Iterator

from modernllm.interop.design import Design
from modernllm.interop.designs.common import (
    ENDS,
    EXPERTS,
    FEED_FORWARD,
    GATED,
    HIDDEN,
    LAYER,
    OUR_LAYER,
    PARTS,
    PRE_NORMS,
    SIZES,
    TIED,
    bias,
    no_dropout,
)
from modernllm.interop.entries import Always, Config, Entry, OneOf, Real, Rope, Same, Silent, Untold
from modernllm.interop.facts import Facts
from modernllm.interop.weights import Rule, Shapes, Shared, Steps, Tie

ATTENTION, EXPERT = OUR_LAYER + "sublayers.attention.", OUR_LAYER + "sublayers.feedforward.shared.+."


class Groups(Entry):
    """A group is as good as its two best experts, in ours as the k / groups best."""

    def read(self, config: Config) -> Facts:
        n_groups, groups, k = config["n_group"], config["topk_group"], config["num_experts_per_tok"]
        found = {"model.moe.n_groups": n_groups, "model.moe.groups": groups}
        if groups < n_groups and k // groups != 2:
            raise Untold(f"{self.why(k, groups)} (num_experts_per_tok, topk_group)", found)
        return found

    def write(self, facts: Facts) -> dict[str, object]:
        n_groups, groups, k = facts["model.moe.n_groups"], facts["model.moe.groups"], facts["model.moe.k"]
        if groups < n_groups and k // groups != 2:
            raise Untold(f"{self.why(k, groups)} (model.moe.k, model.moe.groups)")
        return {"n_group": n_groups, "topk_group": groups}

    @staticmethod
    def why(k: int, groups: int) -> str:
        return f"{k} experts out of {groups} groups: theirs weighs a group by its 2 best experts, ours by {k // groups}"


class Direct(Rule):
    """Where queries are made of the stream."""

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        return iter(()) if facts.get("model.attention.q_rank") else super().ties(shapes, facts)


class Ranked(Rule):
    """Where they come from a latent."""

    def ties(self, shapes: Shapes, facts: Facts) -> Iterator[Tie]:
        return super().ties(shapes, facts) if facts.get("model.attention.q_rank") else iter(())


class RopeOfLayout(Entry):
    """Pairs are neighbours where `rope_interleave` says so."""

    def read(self, config: Config) -> Facts:
        return Rope(layout="interleaved" if config["rope_interleave"] else "half").read(config)

    def write(self, facts: Facts) -> dict[str, object]:
        return Rope().write(facts) | {"rope_interleave": facts["model.position.layout"] == "interleaved"}


DESIGN = Design(
    model_type="deepseek_v3",
    arch="deepseek",
    entries=(
        Same("num_key_value_heads", "model.n_heads"),
        *SIZES,
        HIDDEN,
        Same("moe_intermediate_size", "model.moe.hidden"),
        Real("rms_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", GATED),
        TIED,
        RopeOfLayout(),
        Same("q_lora_rank", "model.attention.q_rank"),
        Same("kv_lora_rank", "model.attention.kv_rank"),
        Same("qk_nope_head_dim", "model.attention.nope", "model.head_dim"),
        Same("qk_rope_head_dim", "model.attention.rope"),
        Same("v_head_dim", "model.attention.value"),
        bias("attention_bias", "model.bias"),
        Same("n_routed_experts", "model.moe.n_experts"),
        Same("num_experts_per_tok", "model.moe.k"),
        Same("n_shared_experts", "model.moe.shared"),
        Real("routed_scaling_factor", "model.moe.scale"),
        Same("norm_topk_prob", "model.moe.renormalise"),
        Groups(),
        Same("first_k_dense_replace", "model.layers.first_dense"),
        Always(
            {
                "attention": "mla",
                "norm@model.attention.norm": "rmsnorm",
                "model.attention.norm.eps": 1e-6,
                "model.n_kv_heads": None,
                "moe": "topk_lossfree",
                "model.moe.score": "sigmoid",
                "layers": "moe_every",
                "model.layers.period": 1,
                "model.feedforward_bias": False,
            }
        ),
        *no_dropout("attention_dropout"),
        Silent({"num_nextn_predict_layers": 0}),
    ),
    rules=(
        *ENDS,
        *PRE_NORMS,
        Direct(LAYER + "self_attn.q_proj", (ATTENTION + "q",)),
        Rule(LAYER + "self_attn.q_a_proj", (ATTENTION + "q_down",)),
        Rule(LAYER + "self_attn.q_a_layernorm", (ATTENTION + "q_norm",)),
        Ranked(LAYER + "self_attn.q_b_proj", (ATTENTION + "q",)),
        Rule(LAYER + "self_attn.kv_a_proj_with_mqa", (ATTENTION + "kv_down", ATTENTION + "k_rope")),
        Rule(LAYER + "self_attn.kv_a_layernorm", (ATTENTION + "kv_norm",)),
        Rule(LAYER + "self_attn.kv_b_proj", (ATTENTION + "k", ATTENTION + "v"), groups="model.n_heads"),
        Rule(LAYER + "self_attn.o_proj", (ATTENTION + "out",)),
        *FEED_FORWARD,
        *EXPERTS,
        Shared(LAYER + "mlp.shared_experts.gate_proj", (EXPERT + "gate",)),
        Shared(LAYER + "mlp.shared_experts.up_proj", (EXPERT + "up",)),
        Shared(LAYER + "mlp.shared_experts.down_proj", (EXPERT + "out",), axis=1),
        Steps(LAYER + "mlp.gate.e_score_correction_bias", (OUR_LAYER + "sublayers.feedforward.steps_up",)),
    ),
    parts=PARTS,
)
