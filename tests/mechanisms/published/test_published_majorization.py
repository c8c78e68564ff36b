"""The grouped sum over the majorization vector against 40-digit terms, plain loops and plain sums."""

import itertools
import math

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms.published import plrvo
from dpaudit.mechanisms.published.majorization import (
    DIRECT_COORDINATES,
    InverseScale,
    _radius,
    coordinate_moment_excess,
    log_moment_of_coordinates,
    majorization_log_moments,
    majorization_set,
)
from dpaudit.mechanisms.published.moments import epsilon_at_orders, log_binomial_weights, minimum_over_orders

CONSTANT = InverseScale(1 / 1.3)
GAMMA = InverseScale(414.2857 * 2.4196e-4, 414.2857)  # plrvo, Figure 9
SMALL_SHAPE = InverseScale(0.3 * 0.004, 0.3)
LAWS = [CONSTANT, InverseScale(1e-4), GAMMA, InverseScale(2.4, 40_000.0), SMALL_SHAPE]


def moment(law: InverseScale, eta: int, x: float) -> mpmath.mpf:
    """E_u F(x u, eta) as printed, in 40 digits."""
    mean = mpmath.mpf(law.mean)

    def mgf(t: mpmath.mpf) -> mpmath.mpf:
        return mpmath.exp(mean * t) if math.isinf(law.shape) else (1 - mean / law.shape * t) ** (-mpmath.mpf(law.shape))

    half = mpmath.mpf(1) / (2 * eta - 1)
    return eta * half * mgf((eta - 1) * mpmath.mpf(x)) + (eta - 1) * half * mgf(-eta * mpmath.mpf(x))


def log_sum(law: InverseScale, order: int, q: float, x: float) -> mpmath.mpf:
    total = sum(
        mpmath.binomial(order + 1, eta) * (1 - mpmath.mpf(q)) ** (order + 1 - eta) * mpmath.mpf(q) ** eta
        * moment(law, eta, x)
        for eta in range(order + 2)
    )  # fmt: skip
    return mpmath.log(total)


@pytest.mark.parametrize("law", LAWS)
def test_the_excess_of_a_moment_keeps_its_digits(law: InverseScale) -> None:
    eta, x = np.array([0, 1, 2, 3, 17, 81]), np.array([1e-9, 1e-5, 1e-3, 0.02, 0.3, 1.0])
    with mpmath.workdps(40):
        exact = np.array([[float(moment(law, int(e), float(v)) - 1) for e in eta] for v in x])
    np.testing.assert_allclose(coordinate_moment_excess(law, eta, x), exact, rtol=5e-12)


@pytest.mark.parametrize("law", LAWS)
@pytest.mark.parametrize("q", [0.01, 0.5, 1.0])
def test_a_few_coordinates_are_the_printed_sum(law: InverseScale, q: float) -> None:
    orders, n = np.array([1.0, 7.0, 40.0]), 5
    value, error = majorization_log_moments(law, orders, clip=0.7, dimension=n, sampling_prob=q)
    with mpmath.workdps(40):
        x = [mpmath.mpf(0.7) * (mpmath.sqrt(i) - mpmath.sqrt(i - 1)) for i in range(1, n + 1)]
        exact = np.array([float(sum(log_sum(law, int(order), q, v) for v in x)) for order in orders])
    assert np.all(np.abs(value - exact) <= error)
    assert np.all(error < 1e-11 * value)


@pytest.mark.parametrize(
    ("law", "q", "clip"),
    [(CONSTANT, 0.0043, 1.0), (CONSTANT, 1.0, 1.0), (GAMMA, 0.01, 1.0), (SMALL_SHAPE, 0.3, 2.0), (LAWS[3], 0.01, 0.5)],
)
def test_grouped_coordinates_are_the_plain_sum_to_within_the_error(law: InverseScale, q: float, clip: float) -> None:
    n, orders = 120_000, np.array([1.0, 12.0, 30.0])
    value, error = majorization_log_moments(law, orders, clip=clip, dimension=n, sampling_prob=q)
    weights = log_binomial_weights(orders, q)
    plain = np.array(
        [
            math.fsum(column)
            for column in np.concatenate(
                [
                    log_moment_of_coordinates(law, weights, part)
                    for part in np.array_split(majorization_set(clip, n), 60)
                ]
            ).T
        ]
    )
    assert n > 2 * DIRECT_COORDINATES
    assert np.all(np.abs(value - plain) <= error)
    assert np.all(error < 1e-9 * value)


@pytest.mark.parametrize("order", [1, 5, 80])
def test_a_hundred_million_coordinates_to_nine_digits(order: int) -> None:
    """The far coordinates against the Euler-Maclaurin sum of 30-digit terms, for a sum over 10^8 of them."""
    n, near, q = 109_482_240, 20_000, 0.00977631
    value, error = majorization_log_moments(GAMMA, np.array([float(order)]), clip=1.0, dimension=n, sampling_prob=q)
    weights = log_binomial_weights(np.array([float(order)]), q)
    plain = math.fsum(log_moment_of_coordinates(GAMMA, weights, majorization_set(1.0, near))[:, 0])
    with mpmath.workdps(30):

        def term(t: mpmath.mpf) -> mpmath.mpf:
            return log_sum(GAMMA, order, q, 1 / (mpmath.sqrt(t) + mpmath.sqrt(t - 1)))

        # in log t the integrand is nearly constant; 6 Gauss nodes on each of 4 pieces leave it 15 digits
        nodes = [mpmath.log(near + 1) + (mpmath.log(n) - mpmath.log(near + 1)) * i / 4 for i in range(5)]
        points, factors = np.polynomial.legendre.leggauss(6)
        far = (term(near + 1) + term(n)) / 2
        for low, high in itertools.pairwise(nodes):
            for point, factor in zip(points, factors, strict=True):
                s = (low + high) / 2 + (high - low) / 2 * point
                far += factor * (high - low) / 2 * term(mpmath.exp(s)) * mpmath.exp(s)
        far += term(near + 1) / near / 12  # -f'/12 with f ~ 1/t; the next term is 1e-10 of this
    exact = plain + float(far)
    assert abs(value[0] - exact) <= error[0] + 2e-12 * exact
    assert error[0] < 1e-9 * value[0]


