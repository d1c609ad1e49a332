"""What one rule says about one contrast, with all that a reader needs to doubt it."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any, Literal

Word = Literal["supported", "refuted", "inconclusive"]
SYMBOLS = {"exact": "value", "cost": "ratio"}
"""What `mean` is; a difference in all other kinds."""


@dataclass(frozen=True, kw_only=True)
class Judgement:
    """`interval` has the confidence `level`, `inner` 2 · level - 1 (90 % for 95 %).

    Numbers are in the unit of `values`, nats but for exact checks and costs. None is what cannot be known, as the
    interval of one seed.
    """

    verdict: Word
    kind: str
    n: int
    mean: float
    level: float
    margin: float
    values: tuple[float, ...]
    """One a seed."""
    sd: float | None = None
    """Paired: of the differences."""
    interval: tuple[float, float] | None = None
    inner: tuple[float, float] | None = None
    mde: float | None = None
    """Minimum detectable effect of these seeds at a power of 80 %."""
    seeds_needed: int | None = None
    """In all, for an effect of `margin` at a power of 80 %."""
    p: float | None = None
    """Of the t-test behind the rule, before any correction."""
    sign_flip_p: float | None = None
    sign_flip_floor: float | None = None
    """The smallest p that n seeds can reach in the sign-flip test."""
    smallest_margin: float | None = None
    """That would have passed, where sameness is claimed."""
    blind: bool = False
    """Two arms failed at some seed, so nothing was concluded from their sameness."""
    obstacle: str | None = None
    """Why it stays inconclusive whatever the number of seeds."""
    flags: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """For example: n=6, Δ=-0.004 [-0.018, +0.010], MDE 0.019; 16 seeds would resolve δ=0.01."""
        return self.said(self.way_out if self.verdict == "inconclusive" else "")

    def said(self, way_out: str = "") -> str:
        """The numbers, what would decide, and the flags."""
        tail, flags = f"; {way_out}" if way_out else "", f" ({', '.join(self.flags)})" if self.flags else ""
        if self.kind == "exact":
            return f"{'' if self.n == 1 else f'farthest of {self.n} values: '}{self.estimate}{flags}"
        mde = "" if self.mde is None else f", MDE {self.mde:.{self._digits}f}"
        level = "" if self.interval is None or self.level == 0.95 else f" at {100 * self.level:.4g} %"
        return f"n={self.n}, {SYMBOLS.get(self.kind, 'Δ')}={self.estimate}{level}{mde}{tail}{flags}"

    @property
    def _digits(self) -> int:
        """Three decimals, or two significant digits of the margin."""
        return max(3, 1 - math.floor(math.log10(self.margin))) if self.margin > 0 else 3

    @property
    def estimate(self) -> str:
        """The mean and its interval, for example: -0.004 [-0.018, +0.010]."""
        if self.kind == "exact":
            return f"{self.mean:.4g}"
        sign = "" if self.kind == "cost" else "+"
        mean = f"{self.mean:{sign}.{self._digits}f}"
        if self.interval is None:
            return f"{mean}, no interval"
        low, high = (f"{end:{sign}.{self._digits}f}" for end in self.interval)
        return f"{mean} [{low}, {high}]"

    @property
    def way_out(self) -> str:
        """What would decide where this did not."""
        if self.kind == "cost":
            return "more timings would tell"
        if self.n == 1:
            return "one seed is an anecdote: run several"
        if self.mde is None:
            return "seeds that agree to the last digit are no repeats"
        if self.obstacle:
            return self.obstacle
        if self.seeds_needed is None:
            return f"no feasible number of seeds would resolve δ={self.margin:g}"
        if self.seeds_needed <= self.n:
            return f"{self.n} seeds resolve δ={self.margin:g}, but the difference lies too near a bound of the rule"
        return f"{self.seeds_needed} seeds would resolve δ={self.margin:g}"

    def to_json(self) -> dict[str, Any]:
        """Strict JSON: no number in it is NaN or infinite."""
        found = {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}
        return found | {"sentence": self.sentence}
