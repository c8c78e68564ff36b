"""Cells for noise that is iid Laplace given one hidden Gamma scale u: masses given u, averaged over the law of u.

The output is summarised by the sum of an integer statistic over the m shifted coordinates and, where u is uncertain,
by the size of some untouched coordinates, which estimates u. Given u the two are independent, so

    P(cell) = integral of f(u) G(size cell | u) P(sum cell | u) du,

by the trapezoidal rule in log u, whose error relative to P(cell) `gamma_scale` proves. Of the scales below the first
node u_0 nothing but this is used: a cell of one coordinate, its ends within D of the centre, has given u <= u_0 at most
e^(u_0 D) times its mass given u_0 [between two ends u e^(-u d)/2 <= e^(u_0 D) u_0 e^(-u_0 d)/2; half-lines have
e^(-u d)/2 or 1 - e^(-u d)/2], a cell of the sum of m of them at most e^(m u_0 D) times; a half-line has at least the
smaller of its mass given u_0 and 1/2.
"""

import math

import numpy as np
from scipy.special import gammainc, gammaincc, gammaincinv

from dpaudit.mechanisms.base import Array, GammaScale, IIDCoordinates, ScaleMixture
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import CDF_ERROR, SMALLEST_MASS, MassBounds, interval_masses, scan_points
from dpaudit.verify.pld.coordinate_cells import (
    MANY,
    CoordinateStatistic,
    Integers,
    common_step,
    coordinate_statistic,
    loss_deviation,
    sum_cells,
    sum_window,
)
from dpaudit.verify.pld.fourier import Lattice, log_mgf
from dpaudit.verify.pld.gamma_scale import Scales, laplace_given_gamma, nodes_between

SCALE_TAIL = 1e-24  # scale probability on each side beyond the nodes
SMALL_SCALES = 1e-7  # the same on the lower side where gauges tell such scales from all others
GAUGES = 800  # untouched coordinates that estimate u, at least
MOST_GAUGES = 20_000  # beyond it the time is not worth what is left to know
UNCERTAINTY_RATIO = 8.0  # how much less uncertain the estimate is to leave u
KNOWN_UNCERTAINTY = 0.03  # relative uncertainty of u below which it needs no estimate
DECISIVE_LOSS = 200.0  # nats that one coordinate costs, beyond which the others are not looked at
MAX_SUM = 2**15  # cells of a sum
RESOLUTION = 60.0  # standard deviation of the sum, in cells
MAX_NODES = 1200  # more would take too long; the smallest scales are given up for it
LEAST = 1e-150  # no product of two factors is a subnormal number, with which processors are slow
LOWEST = 100.0  # nats of log u below the mean down to which the first node is looked for
FAR = 1e4  # of one coordinate: shifts, and noise at the mean scale, beyond which the output is one cell

Row = list[tuple[Lattice, Lattice]]  # bounds on one coordinate's masses under each centre, given one u


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
    return count <= MANY and count * min(top * shift, 1.0) + 24.0 * math.sqrt(count) <= MAX_SUM


def scale_nodes(noise: GammaScale, gauges: int, reach: float, count: int = 1) -> Scales:
    """Nodes of the trapezoidal rule in log u, between scales beyond which little can happen.

    Args:
        noise: Law of u.
        gauges: Untouched coordinates whose size is observed.
        reach: How fast log masses move with u at u = 0: `count` times the distance between edges and centres.
        count: Shifted coordinates.
    """
    tail = SMALL_SCALES if _told_apart(noise, float(noise.scale_ppf(np.array(SMALL_SCALES))), gauges) else SCALE_TAIL
    mean = noise.shape * noise.scale
    # the first node u_0: at most `tail` is lost by P(E | u) lying between 0 and e^(reach u_0) P(E | u_0) below it
    tried = mean * np.exp(np.arange(-LOWEST, 0.0, 0.05))
    lost = noise.scale_cdf(tried) * np.minimum(np.expm1(np.minimum(reach * tried, 1.0)), 1.0)
    low = max(float(noise.scale_ppf(np.array(tail))), float(tried[max(int(np.searchsorted(lost, tail)) - 1, 0)]))
    high = float(noise.scale_isf(np.array(SCALE_TAIL)))
    return nodes_between(noise, low, high, gauges, count, reach, MAX_NODES)


