"""Axes side by side: the first values make the first run, the second values the second."""

from __future__ import annotations

from collections.abc import Sequence

from modernllm.config.errors import ConfigError
from modernllm.sweep.axes import Axis, crossed, listed


class Zip:
    """Axes in `cross` stand apart: every run is made with each of their values."""

    def __init__(self, *, cross: list[str]):
        self.cross = cross

    def __call__(self, axes: Sequence[Axis]) -> list[tuple[str, ...]]:
        apart = [axis for axis in axes if axis.key in self.cross]
        beside = [axis for axis in axes if axis not in apart]
        values = listed(beside, "sweep=zip")
        lengths = {axis.key: len(axis.values) for axis in beside if axis.varies}
        if len(set(lengths.values())) > 1:
            told = ", ".join(f"{key} has {length}" for key, length in lengths.items())
            raise ConfigError(f"sweep=zip goes through all axes side by side, with as many values each: {told}")
        length = max(lengths.values(), default=1)
        columns = [column if len(column) > 1 else column * length for column in values]
        return crossed(list(zip(*columns, strict=True)) if columns else [()], apart, axes)
