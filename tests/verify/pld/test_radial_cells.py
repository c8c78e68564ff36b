"""Tails of the loss of product noise against mpmath, sampling and theory's limits."""

import math
from dataclasses import replace
from itertools import pairwise
from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.optimize import brentq
from scipy.special import betainc
from scipy.stats import beta as beta_law
from scipy.stats import norm

from dpaudit.mechanisms import Product
from dpaudit.mechanisms.base import Array, Radial
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld import radial_tails
from dpaudit.verify.pld.radial_cells import NEXT_TO_NOTHING, level_ladder, log_second_upper, loss_tails, radial_cells
from dpaudit.verify.pld.radial_tails import tail_brackets


def exact_tail(dimension: int, sigma: float, level: float, sign: int) -> float:
    """P(L > level) for sign 1, P(L <= -level) for sign -1 at shift 1: quadrature over the radius in 30 digits."""
    half = mpmath.mpf(dimension - 1) / 2

    def given(r: mpmath.mpf) -> mpmath.mpf:
        def loss(w: mpmath.mpf) -> mpmath.mpf:
            square = r * r + 1 + 2 * r * w
            return (square - r * r) / (2 * mpmath.mpf(sigma) ** 2) + (dimension - 1) / mpmath.mpf(2) * mpmath.log(
                square / r**2
            )

        low, high = mpmath.mpf(-1) + mpmath.mpf(10) ** -25, mpmath.mpf(1)
        if loss(low) > sign * level:
            return mpmath.mpf(1 if sign > 0 else 0)
        if loss(high) < sign * level:
            return mpmath.mpf(0 if sign > 0 else 1)
        for _ in range(40):
            mid = (low + high) / 2
            low, high = (low, mid) if loss(mid) > sign * level else (mid, high)
        return mpmath.betainc(half, half, 0, (1 - sign * low) / 2, regularized=True)

    def density(r: mpmath.mpf) -> mpmath.mpf:
        return mpmath.sqrt(2 / mpmath.pi) / sigma * mpmath.exp(-((r / sigma) ** 2) / 2)

    ends = [mpmath.mpf(10) ** -6, *(sigma * mpmath.mpf(x) for x in (1e-3, 0.01, 0.03, 0.1, 0.3, 1, 2, 4, 9))]
    with mpmath.workdps(20):
        # 3e-6 from what twice the bisections and degree 5 give, at four times the cost
        return float(mpmath.quad(lambda r: density(r) * given(r), ends, maxdegree=3))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dimension", "sigma", "level"), [(5, 8.0, 0.3), (5, 8.0, 3.0), (100, 60.0, 0.1), (100, 60.0, 4.0)]
)
def test_tails_agree_with_quadrature_in_extended_precision(dimension: int, sigma: float, level: float) -> None:
    tails = loss_tails(Product(sigma, dimension=dimension).structure, dimension, 1.0, np.array([level]), 1e-5)
    for value, error, sign in ((tails.first, tails.first_error, 1), (tails.second, tails.second_error, -1)):
        exact = exact_tail(dimension, sigma, level, sign)
        assert value[0] == pytest.approx(exact, rel=2e-5, abs=2e-6)  # the oracle's kinks limit it
        assert error[0] < 1e-5 * value[0]


def test_cells_are_those_of_two_laws_about_the_true_one() -> None:
    """Q <= e^-l P in each cell, and the laws on both sides of the true one are laws."""
    dimension, noise = 50, Product(30.0, dimension=50).structure
    tails = loss_tails(noise, dimension, 1.0, level_ladder(noise, dimension, 1.0, 1e-8))
    for rising in (True, False):
        cells = radial_cells(tails, rising=rising)
        assert cells.lower.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-12)
        assert cells.upper.sum(axis=1) == pytest.approx([1.0, 1.0], abs=1e-12)
        # the first law never exceeds a level more often than the second
        beyond = [np.cumsum(part[:, ::-1].astype(np.longdouble), axis=1) for part in (cells.lower, cells.upper)]
        assert np.all(beyond[0] <= beyond[1] + 1e-15)
    positive = slice(len(tails.levels) + 1, None)
    cells = radial_cells(tails, rising=True)
    q, p = cells.upper[0, positive], cells.lower[1, positive]
    assert np.all(q[:-50] <= p[:-50] * np.exp(-tails.levels[:-50]) * (1 + 1e-2))
    assert np.all(log_second_upper(tails) <= np.log(tails.first + tails.first_error) - tails.levels + 1e-9)


