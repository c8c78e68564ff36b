"""A hidden scale averaged out: against the closed-form marginal, and against sampling."""

import itertools
import math
from collections import defaultdict

import numpy as np
import pytest
from scipy.special import gammainc, gammaincc
from scipy.stats import beta as beta_law

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Laplace
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld.cells import CDF_ERROR, MixturePair, mix
from dpaudit.verify.pld.coordinate_cells import CoordinateStatistic, coordinate_statistic
from dpaudit.verify.pld.operating_points import single_points
from dpaudit.verify.pld.scale_mixture_cells import (
    MOST_GAUGES,
    SMALL_SCALES,
    gauge_count,
    gauge_edges,
    mixture_cells,
    resolved,
    scale_nodes,
    sum_statistic,
)

REMOVE = MixturePair((0.0, 1.0), (1.0, 0.0))


@pytest.mark.parametrize("k", [2.5, 3.0, 400.0])
def test_weights_integrate_the_law_of_the_scale(k: float) -> None:
    scales = scale_nodes(GammaPLRV(k, 0.1, dimension=10).structure, 0, 1.0)
    assert scales.weights.sum() == pytest.approx(1.0, abs=1e-12)
    assert scales.weights @ scales.nodes == pytest.approx(k * 0.1, rel=1e-12)
    assert scales.weights @ np.exp(-3.0 * scales.nodes) == pytest.approx((1 + 0.3) ** -k, rel=1e-11)


def test_one_coordinate_of_a_hidden_scale_is_the_heavy_tailed_law() -> None:
    """With n = 1 a scale per vector is a scale per coordinate: delta by quadrature of the closed-form density."""
    k, theta = 3.0, 0.3
    density = GammaPLRVIID(k, theta).structure.logpdf
    x = np.linspace(-400.0, 401.0, 4_000_001)
    p, q = np.exp(density(x - 1.0)), np.exp(density(x))
    cells = mixture_cells(GammaPLRV(k, theta, dimension=1).structure, np.array([0.0, 1.0]), 1, 1, 1e-12)
    points = single_points(*mix(cells, REMOVE))
    for epsilon in (0.0, 0.2, 0.6):
        exact = float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum() * (x[1] - x[0]))
        assert 0.995 * exact <= points.delta(np.array([epsilon]))[0] <= exact * (1 + 1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(("dimension", "count"), [(40, 30), (110, 80)])
def test_the_bound_stays_below_the_sampled_truth_and_near_it(dimension: int, count: int) -> None:
    """The true delta of the shift is P(L > eps) - e^eps Q(L > eps): 300,000 draws each way, 1e-6 per side."""
    mechanism = GammaPLRV(3.0, 0.3, clip=1.0, dimension=dimension)
    value, draws, epsilon = 1.0 / math.sqrt(count), 300_000, 0.5
    shift = np.where(np.arange(dimension) < count, value, 0.0)
    rng, hits = np.random.default_rng(11), [0, 0]
    for _ in range(30):
        noise = mechanism.sample(rng, draws // 30)
        hits[0] += int((mechanism.privacy_loss(noise + shift, shift) > epsilon).sum())
        hits[1] += int((mechanism.privacy_loss(noise, shift) > epsilon).sum())
    low = [beta_law.ppf(1e-6, h, draws - h + 1) for h in hits]
    high = [beta_law.isf(1e-6, h + 1, draws - h) for h in hits]
    cells = mixture_cells(mechanism.structure, np.array([0.0, value]), count, dimension, 1e-12)
    found = single_points(*mix(cells, REMOVE)).delta(np.array([epsilon]))[0]
    assert found <= high[0] - math.exp(epsilon) * low[1]
    assert found >= 0.75 * (low[0] - math.exp(epsilon) * high[1])


@pytest.mark.slow
def test_a_shift_spread_thinner_than_its_cells_is_not_chosen() -> None:
    """880,414 coordinates would need sums wider than the cells; fewer serve as well where the noise is that small."""
    mechanism = GammaPLRV(k=14.6, theta=0.78, dimension=880_414)
    assert not resolved(mechanism.structure, mechanism.clip / math.sqrt(880_414), 880_414)
    found = certified_lower(Claim.single(mechanism, epsilon=6.0, delta=1e-8, sampling_prob=0.0065))
    fewer = certified_lower(
        Claim.single(GammaPLRV(k=14.6, theta=0.78, dimension=2000), epsilon=6.0, delta=1e-8, sampling_prob=0.0065)
    )
    at = np.array([1e-8])
    assert float(found.epsilon(at)[0]) == pytest.approx(float(fewer.epsilon(at)[0]), rel=0.02)


def test_a_step_beyond_the_whole_loss_tells_nothing() -> None:
    law, centres = Laplace(1.0).structure, np.array([0.0, 0.1])
    statistic = coordinate_statistic(law, centres, 1.0, 1e-12)
    for lower, upper in statistic.lattices(law, centres):
        assert (len(lower.masses), len(upper.masses)) == (1, 1)
        assert lower.masses[0] == pytest.approx(1.0)


Exponentials = dict[float, int]  # sum of the values' halves times e^(-u key)


def coordinate_masses(statistic: CoordinateStatistic, centre: float) -> dict[int, Exponentials]:
    """Twice each label's mass given u, of Lap(1/u) about the centre."""
    masses: dict[int, Exponentials] = defaultdict(lambda: defaultdict(int))
    for at, label in enumerate(statistic.labels):
        for sign, end in ((1, at), (-1, at - 1)):  # P(x < right edge) - P(x < left edge)
            if 0 <= end < len(statistic.edges):
                distance = float(statistic.edges[end]) - centre
                masses[int(label)][abs(distance)] += sign if distance <= 0 else -sign
                masses[int(label)][0.0] += 0 if distance <= 0 else 2 * sign
            elif sign > 0:
                masses[int(label)][0.0] += 2
    return masses


@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 2])
def test_cells_hold_what_balls_say(count: int) -> None:
    """Random cells of the gauges' size and of the sum, in closed form: e^(-u d) only moves the scale of the law of u.

    The size is a Gamma variable over u, so that P(size > z) is an incomplete beta function.
    """
    flint = pytest.importorskip("flint")
    arb, before = flint.arb, flint.ctx.prec
    flint.ctx.prec = 100
    rng, widths = np.random.default_rng(5), []
    for _ in range(20 if count == 1 else 5):
        k, dimension = math.exp(rng.uniform(-1.0, 6.5)), int(rng.integers(12, 900))
        law, shift = GammaPLRV(k, 1.0 / k).structure, math.exp(rng.uniform(-3.0, 1.5))
        centres = np.array([0.0, shift])
        gauges = min(gauge_count(law, dimension), dimension - count)
        statistic = sum_statistic(law, centres, count, dimension, 1e-10, 1.0)
        sizes = gauge_edges(law, scale_nodes(law, gauges, count * shift * (1 + 2**-50), count), gauges)
        cells = mixture_cells(law, centres, count, dimension, 1e-10)
        sums = cells.lower.shape[1] // (len(sizes) + 1)
        first = count * int(statistic.labels.min())
        for _ in range(20 if count == 1 else 2):
            centre = int(rng.integers(2))
            cell = int(rng.choice(np.flatnonzero(cells.upper[centre] > 1e-14)))
            size, place = cell // sums, cell % sums + first
            one, exact = coordinate_masses(statistic, float(centres[centre])), arb(0)
            given = one.get(place, {}) if count == 1 else product_at(one, place)
            for distance, halves in given.items():
                slower = 1 + arb(distance) / arb(k)
                beyond = [
                    (1 / (1 + arb(z) / arb(k) / slower)).beta_lower(arb(k), arb(gauges), regularized=1)
                    for z in sizes[max(size - 1, 0) : size + 1]
                ]
                above = beyond[0] if size else arb(1)
                exact += slower ** (-arb(k)) * (above - (beyond[-1] if size < len(sizes) else 0)) * halves / 2**count
            low, high = float(cells.lower[centre, cell]), float(cells.upper[centre, cell])
            assert low <= exact
            assert exact <= high
            assert high - low < 1e-8 * exact + 1.1 * SMALL_SCALES  # of the smallest scales little is known
            widths.append((high - low) / (float(exact) + 1e-12))
    flint.ctx.prec = before
    assert np.median(widths) < 1e-9


