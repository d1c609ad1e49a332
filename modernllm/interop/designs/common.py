"""What most designs since LLaMA share: the names of their keys and modules."""

from __future__ import annotations

from modernllm.interop.entries import Always, Entry, OneOf, Only, Same
from modernllm.interop.weights import Experts, Rule, modules

SIZES: tuple[Entry, ...] = (
    Same("vocab_size", "model.vocab_size"),
    Same("max_position_embeddings", "model.context_length"),
    Same("hidden_size", "model.dim"),
    Same("num_hidden_layers", "model.n_layers"),
    Same("num_attention_heads", "model.n_heads"),
)
KV_HEADS = Same("num_key_value_heads", "model.n_kv_heads", unless=lambda config: config["num_attention_heads"])
HEAD_SIZE = Same(
    "head_dim", "model.head_dim", unless=lambda config: config["hidden_size"] // config["num_attention_heads"]
)
HIDDEN = Same("intermediate_size", "model.hidden")
TIED = OneOf("tie_word_embeddings", {True: {"head": "tied"}, False: {"head": "untied"}})

GATED = {
    "silu": {"activation": "swiglu"},
    "gelu": {"activation": "geglu", "model.activation.act.approximate": "none"},
    "gelu_new": {"activation": "geglu", "model.activation.act.approximate": "tanh"},
    "gelu_pytorch_tanh": {"activation": "geglu", "model.activation.act.approximate": "tanh"},
    "relu": {"activation": "reglu"},
    "sigmoid": {"activation": "glu"},
}
"""Their names of nonlinearities, as gates."""
PLAIN = {
    "gelu": {"activation": "gelu"},
    "gelu_new": {"activation": "gelu_tanh"},
    "gelu_pytorch_tanh": {"activation": "gelu_tanh"},
    "silu": {"activation": "silu"},
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu2"},
}
"""The same without gates."""


def bias(theirs: str, *ours: str) -> OneOf:
    """A key for biases."""
    return OneOf(theirs, {False: dict.fromkeys(ours, False), True: dict.fromkeys(ours, True)})


ATTENTION_BIAS = bias("attention_bias", "model.bias")
NO_BIAS = Always({"model.bias": False, "model.feedforward_bias": False})
FULL = Only("use_sliding_window", False, "windows in a part of the layers are not among ours of this design")


def no_dropout(*keys: str) -> tuple[Entry, ...]:
    return tuple(Only(key, 0.0, "ours drops everywhere or nowhere (model.dropout)") for key in keys)


LAYER, OUR_LAYER = "model.layers.*.", "blocks.*."
ENDS = modules("", "", {"model.embed_tokens": "embedding", "model.norm": "readout.norm", "lm_head": "head"})
PROJECTIONS = modules(
    OUR_LAYER + "sublayers.attention.",
    LAYER + "self_attn.",
    {"q_proj": "q", "k_proj": "k", "v_proj": "v", "o_proj": "out"},
)
FEED_FORWARD = modules(
    OUR_LAYER + "sublayers.feedforward.", LAYER + "mlp.", {"gate_proj": "gate", "up_proj": "up", "down_proj": "out"}
)
PRE_NORMS = modules(
    OUR_LAYER + "joins.",
    LAYER,
    # the norm after attention is the one before the feed-forward
    {"input_layernorm": "attention.norm", "post_attention_layernorm": "feedforward.norm"},
)
PARTS = {
    "model.layers.*.self_attn": "blocks.*.sublayers.attention",
    "model.layers.*.mlp": "blocks.*.sublayers.feedforward",
    "model.layers.*": "blocks.*",
}
LLAMA_WEIGHTS: tuple[Rule, ...] = (*ENDS, *PRE_NORMS, *PROJECTIONS, *FEED_FORWARD)
EXPERTS: tuple[Rule, ...] = (
    Rule(LAYER + "mlp.gate", (OUR_LAYER + "sublayers.feedforward.router",)),
    Experts(
        LAYER + "mlp.experts.gate_up_proj",
        (OUR_LAYER + "sublayers.feedforward.experts.+.gate", OUR_LAYER + "sublayers.feedforward.experts.+.up"),
    ),
    Experts(LAYER + "mlp.experts.down_proj", (OUR_LAYER + "sublayers.feedforward.experts.+.out",)),
)
