"""From the words of a command line to arms."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from modernllm.sweep.plan import Planned, Planner
from modernllm.sweep.request import Requests


class Arms:
    """`(words, common) -> Planned`: the run that all these overrides ask for. Those in `common` are every arm's, so
    that none of them sets them itself. `config_dirs` have choices of one's own. ConfigError where there is no such run.
    """

    def __init__(self, config_dirs: tuple[str, ...] = ()) -> None:
        self._requests, self._planner = Requests(config_dirs), Planner()

    def __call__(self, words: Sequence[str], common: Sequence[str] = ()) -> Planned:
        return self._planner(*self._requests([*common, *words], words))

    def all(self, words: Mapping[str, Sequence[str]], common: Sequence[str] = ()) -> dict[str, Planned]:
        """By name."""
        return {name: self(own, common) for name, own in words.items()}
