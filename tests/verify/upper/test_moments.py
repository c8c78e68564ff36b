"""Moments to curves: closed forms, quadrature in long arithmetic, and the conversion against its definition."""

import math

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import rdp
from dpaudit.verify.claims import Claim
from dpaudit.verify.rdp import (
    composed_moments,
    gaussian_moments,
    laplace_moments,
    log_delta,
    order_block,
    rdp_curve,
    replace_one_release,
    sampled_moments,
)
from dpaudit.verify.upper.gaussian_pld import analytic_delta


def oracle_moment(mu: float, q: float, lam: float) -> float:
    """log E_Q[(1-q+q W)^(lam+1)] by adaptive quadrature in 30 digits."""
    with mpmath.workdps(30):
        a = lam + 1

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            return mpmath.npdf(x) * (1 - q + q * mpmath.exp(mu * x - mu * mu / 2)) ** a

        ends = [-14, -4, 0, a * mu / 2, a * mu, a * mu + 4, a * mu + 16]
        return float(mpmath.log(mpmath.quad(integrand, sorted(set(map(float, ends))))))


@pytest.mark.parametrize(("mu", "q"), [(1.0, 0.01), (0.2, 0.1), (2.5, 1e-3), (0.06, 0.0043)])
@pytest.mark.parametrize("lam", [0.3, 1.0, 4.5, 17.0])
def test_sampled_gaussian_moments_at_real_orders(mu: float, q: float, lam: float) -> None:
    exact = oracle_moment(mu, q, lam)
    value = float(gaussian_moments(mu, q, np.array([lam]))[0])
    assert exact <= value <= exact * (1 + 1e-9) + 3e-13


@pytest.mark.parametrize("add", [False, True], ids=["remove", "add"])
@pytest.mark.parametrize(
    ("shift", "q", "lam"),
    [(1.0, 0.01, 1.0), (1.0, 0.9, 0.01), (0.1, 0.01, 7.0), (5.0, 1e-3, 63.0), (20.0, 1e-4, 4.0), (0.01, 1e-6, 1.0),
     (2.0, 1e-6, 999.0), (60.0, 0.5, 0.5), (1e-4, 0.5, 3.0), (3.0, 1.0, 2.5)],
)  # fmt: skip
def test_sampled_laplace_moments_are_those_of_its_pair(shift: float, q: float, lam: float, *, add: bool) -> None:
    with mpmath.workdps(40):

        def integrand(x: mpmath.mpf) -> mpmath.mpf:
            ratio = 1 - mpmath.mpf(q) + q * mpmath.exp(abs(x) - abs(x - shift))
            return mpmath.exp(-abs(x)) / 2 * ratio ** (-lam if add else lam + 1)

        cuts = [-mpmath.inf, 0, *(mpmath.mpf(shift) * i / 16 for i in range(1, 16)), shift, mpmath.inf]
        exact = float(mpmath.log(mpmath.quad(integrand, cuts)))
    found = float(laplace_moments(shift, q, np.array([lam]))[0])
    assert exact <= found * (1 + 1e-12)
    assert add or found <= exact * (1 + 2e-6)


def test_whole_orders_agree_with_the_binomial_sum_and_chords_lie_above() -> None:
    mu, q = 1.3, 0.02
    eta = np.arange(40.0)
    table = eta * (eta - 1) * mu * mu / 2
    orders = np.array([1.0, 2.0, 2.5, 7.0, 7.25, 30.0])
    by_sum = sampled_moments(table, q, orders)
    by_quadrature = gaussian_moments(mu, q, orders)
    whole = orders == np.rint(orders)
    np.testing.assert_allclose(by_sum[whole], by_quadrature[whole], rtol=1e-9)
    assert (by_sum[~whole] > by_quadrature[~whole]).all()
    np.testing.assert_allclose(by_sum[2], (by_sum[1] + sampled_moments(table, q, np.array([3.0]))[0]) / 2, rtol=1e-12)


def test_orders_below_one_are_nearly_exact_in_high_noise() -> None:
    """By quadrature for normal noise; the chord alone is twice too large near order 0."""
    orders = np.array([0.01, 0.1, 0.5, 0.9])
    for mu, q, more in ((0.3, 0.01, 1.02), (0.3, 0.3, 1.5), (3.0, 0.1, 10.0)):
        table = np.array([0.0, 0.0, mu * mu, 3.0 * mu * mu])
        found, exact = sampled_moments(table, q, orders), gaussian_moments(mu, q, orders)
        assert (exact <= found * (1 + 1e-12)).all()
        assert (found <= exact * more).all() or mu > 1
        assert (found <= orders * sampled_moments(table, q, np.ones(1))).all()


@pytest.mark.parametrize("mu", [0.3, 3.0, 12.0])
def test_orders_below_one_are_at_most_those_of_larger_rates(mu: float) -> None:
    """Between orders 1 and 2 of the ratio; at a rate next to 1 the bound is next to that of what is not sampled."""
    table, orders = np.array([0.0, 0.0, mu * mu, 3.0 * mu * mu]), np.array([1e-6, 1e-3, 0.1, 0.5, 0.9, 1.0])
    rates = (1e-5, 0.01, 0.3, 0.9, 0.999, 1.0 - 1e-9)
    found = np.array([sampled_moments(table, q, orders, lambda eta: eta * (eta - 1) * mu * mu / 2) for q in rates])
    exact = np.array([gaussian_moments(mu, q, orders) for q in rates])
    assert (exact <= found * (1 + 1e-12) + 1e-12).all()
    assert (np.diff(found, axis=0) >= -1e-12).all()
    np.testing.assert_allclose(found[-1], orders * (orders + 1.0) * mu * mu / 2, rtol=1e-6, atol=2e-12)