@pytest.mark.parametrize(
    ("dimension", "sigma", "epsilon"), [(2, 10.0, 16.0), (2, 0.3, 18.0), (3, 0.3, 30.0), (3, 1.0, 2.0)]
)
def test_one_release_in_few_coordinates_by_a_plain_grid_around_the_centre_of_p(
    dimension: int, sigma: float, epsilon: float
) -> None:
    """delta = E_P[(1 - e^(epsilon - L))_+] has no narrow peak: radius and angle on Gauss-Legendre panels."""
    x, w = np.polynomial.legendre.leggauss(24)
    edges = np.concatenate([[0.0], np.geomspace(1e-13, 1e-2, 160), np.linspace(1e-2, 9.0 * sigma + 2.0, 400)[1:]])
    radius = (edges[:-1, None] + 0.5 * np.diff(edges)[:, None] * (x + 1.0)).ravel()
    weight = (0.5 * np.diff(edges)[:, None] * w).ravel() * math.sqrt(2 / math.pi) / sigma
    angle, spread = np.polynomial.legendre.leggauss(600)
    angle = 0.5 * math.pi * (angle + 1.0)
    spread = spread * np.sin(angle) ** (dimension - 2)
    square = radius[:, None] ** 2 + 1.0 + 2.0 * radius[:, None] * np.cos(angle)
    loss = (square - radius[:, None] ** 2) / (2 * sigma**2)
    loss += (dimension - 1) * (0.5 * np.log(square) - np.log(radius[:, None]))
    inner = -np.expm1(np.minimum(epsilon - loss, 0.0)) @ (spread / spread.sum())
    exact = float((weight * np.exp(-0.5 * (radius / sigma) ** 2)) @ inner)
    tails = loss_tails(Product(sigma, dimension=dimension).structure, dimension, 1.0, np.array([epsilon]), 1e-7)
    first, second = ((v[0] - e[0], v[0] + e[0]) for v, e in (
        (tails.first, tails.first_error), (tails.second, tails.second_error)
    ))  # fmt: skip
    factor = math.exp(epsilon)
    assert first[0] - factor * second[1] <= exact * (1 + 1e-5)
    assert exact * (1 - 1e-5) <= first[1] - factor * second[0]
    assert first[1] - factor * second[0] == pytest.approx(first[0] - factor * second[1], rel=1e-4)


def test_any_radius_is_bracketed_as_the_half_normal_one_is() -> None:
    """The bounds that only know that the density falls, about those of the known law."""
    law = Product(3.0, dimension=5).structure
    unknown = Radial(law.radius_logpdf, law.radius_cdf, law.radius_ppf)
    levels = np.array([0.3, 2.0, -0.3, -2.0])
    wide, narrow = (tail_brackets(noise, 5, 1.0, levels) for noise in (unknown, law))
    assert np.all(wide.lower <= narrow.upper)
    assert np.all(narrow.lower <= wide.upper)
    np.testing.assert_allclose(wide.lower, wide.upper, rtol=5e-3)


def test_sampled_losses_fall_in_the_cells_with_the_stated_probabilities() -> None:
    """Binomial counts of 200,000 draws at six levels, two-sided 1e-6 Clopper-Pearson: false alarm below 1.2e-5."""
    dimension, draws = 30, 200_000
    mechanism = Product(20.0, clip=1.0, dimension=dimension)
    shift = np.zeros(dimension)
    shift[:4] = 0.5
    noise = mechanism.sample(np.random.default_rng(7), draws)
    under_p, under_q = mechanism.privacy_loss(noise + shift, shift), mechanism.privacy_loss(noise, shift)
    levels = np.array([0.05, 0.5, 3.0])
    tails = loss_tails(mechanism.structure, dimension, 1.0, levels)
    for losses, expected in ((under_p, tails.first), (under_q, tails.second)):
        for level, probability in zip(levels, expected, strict=True):
            hits = int((losses > level).sum())
            low = beta_law.ppf(5e-7, hits, draws - hits + 1) if hits else 0.0
            high = beta_law.isf(5e-7, hits + 1, draws - hits)
            assert low <= probability <= high


