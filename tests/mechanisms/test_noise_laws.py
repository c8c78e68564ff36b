"""The laws behind the samplers: tails against mpmath, vector laws, and values that the theory prints.

Kolmogorov-Smirnov limits are the Dvoretzky-Kiefer-Wolfowitz ones with Massart's constant: P(D > t) <= 2 exp(-2 N t^2),
at level ALPHA for each of the some twenty tests, with fixed seeds.
"""

import math
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf
from scipy import integrate, stats

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import LaplaceCoordinates, NormalCoordinates, PowerCoordinates

ALPHA = 1e-6


def limit(size: int) -> float:
    return math.sqrt(math.log(2 / ALPHA) / (2 * size))


def ks(sample: np.ndarray, cdf: Any) -> float:
    return float(stats.ks_1samp(sample, cdf).statistic)


# --- one coordinate ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beta", [1.0, 1.5, 2.0, 2.33, 4.0, 30.0, 2500.0])
def test_generalized_gaussian_tails_match_mpmath(beta: float) -> None:
    law = GeneralizedGaussian(beta=beta, scale=2.0).structure
    for tail in (1e-100, 1e-12, 1e-3, 0.1, 0.3, 0.499):
        x = float(law.ppf(np.array(tail)))
        with mpmath.workdps(40):
            power = (-mpf(x) / 2) ** mpf(beta)
            exact = mpmath.gammainc(1 / mpf(beta), power, mpmath.inf, regularized=True) / 2
        assert float(law.cdf(np.array(x))) == pytest.approx(float(exact), rel=5e-13 * max(1.0, float(power)))
        assert float(exact) == pytest.approx(tail, rel=1e-11 * max(1.0, float(power)))


@pytest.mark.parametrize(
    "mechanism", [Gaussian(0.7), Laplace(2.1), GammaPLRVIID(2.5, 0.4), GammaPLRVIID(4e4, 6e-5)], ids=repr
)
def test_far_tails_match_the_integrated_density(mechanism: Any) -> None:
    law = mechanism.structure
    for tail in (1e-200, 1e-12, 0.3):
        x = -float(law.ppf(np.array(tail)))
        scaled = integrate.quad(
            lambda t, x=x: math.exp(float(law.logpdf(x * (1 + t)) - law.logpdf(x))), 0, np.inf, epsrel=1e-11
        )[0]
        assert float(law.logpdf(x)) + math.log(x * scaled) == pytest.approx(math.log(tail), rel=1e-9)
        assert float(law.cdf(np.array(-x))) == pytest.approx(tail, rel=1e-11)


@pytest.mark.parametrize("k", [0.3, 3.0, 19.9, 20.0, 414.2857, 40_000.0])
def test_gamma_law_of_the_scale_matches_mpmath(k: float) -> None:
    theta = 0.37
    law = GammaPLRV(k=k, theta=theta).structure
    for deviations in (-0.99, -5.0, -1.0, 0.0, 2.0, 8.0, 25.0):
        u = max(k + deviations * math.sqrt(k), k / 100) * theta
        with mpmath.workdps(40):
            x = mpf(u) / mpf(theta)
            logpdf = mpf(k - 1) * mpmath.log(x) - x - mpmath.loggamma(k) - mpmath.log(mpf(theta))
            tail = mpmath.quad(
                lambda t, x=x: mpmath.exp(mpf(k - 1) * mpmath.log1p(t / x) - t),
                [0, 1, 10, 10 + 2 * math.sqrt(k), 10 + 20 * math.sqrt(k), 100 + 100 * math.sqrt(k), mpmath.inf],
            )
            survival = tail * mpmath.exp(mpf(k - 1) * mpmath.log(x) - x - mpmath.loggamma(k))
        assert float(law.scale_logpdf(np.array(u))) == pytest.approx(float(logpdf), rel=1e-12, abs=2e-13)
        assert float(law.scale_sf(np.array(u))) == pytest.approx(float(survival), rel=1e-11)
        assert float(law.scale_cdf(np.array(u))) == pytest.approx(float(1 - survival), rel=1e-11, abs=1e-14)
        if survival < 0.9:
            assert float(law.scale_isf(np.array(float(survival)))) == pytest.approx(u, rel=1e-12 * math.sqrt(k) + 1e-12)


def test_scale_density_is_exact_towards_zero_and_zero_below() -> None:
    law = GammaPLRV(k=3.0, theta=2.0).structure
    assert float(law.scale_logpdf(np.array(1e-200))) == pytest.approx(
        2 * math.log(1e-200) - 4 * math.log(2.0), rel=1e-14
    )
    assert law.scale_logpdf(np.array([0.0, -1.0])).tolist() == [-math.inf, -math.inf]


