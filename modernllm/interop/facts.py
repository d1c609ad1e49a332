"""A model in words: the choice of each group and the value of each key, whatever composed it.

`{"norm": "rmsnorm", "model.norm.eps": 1e-6, "model.dim": 96, ...}`: what the command line would say, in full.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from typing import Any, cast

from omegaconf import OmegaConf
from torch import nn

from modernllm.activation.feedforward import FeedForward
from modernllm.activation.gated import GatedFeedForward
from modernllm.attention.mla import LatentAttention
from modernllm.attention.multi_head import SoftmaxAttention
from modernllm.config.build import resolve
from modernllm.config.compose import compose
from modernllm.config.tree import CONFIG_DIR, read_tree
from modernllm.model import Decoder
from modernllm.moe.topk import TopK

Facts = dict[str, Any]

NESTED = {"other": "attention"}
"""Keys that hold a choice of a group that is called otherwise."""
PLACES = {"attention@model.layers.other": "model.layers.other"}
"""Choices that stand elsewhere than in the section of their group."""

SIZES = (
    "model.vocab_size", "model.context_length", "model.dim", "model.n_layers", "model.n_heads", "model.n_kv_heads",
    "model.head_dim", "model.hidden", "model.attention.q_rank", "model.attention.kv_rank", "model.attention.nope",
    "model.attention.rope", "model.attention.value", "model.moe.n_experts", "model.moe.k", "model.moe.shared",
    "model.moe.hidden", "model.moe.n_groups", "model.moe.groups", "model.layers.first_dense",
)  # fmt: skip
"""Numbers of a size; the rest is the design."""
SETTLED = ("model.activation.expansion", "model.attention.kv_share", "model.layers.other.kv_share")
"""Keys that decide a size where it is not said, and nothing where it is."""
TRAINING = ("model.dropout", "model.moe.balance", "model.moe.router_z", "model.moe.rate", "model.head.std")
"""Keys without a say in what a trained model computes."""
ALIKE = {"window_gqa": "window"}
"""Choices that differ in what is settled alone."""


def facts_of(section: Mapping[str, Any], dead: Iterable[str] = ()) -> Facts:
    """Of a resolved `model` section; groups that nothing reads (`dead`) are left out."""
    facts: Facts = {}
    for key, value in section.items():
        if isinstance(value, Mapping):
            facts |= {} if key in dead else _facts_of_choice(key, f"model.{key}", value)
        elif not key.startswith("_"):
            facts[f"model.{key}"] = value
    return facts


def _facts_of_choice(group: str, place: str, node: Mapping[str, Any]) -> Facts:
    facts: Facts = {group if place == f"model.{group}" else f"{group}@{place}": choice_of(group, node)}
    for key, value in node.items():
        nested = NESTED.get(key, key)
        if isinstance(value, Mapping) and templates(nested):
            facts |= _facts_of_choice(nested, f"{place}.{key}", value)
        elif not key.startswith("_"):
            facts |= dict(_leaves(f"{place}.{key}", value))
    return facts


def _leaves(path: str, value: Any) -> Iterator[tuple[str, Any]]:
    if not isinstance(value, Mapping):
        yield path, value
        return
    for key, inner in value.items():
        if not key.startswith("_"):
            yield from _leaves(f"{path}.{key}", inner)


def choice_of(group: str, node: Mapping[str, Any]) -> str:
    """The choice with the same classes and the most equal values, or the class itself where it is of no choice."""
    alike = {name: template for name, template in templates(group).items() if _targets(template) == _targets(node)}
    own = dict(_leaves("", node))

    def differing(name: str) -> int:
        template = dict(_leaves("", alike[name]))
        return sum(own.get(key) != template.get(key) for key in own.keys() | template.keys() if key[1:] not in NESTED)

    return min(alike, key=differing, default=str(node["_target_"]))


def _targets(node: Mapping[str, Any]) -> dict[str, Any]:
    found = {"": node["_target_"]}
    for key, value in node.items():
        if isinstance(value, Mapping) and key not in NESTED:
            found |= {f"{key}.{inner}": target for inner, target in _targets(value).items()}
    return found


@cache
def templates(group: str) -> dict[str, dict[str, Any]]:
    """Choice -> the node that its file puts into the model section; {} if there is no such group."""
    found: dict[str, dict[str, Any]] = {}
    for name, choice in read_tree([CONFIG_DIR]).get(group, {}).items():
        node = cast(dict[str, Any], OmegaConf.to_container(OmegaConf.load(CONFIG_DIR / group / f"{name}.yaml")))
        node = node if choice.package == f"model.{group}" else node.get("model", {}).get(group, {})
        if isinstance(node, dict) and "_target_" in node:
            found[name] = {key: value for key, value in node.items() if key != "defaults"}
    return found


@cache
def _composed(words: tuple[str, ...]) -> Facts:
    return facts_of(resolve(compose(words))["model"])


def composed(*words: str) -> Facts:
    """Of what these overrides compose, without a size."""
    return {key: value for key, value in _composed(words).items() if key not in SIZES}


def completed(base: Facts, changes: Facts) -> Facts:
    """`base` with `changes`: a group that changes brings the keys of its new choice and drops those of the old."""
    facts = dict(base)
    for name, choice in changes.items():
        if not name.startswith("model.") and facts.get(name) != choice:
            place = PLACES.get(name, f"model.{name}")
            facts = {key: value for key, value in facts.items() if not f"{key}.".startswith(f"{place}.")}
            group = name.partition("@")[0]
            if choice in templates(group):
                facts |= _facts_of_choice(group, place, templates(group)[choice])
    return facts | changes


def counted(facts: Facts) -> Facts:
    """One word for one thing: as many, or fewer, or one key head are `gqa` with that number, a bias that is left open
    is said.
    """
    facts = dict(facts)
    facts["attention"] = ALIKE.get(facts["attention"], facts["attention"])
    if facts["attention"] in ("mha", "mqa"):
        facts["model.n_kv_heads"] = 1 if facts["attention"] == "mqa" else facts.get("model.n_heads")
        facts["attention"] = "gqa"
    if facts.get("model.feedforward_bias") is None:
        facts["model.feedforward_bias"] = facts.get("model.bias")
    return facts


def sized(facts: Facts, model: Decoder) -> Facts:
    """With every size that is left to its component as the model has it."""
    facts, found = counted(facts), {}
    attentions = [block.sublayers["attention"] for block in model.blocks]  # type: ignore[union-attr,index]
    attention = attentions[0]
    if isinstance(attention, SoftmaxAttention):
        numbers = sorted({one.n_kv_heads for one in attentions if isinstance(one, SoftmaxAttention)})
        found = {
            "model.n_kv_heads": numbers[0] if len(numbers) == 1 else " and ".join(map(str, numbers)),
            "model.head_dim": attention.head_dim,
        }
    if isinstance(attention, LatentAttention):
        found = {
            "model.n_kv_heads": None,
            "model.head_dim": attention.nope,
            "model.attention.nope": attention.nope,
            "model.attention.rope": attention.rope,
            "model.attention.kv_rank": attention.k.in_features,
            "model.attention.value": attention.v.out_features // attention.n_heads,
        }
    dense, experts = _widths(model)
    if not (found.get("model.head_dim") or facts["model.head_dim"]):
        found["model.head_dim"] = facts["model.dim"] // facts["model.n_heads"]
    found |= {"model.hidden": dense or experts, "model.vocab_size": model.vocab_size}
    return facts | found | ({"model.moe.hidden": experts} if experts else {})


def _widths(model: nn.Module) -> tuple[int | None, int | None]:
    """Of a dense feed-forward and of an expert, where there are any."""
    widths = {
        name: module.up.out_features
        for name, module in model.named_modules()
        if isinstance(module, FeedForward | GatedFeedForward)
    }
    inside = [name for name, module in model.named_modules() if isinstance(module, TopK)]
    experts = [width for name, width in widths.items() if any(name.startswith(f"{outer}.") for outer in inside)]
    dense = [width for name, width in widths.items() if not any(name.startswith(f"{outer}.") for outer in inside)]
    return next(iter(dense), None), next(iter(experts), None)


def design_of(facts: Facts) -> Facts:
    """Without sizes and without what only training reads."""
    return {key: value for key, value in facts.items() if key not in (*SIZES, *SETTLED, *TRAINING)}


def differences(one: Facts, other: Facts) -> dict[str, tuple[Any, Any]]:
    """What both say, and say otherwise; the keys of a choice that differs are not compared."""
    found = {}
    for key in one.keys() | other.keys():
        if one.get(key) != other.get(key) and key not in (*SETTLED, *TRAINING):
            found[key] = (one.get(key), other.get(key))
    groups = [PLACES.get(key, f"model.{key}") for key in found if not key.startswith("model.")]
    if "attention" in found:  # each counts its key heads in its own way
        found.pop("model.n_kv_heads", None)
    return {
        key: found[key]
        for key in sorted(found, key=lambda key: (key.startswith("model."), key))
        if not any(key.startswith(f"{group}.") for group in groups)
    }


def spoken(facts: Facts) -> Facts:
    """The inverse of `counted`: with what a component would take anyway left to it."""
    facts = dict(facts)
    n_heads, dim = facts.get("model.n_heads"), facts.get("model.dim")
    alone = "attention@model.layers.other" not in facts  # another takes its own share where no number is said
    if alone and facts.get("attention") == "gqa" and n_heads and facts.get("model.n_kv_heads") == n_heads:
        facts |= {"attention": "mha", "model.n_kv_heads": None}
    if n_heads and dim and facts.get("model.head_dim") == dim / n_heads:
        facts["model.head_dim"] = None
    for key, same in (("model.feedforward_bias", "model.bias"), ("model.moe.hidden", "model.hidden")):
        if key in facts and facts[key] == facts.get(same):
            facts[key] = None
    return facts


def overrides(base: Facts, wanted: Facts) -> list[str]:
    """The words that make `wanted` of `base`: groups first, then keys."""
    wanted = spoken(wanted)
    if ALIKE.get(base["attention"]) == wanted["attention"]:
        wanted["attention"] = base["attention"]
    groups = {key: value for key, value in wanted.items() if not key.startswith("model.") and base.get(key) != value}
    between = completed(base, groups)
    keys = {
        key: value
        for key, value in wanted.items()
        if key.startswith("model.") and key not in SETTLED and between.get(key) != value
    }
    return [f"{key}={worded(value)}" for key, value in (groups | keys).items()]


def worded(value: Any) -> str:
    """As the command line takes it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    if not isinstance(value, float):
        return str(value)
    text = f"{value:g}" if float(f"{value:g}") == value else repr(value)
    return text if set(text) & set(".en") else f"{text}.0"