def _told_apart(noise: GammaScale, low: float, gauges: int) -> bool:
    """Whether gauges of scales up to `low` are nearly all larger than those of the largest scales."""
    return gauges >= 50 and _larger_gauges(low, gauges) < _largest_gauged(noise)


def _larger_gauges(low: float, gauges: int) -> float:
    """The scale whose gauges' mean size only 1e-12 of those of the scale `low` stay below."""
    return low * gauges / float(gammaincinv(gauges, 1e-12))


def _largest_gauged(noise: GammaScale) -> float:
    """The largest scale for which gauges have a cell of their own."""
    return float(noise.scale_isf(np.array(1e-13)))


def mixture_cells(noise: ScaleMixture, centres: Array, count: int, dimension: int, tail: float) -> MassBounds:
    """Mass bounds of noise with a hidden scale u: `count` coordinates around equal centres, the others around 0.

    Args:
        noise: Law of u, and of the coordinates given u.
        centres: What a shifted coordinate is centred at under each distribution, increasing.
        count: Shifted coordinates.
        dimension: All coordinates; with one coordinate the output itself is divided into cells.
        tail: Probability beyond which the tails of the sum may be merged.

    Raises:
        ValueError: The noise is not Laplace given a Gamma scale, or the coordinates are too many.
    """
    known = laplace_given_gamma(noise)
    if known is None:
        raise ValueError("Expected noise to be Laplace of inverse scale u given u, and u to have a Gamma law.")
    if count > MANY:
        raise ValueError(f"Expected count={count} coordinates to be at most {MANY} under a hidden scale.")
    gauges = min(gauge_count(known, dimension), dimension - count)
    if count == 1 and float(noise.scale_isf(np.array(1e-9))) * float(np.ptp(centres)) > DECISIVE_LOSS:
        dimension, gauges = 1, 0  # the moved coordinate tells the distributions apart without the others
    scales, low, high = _sum_masses(known, centres, count, gauges, dimension, tail)
    gauge_low, gauge_high = _gauge_masses(known, scales, gauges)
    # first rows stand for the scales below the nodes
    error = scales.relative + 4.0 * UNIT * (len(scales.nodes) + MAX_SUM / 1000.0)  # with the roundings of the sums
    from_below = np.append(scales.below[0] * (1.0 - error[0]), scales.weights * (1.0 - error))
    from_above = np.append(scales.below[1] * (1.0 + error[0]), scales.weights * (1.0 + error))
    lower = _mean(gauge_low * from_below[:, None], low, 0.0) - scales.absolute
    return MassBounds(np.maximum(lower, 0.0), _mean(gauge_high * from_above[:, None], high, LEAST) + scales.above)


def _mean(by_gauge: Array, by_sum: Array, least: float) -> Array:
    """Sum over u of products: (u, i) by (u, centres, j), to (centres, i j); factors below LEAST count as `least`."""
    gauge, sums = (np.where(part > LEAST, part, least) for part in (by_gauge, by_sum))
    return np.stack([(gauge.T @ sums[:, centre]).ravel() for centre in range(sums.shape[1])])


def sum_statistic(
    noise: GammaScale, centres: Array, count: int, dimension: int, tail: float, coarser: float
) -> CoordinateStatistic:
    """The integer that a coordinate adds to the sum, in `coarser` steps; the number of its cell if it is alone."""
    mean = noise.shape * noise.scale
    law, tail = noise.given(mean), tail / count
    if dimension == 1:
        far = FAR * (float(np.ptp(centres)) + 1.0 / mean)  # what lies beyond has next to no loss
        ends = (float(f(np.array(SCALE_TAIL))) for f in (noise.scale_ppf, noise.scale_isf))
        laws = [noise.given(float(u)) for u in np.geomspace(max(next(ends), 1.0 / far), next(ends), 9)]
        edges = np.unique(np.concatenate([scan_points(given, centres, tail)[::8] for given in (law, *laws)]))
        edges = edges[np.abs(edges - centres.mean()) < far]
        return CoordinateStatistic(edges, np.arange(len(edges) + 1))
    deviation = loss_deviation(law, centres, tail)
    return coordinate_statistic(law, centres, common_step([(deviation, count)], RESOLUTION, 1.0) * coarser, tail)


