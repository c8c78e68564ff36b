"""Cells for iid noise: one shifted coordinate, or groups of equally shifted ones.

With several coordinates the output is summarised by the sum over them of an integer, the coordinate's own log-ratio in
units of one grid step. The sum's masses under every centre are convolutions of powers of exact cell masses, one power
for each group of equal coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import (
    SMALLEST_MASS,
    MassBounds,
    MixturePair,
    interval_masses,
    level_edges,
    mixture_logpdf,
    scan_points,
)
from dpaudit.verify.pld.fourier import LOG_WRAP, Lattice, chernoff_window, log_mgf, tilted_power

Integers = NDArray[np.int64]

SUM_CELLS = 4000.0  # standard deviation of the sum, in cells
MOST_CELLS_PER_DEVIATION, LEAST_CELLS_PER_DEVIATION = 400.0, 8.0  # standard deviation of one coordinate, in cells
MOST_OF_LONGEST = 4096.0  # the same of the coordinate that is moved furthest
MAX_SIZE = 2**21
MANY, BLOCKS = 2**20, 1000.0  # sums of more coordinates than this are counted in blocks: as many a standard deviation
MAX_CELLS = 2**19
FARTHEST_LOSS = 2000.0  # nats, beyond which losses are told apart no more: masses end at 690
FARTHEST_APART = 1e4  # of two centres, in deviations of the sum, that a tilt reaches across
MIRRORED = 1.1  # times the width of their bounds may have those that hold of mirror images, for half to be computed
MOST_LEVELS = 2.0**22  # that a coordinate's log-ratio may cross


def one_coordinate(
    law: IIDCoordinates, centres: Array, pair: MixturePair, step: float, tail: float, cap: float = math.inf
) -> MassBounds:
    """Masses of one coordinate on cells whose edges are level sets of the step's privacy loss, `step` apart or more.

    Losses beyond the cap in size are told apart no more.
    """
    x = scan_points(law, centres, tail)
    with np.errstate(invalid="ignore"):
        loss = mixture_logpdf(law, x, centres, pair.first) - mixture_logpdf(law, x, centres, pair.second)
    # far from all centres, or between them, densities vanish: one, or both
    cap = min(cap, FARTHEST_LOSS)
    loss = np.clip(np.where(np.isnan(loss), 0.0, loss), -cap, cap)
    return interval_masses(law, level_edges(x, loss, max(step, float(np.ptp(loss)) / MAX_CELLS)), centres)


@dataclass(frozen=True)
class CoordinateStatistic:
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


# one coordinate's masses (lower, upper) under each centre, and how many such coordinates there are
Part = tuple[list[tuple[Lattice, Lattice]], int]


def loss_deviation(law: IIDCoordinates, centres: Array, tail: float) -> float:
    """Standard deviation of one coordinate's log p(x - last centre) - log p(x - first centre); a guide to the grid.

    Never so little that a grid by it would need more than MAX_CELLS cells.
    """
    x = scan_points(law, centres, tail)
    with np.errstate(invalid="ignore"):
        ratio = np.nan_to_num(law.logpdf(x - centres[-1]) - law.logpdf(x - centres[0]))
    ratio = np.clip(ratio, -1e150, 1e150)
    weight = interval_masses(law, x, centres).upper[-1][1:-1]
    weight, value = weight / weight.sum(), 0.5 * (ratio[1:] + ratio[:-1])
    least = float(np.ptp(ratio)) * MOST_CELLS_PER_DEVIATION / MAX_CELLS
    return max(math.sqrt(float(weight @ np.square(value - weight @ value))), least, SMALLEST_MASS)


def common_step(deviations: Sequence[tuple[float, int]], resolution: float, coarsest: float) -> float:
    """Grid step of the log-ratio that suits groups of differently shifted coordinates.

    Args:
        deviations: Each group's `loss_deviation` and count.
        resolution: Standard deviation of the sum, in steps.
        coarsest: Least standard deviation of any coordinate, in steps.
    """
    total = math.sqrt(sum(count * deviation**2 for deviation, count in deviations))
    smallest, largest = min(deviations)[0], max(deviations)[0]
    # the cells of the longest shift are as many as this; those of shifts that are far shorter may then be coarse
    return max(
        min(total / resolution, smallest / coarsest), smallest / MOST_CELLS_PER_DEVIATION, largest / MOST_OF_LONGEST
    )


def coordinate_statistic(law: IIDCoordinates, centres: Array, step: float, tail: float) -> CoordinateStatistic:
    """The coordinate's log-ratio log p(x - last centre) - log p(x - first centre), in whole steps.

    Args:
        law: Law of the coordinate.
        centres: Increasing.
        step: Grid step.
        tail: Probability beyond which the tails are one cell.
    """
    x = scan_points(law, centres, tail)
    ratio = law.logpdf(x - centres[-1]) - law.logpdf(x - centres[0])
    told = float(np.abs(np.diff(ratio)).sum()) < MOST_LEVELS * step  # else the ratio is mostly rounding of densities
    edges = level_edges(x, ratio, step) if told else np.empty(0)
    if not len(edges):  # nor with a step beyond the whole ratio: one cell, which tells nothing
        return CoordinateStatistic(edges, np.zeros(1, dtype=np.int64))
    inside = np.concatenate([[x[0]], 0.5 * (edges[1:] + edges[:-1]), [x[-1]]])
    return CoordinateStatistic(edges, np.rint(np.interp(inside, x, ratio) / step).astype(np.int64))


def tilts(parts: Sequence[Part], tails: bool) -> list[tuple[int, float]]:
    """Exponential tilts, as (centre, tilt): each law seen from the bulk of every centre and from the tails beyond."""
    centres = len(parts[0][0])
    spread = _spread(parts)
    separation = min((_mean(parts, -1) - _mean(parts, 0)) / (centres - 1), FARTHEST_APART * spread)
    unit = separation / spread**2  # tilting by this much moves one centre's law onto its neighbour's, nearly
    top = unit * (centres - 1)
    goals = [unit * i for i in range(centres)] + ([-5.0 / spread, top + 5.0 / spread] if tails else [])
    return [(index, goal - unit * index) for index in range(centres) for goal in goals]


def sum_window(parts: Sequence[Part], tails: bool = True) -> tuple[float, float]:
    """An interval that holds the sum of the integers, but for mass e^LOG_WRAP under every centre and tilt."""
    extent = 0.05 / _spread(parts) * 2.0 ** (0.5 * np.arange(28))
    windows = []
    for index, theta in tilts(parts, tails):
        grid = np.concatenate([theta - extent[::-1], [theta], theta + extent])
        whole = np.sum([count * log_mgf(lattices[index][1], grid) for lattices, count in parts], axis=0)
        windows.append(chernoff_window(grid, whole, len(extent)))
    return min(low for low, _ in windows), max(high for _, high in windows)


def sum_cells(parts: Sequence[Part], window: tuple[float, float], tails: bool = True) -> MassBounds:
    """Certified masses under each centre of the sum over all independent coordinates of their integers.

    Every mass is computed with several tilts, each accurate in another region; the tightest bounds are kept. Where the
    first centre's law is the mirror image of the last one's, and so on, half of them are computed.

    Args:
        parts: The groups of equal coordinates.
        window: An interval that contains the one from `sum_window`.
        tails: Whether masses must be accurate far beyond the bulks of the centres.

    Returns:
        Masses of the integers from one before the window on, and of some beyond it.
    """
    start = math.floor(window[0]) - 1
    size = 1 << math.ceil(math.log2(max(64.0, window[1] - start + 2)))
    block = _block(parts)
    if size > MAX_SIZE * block:
        raise ValueError(f"Expected a sum of {sum(count for _, count in parts)} coordinates to fit {MAX_SIZE} cells.")
    places = start + np.arange(0, size, block, dtype=np.float64)
    centres = len(parts[0][0])
    mirrored = _mirrored(parts) if block == 1 and start == -math.ceil(window[1]) - 1 else None
    low, high = np.full((centres, len(places)), -np.inf), np.full((centres, len(places)), np.inf)
    for index, theta in tilts(parts, tails):
        if mirrored is None or 2 * index < centres:
            below, above = _log_bounds(mirrored or parts, index, theta, places, block)
            low[index] = np.maximum(low[index], below)
            high[index] = np.minimum(high[index], above)
    if mirrored is not None:
        low, high = low[:, : 1 - 2 * start], high[:, : 1 - 2 * start]  # from start to -start
        for index in range(centres // 2):
            low[-1 - index], high[-1 - index] = low[index, ::-1], high[index, ::-1]
    return MassBounds(np.exp(low), np.exp(high))


def _mirrored(parts: Sequence[Part]) -> list[Part] | None:
    """Bounds on each centre's masses that hold of its opposite centre's mirrored ones too, if they are next to as good.

    Centres and cells that lie around a point symmetrically do so up to roundings, far below what bounds leave open.
    """
    found: list[Part] = []
    for lattices, count in parts:
        both: list[tuple[Lattice, Lattice]] = []
        for (low, high), (other_low, other_high) in zip(lattices, reversed(lattices), strict=True):
            if low.first != 1 - other_low.first - len(other_low.masses):
                return None
            least = np.minimum(low.masses, other_low.masses[::-1])
            most = np.maximum(high.masses, other_high.masses[::-1])
            if float((most - least).sum()) > MIRRORED * float((high.masses - low.masses).sum()):
                return None
            both.append((Lattice(least, low.first), Lattice(most, low.first)))
        found.append((both, count))
    return found


def shifted_coordinates(law: IIDCoordinates, groups: Sequence[tuple[Array, int]], tail: float) -> MassBounds:
    """Masses of several shifted coordinates, by the sum over them of an integer statistic on one grid.

    Args:
        law: Law of each coordinate.
        groups: What a group's coordinates are centred at under each distribution, increasing, and how many they are.
        tail: Probability beyond which the tails of the sum may be merged.
    """
    coordinate_tail = tail / sum(count for _, count in groups)
    deviations = [(loss_deviation(law, centres, coordinate_tail), count) for centres, count in groups]
    for coarser in (1.0, 8.0, 64.0):
        step = common_step(deviations, SUM_CELLS / coarser, LEAST_CELLS_PER_DEVIATION / coarser)
        statistics = [coordinate_statistic(law, centres, step, coordinate_tail) for centres, _ in groups]
        parts = [
            (statistic.lattices(law, group[0]), group[1]) for statistic, group in zip(statistics, groups, strict=True)
        ]
        window = sum_window(parts)
        if window[1] - window[0] < MAX_SIZE * _block(parts) - 4:
            return sum_cells(parts, window)
    # the centres are tens of thousands of standard deviations apart: any one output tells them apart
    return _apart(parts)


def _block(parts: Sequence[Part]) -> int:
    """Integers of the sum that are counted together: a power of two, 1 for a sum of ordinary length."""
    if sum(count for _, count in parts) <= MANY:
        return 1
    return 1 << max(0, math.floor(math.log2(_spread(parts) / BLOCKS)))


def _apart(parts: Sequence[Part]) -> MassBounds:
    """Two cells, split in the middle of the outer centres' means, by Chernoff's bound."""
    middle = 0.5 * (_mean(parts, 0) + _mean(parts, -1))
    extent = np.geomspace(1e-6, 1e3, 60) / max(_deviation(lattices[-1][1]) for lattices, _ in parts)
    right: list[float] = []
    left: list[float] = []
    for index in range(len(parts[0][0])):
        for side, bounds in ((1.0, right), (-1.0, left)):
            whole = np.sum([count * log_mgf(row[index][1], side * extent) for row, count in parts], axis=0)
            bounds.append(math.exp(min(max(float(np.min(whole - side * extent * middle)), -690.0), 0.0)))
    # the mass right of the middle and left of it, each bounded above; a lower bound is one minus the other's
    above = np.array([left, right]).T * (1.0 + 1e-9)
    return MassBounds(np.maximum(1.0 - above[:, ::-1] - 1e-9, 0.0), above)


def _log_bounds(parts: Sequence[Part], index: int, theta: float, places: Array, block: int) -> tuple[Array, Array]:
    """Logs of a lower and an upper bound on each cell's mass under one centre, from one tilt."""
    start, size = int(places[0]), len(places) * block
    down, up = (
        tilted_power([(lattices[index][side], count) for lattices, count in parts], theta, start, size, block)
        for side in (0, 1)
    )
    wrap = math.exp(LOG_WRAP) * 2.0 * down.weight
    rounding = 4.0 * UNIT * np.abs(theta * places)
    with np.errstate(divide="ignore"):
        below = np.log(np.maximum(down.values - down.error_sup - wrap, 0.0)) + down.log_scale - theta * places
        above = np.log(np.maximum(up.values, 0.0) + up.error_sup) + up.log_scale - theta * places
    return below - down.relative - rounding, above + up.relative + rounding


def _mean(parts: Sequence[Part], index: int) -> float:
    """Mean of the sum under a centre."""
    return sum(count * _average(lattices[index][1]) for lattices, count in parts)


def _spread(parts: Sequence[Part]) -> float:
    """Standard deviation of the sum under the last centre, at least 1e-3 integers: a guide."""
    return max(math.sqrt(sum(count * _deviation(lattices[-1][1]) ** 2 for lattices, count in parts)), 1e-3)


def _average(lattice: Lattice) -> float:
    places = lattice.first + np.arange(len(lattice.masses))
    return float(lattice.masses @ places / lattice.masses.sum())


def _deviation(lattice: Lattice) -> float:
    places = lattice.first + np.arange(len(lattice.masses)) - _average(lattice)
    return math.sqrt(float(lattice.masses @ places**2 / lattice.masses.sum()))
