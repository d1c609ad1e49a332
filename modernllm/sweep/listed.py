"""Runs from a file: a line a run, its overrides as on a command line; `#` starts a comment."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from itertools import product
from pathlib import Path

from modernllm.config.errors import ConfigError
from modernllm.sweep.axes import Axis, listed


class FromFile:
    """Each line with every combination of what the command line says beside it; the line wins."""

    def __init__(self, *, file: str):
        self.file = file

    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        beside = list(product(*listed(axes, "sweep=list")))
        return [(*_without(words, line), *line) for line in self._lines() for words in beside]

    def _lines(self) -> list[list[str]]:
        path = Path(self.file).expanduser()
        try:
            text = path.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConfigError(f"sweep.file={self.file}: cannot be read: {error}") from None
        lines = []
        for number, line in enumerate(text.splitlines(), 1):
            try:
                words = shlex.split(line, comments=True)
            except ValueError as error:
                raise ConfigError(f"sweep.file={self.file}, line {number}: {error}") from None
            if words:
                lines.append(words)
        if not lines:
            raise ConfigError(f"sweep.file={self.file}: no run in it; a line is overrides, as norm=layernorm seed=1")
        return lines


def _without(words: Sequence[str], line: Sequence[str]) -> list[str]:
    """The words of the command line whose keys the line does not set."""
    keys = {word.partition("=")[0] for word in line}
    return [word for word in words if word.partition("=")[0] not in keys]
