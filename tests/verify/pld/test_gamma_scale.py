"""Integrals over a Gamma law of a hidden scale, against closed forms and integrals in ball arithmetic."""

import math
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

pytest.importorskip("flint")

from flint import acb, arb, ctx
from scipy.special import betainc

from dpaudit.mechanisms import GammaPLRV, Laplace
from dpaudit.mechanisms.base import GammaScale
from dpaudit.verify.pld import gamma_scale
from dpaudit.verify.pld.gamma_scale import (
    RULE,
    RULE_ERROR,
    Scales,
    beyond,
    ladder,
    laplace_given_gamma,
    least_between,
    log_constant,
    most_inside,
    node_error,
    node_step,
    nodes_between,
    panels,
    up_to,
)

DRAWS = 1000


@pytest.fixture(autouse=True)
def precise() -> object:
    """Balls of 120 bits."""
    before, ctx.prec = ctx.prec, 120
    yield
    ctx.prec = before


def noise(k: float, theta: float) -> GammaScale:
    return GammaPLRV(k, theta).structure


def scales_of(law: GammaScale, gauges: int = 0, count: int = 1, reach: float = 1.0, tail: float = 1e-24) -> Scales:
    ends = (float(f(np.array(tail))) for f in (law.scale_ppf, law.scale_isf))
    return nodes_between(law, next(ends), next(ends), gauges, count, reach)


def bracket(
    scales: Scales, given: Callable[[np.ndarray], np.ndarray], lowest: float, highest: float
) -> tuple[float, float]:
    """Bounds on P(E) where P(E | u) is `given`, and between lowest and highest below the nodes."""
    p = given(scales.nodes)
    low = float(scales.weights * (1 - scales.relative) @ p) + scales.below[0] * lowest - scales.absolute
    return low, float(scales.weights * (1 + scales.relative) @ p) + scales.below[1] * highest + scales.above


def test_the_constant_of_the_density() -> None:
    rng = np.random.default_rng(0)
    for k in np.exp(rng.uniform(math.log(1e-3), math.log(1e9), DRAWS)):
        exact = float(arb(k) * arb(k).log() - arb(k) - arb(k).lgamma())
        assert log_constant(k) == pytest.approx(exact, abs=0.3 * gamma_scale.CONSTANT_ERROR, rel=1e-15)


def test_the_rule_of_a_panel() -> None:
    x, w = np.polynomial.legendre.leggauss(RULE)
    for i in range(RULE):
        root, weight = arb.legendre_p_root(RULE, RULE - 1 - i, weight=True)
        assert abs(float(root - x[i])) < 2.0**-53
        assert abs(float(weight / w[i] - 1)) < 0.1 * RULE_ERROR


def test_the_error_of_the_nodes_by_gamma_functions() -> None:
    """The first line of (1) by balls: never above the bound, and not far below it."""
    rng = np.random.default_rng(1)
    for _ in range(DRAWS):
        order, steps = math.exp(rng.uniform(0.0, 11.0)), rng.uniform(0.3, 3.0)
        step = steps / math.sqrt(order)
        exact = arb(0)
        for j in range(1, 12):
            wave = acb(arb(order), 2 * arb.pi() * j / arb(step))
            exact += 2 * (wave.lgamma() - arb(order).lgamma()).real.exp()
        bound = node_error(order, step)
        assert exact < bound
        # Stirling: what the best ray gives away is the fourth root of 1 + (w/K)^2
        room = (1 + (2 * math.pi / (step * order)) ** 2) ** 0.25
        assert bound < 1.5 * room * float(exact)


def test_the_step_is_just_small_enough_and_exact() -> None:
    for order in (1.0, 3.3, 1000.0, 1e6):
        step = node_step(order)
        assert node_error(order, step) <= gamma_scale.NODE_ERROR < node_error(order, 1.01 * step)
        assert (step * np.arange(1, 5000) / step == np.arange(1, 5000)).all()