def test_moments_are_infinite_where_those_that_they_are_made_of_are() -> None:
    table = np.array([0.0, 0.0, 0.1, 0.5, np.inf, np.inf, np.inf])
    found = sampled_moments(table, 0.02, np.array([1.5, 2.0, 2.5, 3.0, 3.5, 4.5]))
    assert np.isfinite(found[:2]).all()
    np.testing.assert_array_equal(found[2:], np.inf)


def test_conversion_is_the_formula_of_balle_et_al() -> None:
    """delta at the epsilon that the printed formula gives for delta is delta again."""
    lam, alpha, delta = 7.0, 1.9, 1e-6
    epsilon = alpha / lam + math.log(lam / (lam + 1)) - (math.log(delta) + math.log(lam + 1)) / lam
    found = log_delta(np.array([lam]), np.array([alpha]), np.array([epsilon]))
    assert math.exp(float(found[0])) == pytest.approx(delta, rel=1e-12)


@pytest.mark.parametrize("mu", [0.01, 0.3, 3.0, 30.0])
@pytest.mark.parametrize("delta", [1e-3, 1e-5, 1e-12])
def test_orders_are_within_one_percent_of_the_best(mu: float, delta: float) -> None:
    """Unsampled Gaussian: against the least epsilon over a grid of a million orders; and above the exact epsilon."""
    claim = Claim.single(Gaussian(1 / mu), epsilon=1.0, delta=delta)
    curve = rdp_curve(
        claim, [(lambda lam: gaussian_moments(mu, 1.0, lam), 1)], sampled=False, method="rdp", theorem="test"
    )
    found = float(curve.epsilon(np.array([delta]))[0])
    lam = np.geomspace(1e-3, 1e7, 1_000_000)
    every = lam * (lam + 1) * mu * mu / 2 / lam + np.log(lam / (lam + 1)) - (math.log(delta) + np.log1p(lam)) / lam
    best = max(float(every.min()), 0.0)
    assert best * (1 - 1e-9) <= found <= best * 1.01
    assert float(analytic_delta(mu, np.array([found]))[0]) <= delta


def test_orders_grow_until_both_targets_are_served() -> None:
    claim = Claim.single(Gaussian(1000.0), epsilon=1e-3, delta=1e-5)
    orders, alpha = composed_moments(claim, [(lambda lam: gaussian_moments(1e-3, 1.0, lam), 1)], False)
    assert orders[-1] > 4000
    assert (np.diff(orders) > 0).all()
    assert (np.diff(alpha) > 0).all()
    np.testing.assert_array_equal(np.append(order_block(0, 64), order_block(64, 256)), order_block(0, 256))


def test_infinite_moments_end_the_orders() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5)

    def heavy(lam: np.ndarray) -> np.ndarray:
        return np.where(lam < 3.1, lam, np.inf)

    orders, _ = composed_moments(claim, [(heavy, 2)], False)
    assert orders[-1] == 3.0
    nothing = rdp_curve(
        claim, [(lambda lam: np.full(len(lam), np.inf), 1)], sampled=False, method="rdp", theorem="test"
    )
    assert float(nothing.delta(np.array([50.0]))[0]) == 1.0
    assert math.isinf(float(nothing.epsilon(np.array([0.5]))[0]))


def test_no_underflow_proves_delta_zero() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=0.0)
    curve = rdp_curve(
        claim, [(lambda lam: gaussian_moments(1.0, 1.0, lam), 1)], sampled=False, method="rdp", theorem="t"
    )
    assert float(curve.delta(np.array([1e5]))[0]) > 0
    assert math.isinf(float(curve.epsilon(np.array([0.0]))[0]))


def test_one_sampled_release_under_replace_one() -> None:
    claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5)
    base = rdp_curve(
        claim, [(lambda lam: gaussian_moments(2.0, 1.0, lam), 1)], sampled=False, method="rdp", theorem="t"
    )
    q = 0.05
    epsilon = np.array([0.1, 1.0, 2.0])
    expected = q * base.delta(np.log1p(np.expm1(epsilon) / q))
    np.testing.assert_allclose(replace_one_release(base, q).delta(epsilon), expected, rtol=1e-9)
    np.testing.assert_allclose(replace_one_release(base, 1.0).delta(epsilon), base.delta(epsilon), rtol=1e-9)


@pytest.mark.parametrize(("mu", "q", "lam"), [(3.0, 0.1, 4.5), (20.0, 0.01, 2.0), (1.0, 0.5, 30.0)])
def test_a_moment_too_large_for_quadrature_is_bounded_by_convexity(
    monkeypatch: pytest.MonkeyPatch, mu: float, q: float, lam: float
) -> None:
    monkeypatch.setattr(rdp, "MAX_NODES", 10)
    exact, bound = oracle_moment(mu, q, lam), float(gaussian_moments(mu, q, np.array([lam]))[0])
    assert exact < bound < exact + lam * math.log(1 / q) + 1e-6
    huge = float(gaussian_moments(1e6, q, np.array([lam]))[0])
    assert huge == pytest.approx(lam * (lam + 1) * 1e12 / 2, rel=1e-9)
