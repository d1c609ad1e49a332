"""Falcon: attention and feed-forward in parallel, queries, keys and values of a group beside each other."""

from __future__ import annotations

from modernllm.interop.design import Design
from modernllm.interop.designs.common import PLAIN, SIZES, TIED, bias, no_dropout
from modernllm.interop.entries import Always, Config, Entry, HeadSize, OneOf, Only, Real, Rope, Same, Untold
from modernllm.interop.facts import Facts
from modernllm.interop.weights import Rule

THEIRS, OURS = "transformer.h.*.", "blocks.*."


class Generation(Entry):
    """The first Falcons share one norm and have one key head or all; the new have a norm for each and groups."""

    def read(self, config: Config) -> Facts:
        if config["new_decoder_architecture"]:
            norms = config["num_ln_in_parallel_attn"] or 2
            block = "parallel_norms" if norms == 2 else "parallel"
            return {"block": block, "model.n_kv_heads": config["num_kv_heads"]}
        heads = 1 if config["multi_query"] else config["num_attention_heads"]
        return {"block": "parallel", "model.n_kv_heads": heads}

    def write(self, facts: Facts) -> dict[str, object]:
        norms = {"parallel_norms": 2, "parallel": 1}.get(facts.get("block", ""))
        if norms is None:
            raise Untold(f"block={facts.get('block')}: this design is parallel or parallel_norms")
        return {
            "new_decoder_architecture": True,
            "num_ln_in_parallel_attn": norms,
            "num_kv_heads": facts.get("model.n_kv_heads"),
            "multi_query": True,
        }


DESIGN = Design(
    model_type="falcon",
    arch="neox",
    entries=(
        *SIZES,
        HeadSize(),
        Same("ffn_hidden_size", "model.hidden"),
        Real("layer_norm_epsilon", "model.norm.eps"),
        OneOf("activation", PLAIN),
        Generation(),
        Only("parallel_attn", True, "in series its norms are not known here"),
        Only("alibi", False, "its slopes are divided by the root of the size of a head, ours are the paper's"),
        TIED,
        Rope(),
        bias("bias", "model.bias", "model.feedforward_bias"),
        Always({"attention": "gqa"}),
        *no_dropout("hidden_dropout", "attention_dropout"),
    ),
    rules=(
        Rule("transformer.word_embeddings", ("embedding",)),
        Rule("transformer.ln_f", ("readout.norm",)),
        Rule("lm_head", ("head",)),
        Rule(THEIRS + "input_layernorm", (OURS + "joins.parallel.norm",)),
        Rule(THEIRS + "ln_attn", (OURS + "joins.attention.norm",)),
        Rule(THEIRS + "ln_mlp", (OURS + "joins.feedforward.norm",)),
        Rule(
            THEIRS + "self_attention.query_key_value",
            tuple(f"{OURS}sublayers.attention.{part}" for part in "qkv"),
            groups="model.n_kv_heads",
        ),
        Rule(THEIRS + "self_attention.dense", (OURS + "sublayers.attention.out",)),
        Rule(THEIRS + "mlp.dense_h_to_4h", (OURS + "sublayers.feedforward.up",)),
        Rule(THEIRS + "mlp.dense_4h_to_h", (OURS + "sublayers.feedforward.out",)),
    ),
    parts={
        THEIRS + "self_attention": OURS + "sublayers.attention",
        THEIRS + "mlp": OURS + "sublayers.feedforward",
        "transformer.h.*": "blocks.*",
    },
)
