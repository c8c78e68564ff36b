"""Cells for iid noise: one shifted coordinate, or m coordinates shifted equally.

With m equal coordinates the output is summarised by the sum over them of an integer, the coordinate's own log-ratio
in units of a grid step. The sum's masses under every centre are convolution powers of exact cell masses.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify.loss.cells import (
    Cells,
    Pair,
    interval_masses,
    level_edges,
    mixture_logpdf,
    scan_points,
)
from dpaudit.verify.loss.fourier import LOG_WRAP, UNIT, Lattice, chernoff_window, log_mgf, tilted_power

Array = NDArray[np.float64]
Integers = NDArray[np.int64]

SUM_CELLS = 4000.0  # standard deviation of the sum, in cells
FINEST, COARSEST = 400.0, 8.0  # standard deviation of one coordinate, in cells
MAX_SIZE = 2**21
MAX_CELLS = 2**19


def first_look(law: IIDCoordinates, centres: Array, tail: float) -> Cells:
    """Coarse cells of one coordinate, to choose the grid by."""
    return interval_masses(law, scan_points(law, centres, tail), centres)


def one_coordinate(law: IIDCoordinates, centres: Array, pair: Pair, step: float, tail: float) -> Cells:
    """Cells of one coordinate whose edges are level sets of the step's own privacy loss, `step` apart or more."""
    x = scan_points(law, centres, tail)
    loss = mixture_logpdf(law, x, centres, pair.first) - mixture_logpdf(law, x, centres, pair.second)
    return interval_masses(law, level_edges(x, loss, max(step, float(np.ptp(loss)) / MAX_CELLS)), centres)


@dataclass(frozen=True)
class Statistic:
    """An integer-valued function of one coordinate: cell j of the partition by `edges` has the integer labels[j]."""

    edges: Array
    labels: Integers

    def lattices(self, law: IIDCoordinates, centres: Array) -> list[tuple[Lattice, Lattice]]:
        """Bounds (lower, upper) under each centre on the masses of the integers."""
        cells = interval_masses(law, self.edges, centres)
        base = int(self.labels.min())
        drift = UNIT * len(self.labels)
        return [
            (
                Lattice(
                    np.asarray(np.bincount(self.labels - base, weights=low) * (1.0 - drift), dtype=np.float64), base
                ),
                Lattice(
                    np.asarray(np.bincount(self.labels - base, weights=high) * (1.0 + drift), dtype=np.float64), base
                ),
            )
            for low, high in zip(cells.lower, cells.upper, strict=True)
        ]


def coordinate_statistic(
    law: IIDCoordinates,
    centres: Array,
    count: int,
    tail: float,
    resolution: float = SUM_CELLS,
    coarsest: float = COARSEST,
) -> Statistic:
    """log p(x - last centre) - log p(x - first centre), to the nearest multiple of a step fit for sums of `count`.

    Args:
        law: Law of the coordinate.
        centres: Increasing.
        count: How many coordinates will be summed.
        tail: Probability beyond which the tails are one cell.
        resolution: Standard deviation of the sum, in steps.
        coarsest: Least standard deviation of one coordinate, in steps.
    """
    x = scan_points(law, centres, tail)
    ratio = law.logpdf(x - centres[-1]) - law.logpdf(x - centres[0])
    weight = interval_masses(law, x, centres).upper[-1][1:-1]
    weight, value = weight / weight.sum(), 0.5 * (ratio[1:] + ratio[:-1])
    deviation = math.sqrt(float(weight @ np.square(value - weight @ value)))
    step = deviation / min(max(resolution / math.sqrt(count), coarsest), FINEST)
    edges = level_edges(x, ratio, step)
    inside = np.concatenate([[x[0]], 0.5 * (edges[1:] + edges[:-1]), [x[-1]]])
    return Statistic(edges, np.rint(np.interp(inside, x, ratio) / step).astype(np.int64))


def tilts(lattices: list[tuple[Lattice, Lattice]], count: int, tails: bool) -> list[tuple[int, float]]:
    """(centre, tilt) of the convolutions: each law seen from the bulk of every centre, and from the tails beyond."""
    spread = _deviation(lattices[-1][1]) * math.sqrt(count)
    separation = (_mean(lattices[-1][1]) - _mean(lattices[0][1])) / (len(lattices) - 1) * count
    unit = separation / spread**2  # tilting by this much moves one centre's law onto its neighbour's, nearly
    top = unit * (len(lattices) - 1)
    goals = [unit * i for i in range(len(lattices))] + ([-5.0 / spread, top + 5.0 / spread] if tails else [])
    return [(index, goal - unit * index) for index in range(len(lattices)) for goal in goals]


