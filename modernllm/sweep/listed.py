"""Runs from a file: a line a run, its overrides as on a command line; `#` starts a comment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from modernllm.config.check import COMMAND
from modernllm.config.errors import ConfigError
from modernllm.config.overrides import parse
from modernllm.config.tree import CONFIG_DIR, read_tree
from modernllm.sweep.axes import Axis, listed


class FromFile:
    """Each line with every combination of what the command line says beside it; the line wins."""

    def __init__(self, *, file: str):
        self.file = file

    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        beside = list(product(*listed(axes, "sweep=list")))
        return [
            (*words, *line)
            for line in self._lines()
            for words in dict.fromkeys(_without(words, line) for words in beside)
        ]

    def _lines(self) -> list[list[str]]:
        path = Path(self.file).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"sweep.file={self.file}: cannot be read: {error}") from None
        lines = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                if words := shlex.split(line, comments=True):
                    lines.append(_one_run(words))
            except ValueError as error:
                raise ConfigError(f"sweep.file={self.file}, line {number}: {error}") from None
        if not lines:
            raise ConfigError(f"sweep.file={self.file}: no run in it; a line is overrides, as norm=layernorm seed=1")
        return lines


def _one_run(words: list[str]) -> list[str]:
    """ValueError where they are several runs, or no run's at all."""
    for override in parse(words, read_tree([CONFIG_DIR])):
        if override.is_sweep_override():
            raise ConfigError(f"{override.input_line} is several runs, and a line is one")
        if override.key_or_group.partition(".")[0] in COMMAND:
            raise ConfigError(f"{override.input_line} belongs on the command line: it is the same for all runs")
    return words


def _without(words: Sequence[str], line: Sequence[str]) -> tuple[str, ...]:
    """The words of the command line whose keys the line does not set."""
    keys = {word.partition("=")[0] for word in line}
    return tuple(word for word in words if word.partition("=")[0] not in keys)