def test_special_powers_are_marked() -> None:
    laplace, normal, other = (GeneralizedGaussian(beta, scale=3.0).structure for beta in (1.0, 2.0, 2.1))
    assert isinstance(laplace, LaplaceCoordinates)
    assert (laplace.scale, laplace.beta) == (3.0, 1.0)
    assert isinstance(normal, NormalCoordinates)
    assert (normal.sigma, normal.beta) == (3.0 / math.sqrt(2), 2.0)
    assert type(other) is PowerCoordinates
    assert other.beta == 2.1
    x = np.linspace(-9, 9, 41)
    np.testing.assert_allclose(laplace.logpdf(x), Laplace(3.0).structure.logpdf(x), rtol=1e-14)
    np.testing.assert_allclose(normal.logpdf(x), Gaussian(3.0 / math.sqrt(2)).structure.logpdf(x), rtol=1e-14)
    given = GammaPLRV(k=3.0, theta=1.0).structure.given(0.25)
    assert isinstance(given, LaplaceCoordinates)
    assert given.scale == 4.0


# --- whole vectors ----------------------------------------------------------------------------------------------------


def test_shared_scale_vector_law() -> None:
    """theta |z|_1 is beta-prime(n, k); given it, |z_1|/|z|_1 is Beta(1, n-1)."""
    size, n, k, theta = 40_000, 5, 3.0, 0.1
    noise = GammaPLRV(k=k, theta=theta, dimension=n).sample(np.random.default_rng(11), size)
    length = np.abs(noise).sum(axis=1)
    share = np.abs(noise[:, 0]) / length
    far = length > np.median(length)
    assert ks(theta * length, stats.betaprime(n, k).cdf) < limit(size)
    assert ks(share, stats.beta(1, n - 1).cdf) < limit(size)
    assert ks(share[far], stats.beta(1, n - 1).cdf) < limit(int(far.sum()))
    assert ks(noise[:, 2], GammaPLRVIID(k=k, theta=theta).structure.cdf) < limit(size)


def test_a_scale_per_coordinate_is_another_vector_law_with_the_same_marginal() -> None:
    size, n, k, theta = 40_000, 5, 3.0, 0.1
    mechanism = GammaPLRVIID(k=k, theta=theta, dimension=n)
    noise = mechanism.sample(np.random.default_rng(12), size)
    by_mixture = np.random.default_rng(13)
    mixed = by_mixture.laplace(size=size * n) / by_mixture.gamma(k, theta, size * n)
    assert ks(theta * np.abs(noise).sum(axis=1), stats.betaprime(n, k).cdf) > 3 * limit(size)
    assert ks(noise.ravel(), mechanism.structure.cdf) < limit(size * n)
    assert ks(mixed, mechanism.structure.cdf) < limit(size * n)


def test_product_radius_and_direction() -> None:
    size, n, sigma = 40_000, 7, 3.0
    noise = Product(sigma=sigma, dimension=n).sample(np.random.default_rng(14), size)
    radius = np.linalg.norm(noise, axis=1)
    axis = np.random.default_rng(15).standard_normal(n)
    cosine = noise @ axis / np.linalg.norm(axis) / radius
    law = stats.beta((n - 1) / 2, (n - 1) / 2, loc=-1, scale=2).cdf
    far = radius > sigma
    assert ks(radius / sigma, stats.halfnorm.cdf) < limit(size)
    assert ks(cosine, law) < limit(size)
    assert ks(cosine[far], law) < limit(int(far.sum()))
    assert ks(np.linalg.norm(Gaussian(sigma, dimension=n).sample(np.random.default_rng(14), size), axis=1) / sigma,
              stats.halfnorm.cdf) > 0.5  # fmt: skip


@pytest.mark.parametrize(
    "mechanism",
    [GammaPLRV(k=0.005, theta=1.0, dimension=3), GammaPLRVIID(k=0.005, theta=1.0, dimension=3)], ids=repr,
)  # fmt: skip
def test_a_tail_beyond_the_floats_stays_a_number(mechanism: Any) -> None:
    rng = np.random.default_rng(16)
    noise = mechanism.sample(rng, 20_000)
    assert np.isfinite(noise).all()
    assert np.abs(noise).max() == np.finfo(np.float64).max
    assert not np.isnan(mechanism.privacy_loss(noise, np.ones(3))).any()


def test_a_large_power_is_nearly_uniform_noise() -> None:
    """The textbook transform Gamma(1/beta)^(1/beta) underflows to 0 here in a third of the draws."""
    mechanism = GeneralizedGaussian(beta=1500.0, scale=2.0, dimension=1)
    noise = mechanism.sample(np.random.default_rng(17), 40_000).ravel()
    assert ks(noise, stats.uniform(-2, 4).cdf) < limit(40_000) + 1e-3
    assert ks(noise, mechanism.structure.cdf) < limit(40_000)


# --- values that the theory prints ------------------------------------------------------------------------------------


def hockey_stick(mechanism: Any, epsilon: float, shift: float = 1.0) -> float:
    """delta(epsilon) of one coordinate: the integral of dP (1 - e^(epsilon - L))_+."""
    law, v = mechanism.structure, np.array([shift])

    def integrand(x: float) -> float:
        loss = float(mechanism.privacy_loss(np.array([x]), v))
        return math.exp(float(law.logpdf(x - shift))) * max(0.0, -math.expm1(epsilon - loss))

    grid = [*np.linspace(-10, 10, 41) * float(law.ppf(np.array(0.84))), 0.0, shift]
    grid.sort()
    return math.fsum(
        integrate.quad(integrand, a, b, limit=400, epsabs=1e-14, epsrel=1e-10)[0] for a, b in pairwise(grid)
    )


