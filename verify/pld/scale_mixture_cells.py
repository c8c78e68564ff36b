"""Cells for noise that is iid given one hidden scale u: masses given u, averaged over the law of u.

The output is summarised by the sum of an integer statistic over the m shifted coordinates and, where u is uncertain,
by the size of some untouched coordinates, which estimates u. Given u the two are independent, so

    P(cell) = integral of f(u) G(size cell | u) P(sum cell | u) du,

a smooth function's integral: the trapezoidal rule in log u, whose error falls geometrically. The difference from the
rule with every second node is charged as the error, and so is the scale mass beyond the nodes.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import gammainc, gammaincc

from dpaudit.mechanisms.base import Array, IIDCoordinates, LaplaceCoordinates, ScaleMixture
from dpaudit.verify.pld.cells import CDF_ERROR, SMALLEST_MASS, MassBounds, interval_masses, scan_points
from dpaudit.verify.pld.coordinate_cells import (
    common_step,
    coordinate_statistic,
    loss_deviation,
    sum_cells,
    sum_window,
)
from dpaudit.verify.pld.fourier import Lattice

SCALE_TAIL = 1e-24  # scale probability on each side beyond the nodes
SMALL_SCALES = 1e-7  # the same on the lower side where gauges tell such scales from all others
GAUGES = 800  # untouched coordinates that estimate u, at least
MOST_GAUGES = 20_000  # beyond it the time is not worth what is left to know
UNCERTAINTY_RATIO = 8.0  # how much less uncertain the estimate is to leave u
KNOWN_UNCERTAINTY = 0.03  # relative uncertainty of u below which it needs no estimate
DECISIVE_LOSS = 200.0  # nats that one coordinate costs, beyond which the others are not looked at
MAX_SUM = 2**15  # cells of a sum
RESOLUTION = 60.0  # standard deviation of the sum, in cells
MAX_NODES = 1200


@dataclass(frozen=True)
class Scales:
    """Nodes of the hidden scale with their trapezoidal weights (density included), and the mass below and above."""

    nodes: Array
    weights: Array
    below: float
    above: float


def uncertainty(noise: ScaleMixture) -> float:
    """Spread of the hidden scale u: half the central 68% range of log u."""
    low, high = noise.scale_ppf(np.array([0.16, 0.84]))
    return 0.5 * math.log(float(high / low))


def gauge_count(noise: ScaleMixture, dimension: int) -> int:
    """Number of coordinates left unshifted to estimate the hidden scale u, to a relative 1 / sqrt(count)."""
    before = uncertainty(noise)
    wanted = min(max(GAUGES, math.ceil((UNCERTAINTY_RATIO / before) ** 2)), MOST_GAUGES)
    return 0 if before < KNOWN_UNCERTAINTY else min(wanted, dimension // 4)


def resolved(noise: ScaleMixture, shift: float, count: int) -> bool:
    """Whether the sum of `count` coordinates' log-ratios fits MAX_SUM cells at every hidden scale.

    It spans count u shift between the centres and some 12 deviations sqrt(count) beyond, u being at most the largest.
    """
    top = float(noise.scale_isf(np.array(SCALE_TAIL)))
    return count * min(top * shift, 1.0) + 24.0 * math.sqrt(count) <= MAX_SUM


def scale_nodes(noise: ScaleMixture, gauges: int, reach: float) -> Scales:
    """Nodes of the trapezoidal rule in log u, half a standard deviation of the sharpest factor apart.

    Args:
        noise: Law of u.
        gauges: Untouched coordinates, whose size is sharp to 1 / sqrt(gauges).
        reach: How fast log masses move with log u at its upper end, about.
    """
    below = SMALL_SCALES if gauges >= 50 else SCALE_TAIL
    ends = np.log([float(noise.scale_ppf(np.array(below))), float(noise.scale_isf(np.array(SCALE_TAIL)))])
    width = 0.5 * min(uncertainty(noise), 1.0 / math.sqrt(max(gauges, 1)), 1.0 / (1.0 + reach), 0.25)
    count = min(2 * math.ceil((ends[1] - ends[0]) / (2.0 * width)) + 1, MAX_NODES + 1)
    s = np.linspace(ends[0], ends[1], count)
    weights = np.exp(noise.scale_logpdf(np.exp(s)) + s) * (s[1] - s[0])
    return Scales(np.exp(s), weights, 1.001 * below, 1.001 * SCALE_TAIL)


def mixture_cells(noise: ScaleMixture, centres: Array, count: int, dimension: int, tail: float) -> MassBounds:
    """Mass bounds of noise with a hidden scale u: `count` coordinates around equal centres, the others around 0.

    Args:
        noise: Law of u, and of the coordinates given u.
        centres: What a shifted coordinate is centred at under each distribution, increasing.
        count: Shifted coordinates.
        dimension: All coordinates; with one coordinate the output itself is divided into cells.
        tail: Probability beyond which the tails of the sum may be merged.
    """
    middle = float(noise.scale_ppf(np.array(0.5)))
    law = noise.given(middle)
    gauges = min(gauge_count(noise, dimension), dimension - count) if isinstance(law, LaplaceCoordinates) else 0
    top = float(noise.scale_isf(np.array(1e-9)))
    if count == 1 and top * float(np.ptp(centres)) > DECISIVE_LOSS:
        dimension, gauges = 1, 0  # the moved coordinate tells the distributions apart without the others
    scales = scale_nodes(noise, gauges, 2.0 * top * float(np.ptp(centres)) * math.sqrt(count))
    by_sum = _sum_masses(noise, scales, centres, count, dimension, tail)
    gauge, reached = _gauge_masses(noise, scales, gauges)
    sides = [_average(scales, gauge[side], by_sum[side]) for side in (0, 1)]
    # scales beyond the nodes may have put all their mass into any cell of the sum, but not into any cell of the size
    unseen = scales.above + scales.below * reached[None, :, None]
    lower, upper = sides[0][0] - sides[0][1], sides[1][0] + sides[1][1] + unseen
    shape = (len(centres), -1)
    return MassBounds(np.maximum(lower, 0.0).reshape(shape), upper.reshape(shape))


def _average(scales: Scales, gauge: Array, by_sum: Array) -> tuple[Array, Array]:
    """Trapezoidal mean over u of gauge (nodes, i) times by_sum (nodes, centres, j), and its error."""
    fine, coarse = (
        np.einsum(
            "ui,ucj->cij", gauge[::stride] * (stride * scales.weights[::stride, None]), by_sum[::stride], optimize=True
        )
        for stride in (1, 2)
    )
    return fine, np.abs(fine - coarse) + 1e-12 * fine


def _gauge_masses(noise: ScaleMixture, scales: Scales, gauges: int) -> tuple[tuple[Array, Array], Array]:
    """Bounds, given each u, on the cells of sum |x_i| over untouched Laplace coordinates: it is Gamma(gauges, 1/u).

    Also an upper bound on each cell's mass for every u below the nodes: P(sum <= right edge), which grows with u.
    """
    if not gauges:
        return (np.ones((len(scales.nodes), 1)), np.ones((len(scales.nodes), 1))), np.ones(1)
    low, high = (float(f(np.array(p))) for f, p in ((noise.scale_ppf, 1e-7), (noise.scale_isf, 1e-13)))
    bins = max(2, math.ceil(math.log(high / low) * 2.0 * math.sqrt(gauges)))
    edges = gauges / np.geomspace(high, low, bins)
    z = scales.nodes[:, None] * edges
    below, above = gammainc(gauges, z), gammaincc(gauges, z)
    ends = np.zeros((len(scales.nodes), 1))
    from_below = np.diff(np.concatenate([ends, below, ends + 1.0], axis=1), axis=1)
    from_above = -np.diff(np.concatenate([ends + 1.0, above, ends], axis=1), axis=1)
    left = np.concatenate([below, ends + 1.0], axis=1) < 0.5
    mass = np.where(left, from_below, from_above)
    smaller = np.where(left, np.concatenate([below, ends + 1.0], axis=1), np.concatenate([ends + 1.0, above], axis=1))
    error = 16.0 * CDF_ERROR * smaller * (1.0 + np.abs(np.log(np.maximum(smaller, SMALLEST_MASS)))) + SMALLEST_MASS
    reached = np.append(gammainc(gauges, scales.nodes[0] * edges) * 1.001 + SMALLEST_MASS, 1.0)
    return (np.maximum(mass - error, 0.0), mass + error), reached


def _sum_masses(
    noise: ScaleMixture, scales: Scales, centres: Array, count: int, dimension: int, tail: float
) -> tuple[Array, Array]:
    """Bounds, given each u, on the cells of the shifted coordinates' statistic: shape (nodes, centres, cells)."""
    law = noise.given(float(noise.scale_ppf(np.array(0.5))))
    laws = [noise.given(float(u)) for u in scales.nodes]
    if dimension == 1:
        edges = np.unique(
            np.concatenate(
                [scan_points(given, centres, tail)[::8] for given in (law, *laws[:: max(1, len(laws) // 8)])]
            )
        )
        bounds = [interval_masses(given, edges, centres) for given in laws]
        return np.stack([cells.lower for cells in bounds]), np.stack([cells.upper for cells in bounds])
    coordinate_tail = tail / count
    step = common_step([(loss_deviation(law, centres, coordinate_tail), count)], RESOLUTION, 1.0)
    lattices, first, last = _lattices(laws, law, centres, count, step, coordinate_tail)
    if count > 1 and last - first > MAX_SUM:  # the centres lie far apart: nothing is lost by coarser steps
        lattices, first, last = _lattices(laws, law, centres, count, step * (last - first) / MAX_SUM, coordinate_tail)
    if count == 1:
        return tuple(np.stack([[pair[side].masses for pair in row] for row in lattices]) for side in (0, 1))  # type: ignore[return-value]
    group = max(1, 2 ** math.floor(math.log2((last - first) / 1000.0))) if last - first > 1000 else 1
    sides: tuple[list[Array], list[Array]] = ([], [])
    for row in lattices:
        cells = sum_cells([(row, count)], (first, last), tails=False)
        # merging cells is one more post-processing; sizes are powers of two
        for side, masses in zip(sides, (cells.lower, cells.upper), strict=True):
            side.append(masses.reshape(len(centres), -1, group).sum(axis=2))
    return np.stack(sides[0]), np.stack(sides[1])


def _lattices(
    laws: Sequence[IIDCoordinates], law: IIDCoordinates, centres: Array, count: int, step: float, tail: float
) -> tuple[list[list[tuple[Lattice, Lattice]]], int, int]:
    """Given each u, one coordinate's masses in steps; and the first and last integer of the sum that matter."""
    statistic = coordinate_statistic(law, centres, step, tail)
    lattices = [statistic.lattices(given, centres) for given in laws]
    first, last = int(statistic.labels.min()) * count, int(statistic.labels.max()) * count
    if count > 1 and last - first > 2**10:
        windows = [sum_window([(row, count)], tails=False) for row in lattices]
        first = max(first, math.floor(min(low for low, _ in windows)))
        last = min(last, math.ceil(max(high for _, high in windows)))
    return lattices, first, last
