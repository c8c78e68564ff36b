"""The joint test of two arms: laws against direct simulation and closed forms, error rate, power, inversions."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import expit
from scipy.stats import beta, binom, hypergeom, norm
from statsmodels.stats.proportion import proportion_confint

from dpaudit.mechanisms import Laplace
from dpaudit.verify.bounds import JointTest, Tradeoff, gaussian_delta, gaussian_epsilon
from dpaudit.verify.bounds.joint_test import (
    DRAWS,
    INVERSION_DRAWS,
    MOST_DRAWS,
    PEAK_RANKS,
    SPREAD_SHARE,
    _tail,
    peak,
    spread_ranks,
    spread_samples,
)

IDENTICAL = Tradeoff.of_points([0.0], [0.0])


def gaussian(mu: float) -> Tradeoff:
    return Tradeoff.of(lambda epsilons: np.array([gaussian_delta(mu, float(e)) for e in epsilons]))


def laplace(epsilon: float) -> Tradeoff:
    return Tradeoff.of(lambda e: np.maximum(-np.expm1((np.asarray(e) - epsilon) / 2.0), 0.0))


def test_sampled_counts_have_the_law_of_two_sorted_samples() -> None:
    """Against X* = Phi(z - mu) drawn one by one beside sorted uniform Y: means and covariances."""
    m, n, mu, draws = 30, 20, 0.8, 20_000
    ranks, rng = np.array([1, 4, 10, 20]), np.random.default_rng(1)
    sampled = spread_samples(rng, draws, m, ranks, n, gaussian(mu))
    x, y = norm.sf(rng.normal(mu, 1.0, (draws, m))), np.sort(rng.random((draws, n)), axis=1)
    direct = (x[:, :, None] <= y[:, None, ranks - 1]).sum(axis=1)
    error = 5.0 * np.sqrt(2.0 / draws)
    assert np.abs(sampled.mean(axis=0) - direct.mean(axis=0)).max() < error * direct.std(axis=0).max()
    assert np.cov(sampled.T) == pytest.approx(np.cov(direct.T), rel=0.1, abs=0.2)


@pytest.mark.parametrize(("k", "j", "m", "n"), [(3, 1, 10, 10), (9, 3, 20, 15), (60, 30, 100, 100)])
def test_tails_of_equal_arms_are_those_of_drawing_without_replacement(k: int, j: int, m: int, n: int) -> None:
    """N_j >= k: of the first k + j - 1 of all m + n ranks, at least k are of the m."""
    exact = float(hypergeom.sf(k - 1, m + n, m, k + j - 1))
    assert exact <= _tail(k, j, m, n, IDENTICAL) <= 1.15 * exact


def outcome(name: str, rng: np.random.Generator, size: int) -> tuple[np.ndarray, np.ndarray]:
    if name == "laplace":
        noise = Laplace(scale=1.0, dimension=1)
        # orders outputs as the privacy loss does, without its ties
        return (noise.sample(rng, size)[:, 0] + 1.0, noise.sample(rng, size)[:, 0])
    if name == "response":
        return (rng.random(size) < expit(1.0)).astype(float), (rng.random(size) < expit(-1.0)).astype(float)
    return rng.normal(1.0, 1.0, size), rng.normal(0.0, 1.0, size)


def observed(test: JointTest) -> float:
    return float(test._values(test._counts[None])[0, 0])


def test_few_samples_bound_a_tail_from_above_and_tell_it_from_the_level() -> None:
    """Forty pairs of arms at the boundary against 40,000 draws of the same law: never below it, and not far above."""
    curve, rng, draws = gaussian(1.0), np.random.default_rng(12), 40_000
    tests = [JointTest(*outcome("gaussian", rng, 60), curve, confidence=0.95, seed=seed) for seed in range(40)]
    level = tests[0].alpha * SPREAD_SHARE
    law = np.sort(tests[0]._values(spread_samples(rng, draws, 60, spread_ranks(60), 60, curve))[:, 0])
    for test in tests:
        tail = 1.0 - float(np.searchsorted(law, observed(test) - 1e-9)) / draws
        error = 5.0 * math.sqrt(max(tail, 1e-3) / draws)
        upper = test._sampled_p_value(curve, 0, MOST_DRAWS) * SPREAD_SHARE
        assert tail - error <= upper <= max(level, tail + 7.0 * math.sqrt(0.25 / DRAWS))
        if abs(tail - level) > 0.1 * level:
            assert test.rejects(curve) == (min(tail, test._extreme_p_value(curve) * SPREAD_SHARE) <= level)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "curve", "claim", "fewest", "seeded"),
    [
        ("gaussian", gaussian(1.0), (1.0, gaussian_delta(1.0, 1.0)), 5, True),
        ("laplace", laplace(1.0), (1.0, 0.0), 2, True),
        ("response", Tradeoff.of_points([1.0], [0.0]), (1.0, 0.0), 2, True),  # two values
        ("gaussian", gaussian(1.0), (1.0, gaussian_delta(1.0, 1.0)), 3, False),
    ],
)
def test_a_true_curve_and_a_true_claim_are_rejected_at_the_stated_rate(
    name: str, curve: Tradeoff, claim: tuple[float, float], fewest: int, seeded: bool
) -> None:
    """150 audits at the exact boundary: at most 19 (binomial, one in 10,000) at 5%, and not hardly ever."""
    rng = np.random.default_rng(3)
    point = Tradeoff.of_points([claim[0]], [claim[1]])
    alarms = 0
    for seed in range(150):
        test = JointTest(*outcome(name, rng, 60), curve, confidence=0.95, seed=seed if seeded else None)
        alarms += test.rejects(curve) or test.rejects(point)
    assert fewest <= alarms <= 19


def test_half_noise_twins_fall_with_a_hundred_models() -> None:
    """Claim mu = 0.6, twin mu = 1.2: 99 of 100 seeds in 200 simulated ones; fewer than 18 of 20 is one in 10,000."""
    claimed, rng = gaussian(0.6), np.random.default_rng(20)
    tests = [
        JointTest(rng.normal(1.2, 1, 100), rng.normal(0, 1, 100), claimed, confidence=0.95, seed=s) for s in range(20)
    ]
    assert sum(test.rejects(claimed) for test in tests) >= 18


def test_a_rare_leak_falls_by_the_events_far_out() -> None:
    """One model in ten gives itself away, the others show nothing; mu = 0.2 allows .0001 at an FPR of .00001."""
    claimed, rng = gaussian(0.2), np.random.default_rng(2)
    inside, outside = rng.normal(0, 1, 300), rng.normal(0, 1, 300)
    inside[:30] += 100.0
    test = JointTest(inside, outside, claimed, confidence=0.95, seed=1)
    assert test.rejects(claimed)
    assert test.epsilon_lower(1e-5) > 1.0
    mirrored = JointTest(-outside, -inside, claimed, confidence=0.95, seed=1)
    assert mirrored.epsilon_lower(1e-5) == test.epsilon_lower(1e-5)


@given(st.integers(0, 59), st.floats(0.0, 3.0), st.sampled_from([0, 1]), st.sampled_from([4, None]))
def test_more_evidence_never_counts_for_less(which: int, by: float, arm: int, seed: int | None) -> None:
    rng = np.random.default_rng(8)
    curve = gaussian(0.5)
    arms = [rng.normal(0.9, 1, 60), rng.normal(0, 1, 60)]
    before = JointTest(arms[0], arms[1], curve, confidence=0.95, seed=seed)
    arms[arm] = arms[arm].copy()
    arms[arm][which] += by if arm == 0 else -by
    after = JointTest(arms[0], arms[1], curve, confidence=0.95, seed=seed)
    assert after._extreme_p_value(curve) <= before._extreme_p_value(curve) * (1 + 1e-12)
    values = [test._values(test._counts[None])[0] for test in (before, after)]
    assert np.all(values[1] >= values[0] - 1e-9)


def test_a_p_value_is_an_upper_end_that_decides_and_need_not_fall_with_the_evidence() -> None:
    """Scores raised step by step: the verdict is never lost, and every p-value is above that of many draws."""
    rng, curve, rises = np.random.default_rng(5), gaussian(1.0), 0
    for _ in range(6):
        inside, outside = rng.normal(1.7, 1.0, 40), rng.normal(size=40)
        tests = [JointTest(inside + by, outside, curve, 0.95, seed=3) for by in (0.0, 0.1, 0.2, 0.3, 0.5)]
        values, law = [test.p_value(curve) for test in tests], np.random.default_rng(9)
        drawn = tests[0]._values(spread_samples(law, 20_000, 40, spread_ranks(40), 40, curve))[:, 0]
        for test, value in zip(tests, values, strict=True):
            tail = float((drawn >= observed(test) - 1e-9).mean())
            least = min(test._extreme_p_value(curve), (tail - 5.0 * math.sqrt(max(tail, 1e-4) / 20_000)) / SPREAD_SHARE)
            assert value >= min(least, 1.0)
            assert test.rejects(curve) == (value <= test.alpha)
        assert np.all(np.diff([int(value <= tests[0].alpha) for value in values]) >= 0)
        rises += sum(np.diff(values) > 0)
    assert rises > 0  # the docstring's statement


def at_look(look: int, in_scores: np.ndarray, out_scores: np.ndarray, curve: Tradeoff) -> JointTest:
    """With the share of a confidence of 95% that this look has."""
    return JointTest(in_scores, out_scores, curve, 1.0 - 0.05 * 6.0 / (math.pi * look) ** 2, seed=1)


@pytest.mark.parametrize("look", [9, 12])
def test_a_late_look_rejects_by_its_spread_what_no_event_far_out_shows(look: int) -> None:
    """Scores further apart than the curve allows. 2^16 draws bound no tail below 3e-4, which is no level of theirs."""
    curve, quantiles = gaussian(1.0), norm.ppf((np.arange(400) + 0.5) / 400)
    test = at_look(look, quantiles + 1.35, quantiles, curve)
    assert test._extreme_p_value(curve) > test.alpha
    assert test.rejects(curve)
    assert test.p_value(curve) <= test.alpha


@pytest.mark.parametrize(("look", "draws"), [(1, 5_000), pytest.param(12, 200_000, marks=pytest.mark.slow)])
def test_the_spread_is_rejected_at_the_boundary_at_its_share_of_the_level(look: int, draws: int) -> None:
    """By draws of other seeds: no more often than its share, 5 standard deviations allowed, and a third as often.

    The statistic at which rejections begin is found by bisection: they only grow with it.
    """
    curve, size = gaussian(1.0), 30
    test = at_look(look, np.arange(float(size)), np.arange(float(size)), curve)
    counts = spread_samples(np.random.default_rng(7), draws, size, spread_ranks(size), size, curve)
    counts = counts[np.argsort(test._values(counts)[:, 0])]
    low, high = 0, draws
    while low < high:
        middle = (low + high) // 2
        test.__dict__["_counts"] = counts[middle]
        low, high = (
            (low, middle) if test._sampled_p_value(curve, DRAWS, MOST_DRAWS) <= test.alpha else (middle + 1, high)
        )
    expected = draws * SPREAD_SHARE * test.alpha
    assert expected / 3.0 < draws - low <= expected + 5.0 * math.sqrt(expected)


def test_epsilon_of_separated_arms_is_the_closed_form() -> None:
    """Randomised response separates all 2n with probability p^2n, p = 1/(1 + e^-epsilon), or seldom by luck."""
    test = JointTest(np.ones(200), np.zeros(200), gaussian(1.0), confidence=0.95, seed=1)
    p = (test.alpha * SPREAD_SHARE) ** (1.0 / 400)
    assert math.log(p / (1.0 - p)) - 0.3 < test.epsilon_lower(0.0) < math.log(p / (1.0 - p))


@pytest.mark.slow
def test_inverting_the_noise_comes_near_the_best_unbiased_estimate() -> None:
    """mu_lower is below the truth in 19 of 20 runs, and on average less than 1.8 times as far as with known scores.

    With known scores it would be 1.645 sqrt(2/n); ranks alone know .64 as much at mu = 2, which makes that 1.25 times.
    """
    mu, n, rng = 2.0, 400, np.random.default_rng(6)
    curves: dict[float, Tradeoff] = {}

    def at(factor: float) -> Tradeoff:
        return curves.setdefault(factor, gaussian(mu / factor))

    lowers = np.array(
        [
            mu / JointTest(rng.normal(mu, 1, n), rng.normal(0, 1, n), at(1.0), confidence=0.95, seed=s).factor_upper(at)
            for s in range(8)
        ]
    )
    assert (lowers > mu).sum() <= 3  # more: probability 4e-4 at 5%
    assert 0.8 < (mu - lowers).mean() / (1.645 * math.sqrt(2 / n)) < 1.8
    assert gaussian_epsilon(float(lowers.mean()), 1e-5) > 8.4  # of 9.997


def test_the_noise_of_a_rejected_claim_is_less_than_claimed() -> None:
    rng = np.random.default_rng(2)  # a p-value of .0488
    test = JointTest(rng.normal(1.15, 1, 300), rng.normal(0, 1, 300), gaussian(1.0), confidence=0.95, seed=2)
    assert not test.rejects(gaussian(1.0), draws=INVERSION_DRAWS)
    assert test.rejects(gaussian(1.0))
    assert test.factor_upper(lambda factor: gaussian(1.0 / factor)) <= 1.0


def test_arms_that_cannot_be_told_apart_refute_nothing() -> None:
    for scores in ([0.0] * 50, list(range(50))):
        test = JointTest(np.array(scores), np.array(scores), gaussian(0.1), confidence=0.95, seed=1)
        assert not test.rejects(gaussian(0.1))
        assert test.epsilon_lower(1e-5) == 0.0
        assert test.factor_upper(lambda factor: IDENTICAL) == math.inf


def response(rng: np.random.Generator, size: int, epsilon: float) -> tuple[np.ndarray, np.ndarray]:
    """Randomised response: two values, whose ties decide."""
    return (rng.random(size) < expit(epsilon)) * 1.0, (rng.random(size) < expit(-epsilon)) * 1.0


def test_scores_of_two_values_have_power_and_no_more_false_alarms_than_stated() -> None:
    """Twenty per arm: of a claim of 1 where 2 is true 55% fall; 15% would if ties counted against the test.

    Fewer than 20 of 60 have a probability of 3e-4 at 55%, as many 2e-4 at 15%; of 150 true claims more than 19 have one
    of 1e-4 at 5%.
    """
    rng = np.random.default_rng(14)
    false, true = (Tradeoff.of_points([epsilon], [0.0]) for epsilon in (1.0, 2.0))
    assert sum(JointTest(*response(rng, 20, 2.0), false, 0.95, seed).rejects(false) for seed in range(60)) >= 20
    assert sum(JointTest(*response(rng, 20, 2.0), true, 0.95, seed).rejects(true) for seed in range(150)) <= 19


@pytest.mark.parametrize(
    ("m", "n", "confidence", "true", "claimed", "least", "most"),
    [
        (4, 6, 0.95, 0.0, 0.0, 0.0, 0.05),  # .1016 if a hash of the scores puts equal ones in order
        (6, 9, 0.99, 1.0, 1.0, 0.0, 0.01),
        (40, 40, 0.95, 1.0, 1.0, 0.002, 0.05),
        (20, 20, 0.95, 2.0, 1.0, 0.45, 0.55),
        (100, 100, 0.95, 2.0, 1.0, 0.99, 1.0),
        (100, 100, 0.99, 2.0, 1.0, 0.98, 1.0),
    ],
)
def test_equal_scores_without_a_seed_keep_the_level_of_every_size_and_have_power(
    m: int, n: int, confidence: float, true: float, claimed: float, least: float, most: float
) -> None:
    """Randomised response, the probability of a rejection summed over all outcomes."""
    curve, rate = Tradeoff.of_points([claimed], [0.0]), 0.0
    for i in range(m + 1):
        for j in range(n + 1):
            probability = binom.pmf(i, m, expit(true)) * binom.pmf(j, n, expit(-true))
            if probability > 1e-6:
                arms = (np.arange(size) < ones for ones, size in ((i, m), (j, n)))
                rate += probability * JointTest(*(arm * 1.0 for arm in arms), curve, confidence, None).rejects(curve)
    assert least <= rate <= most


def test_the_peak_is_the_largest_of_distances_between_ends_of_intervals() -> None:
    """Wilson's interval as statsmodels has it, and the quantiles of an order statistic as scipy has them."""
    m, n, rng = 37, 300, np.random.default_rng(5)
    ranks, outside = spread_ranks(n, 20), norm.sf(2.2)
    counts = np.sort(rng.integers(0, m + 1, (6, len(ranks))), axis=1)
    lowest = proportion_confint(counts, m, alpha=2.0 * outside, method="wilson")[0]
    fpr = beta.isf(outside, ranks, n + 1 - ranks)
    expected = (norm.ppf(np.maximum(lowest, 0.0)) - norm.ppf(fpr)).max(axis=1)
    np.testing.assert_allclose(peak(counts, m, ranks, n), expected, rtol=1e-9)


