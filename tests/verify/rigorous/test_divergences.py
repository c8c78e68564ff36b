"""Renyi divergences in balls against quadrature in 25 digits; where no integral is taken, against exact sums."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

pytest.importorskip("flint")

from flint import arb
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.renyi import divergence_upper
from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.divergences import Pair, fixed_size_divergence, laplace_divergence, normal_divergence
from dpaudit.verify.samplers import WithoutReplacement

RNG = np.random.default_rng(5)
# shift, rate, order, swaps, reverse
DRAWN = [
    (
        round(float(np.exp(RNG.uniform(-3, 1.5))), 6),
        round(float(np.exp(RNG.uniform(-8, 0))), 9),
        round(float(1 + np.exp(RNG.uniform(-6, 2.5))), 6),
        bool(RNG.integers(2)),
        bool(RNG.integers(2)),
    )
    for _ in range(16)
]


def oracle(
    log_density: Callable[[mpmath.mpf], mpmath.mpf], t: float, q: float, a: float, swaps: bool, reverse: bool
) -> mpmath.mpf:
    """D_a by mpmath's quadrature on pieces of the line."""
    t, q, a = (mpmath.mpf(str(x)) for x in (t, q, a))

    def law(x: mpmath.mpf, centre: mpmath.mpf) -> mpmath.mpf:
        return (1 - q) * mpmath.exp(log_density(x)) + q * mpmath.exp(log_density(x - centre))

    def first(x: mpmath.mpf) -> mpmath.mpf:
        return law(x, t)

    def second(x: mpmath.mpf) -> mpmath.mpf:
        return law(x, -t) if swaps else mpmath.exp(log_density(x))

    p, r = (second, first) if reverse else (first, second)
    centres = {mpmath.mpf(0), t, -t, a * t, -a * t, (1 - a) * t, (a - 1) * t}
    ends = sorted({c + d for c in centres for d in (-75, -25, -10, -3, 0, 3, 10, 25, 75)})
    return mpmath.log(mpmath.quad(lambda x: p(x) ** a * r(x) ** (1 - a), ends)) / (a - 1)


@pytest.mark.parametrize(("t", "q", "a", "swaps", "reverse"), DRAWN)
def test_against_quadrature(t: float, q: float, a: float, swaps: bool, reverse: bool) -> None:
    with mpmath.workdps(25), precision():
        pair = Pair(ball(t), ball(q), swaps)
        for found, log_density in (
            (normal_divergence(pair, ball(a), reverse=reverse), lambda x: -x * x / 2 - mpmath.log(2 * mpmath.pi) / 2),
            (laplace_divergence(pair, ball(a), reverse=reverse), lambda x: -abs(x) - mpmath.log(2)),
        ):
            truth = oracle(log_density, t, q, a, swaps, reverse)
            assert found.rel_accuracy_bits() > 40
            assert abs(float(found) - truth) <= 1e-12 * abs(truth) + mpmath.mpf(10) ** -22


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize(("t", "q", "a"), [("1", "0.01", "1500"), ("3", "0.5", "500"), ("20", "0.3", "80")])
def test_large_moments_lie_between_their_bounds(t: str, q: str, a: str, swaps: bool) -> None:
    """No integral is taken there: the binomial sum, of which each term is exact, without a swap."""
    with precision(400):
        found, order = normal_divergence(Pair(ball(t), ball(q), swaps), ball(a)), int(a)
        if swaps:  # at least as of two laws of which one is silent, at most as if all were sampled
            assert found >= 0
            assert found.upper() <= 2 * order * ball(t) ** 2 + 1e-9
        rate, square, terms = ball(q), ball(t) ** 2, list[arb]()
        for k in range(order + 1):
            chance = arb.bin_uiui(order, k) * rate**k * (1 - rate) ** (order - k)
            terms.append(chance * (k * (k - 1) * square / 2).exp())
        exact = sum(terms, arb(0)).log() / (order - 1)
        assert found.contains(exact) if not swaps else found.upper() >= exact.lower()
        assert float(found.rad()) < (0.02 if not swaps else 0.2) * float(exact)


def test_orders_of_laplace_noise_without_an_integral_are_continuous() -> None:
    with precision():
        pair = Pair(ball("2"), ball("0.1"))
        near, far = laplace_divergence(pair, ball("9999.5")), laplace_divergence(pair, ball("10000.5"))
        assert near < far
        assert float(far.rad()) < 1e-3
        assert float(far.upper()) - float(near.lower()) < 1e-3
        assert far.lower() < (1 + ball("0.1") * arb(2).expm1()).log()  # the largest loss