def sum_window(lattices: list[tuple[Lattice, Lattice]], count: int, tails: bool = True) -> tuple[float, float]:
    """An interval outside which the sum has mass at most e^LOG_WRAP under every centre and tilt."""
    extent = 0.05 / (_deviation(lattices[-1][1]) * math.sqrt(count)) * 2.0 ** (0.5 * np.arange(28))
    windows = []
    for index, theta in tilts(lattices, count, tails):
        grid = np.concatenate([theta - extent[::-1], [theta], theta + extent])
        windows.append(chernoff_window(grid, count * log_mgf(lattices[index][1], grid), len(extent)))
    return min(low for low, _ in windows), max(high for _, high in windows)


def sum_cells(
    lattices: list[tuple[Lattice, Lattice]], count: int, window: tuple[float, float], tails: bool = True
) -> Cells:
    """Certified masses under each centre of the sum of `count` independent coordinates' integers.

    Every mass is computed with several tilts, each accurate in another region; the tightest bounds are kept.

    Args:
        lattices: One coordinate's masses under each centre.
        count: Number of coordinates.
        window: An interval that contains the one from `sum_window`.
        tails: Whether masses must be accurate far beyond the bulks of the centres.
    """
    start = math.floor(window[0]) - 1
    size = 1 << math.ceil(math.log2(max(64.0, window[1] - start + 2)))
    if size > MAX_SIZE:
        raise ValueError(f"Expected a sum of count={count} coordinates to fit {MAX_SIZE} cells.")
    places = np.arange(start, start + size, dtype=np.float64)
    low = np.full((len(lattices), size), -np.inf)
    high = np.full((len(lattices), size), np.inf)
    for index, theta in tilts(lattices, count, tails):
        below, above = _log_bounds(lattices[index], count, theta, start, size, places)
        low[index] = np.maximum(low[index], below)
        high[index] = np.minimum(high[index], above)
    return Cells(np.exp(low), np.exp(high))


def equal_coordinates(law: IIDCoordinates, centres: Array, count: int, tail: float) -> Cells:
    """Cells of `count` coordinates around equal centres, by the sum of their integer statistics.

    Args:
        law: Law of each coordinate.
        centres: What one coordinate is centred at under each distribution, increasing.
        count: Number of coordinates.
        tail: Probability beyond which the tails of the sum may be merged.
    """
    for coarser in (1.0, 8.0, 64.0):
        statistic = coordinate_statistic(law, centres, count, tail / count, SUM_CELLS / coarser, COARSEST / coarser)
        lattices = statistic.lattices(law, centres)
        window = sum_window(lattices, count)
        if window[1] - window[0] < MAX_SIZE - 4:
            return sum_cells(lattices, count, window)
    # the centres are tens of thousands of standard deviations apart: any one output tells them apart
    return _apart(lattices, count, window)


def _apart(lattices: list[tuple[Lattice, Lattice]], count: int, window: tuple[float, float]) -> Cells:
    """Two cells, split in the middle of the outer centres' means, by Chernoff's bound."""
    middle = 0.5 * count * (_mean(lattices[0][1]) + _mean(lattices[-1][1]))
    extent = np.geomspace(1e-6, 1e3, 60) / _deviation(lattices[-1][1])
    right: list[float] = []
    left: list[float] = []
    for _, upper in lattices:
        for side, found in ((1.0, right), (-1.0, left)):
            bound = float(np.min(count * log_mgf(upper, side * extent) - side * extent * middle))
            found.append(math.exp(min(max(bound, -690.0), 0.0)))
    # the mass right of the middle and left of it, each bounded above; a lower bound is one minus the other's
    above = np.array([left, right]).T * (1.0 + 1e-9)
    return Cells(np.maximum(1.0 - above[:, ::-1] - 1e-9, 0.0), above)


def _log_bounds(
    lattices: tuple[Lattice, Lattice], count: int, theta: float, start: int, size: int, places: Array
) -> tuple[Array, Array]:
    """Logs of a lower and an upper bound on each cell's mass, from one tilt."""
    wrap = math.exp(LOG_WRAP) * 2.0
    down, up = (tilted_power([(lattice, count)], theta, start, size) for lattice in lattices)
    rounding = 4.0 * UNIT * np.abs(theta * places)
    with np.errstate(divide="ignore"):
        below = np.log(np.maximum(down.values - down.error_sup - wrap, 0.0)) + down.log_scale - theta * places
        above = np.log(np.maximum(up.values, 0.0) + up.error_sup) + up.log_scale - theta * places
    return below - down.relative - rounding, above + up.relative + rounding


def _mean(lattice: Lattice) -> float:
    places = lattice.first + np.arange(len(lattice.masses))
    return float(lattice.masses @ places / lattice.masses.sum())


def _deviation(lattice: Lattice) -> float:
    places = lattice.first + np.arange(len(lattice.masses)) - _mean(lattice)
    return math.sqrt(float(lattice.masses @ places**2 / lattice.masses.sum()))