def test_equal_scores_without_a_seed_count_against_the_evidence() -> None:
    rng, curve = np.random.default_rng(2), gaussian(0.5)
    inside, outside = rng.integers(0, 7, 300) + 1.0, rng.integers(0, 7, 400) * 1.0
    test, thresholds = JointTest(inside, outside, curve, 0.95, None), np.sort(outside)[::-1]
    counts = (inside[:, None] > thresholds[spread_ranks(400, PEAK_RANKS) - 1]).sum(axis=0)
    np.testing.assert_array_equal(test._counts, counts)
    top = [int((inside > thresholds[j - 1]).sum()) for j in (1, 3, 10, 30, 100)]
    bottom = [int((outside < np.sort(inside)[j - 1]).sum()) for j in (1, 3, 10, 30, 100)]
    assert [extreme[0] for extreme in test._extremes] == top + bottom
    for seed in range(20):
        drawn = [extreme[0] for extreme in JointTest(inside, outside, curve, 0.95, seed)._extremes]
        assert all(np.array(drawn) >= np.array(top + bottom))


def test_equal_scores_are_ordered_by_the_seed_and_by_nothing_else() -> None:
    rng, curve = np.random.default_rng(2), gaussian(0.5)
    inside, outside = rng.choice([-np.inf, 0.0, 1.0, np.inf], 50), rng.choice([-np.inf, 0.0, 1.0, np.inf], 40)

    def evidence(seed: int, *arms: np.ndarray) -> tuple[object, ...]:
        test = JointTest(*arms, curve, 0.95, seed)
        return (*test._counts.tolist(), *test._extremes)

    found = evidence(1, inside, outside)
    assert found == evidence(1, rng.permutation(inside), rng.permutation(outside))
    assert found == evidence(1, np.arctan(inside), np.arctan(outside))
    assert len({evidence(seed, inside, outside) for seed in range(20)}) > 10
    same = [JointTest(np.zeros(200), np.zeros(200), curve, 0.95, seed)._counts[31] / 200 for seed in range(50)]
    assert abs(np.mean(same) - spread_ranks(200)[31] / 201) < 0.03  # neither arm is favoured: 4 standard deviations


