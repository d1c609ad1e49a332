"""The words of `-m` as axes: a key, and the values that it takes."""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import product

from hydra.core.override_parser.types import Glob, IntervalSweep, Override

from modernllm.config.errors import ConfigError
from modernllm.config.nearest import did_you_mean
from modernllm.config.tree import Tree


@dataclass(frozen=True)
class Interval:
    """`interval(low, high)`; the logarithm is uniform with `tag(log, ...)`."""

    low: float
    high: float
    logarithmic: bool

    def draw(self, generator: random.Random) -> float:
        if self.logarithmic:
            return math.exp(generator.uniform(math.log(self.low), math.log(self.high)))
        return generator.uniform(self.low, self.high)


@dataclass(frozen=True)
class Axis:
    """`values` are whole overrides, `key=value`; a word that is no sweep is an axis of one value."""

    key: str
    values: tuple[str, ...]
    interval: Interval | None = None

    @property
    def varies(self) -> bool:
        return self.interval is not None or len(self.values) > 1


def read_axis(override: Override, tree: Tree) -> Axis:
    """ConfigError names an override that lists no values."""
    key, text, value = override.get_key_element(), override.input_line, override.value()
    if not override.is_sweep_override():
        return Axis(key, (f"{key}={override.get_value_element_as_str()}",))
    if override.is_hydra_override():
        raise ConfigError(f"{text}: Hydra's own settings are the same for every run of a sweep")
    if isinstance(value, IntervalSweep):
        return Axis(key, (), _interval(value, text or key))
    if isinstance(value, Glob):
        if override.key_or_group not in tree:
            near = did_you_mean(override.key_or_group, tree)
            raise ConfigError(f"{text}: glob(...) runs over the choices of a group{near}")
        found = value.filter(list(tree[override.key_or_group]))
    else:
        found = list(override.sweep_string_iterator())
    if not found:
        group = override.key_or_group
        known = f"; {group} has {', '.join(tree[group])}" if group in tree else ""
        raise ConfigError(f"{text}: no value at all{known}")
    return Axis(key, tuple(f"{key}={each}" for each in found))


def _interval(value: IntervalSweep, text: str) -> Interval:
    low, high, logarithmic = float(value.start or 0), float(value.end or 0), "log" in value.tags
    if not low < high or (logarithmic and low <= 0):
        raise ConfigError(f"{text}: an interval runs from a smaller to a larger number" + ", above 0" * logarithmic)
    return Interval(low, high, logarithmic)


def listed(axes: Sequence[Axis], why: str) -> list[tuple[str, ...]]:
    """The values of every axis. ConfigError if one is an interval, which only `sweep=random` can draw from."""
    for axis in axes:
        if axis.interval:
            raise ConfigError(
                f"{axis.key}: an interval has no values to list for {why}; "
                f"write {axis.key}=a,b,c or range(a,b,step), or draw from it with sweep=random"
            )
    return [axis.values for axis in axes]


def crossed(jobs: Sequence[Sequence[str]], axes: Sequence[Axis], order: Sequence[Axis]) -> list[tuple[str, ...]]:
    """Every job with every combination of `axes`, the words of each in the order of `order`."""
    place = {axis.key: number for number, axis in enumerate(order)}
    return [
        tuple(sorted((*job, *extra), key=lambda word: place[word.partition("=")[0]]))
        for job in jobs
        for extra in product(*listed(axes, "every run"))
    ]
