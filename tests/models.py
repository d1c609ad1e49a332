"""Tiny models by name. Groups and choices are read from configs/, so a new file is tested by itself."""

from __future__ import annotations

from copy import deepcopy
from functools import cache, partial
from pydoc import locate
from typing import Any

import torch
from torch import Tensor

from modernllm.batch import Batch
from modernllm.config.build import build, build_model, resolve
from modernllm.config.compose import CONFIG_DIR, compose
from modernllm.config.tree import Choice, read_tree
from modernllm.init import named_generator
from modernllm.linear import parameter_roles
from modernllm.model import Decoder

LENGTH, VOCAB = 32, 61
SIZES = ("model.dim=32", "model.n_layers=2", "model.n_heads=4", f"model.context_length={LENGTH}")


def _is_component(choice: Choice) -> bool:
    """Part of the model, or its initialisation; `size` is a set of numbers and names no class."""
    return choice.target is not None and choice.package.startswith(("model.", "init", "_global_"))


GROUPS: dict[str, list[str]] = {
    group: list(choices)
    for group, choices in read_tree([CONFIG_DIR]).items()
    if choices and all(map(_is_component, choices.values()))
}
FOREIGN = {"init=own"}
"""Choices for models of other hands; ours refuse them."""


def choices(*groups: str) -> list[str]:
    """`norm=rmsnorm`, ... of these groups."""
    return [f"{group}={name}" for group in groups for name in GROUPS[group]]


CHOICES = [choice for choice in choices(*GROUPS) if choice not in FOREIGN]


def label(value: object) -> str:
    """How a list of overrides is called in the id of a test."""
    return (" ".join(value) or "default") if isinstance(value, list) else str(value)


@cache
def _config(overrides: tuple[str, ...]) -> dict[str, Any]:
    return resolve(compose([*SIZES, *overrides]))


def config(*overrides: str) -> dict[str, Any]:
    return deepcopy(_config(overrides))


def paired(*choices: str) -> dict[str, Any]:
    """The configuration of some choices, by merging what each changes: composing hundreds takes a minute."""
    merged, default = config(), _config(())
    found = {choice.partition("=")[0]: _config((choice,)) for choice in choices}
    for changed in found.values():
        merged["init"] = changed["init"] if changed["init"] != default["init"] else merged["init"]
        for key, node in changed["model"].items():
            if node != default["model"].get(key):
                merged["model"][key] = node
    for group, chosen in found.items():  # what is named itself wins over what another choice picks
        section = merged if group == "init" else merged["model"]
        section[group] = (chosen if group == "init" else chosen["model"])[group]
    return merged


def made(cfg: dict[str, Any], seed: int = 0, **supplied: Any) -> Decoder:
    """The model of a configuration, initialised, in eval mode."""
    model, _ = build_model({**cfg["model"], "vocab_size": VOCAB, **supplied})
    assert isinstance(model, Decoder)
    build(cfg["init"], "init")(model, seed)
    return model.eval()


def made_fast(cfg: dict[str, Any], seed: int = 0, **supplied: Any) -> Decoder:
    """The same, several times faster: without checks, of which Hydra's partials repeat some in every call."""
    model = _instantiated({**cfg["model"], "vocab_size": VOCAB, **supplied})()
    _instantiated(cfg["init"])(model, seed)
    return model.eval()


def _instantiated(node: Any) -> Any:
    if not isinstance(node, dict):
        return node
    target: Any = locate(node["_target_"])
    made = partial(target, **{key: _instantiated(value) for key, value in node.items() if key[0] != "_"})
    return made if node.get("_partial_") else made()


@cache
def _tiny(overrides: tuple[str, ...], seed: int) -> Decoder:
    return made(_config(overrides), seed)


def tiny(*overrides: str, seed: int = 0) -> Decoder:
    """The model of these overrides; a copy, because to build one is slow."""
    return deepcopy(_tiny(overrides, seed))


def awake(model: Decoder) -> Decoder:
    """The model, where something starts at zero with that drawn, so that every part of it shows in the logits."""
    for name, p, role in parameter_roles(model):
        if role in ("stream", "head", "scale") and not p.any():
            with torch.no_grad():
                p.normal_(0, p.shape[-1] ** -0.5, generator=named_generator(0, f"{name} awake"))
    return model


def windows(rows: int = 4, length: int = LENGTH, seed: int = 0) -> Batch:
    """Uniform random tokens and their targets."""
    draw = torch.Generator().manual_seed(seed)
    return Batch.from_windows(torch.randint(VOCAB, (rows, length + 1), generator=draw))


def close(actual: Tensor, expected: Tensor, tolerance: float = 1e-5) -> None:
    """Equal up to `tolerance` of the largest entry."""
    expected = expected.detach()
    torch.testing.assert_close(actual.detach(), expected, rtol=0, atol=tolerance * float(expected.abs().max()))
