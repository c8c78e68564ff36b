"""Exceedances of a threshold against exact binomial tails of exact laws, and the claims that nothing else decides."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.lower.exceedances import exceedances, log_upper_tails
from dpaudit.verify.lower.families import equal
from dpaudit.verify.lower.histories import shifted_phase

Tail = Callable[[mpmath.mpf], mpmath.mpf]


def normal_tail(z: mpmath.mpf) -> mpmath.mpf:
    return mpmath.erfc(z / mpmath.sqrt(2)) / 2


def laplace_tail(z: mpmath.mpf) -> mpmath.mpf:
    return mpmath.exp(-z) / 2 if z > 0 else 1 - mpmath.exp(z) / 2


def binomial_tail(count: int, trials: int, chance: mpmath.mpf) -> mpmath.mpf:
    """By the incomplete beta function."""
    return mpmath.betainc(count, trials - count + 1, 0, chance, regularized=True)


def exact(
    tail: Tail, scale: float, threshold: float, rate: float, adjacency: Adjacency
) -> tuple[mpmath.mpf, mpmath.mpf]:
    """P_1 and Q_1 of a shift of length 1."""
    t, s, q = mpmath.mpf(threshold), mpmath.mpf(scale), mpmath.mpf(rate)
    still, moved, other = (tail((t - c) / s) for c in (0, 1, -1))
    if adjacency == "add-remove":
        return (1 - q) * still + q * moved, still
    if rate == 1:  # only the distance of the two versions matters
        return tail((t - 2) / s), still
    return (1 - q) * still + q * moved, (1 - q) * still + q * other


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    ("mechanism", "tail"), [(Gaussian, normal_tail), (lambda noise: Laplace(noise, 1.0, 2.0, 5), laplace_tail)]
)
def test_both_probabilities_are_on_their_sides_of_the_exact_ones(
    mechanism: Callable[[float], Mechanism], tail: Tail, adjacency: Adjacency
) -> None:
    rng = np.random.default_rng(7)
    with mpmath.workdps(60):
        for _ in range(40):
            noise, steps = 10.0 ** rng.uniform(-2.5, 1.0), int(10.0 ** rng.uniform(0.0, 3.0))
            rate = float(rng.choice([1.0, 10.0 ** rng.uniform(-5.0, -0.1)]))
            claim = Claim.single(
                mechanism(noise), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=rate, adjacency=adjacency
            )
            release = shifted_phase(claim, claim.phases[0], equal(claim.phases[0].mechanism, 1))
            assert release.line is not None
            threshold = float(release.line[1].max() * rng.choice([0.25, 0.5, 1.0]))
            points = exceedances(release, threshold, "swap" if adjacency == "replace-one" else "remove")
            p, q = exact(tail, noise, threshold, rate, adjacency)
            for count, low, log_high in zip(points.threshold, points.first_lower, points.log_second_upper, strict=True):
                above = binomial_tail(int(count), steps, p)
                assert low <= above
                assert low >= above * (1 - mpmath.mpf("1e-4")) - mpmath.mpf("1e-190")
                assert log_high >= mpmath.log(binomial_tail(int(count), steps, q))


def test_the_bound_under_the_other_neighbour_is_within_its_theorem() -> None:
    """Of very small chances it costs a factor of sqrt(2 pi j) or so, and nothing at j = 1."""
    with mpmath.workdps(40):
        for trials, chance in ((1000, 1e-9), (10**6, 1e-12), (50, 1e-4), (7, 1e-30)):
            counts = np.array([1.0, 2.0, 5.0, 7.0])
            values = log_upper_tails(counts, float(trials), math.log(chance))
            for count, value in zip(counts, values, strict=True):
                truth = mpmath.log(binomial_tail(int(count), trials, mpmath.mpf(math.exp(math.log(chance)))))
                assert truth <= value <= truth + math.log(math.sqrt(2 * math.pi * count)) * (count > 1) + 0.2


def test_a_count_below_the_mean_proves_nothing_of_the_other_neighbour() -> None:
    assert log_upper_tails(np.array([3.0, 5.0]), 10.0, math.log(0.5)).tolist() == [0.0, 0.0]


def test_claims_that_are_false_beyond_every_grid_are_refuted() -> None:
    """They were undecided, in [0, 10^9] and [1358, 358254]."""
    noise = Laplace(0.00233017, 1.0, 2.0, 45)
    phases = [Phase(noise, 113_957), Phase(noise, 1, 3.69091e-5), Phase(noise, 124_719, 0.140434)]
    many = check(Claim(15.8, 3.9e-4, phases, "replace-one"))
    assert (many.verdict, many.epsilon_lower > 7e7) == ("refuted", True)
    assert many.witness is not None
    assert many.witness.event.startswith("number of the 113,957 releases whose output along the shift exceeds ")
    rare = Claim.single(
        Gaussian(0.00166976, 5.28, 2.0, 39), epsilon=4018.0, delta=1.9e-5, steps=559, sampling_prob=1.34914e-5
    )
    bound = certified_lower(rare)
    verdict = check(rare)
    assert verdict.verdict == "refuted"
    assert 0.0075 < float(bound.delta(np.array([4018.0]))[0]) <= verdict.delta_upper
    assert 2.9e5 < verdict.epsilon_lower < verdict.epsilon_upper < 3.6e5


@pytest.mark.parametrize(("epsilon", "steps"), [(9e4, 10**6), (1e5, 10**6), (1e7, 1_100_000), (1e7, 10**9)])
def test_no_false_claim_is_left_between_refuted_ones(epsilon: float, steps: int) -> None:
    """The grid shows a little at 10^5 and nothing beyond; counts up to all releases made windows too wide to sum."""
    claim = Claim.single(Gaussian(1e-4), epsilon=epsilon, delta=1e-5, steps=steps, sampling_prob=1e-4)
    assert check(claim).verdict == "refuted"


def test_all_releases_exceed_a_threshold_with_a_power_of_the_chance() -> None:
    noise = Claim.single(Laplace(0.1, 1.0, 1.0, 1), epsilon=1.0, delta=1e-5, steps=700)
    release = shifted_phase(noise, noise.phases[0], equal(noise.phases[0].mechanism, 1))
    points = exceedances(release, 0.5, "remove")
    with mpmath.workdps(40):
        power = (1 - mpmath.exp(mpmath.mpf("-5.0")) / 2) ** 700
    (found,) = points.first_lower[points.threshold == 700]
    assert power * (1 - mpmath.mpf("1e-9")) < found <= power
