"""Cell masses against 40-digit arithmetic: the accuracy that the bounds take for granted."""

import itertools
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify.pld.cells import CDF_ERROR, interval_masses, level_edges, scan_points

Tail = Callable[[mpmath.mpf], mpmath.mpf]


def power_tail(beta: float, scale: float) -> Tail:
    b, s = mpmath.mpf(beta), mpmath.mpf(scale)
    return lambda x: mpmath.gammainc(1 / b, (-x / s) ** b) / mpmath.gamma(1 / b) / 2


LAWS: dict[str, tuple[IIDCoordinates, Tail]] = {
    "gaussian": (Gaussian(1.3).structure, lambda x: mpmath.ncdf(x / mpmath.mpf(1.3))),
    "laplace": (Laplace(1.3).structure, lambda x: mpmath.exp(x / mpmath.mpf(1.3)) / 2),
    "gamma-plrv-iid": (GammaPLRVIID(3.0, 0.1).structure, lambda x: (1 - mpmath.mpf(0.1) * x) ** -3 / 2),
    "gamma-plrv-iid-large": (GammaPLRVIID(4e4, 6e-5).structure, lambda x: (1 - mpmath.mpf(6e-5) * x) ** -40000 / 2),
    **{
        f"generalized-{beta}": (GeneralizedGaussian(beta, 2.7).structure, power_tail(beta, 2.7))
        for beta in (1.2, 1.5, 2.33, 3.0, 4.0)
    },
}


@pytest.mark.parametrize("name", LAWS)
def test_distribution_functions_are_as_accurate_as_the_bounds_assume(name: str) -> None:
    law, exact = LAWS[name]
    with mpmath.workdps(40):
        for x in law.ppf(np.concatenate([np.geomspace(1e-40, 0.4, 60), np.linspace(0.41, 0.4999, 30)])):
            truth = exact(mpmath.mpf(float(x)))
            error = abs(mpmath.mpf(float(law.cdf(x))) - truth) / truth
            assert error <= 0.5 * CDF_ERROR * (1 + abs(mpmath.log(truth)))


@pytest.mark.parametrize("name", LAWS)
def test_cell_masses_bracket_the_exact_ones_under_every_centre(name: str) -> None:
    law, exact = LAWS[name]
    centres = np.array([-0.4, 0.0, 0.7])
    edges = np.unique(np.concatenate([law.ppf(np.geomspace(1e-30, 0.4, 12)), [-0.01, 0.0, 0.3, 0.7, 4.0, 9.0]]))
    cells = interval_masses(law, edges, centres)
    with mpmath.workdps(160):

        def below(x: mpmath.mpf) -> mpmath.mpf:
            return exact(x) if x <= 0 else 1 - exact(-x)

        for row, centre in enumerate(centres):
            inner = [below(mpmath.mpf(float(e)) - mpmath.mpf(float(centre))) for e in edges]
            values = [mpmath.mpf(0), *inner, mpmath.mpf(1)]
            for j, (a, b) in enumerate(itertools.pairwise(values)):
                assert mpmath.mpf(float(cells.lower[row, j])) <= b - a <= mpmath.mpf(float(cells.upper[row, j]))
    widest = (cells.upper - cells.lower)[:, 1:-1] / cells.upper[:, 1:-1]
    assert widest.max() < 1e-6


def test_level_edges_are_where_the_function_crosses() -> None:
    x = np.linspace(-3.0, 3.0, 4001)
    edges = level_edges(x, x**2, 0.5)  # falls, then rises: every level is crossed twice
    levels = 0.25 + 0.5 * np.arange(18)
    assert edges == pytest.approx(np.sort(np.concatenate([-np.sqrt(levels), np.sqrt(levels)])), abs=1e-6)


def test_the_scan_covers_every_centre_out_to_the_tail() -> None:
    law, centres = Gaussian(1.0).structure, np.array([0.0, 5.0])
    x = scan_points(law, centres, 1e-12)
    assert law.cdf(x[0]) <= 1.01e-12
    assert law.cdf(5.0 - x[-1]) <= 1.01e-12
    assert np.all(np.diff(x) > 0)
