"""Looking before all seeds have run: stop when a rule decides, when going on is vain, or at the last look."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
from jaxtyping import Float

from modernllm.claims.judgement import Judgement
from modernllm.claims.rules import Rule
from modernllm.claims.statistics.paired import paired
from modernllm.claims.statistics.sequential import check_looks, look_alpha


@dataclass(frozen=True)
class Look:
    """`reason`: the rule decided, it is futile to go on, this was the last look, or there is `next` to run."""

    reason: Literal["decided", "futile", "last", "continue"]
    judgement: Judgement
    next: int | None
    """Seeds in all at the next look."""

    @property
    def stop(self) -> bool:
        return self.reason != "continue"


def fitting(looks: Sequence[int], seeds: int) -> tuple[int, ...]:
    """ValueError unless they are looks that end with all of so many seeds."""
    planned = check_looks(looks)
    if planned[-1] != seeds:
        words = ",".join(map(str, planned))
        raise ValueError(
            f"looks={words}: the claim has {seeds} evaluation seeds, and the last look is at all of them; end with "
            f"{seeds}, or change seeds.evaluation"
        )
    return planned


def look(
    rule: Rule, differences: Float[np.ndarray, " n"], *, looks: Sequence[int], contrasts: int = 1, blind: bool = False
) -> Look:
    """Judge the seeds so far at this look's corrected level, in a claim of that many contrasts.

    Futility (the plain 90 % interval inside the margin) stops, but does not decide: what the rule said at the
    corrected level stays, and is usually inconclusive. It can only make a false "supported" rarer. Equivalence is
    never futile. ValueError where the number of seeds is no look: looking in between is what the levels exclude.
    """
    planned, n = check_looks(looks), len(differences)
    if n not in planned:
        raise ValueError(f"{n} seeds, but looks={list(planned)}: look only where it was planned")
    judgement = rule.judge(differences, level=1 - look_alpha(planned, contrasts), blind=blind)
    if judgement.verdict != "inconclusive":
        return Look("decided", judgement, None)
    if n == planned[-1]:
        return Look("last", judgement, None)
    if not blind and rule.futile(paired(differences)):
        return Look("futile", judgement, None)
    return Look("continue", judgement, planned[planned.index(n) + 1])
