"""Formulas that the papers print and that fail as printed, each by a number; and printed identities that hold."""

import math

import mpmath
import numpy as np
import product_steps
import pytest
from scipy.integrate import quad
from scipy.stats import chi2

from dpaudit.mechanisms import GammaPLRV
from dpaudit.mechanisms.published import plrvo, product
from dpaudit.mechanisms.published.majorization import InverseScale, coordinate_moment_excess
from dpaudit.mechanisms.published.moments import gaussian_log_moments


@pytest.mark.parametrize(("q", "order"), [(0.01, 1), (0.2, 4), (0.7, 12)])
def test_removing_costs_more_moments_than_adding_not_less(q: float, order: int) -> None:
    """plrvo, B.2 and C.1, and lap2, A-A, end with B >= A; they begin, rightly, with A >= B."""

    def density(o: float) -> float:
        return 0.5 * math.exp(-abs(o))

    def mixture_ratio(o: float) -> float:
        return 1 - q + q * math.exp(abs(o) - abs(o - 1))

    parts = ((-60.0, 0.0), (0.0, 1.0), (1.0, 60.0))
    remove = sum(quad(lambda o: density(o) * mixture_ratio(o) ** (order + 1), *ends)[0] for ends in parts)
    add = sum(quad(lambda o: density(o) * mixture_ratio(o) ** -order, *ends)[0] for ends in parts)
    assert remove > add + 1e-6 * q


def test_the_gaussian_approximation_of_lap2_is_for_half_the_signal() -> None:
    """Section IV-B: eta^2 + 2 eta sqrt(log(1/delta)) with eta^2 = T q^2/sigma^2; by eq. (8) eta^2 is half of that."""
    q, sigma, steps, delta = 1e-3, 10.0, 4_000_000, 1e-5
    eta, log_inverse = math.sqrt(steps) * q / sigma, math.log(1 / delta)
    orders = np.arange(1.0, 200.0)
    alpha = steps * gaussian_log_moments(orders, noise_multiplier=sigma, sampling_prob=q)
    epsilon = float(np.min((alpha + log_inverse) / orders))
    assert epsilon == pytest.approx(eta**2 / 2 + eta * math.sqrt(2 * log_inverse), rel=0.01)
    assert eta**2 + 2 * eta * math.sqrt(log_inverse) > 1.4 * epsilon


def test_the_optimal_ratio_of_lap2_does_not_follow_from_its_kappa() -> None:
    """kappa/lam falls to 1/4 and log(1/delta)/lam to 0: the minimum is T zeta^2 rho^2/4, whatever delta."""
    zeta, steps, delta, target = 0.0043, 5860, 1e-5, 1.0
    rho = target / (2 * zeta) * math.sqrt(1 / (steps * math.log(1 / delta)))
    orders = np.geomspace(1, 1e9, 400)
    kappa = orders * (orders + 1) / (2 * (2 * orders + 1))
    epsilon = float(np.min((steps * zeta**2 * kappa * rho**2 - math.log(delta)) / orders))
    assert epsilon == pytest.approx(steps * zeta**2 * rho**2 / 4, rel=1e-4)
    assert epsilon == pytest.approx(target**2 / (16 * math.log(1 / delta)), rel=1e-4)  # 0.0054 where 1 was the target


@pytest.mark.parametrize("x", [0.1, 0.5, 0.99])
def test_the_determinants_bound_of_product_is_the_wrong_way_round(x: float) -> None:
    """C.2, Lemma 2: Lambda/(Lambda - r beta) <= e^x at Lambda = r beta/x, that is 1/(1-x) <= e^x: 2 against 1.65."""
    ranks, beta = 2, 0.25
    regularization = ranks * beta / x
    assert regularization / (regularization - ranks * beta) > math.exp(x)
    assert 1 + beta / regularization < math.exp(x)  # what one record of rank 1 really does is less


def test_the_tail_of_the_radius_needs_the_square_of_what_product_prints() -> None:
    """C.3: P(R^2 >= mu) <= delta/2 for mu = (1 + sqrt(1 + 4 (2 log(2/delta) + 1)))/2; it holds for mu^2."""
    delta = 1e-5
    mu = (1 + math.sqrt(1 + 4 * (2 * math.log(2 / delta) + 1))) / 2
    assert chi2.sf(mu, 1) == pytest.approx(0.0183, abs=5e-5)
    assert math.exp(mu - 1 - math.log(mu)) ** -0.5 > 1e4 * delta  # by the paper's own inequality
    assert chi2.sf(mu**2, 1) < delta / 2


