"""Laplace noise of a Gamma scale: its law against mpmath and plain quadrature, and the facts that proofs rest on."""

import math
from itertools import pairwise

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import integrate, special, stats

from dpaudit.mechanisms import GammaScaleLaplace
from dpaudit.mechanisms.gamma_scale_laplace import laplace_exponent
from dpaudit.verify import Claim, check

SHAPES = [2.0001, 2.7, 5.0, 30.0, 413.0, 3000.0, 1e5]
TAILS = [1e-200, 1e-30, 1e-12, 1e-5, 0.01, 0.2, 0.49, 0.4999999]


def bessel(order: float, y: float) -> mpf:
    """E exp(-y/G), G ~ Gamma(order), as 2 y^(order/2) K_order(2 sqrt(y)) / Gamma(order)."""
    v, y = mpf(order), mpf(y)
    return 2 * y ** (v / 2) * mpmath.besselk(v, 2 * mpmath.sqrt(y)) / mpmath.gamma(v)


def integrated(order: float, y: float) -> mpf:
    """The same as the integral it is, in log G and piece by piece: for orders whose Bessel series do not converge."""
    v, y = mpf(order), mpf(y)
    peak = (v + mpmath.sqrt(v * v + 4 * y)) / 2
    middle, width = mpmath.log(peak), 1 / mpmath.sqrt(2 * peak - v)

    def exponent(t: mpf) -> mpf:
        return v * t - mpmath.exp(t) - y * mpmath.exp(-t)

    top = exponent(middle)
    ends = [middle + width * j for j in (-30, -12, -6, -2, 0, 2, 6, 12, 25)]
    whole = mpmath.quad(lambda t: mpmath.exp(exponent(t) - top), ends)
    return whole * mpmath.exp(top - mpmath.loggamma(v))


def oracle(order: float, y: float) -> mpf:
    return bessel(order, y) if order < 25 else integrated(order, y)


def test_the_two_oracles_agree() -> None:
    with mpmath.workdps(40):
        for y in (0.3, 40.0, 4000.0):
            assert abs(bessel(20.0, y) / integrated(20.0, y) - 1) < mpf("1e-30")


@pytest.mark.parametrize(
    "k", [*SHAPES[:3], *(pytest.param(k, marks=pytest.mark.slow) for k in SHAPES[3:-1]), SHAPES[-1]]
)
def test_law_matches_mpmath_at_its_own_quantiles(k: float) -> None:
    """Quantile, tail and density within the error that the verifier grants a law at a tail t: 2^-46 (1 + |log t|)."""
    theta = 0.37
    law = GammaScaleLaplace(k, theta).structure
    x = np.asarray(law.ppf(np.array(TAILS)))
    tails, logs = law.cdf(x), law.logpdf(x)
    for at, tail, log_density, asked in zip(x, tails, logs, TAILS, strict=True):
        allowed = 2.0**-46 * (1 + abs(math.log(asked)))
        with mpmath.workdps(40):
            y = mpf(float(-at)) / mpf(theta)
            exact = oracle(k, y) / 2
            density = mpmath.log(oracle(k - 1, y) / (2 * (mpf(k) - 1) * mpf(theta)))
        assert tail == pytest.approx(float(exact), rel=allowed, abs=0)
        assert asked == pytest.approx(float(exact), rel=4 * allowed, abs=0)
        assert log_density == pytest.approx(float(density), rel=2e-15, abs=2e-14)


@pytest.mark.parametrize("order", [1.0, 1.7, 4.0, 24.0, 2999.0])
def test_small_and_large_exponents_keep_their_digits(order: float) -> None:
    for share in (1e-13, 1e-7, 1e-3, 0.7, 0.75, 0.8, 30.0):
        y = share * order * order
        with mpmath.workdps(60):
            exact = -mpmath.log(oracle(order, y))
        assert float(laplace_exponent(np.array(y), order)) == pytest.approx(float(exact), rel=1e-13, abs=0.0)


@pytest.mark.parametrize("order", [1.0, 1.0 + 2.0**-40, 1.004, 1.02, 1.9, 2.0 - 2.0**-40, 2.0, 2.1, 24.0])
def test_exponents_below_the_table_keep_their_digits(order: float) -> None:
    """Where the derivative at 0 is infinite or nearly so, too."""
    for share in (1e-250, 1e-90, 1e-30, 1e-17, 1e-16, 2.0**-52):
        y = share * order * order
        with mpmath.workdps(560):
            exact = -mpmath.log(oracle(order, y))
        assert float(laplace_exponent(np.array(y), order)) == pytest.approx(float(exact), rel=1e-13, abs=0.0)


def test_the_table_and_the_ends_beyond_it_join() -> None:
    """The slope from one float-scale step to the next stays positive over 700 powers of two, table ends included."""
    y = 2.0 ** np.arange(-350.0, 350.0, 0.25)
    exponent = laplace_exponent(y, 3.0)
    assert (np.diff(exponent) > 0).all()
    np.testing.assert_allclose(exponent[y < 1e-30], y[y < 1e-30] / 2.0, rtol=1e-13)  # y E 1/G
    far = y > 1e60  # 2 sqrt(y) - (order - 1/2) log sqrt(y), to what is left of it
    np.testing.assert_allclose(exponent[far], 2.0 * np.sqrt(y[far]), rtol=1e-13)


