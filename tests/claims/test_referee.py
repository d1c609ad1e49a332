"""The referee as an instrument: how often its rules err where nothing is, and see what is there.

Every rate is held against the exact one. For normal differences each word of a rule is a union of intervals of the
mean, given the sample's spread, so that its probability is one integral over the chi distribution. 5,000 repetitions,
a band that holds 99 % of such counts, fixed seeds.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy import stats

from modernllm.claims.looks import look
from modernllm.claims.rules import Equivalence, Interaction, NonInferiority, Rule, Stability, Superiority
from modernllm.claims.stability import capped, lr_regret
from modernllm.claims.statistics.equivalence import tost
from modernllm.claims.statistics.multiplicity import bonferroni_level, holm
from modernllm.claims.statistics.paired import paired
from modernllm.claims.statistics.power import minimum_detectable_effect, seeds_needed, tost_power
from modernllm.claims.statistics.sequential import look_alpha, pocock_alpha
from modernllm.claims.statistics.signflip import sign_flip_floor, sign_flip_p

REPETITIONS = 5000
SIGMA = 0.01
D = 0.02
EVERYWHERE = math.inf
Regions = Callable[[np.ndarray, np.ndarray], list[tuple[np.ndarray | float, np.ndarray | float]]]
"""From the half-widths of the outer and the inner interval to intervals of the mean."""


def draw(mean: float, n: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(mean, SIGMA, size=(REPETITIONS, n))


def in_band(hits: np.ndarray, rate: float) -> bool:
    """Whether the count lies in the central 99 % of Binomial(repetitions, rate)."""
    low, high = stats.binom.interval(0.99, hits.size, rate)
    return bool(low <= hits.sum() <= high)


def exact_rate(regions: Regions, mean: float, n: int, level: float) -> float:
    """E over s of P(mean of the sample in one of the regions); s runs through 20,000 quantiles of the chi."""
    quantiles = (np.arange(20_000) + 0.5) / 20_000
    s = SIGMA * stats.chi.ppf(quantiles, n - 1) / math.sqrt(n - 1)
    outer, inner = (stats.t.ppf(p, n - 1) * s / math.sqrt(n) for p in ((1 + level) / 2, level))
    law = stats.norm(mean, SIGMA / math.sqrt(n))
    inside = [np.maximum(law.cdf(high) - law.cdf(low), 0) for low, high in regions(outer, inner)]
    return float(np.sum(inside, axis=0).mean())


REGIONS: dict[tuple[str, str], Regions] = {
    ("superiority", "supported"): lambda h, i: [(-EVERYWHERE, np.minimum(-h, -D)), (h - D, -h)],
    ("superiority", "refuted"): lambda h, i: [(h, EVERYWHERE), (np.maximum(h - D, -h), np.minimum(D - h, h))],
    ("equivalence", "supported"): lambda h, i: [(i - D, D - i)],
    ("equivalence", "refuted"): lambda h, i: [(-EVERYWHERE, -D - h), (D + h, EVERYWHERE)],
    ("non_inferiority", "supported"): lambda h, i: [(-EVERYWHERE, D - i)],
    ("non_inferiority", "refuted"): lambda h, i: [(D + h, EVERYWHERE)],
    ("stability", "supported"): lambda h, i: [(np.maximum(h, D), EVERYWHERE)],
    ("stability", "refuted"): lambda h, i: [(-EVERYWHERE, -h), (np.maximum(i - D / 2, -h), D / 2 - i)],
    ("interaction", "supported"): lambda h, i: [(D + h, EVERYWHERE)],
    ("interaction", "refuted"): lambda h, i: [(-EVERYWHERE, -h), (np.maximum(i - D / 2, -h), D / 2 - i)],
}
RULES = [
    Superiority(D),
    Equivalence(D),
    NonInferiority(D),
    Stability(D, D / 2, covers_critical=True),
    Interaction(D, D / 2, covers_critical=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("mean", [0.0, D, -D, D / 2, 2 * D, -2 * D])
@pytest.mark.parametrize(("n", "level"), [(3, 0.95), (6, 0.95), (10, 0.9875)])
def test_every_word_comes_as_often_as_it_should(rule: Rule, mean: float, n: int, level: float) -> None:
    words = rule.decide(paired(draw(mean, n)), level)
    for word in ("supported", "refuted"):
        assert in_band(words == word, exact_rate(REGIONS[rule.kind, word], mean, n, level)), word


def wrong(rule: Rule, mean: float, n: int, word: str) -> float:
    """The exact rate of a word, at 95 %."""
    return exact_rate(REGIONS[rule.kind, word], mean, n, 0.95)


@pytest.mark.parametrize("n", [3, 4, 6, 10, 16])
def test_false_words_stay_below_their_rate(n: int) -> None:
    """At the worst truth that makes each word false."""
    superior, same, no_worse, stable, interacts = RULES
    assert wrong(superior, 0.0, n, "supported") <= 0.025 + 1e-6
    assert wrong(superior, -D, n, "refuted") <= 0.05 + 1e-6
    assert wrong(same, D, n, "supported") <= 0.05 + 1e-6
    assert wrong(same, -D, n, "supported") <= 0.05 + 1e-6
    assert wrong(same, D, n, "refuted") <= 0.025 + 1e-6
    assert wrong(no_worse, D, n, "supported") == pytest.approx(0.05, abs=1e-4)
    assert wrong(stable, 0.0, n, "supported") <= 0.025 + 1e-6
    assert wrong(stable, D, n, "refuted") <= 0.05 + 1e-6
    assert wrong(interacts, D, n, "supported") == pytest.approx(0.025, abs=1e-4)


@pytest.mark.parametrize("side", [-1, 1])
@pytest.mark.parametrize("n", [6, 12, 30])
def test_tost_at_its_margin(n: int, side: int) -> None:
    """At |effect| = margin, not at 0: there it passes with alpha where the sample is large."""
    passes = np.asarray(tost(paired(draw(side * D, n)), D).p) < 0.05
    assert in_band(passes, wrong(Equivalence(D), D, n, "supported"))
    assert in_band(passes, 0.05)


def test_planted_effects_are_seen() -> None:
    superior, same, no_worse, stable, interacts = RULES
    for rule, mean in ((superior, -2 * D), (same, 0.0), (no_worse, 0.0), (stable, 3 * D), (interacts, 3 * D)):
        assert np.mean(rule.decide(paired(draw(mean, 6)), 0.95) == "supported") > 0.95, rule.kind
    for rule, mean in ((superior, 2 * D), (same, 2 * D + D), (no_worse, 3 * D), (stable, -2 * D), (interacts, -2 * D)):
        assert np.mean(rule.decide(paired(draw(mean, 6)), 0.95) == "refuted") > 0.95, rule.kind


@pytest.mark.parametrize(("n", "level"), [(3, 0.95), (6, 0.95), (6, 0.99375), (12, 0.95)])
def test_the_detectable_effect_is_found_four_times_of_five(n: int, level: float) -> None:
    low, high = paired(draw(minimum_detectable_effect(SIGMA, n, level), n)).interval(level)
    assert in_band((np.asarray(low) > 0) | (np.asarray(high) < 0), 0.8)


def test_the_seeds_needed_are_enough_and_one_less_is_not() -> None:
    n = seeds_needed(0.008, SIGMA)
    assert n == 15
    found = [np.asarray(paired(draw(0.008, seeds)).p_value()) < 0.05 for seeds in (n, n - 2)]
    assert found[0].mean() > 0.79
    assert found[1].mean() < 0.79


@pytest.mark.parametrize(("margin", "n"), [(0.02, 3), (0.01, 6), (0.01, 11), (0.006, 6)])
def test_power_of_tost(margin: float, n: int) -> None:
    assert in_band(np.asarray(tost(paired(draw(0.0, n)), margin).p) < 0.05, tost_power(margin, SIGMA, n))


NO_MARGIN = Superiority(1e-9)
"""Every mean is then of interest: what is left is the t-interval."""


@pytest.mark.parametrize("m", [1, 3, 8])
def test_the_best_of_several_null_variants(m: int) -> None:
    """Each variant with runs of its own: 1 - (1 - alpha / m)^m of the claims have a false word."""
    differences = np.random.default_rng(m).normal(size=(REPETITIONS, m, 6))
    false = (NO_MARGIN.decide(paired(differences), bonferroni_level(m)) != "inconclusive").any(axis=1)
    assert in_band(false, 1 - (1 - 0.05 / m) ** m)


def test_null_variants_that_share_their_reference() -> None:
    losses = np.random.default_rng(0).normal(size=(REPETITIONS, 9, 6))
    sample = paired(losses[:, 1:] - losses[:, :1])
    claims = (NO_MARGIN.decide(sample, bonferroni_level(8)) != "inconclusive").any(axis=1)
    plain = (NO_MARGIN.decide(sample, 0.95) != "inconclusive").any(axis=1)
    assert claims.mean() < 0.05
    assert plain.mean() > 0.2  # what it would be without


def test_holm_errs_as_rarely_and_sees_more() -> None:
    effects = np.array([0, 0, 0, 0, 0, 0, 2.0, 2.0])
    differences = np.random.default_rng(0).normal(effects[:, None], size=(REPETITIONS, 8, 6))
    p = np.asarray(paired(differences).p_value())
    adjusted = np.array([holm(row) for row in p])
    assert (adjusted[:, :6] < 0.05).any(axis=1).mean() < 0.05
    assert (adjusted[:, 6:] < 0.05).mean() > (8 * p[:, 6:] < 0.05).mean()


LOOKS = (3, 6, 9)


def stopped(differences: np.ndarray, rule: Rule, contrasts: int = 1) -> np.ndarray:
    """The word at which each repetition stops: the first decision at a look, futility left aside."""
    level = 1 - look_alpha(LOOKS, contrasts)
    words = np.full(len(differences), "inconclusive")
    for n in LOOKS:
        words = np.where(words == "inconclusive", rule.decide(paired(differences[:, :n]), level), words)
    return words


def test_three_looks_err_no_more_than_one() -> None:
    differences = draw(0.0, 9, seed=1)
    assert in_band(stopped(differences, NO_MARGIN) != "inconclusive", 0.05)
    assert in_band(stopped(differences, NO_MARGIN, contrasts=4) != "inconclusive", 0.05 / 4)
    same = stopped(draw(D, 9, seed=3), Equivalence(D)) == "supported"
    assert same.mean() <= stats.binom.ppf(0.995, REPETITIONS, 0.05) / REPETITIONS
    peeked = np.any([np.asarray(paired(differences[:, :n]).p_value()) < 0.05 for n in LOOKS], axis=0)
    assert peeked.mean() > 0.09  # plain tests at the same looks


def test_pocock_holds_where_seeds_are_many() -> None:
    looks = (30, 60, 90)
    differences = draw(0.0, 90)
    false = np.any([np.asarray(paired(differences[:, :n]).p_value()) < pocock_alpha(looks) for n in looks], axis=0)
    assert in_band(false, 0.05)


def test_looks_with_a_margin_and_futility() -> None:
    """One repetition after the other, as a flow does it; futility can only make a false support rarer."""
    differences = draw(0.0, 9, seed=2)[:400]
    at_once = stopped(differences, Superiority(D))
    for row, word in zip(differences, at_once, strict=True):
        taken = (look(Superiority(D), row[:n], looks=LOOKS) for n in LOOKS)
        found = next(each for each in taken if each.stop)
        assert found.judgement.verdict == word or found.reason == "futile"
        assert found.judgement.verdict != "supported" or word == "supported"


@pytest.mark.parametrize("kind", ["normal", "laplace", "standard_cauchy"])
@pytest.mark.parametrize(("n", "rate"), [(3, 0.0), (5, 0.0), (6, 2 / 64), (8, 6 / 128), (9, 12 / 256)])
def test_sign_flips_are_exact_for_any_symmetric_noise(kind: str, n: int, rate: float) -> None:
    """p takes the values k · 2 / 2^n, each equally often: at most 0.05 for the largest such k."""
    differences = getattr(np.random.default_rng(n), kind)(size=(REPETITIONS, n))
    p = np.asarray(sign_flip_p(differences))
    assert p.min() >= sign_flip_floor(n)
    assert in_band(p <= 0.05, rate)


def grids(stalls: tuple[float, float], n: int, seed: int = 0) -> np.ndarray:
    """Capped losses [repetition, arm, lr, seed]: both arms follow one curve, but stall at the highest of four rates
    with these probabilities.
    """
    rng = np.random.default_rng(seed)
    shape = (REPETITIONS, 2, 4, n)
    losses = np.array([2.4, 2.2, 2.3, 2.6])[:, None] + rng.normal(0, SIGMA, size=shape)
    gone = rng.uniform(size=(REPETITIONS, 2, n)) < np.array(stalls)[:, None]
    losses[:, :, 3] = np.where(gone, np.nan, losses[:, :, 3])
    return capped(losses, np.full(shape, 5.0) + rng.normal(0, 0.02, size=shape))


def gains(stalls: tuple[float, float], n: int) -> np.ndarray:
    regret = lr_regret(grids(stalls, n))
    return regret[:, 1] - regret[:, 0]


@pytest.mark.parametrize("n", [4, 6, 10])
@pytest.mark.parametrize("stall", [0.0, 0.2, 0.5, 1.0])
def test_regret_of_arms_that_stall_alike(stall: float, n: int) -> None:
    """Stalls make the differences far from normal: the false rate rises to 0.028 instead of 0.025, not further."""
    words = Stability().decide(paired(gains((stall, stall), n)), 0.95)
    assert np.mean(words == "supported") <= stats.binom.ppf(0.995, REPETITIONS, 0.028) / REPETITIONS


def test_regret_of_an_arm_that_stalls() -> None:
    """(5 - 2.6) / 4 = 0.6 nats."""
    differences = gains((0.0, 1.0), 4)
    assert differences.mean() == pytest.approx(0.6, abs=1e-3)
    assert np.mean(Stability().decide(paired(differences), 0.95) == "supported") == 1.0
    assert np.mean(Stability().decide(paired(-differences), 0.95) == "refuted") == 1.0
    assert np.mean(Stability().decide(paired(gains((0.0, 0.8), 8)), 0.95) == "supported") > 0.85