def test_most_inside_is_a_quantile_of_the_binomial_law() -> None:
    for count, p in ((1, 0.3), (10, 0.999), (1000, 0.2), (10**6, 0.002)):
        most = most_inside(count, p)
        if most < count:
            nearer = int(most - 0.1 * (most - count * p))
            assert betainc(most + 1, count - most, p) <= math.exp(-gamma_scale.NODE_TAIL)
            assert betainc(nearer + 1, count - nearer, p) > math.exp(-gamma_scale.NODE_TAIL)


def draw(rng: np.random.Generator) -> tuple[float, float, int, int, int, float, float]:
    """Shape and scale; gauges, coordinates, those inside; distance and size, in units of the mean scale."""
    k, theta = math.exp(rng.uniform(math.log(0.3), math.log(3e4))), math.exp(rng.uniform(-8.0, 2.0))
    gauges, count = int(math.exp(rng.uniform(0.0, 7.0))), int(math.exp(rng.uniform(0.0, 6.0)))
    inside, distance = int(rng.integers(0, min(count, 40) + 1)), math.exp(rng.uniform(-6.0, 1.0)) / (k * theta)
    return k, theta, gauges, count, inside, distance, math.exp(rng.normal(0.0, 0.3)) * gauges / (k * theta)


def event(
    k: float, theta: float, gauges: int, count: int, inside: int, distance: float, size: float
) -> tuple[Callable[[np.ndarray], np.ndarray], arb, float]:
    """Density, at its largest 1, that `inside` coordinates are within the distance and the gauges sum to `size`.

    Given u, in closed form; hidden, as a ball: (1 - e^(-u d))^i is a sum of exponentials, each with its own Gamma
    integral (the sum loses up to 2^i: precision to match). Also u where it is largest.
    """

    def log_given(u: np.ndarray) -> np.ndarray:
        return gauges * np.log(u) - u * size + inside * np.log(-np.expm1(-u * distance))

    grid = k * theta * np.exp(np.linspace(-12.0, 8.0, 4001))
    top = float(log_given(grid).max())
    ctx.prec = 200 + 30 * inside
    order, rest = arb(k) + gauges, arb(0)
    for j in range(inside + 1):
        weight = arb(math.comb(inside, j)) * (-1) ** j
        rest += weight * (1 / arb(theta) + arb(size) + j * arb(distance)) ** -order
    rest *= (order.lgamma() - arb(k).lgamma() - arb(k) * arb(theta).log() - arb(top)).exp()
    return lambda u: np.exp(log_given(u) - top), rest, float(grid[int(np.argmax(log_given(grid)))])


@pytest.mark.slow
def test_nodes_hold_what_balls_say_at_random_points() -> None:
    """An event with known numbers inside and outside, and gauges: both sides of every bracket, and tight."""
    rng, wide = np.random.default_rng(2), []
    for _ in range(DRAWS):
        k, theta, gauges, count, inside, distance, size = point = draw(rng)
        given, exact, _ = event(*point)
        law = noise(k, theta)
        scales = scales_of(law, gauges, count, count * distance)
        highest = float(given(scales.nodes[:1])[0]) if inside + gauges >= scales.nodes[0] * size else 1.0
        low, high = bracket(scales, given, 0.0, highest)
        # the event's own function of u is computed to some 1e-12 at exponents of a thousand
        assert exact * (1 - 2e-12) - 1e-22 <= high
        assert low <= exact * (1 + 2e-12)
        wide.append((high - low) / (float(exact) + 1e-9))
    assert np.max(wide) < 1e-10


@pytest.mark.parametrize("charged", [True, False])
def test_the_error_of_coarse_nodes_is_charged(monkeypatch: pytest.MonkeyPatch, charged: bool) -> None:
    """With nodes so far apart that the rule is visibly wrong the bracket holds, and does not without the charge."""
    monkeypatch.setattr(gamma_scale, "NODE_ERROR", 0.02)
    rng, missed = np.random.default_rng(3), 0
    for _ in range(60):
        k, theta, gauges, count, _, distance, size = draw(rng)
        given, exact, _ = event(k, theta, gauges, count, 0, distance, size)
        scales = scales_of(noise(k, theta), gauges, 1, distance)
        scales = scales if charged else replace(scales, relative=0.0 * scales.relative + 1e-11)
        low, high = bracket(scales, given, 0.0, 1.0)
        missed += not (low <= exact * (1 + 2e-12) and exact * (1 - 2e-12) <= high)
    assert missed == 0 if charged else missed > 20


