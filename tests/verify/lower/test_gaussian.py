"""Certified lower bounds for Gaussian noise: never above the exact curve, and within 1% of it."""

import math
from functools import cache
from typing import Any

import mpmath
import numpy as np
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.lower.families import equal
from dpaudit.verify.lower.histories import history_points, shifted_phase
from dpaudit.verify.results import Verdict


@cache
def exact_epsilon(mu: float, delta: float) -> float:
    """Balle and Wang (2018), Theorem 8, inverted in 80 digits."""
    with mpmath.workdps(80):
        m = mpmath.mpf(mu)

        def excess(e: mpmath.mpf) -> mpmath.mpf:
            below = mpmath.exp(e) * mpmath.ncdf(-m / 2 - e / m)
            return mpmath.log((mpmath.ncdf(m / 2 - e / m) - below) / mpmath.mpf(delta))

        root = mpmath.findroot(excess, (0, m * m / 2 + 60 * m + 1), solver="anderson", tol=1e-50, maxsteps=100)
        assert excess(root * (1 - mpmath.mpf(1e-30))) > 0 > excess(root * (1 + mpmath.mpf(1e-30)))
        return float(root)


@pytest.mark.parametrize(("noise", "steps"), [(1.0, 1), (10.0, 100), (3.0, 1000), (100.0, 20_000), (140.0, 20_000)])
def test_unsampled_bound_is_never_above_the_analytic_curve(noise: float, steps: int) -> None:
    deltas = [1e-3, 1e-5, 1e-8, 1e-10, 1e-12, 1e-20, 1e-30]
    claim = Claim.single(Gaussian(noise, dimension=7), epsilon=1.0, delta=1e-5, steps=steps)
    found = certified_lower(claim).epsilon(np.array(deltas))
    exact = np.array([exact_epsilon(steps**0.5 / noise, delta) for delta in deltas])
    assert np.all(found <= exact * (1 + 1e-14))
    assert np.all(found >= 0.999 * exact)


@pytest.mark.parametrize(("noise", "steps"), [(20.0, 10**6), (0.01, 1), (1e-3, 10), (100.0, 10**6)])
def test_both_sides_are_tight_however_large_the_loss(noise: float, steps: int) -> None:
    deltas = np.array([1e-3, 1e-5, 1e-12, 1e-30])
    lower, upper = check(Claim.single(Gaussian(noise), epsilon=1.0, delta=1e-5, steps=steps)).epsilon(deltas)
    exact = np.array([exact_epsilon(steps**0.5 / noise, delta) for delta in deltas])
    assert np.all((0.9999 * exact <= lower) & (lower <= exact * (1 + 1e-12)))
    assert np.all((exact * (1 - 1e-12) <= upper) & (upper <= 1.0001 * exact))


@pytest.mark.parametrize(("noise", "steps"), [(10.0, 100), (3.0, 1000), (100.0, 20_000)])
def test_a_record_that_is_nearly_always_sampled_costs_what_one_without_sampling_does(noise: float, steps: int) -> None:
    """The transforms against the closed form: a rate of 1 - 1e-13 lowers delta by no more than steps 1e-13."""
    claim = Claim.single(Gaussian(noise), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=1 - 1e-13)
    deltas = [1e-3, 1e-5, 1e-8]
    found = certified_lower(claim).epsilon(np.array(deltas))
    exact = np.array([exact_epsilon(steps**0.5 / noise, delta) for delta in deltas])
    assert np.all((0.999 * exact <= found) & (found <= exact * (1 + 1e-14)))


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "q", "steps"), [(0.1, 0.1, 1000), (20.0, 0.5, 10**6)])
def test_long_histories_of_large_losses_have_both_bounds(noise: float, q: float, steps: int) -> None:
    found = check(Claim.single(Gaussian(noise), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=q))
    assert 0.998 * found.epsilon_upper <= found.epsilon_lower <= found.epsilon_upper < math.inf


def test_unsampled_releases_compose_with_sampled_ones_at_large_losses() -> None:
    """mu = 20 without sampling beside a little: at least its own closed form, and not much more."""
    phases = [Phase(Gaussian(1.0), 400), Phase(Gaussian(10.0), 10, 0.01)]
    found = check(Claim(1.0, 1e-5, phases))
    exact = exact_epsilon(20.0, 1e-5)
    assert 0.999 * exact <= found.epsilon_lower <= found.epsilon_upper <= 1.002 * exact


