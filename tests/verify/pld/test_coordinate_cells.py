"""Sums over equal coordinates against direct convolution and against the analytic Gaussian curve."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GammaScaleLaplace, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify import Claim, check
from dpaudit.verify.pld.cells import MassBounds, MixturePair, mix
from dpaudit.verify.pld.coordinate_cells import (
    Part,
    _mirrored,
    common_step,
    coordinate_statistic,
    loss_deviation,
    one_coordinate,
    shifted_coordinates,
    sum_cells,
    sum_window,
)
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.operating_points import Points, single_points

REMOVE = MixturePair((0.0, 1.0), (1.0, 0.0))


def points_of(cells: MassBounds) -> Points:
    return single_points(*mix(cells, REMOVE))


def coarse_parts(law: IIDCoordinates, groups: list[tuple[np.ndarray, int]]) -> list[Part]:
    step = common_step([(loss_deviation(law, centres, 1e-12), count) for centres, count in groups], 60.0, 8.0)
    return [(coordinate_statistic(law, places, step, 1e-12).lattices(law, places), count) for places, count in groups]


def direct_sum(lattice: Lattice, count: int) -> np.ndarray:
    """The slow convolution, in extended precision."""
    result = np.ones(1, dtype=np.longdouble)
    for _ in range(count):
        result = np.convolve(result, lattice.masses.astype(np.longdouble))
    return result


@pytest.mark.parametrize(
    "law", [Laplace(0.8).structure, GeneralizedGaussian(3.0, 1.5).structure], ids=["laplace", "gg"]
)
@pytest.mark.parametrize("centres", [(0.0, 0.5), (-0.5, 0.0, 0.5)])
def test_sum_masses_bracket_the_direct_convolution(law: IIDCoordinates, centres: tuple[float, ...]) -> None:
    count, places = 6, np.array(centres)
    lattices = coarse_parts(law, [(places, count)])[0][0]
    window = sum_window([(lattices, count)])
    cells = sum_cells([(lattices, count)], window)
    start = math.floor(window[0]) - 1
    inside = 0
    for row, (low, high) in enumerate(lattices):
        slow_low, slow_high = direct_sum(low, count), direct_sum(high, count)
        at = count * low.first + np.arange(len(slow_low)) - start
        seen = (at >= 0) & (at < cells.lower.shape[1])
        assert np.all(cells.lower[row, at[seen]] <= slow_high[seen] * (1 + 1e-15))
        assert np.all(cells.upper[row, at[seen]] >= slow_low[seen] * (1 - 1e-15))
        bulk = seen & (slow_low > 1e-12)
        gap = cells.upper[row, at[bulk]] - cells.lower[row, at[bulk]]
        assert np.all(gap <= 1e-5 * cells.upper[row, at[bulk]])
        inside += bulk.sum()
        assert 1.0 - cells.lower[row].sum() < 1e-9
    assert inside > 300


@pytest.mark.parametrize("centres", [(0.0, 0.5), (-0.5, 0.0, 0.5), (3.0, 3.7)])
def test_mirror_images_give_the_masses_of_centres_computed_one_by_one(centres: tuple[float, ...]) -> None:
    parts = coarse_parts(Laplace(0.8).structure, [(np.array(centres), 40)])
    assert _mirrored(parts) is not None
    window = sum_window(parts)
    both, one_by_one = sum_cells(parts, window), sum_cells(parts, (window[0] - 1.0, window[1]))
    for half, whole in ((both.lower, one_by_one.lower), (both.upper, one_by_one.upper)):
        shifted = whole[:, 1 : 1 + half.shape[1]]
        seen = shifted > 1e-11
        assert seen.sum() > 300
        assert half[seen] == pytest.approx(shifted[seen], rel=1e-5)


def test_a_law_that_is_no_mirror_image_is_computed_under_every_centre() -> None:
    skewed = Lattice(np.array([0.5, 0.3, 0.2]), -1)
    lattices = [(skewed, skewed), (Lattice(np.array([0.25, 0.25, 0.5]), -1),) * 2]
    assert _mirrored([(lattices, 6)]) is None
    cells = sum_cells([(lattices, 6)], (-6.0, 6.0))
    for row, (low, _) in enumerate(lattices):
        exact = direct_sum(low, 6)
        assert np.all(cells.lower[row, 1:14] <= exact * (1 + 1e-15))
        assert np.all(cells.upper[row, 1:14] >= exact * (1 - 1e-15))
        assert cells.lower[row, 1:14] == pytest.approx(exact.astype(float), rel=1e-6)


@pytest.mark.parametrize(("count", "mu"), [(2, 1.0), (50, 2.0), (3000, 0.5)])
def test_gaussian_coordinates_summed_give_the_analytic_curve(count: int, mu: float) -> None:
    """Balle and Wang (2018), Theorem 8: only the l2 length counts, and the engine here does not know it."""
    centres = np.array([0.0, mu / math.sqrt(count)])
    points = points_of(shifted_coordinates(Gaussian(1.0).structure, [(centres, count)], 1e-14))
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        exact = norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * norm.sf(epsilon / mu + mu / 2)
        found = points.delta(np.array([epsilon]))[0]
        assert found <= exact
        if exact > 1e-10:
            assert found >= 0.997 * exact


def test_one_laplace_coordinate_attains_the_closed_form() -> None:
    """Within epsilon < 1/b: delta = 1 - exp((epsilon - 1/b)/2), Balle, Barthe and Gaboardi (2018), Theorem 3."""
    law, centres = Laplace(0.5).structure, np.array([0.0, 1.0])
    points = points_of(one_coordinate(law, centres, REMOVE, 1e-3, 1e-12))
    for epsilon in (0.0, 0.7, 1.9):
        exact = -math.expm1((epsilon - 2.0) / 2.0)
        assert 0.999 * exact <= points.delta(np.array([epsilon]))[0] <= exact
    assert 1.998 < points.epsilon(np.zeros(1))[0] <= 2.0


def test_centres_far_apart_are_told_apart() -> None:
    cells = shifted_coordinates(Laplace(1e-7).structure, [(np.array([0.0, 0.006]), 20_000)], 1e-12)
    assert points_of(cells).delta(np.array([100.0]))[0] > 0.999


def test_groups_of_different_coordinates_bracket_the_direct_convolution() -> None:
    """Two groups on one grid: 2 coordinates moved by 0.7, 5 by 0.2, against the slow convolution of both powers."""
    law = Laplace(0.8).structure
    parts = coarse_parts(law, [(np.array([0.0, 0.7]), 2), (np.array([0.0, 0.2]), 5)])
    window = sum_window(parts)
    cells = sum_cells(parts, window)
    start = math.floor(window[0]) - 1
    for centre in (0, 1):
        low, high = (
            np.convolve(*(direct_sum(lattices[centre][side], count) for lattices, count in parts)) for side in (0, 1)
        )
        at = sum(count * lattices[centre][0].first for lattices, count in parts) + np.arange(len(low)) - start
        seen = (at >= 0) & (at < cells.lower.shape[1])
        assert np.all(cells.lower[centre, at[seen]] <= high[seen] * (1 + 1e-15))
        assert np.all(cells.upper[centre, at[seen]] >= low[seen] * (1 - 1e-15))
        assert (low[seen] > 1e-12).sum() > 300
        assert 1.0 - cells.lower[centre].sum() < 1e-9


def test_a_gaussian_shift_costs_its_length_however_it_is_divided() -> None:
    """3 coordinates at 0.5 and 40 at 0.1: mu^2 = 3/4 + 2/5, in Balle and Wang (2018), Theorem 8."""
    mu = math.sqrt(3 * 0.5**2 + 40 * 0.1**2)
    groups = [(np.array([0.0, 0.5]), 3), (np.array([0.0, 0.1]), 40)]
    points = points_of(shifted_coordinates(Gaussian(1.0).structure, groups, 1e-14))
    for epsilon in (0.0, 0.5, 2.0, 4.0):
        exact = norm.sf(epsilon / mu - mu / 2) - math.exp(epsilon) * norm.sf(epsilon / mu + mu / 2)
        assert 0.997 * exact <= points.delta(np.array([epsilon]))[0] <= exact


def test_a_ratio_that_is_mostly_rounding_tells_nothing() -> None:
    """Each of 34 million coordinates is moved by 2e-9 of a scale of 200: the levels would take 40 GB."""
    mechanism = GammaScaleLaplace(609.395, 0.310097, clip=0.0649609, dimension=34_137_600)
    claim = Claim.single(mechanism, epsilon=3.17, delta=1.66e-8, steps=441_215, sampling_prob=0.176)
    verdict = check(claim)
    assert verdict.verdict == "certified"
    assert verdict.epsilon_lower <= verdict.epsilon_upper < 0.2