def test_tails_of_the_scale() -> None:
    rng, ctx.prec = np.random.default_rng(4), 300
    for _ in range(DRAWS // 4):
        k = math.exp(rng.uniform(math.log(0.01), math.log(1e6)))
        law, p = noise(k, 0.7), math.exp(rng.uniform(-60.0, -1.0))
        u = float(law.scale_isf(np.array(p)))
        exact = (arb(u) / arb(0.7)).gamma_upper(arb(k), regularized=1)
        assert exact <= beyond(law, u) <= float(exact) * (1 + 1e-8)
        u = float(law.scale_ppf(np.array(p)))
        if u > 1e-290:
            exact = 1 - (arb(u) / arb(0.7)).gamma_upper(arb(k), regularized=1)
            assert exact <= up_to(law, u) <= float(exact) * (1 + 1e-9 + 8 * u)  # a geometric series in its place


def exact_mean(k: float, growth: float, last: float) -> arb:
    """E[exp(growth (u^2 - last^2)); u <= last] for u of scale 1, in balls."""

    def integrand(u: acb, analytic: bool) -> acb:
        return (arb(k - 1) * u.log(analytic=analytic) - u + arb(growth) * (u * u - arb(last) ** 2) - constant).exp()

    constant, low = arb(k).lgamma(), min(max(k - 12.0 * math.sqrt(k), 1e-9 * k), 0.5 * last)
    below = 1 - arb(low).gamma_upper(arb(k), regularized=1)
    least = below * (arb(growth) * (arb(low) ** 2 - arb(last) ** 2)).exp()
    return acb.integral(integrand, arb(low), arb(last), rel_tol=arb(2) ** -40).real + least.union(arb(0))


@pytest.mark.parametrize("charged", [True, False])
def test_the_error_of_coarse_panels_is_charged(monkeypatch: pytest.MonkeyPatch, charged: bool) -> None:
    """Two nodes a panel and a small ellipse: still never below the mean, but far below it without the charge."""
    monkeypatch.setattr(gamma_scale, "RULE", 2)
    monkeypatch.setattr(gamma_scale, "RHO", 1.6)
    missed = 0
    for k, growth, last in ((3.0, 1.0, 9.0), (40.0, 0.2, 70.0), (0.5, 5.0, 4.0), (900.0, 0.002, 1100.0)):
        law = noise(k, 1.0)
        ends = ladder(law, 0.02 * last, last)
        rule = panels(law, ends)
        peak = growth * last**2
        value = float((rule.masses * np.exp(growth * rule.nodes**2 - peak)).sum())
        if charged:
            value += float((rule.error * np.exp(growth * rule.reach**2 - peak)).sum())
        value += up_to(law, float(ends[0])) * math.exp(growth * ends[0] ** 2 - peak)
        missed += not exact_mean(k, growth, last) <= value
    assert missed == 0 if charged else missed > 0


def test_panels_need_room_to_the_left() -> None:
    with pytest.raises(ValueError, match="wide"):
        panels(noise(3.0, 1.0), np.array([0.1, 1.0]))


def test_only_laplace_given_a_gamma_scale_is_known() -> None:
    law = noise(3.0, 0.1)
    assert laplace_given_gamma(law) is law
    assert laplace_given_gamma(Laplace(1.0).structure) is None
    assert laplace_given_gamma(replace(law, given=lambda u: Laplace(u).structure)) is None


def test_probabilities_between_scales() -> None:
    """Lower bounds between quantiles, against balls."""
    for k in (0.3, 3.0, 4e4):
        law = noise(k, 0.7)
        ends = law.scale_ppf(np.linspace(0.001, 0.999, 40))
        found = least_between(law, ends)
        exact = [(arb(u) / arb(0.7)).gamma_upper(arb(k), regularized=1) for u in ends]
        for value, low, high in zip(found, exact[1:], exact[:-1], strict=True):
            assert value <= high - low
            assert value >= float(high - low) * (1 - 1e-10)
