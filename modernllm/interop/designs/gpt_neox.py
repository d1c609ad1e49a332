"""GPT-NeoX: queries, keys and values of a head beside each other; attention and feed-forward in parallel."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import ATTENTION_BIAS, HIDDEN, PLAIN, SIZES, TIED, no_dropout
from modernllm.interop.entries import Always, HeadSize, OneOf, Real, Rope, Same
from modernllm.interop.weights import Rule, modules

THEIRS, OURS = "gpt_neox.layers.*.", "blocks.*."

DESIGN = Design(
    model_type="gpt_neox",
    arch="neox",
    entries=(
        *SIZES,
        HIDDEN,
        HeadSize(),
        Same("num_attention_heads", "model.n_heads", "model.n_kv_heads"),
        Real("layer_norm_eps", "model.norm.eps"),
        OneOf("hidden_act", PLAIN),
        OneOf("use_parallel_residual", {True: {"block": "parallel_norms"}, False: {"block": "serial"}}),
        TIED,
        Rope(partial=True),
        ATTENTION_BIAS,
        Always({"attention": "gqa", "model.feedforward_bias": True}),
        *no_dropout("attention_dropout", "hidden_dropout"),
    ),
    rules=(
        *modules("", "", {"gpt_neox.embed_in": "embedding", "gpt_neox.final_layer_norm": "readout.norm"}),
        Rule("lm_head", ("head",)),
        *modules(
            OURS + "joins.",
            THEIRS,
            {"input_layernorm": "attention.norm", "post_attention_layernorm": "feedforward.norm"},
        ),
        Rule(
            THEIRS + "attention.query_key_value",
            tuple(f"{OURS}sublayers.attention.{part}" for part in "qkv"),
            groups="model.n_heads",
        ),
        Rule(THEIRS + "attention.dense", (OURS + "sublayers.attention.out",)),
        Rule(THEIRS + "mlp.dense_h_to_4h", (OURS + "sublayers.feedforward.up",)),
        Rule(THEIRS + "mlp.dense_4h_to_h", (OURS + "sublayers.feedforward.out",)),
    ),
    parts={
        THEIRS + "attention": OURS + "sublayers.attention",
        THEIRS + "mlp": OURS + "sublayers.feedforward",
        "gpt_neox.layers.*": "blocks.*",
    },
)
