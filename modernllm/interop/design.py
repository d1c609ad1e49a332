"""A design of Hugging Face, as data: which of our choices it is, and what its keys and tensors are called."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from modernllm.interop.entries import Config, Entry, Untold
from modernllm.interop.facts import Facts, completed, composed, counted
from modernllm.interop.weights import Rule


@dataclass(frozen=True)
class Design:
    """`arch` is the nearest of ours, `entries` translate the configuration, `rules` the weights; `parts` are modules
    of both that compute the same without sharing parameters one to one, theirs -> ours.
    """

    model_type: str
    arch: str
    entries: tuple[Entry, ...]
    rules: tuple[Rule, ...]
    parts: Mapping[str, str] = field(default_factory=dict)

    def read(self, config: Config) -> tuple[Facts, list[str]]:
        """All facts, and a sentence for each key that ours has no words for."""
        facts: Facts = {}
        problems: list[str] = []
        for entry in self.entries:
            try:
                facts |= entry.read(config)
            except Untold as error:
                problems.append(str(error))
                facts |= error.facts
            except (KeyError, TypeError) as error:  # another entry has said that it is missing, or None
                problems.append(f"{error.args[0]}: is not said")
        return completed(counted(composed(f"arch={self.arch}")), facts), problems

    def write(self, facts: Facts) -> tuple[dict[str, Any], list[str]]:
        """Their configuration, and a sentence for each fact that theirs has no words for."""
        config: dict[str, Any] = {"model_type": self.model_type}
        problems: list[str] = []
        for entry in self.entries:
            try:
                config |= entry.write(facts)
            except Untold as error:
                problems.append(str(error))
            except KeyError as error:
                problems.append(f"{error.args[0]}: this design has it, and the model has not")
        return config, problems

    def modules(self, n_layers: int) -> Iterator[tuple[str, str]]:
        """Names of modules that compute the same: theirs, ours."""
        plain = [rule for rule in self.rules if type(rule) is Rule and len(rule.ours) == 1]
        joint = [Rule(theirs, (ours,)) for theirs, ours in self.parts.items()]
        for rule in (*plain, *joint):
            for theirs, (ours,) in rule.names(n_layers):
                yield theirs, ours


@cache
def designs() -> dict[str, Design]:
    """By Hugging Face's model type; one file of `designs/` each."""
    from modernllm.interop import designs as package

    names = [info.name for info in iter_modules(package.__path__)]
    found = [import_module(f"{package.__name__}.{name}") for name in names]
    made: list[Design] = [module.DESIGN for module in found if hasattr(module, "DESIGN")]
    return {design.model_type: design for design in made}