def test_losses_of_laplace_noise_are_tied_alike_in_both_arms() -> None:
    """As `privacy_loss` gives them; by the formula that comes to mind they are not (docs/scores.md)."""
    rng, shift = np.random.default_rng(1), np.ones(1)
    noise = Laplace(scale=1.0, dimension=1)
    with_record, without = noise.sample(rng, 20_000) + shift, noise.sample(rng, 20_000)

    def ends(losses: np.ndarray) -> int:
        return len(np.unique(losses[np.abs(losses + 1.0) < 1e-6]))

    assert [ends(noise.privacy_loss(arm, shift)) for arm in (with_record, without)] == [1, 1]
    one, several = (ends((np.abs(arm) - np.abs(arm - shift))[:, 0]) for arm in (with_record, without))
    assert one == 1 < several


def test_scores_without_ties_are_counted_as_they_are() -> None:
    rng, curve = np.random.default_rng(2), gaussian(0.5)
    inside, outside = rng.normal(1.0, 1.0, 300), rng.normal(size=200)
    inside[:9] = 3.0  # equal within an arm, which no count depends on
    test = JointTest(inside, outside, curve, 0.95, seed=1)
    thresholds = np.sort(outside)[::-1][spread_ranks(200) - 1]
    np.testing.assert_array_equal(test._counts, (inside[:, None] > thresholds).sum(axis=0))
    top = [int((inside > np.sort(outside)[-j]).sum()) for j in (1, 3, 10, 30, 100)]
    bottom = [int((outside < np.sort(inside)[j - 1]).sum()) for j in (1, 3, 10, 30, 100)]
    assert [extreme[0] for extreme in test._extremes] == top + bottom


