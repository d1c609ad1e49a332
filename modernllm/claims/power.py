"""What a plan could find: the smallest effect that its seeds would detect, given how much seeds alone move a loss."""

from __future__ import annotations

import json
import math
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from modernllm.claims.analysis import contrasts
from modernllm.claims.statistics.multiplicity import ALPHA
from modernllm.claims.statistics.power import minimum_detectable_effect
from modernllm.claims.study import Study
from modernllm.runs.directory import write_atomically
from modernllm.runs.identity import digest

ASSUMED = 0.02
"""Nats. Paired differences at this size had standard deviations of 0.005 to 0.025 where they were measured."""


@dataclass(frozen=True)
class NoiseFloor:
    """Standard deviation of the baseline's loss over seeds, and of what it is the baseline."""

    sd: float
    n: int
    where: str


def floor_key(config: dict[str, Any]) -> str:
    """What a floor depends on: everything but the seed and the learning rate."""
    kept = {name: config[name] for name in ("model", "data", "tokenizer", "init", "schedule")}
    kept["optimizer"] = {key: value for key, value in config["optimizer"].items() if key != "lr"}
    trainer = {key: config["trainer"][key] for key in ("steps", "batch_size", "precision")}
    return digest([kept, trainer])[:16]


def floors(out: Path) -> dict[str, dict[str, Any]]:
    path = out / "noise_floor.json"
    if not path.exists():
        return {}
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is damaged ({error}): delete it, and scripts/noise_floor.py measures anew") from None


def keep_floor(out: Path, config: dict[str, Any], sd: float, n: int, where: str) -> None:
    """Beside the runs, where plans find it."""
    out.mkdir(parents=True, exist_ok=True)
    known = floors(out) | {floor_key(config): {"sd": sd, "n": n, "where": where, "time": time.time()}}
    write_atomically(out / "noise_floor.json", json.dumps(known, indent=2) + "\n")


def find_floor(out: Path, configs: list[dict[str, Any]]) -> NoiseFloor | None:
    """The floor that was measured for one of these configurations."""
    known = floors(out)
    for config in configs:
        if found := known.get(floor_key(config)):
            return NoiseFloor(found["sd"], found["n"], found["where"])
    return None


def detectable(study: Study, out: Path, seeds: int) -> str:
    """One sentence: the effect that so many seeds detect at 80 %, at the level that the claim's contrasts leave."""
    arms = list(study.claim.arms)
    cells = [name for name, cell in study.claim.cells.items() if cell.main]
    floor = find_floor(out, [study.planned(cell, arm).config for cell in cells for arm in arms])
    # the difference of two runs whose noises have nothing in common; what pairing removes comes on top
    terms = 4 if study.claim.kind == "interaction" else 2
    sd = (floor.sd if floor else ASSUMED / math.sqrt(2)) * math.sqrt(terms)
    level = 1 - ALPHA / contrasts(study.cells())
    effect = minimum_detectable_effect(sd, seeds, level)
    source = f"measured over {floor.n} seeds" if floor else "assumed; scripts/noise_floor.py measures it"
    told = f"{seeds} seeds detect {effect:.3f} nats at 80 % (seed noise {sd:.3f} in a difference, {source})"
    margin = study.rule.margin
    if effect > margin:
        needed = study.rule.seeds_needed(sd, level)
        told += f"; for the margin of {margin:g} {needed or 'more than 10,000'} seeds are needed"
    return told