@pytest.mark.parametrize("law", [CONSTANT, GAMMA, SMALL_SHAPE])
def test_the_series_is_used_only_where_it_converges(law: InverseScale) -> None:
    """|sum_eta w_eta E F - 1| <= 1/2 on complex points within the radius, so that its logarithm is analytic there."""
    for q, order in ((0.01, 9), (1.0, 3), (0.4, 20)):
        radius = float(_radius(law, log_binomial_weights(np.array([float(order)]), q))[0])
        for angle in np.linspace(0, math.pi, 9):
            x = mpmath.mpc(radius * math.cos(angle), radius * math.sin(angle))
            total = sum(
                mpmath.binomial(order + 1, eta) * (1 - mpmath.mpf(q)) ** (order + 1 - eta) * mpmath.mpf(q) ** eta
                * _complex_moment(law, eta, x)
                for eta in range(order + 2)
            )  # fmt: skip
            assert abs(total - 1) <= 0.5
    # and it is not wastefully small: twice the radius violates the bound's premise on the real axis at q = 1
    radius = float(_radius(law, log_binomial_weights(np.array([3.0]), 1.0))[0])
    assert abs(_complex_moment(law, 4, mpmath.mpf(2 * radius)) - 1) > 0.5


def _complex_moment(law: InverseScale, eta: int, x: mpmath.mpc) -> mpmath.mpc:
    def mgf(t: mpmath.mpc) -> mpmath.mpc:
        return mpmath.exp(law.mean * t) if math.isinf(law.shape) else (1 - law.mean / law.shape * t) ** (-law.shape)

    return (eta * mgf((eta - 1) * x) + (eta - 1) * mgf(-eta * x)) / (2 * eta - 1)


def test_algorithm_2_is_its_printed_loop() -> None:
    order, q, k, theta, clip, population = 9, 0.02, 41.0, 3e-3, 0.9, 60
    total = 0.0
    for i in range(1, population + 1):
        g = math.sqrt(i) - math.sqrt(i - 1)
        terms = []
        for eta in range(order + 2):
            log_w = math.log(math.comb(order + 1, eta)) + (order + 1 - eta) * math.log(1 - q) + eta * math.log(q)
            b1, b2 = eta / (2 * eta - 1), (eta - 1) / (2 * eta - 1)
            minus = b1 * (1 - clip * (eta - 1) * theta * g) ** -k
            plus = b2 * (1 + clip * eta * theta * g) ** -k
            terms.append(log_w + math.log(minus + plus))
        top = max(terms)
        total += top + math.log(math.fsum(math.exp(term - top) for term in terms))
    value, error = plrvo.algorithm_2(order, sampling_prob=q, k=k, theta=theta, population=population, clip=clip)
    assert value == pytest.approx(total, rel=1e-10)
    assert error < 1e-11 * value


def test_moments_beyond_the_generating_function_are_infinite() -> None:
    value, _ = plrvo.algorithm_2(10, sampling_prob=0.1, k=3.0, theta=0.1, population=100, clip=1.0)
    assert value == math.inf
    value, _ = plrvo.algorithm_2(9, sampling_prob=0.1, k=3.0, theta=0.1, population=100, clip=1.0)
    assert math.isfinite(value)


def test_moments_beyond_the_range_of_floats_are_added_in_logs() -> None:
    """Low noise: e^1000 in a term. One coordinate's log-moment is log(1/2 e^1000) or so, not infinite."""
    orders = np.array([100.0])
    value, _ = majorization_log_moments(InverseScale(10.0), orders, clip=1.0, dimension=1, sampling_prob=0.5)
    with mpmath.workdps(40):
        assert value[0] == pytest.approx(float(log_sum(InverseScale(10.0), 100, 0.5, 1.0)), rel=1e-12)


def test_the_vector_telescopes_and_is_infeasible() -> None:
    x = majorization_set(0.5, 26_000)
    np.testing.assert_allclose(np.cumsum(x), 0.5 * np.sqrt(np.arange(1, 26_001)), rtol=1e-12)
    assert np.linalg.norm(x) / 0.5 == pytest.approx(1.88, abs=0.005)


def test_the_scan_over_orders_stops_only_when_no_later_one_can_win() -> None:
    orders = np.arange(1.0, 401.0)
    for q, mean, delta in ((0.01, 0.6, 1e-5), (0.3, 0.05, 1e-9), (1.0, 2.0, 0.2), (0.05, 0.001, 1e-5)):
        law = InverseScale(mean)

        def moments(some: np.ndarray, law: InverseScale = law, q: float = q) -> tuple[np.ndarray, np.ndarray]:
            value, error = majorization_log_moments(law, some, clip=1.0, dimension=3, sampling_prob=q)
            return 10 * value, 10 * error

        every = epsilon_at_orders(moments(orders)[0], orders, delta)
        value = minimum_over_orders(moments, delta=delta, max_order=400)
        assert value.epsilon == pytest.approx(max(float(every.min()), 0.0), rel=1e-12)
        assert value.settings["order"] == orders[every.argmin()]
