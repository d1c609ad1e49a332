"""Every rule's every outcome, on both sides of each of its boundaries."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from modernllm.claims.rules import Cost, Equivalence, Exact, Interaction, NonInferiority, Rule, Stability, Superiority
from modernllm.claims.statistics.paired import Paired, paired, t_quantile

D = 0.02
N = 6
SHARE = t_quantile(0.95, N - 1) / t_quantile(0.975, N - 1)
"""Half-width of the 90 % interval in units of the 95 % one: 0.784."""
E = 1e-9


def between(low: float, high: float, level: float = 0.95) -> Paired:
    """The sample whose interval of this level has these ends."""
    half = (high - low) / 2
    return Paired((low + high) / 2, half * math.sqrt(N) / t_quantile((1 + level) / 2, N - 1), N)


def word(rule: Rule, sample: Paired, level: float = 0.95, blind: bool = False) -> str:
    return str(rule.decide(sample, level, blind))


@pytest.mark.parametrize(
    ("low", "high", "expected", "flags"),
    [
        (-0.050, -0.010, "supported", []),
        (-0.050, -E, "supported", []),
        (-0.050, +E, "inconclusive", []),
        (-0.038 - E, -0.002, "supported", []),  # mean -0.02
        (-0.037, -0.002, "inconclusive", []),  # better, but perhaps by less than matters
        (-0.020 - E, -0.002, "inconclusive", []),
        (-0.020 + E, -0.002, "supported", ["negligible"]),
        (-0.020 + E, -E, "supported", ["negligible"]),
        (-0.020 + E, +E, "refuted", ["no effect of interest"]),
        (-0.010, 0.010, "refuted", ["no effect of interest"]),
        (-0.020 - E, 0.010, "inconclusive", []),
        (-0.010, 0.020 + E, "inconclusive", []),
        (-E, 0.020 - E, "refuted", ["no effect of interest"]),
        (E, 0.010, "refuted", ["reversed", "negligible"]),
        (E, 0.050, "refuted", ["reversed"]),
        (-E, 0.050, "inconclusive", []),
        (-0.500, 0.500, "inconclusive", []),
    ],
)
def test_superiority(low: float, high: float, expected: str, flags: list[str]) -> None:
    rule, sample = Superiority(D), between(low, high)
    assert word(rule, sample) == expected
    assert rule.flags(sample, 0.95) == flags


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-0.020 + E, 0.020 - E, "supported"),  # of the 90 % interval
        (-0.020 - E, 0.010, "inconclusive"),
        (-0.010, 0.020 + E, "inconclusive"),
        (0.010, 0.019, "supported"),  # there, yet within the margin
        (0.030, 0.040, "refuted"),
        (-0.040, -0.030, "refuted"),  # too different is too different
        (0.010, 0.030, "inconclusive"),
        (-0.500, 0.500, "inconclusive"),
    ],
)
def test_equivalence(low: float, high: float, expected: str) -> None:
    assert word(Equivalence(D), between(low, high, 0.9)) == expected


@pytest.mark.parametrize(
    ("low", "high", "equivalent", "no_worse"),
    [
        (0.020 + E, 0.030, "refuted", "refuted"),  # of the 95 % interval
        (0.020 - E, 0.030, "inconclusive", "inconclusive"),
        (-0.030, -0.020 - E, "refuted", "supported"),
        (-0.030, -0.020 + E, "inconclusive", "supported"),
        (-0.300, 0.010, "inconclusive", "supported"),
        (0.001, 0.040, "inconclusive", "inconclusive"),  # 0 < CI_lo < δ < CI_hi
    ],
)
def test_refuted_sameness_needs_the_wider_interval(low: float, high: float, equivalent: str, no_worse: str) -> None:
    assert word(Equivalence(D), between(low, high)) == equivalent
    assert word(NonInferiority(D), between(low, high)) == no_worse


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [(-0.5, 0.02 - E, "supported"), (-0.5, 0.02 + E, "inconclusive"), (-0.1, -0.05, "supported")],
)
def test_non_inferiority(low: float, high: float, expected: str) -> None:
    assert word(NonInferiority(D), between(low, high, 0.9)) == expected


@pytest.mark.parametrize(
    ("low", "high", "stable", "interacts", "flags"),
    [
        (0.10 + E, 0.50, "supported", "supported", []),
        (0.10 - E, 0.50, "supported", "inconclusive", []),
        (E, 0.20 + E, "supported", "inconclusive", []),  # mean 0.1
        (-E, 0.30, "inconclusive", "inconclusive", []),
        (E, 0.19, "inconclusive", "inconclusive", ["there, but below the margin"]),
        (-0.30, -E, "refuted", "refuted", ["reversed"]),
        (-0.30, E, "inconclusive", "inconclusive", []),
        (0.01, 0.03, "refuted", "refuted", ["there, but below the margin", "no effect of interest"]),
    ],
)
def test_stability_and_interaction(low: float, high: float, stable: str, interacts: str, flags: list[str]) -> None:
    sample = between(low, high)
    assert word(Stability(covers_critical=True), sample) == stable
    assert word(Interaction(covers_critical=True), sample) == interacts
    assert Stability(covers_critical=True).flags(sample, 0.95) == flags


@pytest.mark.parametrize("make", [Stability, Interaction])
@pytest.mark.parametrize(
    ("low", "high", "inside"), [(-0.05 + E, 0.05 - E, True), (-0.05 - E, 0.02, False), (-0.02, 0.05 + E, False)]
)
def test_no_instability_shows_only_where_it_would_have(
    make: type[Stability], low: float, high: float, inside: bool
) -> None:
    sample = between(low, high, 0.9)
    assert word(make(covers_critical=True), sample) == ("refuted" if inside else "inconclusive")
    assert word(make(), sample) == "inconclusive"
    assert make().flags(sample, 0.95) == (["critical levels not covered"] if inside else [])


RULES = [
    Superiority(D),
    Equivalence(D),
    NonInferiority(D),
    Stability(covers_critical=True),
    Stability(0.02, 0.02, covers_critical=True),
    Interaction(covers_critical=True),
]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@pytest.mark.parametrize("differences", [[-9.0], [9.0], [0.0], [-9.0, -9.0, -9.0], [9.0] * 3, [0.0] * 8])
def test_one_seed_and_copies_of_one_say_nothing(rule: Rule, differences: list[float]) -> None:
    judgement = rule.judge(np.array(differences), level=0.95)
    assert judgement.verdict == "inconclusive"
    assert judgement.interval is judgement.inner is judgement.p is judgement.mde is judgement.seeds_needed is None
    assert judgement.flags == (("no spread",) if len(differences) > 1 else ())
    assert "no interval" in judgement.sentence


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@given(
    mean=st.floats(-0.3, 0.3),
    sd=st.floats(0, 0.3),
    n=st.integers(2, 12),
    level=st.floats(0.51, 0.9999),
)
def test_no_sample_gets_two_words(rule: Rule, mean: float, sd: float, n: int, level: float) -> None:
    """`words` asserts that support and refutation exclude each other; a blind sample can only become undecided."""
    seeing = word(rule, Paired(mean, sd, n), level)
    assert seeing in ("supported", "refuted", "inconclusive")
    assert word(rule, Paired(mean, sd, n), level, blind=True) in (seeing, "inconclusive")


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.kind)
@given(mean=st.floats(-0.3, 0.3), sd=st.floats(0, 0.3), n=st.integers(2, 12))
def test_more_contrasts_never_turn_a_word_round(rule: Rule, mean: float, sd: float, n: int) -> None:
    sample = Paired(mean, sd, n)
    assert {word(rule, sample), word(rule, sample, level=0.995)} != {"supported", "refuted"}


def test_arms_that_both_fail_are_not_the_same() -> None:
    small = between(-0.01, 0.01)
    assert word(Superiority(D), small) == "refuted"
    assert word(Superiority(D), small, blind=True) == "inconclusive"
    assert word(Equivalence(D), small, blind=True) == "inconclusive"
    assert word(NonInferiority(D), small, blind=True) == "inconclusive"
    assert word(Stability(covers_critical=True), small, blind=True) == "inconclusive"
    assert word(Superiority(D), between(-0.9, -0.1), blind=True) == "supported"
    assert word(Superiority(D), between(0.1, 0.9), blind=True) == "refuted"
    assert word(Equivalence(D), between(0.1, 0.9), blind=True) == "refuted"
    assert word(Stability(), between(0.1, 0.9), blind=True) == "supported"
    flagged = Equivalence(D).judge(np.array([0.001, 0.0, 0.002]), level=0.95, blind=True)
    assert flagged.flags == ("two arms failed at some seed",)


def test_a_judgement_shows_its_grounds() -> None:
    differences = -0.004 + 0.012178 * np.array([-1.0, 1.0, -1.0, 1.0, -1.0, 1.0])
    judgement = Superiority(0.01).judge(differences, level=0.95)
    sample = paired(differences)
    assert judgement.mean == pytest.approx(-0.004)
    assert judgement.sd == pytest.approx(float(sample.sd))
    assert judgement.interval == pytest.approx(tuple(sample.interval(0.95)))
    assert judgement.inner == pytest.approx(tuple(sample.interval(0.9)))
    assert (judgement.n, judgement.level, judgement.margin) == (6, 0.95, 0.01)
    assert judgement.values == tuple(differences)
    assert (judgement.sign_flip_p, judgement.sign_flip_floor) == (40 / 64, 1 / 32)
    assert judgement.smallest_margin is None
    assert judgement.sentence == "n=6, Δ=-0.004 [-0.018, +0.010], MDE 0.019; 16 seeds would resolve δ=0.01"


def test_equivalence_shows_what_would_have_passed() -> None:
    differences = np.array([0.001, -0.004, 0.003, 0.002])  # mean 0.0005, sd 0.0031
    judgement = Equivalence(0.02).judge(differences, level=0.95)
    assert judgement.verdict == "supported"
    assert judgement.inner is not None
    assert judgement.smallest_margin == pytest.approx(max(map(abs, judgement.inner)))
    assert judgement.smallest_margin == pytest.approx(0.00415, abs=1e-5)
    assert NonInferiority(0.02).judge(differences - 1, level=0.95).smallest_margin == pytest.approx(-0.99585, abs=1e-5)


@pytest.mark.parametrize(
    ("differences", "level", "end"),
    [
        ([0.01], 0.95, "n=1, Δ=+0.010, no interval; one seed is an anecdote: run several"),
        ([0.0, 0.0], 0.95, "no interval; seeds that agree to the last digit are no repeats (no spread)"),
        ([0.03, 0.0], 0.99, "[-0.940, +0.970] at 99 %, MDE 1.224; 56 seeds would resolve δ=0.01"),
        (
            [0.00295, -0.01295] * 4,
            0.95,
            "MDE 0.010; 8 seeds resolve δ=0.01, but the difference lies too near a bound of the rule",
        ),
        ([300.0, 0.0], 0.95, "no feasible number of seeds would resolve δ=0.01"),
        ([0.5, 0.4, 0.6], 0.95, "n=3, Δ=+0.500 [+0.252, +0.748], MDE 0.326 (reversed)"),
    ],
)
def test_sentences_name_the_way_out(differences: list[float], level: float, end: str) -> None:
    assert Superiority(0.01).judge(np.array(differences), level=level).sentence.endswith(end)


def test_small_margins_get_more_digits() -> None:
    sentence = Superiority(0.0005).judge(np.array([0.0001, -0.0002, 0.0004]), level=0.95).sentence
    assert "Δ=+0.00010 [-0.00065, +0.00085]" in sentence


def test_more_than_24_seeds_go_without_sign_flips() -> None:
    judgement = Superiority(0.01).judge(np.linspace(-1, 0.5, 25), level=0.95)
    assert judgement.sign_flip_p is judgement.sign_flip_floor is None
    assert judgement.verdict == "supported"


@pytest.mark.parametrize("level", [0.5, 1.0, 95.0, math.nan])
def test_levels_that_are_none(level: float) -> None:
    with pytest.raises(ValueError, match="level="):
        Superiority(D).judge(np.array([0.1, 0.2]), level=level)


@pytest.mark.parametrize("margin", [0.0, -0.1, math.inf, math.nan])
def test_margins_that_are_none(margin: float) -> None:
    with pytest.raises(ValueError, match="margin="):
        Superiority(margin)
    with pytest.raises(ValueError, match="negligible="):
        Stability(0.1, 0.2)


@pytest.mark.parametrize(
    ("values", "expected", "farthest"),
    [
        ([-0.5, -0.47], "supported", -0.47),
        ([-0.65, -0.35], "supported", -0.65),  # the ends belong to it
        ([-0.5, -0.3499], "refuted", -0.3499),
        ([-0.6501, -0.5], "refuted", -0.6501),
    ],
)
def test_exact(values: list[float], expected: str, farthest: float) -> None:
    judgement = Exact(-0.65, -0.35).judge(np.array(values))
    assert (judgement.verdict, judgement.mean, judgement.n) == (expected, farthest, 2)
    assert judgement.sentence == (
        f"farthest of 2 values: {farthest:.4g} ({'' if expected == 'supported' else 'not '}within -0.65 to -0.35)"
    )


@pytest.mark.parametrize("values", [[], [math.nan], [1.0, math.inf]])
def test_a_measurement_that_failed_refutes_nothing(values: list[float]) -> None:
    with pytest.raises(ValueError, match="an exact check needs finite numbers"):
        Exact(0.0, 1.0).judge(np.array(values))
    with pytest.raises(ValueError, match="smaller one first"):
        Exact(1.0, 0.0)


@pytest.mark.parametrize(("factor", "expected"), [(0.8, "supported"), (1.0, "inconclusive"), (1.25, "refuted")])
def test_cost(factor: float, expected: str) -> None:
    rng = np.random.default_rng(0)
    reference, variant = rng.gamma(50, size=(2, 200)) / 50
    judgement = Cost().judge(factor * variant, reference, level=0.95)
    assert judgement.verdict == expected
    assert judgement.mean == pytest.approx(factor, abs=0.06)
    assert judgement.sentence.startswith(f"n=200, ratio={judgement.mean:.3f} [")