@pytest.mark.parametrize("dimension", [4, 14, 784, 10**6, 10**10])
@pytest.mark.parametrize("k", [1.0, 1000.0, 3e5])
def test_theorem_8s_radius_in_40_digits(dimension: int, k: float) -> None:
    with mpmath.workdps(40):
        m = mpmath.mpf(dimension)
        square = 2 * mpmath.mpf(k) ** (4 / m) * (m / 4 + 1.5) ** (1 + 4 / m) / mpmath.exp(1 + 2 / m)
        exact = float(mpmath.sqrt(square))
    assert product.radius_factor(dimension, k) == pytest.approx(exact, rel=1e-13)


@pytest.mark.parametrize(("dimension", "q", "shift"), [(40, 12.0, 0.1), (10**6, 499_499.0, 2.3e-4)])
def test_eq_19_in_40_digits(dimension: int, q: float, shift: float) -> None:
    with mpmath.workdps(40):
        m, x = mpmath.mpf(dimension), mpmath.mpf(shift)
        exact = 2 * mpmath.exp(-(x**2) / 2) * mpmath.sqrt(m - 1) / (7 * mpmath.sqrt(mpmath.pi))
        exact *= (1 + x**2 * (q + 1)) / mpmath.sqrt((m - q - 1.5) * (q + 0.75))
    value = product_steps.approximate_delta(dimension=dimension, shift=shift, k=7.0, q=q)
    assert value == pytest.approx(float(exact), rel=1e-12)


@pytest.mark.parametrize(("k", "theta"), [(3.0, 0.1), (141.06, 8.32e-4)])
def test_theorem_5_1_is_the_integral_of_the_generating_function(k: float, theta: float) -> None:
    """E|z| = int_0^inf M_u(-t) dt, M_u(-t) = (1 + theta t)^-k."""
    value = quad(lambda t: (1 + theta * t) ** -k, 0, math.inf, epsabs=0, epsrel=1e-10)[0]
    assert plrvo.distortion(GammaPLRV(k=k, theta=theta)) == pytest.approx(value, rel=1e-8)


@pytest.mark.parametrize("eta", [2, 3, 11])
@pytest.mark.parametrize("s", [0.01, 0.4, 3.0])
def test_f_in_both_printed_forms_with_its_derivatives(eta: int, s: float) -> None:
    """plrvo, eq. (14), (27), (30), and F F'' >= F'^2, which Lemma B.1 (lap2: A.1) rests on."""

    def form_27(x: mpmath.mpf) -> mpmath.mpf:
        up, down = mpmath.exp((eta - 1) * x), mpmath.exp(-eta * x)
        return (up + down) / 2 + (up - down) / (2 * (2 * eta - 1))

    value = 1 + coordinate_moment_excess(InverseScale(1.0), np.array([float(eta)]), np.array([s]))[0, 0]
    with mpmath.workdps(30):
        first, second = mpmath.diff(form_27, s), mpmath.diff(form_27, s, 2)
        factor = mpmath.mpf(eta * (eta - 1)) / (2 * eta - 1)
        form_30 = factor * (mpmath.exp((eta - 1) * s) - mpmath.exp(-eta * s))
        assert value == pytest.approx(float(form_27(mpmath.mpf(s))), rel=1e-13)
        assert float(first) == pytest.approx(float(form_30), rel=1e-10)
        assert form_27(mpmath.mpf(s)) * second >= first**2


@pytest.mark.parametrize("eta", [2, 5])
def test_g_of_corollary_d_2_is_g_of_theorem_4_8(eta: int) -> None:
    clip, k, theta = 0.7, 60.0, 0.004
    up, down = (1 - (eta - 1) * clip * theta) ** -k, (1 + eta * clip * theta) ** -k
    printed = (up + down) / 2 + (up - down) / (2 * (2 * eta - 1))
    law = InverseScale(k * theta, k)
    value = 1 + coordinate_moment_excess(law, np.array([float(eta)]), np.array([clip]))[0, 0]
    assert value == pytest.approx(printed, rel=1e-12)
