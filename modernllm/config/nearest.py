"""Did you mean: the existing names that are closest to one that does not exist."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import SequenceMatcher


def nearest(word: str, names: Iterable[str], n: int = 3) -> list[str]:
    """Up to `n` of `names`, best first. `word` may be the end of a dotted name: lrr finds optimizer.lr."""
    names = list(dict.fromkeys(names))
    exact = [name for name in names if name == word or name.endswith(f".{word}")]
    if exact:
        return exact[:n]
    scores = {name: _likeness(word.lower(), name.lower()) for name in names}
    best = max(scores.values(), default=0.0)
    close = [name for name in names if scores[name] >= max(0.65, best - 0.08)]
    return sorted(close, key=lambda name: -scores[name])[:n]


def _likeness(word: str, name: str) -> float:
    """Of what follows the sections that both share, or of the last part alone, which counts a little less."""
    words, names = word.split("."), name.split(".")
    while len(words) > 1 and len(names) > 1 and words[0] == names[0]:
        words, names = words[1:], names[1:]
    last, other = words[-1], names[-1]
    ends = SequenceMatcher(None, last, other).ratio()
    if min(len(last), len(other)) > 2 and (other.startswith(last) or last.startswith(other)):
        ends = max(ends, 0.75)
    return max(SequenceMatcher(None, ".".join(words), ".".join(names)).ratio(), ends - 0.1)


def did_you_mean(word: str, names: Iterable[str], n: int = 3) -> str:
    """`; did you mean a, b or c?`, or nothing."""
    found = nearest(word, names, n)
    if not found:
        return ""
    *others, last = found
    return f"; did you mean {', '.join(others) + ' or ' if others else ''}{last}?"