def test_cells_hold_one_whole() -> None:
    """Lower bounds sum to 1 at most, upper ones to 1 at least, also where gauges know u no better than its law does.

    With k = 752 and 245 gauges a scale at the lower end may have smaller gauges than one at the upper end.
    """
    rng = np.random.default_rng(6)
    drawn = [(math.exp(k), math.exp(n), math.exp(s)) for k, n, s in rng.uniform([1, 3, -18], [7.2, 9, 0], (8, 3))]
    for k, n, shift in [(752.143, 982.0, 2e-6), (752.143, 982.0, 0.02), (1020.0, 1100.0, 1e-9), *drawn]:
        law, dimension = GammaPLRV(k, 1.0 / k).structure, int(n)
        cells = mixture_cells(law, np.array([0.0, shift]), max(1, dimension // 8), dimension, 1e-12)
        assert (cells.lower.sum(axis=1) <= 1.0 + 1e-12).all(), (k, n, shift)
        assert (cells.lower.sum(axis=1) >= 1.0 - 1e-4).all(), (k, n, shift)
        assert (cells.upper.sum(axis=1) >= 1.0 - 1e-12).all(), (k, n, shift)


def product_at(one: dict[int, Exponentials], place: int) -> Exponentials:
    """Four times the mass at one place of the sum of two coordinates."""
    masses: Exponentials = defaultdict(int)
    for label, terms in one.items():
        for (d, a), (e, b) in itertools.product(terms.items(), one.get(place - label, {}).items()):
            masses[d + e] += a * b
    return masses


def test_incomplete_gamma_functions_are_as_accurate_as_granted() -> None:
    """Both tails of the gauges' size, for every number of gauges in use, down to e^-600."""
    flint = pytest.importorskip("flint")
    rng, granted = np.random.default_rng(6), 16.0 * CDF_ERROR
    with flint.ctx.workprec(1000):
        for gauges in np.unique(np.exp(rng.uniform(0.0, math.log(MOST_GAUGES + 1), 120)).astype(int)):
            for deviation in rng.uniform(-30.0, 30.0, 4):
                z = float(gauges) * math.exp(deviation / math.sqrt(gauges))
                above = flint.arb(z).gamma_upper(flint.arb(int(gauges)), regularized=1)
                for found, exact in ((gammainc(gauges, z), 1 - above), (gammaincc(gauges, z), above)):
                    tail = float(exact)
                    if exact.rel_accuracy_bits() > 50 and 1e-290 < tail < 0.9:
                        assert abs(found / tail - 1) < granted * (1 + abs(math.log(tail)))
