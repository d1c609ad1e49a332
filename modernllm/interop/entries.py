"""How a key of Hugging Face's configuration is said in our words: each entry reads theirs and writes ours.

`read(config)` gives facts, `write(facts)` keys of theirs; either gives a problem, a sentence, where it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from modernllm.interop.facts import Facts

Config = Mapping[str, Any]


class Untold(ValueError):
    """What one side says and the other has no words for; `facts` are what it says nevertheless."""

    def __init__(self, problem: str, facts: Facts | None = None):
        super().__init__(problem)
        self.facts = facts or {}


class Entry:
    """Says nothing, which is right for facts that a design leaves at their defaults."""

    def read(self, config: Config) -> Facts:
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {}


@dataclass(frozen=True)
class Always(Entry):
    """What every model of the design is; of ours that are otherwise the comparison of facts says so."""

    facts: Facts

    def read(self, config: Config) -> Facts:
        return self.facts


@dataclass(frozen=True)
class Silent(Entry):
    """Keys of theirs that say nothing of what a model computes, as they are written."""

    config: dict[str, Any]

    def write(self, facts: Facts) -> dict[str, Any]:
        return self.config


class Same(Entry):
    """One value under two names (`ours` may be several); `unless` is what null means there."""

    def __init__(self, theirs: str, *ours: str, unless: Callable[[Config], Any] = lambda config: None):
        self.theirs, self.ours, self.unless = theirs, ours, unless

    def read(self, config: Config) -> Facts:
        value = config.get(self.theirs)
        return dict.fromkeys(self.ours, self.unless(config) if value is None else value)

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.theirs: facts.get(self.ours[0])}


class Real(Same):
    """Such a value that both insist on having as a float: 50 in a file is none."""

    def read(self, config: Config) -> Facts:
        return {key: None if value is None else float(value) for key, value in super().read(config).items()}

    def write(self, facts: Facts) -> dict[str, Any]:
        value = facts.get(self.ours[0])
        return {self.theirs: None if value is None else float(value)}


@dataclass(frozen=True)
class OneOf(Entry):
    """A value of theirs and the facts that it stands for."""

    theirs: str
    cases: dict[Any, Facts]

    def read(self, config: Config) -> Facts:
        value = config.get(self.theirs)
        if value not in self.cases:
            raise Untold(f"{self.theirs}={value}: is none of {', '.join(map(str, self.cases))}")
        return self.cases[value]

    def write(self, facts: Facts) -> dict[str, Any]:
        for value, said in self.cases.items():
            if all(facts.get(key) == fact for key, fact in said.items()):
                return {self.theirs: value}
        keys = dict.fromkeys(key for said in self.cases.values() for key in said)
        raise Untold(f"{', '.join(f'{key}={facts.get(key)}' for key in keys)}: no {self.theirs} says this")


@dataclass(frozen=True)
class Only(Entry):
    """A key of which our parts know one value; `why` says what another would be."""

    theirs: str
    value: Any
    why: str

    def read(self, config: Config) -> Facts:
        found = config.get(self.theirs, self.value)
        if found != self.value and not (found is None and not self.value):
            raise Untold(f"{self.theirs}={found}: {self.why}")
        return {}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.theirs: self.value}


@dataclass(frozen=True)
class Rope(Entry):
    """`rope_parameters`: base, share of a head (in designs that have it, `partial`), how longer texts are reached."""

    layout: str = "half"
    partial: bool = False

    def read(self, config: Config) -> Facts:
        said = {key: value for key, value in (config.get("rope_parameters") or {}).items() if value is not None}
        kind = said.pop("rope_type", "default")
        found: Facts = {
            "model.position.base": float(said.pop("rope_theta", 10_000.0)),
            "model.position.fraction": float(said.pop("partial_rotary_factor", 1.0)),
            "model.position.layout": self.layout,
        }
        if not self.partial and found["model.position.fraction"] != 1:
            raise Untold(
                f"rope_parameters.partial_rotary_factor={found['model.position.fraction']:g}: nothing reads it"
            )
        if kind not in KINDS:
            raise Untold(f"rope_parameters.rope_type={kind}: ours are {', '.join(KINDS)}", found)
        choice, keys = KINDS[kind]
        for theirs, (ours, unless) in keys.items():
            value = said.pop(theirs, unless)
            found[f"model.position.{ours}"] = value if value is None or theirs == ORIGINAL else float(value)
        said.pop("factor", None)  # some write it beside the kind that has none
        if said.get(ORIGINAL) == config.get("max_position_embeddings"):
            said.pop(ORIGINAL, None)
        if said:
            raise Untold(f"rope_parameters.{next(iter(said))}={next(iter(said.values()))}: ours has no such key", found)
        return {"position": choice} | found

    def write(self, facts: Facts) -> dict[str, Any]:
        kinds = {choice: (kind, keys) for kind, (choice, keys) in KINDS.items()}
        if facts.get("position") not in kinds:
            raise Untold(f"position={facts.get('position')}: this design turns queries and keys ({', '.join(kinds)})")
        kind, keys = kinds[facts["position"]]
        said = {theirs: facts[f"model.position.{ours}"] for theirs, (ours, _) in keys.items()}
        said |= {theirs: float(value) for theirs, value in said.items() if theirs != ORIGINAL}
        if ORIGINAL in said:
            said[ORIGINAL] = said[ORIGINAL] or facts["model.context_length"]
        fraction = facts["model.position.fraction"]
        if not self.partial and fraction != 1:
            raise Untold(f"model.position.fraction={fraction:g}: this design turns whole heads")
        part = {} if fraction == 1 else {"partial_rotary_factor": fraction}
        base = {"rope_type": kind, "rope_theta": float(facts["model.position.base"])}
        return {"rope_parameters": base | said | part}


ORIGINAL = "original_max_position_embeddings"
KINDS: dict[str, tuple[str, dict[str, tuple[str, Any]]]] = {
    "default": ("rope", {}),
    "linear": ("rope_linear", {"factor": ("factor", 1.0)}),
    "dynamic": ("rope_ntk_dynamic", {"factor": ("factor", 1.0)}),
    "yarn": (
        "rope_yarn",
        {
            "factor": ("factor", None),
            ORIGINAL: ("original_context", None),
            "beta_fast": ("beta_fast", 32.0),
            "beta_slow": ("beta_slow", 1.0),
        },
    ),
}
"""Their kind -> our position, and their keys -> ours with what they are unless given."""


@dataclass(frozen=True)
class Window(Entry):
    """`sliding_window`: how many keys a query sees, or null for all."""

    theirs: str = "sliding_window"

    def read(self, config: Config) -> Facts:
        size = config.get(self.theirs)
        return {"attention": "gqa"} if size is None else {"attention": "window", "model.attention.size": size}

    def write(self, facts: Facts) -> dict[str, Any]:
        return {self.theirs: facts.get("model.attention.size") if facts.get("attention") == "window" else None}


@dataclass(frozen=True)
class HeadSize(Entry):
    """A head is dim / n_heads wide, and no key says otherwise."""

    dim: str = "hidden_size"
    n_heads: str = "num_attention_heads"

    def read(self, config: Config) -> Facts:
        return {"model.head_dim": config[self.dim] // config[self.n_heads]}
