"""The smoothed Gaussian curve: every step of its proof in numbers, and the bound against exact histories."""

import math

import mpmath
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.integrate import quad
from scipy.special import ndtr

from dpaudit.mechanisms import GammaPLRVIID, Laplace
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld.smoothing import Smoothed, excess, smoothing_cost
from dpaudit.verify.rdp import gaussian_moments, sampled_moments
from dpaudit.verify.upper import gaussian_pld, laplace_gaussian_domination
from dpaudit.verify.upper.gaussian_pld import analytic_delta


def smooth(u: np.ndarray, u0: float) -> np.ndarray:
    """f of the module: (u + u0) log(u/u0) - 2 (u - u0) beyond u0."""
    inside = np.maximum(u, u0)
    return np.asarray((inside + u0) * np.log(inside / u0) - 2 * (inside - u0))


def laplace_loss(s: float) -> tuple[np.ndarray, np.ndarray]:
    """Loss of one Laplace coordinate moved by s, and its masses under Q: two atoms and Gauss-Legendre nodes between."""
    x, w = np.polynomial.legendre.leggauss(80)
    return np.concatenate([[-s, s], x * s]), np.concatenate(
        [[0.5, 0.5 * math.exp(-s)], np.exp(-(x * s + s) / 2) / 4 * w * s]
    )


@given(s=st.floats(0.01, 12.0))
def test_one_coordinate_changes_sign_once(s: float) -> None:
    """D = (Gaussian - randomized response) over g in [1, e^s]: its value and slope at 1, its signs, its integral."""
    y = np.linspace(0.0, s, 2001)[1:-1]
    gaussian = ndtr(s / 2 - y / s) - np.exp(y) * ndtr(-s / 2 - y / s)
    difference = gaussian + np.expm1(y - s) / (1 + math.exp(-s))
    signs = np.sign(difference[np.abs(difference) > 1e-13])
    assert (np.diff(signs) >= 0).all()
    at_one = 1 / (1 + math.exp(s)) - float(ndtr(-s / 2))
    start = float(ndtr(s / 2) - ndtr(-s / 2)) - math.tanh(s / 2)
    assert start == pytest.approx(2 * at_one, abs=1e-14)
    assert 1 / math.cosh(s / 2) >= math.exp(-s * s / 8)


@given(s=st.floats(0.05, 4.0), log_a=st.floats(-3.0, 3.0), q=st.floats(1e-3, 1.0), log_r=st.floats(-3.0, 3.0))
def test_one_coordinate_of_a_history_costs_less_than_the_gaussian(
    s: float, log_a: float, q: float, log_r: float
) -> None:
    """E_Q f(A (1 - q + q r W)): Laplace, then randomized response, then Gauss; f with u0 = 1."""
    a, r = math.exp(log_a), math.exp(log_r)

    def value(loss: np.ndarray) -> np.ndarray:
        return smooth(a * (1 - q + q * r * np.exp(loss)), 1.0)

    loss, mass = laplace_loss(s)
    # f has a kink in its third derivative: the nodes resolve it to 1e-5 of the value
    laplace = float(mass @ value(loss))
    response = float(value(np.array([s]))[0] + math.exp(s) * value(np.array([-s]))[0]) / (1 + math.exp(s))
    z = np.linspace(-12.0, 12.0 + s, 40_001)
    gaussian = float((np.exp(-z * z / 2) / math.sqrt(2 * math.pi) * value(s * z - s * s / 2)).sum() * (z[1] - z[0]))
    assert laplace <= response * (1 + 1e-4) + 1e-12
    assert response <= gaussian * (1 + 1e-7) + 1e-12


@given(share=st.floats(0.0, 1.0), y=st.floats(0.0, 1.0))
def test_condition_of_the_class(share: float, y: float) -> None:
    """2 h + 4 w h' + w^2 h'' >= 0 for h = 1/u - u0/u^2 at u = 1, w = share, u0 = y."""
    h, first, second = 1 - y, -1 + 2 * y, 2 - 6 * y
    assert 2 * h + 4 * share * first + share**2 * second >= -1e-12


