"""What tells the runs of a command from each other."""

from __future__ import annotations

from collections.abc import Mapping, Sequence


def varying(asked: Sequence[Mapping[str, str]]) -> dict[str, list[str]]:
    """The keys in which what was asked for differs, each with its value in every run."""
    keys = dict.fromkeys(key for overrides in asked for key in overrides)
    values = {key: [overrides.get(key, "") for overrides in asked] for key in keys}
    return {key: column for key, column in values.items() if len(set(column)) > 1}