@pytest.mark.parametrize(("k", "theta"), [(2.2, 3.0), (30.0, 0.01), (3000.0, 5.7681e-5)])
def test_density_and_tail_are_the_mixture(k: float, theta: float) -> None:
    """By quadrature over b with scipy's own Gamma density, in b/theta."""
    law = GammaScaleLaplace(k, theta).structure
    middle, deviation = k, math.sqrt(k)
    ends = [0.0, *(middle + deviation * j for j in (-6, -3, -1, 0, 1, 3, 6, 12)), middle + 40 * deviation + 40]
    ends = sorted({max(end, 0.0) for end in ends})
    for tail in (1e-9, 0.01, 0.3, 0.499):
        x = -float(law.ppf(np.array(tail)))

        def over(power: int, x: float = x) -> float:
            def integrand(u: float) -> float:
                return (
                    float(stats.gamma.pdf(u, k)) * math.exp(-x / (u * theta)) / (2 * (u * theta) ** power) if u else 0.0
                )

            return math.fsum(integrate.quad(integrand, *piece, epsrel=1e-11)[0] for piece in pairwise(ends))

        assert float(law.cdf(np.array(-x))) == pytest.approx(over(0), rel=1e-8)
        assert math.exp(float(law.logpdf(np.array(x)))) == pytest.approx(over(1), rel=1e-8)


@pytest.mark.parametrize("k", [2.05, 3.0, 5.0, 3000.0])
def test_log_density_is_convex_and_steepest_at_zero(k: float) -> None:
    theta = 0.2
    law = GammaScaleLaplace(k, theta).structure
    x = float(law.ppf(np.array(0.75))) * np.concatenate([np.geomspace(1e-6, 1.0, 200), np.geomspace(1.01, 1e4, 200)])
    slopes = -np.diff(law.logpdf(x)) / np.diff(x)
    constant = law.lipschitz
    assert constant == pytest.approx(1 / ((k - 2) * theta))
    assert (slopes <= constant * (1 + 1e-7)).all()
    assert (np.diff(slopes) <= 1e-7 * constant).all()
    # at k = 2.05 the law of 1/b has so heavy a tail that the slope at a millionth of the quartile is half the constant
    assert slopes[0] > constant * (0.999 if k >= 3 else 0.4)


@pytest.mark.parametrize(("k", "convex"), [(2.5, False), (3.9, False), (4.0, True), (4.1, True), (50.0, True)])
def test_one_over_the_density_is_convex_from_k_4_on(k: float, convex: bool) -> None:
    """E[1/b^2] <= 2 E[1/b]^2 given x, as the ratio of Bessel functions: at most 2 everywhere, or above it near 0."""
    nu = k - 2
    z = np.geomspace(1e-6 if nu < 10 else 1.0, 300.0, 400)
    ratio = special.kve(nu - 1, z) * special.kve(nu + 1, z) / special.kve(nu, z) ** 2
    assert (np.diff(ratio) <= 1e-13 * ratio[:-1]).all()
    assert (ratio.max() <= 2 * (1 + 1e-12)) == convex
    if nu > 1:
        assert ratio.max() <= nu / (nu - 1) * (1 + 1e-12)


def test_sampler_follows_the_law_and_draws_a_scale_per_coordinate() -> None:
    """Kolmogorov-Smirnov at level 1e-6, and no correlation of sizes within a vector, as a shared scale would cause."""
    noise = GammaScaleLaplace(2.3, 0.7, dimension=4).sample(np.random.default_rng(5), 20_000)
    y = np.abs(noise).ravel() / 0.7
    tail = 2 * y**1.15 * special.kv(2.3, 2 * np.sqrt(y)) / math.gamma(2.3)
    limit = math.sqrt(math.log(2 / 1e-6) / (2 * len(y)))
    assert stats.ks_1samp(tail, stats.uniform.cdf).statistic < limit
    assert stats.ks_1samp(np.minimum(1.2 * tail, 1.0), stats.uniform.cdf).statistic > limit
    ranks = stats.rankdata(np.abs(noise), axis=0)
    assert abs(np.corrcoef(ranks[:, 0], ranks[:, 1])[0, 1]) < 5 / math.sqrt(len(noise))


def test_one_release_is_bracketed_and_its_simulation_lies_inside() -> None:
    """The simulated delta of the witness's shift is between the bounds, by Hoeffding's inequality at level 1e-6."""
    mechanism = GammaScaleLaplace(80.0, 0.02, clip=1.0, dimension=10)
    verdict = check(Claim.single(mechanism, epsilon=0.3, delta=1e-2))
    assert verdict.epsilon_lower <= verdict.epsilon_upper <= 1.25 * verdict.epsilon_lower
    assert verdict.witness is not None
    [[value, count]] = verdict.witness.shift
    shift = value * (np.arange(10) < count)
    size, rng = 100_000, np.random.default_rng(6)
    seen = [
        float((mechanism.privacy_loss(mechanism.sample(rng, size) + centre, shift) > 0.3).mean())
        for centre in (shift, np.zeros(10))
    ]
    slack = (1 + math.exp(0.3)) * math.sqrt(math.log(1e6) / (2 * size))
    assert slack < verdict.delta_lower / 4
    assert verdict.delta_lower - slack <= seen[0] - math.exp(0.3) * seen[1] <= verdict.delta_upper + slack


@pytest.mark.parametrize(("k", "theta", "name"), [(2.0, 1.0, "k=2.0"), (1.5, 1.0, "k=1.5"), (3.0, 0.0, "theta=0.0")])
def test_a_shape_up_to_two_is_refused(k: float, theta: float, name: str) -> None:
    with pytest.raises(ValueError, match=name):
        GammaScaleLaplace(k, theta)
