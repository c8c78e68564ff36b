"""Moments of a pass through bins in both directions, against products, one-dimensional quadrature and laws of sums."""

import math

import mpmath
import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.guarantees import RenyiDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.renyi import divergence_upper
from dpaudit.verify.samplers import BallsInBins, RandomAllocation, Sampler
from dpaudit.verify.upper.pass_moments import overlap_moment, pass_moments, with_record_first, without_record_first


def of_two(mu: float, power: float) -> float:
    """log E_Q[M^power] of two bins: M = e^(mu m - mu^2/2) cosh(mu d), m and d independent of variance 1/2."""
    with mpmath.workdps(30):
        shift, s = mpmath.mpf(mu), mpmath.mpf(power)
        peak = max(power, 0.0) * mu / math.sqrt(2.0)
        cuts = (
            sorted(c + x for c in {-peak, peak} for x in (-15, -6, -3, 0, 3, 6, 15)) if peak > 20 else range(-30, 31, 3)
        )
        law = lambda z: mpmath.cosh(shift * z / mpmath.sqrt(2)) ** s * mpmath.npdf(z)  # noqa: E731
        return float(s * s * shift**2 / 4 - s * shift**2 / 2 + mpmath.log(mpmath.quad(law, cuts)))


def of_many(mu: float, bins: int, power: float) -> float:
    """log E_Q[M^power] by the law of a sum of ratios on a lattice that keeps their mean, squared up by FFT."""
    size, reach = 2**20, 8.0
    unit = bins * reach / size
    points = np.arange(min(size // 2, math.ceil(math.exp(9.0 * mu) / unit))) * unit
    z = (np.log(np.maximum(points, 1e-300)) + mu * mu / 2.0) / mu
    zero, one = np.diff(ndtr(z)), np.diff(ndtr(z - mu))
    up = np.clip((one - points[:-1] * zero) / unit, 0.0, zero)
    masses = np.zeros(size)
    masses[1 : len(points)] += up
    masses[: len(points) - 1] += zero - up
    total = np.fft.irfft(np.fft.rfft(masses) ** bins, size)
    total[total < 1e-13] = 0.0  # noise, far out
    mean = np.arange(1, size) * unit / bins
    return float(np.log(total[1:] @ mean**power))


@pytest.mark.parametrize("mu", [1e-3, 0.07, 0.5, 1.2])
@pytest.mark.parametrize("order", [1.01, 1.5, 2.5, 4.0, 7.7, 100.0])
def test_two_bins_are_met_in_both_directions(mu: float, order: float) -> None:
    first, second = of_two(mu, order), of_two(mu, 1.0 - order)
    least, most = with_record_first(mu, 2, order)
    assert least <= first * (1 + 1e-9) + 1e-14
    assert most >= first * (1 - 1e-9) - 1e-14
    if mu < 0.1:
        assert most <= 1.003 * least + 1e-14
    found = without_record_first(mu, 2, order - 1.0)
    geometric = (order - 1.0) * ((order - 1.0) / 2.0 + 1.0) * mu * mu / 2.0
    assert min(found, geometric) >= second * (1 - 1e-9)
    assert found == pytest.approx(second, rel=2e-5) or geometric <= most
    claimed = pass_moments(Phase(Gaussian(1.0 / mu), sampler=BallsInBins(2, 3)), np.array([order - 1.0]))
    assert claimed is not None
    assert 3.0 * max(first, second) * (1 - 1e-9) <= claimed[0] <= 3.0 * max(1.7 * first, second)


@pytest.mark.parametrize(("bins", "mu", "order"), [(10, 0.5, 3.0), (50, 0.2, 32.5), (1000, 0.5, 8.0), (300, 0.9, 1.5)])
def test_laws_of_sums_are_met_in_both_directions(bins: int, mu: float, order: float) -> None:
    least, most = with_record_first(mu, bins, order)
    true = of_many(mu, bins, order)
    assert least * (1 - 3e-3) < true < most * (1 + 3e-3)
    assert least > 0.97 * most
    assert without_record_first(mu, bins, order - 1.0) == pytest.approx(of_many(mu, bins, 1.0 - order), rel=3e-3)


@pytest.mark.parametrize(
    ("sampler", "sigma", "order", "true"),
    [
        (BallsInBins(1000, 2), 2.0, 8.0, 2 * of_many(0.5, 1000, 8.0) / 7.0),
        (BallsInBins(50, 20), 5.0, 32.0, 20 * of_many(0.2, 50, 32.0) / 31.0),
        (BallsInBins(2, 9, "once"), 6.0, 5.3, of_two(0.5, 5.3) / 4.3),
        (RandomAllocation(6, 3), 4.0, 6.0, None),
        (RandomAllocation(10, 3), 1.0, 2.0, math.log(sum([35, 63 * math.e, 21 * math.exp(2), math.exp(3)]) / 120)),
    ],
)
def test_a_guarantee_of_bins_is_told_within_a_hundredth(
    sampler: Sampler, sigma: float, order: float, true: float | None
) -> None:
    phases, orders = [Phase(Gaussian(sigma), sampler=sampler)], np.array([order])
    upper = float(divergence_upper(Claim(0.0, 0.0, phases, "zero-out").canonical("upper"), orders)[0])
    if true is None:  # three passes of two
        assert upper == pytest.approx(3 * of_two(1.0 / sigma, order) / (order - 1.0), rel=1e-6)
        return
    assert true * (1 - 3e-3) <= upper <= true * 1.01
    lower = float(divergence_lower(Claim(0.0, 0.0, phases, "zero-out").canonical("lower"), orders)[0])
    assert 0.98 * true <= lower <= upper
    if sampler.steps < 100:
        assert check(claim_stating(RenyiDP(order, 1.01 * true), phases)).verdict == "certified"
        assert check(claim_stating(RenyiDP(order, 0.98 * true), phases)).verdict == "refuted"


def test_the_geometric_mean_alone_would_be_too_much() -> None:
    """The positive control: it is a bound, and a hundred times too large."""
    found = without_record_first(0.5, 1000, 7.0)
    assert 100.0 * found < 7.0 * (7.0 / 1000.0 + 1.0) * 0.125


@pytest.mark.parametrize("order", [1.2, 3.0, 40.0, 1e6])
def test_the_sum_of_all_releases_shows_what_random_allocation_costs_at_least(order: float) -> None:
    """It is normal around 5 with the record, around 0 without it, of variance 100 sigma^2."""
    claim = Claim(0.0, 0.0, [Phase(Gaussian(2.0), sampler=RandomAllocation(100, 5))]).canonical("lower")
    found = float(divergence_lower(claim, np.array([order]))[0])
    assert found >= order * 5.0**2 / (2.0 * 100.0 * 2.0**2) * (1 - 1e-9)


def test_a_record_that_is_replaced_keeps_the_bound_of_known_releases() -> None:
    phases, orders = [Phase(Gaussian(3.0), sampler=BallsInBins(50, 2))], np.array([2.0, 9.0])
    replaced = divergence_upper(Claim(0.0, 0.0, phases, "replace-one").canonical("upper"), orders)
    assert replaced == pytest.approx(orders * 2 * 4 / 9 / 2)


def test_noise_that_is_not_normal_and_other_samplers_have_none() -> None:
    assert pass_moments(Phase(Gaussian(1.0), 3), np.ones(1)) is None
    beyond = pass_moments(Phase(Gaussian(1.0), sampler=BallsInBins(3, 1)), np.array([1e4]))
    assert beyond is not None
    assert beyond[0] == math.inf


def test_sets_of_a_billion_releases_share_what_is_bounded_without_a_sum() -> None:
    # two sets of all but one of t share t - 1 or t - 2
    t = 10**9 - 1
    least, most = overlap_moment(1e-5, t, t - 1)
    assert (t - 3) * 1e-10 <= least <= (t - 1) * 1e-10 <= most <= 0.1
