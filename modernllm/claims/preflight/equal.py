"""What must be equal is: text, tokenizer, validation, batches, budget, numbers, and the start of what is shared."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any

from modernllm.claims.preflight.arm import Arm, Initial
from modernllm.claims.preflight.certificate import Check
from modernllm.config.values import shown
from modernllm.runs.identity import digest

BATCHES = 50
"""Steps whose batches are compared."""
NO_YARDSTICK = "losses compare under one tokenizer and on the same windows alone, whatever is declared: make it equal"


@dataclass(frozen=True)
class Fact:
    """What all arms share, unless one of `keys` is declared to be unlike; without keys it never is. Where `own`, an arm
    that sets such a key itself has declared it.
    """

    name: str
    of: Callable[[Arm], Any]
    keys: tuple[str, ...]
    own: bool = False


def _trainer(key: str) -> Callable[[Arm], Any]:
    return lambda arm: arm.config["trainer"][key]


def _evaluations(arm: Arm) -> int:
    trainer = arm.config["trainer"]
    return trainer["eval_every"] or max(1, trainer["steps"] // 5)


def _tokens(arm: Arm) -> int:
    return arm.config["trainer"]["batch_size"] * arm.config["model"]["context_length"]


_SIZE = ("trainer.batch_size", "model.context_length")
FACTS = (
    Fact("corpus", lambda arm: arm.hashes["corpus"], ("data",)),
    Fact("tokenizer", lambda arm: arm.hashes["tokenizer"], ()),
    Fact("validation windows", lambda arm: arm.hashes["validation"], ()),
    Fact(f"batches of {BATCHES} steps", lambda arm: digest(arm.batches(BATCHES)), ("data", "tokenizer", *_SIZE)),
    Fact("tokens a step", _tokens, _SIZE),
    Fact("steps", _trainer("steps"), ("trainer.steps",)),
    Fact("schedule", lambda arm: arm.config["schedule"], ("schedule",), own=True),
    Fact("precision", _trainer("precision"), ("trainer.precision",), own=True),
    Fact("device", lambda arm: arm.device.type, ("trainer.device",)),
    Fact("seed", lambda arm: arm.config["seed"], ("seed",)),
    Fact("clipping", _trainer("clip"), ("trainer.clip",), own=True),
    Fact("non-finite policy", _trainer("nonfinite"), ("trainer.nonfinite",), own=True),
    Fact("z-loss", _trainer("z_loss"), ("trainer.z_loss",), own=True),
    Fact("steps between evaluations", _evaluations, ("trainer.eval_every", "trainer.steps")),
)  # fmt: skip


def check_facts(arms: Sequence[Arm], unlike: Collection[str]) -> list[Check]:
    """One for each fact, every arm against the first."""
    return [_check(fact, arms, unlike) for fact in FACTS]


def _check(fact: Fact, arms: Sequence[Arm], unlike: Collection[str]) -> Check:
    values = {arm.name: fact.of(arm) for arm in arms}
    first = values[arms[0].name]
    others = [arm for arm in arms[1:] if values[arm.name] != first]
    if not others:
        return Check(fact.name, True, f"{_word(first)} in all arms", {"value": first})
    words = ", ".join(f"{name} {_word(value)}" for name, value in values.items())
    if any(touches(key, unlike) for key in fact.keys):
        return Check(fact.name, True, f"declared unlike: {words}", {"values": values})
    # the first arm may be the one that sets it
    if fact.own and all(any(touches(key, _own(arms[0], arm)) for key in fact.keys) for arm in others):
        return Check(fact.name, True, f"set by the arms themselves: {words}", {"values": values})
    way = f"make it equal, or declare it: unlike: [{fact.keys[0]}]" if fact.keys else NO_YARDSTICK
    return Check(fact.name, False, f"not the same: {words}; {way}", {"values": values})


def _own(*arms: Arm) -> set[str]:
    return {key for arm in arms for key in arm.asked.overrides}


def touches(key: str, declared: Collection[str]) -> bool:
    """Whether one of the declared keys is this key, above it or below it."""
    return any(key == each or key.startswith(f"{each}.") or each.startswith(f"{key}.") for each in declared)


def check_shared_starts(arms: Sequence[Arm]) -> Check:
    """Parameters of one name and shape start equal, bit for bit, where the initialisation is one and asks for no other
    start of them.
    """
    reference, sentences, passed = arms[0], [], True
    details: dict[str, Any] = {}
    for arm in arms[1:]:
        found = compare_starts(reference, arm)
        details[arm.name] = {key: len(names) for key, names in found.items()} | {"unequal": found["unequal"]}
        passed = passed and not found["unequal"]
        sentences.append(f"{arm.name}: {_started(reference, arm, found)}")
    return Check("shared starts", passed, "; ".join(sentences), details)


def compare_starts(reference: Arm, arm: Arm) -> dict[str, list[str]]:
    """Names of the parameters of one shape: `shared`, of them those that start `unequal` and should not, and those that
    are `excused`; `all` the names of the arm.
    """
    ours, theirs = reference.starts, arm.starts
    shared = [name for name in theirs if name in ours and ours[name].shape == theirs[name].shape]
    apart = [name for name in shared if ours[name].hash != theirs[name].hash]
    free = excuse(reference, arm) is not None
    excused = [name for name in apart if free or _meant_otherwise(ours[name], theirs[name])]
    unequal = [name for name in apart if name not in excused]
    return {"all": list(theirs), "shared": shared, "unequal": unequal, "excused": excused}


def excuse(one: Arm, other: Arm) -> str | None:
    """Why all of an arm may start otherwise, if there is a reason."""
    if one.config["init"] != other.config["init"]:
        return "another init"
    if one.config["init"]["_target_"].endswith(".Own"):
        return "init=own draws in the order of the modules: arms are not paired in their start"
    if one.config["model"].get("n_layers") != other.config["model"].get("n_layers"):
        return "another depth, which some inits scale by"
    return None


def _meant_otherwise(one: Initial, other: Initial) -> bool:
    return (one.role, one.own) != (other.role, other.own)


def _started(reference: Arm, arm: Arm, found: dict[str, list[str]]) -> str:
    sizes = {name: _size(start) for name, start in arm.starts.items()}
    equal = [name for name in found["shared"] if name not in {*found["unequal"], *found["excused"]}]
    share = sum(sizes[name] for name in equal) / sum(sizes.values())
    words = f"{len(equal)} of {len(found['all'])} tensors, {share:.0%} of the numbers, start as in {reference.name}"
    if found["excused"]:
        why = excuse(reference, arm) or "their role or own start is another"
        words += f"; {len(found['excused'])} may start otherwise ({why})"
    if found["unequal"]:
        words += f"; these should and do not: {', '.join(found['unequal'][:5])}"
    return words


def _size(start: Initial) -> int:
    size = 1
    for n in start.shape:
        size *= n
    return size


def _word(value: Any) -> str:
    if isinstance(value, dict):
        name = str(value.get("_target_", "")).rpartition(".")[2]
        keys = " ".join(f"{key}={shown(item)}" for key, item in value.items() if not key.startswith("_"))
        return f"{name}({keys})"
    return value[:12] if isinstance(value, str) and len(value) == 64 else shown(value)
