"""Cells of the output space and certified bounds on their probability under several centres of the noise.

A cell's exact masses under all centres are a post-processing of the output, so any bound computed from them is valid,
however the cells were chosen. Rounding a privacy loss first and inferring the other mass from it is not.
"""

from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, PowerCoordinates
from dpaudit.mechanisms.numerics import UNIT

# Relative error granted to a distribution function at a tail probability t: CDF_ERROR (1 + |log t|). The logarithm
# is the conditioning of exp and of the argument; tests compare every mechanism with balls at this level. The tail of
# exp(-|x|^beta) noise is about exp(-|x|^beta), whose exponent takes beta times the rounding of x: past this beta, more.
CDF_ERROR, STEEP = 2.0**-46, 64.0
SMALLEST_MASS = 1e-300
SCAN_POINTS = 400  # points per tail and per gap between centres of the first look at a law
MANY_CENTRES, MOST_BETWEEN = 16, 1 << 13  # of so many centres, and points between the first and the last


@dataclass(frozen=True)
class MassBounds:
    """Bounds on the probability of disjoint cells: arrays of shape (centres, cells)."""

    lower: Array
    upper: Array


@dataclass(frozen=True)
class MixturePair:
    """The two output laws of a step, each a mixture of the noise around common centres.

    Args:
        first: Weights of the centres in the distribution whose events are likelier, P of a privacy loss log P/Q.
        second: Weights in the other one.
    """

    first: tuple[float, ...]
    second: tuple[float, ...]

    def swapped(self) -> "MixturePair":
        """The same two laws in the other direction of the privacy loss."""
        return MixturePair(self.second, self.first)


def tail_error(law: IIDCoordinates, tail: Array) -> Array:
    """Bound on the absolute error of a distribution function where its smaller tail is computed as `tail`."""
    steep = max(1.0, law.beta / STEEP) if isinstance(law, PowerCoordinates) else 1.0
    return np.asarray(CDF_ERROR * steep * tail * (1.0 + np.abs(np.log(np.maximum(tail, SMALLEST_MASS)))))


def interval_masses(law: IIDCoordinates, edges: Array, centres: Array) -> MassBounds:
    """Masses of (-inf, e_0), (e_0, e_1), ..., (e_last, inf) for one coordinate of noise around each centre.

    Tails are subtracted from tails, so that small masses keep their relative accuracy.

    Args:
        law: Law of the coordinate.
        edges: Increasing, shape (cells - 1,).
        centres: Shape (centres,).
    """
    z = edges[None, :] - centres[:, None]
    tail = law.cdf(-np.abs(z))
    # z itself is rounded: the centres see the edge at places that differ by a unit in the last place, where the density
    # is at most its value nearer to the centre
    moved = UNIT * (np.abs(edges)[None, :] + np.abs(centres)[:, None])
    density = np.exp(law.logpdf(np.maximum(np.abs(z) - moved, 0.0)))
    error = tail_error(law, tail) + density * moved * (1.0 + 1e-9) + SMALLEST_MASS
    ends = np.zeros((len(centres), 1))
    below = np.concatenate([z <= 0, ends > 0], axis=1)  # the cell's right edge is left of the centre
    above = np.concatenate([ends > 0, z >= 0], axis=1)  # its left edge is right of the centre
    left, right = np.concatenate([ends, tail], axis=1), np.concatenate([tail, ends], axis=1)
    mass = np.where(below, right - left, np.where(above, left - right, 1.0 - left - right))
    slack = np.concatenate([ends, error], axis=1) + np.concatenate([error, ends], axis=1) + UNIT * mass
    return MassBounds(np.maximum(mass - slack, 0.0), mass + slack)


FARTHEST = 1e150  # points of a scan, whose squares are floats


def scan_points(law: IIDCoordinates, centres: Array, tail: float) -> Array:
    """Increasing points that resolve a coordinate's law around every centre out to a tail probability."""
    quantiles = np.concatenate(
        [np.geomspace(max(tail, SMALLEST_MASS), 0.05, SCAN_POINTS), np.linspace(0.05, 0.5, SCAN_POINTS)[1:]]
    )
    half = np.asarray(law.ppf(quantiles))
    half = half[np.abs(half) < FARTHEST]  # a heavy tail goes on beyond the range of floats
    grid = np.concatenate([half, -half[:-1][::-1]])
    if len(centres) > MANY_CENTRES:  # those between are resolved by what lies between
        unit = max(abs(float(law.ppf(np.array([0.45]))[0])) / 2.0, float(np.ptp(centres)) / MOST_BETWEEN)
        between = np.arange(centres.min(), centres.max(), unit)
        return np.unique(np.concatenate([grid + centres.min(), grid + centres.max(), between]))
    between = np.linspace(centres.min(), centres.max(), SCAN_POINTS * (len(centres) - 1) + 1)
    return np.unique(np.concatenate([*(grid + c for c in centres), between]))


def mixture_logpdf(law: IIDCoordinates, x: Array, centres: Array, weights: tuple[float, ...]) -> Array:
    """Log-density at x of a mixture of one coordinate's law around several centres."""
    parts = [np.log(w) + law.logpdf(x - c) for w, c in zip(weights, centres, strict=True) if w > 0]
    return np.asarray(np.logaddexp.reduce(np.stack(parts), axis=0))


def level_edges(x: Array, values: Array, step: float) -> Array:
    """Places where a function given at points x crosses half-integer multiples of step, by linear interpolation.

    The edges need not be exact: they define the cells, whose masses are computed from them.
    """
    labels = np.rint(values / step).astype(np.int64)
    jumps = np.abs(np.diff(labels))
    at = np.repeat(np.arange(len(x) - 1), jumps)
    rank = np.arange(len(at)) - np.repeat(np.cumsum(jumps) - jumps, jumps)
    level = (labels[at] + np.sign(np.diff(labels))[at] * (rank + 0.5)) * step
    share = (level - values[at]) / (values[at + 1] - values[at])
    return np.unique(x[at] + share * (x[at + 1] - x[at]))


def mix(cells: MassBounds, pair: MixturePair) -> tuple[Array, Array]:
    """Masses of the cells under both laws of a pair: lower bounds under the first, upper bounds under the second."""
    first, second = np.asarray(pair.first), np.asarray(pair.second)
    return first @ cells.lower * (1.0 - 8 * UNIT), np.maximum(second @ cells.upper * (1.0 + 8 * UNIT), SMALLEST_MASS)