def gauge_edges(noise: GammaScale, scales: Scales, gauges: int) -> Array:
    """Edges between cells of the gauges' size, each half as wide as what the size is uncertain by."""
    low, high = max(float(noise.scale_ppf(np.array(1e-7))), float(scales.nodes[0])), _largest_gauged(noise)
    if scales.below[0] > 10.0 * SMALL_SCALES:  # then they are to lie in the last cell
        low = max(low, _larger_gauges(float(scales.nodes[0]), gauges))
    if low >= high:
        return np.array([gauges / low])
    bins = max(2, math.ceil(math.log(high / low) * 2.0 * math.sqrt(gauges)))
    return np.asarray(gauges / np.geomspace(high, low, bins))


def _gauge_masses(noise: GammaScale, scales: Scales, gauges: int) -> tuple[Array, Array]:
    """Bounds, given each u, on the cells of sum |x_i| over untouched Laplace coordinates: it is Gamma(gauges, 1/u).

    The first row is for every u below the nodes: P(sum <= edge) grows with u, and the last cell has no right edge.
    A node's rounding, of four units, moves the log of either tail by max(gauges, u sum) times as much at most.
    """
    if not gauges:
        return np.ones((len(scales.nodes) + 1, 1)), np.ones((len(scales.nodes) + 1, 1))
    edges = gauge_edges(noise, scales, gauges)
    z = scales.nodes[:, None] * edges
    below, above = gammainc(gauges, z), gammaincc(gauges, z)
    ends = np.zeros((len(scales.nodes), 1))
    from_below = np.diff(np.concatenate([ends, below, ends + 1.0], axis=1), axis=1)
    from_above = -np.diff(np.concatenate([ends + 1.0, above, ends], axis=1), axis=1)
    left = np.concatenate([below, ends + 1.0], axis=1) < 0.5
    mass = np.where(left, from_below, from_above)
    smaller = np.where(left, np.concatenate([below, ends + 1.0], axis=1), np.concatenate([ends + 1.0, above], axis=1))
    moved = 16.0 * UNIT * (gauges + np.concatenate([z, z[:, -1:]], axis=1))
    error = 2.0 * smaller * (16.0 * CDF_ERROR * (1.0 + np.abs(np.log(np.maximum(smaller, SMALLEST_MASS)))) + moved)
    lower, upper = np.maximum(mass - error - SMALLEST_MASS, 0.0), mass + error + SMALLEST_MASS
    reached = np.cumsum(upper[0])  # P(sum <= right edge) given the first node
    reached[-1] = 1.0
    least = np.append(np.zeros(len(edges)), lower[0, -1])
    return np.vstack([least, lower]), np.vstack([reached, upper])