@pytest.mark.parametrize("order", ["1e40", "1e300"])
@pytest.mark.parametrize("swaps", [False, True])
def test_of_a_huge_order_laplace_noise_has_its_largest_loss(order: str, swaps: bool) -> None:
    with precision():
        q, t = ball("0.1"), ball("2")
        found = laplace_divergence(Pair(t, q, swaps), ball(order))
        largest = (1 + q * t.expm1()).log() - ((1 + q * (-t).expm1()).log() if swaps else 0)
        assert abs(float(found - largest)) < 1e-35


def test_a_record_that_is_always_in() -> None:
    with precision():
        assert abs(float(normal_divergence(Pair(ball(2), ball(1), swaps=True), ball(3))) - 24) < 1e-12
        whole = float(laplace_divergence(Pair(ball(2), ball(1), swaps=True), ball(3)))
        assert whole == pytest.approx(float(laplace_divergence(Pair(ball(4), ball(1)), ball(3))), rel=1e-12)
        assert whole == pytest.approx(math.log(0.6 * math.exp(8) + 0.4 * math.exp(-12)) / 2, rel=1e-12)


def test_of_a_large_order_the_reverse_is_bounded_by_the_rate() -> None:
    with precision():
        near = normal_divergence(Pair(ball(1), ball("0.2")), ball(9000), reverse=True)
        far = normal_divergence(Pair(ball(1), ball("0.2")), ball(20_000), reverse=True)
        assert far.lower() <= 0
        assert near < far.upper()
        assert float(far.upper()) == pytest.approx(-math.log(0.8), rel=1e-8)


def test_an_integral_that_is_too_large_for_quadrature_is_bounded() -> None:
    with precision():
        found = laplace_divergence(Pair(ball(60), ball("0.999999")), ball(10_000))
        assert found.is_finite()
        assert found.contains(ball("59.99993").union(ball("59.99994")))
        assert float(found.rad()) < 5e-3


def hockey_stick(centres: tuple[float, float], g: float, epsilon: float) -> float:
    """P(x > t) - e^epsilon Q(x > t) of two mixtures with N(0), at its best t."""
    far, near = centres

    def loss(x: float) -> float:
        first, second = (np.logaddexp(math.log1p(-g), math.log(g) + c * x - c * c / 2) for c in (far, near))
        return float(first - second) - epsilon

    if loss(60.0) <= 0:
        return 0.0
    t = brentq(loss, (far + near) / 2, 60.0)
    first, second = ((1 - g) * norm.sf(t) + g * norm.sf(t - c) for c in (far, near))
    return float(first - math.exp(epsilon) * second)


@pytest.mark.parametrize("swaps", [False, True])
@pytest.mark.parametrize(("mu", "g", "a"), [(0.5, 0.05, 2.0), (0.5, 0.05, 9.0), (1.0, 0.3, 1.5), (1.25, 0.5, 3.0)])
def test_batches_of_fixed_size_by_the_integral_of_their_profile(mu: float, g: float, a: float, swaps: bool) -> None:
    above = (2 * mu, 0.0) if swaps else (2 * mu, mu)
    below = above if swaps else (mu, 0.0)

    def moment(first: tuple[float, float], second: tuple[float, float]) -> float:
        def one(e: float) -> float:
            return math.exp((a - 1) * e) * hockey_stick(first, g, e) + math.exp(-a * e) * hockey_stick(second, g, e)

        return 1 + a * (a - 1) * sum(quad(one, low, low + 4, limit=200, epsabs=1e-13)[0] for low in range(0, 60, 4))

    with precision():
        found = fixed_size_divergence(ball(mu), ball(g), ball(a), swaps=swaps)
    for way, pair in zip(found, ((above, below), (below, above)), strict=True):
        assert float(way) == pytest.approx(math.log(moment(*pair)) / (a - 1), rel=1e-6)
    adjacency: Adjacency = "replace-one" if swaps else "zero-out"
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(1 / mu), sampler=WithoutReplacement(g, 1))], adjacency)
    first = float(divergence_upper(claim.canonical("upper"), np.array([a]))[0])
    assert 0.99 * first < max(map(float, found)) <= first * (1 + 1e-9)