def test_nearer_to_either_input_at_the_printed_calibration() -> None:
    """TPR .618 and FPR .382 at 784 dimensions and epsilon 0.1 (sigma of the paper's Theorem 8, k = 1000)."""
    m = 784
    sigma = math.sqrt(2 * 1000 ** (4 / m) * (m / 4 + 1.5) ** (1 + 4 / m) / math.exp(1 + 2 / m)) / 0.1
    noise = Product(sigma, dimension=m).structure
    tails = loss_tails(noise, m, 1.0, np.array([1e-9]))
    assert tails.first[0] == pytest.approx(0.618, abs=5e-4)
    assert tails.second[0] == pytest.approx(0.382, abs=5e-4)


@pytest.mark.parametrize(("sigma", "n", "level"), [(3.0, 2, 8.0), (50.0, 3, 12.0), (3.0, 5, 8.0)])
def test_few_coordinates_put_the_far_tail_into_a_narrow_range_of_radii(sigma: float, n: int, level: float) -> None:
    """P(L <= -level), where a release from P lands next to Q's centre, by a plain grid in polar coordinates there."""
    v = 1.0
    sphere = lambda d: 2.0 * math.pi ** (d / 2) / math.gamma(d / 2)  # noqa: E731
    r = np.geomspace(1e-9, 0.5, 2001)[:, None]
    angle = np.linspace(0.0, math.pi, 1001)[None, :]
    near = np.sqrt(r**2 + v**2 - 2.0 * r * v * np.cos(angle))
    loss = (r**2 - near**2) / (2.0 * sigma**2) + (n - 1) * np.log(r / near)
    density = math.sqrt(2.0 / math.pi) / sigma / sphere(n) * near ** (1 - n) * np.exp(-(near**2) / (2.0 * sigma**2))
    weight = density * np.sin(angle) ** (n - 2) * r**n * sphere(n - 1) * (loss <= -level)
    expected = np.trapezoid(np.trapezoid(weight, angle[0], axis=1), np.log(r[:, 0]))
    tails = loss_tails(Product(sigma, dimension=n).structure, n, v, np.array([level]))
    assert tails.second[0] == pytest.approx(expected, rel=0.02)
    assert tails.second_error[0] < 0.01 * expected


@pytest.mark.parametrize(("dimension", "sigma"), [(10_000, 500.0), (109_482_240, 44_862.0)])
def test_a_narrow_step_in_the_radius_is_resolved(dimension: int, sigma: float) -> None:
    """In many dimensions P(L > l | R) falls from 1 to 0 within sqrt(1/n) of log R: a coarse scan sees a jump."""
    noise = Product(sigma, dimension=dimension).structure
    for level in level_ladder(noise, dimension, 1.0, 1e-9)[-80::16]:

        def loss(log_radius: float, w: float) -> float:
            r = math.exp(log_radius)
            gap = 1.0 + 2.0 * r * w
            return gap / (2.0 * sigma**2) + 0.5 * (dimension - 1) * math.log1p(gap / r**2)

        def given(log_radius: float, level: float = level) -> float:
            ends = [-1.0 + 1e-12, 1.0]
            if loss(log_radius, ends[1]) <= level or loss(log_radius, ends[0]) >= level:
                return float(loss(log_radius, ends[0]) >= level)
            w = brentq(lambda x: loss(log_radius, x) - level, *ends, xtol=1e-16)
            return float(betainc(0.5 * (dimension - 1), 0.5 * (dimension - 1), 0.5 * (1.0 - w)))

        def weighted(log_radius: float) -> float:
            return given(log_radius) * 2.0 * norm.pdf(math.exp(log_radius) / sigma) * math.exp(log_radius) / sigma

        # the radius at which the loss straight across is the level
        middle = brentq(lambda s, level=level: loss(s, 0.0) - level, -25.0, math.log(20.0 * sigma))
        width = 12.0 / math.sqrt(dimension) * (1.0 + math.exp(middle))
        low, high = middle - width, min(middle + width, math.log(9.0 * sigma))
        pieces = np.linspace(low, high, 33)
        exact = 2.0 * norm.cdf(math.exp(low) / sigma) - 1.0
        exact += sum(quad(weighted, a, b, epsabs=0.0, epsrel=1e-9)[0] for a, b in pairwise(pieces))
        found = loss_tails(noise, dimension, 1.0, np.array([level]))
        assert abs(found.first[0] - exact) <= found.first_error[0] + 1e-7 * exact
        assert found.first_error[0] <= 1e-4 * exact