@pytest.mark.parametrize(("beta", "scale"), [(1.5, 2.88777), (2.33, 6.9717), (3.0, 10.5295), (4.0, 15.892)])
def test_generalized_gaussian_delta_at_one_is_as_printed(beta: float, scale: float) -> None:
    """Calibrated to delta(1) = 1e-5 in one coordinate; the scale's last digit is worth under 1e-3 of it."""
    assert hockey_stick(GeneralizedGaussian(beta, scale, dimension=1), 1.0) == pytest.approx(1e-5, rel=1e-3)


@pytest.mark.parametrize(("noise_multiplier", "epsilon"), [(0.5, 1.0), (1.0, 0.0), (3.0, 0.7)])
def test_gaussian_delta_is_the_closed_form(noise_multiplier: float, epsilon: float) -> None:
    """Balle and Wang (2018), Theorem 8."""
    mu = 1 / noise_multiplier
    expected = stats.norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon) * stats.norm.cdf(-mu / 2 - epsilon / mu)
    assert hockey_stick(Gaussian(noise_multiplier, dimension=1), epsilon) == pytest.approx(expected, rel=1e-9)


def two_sided(eta: float, at_plus: float, at_minus: float) -> float:
    return (eta * at_plus + (eta - 1) * at_minus) / (2 * eta - 1)


def moment(mechanism: Any, eta: float, shift: float) -> float:
    """E_Q e^(eta L) of one coordinate."""
    law = mechanism.structure

    def integrand(x: float) -> float:
        loss = float(mechanism.privacy_loss(np.array([x]), np.array([shift])))
        return math.exp(float(law.logpdf(x)) + eta * loss)

    pieces = [(-np.inf, 0.0), (0.0, shift), (shift, np.inf)]
    return math.fsum(integrate.quad(integrand, a, b, epsrel=1e-11)[0] for a, b in pieces)


@pytest.mark.parametrize("eta", [0.3, 2.0, 5.0])
@pytest.mark.parametrize("shift", [0.2, 1.5])
def test_laplace_moments_are_the_closed_form(eta: float, shift: float) -> None:
    """E_Q e^(eta L) = F(shift/b, eta)."""
    expected = two_sided(eta, math.exp((eta - 1) * shift / 2), math.exp(-eta * shift / 2))
    assert moment(Laplace(2.0), eta, shift) == pytest.approx(expected, rel=1e-8)


@pytest.mark.parametrize("eta", [2.0, 5.0])
@pytest.mark.parametrize("shift", [0.2, 1.5])
def test_gamma_plrv_moments_with_the_scale_revealed_and_hidden(eta: float, shift: float) -> None:
    """E_u F(u shift, eta) is the G of plrvo's Theorem 4.9; hiding u is post-processing and can only lower it."""
    k, theta = 3.0, 0.1
    law = GammaPLRV(k, theta).structure

    def integrand(u: float) -> float:
        plus, minus = (math.exp(float(law.scale_logpdf(np.array(u))) + power * u) for power in (
            (eta - 1) * shift, -eta * shift))  # fmt: skip
        return two_sided(eta, plus, minus)

    revealed = two_sided(eta, (1 - theta * (eta - 1) * shift) ** -k, (1 + theta * eta * shift) ** -k)
    assert integrate.quad(integrand, 0, np.inf, epsrel=1e-11)[0] == pytest.approx(revealed, rel=1e-8)
    assert 1.0 < moment(GammaPLRVIID(k, theta), eta, shift) < revealed


@pytest.mark.slow
@pytest.mark.parametrize(("n", "k", "delta"), [(100, 1e5, 0.160), (784, 1e3, 0.204)])
def test_product_delta_at_its_papers_calibration_is_as_derived(n: int, k: float, delta: float) -> None:
    """delta(0.1) at a shift of the sensitivity, by 20,000 releases; bounded in [0, 1], so Hoeffding at ALPHA."""
    size, epsilon = 20_000, 0.1
    sigma = math.sqrt(2 * k ** (4 / n) * (n / 4 + 1.5) ** (1 + 4 / n) / math.exp(1 + 2 / n)) / epsilon
    mechanism, shift = Product(sigma, dimension=n), np.zeros(n)
    shift[0] = 1.0
    loss = mechanism.privacy_loss(shift + mechanism.sample(np.random.default_rng(19), size), shift)
    excess = np.maximum(0.0, -np.expm1(epsilon - loss))
    assert abs(excess.mean() - delta) < limit(size) + 5e-4
    if n == 784:  # "nearer to f(x) or to f(x')" has a true positive rate of .618
        assert abs((loss > 0).mean() - 0.618) < limit(size) + 5e-4
