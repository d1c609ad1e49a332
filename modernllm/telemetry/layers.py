"""Which layer a module or parameter belongs to, and how that is called: names that a tracker sorts by depth."""

from __future__ import annotations

import re
from collections.abc import Iterable

from torch import nn

NUMBER = re.compile(r"(?:^|\.)(\d+)(?:\.|$)")
SILENT = {"module", "blocks", "sublayers", "joins", "attention", "feedforward", "attend", "act", "router"}
"""Parts of a path that say nothing that the layer and the series do not."""


class Layers:
    """`blocks.3.sublayers.attention.q.weight` is of `layer.03`, by the first number in it; what has none goes by its
    owner (`embedding`).
    """

    def __init__(self, paths: Iterable[str]):
        numbers = [int(found[1]) for path in paths if (found := NUMBER.search(path))]
        self.width = max(2, len(str(max(numbers, default=0))))

    def of(self, parameter: str) -> str:
        """The layer of a parameter."""
        if found := NUMBER.search(parameter):
            return self.name(int(found[1]))
        first, *rest = parameter.split(".")
        return (".".join(rest[:-1]) if first == "module" else first) or "model"

    def name(self, number: int) -> str:
        return f"layer.{number:0{self.width}}"

    def place(self, module: str) -> str:
        """The layer of a module and what sets it apart there: `layer.03`, `layer.03.experts.1`."""
        found = NUMBER.search(module)
        if not found:
            return module.removeprefix("module.") or "model"
        rest = [part for part in module[found.end(1) :].split(".") if part and part not in SILENT]
        return ".".join([self.name(int(found[1])), *rest])


def blocks(model: nn.Module) -> list[nn.Module]:
    """The members of the longest outermost list of different modules of one class: the blocks of a deep network, else
    none.
    """
    found: list[nn.Module] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.ModuleList | nn.Sequential) and not NUMBER.search(name):
            members = list(module)
            alike = len({type(member) for member in members}) == 1 and len(set(members)) == len(members)
            if alike and len(members) > len(found):
                found = members
    return found