@pytest.mark.parametrize("level", [900.0, 1190.0, 1210.0, 5e4])
def test_levels_that_only_the_least_radii_reach(level: float) -> None:
    """P(L > l) is about P(R < C e^-t) with (n-1) t = l - C^2/(2 sigma^2); beyond 300 (n-1) only bounded from above."""
    found = tail_brackets(Product(0.25, dimension=5).structure, 5, 4.0, np.array([level, -level]))
    rare = math.sqrt(2 / math.pi) * 16.0 * math.exp(-(level - 128.0) / 4)
    assert found.lower[0] * (1 - 1e-5) <= rare <= found.upper[0] * (1 + 1e-5)
    if level < 1200:
        assert rare * (1 - 1e-3) <= found.lower[0] <= found.upper[0] <= rare * (1 + 1e-3)
    else:
        assert found.upper[0] < 1e-115


@pytest.mark.parametrize(("sigma", "dimension"), [(0.5, 4), (30.0, 300), (581.8, 460_000)])
def test_tails_without_the_record_are_as_near_as_they_matter(sigma: float, dimension: int) -> None:
    noise, tolerance = Product(sigma, dimension=dimension).structure, 1e-5
    levels = np.array([0.01, 0.5, 3.0, 20.0])
    found = loss_tails(noise, dimension, 2.0, levels, tolerance)
    exact = tail_brackets(noise, dimension, 2.0, -levels, 1e-7)
    assert (found.second - found.second_error <= exact.upper).all()
    assert (found.second + found.second_error >= exact.lower).all()
    enough = np.maximum(tolerance * found.second, NEXT_TO_NOTHING * tolerance * found.first * np.exp(-levels))
    assert (found.second_error <= enough * (1 + 1e-9) + 2e-300).all()


def test_cells_whose_bounds_are_rounding_are_not_halved(monkeypatch: pytest.MonkeyPatch) -> None:
    """In many dimensions L is N(mu^2/2, mu^2) given the radius, mu = sqrt(n) C/R; four million cells told no more."""
    evaluated = []
    shares = radial_tails._HalfNormalCells.shares

    def counted(self: Any, left: Array, right: Array, level: Array) -> Any:
        evaluated.append(len(level))
        return shares(self, left, right, level)

    monkeypatch.setattr(radial_tails._HalfNormalCells, "shares", counted)
    dimension, sigma, levels = 716_001_000, 2804.43, np.array([1e2, 1e4, 1e6])
    found = tail_brackets(Product(sigma, dimension=dimension).structure, dimension, 0.46, levels, 1e-6)
    assert sum(evaluated) < 60_000
    for level, low, high in zip(levels, found.lower, found.upper, strict=True):
        ends = [math.sqrt(dimension) * 0.46 / math.sqrt(2 * level * x) / sigma for x in (9, 2, 1.1, 1, 0.9, 0.5, 0.1)]

        def given(x: float, level: float = level) -> float:
            mu = math.sqrt(dimension) * 0.46 / (sigma * x)
            return float(2 * norm.pdf(x) * norm.sf((level - mu * mu / 2) / mu))

        parts = [quad(given, a, b, epsrel=1e-9)[0] for a, b in pairwise([1e-9, *ends, 9.0])]
        assert low * (1 - 1e-3) <= sum(parts) <= high * (1 + 1e-3)
        assert high - low <= 1e-4 * high


@pytest.mark.parametrize(("sigma", "dimension", "length"), [(5.7919, 131, 131**0.5), (5.7919, 131, 1.0), (0.3, 3, 1.0)])
def test_laws_in_stochastic_order_are_laws(sigma: float, dimension: int, length: float) -> None:
    """Tails that are known badly may not add up to more than 1: in a million steps that is mass from nowhere."""
    noise = Product(sigma, dimension=dimension).structure
    tails = loss_tails(noise, dimension, length, level_ladder(noise, dimension, length, 1e-9))
    worse = replace(tails, second_error=tails.second_error + 0.7)
    for known in (tails, worse):
        for rising in (True, False):
            cells = radial_cells(known, rising=rising)
            for masses in (*cells.lower, *cells.upper):
                assert masses.sum() == pytest.approx(1.0, abs=1e-12)


def test_a_sampled_record_costs_no_more_than_it_is_sampled() -> None:
    claim = Claim.single(
        Product(5.7919, clip_norm=math.inf, dimension=131),
        epsilon=23.8,
        delta=6e-4,
        steps=921_305,
        sampling_prob=1.7e-6,
    )
    once = 1 - (1 - 1.7e-6) ** 921_305
    low = certified_lower(claim)
    for epsilon in (0.0, 23.8):
        assert 0.95 * once <= low.delta(np.array([epsilon]))[0] <= once
