"""Few combinations in which every pair of choices of different groups occurs: a covering array of strength two."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

Pair = frozenset[str]


def covering(groups: Mapping[str, Sequence[str]], refused: Collection[Pair]) -> list[tuple[str, ...]]:
    """Combinations of one choice of each group, none with a refused pair, that have every other pair. Always the same.

    Greedy, as in AETG (Cohen et al., 1997): each begins with a pair that is missing and takes, group by group, the
    choice with the most missing pairs.
    """
    order = sorted(groups, key=lambda group: -len(groups[group]))
    missing = {
        frozenset((a, b)): None
        for first, second in combinations(order, 2)
        for a in groups[first]
        for b in groups[second]
        if frozenset((a, b)) not in refused
    }
    found = []
    while missing:
        taken = list(next(iter(missing)))
        for group in order:
            if not any(choice in groups[group] for choice in taken):
                fitting = [c for c in groups[group] if not any(frozenset((c, t)) in refused for t in taken)]
                taken.append(max(fitting, key=lambda c: sum(frozenset((c, t)) in missing for t in taken)))
        for pair in map(frozenset, combinations(taken, 2)):
            missing.pop(pair, None)
        found.append(tuple(sorted(taken)))
    return found