@given(g=st.floats(1.0, 20.0), q=st.floats(0.001, 1.0), s=st.floats(0.05, 4.0))
def test_remove_exceeds_add_in_one_release(g: float, q: float, s: float) -> None:
    loss, mass = laplace_loss(s)
    ratio = 1 - q + q * np.exp(loss)
    # the masses are symmetric only up to the quadrature, which a hinge meets to 1e-4
    assert mass @ np.maximum(1 - g * ratio, 0) <= mass @ np.maximum(ratio - g, 0) + 2e-3 * q * s


@pytest.mark.parametrize("width", [1e-3, 0.05, 0.7, 3.0, 12.0])
def test_cost_of_the_hockey_stick(width: float) -> None:
    """(u - e^width)_+ <= c f(u) everywhere, and with equality somewhere."""
    with mpmath.workdps(40):
        ratios = []
        for t in width * (1 + np.geomspace(1e-3, 200.0 / width, 4000)):
            u = mpmath.exp(mpmath.mpf(float(t)))
            gain = u - mpmath.exp(mpmath.mpf(width))
            ratios.append(float(gain / ((u + 1) * mpmath.log(u) - 2 * (u - 1))))
    assert max(ratios) <= smoothing_cost(width) <= max(ratios) * (1 + 1e-4)
    t = np.array([1e-4, 0.3, 0.4999, 0.5, 2.0])
    with mpmath.workdps(40):
        exact = [float((mpmath.exp(x) + 1) * x - 2 * mpmath.expm1(x)) for x in map(mpmath.mpf, t.tolist())]
    np.testing.assert_allclose(excess(t), exact, rtol=3e-8)
    assert (excess(t) <= np.array(exact) * (1 + 1e-13)).all()


def test_integral_of_the_gaussian_curve() -> None:
    """One unsampled release: c times the integral of (1 - e^(low - y)) delta(y), by quad, at the best of the widths."""
    claim = Claim.single(Laplace(1.0), epsilon=1.0, delta=1e-3)
    found = float(laplace_gaussian_domination.bound(claim).delta(np.array([2.0]))[0])

    def bound(width: float) -> float:
        low = 2.0 - width
        value = quad(lambda y: -math.expm1(low - y) * analytic_delta(1.0, np.array([y]))[0], low, 40.0, limit=400)[0]
        return smoothing_cost(width) * value

    best = min(bound(width) for width in np.linspace(0.2, 1.9, 60))
    assert best * (1 - 1e-4) < found < best * 1.03
    assert found < 2.5 * float(analytic_delta(1.0, np.array([2.0]))[0])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("mechanism", "steps", "q"),
    [
        (Laplace(0.7, 1.0, 2.0, 3), 1, 1.0),
        (Laplace(1.0, 1.0, 2.0, 64), 30, 0.05),
        (Laplace(0.4, 1.0, 2.0, 2), 5, 0.2),
        (GammaPLRVIID(40.0, 0.03, 1.0, 2.0, 30), 20, 0.1),
    ],
)
@pytest.mark.parametrize("delta", [1e-2, 1e-8])
def test_above_every_witness_and_near_the_gaussian(
    mechanism: Laplace | GammaPLRVIID, steps: int, q: float, delta: float
) -> None:
    claim = Claim.single(mechanism, epsilon=1.0, delta=delta, steps=steps, sampling_prob=q)
    point = np.array([delta])
    upper, lower = laplace_gaussian_domination.bound(claim), certified_lower(claim)
    assert float(lower.epsilon(point)[0]) <= float(upper.epsilon(point)[0])
    epsilon = np.linspace(0.0, 6.0, 25)
    assert (lower.delta(epsilon) <= upper.delta(epsilon)).all()
    assert (np.diff(upper.delta(epsilon)) <= 1e-15).all()
    mu = laplace_gaussian_domination.gaussian_shift(claim, claim.phases[0])
    assert mu is not None
    twin = Claim.single(Laplace(1 / mu, 1.0, 2.0), epsilon=1.0, delta=delta, steps=steps, sampling_prob=q)
    again = float(laplace_gaussian_domination.bound(twin).epsilon(point)[0])
    assert again == pytest.approx(float(upper.epsilon(point)[0]), rel=1e-6)


