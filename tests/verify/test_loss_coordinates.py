"""Sums over equal coordinates against direct convolution and against the analytic Gaussian curve."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify.loss.cells import Cells, Pair, mix
from dpaudit.verify.loss.composition import Points, single_points
from dpaudit.verify.loss.coordinates import (
    coordinate_statistic,
    equal_coordinates,
    one_coordinate,
    sum_cells,
    sum_window,
)
from dpaudit.verify.loss.fourier import Lattice

REMOVE = Pair((0.0, 1.0), (1.0, 0.0))


def points_of(cells: Cells) -> Points:
    return single_points(*mix(cells, REMOVE))


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
def test_sum_masses_bracket_the_direct_convolution(law: object, centres: tuple[float, ...]) -> None:
    count, places = 6, np.array(centres)
    lattices = coordinate_statistic(law, places, count, 1e-12, resolution=60.0).lattices(law, places)
    window = sum_window(lattices, count)
    cells = sum_cells(lattices, count, window)
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


@pytest.mark.parametrize(("count", "mu"), [(2, 1.0), (50, 2.0), (3000, 0.5)])
def test_gaussian_coordinates_summed_give_the_analytic_curve(count: int, mu: float) -> None:
    """Balle and Wang (2018), Theorem 8: only the l2 length counts, and the engine here does not know it."""
    centres = np.array([0.0, mu / math.sqrt(count)])
    points = points_of(equal_coordinates(Gaussian(1.0).structure, centres, count, 1e-14))
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
    cells = equal_coordinates(Laplace(1e-7).structure, np.array([0.0, 0.006]), 20_000, 1e-12)
    assert points_of(cells).delta(np.array([100.0]))[0] > 0.999
