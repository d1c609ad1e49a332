"""GPT-2: fused queries, keys and values, and matrices that lie the other way round (their Conv1D)."""

from modernllm.interop.design import Design
from modernllm.interop.designs.common import PLAIN
from modernllm.interop.entries import Always, HeadSize, OneOf, Only, Real, Same
from modernllm.interop.weights import Rule, modules

THEIRS, OURS = "transformer.h.*.", "blocks.*."

DESIGN = Design(
    model_type="gpt2",
    arch="gpt2",
    entries=(
        Same("vocab_size", "model.vocab_size"),
        Same("n_positions", "model.context_length"),
        Same("n_embd", "model.dim"),
        Same("n_layer", "model.n_layers"),
        Same("n_head", "model.n_heads", "model.n_kv_heads"),
        HeadSize("n_embd", "n_head"),
        Same("n_inner", "model.hidden", unless=lambda config: 4 * config["n_embd"]),
        Real("layer_norm_epsilon", "model.norm.eps"),
        Real("resid_pdrop", "model.dropout"),
        Real("embd_pdrop", "model.dropout"),
        Real("attn_pdrop", "model.dropout"),
        OneOf("activation_function", PLAIN),
        OneOf("tie_word_embeddings", {True: {"head": "tied"}, False: {"head": "untied"}}),
        Always({"attention": "gqa", "model.bias": True, "model.feedforward_bias": True, "position": "learned"}),
        OneOf(
            "scale_attn_weights", {True: {"model.attention.scale": "sqrt"}, False: {"model.attention.scale": "none"}}
        ),
        Only("scale_attn_by_inverse_layer_idx", False, "our scores are scaled alike in all layers"),
        Only("add_cross_attention", False, "ours is a decoder alone"),
    ),
    rules=(
        *modules("", "transformer.", {"wte": "embedding", "wpe": "position", "ln_f": "readout.norm"}),
        Rule("lm_head", ("head",)),
        *modules(OURS + "joins.", THEIRS, {"ln_1": "attention.norm", "ln_2": "feedforward.norm"}),
        Rule(THEIRS + "attn.c_attn", tuple(f"{OURS}sublayers.attention.{part}" for part in "qkv"), transposed=True),
        Rule(THEIRS + "attn.c_proj", (OURS + "sublayers.attention.out",), transposed=True),
        Rule(THEIRS + "mlp.c_fc", (OURS + "sublayers.feedforward.up",), transposed=True),
        Rule(THEIRS + "mlp.c_proj", (OURS + "sublayers.feedforward.out",), transposed=True),
    ),
    parts={
        "transformer.h.*.attn": "blocks.*.sublayers.attention",
        "transformer.h.*.mlp": "blocks.*.sublayers.feedforward",
        "transformer.h.*": "blocks.*",
    },
)