def _sum_masses(
    noise: GammaScale, centres: Array, count: int, gauges: int, dimension: int, tail: float
) -> tuple[Scales, Array, Array]:
    """Nodes of u, and bounds, given each, on the cells of the shifted coordinates' sum: (1 + nodes, centres, cells).

    The first row is for every u below the nodes.
    """
    coarser = 1.0
    for _ in range(2):
        statistic = sum_statistic(noise, centres, count, dimension, tail, coarser)
        reach = count * max(float(np.ptp(centres)), float(np.abs(statistic.edges[:, None] - centres).max(initial=0.0)))
        scales = scale_nodes(noise, gauges, reach * (1.0 + 8.0 * UNIT), count)
        # of the 128 (1 + |log tail|) units that `interval_masses` grants, a node's four roundings are four
        rows = [statistic.lattices(noise.given(float(u)), centres) for u in scales.nodes]
        windows = [_window(row, statistic, count) for row in rows]
        first, last = math.floor(min(low for low, _ in windows)), math.ceil(max(high for _, high in windows))
        if count == 1 or last - first <= MAX_SUM:
            break
        coarser = (last - first) / MAX_SUM  # the centres lie far apart: nothing is lost by coarser steps
    group = max(1, 2 ** math.floor(math.log2((last - first) / 1000.0))) if last - first > 1000 else 1
    edges = first + group * np.arange((last - first) // group + 2)  # merging cells is one more post-processing
    alone = count == 1 or first == last

    def masses(row: Row, window: tuple[float, float]) -> tuple[Array, Array]:
        if alone:
            return np.stack([low.masses for low, _ in row]), np.stack([high.masses for _, high in row])
        return _merged(row, count, window, edges)

    bounds = [masses(row, window) for row, window in zip(rows, windows, strict=True)]
    growth = reach * float(scales.nodes[0]) * (1.0 + 1e-12)
    low, high = np.zeros_like(bounds[0][0]), np.minimum(bounds[0][1] * math.exp(min(growth, 700.0)), 1.0)
    if growth < 1.0:  # else next to nothing would be left of the lower bounds
        least = _least(statistic, noise.given(float(scales.nodes[0])), centres)
        low = masses(least, _window(least, statistic, count))[0]
    return scales, np.stack([low, *(part for part, _ in bounds)]), np.stack([high, *(part for _, part in bounds)])


def _least(statistic: CoordinateStatistic, law: IIDCoordinates, centres: Array) -> Row:
    """Lower bounds on one coordinate's masses for every u up to that of the law; the upper ones are not used."""
    cells = interval_masses(law, statistic.edges, centres).lower
    base, size = int(statistic.labels.min()), int(np.ptp(statistic.labels)) + 1
    masses = np.zeros((len(centres), size))
    if len(statistic.labels) == 1:
        masses[:] = 1.0
    else:
        masses[:, statistic.labels[0] - base] = np.minimum(cells[:, 0], 0.5)
        masses[:, statistic.labels[-1] - base] += np.minimum(cells[:, -1], 0.5)
    return [(Lattice(row, base), Lattice(row, base)) for row in masses]


def _window(row: Row, statistic: CoordinateStatistic, count: int) -> tuple[float, float]:
    """An interval that holds the sum given one u, but for mass that does not matter."""
    first, last = float(statistic.labels.min()) * count, float(statistic.labels.max()) * count
    if count == 1 or last - first <= 2**10:
        return first, last
    low, high = sum_window([(row, count)], tails=False)
    return max(first, low), min(last, high)


def _merged(row: Row, count: int, window: tuple[float, float], edges: Integers) -> tuple[Array, Array]:
    """Bounds, given one u, on the masses of the sum from each edge (a whole number) to before the next one.

    What a cell has beyond the window is at most E e^(theta (sum - end)) for every tilt theta, positive at its left end,
    negative at its right one (Chernoff).
    """
    cells = sum_cells([(row, count)], window, tails=False)
    size, group = cells.lower.shape[1], int(edges[1] - edges[0])
    start = math.floor(window[0]) - 1  # the integer of the first cell
    index = (start + np.arange(size) - edges[0]) // group
    held = (index >= 0) & (index < len(edges) - 1)
    outside = (edges[:-1] < start) | (edges[1:] > start + size)
    # the spread of the sum is RESOLUTION cells at the mean scale
    thetas = 2.0 ** np.arange(-3.0, 7.0, 0.5) / RESOLUTION
    low, high = np.empty((len(row), len(edges) - 1)), np.empty((len(row), len(edges) - 1))
    for centre, (_, lattice) in enumerate(row):
        low[centre], high[centre] = (
            np.bincount(index[held], part[centre][held], len(edges) - 1) for part in (cells.lower, cells.upper)
        )
        right = np.min(count * log_mgf(lattice, thetas)[:, None] - thetas[:, None] * edges[:-1][outside], axis=0)
        left = np.min(count * log_mgf(lattice, -thetas)[:, None] + thetas[:, None] * (edges[1:][outside] - 1), axis=0)
        high[centre, outside] += np.exp(np.minimum(np.minimum(right, left), 0.0)) * (1.0 + 1e-6)
    return low, high
