"""A configuration of Hugging Face in our words: the components, what differs from an arch, the overrides."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from modernllm.config.nearest import did_you_mean
from modernllm.config.tree import CONFIG_DIR, default_choices, read_tree
from modernllm.interop.design import designs
from modernllm.interop.facts import (
    SETTLED,
    SIZES,
    TRAINING,
    Facts,
    composed,
    counted,
    design_of,
    differences,
    overrides,
    spoken,
    worded,
)

UNKNOWN = {
    "model.dim": ("hidden_size", "n_embd", "d_model", "dim"),
    "model.n_layers": ("num_hidden_layers", "n_layer", "n_layers", "num_layers"),
    "model.n_heads": ("num_attention_heads", "n_head", "n_heads", "num_heads"),
    "model.n_kv_heads": ("num_key_value_heads", "num_kv_heads", "n_kv_heads"),
    "model.head_dim": ("head_dim",),
    "model.hidden": ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size"),
    "model.context_length": ("max_position_embeddings", "n_positions", "max_seq_len"),
    "model.vocab_size": ("vocab_size",),
    "nonlinearity": ("hidden_act", "activation_function", "hidden_activation", "activation"),
    "rmsnorm, eps": ("rms_norm_eps",),
    "layernorm, eps": ("layer_norm_eps", "layer_norm_epsilon", "layernorm_epsilon"),
    "rotary base": ("rope_theta",),
    "rotary": ("rope_parameters", "rope_scaling"),
    "window": ("sliding_window",),
    "tied head": ("tie_word_embeddings",),
    "experts": ("num_local_experts", "n_routed_experts", "num_experts"),
    "experts a token": ("num_experts_per_tok",),
    "soft-cap of scores": ("attn_logit_softcapping",),
    "soft-cap of logits": ("final_logit_softcapping",),
}
"""What a key of a design that is not known most likely is."""


def inspect(config: Mapping[str, Any], arch: str | None = None) -> list[str]:
    """Lines for people. ValueError if there is no such arch."""
    archs = read_tree([CONFIG_DIR])["arch"]
    if arch is not None and arch not in archs:
        raise ValueError(f"arch={arch}: there is none{did_you_mean(arch, archs)}")
    design = designs().get(str(config.get("model_type")))
    if design is None:
        return list(_unknown(config))
    facts, problems = design.read(config)
    words = overrides(composed(f"arch={design.arch}"), facts)
    places = [*SIZES, "model.dropout"]
    sizes = sorted((word for word in words if key_of(word) in places), key=lambda word: places.index(key_of(word)))
    mixed = [word for word in words if word not in sizes]
    lines = [f"{design.model_type}: {'not quite ' if problems else ''}{' '.join([f'arch={design.arch}', *mixed])}", ""]
    lines += _components(spoken(facts))
    if problems:
        lines += ["", "not in our words:", *(f"  {problem}" for problem in problems)]
    if arch is not None:
        lines += ["", *_against(facts, arch)]
    word = "the overrides that come nearest" if problems else "the overrides that rebuild it"
    return [*lines, "", f"{word}: arch={design.arch} {' '.join(mixed)}".rstrip(), f"at its size: {' '.join(sizes)}"]


def key_of(word: str) -> str:
    return word.partition("=")[0]


def _components(facts: Facts) -> Iterator[str]:
    """A line a group, with its keys; then the plain keys of the model."""
    order = list(default_choices())
    facts = {key: value for key, value in facts.items() if key not in (*SETTLED, *TRAINING) and value is not None}
    groups = sorted(
        (key for key in facts if not key.startswith("model.")), key=lambda key: order.index(key.partition("@")[0])
    )
    places = {name: name.partition("@model.")[2] or name for name in groups}
    for name in groups:
        below = {key: value for key, value in facts.items() if key.startswith(f"model.{places[name]}.")}
        inner = [place for place in places.values() if place.startswith(f"{places[name]}.")]
        own = {
            key.removeprefix(f"model.{places[name]}."): value
            for key, value in below.items()
            if not any(key.startswith(f"model.{place}.") for place in inner)
        }
        said = ", ".join(f"{key} {worded(value)}" for key, value in own.items())
        yield f"  {places[name]:<16} {facts[name]:<16} {said}".rstrip()
    plain = [
        key for key in (*SIZES, *sorted(facts)) if key in facts and key.startswith("model.") and key.count(".") == 1
    ]
    said = ", ".join(f"{key.removeprefix('model.')} {worded(facts[key])}" for key in dict.fromkeys(plain))
    yield f"  {'model':<16} {said}"


def _against(facts: Facts, arch: str) -> Iterator[str]:
    there = design_of(counted(composed(f"arch={arch}")))
    found = differences(design_of(facts), there)
    yield f"against arch={arch}:" + ("" if found else " nothing differs but the size")
    for key, (mine, theirs) in found.items():
        yield f"  {key:<28} {worded(mine)}, there {worded(theirs)}"


def _unknown(config: Mapping[str, Any]) -> Iterator[str]:
    yield f"model_type={config.get('model_type')}: unknown here; known are {', '.join(sorted(designs()))}"
    yield "what could be read, by the names of its keys alone:"
    for meaning, names in UNKNOWN.items():
        for name in names:
            if config.get(name) is not None:
                yield f"  {meaning:<24} {config[name]}  ({name})"
