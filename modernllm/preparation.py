"""Everything that a configuration names, built and checked before anything of the run is written."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn

from modernllm.batch import Batch
from modernllm.compilation import require_compiler
from modernllm.config.build import build, build_model
from modernllm.config.errors import ConfigError
from modernllm.cost import cost, executed_flops_per_token
from modernllm.data.cache import default_cache
from modernllm.data.held_out import windows_of
from modernllm.data.ngram import Floors, cached_floors
from modernllm.data.prepare import TokenizedCorpus, check_ids, prepare
from modernllm.data.windows import Windows
from modernllm.distributed import require_room
from modernllm.init import named_generator
from modernllm.logger import Logger
from modernllm.model import Decoder
from modernllm.position.loudness import loudness
from modernllm.precision import is_deterministic, pick_device, threads_each
from modernllm.runs import identity as identify

NEEDED = ("trainer.steps", "trainer.batch_size", "model.context_length")
"""What a size must say, whatever else it says."""


@dataclass(frozen=True)
class Asked:
    """What the command line said: the choice in every group, those that anyone would expect there, and the overrides
    by key. `origin` says on whose behalf: of which claim the run is a part.
    """

    choices: dict[str, str]
    expected: Mapping[str, str | None]
    overrides: dict[str, str]
    origin: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Text:
    """A tokenized corpus and the fixed list of windows that every run on it is measured on."""

    data: TokenizedCorpus
    validation: Batch
    hashes: dict[str, str]


@dataclass(frozen=True)
class Prepared:
    """What a run is made of, as it stands before its first step."""

    config: dict[str, Any]
    data: TokenizedCorpus
    model: nn.Module
    windows: Windows
    validation: Batch
    identity: dict[str, Any]
    dead: list[str]
    run_id: str
    logger: Logger
    parts: dict[str, Any]
    """What the trainer is given beside them: optimizer, schedule, telemetry."""


def settle(config: dict[str, Any]) -> torch.device:
    """Draw the seed if there is none, and pick the device. ConfigError if no size says how large the run is, ValueError
    if the machine lacks what it needs.
    """
    for key in NEEDED:
        section, _, name = key.partition(".")
        if config[section].get(name) is None:
            raise ConfigError(f"{key}: is not set; a size sets it, or {key}=...")
    if config["seed"] is None:
        config["seed"] = secrets.randbelow(2**31)
    device = pick_device(config["trainer"]["device"])
    require_room(config["trainer"], device)
    if config["trainer"]["compile"]:
        require_compiler(device)
    return device


def read_text(config: dict[str, Any]) -> Text:
    """The corpus as the tokenizer cuts it, from the cache where it is there. Sets a vocabulary size that is not set."""
    cache = Path(config["cache"]).expanduser() if config["cache"] else default_cache()
    data = prepare(build(config["data"], "data"), build(config["tokenizer"], "tokenizer"), cache)
    model = config["model"]
    model["vocab_size"] = model["vocab_size"] or data.tokenizer.vocab_size
    for side in ("train", "validation"):
        check_ids(getattr(data, side), model["vocab_size"], data.folder / f"{side}.bin")
    windows = windows_of(data.validation, config)
    hashes = {"corpus": data.corpus_hash, "tokenizer": data.tokenizer_hash, "validation": windows.hash}
    return Text(data, windows.batch, hashes)


def name_run(
    config: dict[str, Any], asked: Asked, text: Text, device: torch.device, dead: list[str]
) -> tuple[str, str]:
    """Run id, and the hash of everything that decides the result."""
    config_hash = identify.digest(identify.scientific(config, text.hashes, device.type, dead))
    return identify.run_name(asked.choices, asked.expected, dead, config["seed"], config_hash), config_hash


def prepare_run(config: dict[str, Any], asked: Asked) -> Prepared:
    """ValueError, before anything is written, if a part cannot be built or the parts do not fit together."""
    device = settle(config)
    text = read_text(config)
    data, length = text.data, config["model"]["context_length"]
    model, dead = make_model(config, device)
    windows = Windows(data.train, length, config["trainer"]["batch_size"], config["seed"])
    targets = text.validation.targets
    assert targets is not None
    floors = cached_floors(data.folder, data.train, text.validation.tokens, targets, config["model"]["vocab_size"])
    run_id, config_hash = name_run(config, asked, text, device, dead)
    identity = (
        describe(model, length, data, floors)
        | text.hashes
        | {
            "run_id": run_id,
            "config_hash": config_hash,
            "held_out": config["trainer"]["held_out"],
            "device": device.type,
            "numerics": numerics(config["trainer"], device),
            "choices": asked.choices,
            "overrides": asked.overrides,
            "origin": dict(asked.origin),
            "dead_switches": {group: asked.choices[group] for group in dead},
            **identify.environment(),
        }
    )
    steps = config["trainer"]["steps"]
    parts = {
        "optimizer": build(config["optimizer"], "optimizer", model=model),
        "schedule": build(config["schedule"], "schedule", steps=steps),
        "telemetry": build(config["telemetry"], "telemetry", model=model, steps=steps),
    }
    logger = build(config["logger"], "logger")
    return Prepared(config, data, model, windows, text.validation, identity, dead, run_id, logger, parts)


def make_model(config: dict[str, Any], device: torch.device) -> tuple[nn.Module, list[str]]:
    """With its initial values, which follow from the seed; and its dead switches."""
    # for models of other hands, which draw for themselves
    torch.manual_seed(named_generator(config["seed"], "model").initial_seed())
    model, dead = build_model(config["model"])
    build(config["init"], "init")(model, config["seed"])
    return model.to(device), dead


def numerics(trainer: dict[str, Any], device: torch.device) -> dict[str, Any]:
    """What the numbers were computed in."""
    return {
        "precision": trainer["precision"],
        "deterministic": is_deterministic(trainer["deterministic"], device),
        "compile": trainer["compile"],
        "ranks": trainer["ranks"],
        "threads": threads_each(trainer["threads"], trainer["ranks"]),
    }


def describe(model: nn.Module, length: int, data: TokenizedCorpus, floors: Floors) -> dict[str, Any]:
    found = cost(model, length)
    found["flops_per_token"]["executed"] = executed_flops_per_token(model, length)
    return found | {
        "position_loudness": loudness(model) if isinstance(model, Decoder) else None,
        "floors": {"unigram": floors.unigram, "bigram": floors.bigram},
        "text": data.meta,
    }