@pytest.mark.parametrize("delta", [1e-10, 1e-12, 1e-15, 1e-25])
def test_a_tiny_claimed_delta_is_never_on_the_wrong_side(delta: float) -> None:
    claim = Claim.single(Gaussian(100.0), epsilon=1.0, delta=delta, steps=20_000)
    found = certified_lower(claim).epsilon(np.array([delta]))[0]
    exact = exact_epsilon(20_000**0.5 / 100.0, delta)
    assert 0.999 * exact <= found <= exact * (1 + 1e-14)


@pytest.mark.parametrize(("noise", "steps"), [(0.5, 1), (3.0, 40), (20.0, 3000), (50.0, 20_000), (500.0, 20_000)])
def test_no_bound_is_on_the_wrong_side_at_tiny_deltas(noise: float, steps: int) -> None:
    """Both bounds of a verdict from delta = 1e-10 down, and the verdict on claims just beside the exact curve."""
    deltas = np.array([1e-10, 1e-12, 1e-16, 1e-22, 1e-30, 1e-40])
    exact = np.array([exact_epsilon(steps**0.5 / noise, delta) for delta in deltas])
    lower, upper = check(Claim.single(Gaussian(noise), epsilon=exact[0], delta=1e-10, steps=steps)).epsilon(deltas)
    assert np.all(lower <= exact * (1 + 1e-13))
    assert np.all(upper >= exact * (1 - 1e-13))
    assert np.all(lower[:2] >= 0.99 * exact[:2])
    for at, wrong in ((exact[2] * 0.999, "certified"), (exact[2] * 1.001, "refuted")):
        assert check(Claim.single(Gaussian(noise), epsilon=at, delta=1e-16, steps=steps)).verdict != wrong


BOX: list[Any] = [pytest.param(*case, marks=pytest.mark.slow) for case in ((0.5, 0.2, 20_000), (0.7, 0.005, 40))]
BOX += [(1.0, 1e-3, 20_000), (10.0, 0.2, 100)]


@pytest.mark.parametrize(("noise", "q", "steps"), BOX)
def test_two_percent_beside_the_truth_is_decided(noise: float, q: float, steps: int) -> None:
    """The truth lies between the bounds, so 2% above the lower one is at most 2% above it, and so on."""

    def verdict(epsilon: float) -> Verdict:
        return check(Claim.single(Gaussian(noise), epsilon=epsilon, delta=1e-5, steps=steps, sampling_prob=q))

    found = verdict(1.0)
    assert found.epsilon_lower >= 0.99 * found.epsilon_upper > 0.05
    assert verdict(1.02 * found.epsilon_lower).verdict == "certified"
    assert verdict(0.98 * found.epsilon_upper).verdict == "refuted"


SETTINGS = [
    (0.5, 1e-3, 2),  # rare losses of thousands of deviations
    (0.5, 1e-3, 1000),
    (0.5, 0.2, 1),
    (1.0, 0.01, 1000),
    (1.0, 1e-3, 20_000),
    (2.0, 0.05, 1000),
    (4.0, 1e-3, 20_000),
    (4.0, 0.2, 30),
    (10.0, 0.01, 1000),
    (10.0, 0.2, 20_000),
]


@pytest.mark.slow
@pytest.mark.parametrize(("noise", "q", "steps"), SETTINGS)
def test_dp_sgd_is_bracketed_by_dp_accounting_within_one_percent(noise: float, q: float, steps: int) -> None:
    """The upper side is dp-accounting's pessimistic distribution, whose own slack counts against us."""
    claim = Claim.single(Gaussian(noise), epsilon=1.0, delta=1e-5, steps=steps, sampling_prob=q)
    found = certified_lower(claim).epsilon(np.array([1e-5]))[0]
    interval = 1e-4 if found > 0.3 else 1e-5
    loss = privacy_loss_distribution.from_gaussian_mechanism(
        noise, value_discretization_interval=interval, sampling_prob=q
    )
    upper = loss.self_compose(steps).get_epsilon_for_delta(1e-5)
    assert 0.99 * upper <= found <= upper * (1 + 1e-9)


def test_the_add_direction_alone_agrees_with_dp_accounting() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=100, sampling_prob=0.1)
    points = history_points([shifted_phase(claim, claim.phases[0], equal(Gaussian(1.0), 1))], "add", claim)
    loss = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.1)
    upper = loss._pmf_add.self_compose(100).get_epsilon_for_delta(1e-5)
    assert 0.999 * upper <= points.epsilon(np.array([1e-5]))[0] <= upper


def test_phases_compose() -> None:
    phases = [Phase(Gaussian(1.0), 50, 0.1), Phase(Gaussian(2.0, clip=3.0), 20, 0.3)]
    found = certified_lower(Claim(1.0, 1e-5, phases)).epsilon(np.array([1e-5]))[0]
    one = privacy_loss_distribution.from_gaussian_mechanism(1.0, sampling_prob=0.1).self_compose(50)
    other = privacy_loss_distribution.from_gaussian_mechanism(2.0, sampling_prob=0.3).self_compose(20)
    upper = one.compose(other).get_epsilon_for_delta(1e-5)
    assert 0.995 * upper <= found <= upper


