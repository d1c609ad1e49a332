"""The arithmetic of verdicts: by hand, and by scipy and statsmodels."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import integrate, stats
from statsmodels.stats.contingency_tables import mcnemar
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower
from statsmodels.stats.proportion import proportion_confint
from statsmodels.stats.weightstats import DescrStatsW, ttost_paired

from modernllm.claims.statistics.equivalence import non_inferiority_p, tost
from modernllm.claims.statistics.multiplicity import bonferroni, bonferroni_level, holm
from modernllm.claims.statistics.paired import Interval, Paired, paired
from modernllm.claims.statistics.power import (
    minimum_detectable_effect,
    non_inferiority_seeds_needed,
    seeds_needed,
    t_power,
    tost_power,
    tost_seeds_needed,
)
from modernllm.claims.statistics.rates import clopper_pearson, sign_test
from modernllm.claims.statistics.sequential import check_looks, look_alpha, pocock_alpha, t_alpha
from modernllm.claims.statistics.signflip import sign_flip_floor, sign_flip_p
from modernllm.claims.statistics.timing import ratio_of_medians

LOSSES = np.array([2.41, 2.38, 2.45, 2.40, 2.36, 2.44])
OTHERS = np.array([2.43, 2.41, 2.44, 2.43, 2.40, 2.45])
DIFFERENCES = LOSSES - OTHERS
samples = st.lists(st.floats(-5, 5).map(lambda x: round(x, 4)), min_size=2, max_size=10).map(np.array)


def test_a_sample_by_hand() -> None:
    sample = paired(np.array([1.0, 2.0, 3.0]))  # mean 2, sd 1, t_{0.975, 2} = 4.302653
    low, high = sample.interval(0.95)
    assert (sample.mean, sample.sd, sample.n) == (2.0, 1.0, 3)
    assert high - 2 == pytest.approx(4.302653 / math.sqrt(3), rel=1e-6)
    assert 2 - low == pytest.approx(high - 2)
    assert sample.p_value() == pytest.approx(0.07417990)  # t = 3.4641 with 2 degrees of freedom


@pytest.mark.parametrize(("n", "wide", "narrow"), [(3, 2.48, 1.69), (5, 1.24, 0.95), (6, 1.05, 0.82), (16, 0.53, 0.44)])
def test_half_widths_in_units_of_the_sd(n: int, wide: float, narrow: float) -> None:
    sample = Paired(0.0, 1.0, n)
    assert sample.interval(0.95).high == pytest.approx(wide, abs=0.006)
    assert sample.interval(0.9).high == pytest.approx(narrow, abs=0.006)


def test_interval_and_p_of_scipy_and_statsmodels() -> None:
    sample = paired(DIFFERENCES)
    for level in (0.9, 0.95, 0.99):
        assert tuple(sample.interval(level)) == pytest.approx(DescrStatsW(DIFFERENCES).tconfint_mean(1 - level))
    assert sample.p_value() == pytest.approx(stats.ttest_rel(LOSSES, OTHERS).pvalue)
    assert sample.p_below(0.01) == pytest.approx(stats.ttest_1samp(DIFFERENCES, 0.01, alternative="less").pvalue)
    assert sample.p_above(-0.1) == pytest.approx(stats.ttest_1samp(DIFFERENCES, -0.1, alternative="greater").pvalue)


@pytest.mark.parametrize("differences", [[0.3], [0.0, 0.0, 0.0], [0.1, 0.1], [0.1 + 1e-16, 0.1, 0.1]])
def test_no_repeats_no_interval(differences: list[float]) -> None:
    sample = paired(np.array(differences))
    assert tuple(sample.interval(0.95)) == (-np.inf, np.inf)
    assert sample.p_value() == 1.0
    assert sample.p_below(100.0) == sample.p_above(-100.0) == 0.5
    assert tost(sample, 100.0).p == 0.5


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_numbers_that_are_none_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="not all finite"):
        paired(np.array([0.1, bad]))
    with pytest.raises(ValueError, match="no seeds"):
        paired(np.array([]))


def test_leading_axes_are_repetitions() -> None:
    many = np.random.default_rng(0).normal(size=(2, 3, 5))
    low, high = paired(many).interval(0.95)
    flips = np.asarray(sign_flip_p(many))
    assert np.shape(low) == np.shape(high) == flips.shape == (2, 3)
    for i, j in itertools.product(range(2), range(3)):
        assert np.asarray(low)[i, j] == pytest.approx(paired(many[i, j]).interval(0.95).low)
        assert flips[i, j] == sign_flip_p(many[i, j])


@given(samples)
def test_sign_flips_by_enumeration(differences: np.ndarray) -> None:
    sums = [abs(np.dot(signs, differences)) for signs in itertools.product([1, -1], repeat=len(differences))]
    assert sign_flip_p(differences) == np.mean(np.array(sums) >= abs(differences.sum()) - 1e-9)


def test_sign_flips_of_scipy() -> None:
    done = stats.permutation_test((DIFFERENCES,), np.mean, permutation_type="samples", n_resamples=np.inf)
    # in hundredths -2 -3 +1 -3 -4 -1: |sum| 12, reached with all signs alike or one of the two ones turned
    assert sign_flip_p(DIFFERENCES) == done.pvalue == 6 / 64


@pytest.mark.parametrize(("n", "floor"), [(1, 1.0), (3, 0.25), (5, 0.0625), (6, 0.03125), (20, 2**-19)])
def test_few_seeds_cannot_reach_a_small_p(n: int, floor: float) -> None:
    assert sign_flip_p(np.linspace(1, 2, n)) == sign_flip_floor(n) == floor


def test_sign_flips_end_at_24_seeds() -> None:
    with pytest.raises(ValueError, match="25 seeds: the exact sign-flip test takes 1 to 24"):
        sign_flip_p(np.ones(25))


def test_holm_and_bonferroni_by_hand() -> None:
    p = np.array([0.04, 0.01, 0.03])  # sorted: 3 · 0.01, max(2 · 0.03), max(1 · 0.04)
    assert holm(p) == pytest.approx([0.06, 0.03, 0.06])
    assert bonferroni(p) == pytest.approx([0.12, 0.03, 0.09])
    assert bonferroni_level(1) == 0.95
    assert bonferroni_level(4) == 0.9875
    with pytest.raises(ValueError, match="contrasts=0"):
        bonferroni_level(0)


@pytest.mark.parametrize("m", [1, 2, 5, 12])
def test_holm_and_bonferroni_of_statsmodels(m: int) -> None:
    p = np.random.default_rng(m).uniform(size=m) ** 3
    assert holm(p) == pytest.approx(multipletests(p, method="holm")[1], abs=1e-12)
    assert bonferroni(p) == pytest.approx(multipletests(p, method="bonferroni")[1])


@pytest.mark.parametrize("margin", [0.005, 0.02, 0.03, 0.04])
def test_tost_of_statsmodels(margin: float) -> None:
    found = tost(paired(DIFFERENCES), margin)
    p, lower, upper = ttost_paired(LOSSES, OTHERS, -margin, margin)
    assert found.p == pytest.approx(p)
    assert non_inferiority_p(paired(DIFFERENCES), margin) == pytest.approx(upper[1])
    assert lower[1] < 1


@given(samples, st.floats(0.01, 6))
def test_tost_passes_exactly_where_its_interval_is_inside(differences: np.ndarray, margin: float) -> None:
    found = tost(paired(differences), margin)
    if abs(found.p - 0.05) > 1e-9:
        assert (found.p < 0.05) == found.interval.inside(margin) == (found.smallest_margin < margin)


def test_the_smallest_margin_would_just_have_passed() -> None:
    smallest = float(tost(paired(DIFFERENCES), 0.01).smallest_margin)
    assert smallest == pytest.approx(0.0347, abs=1e-4)  # mean -0.02, sd 0.0179, half-width 0.82 sd
    assert tost(paired(DIFFERENCES), smallest * 1.0001).p < 0.05 < tost(paired(DIFFERENCES), smallest * 0.9999).p


def test_an_interval_that_touches_the_margin_is_not_inside() -> None:
    assert not Interval(-0.02, 0.01).inside(0.02)
    assert not Interval(-0.01, 0.02).inside(0.02)
    assert Interval(-0.0199, 0.0199).inside(0.02)


@pytest.mark.parametrize("n", [3, 6, 10, 30])
@pytest.mark.parametrize("level", [0.95, 0.99, 0.99375])
def test_detectable_effect_of_statsmodels(n: int, level: float) -> None:
    found = minimum_detectable_effect(0.5, n, level)
    assert TTestPower().power(found / 0.5, n, 1 - level) == pytest.approx(0.8, abs=1e-6)


@pytest.mark.parametrize(("effect", "sd"), [(0.01, 0.0133), (0.02, 0.01), (0.1, 0.02), (0.01, 0.1), (1.0, 0.001)])
def test_seeds_needed_are_the_fewest_with_the_power(effect: float, sd: float) -> None:
    n = seeds_needed(effect, sd)
    assert n is not None
    assert TTestPower().power(effect / sd, n, 0.05) >= 0.8
    assert n == 2 or TTestPower().power(effect / sd, n - 1, 0.05) < 0.8


def test_power_by_known_numbers() -> None:
    assert t_power(0.0, 6, 0.95) == pytest.approx(0.05)
    assert seeds_needed(0.01, 0.01334) == 16  # the normal approximation says 14
    assert seeds_needed(0.02, 0.01) == 5
    assert seeds_needed(0.01, 0.01) == 10
    assert seeds_needed(1e-5, 1.0) is None
    for unknown in (0.0, math.nan, math.inf):
        assert seeds_needed(0.01, unknown) is None
    assert minimum_detectable_effect(0.01, 1) == minimum_detectable_effect(0.0, 6) == math.inf


@pytest.mark.parametrize(("margin", "n"), [(0.012, 3), (0.012, 6), (0.03, 3), (0.008, 16), (0.001, 6), (0.001, 900)])
def test_tost_power_is_the_integral_over_the_spread(margin: float, n: int) -> None:
    """Over the variance instead of the standard deviation, on a plain grid."""
    variance = 1e-4 * np.linspace(1e-6, 12, 200_001)
    half = stats.t.ppf(0.95, n - 1) * np.sqrt(variance / n)
    mass = stats.chi2.pdf(variance * (n - 1) / 1e-4, n - 1) * (n - 1) / 1e-4
    inside = np.clip(2 * stats.norm.cdf((margin - half) * math.sqrt(n) / 0.01) - 1, 0, None)
    assert tost_power(margin, 0.01, n) == pytest.approx(integrate.trapezoid(inside * mass, variance), abs=1e-4)


def test_sameness_needs_more_seeds_than_a_one_sided_look() -> None:
    assert tost_seeds_needed(0.02, 0.0075) == 3  # 0.8019
    assert tost_seeds_needed(0.01, 0.01) == 11
    assert non_inferiority_seeds_needed(0.01, 0.01) == 8
    expected = TTestPower().solve_power(effect_size=1.0, alpha=0.05, power=0.8, alternative="larger")
    assert math.ceil(expected) == 8


def test_exact_interval_of_a_rate() -> None:
    assert tuple(clopper_pearson(0, 6)) == pytest.approx((0, 1 - 0.025 ** (1 / 6)))
    assert tuple(clopper_pearson(6, 6)) == pytest.approx((0.025 ** (1 / 6), 1))
    for count in range(8):
        assert tuple(clopper_pearson(count, 7)) == pytest.approx(proportion_confint(count, 7, method="beta"))
    with pytest.raises(ValueError, match="7 of 6"):
        clopper_pearson(7, 6)
    with pytest.raises(ValueError, match="0 of 0"):
        clopper_pearson(0, 0)


@given(st.integers(0, 12), st.integers(0, 12))
def test_sign_test_of_statsmodels_and_scipy(first: int, second: int) -> None:
    found = sign_test(first, second)
    assert found == pytest.approx(mcnemar(np.array([[3, first], [second, 4]])).pvalue, abs=1e-9)
    if first + second:
        assert found == pytest.approx(stats.binomtest(first, first + second).pvalue)


def test_four_pairs_cannot_show_a_rate() -> None:
    assert sign_test(4, 0) == 0.125
    assert sign_test(5, 0) == 0.0625
    assert sign_test(0, 0) == 1.0


def test_ratio_of_medians() -> None:
    rng = np.random.default_rng(1)
    slow = rng.gamma(9, size=200) + 20  # a machine that is slow for a while, for both
    together = ratio_of_medians(0.9 * slow, slow)
    assert together.ratio == pytest.approx(0.9)
    assert tuple(together.interval) == pytest.approx((0.9, 0.9))  # pairs are resampled together
    shuffled = rng.permutation(0.9 * slow)
    apart = ratio_of_medians(shuffled, slow)
    assert apart.ratio == pytest.approx(0.9)
    assert 0.85 < apart.interval.low < 0.89
    assert 0.91 < apart.interval.high < 0.95
    assert apart == ratio_of_medians(shuffled, slow)  # its resamples are the same each time


@pytest.mark.parametrize(("variant", "reference"), [([1.0] * 19, [1.0] * 19), ([1.0] * 20, [1.0] * 21)])
def test_too_few_timings_are_refused(variant: list[float], reference: list[float]) -> None:
    with pytest.raises(ValueError, match="at least 20"):
        ratio_of_medians(np.array(variant), np.array(reference))


@pytest.mark.parametrize("bad", [0.0, math.nan, math.inf])
def test_odd_timings_are_refused(bad: float) -> None:
    with pytest.raises(ValueError, match="positive and finite"):
        ratio_of_medians(np.array([1.0] * 19 + [bad]), np.ones(20))


@pytest.mark.parametrize(
    ("looks", "alpha"), [((6,), 0.05), ((3, 6), 0.0294), ((3, 6, 9), 0.0221), ((3, 6, 9, 12), 0.0182)]
)
def test_pocock_constants(looks: tuple[int, ...], alpha: float) -> None:
    assert pocock_alpha(looks) == pytest.approx(alpha, abs=5e-5)
    assert pocock_alpha(tuple(7 * n for n in looks)) == pytest.approx(pocock_alpha(looks))  # only shares count


def test_two_looks_by_the_bivariate_normal() -> None:
    """P(|Z1| < z, |Z2| < z) with correlation sqrt(4 / 10)."""
    z = stats.norm.isf(pocock_alpha((4, 10)) / 2)
    both = stats.multivariate_normal([0, 0], [[1, math.sqrt(0.4)], [math.sqrt(0.4), 1]])
    assert both.cdf([z, z], lower_limit=[-z, -z]) == pytest.approx(0.95, abs=1e-5)


def test_t_tests_of_few_seeds_pay_more_for_a_look() -> None:
    assert t_alpha((3, 6, 9), 0.05) == pytest.approx(0.0197, abs=2e-4)
    assert look_alpha([3, 6, 9]) == t_alpha((3, 6, 9), 0.05) < pocock_alpha((3, 6, 9))
    assert look_alpha([3, 6, 9], contrasts=4) < pocock_alpha((3, 6, 9)) / 4
    assert t_alpha((6,), 0.05) == pytest.approx(0.05, abs=1e-3)


@pytest.mark.parametrize("looks", [(), (1, 2), (3, 3), (6, 3)])
def test_looks_grow(looks: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="growing numbers of seeds"):
        check_looks(looks)
    with pytest.raises(ValueError, match="contrasts=0"):
        look_alpha((3, 6), contrasts=0)