@pytest.mark.parametrize("mu", [0.3, 3.0])
@pytest.mark.parametrize("q", [0.01, 0.4])
def test_fractional_moments_by_taylors_formula(mu: float, q: float) -> None:
    """Above the exact real-order moments, never above the chord, and close where the noise is low."""
    eta = np.arange(20.0)
    table = eta * (eta - 1) * mu * mu / 2
    orders = np.array([0.05, 0.3, 0.9, 1.5, 4.25])
    exact = gaussian_moments(mu, q, orders)
    chords = sampled_moments(table, q, orders)
    found = sampled_moments(table, q, orders, lambda a: a * (a - 1) * mu * mu / 2)
    assert (exact <= found * (1 + 1e-9) + 1e-13).all()
    assert (found <= chords).all()
    if (mu, q) == (3.0, 0.01):
        assert found[1] < 0.2 * chords[1]


def test_two_kinds_of_phase_in_one_history() -> None:
    claim = Claim(
        1.0, 1e-5, [Phase(Laplace(4.0, 1.0, 2.0, 50), 10, 0.1), Phase(GammaPLRVIID(500.0, 1e-3, 0.5, 2.0, 50), 5)]
    )
    curve = laplace_gaussian_domination.bound(claim)
    assert curve.method == "pld"
    assert float(certified_lower(claim).epsilon(np.array([1e-5]))[0]) < float(curve.epsilon(np.array([1e-5]))[0])
    assert gaussian_pld.applies(claim) is False


def test_moments_of_hundreds_of_digits_leave_the_trivial_bound() -> None:
    curve = Smoothed(np.ones_like, np.array([1.0, 2.0]), np.array([1e240, 3e240]))
    assert curve.delta(np.array([1.0, 1e3])).min() >= 1.0


@pytest.mark.parametrize("width", [1e-3, 0.0324, 1.05, 12.0])
def test_the_factor_is_the_largest_ratio(width: float) -> None:
    """Against the stationary point in 30 digits, found by bisection of the derivative's sign."""
    with mpmath.workdps(30):
        w = mpmath.mpf(width)

        def ratio(t: mpmath.mpf) -> mpmath.mpf:
            return (mpmath.exp(t) - mpmath.exp(w)) / ((mpmath.exp(t) + 1) * t - 2 * mpmath.expm1(t))

        low, high = w, 20 * w + 20
        for _ in range(200):  # a third at a time: the ratio rises to its maximum and falls
            a, b = low + (high - low) / 3, high - (high - low) / 3
            low, high = (a, high) if ratio(a) < ratio(b) else (low, b)
        truth = float(ratio(low))
    assert truth <= smoothing_cost(width) <= truth * (1 + 2e-6)


@pytest.mark.parametrize("place", [1e3, 2.0**40, 2.0**60, 1e30])
def test_epsilons_beyond_the_spacing_of_floats(place: float) -> None:
    """The curve of a history moved along by any length bounds no less there, though low + t is rounded."""
    orders = np.geomspace(0.1, 10.0, 20)

    def moved(shift: float) -> Smoothed:
        curve = lambda y: np.exp(np.clip(shift - y, -700.0, 0.0))  # noqa: E731
        return Smoothed(curve, orders, np.log(orders) + orders * shift)

    here = moved(20.0).delta(np.array([30.0]))[0]
    there = moved(place - 10.0).delta(np.array([place]))[0]
    assert here * (1 - 1e-6) <= there <= 1.0
    if place < 1e12:
        assert there == pytest.approx(here, rel=1e-3)