def test_replacement_doubles_the_shift_without_sampling() -> None:
    claim = Claim.single(Gaussian(2.0), epsilon=1.0, delta=1e-5, adjacency="replace-one")
    found = certified_lower(claim).epsilon(np.array([1e-5]))[0]
    assert found == pytest.approx(exact_epsilon(1.0, 1e-5), rel=1e-4)


@pytest.mark.parametrize("epsilon", [0.0, 0.05, 0.2, 0.5])
def test_sampled_replacement_is_the_integral_over_the_two_mixtures(epsilon: float) -> None:
    """And stays below q delta_2C(log(1 + (e^eps - 1)/q)): advanced joint convexity, Balle et al. (2018), Theorem 2."""
    q, x = 0.1, np.linspace(-30.0, 30.0, 600_001)
    claim = Claim.single(Gaussian(2.0), epsilon=epsilon, delta=1e-5, sampling_prob=q, adjacency="replace-one")
    found = certified_lower(claim).delta(np.array([epsilon]))[0]
    first, second = ((1 - q) * norm.pdf(x, 0, 2) + q * norm.pdf(x, side, 2) for side in (1, -1))
    exact = np.trapezoid(np.maximum(first - np.exp(epsilon) * second, 0.0), x)
    assert 0.999 * exact <= found <= exact * (1 + 1e-6)
    inner = float(np.log1p(np.expm1(epsilon) / q))
    assert found <= q * (norm.cdf(0.5 - inner) - np.exp(inner) * norm.cdf(-0.5 - inner))


def test_the_l2_length_grows_with_the_dimension_beyond_p_2() -> None:
    """|v|_inf <= 1 in 16 dimensions has l2 norm 4."""
    mechanism = Gaussian(4.0, clip_norm=float("inf"), dimension=16)
    curve = certified_lower(Claim.single(mechanism, epsilon=1.0, delta=1e-5))
    assert curve.epsilon(np.array([1e-5]))[0] == pytest.approx(exact_epsilon(1.0, 1e-5), rel=1e-4)
    assert curve.witness is not None
    assert curve.witness.coordinates == 16


@pytest.mark.parametrize("rate", [1e-300, 1e-15])
def test_an_immense_shift_beside_hardly_sampled_ones(rate: float) -> None:
    """It was cut into 10^20 releases, whose roundings left the range of floats."""
    noise = Gaussian(1e-11, dimension=1)
    verdict = check(Claim(0.1, 0.1, [Phase(noise, 1000, rate), Phase(noise)]))
    assert verdict.verdict == "refuted"
    assert 0.999 < verdict.delta_lower <= verdict.delta_upper


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_phases_of_different_dimensions_each_move_as_far_as_they_can(adjacency: Adjacency) -> None:
    """Four coordinates of half a clip are a shift of one, however few coordinates the other phase has."""
    wide = Phase(Gaussian(3.0, clip=0.5, clip_norm=math.inf, dimension=4), 2)  # sigma is noise_multiplier * clip
    narrow = Phase(Gaussian(1.5, clip=1.0, clip_norm=math.inf, dimension=1), 2)
    apart, epsilons = Phase(Gaussian(1.5, clip=0.5, clip_norm=math.inf, dimension=1), 3, 0.4), np.array([0.1, 1.0, 3.0])
    one, same = (certified_lower(Claim(1.0, 1e-5, (first, apart), adjacency)) for first in (wide, narrow))
    assert (same.delta(epsilons) > 0).all()
    np.testing.assert_allclose(one.delta(epsilons), same.delta(epsilons), rtol=1e-4)


@pytest.mark.parametrize("steps", [2, 10, 1000])
def test_many_releases_show_no_less_than_one_at_a_tiny_delta(steps: int) -> None:
    """The first one alone, whose curve is q times the Gaussian's at log(1 + (e^epsilon - 1) / q) (mpmath)."""
    rate, delta = 0.01, 1e-80

    def of_one(epsilon: float) -> mpmath.mpf:
        with mpmath.workdps(150):
            loss = mpmath.log(1 + mpmath.expm1(epsilon) / rate)
            return rate * (mpmath.ncdf(0.5 - loss) - mpmath.exp(loss) * mpmath.ncdf(-0.5 - loss))

    verdict = check(Claim(14.0, delta, [Phase(Gaussian(1.0), steps, rate)]))
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower > 14.48
    assert of_one(14.4839) > delta > of_one(14.4840)