def test_ranks_are_dense_at_both_ends() -> None:
    ranks = spread_ranks(5000)
    assert ranks[0] == 1
    assert ranks[-1] == 5000
    assert len(ranks) > 50
    assert np.diff(ranks)[:2].max() < 20


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"in_scores": np.array([np.nan])}, "in_scores without NaN"),
        ({"out_scores": np.array([])}, "out_scores of shape"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"seed": "1"}, "seed='1' to be a number in the integers"),
        ({"seed": 1.5}, r"seed=1\.5 in the integers"),
        ({"seed": -1}, "seed=-1 in the integers"),
    ],
)
def test_bad_input_is_refused(change: dict[str, object], message: str) -> None:
    good: dict[str, object] = {"in_scores": np.ones(3), "out_scores": np.zeros(3), "claimed": IDENTICAL}
    build: Callable[..., JointTest] = JointTest
    with pytest.raises((TypeError, ValueError), match=message):
        build(**(good | {"confidence": 0.95, "seed": 1} | change))


@pytest.mark.parametrize("size", [95, 108, 171])
def test_scores_that_are_all_one_number_are_no_evidence(size: int) -> None:
    """By the order that a seed puts them in, one in twenty of such would be."""
    same, curve = np.zeros(size), Tradeoff.of_points([0.0], [0.0])
    for seed in range(40):
        test = JointTest(same, same, curve, 0.95, seed)
        assert not test.rejects(curve)
        assert test.p_value(curve) == 1.0
        assert test.epsilon_lower(1e-5) == 0.0
