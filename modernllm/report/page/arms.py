"""Runs that differ in nothing but seed and learning rate are an arm, named by the fewest keys that tell it apart."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from modernllm.config.nearest import did_you_mean
from modernllm.report.page.reading import Record
from modernllm.runs.identity import NAMELESS, RUN_LEVEL, SECTIONS, leaves_of

AXES = ("seed", "optimizer.lr")
"""What varies inside an arm: repeats, and what is tuned."""
NOT_COMPARED = {*AXES, "trainer.device", *(f"trainer.{key}" for key in RUN_LEVEL)}
CLAIMED = ("cell", "arm")
"""What a run of a claim says of why it was made."""
VAGUE = {"none", "default", "own", "plain", "normal"}
"""Choices whose name alone does not say of what."""

Facts = Mapping[str, Any]


@dataclass(frozen=True)
class Yardstick:
    """What a loss was measured with and how long it was trained for: losses rank under one alone."""

    corpus: str
    tokenizer: str
    validation: str
    tokens: int

    @classmethod
    def of(cls, record: Record) -> Yardstick:
        identity = record.identity
        return cls(identity["corpus"], identity["tokenizer"], identity.get("validation", ""), record.planned_tokens)


@dataclass(frozen=True)
class Arm:
    """`records` are all its runs, usable or not, those that are missing among them; the first is there if any is."""

    label: str
    records: tuple[Record, ...]

    @cached_property
    def usable(self) -> list[Record]:
        return [record for record in self.records if record.usable]

    @cached_property
    def missing(self) -> list[Record]:
        return [record for record in self.records if record.missing]

    @cached_property
    def yardstick(self) -> Yardstick:
        return Yardstick.of(self.records[0])

    @property
    def planned(self) -> int:
        return len(self.records)

    @cached_property
    def outcomes(self) -> Counter[str]:
        return Counter(record.word for record in self.records)

    def at(self, lr: float) -> list[Record]:
        return [record for record in self.usable if record.lr == lr]

    @cached_property
    def rates(self) -> list[float]:
        """Of usable runs, ascending."""
        return sorted({record.lr for record in self.usable})


def arms(records: Sequence[Record], by: Sequence[str], planned: bool = False) -> list[Arm]:
    """By the keys of `by` if there are any, else by everything that differs. Where it is not known what was `planned`,
    every seed is taken to be run at each learning rate of an arm. ValueError names an unknown key.
    """
    facts = {id(record): facts_of(record) for record in records}
    asked = dict.fromkeys(key for record in records for key in record.identity["overrides"] if key not in AXES)
    known = dict.fromkeys(key for each in facts.values() for key in each)
    for key in by:
        if key not in known and key not in AXES:
            raise ValueError(f"by={key}: no run has that key{did_you_mean(key, list(known))}")
    claimed = all(record.identity.get("origin") for record in records)
    whole = list(by) or [*(CLAIMED if claimed else ()), *(key for key in known if "." in key and key not in AXES)]
    measured = ["corpus", "tokenizer_text", "windows", "tokens"]
    parts = _split(records, facts, [*whole, *measured])
    first = [*by, *(CLAIMED if claimed else ()), *(key for key in asked if key in known)]
    candidates = [*first, *(key for key in known if key not in (*AXES, *CLAIMED))]
    names = _fewest(records, facts, candidates, len(parts))
    known_otherwise = planned or claimed or "seed" in by
    seeds = set() if known_otherwise else {record.seed for record in records}
    made = [Arm(_label(facts[id(part[0])], names), (*_there_first(part), *_expected(part, seeds))) for part in parts]
    return sorted(made, key=lambda arm: arm.label)


def _there_first(records: Sequence[Record]) -> list[Record]:
    return sorted(records, key=lambda record: (record.missing, record.unreadable))


def _expected(records: Sequence[Record], seeds: Iterable[int]) -> list[Record]:
    """Runs of an arm that the others lead one to expect."""
    there = {(record.lr, record.seed) for record in records}
    rates = sorted({record.lr for record in records})
    return [records[0].other(lr, seed) for lr in rates for seed in sorted(seeds) if (lr, seed) not in there]


def facts_of(record: Record) -> Facts:
    """What a run is, by key: its choices of groups, and the leaves of its configuration that decide a result."""
    dead = record.identity.get("dead_switches", {})
    choices = {key: value for key, value in record.identity["choices"].items() if key not in (*NAMELESS, *dead)}
    leaves = {
        key: value
        for section in SECTIONS
        for key, value in leaves_of(section, record.config[section])
        if key not in NOT_COMPARED and not any(key.startswith(f"model.{group}.") for group in dead)
    }
    yardstick = Yardstick.of(record)
    origin = record.identity.get("origin") or {}
    claimed = {key: origin[key] for key in CLAIMED if key in origin}
    return {
        **claimed,
        **choices,
        **leaves,
        "corpus": yardstick.corpus[:8],
        "tokenizer_text": yardstick.tokenizer[:8],
        "held_out": record.held_out,
        "windows": yardstick.validation[:8],
        "tokens": yardstick.tokens,
        "seed": record.seed,
        "optimizer.lr": record.lr,
    }


def _split(records: Sequence[Record], facts: Mapping[int, Facts], keys: Iterable[str]) -> list[list[Record]]:
    keys = list(keys)
    parts: dict[Hashable, list[Record]] = {}
    for record in records:
        parts.setdefault(tuple(str(facts[id(record)].get(key)) for key in keys), []).append(record)
    return list(parts.values())


def _fewest(records: Sequence[Record], facts: Mapping[int, Facts], candidates: Iterable[str], target: int) -> list[str]:
    """Keys that together split the runs as finely: each one that splits further is taken, in the order given."""
    chosen: list[str] = []
    reached = 1
    for key in dict.fromkeys(candidates):
        if reached == target:
            break
        if (finer := len(_split(records, facts, [*chosen, key]))) > reached and finer <= target:
            chosen.append(key)
            reached = finer
    return chosen


def _label(facts: Facts, names: Sequence[str]) -> str:
    return " · ".join(_word(key, facts.get(key)) for key in names) or "all runs"


def _word(key: str, value: Any) -> str:
    if value is None:
        return f"no {key.rpartition('.')[2]}"
    plain = "." not in key and key not in ("windows", "tokens", "corpus", "tokenizer_text") and str(value) not in VAGUE
    return str(value) if plain else f"{key.rpartition('.')[2]}={written(value)}"


def written(value: Any) -> str:
    """As a person writes it: 1e+09 and 1, not 1000000000.0 and 1.0."""
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def differing(arms: Sequence[Arm]) -> dict[str, list[list[str]]]:
    """The keys in which arms differ; for every arm the values that its runs have. What follows from the choice of a
    group, as its class and the keys that it brings, goes without saying.
    """
    found: dict[str, list[list[str]]] = {}
    each = [[facts_of(record) for record in arm.records] for arm in arms]
    for key in dict.fromkeys(key for facts in each for one in facts for key in one):
        if key in ("seed", "held_out", "windows", "corpus", "tokenizer_text"):
            continue
        values = [sorted({written(one.get(key, "-")) for one in facts}) for facts in each]
        if len({tuple(column) for column in values}) > 1 and not _follows(key, values, found):
            found[key] = values
    return found


def _follows(key: str, values: Sequence[Sequence[str]], found: Mapping[str, Sequence[Sequence[str]]]) -> bool:
    """Whether arms of the same choice in the key's group have the same values of it."""
    section, _, rest = key.partition(".")
    choices = found.get(section) or (found.get(rest.partition(".")[0]) if section == "model" else None)
    if not rest or choices is None:
        return False
    by_choice = {(tuple(choice), tuple(value)) for choice, value in zip(choices, values, strict=True)}
    return len(by_choice) == len({choice for choice, _ in by_choice})
