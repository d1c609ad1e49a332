"""How often something happened. Description: 4 to 6 seeds cannot carry a test of rates."""

from __future__ import annotations

from scipy import special, stats

from modernllm.claims.statistics.paired import Interval


def clopper_pearson(count: int, n: int, level: float = 0.95) -> Interval:
    """Exact interval of a rate, from the quantiles of Beta(k, n - k + 1) and Beta(k + 1, n - k)."""
    if not 0 <= count <= n or n < 1:
        raise ValueError(f"{count} of {n}: a rate needs 0 <= count <= n and n >= 1")
    tail = (1 - level) / 2
    low = 0.0 if count == 0 else float(special.betaincinv(count, n - count + 1, tail))
    high = 1.0 if count == n else float(special.betaincinv(count + 1, n - count, 1 - tail))
    return Interval(low, high)


def sign_test(first: int, second: int) -> float:
    """Two-sided exact p of `first` pairs that went one way against `second` that went the other; ties do not count.

    With pairs (failed, not failed) this is the exact form of McNemar's test; with ordinal outcomes the sign test.
    """
    return float(min(1.0, 2 * stats.binom.cdf(min(first, second), first + second, 0.5))) if first + second else 1.0
