"""What must differ does: configurations, and what is made of them. A switch that changes nothing is named."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch

from modernllm.claims.preflight.arm import Arm
from modernllm.claims.preflight.certificate import Check
from modernllm.config.values import shown
from modernllm.runs.identity import RUN_LEVEL, digest

SECTIONS = ("model", "init", "optimizer", "schedule", "trainer")
"""What an arm may differ in; text and seed have their own checks."""
UNTRIED = (*RUN_LEVEL, "device", "validation_tokens")
"""Trainer keys of which no effect on training is expected."""
LATE = {
    "trainer.clip": "acts where a gradient is longer",
    "trainer.nonfinite": "acts on a step that is not finite",
}
"""Keys whose effect may come later than any rehearsal."""
ROUNDING = 1e-6
"""Relative change that a sum in another order makes."""

Path = tuple[str, ...]
ABSENT = object()


@dataclass(frozen=True)
class Difference:
    """Where two arms were first seen to differ; `rounding` if that is no more than another order of sums makes."""

    sentence: str
    rounding: bool = False


def check_configurations(arms: Sequence[Arm]) -> Check:
    """No two arms are one and the same run under different names."""
    hashes = {arm.name: digest(arm.science | {"seed": None}) for arm in arms}
    same = [(one, other) for one, other in combinations(arms, 2) if hashes[one.name] == hashes[other.name]]
    if not same:
        return Check("arms", True, f"{len(arms)} configurations, no two alike", {"hashes": hashes})
    sentences = []
    for one, other in same:
        unread = [".".join(path) for path in differing(one.config, other.config)]
        why = f"; what differs, {', '.join(unread)}, is read by nothing in them" if unread else ""
        sentences.append(f"{one.name} and {other.name} are the same run{why}")
    return Check("arms", False, "; ".join(sentences), {"hashes": hashes})


def check_alive(arms: Sequence[Arm]) -> tuple[Check, list[str]]:
    """Every two arms can be told apart by what they do; and warnings where only rounding tells them apart."""
    failures, told, warnings = [], {}, []
    for one, other in combinations(arms, 2):
        paths = [".".join(path) for path in differing(one.config, other.config)]
        found = difference(one, other)
        pair = f"{one.name} / {other.name}"
        if found:
            told[pair] = found.sentence
            if found.rounding:
                warnings.append(f"{pair} differ by no more than rounding: {found.sentence}")
        elif paths and set(paths) <= set(LATE):
            told[pair] = "; ".join(f"{path} {LATE[path]}" for path in paths)
            warnings.append(f"{pair} did not differ in the steps that were rehearsed: {told[pair]}")
        else:
            why = f"dead switch {', '.join(paths)}" if paths else "no key tells them apart"
            failures.append(f"{pair} do the same: {why} (the same outputs, schedule and first steps)")
    pairs = f"{len(told)} pair{'s' * (len(told) != 1)} told apart"
    sentence = "; ".join(failures) or f"{pairs}; {next(iter(told))}: {next(iter(told.values()))}"
    return Check("alive", not failures, sentence, {"differences": told}), warnings


def check_switches(arms: Sequence[Arm]) -> tuple[Check, list[str]]:
    """Every key in which an arm differs from the first one does something by itself. A key that does something in the
    first arm, and nothing in the arm that sets it, is a warning.
    """
    reference, dead, idle, tried = arms[0], [], [], 0
    for arm in arms[1:]:
        paths = list(differing(reference.config, arm.config))
        for path in paths:
            key = ".".join(path)
            tried += 1
            unread = [side.name for side in (arm, reference) if path[0] == "model" and path[1:2] in _groups(side)]
            if unread:
                dead.append(f"{key}, which nothing reads in {' and '.join(unread)}")
            elif len(paths) > 1 and key not in LATE and _does_nothing(arm, path, reference.config):
                if _does_nothing(reference, path, arm.config):
                    dead.append(f"{key}={_value(arm, path)}, which changes nothing in {arm.name}")
                else:
                    idle.append(f"{key}={_value(arm, path)} changes nothing in {arm.name}")
    if dead:
        return Check("switches", False, f"dead: {'; '.join(dead)}", {"dead": dead}), idle
    return Check("switches", True, f"{tried} differing keys, none dead", {"tried": tried}), idle


def difference(one: Arm, other: Arm) -> Difference | None:
    """How two arms are seen to differ: in outputs at the start, or else in their schedule, or else in the first
    training steps. Other parameters are named, but count only for what they do.
    """
    shapes = [{name: start.shape for name, start in arm.starts.items()} for arm in (one, other)]
    counts = " and ".join(f"{_count(each):,}" for each in shapes)
    also = f"; other parameters ({counts})" if shapes[0] != shapes[1] else ""
    if one.logits.shape != other.logits.shape:
        return Difference(f"logits of shape {tuple(one.logits.shape)} and {tuple(other.logits.shape)}{also}")
    if not torch.equal(one.logits, other.logits):
        change = float((one.logits - other.logits).abs().max() / one.logits.abs().max())
        small = change < ROUNDING and not _training_differs(one, other)
        return Difference(f"outputs at the start differ by {change:.1e} of the largest{also}", small)
    if one.curve != other.curve:
        return Difference(f"other learning rates over the steps{also}")
    ours, theirs = one.rehearsal, other.rehearsal
    if ours.losses != theirs.losses:
        words = f"losses of the first steps, {_list(ours.losses)} and {_list(theirs.losses)}{also}"
        return Difference(words, not _training_differs(one, other))
    shared = ours.norms.keys() & theirs.norms.keys()
    if any(ours.norms[name] != theirs.norms[name] for name in shared):
        return Difference(f"other gradients in the first steps{also}")
    if not also and ours.weights != theirs.weights:
        return Difference("other weights after the first steps")
    return None


def differing(one: dict[str, Any], other: dict[str, Any]) -> Iterator[Path]:
    """Paths of the smallest parts that can be exchanged: a key, or a whole component where its class is another."""
    for section in SECTIONS:
        for path in _differing(one[section], other[section], (section,)):
            if not (path[0] == "trainer" and path[1] in UNTRIED):
                yield path


def _differing(one: Any, other: Any, path: Path) -> Iterator[Path]:
    if one == other:
        return
    alike = isinstance(one, dict) and isinstance(other, dict) and one.get("_target_") == other.get("_target_")
    if not alike:
        yield path
        return
    for key in sorted({*one, *other}):
        yield from _differing(one.get(key, ABSENT), other.get(key, ABSENT), (*path, key))


def _does_nothing(arm: Arm, path: Path, source: dict[str, Any]) -> bool:
    """Whether the arm stays what it is with this one part as it stands in `source`; not if it cannot be built."""
    config = deepcopy(arm.config)
    section = config
    for key in path[:-1]:
        section = section[key]
    value = _at(source, path)
    if value is ABSENT:
        del section[path[-1]]
    else:
        section[path[-1]] = deepcopy(value)
    try:
        return difference(arm, Arm(f"{arm.name}, other {'.'.join(path)}", config, arm.asked)) is None
    except Exception:  # whatever a model of other hands makes of such a mixture
        return False


def _groups(arm: Arm) -> list[Path]:
    return [(group,) for group in arm.dead]


def _at(config: Any, path: Path) -> Any:
    for key in path:
        if not isinstance(config, dict) or key not in config:
            return ABSENT
        config = config[key]
    return config


def _value(arm: Arm, path: Path) -> str:
    value = _at(arm.config, path)
    if value is ABSENT:
        return "(not set)"
    return value["_target_"].rpartition(".")[2] if isinstance(value, dict) and "_target_" in value else shown(value)


def _training_differs(one: Arm, other: Arm) -> bool:
    """By more than rounding, in losses or in gradients, whose tensors are held against the largest of their step."""
    ours, theirs = one.rehearsal, other.rehearsal
    if any(abs(a - b) > ROUNDING * abs(a) for a, b in zip(ours.losses, theirs.losses, strict=True)):
        return True
    largest = [max(norms) for norms in zip(*ours.norms.values(), strict=True)]
    shared = [(ours.norms[name], theirs.norms[name]) for name in ours.norms if name in theirs.norms]
    return any(abs(a - b) > 10 * ROUNDING * most for pair in shared for a, b, most in zip(*pair, largest, strict=True))


def _count(shapes: dict[str, tuple[int, ...]]) -> int:
    return sum(torch.Size(shape).numel() for shape in shapes.values())


def _list(values: Sequence[float]) -> str:
    return " ".join(f"{value:.6g}" for value in values)
