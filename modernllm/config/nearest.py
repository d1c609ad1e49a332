"""Did you mean: the existing names that are closest to one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def nearest(word: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` of `names`, best first. `word` may be only the end of a dotted name: lrr finds optimizer.lr."""
    names = list(dict.fromkeys(names))
    exact = [name for name in names if name == word or name.endswith(f".{word}")]
    if exact:
        return exact[:n]
    scores = {name: _likeness(word.lower(), name.lower()) for name in names}
    best = max(scores.values(), default=0.0)
    close = [name for name in names if scores[name] >= max(0.65, best - 0.08)]
    return sorted(close, key=lambda name: -scores[name])[:n]


def _likeness(word: str, name: str) -> float:
    """Of the whole name, or of the last part alone: that counts a little less if the sections differ."""
    section, _, last = word.rpartition(".")
    other_section, _, other = name.rpartition(".")
    ends = SequenceMatcher(None, last, other).ratio()
    if len(last) > 2 and other.startswith(last):
        ends = max(ends, 0.75)
    return ends if section == other_section else max(SequenceMatcher(None, word, name).ratio(), ends - 0.1)


def did_you_mean(word: str, names: Iterable[str], n: int = 3) -> str:
    """`; did you mean a, b or c?`, or nothing."""
    found = nearest(word, names, n)
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others) + ' or ' if others else ''}{last}?"
