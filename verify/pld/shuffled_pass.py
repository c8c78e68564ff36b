"""One pass over shuffled batches with normal noise: delta(epsilon) from a mean of independent worst terms.

The theorem (`verify/upper/shuffled_batches.py`) bounds the pass by E (mean of m terms Y)_+, where E (Y - k)_+ is
`excess` at every k. Y is replaced by a variable on the multiples of a step h whose excess is the same at some of them,
L = first to K = last, and linear between: convex functions lie below chords, so it is convexly larger, and so is the
mean. Below L it is moved up to L. What is above K costs E (Y - K)_+ for every term, hence as much for their mean. The
same holds of an excess that came out too small by d: E (x + Y/m)_+ is (1/m) E (Y + m x)_+, so d/m for each of m terms.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.fourier import UNIT, Lattice, log_mgf, tilted_power
from dpaudit.verify.pld.normal_tails import tail_error
from dpaudit.verify.results import Direction

POINTS = 40.0  # lattice points in a deviation of Y: rounding adds 0.02% to its variance
WIDTH, MOST_POINTS = 24.0, 2.0**18  # deviations of the sum that are represented, and by how many points
CORE, GROWTH = 400, 0.01  # multiples around the mean, all of them, and a ladder outside
FARTHEST = 2**19  # multiples of the step at most
REACH, DEPTH = 8.3, 5.0  # deviations of the noise at K and at L
GENTLE, ENDS = 5e-3, 20.0  # deviation of Y below which K and L are so many of them from its mean


@dataclass(frozen=True)
class ShuffledPass:
    """Passes over shuffled batches.

    Args:
        batches: 1 over the largest probability of a batch to hold the record.
        shift: Clip over sigma.
        count: Independent passes.
    """

    batches: float
    shift: float
    count: int

    def spread(self, direction: Direction) -> float:
        """Deviation of Y without growth, roughly: of two likelihood ratios' difference, in the worst direction."""
        square = self.shift**2
        if direction == "swap":
            return 2.0 * math.sqrt(math.expm1(4.0 * square))
        return math.sqrt(math.exp(4.0 * square) - 2.0 * math.exp(2.0 * square) + math.exp(square))


def excess(levels: Array, growth: float, shift: float, direction: Direction) -> tuple[Array, Array]:
    """The largest E (R(a) - growth R(b) - k)_+ over all shifts a, b that occur, and its float error.

    R(a) is the likelihood ratio N(a)/N(0). For k >= 0 a set of mass Phi(-t) under N(a) has at least Phi(-|a - b| - t)
    under N(b) and Phi(-|a| - t) under N(0), both attained on a line; for k < 0 one of mass Phi(-t) under N(b) has at
    most Phi(|a - b| - t) and Phi(|b| - t) under the others. So only the largest distances count, in units of shift:
    |a - b|, |a|, |b| are 1, 2, 1 for "remove", 1, 1, 2 for "add", 2, 2, 2 for "swap".

    Args:
        levels: k.
        growth: e^epsilon, at least 1.
        shift: Clip over sigma.
        direction: Which law comes first.
    """
    found, error, high = np.empty(len(levels)), np.empty(len(levels)), levels >= 0
    above, below, square = levels[high], -levels[~high], shift * shift
    zero = np.zeros(1)
    if direction == "swap":
        found[high], error[high] = _best_half_line(2.0 * shift, np.ones(1), growth + above)
        found[~high], error[~high] = _best_half_line(2.0 * shift, 1.0 + below, zero + growth)
        return found, error
    if direction == "remove":
        # N(2) - growth N(1) - k N(0) is positive where w = R(1) has w^2 e^(-shift^2) - growth w - k > 0
        w = math.exp(square) * (growth + np.sqrt(growth**2 + 4.0 * above * math.exp(-square))) / 2.0
        z = np.log(w) / shift + shift / 2.0
        terms = (zero + 1.0, 2.0 * shift - z), (zero + growth, shift - z), (above, -z)
        found[high], error[high] = _signed_tails(terms, shift, 1)
        found[~high], error[~high] = _best_half_line(shift, 1.0 + below, zero + growth)
        return found, error
    found[high], error[high] = _best_half_line(shift, np.ones(1), growth + above)
    # N(1) + |k| N(0) - growth N(2) is positive where w has w + |k| - growth w^2 e^(-shift^2) > 0
    w = math.exp(square) * (1.0 + np.sqrt(1.0 + 4.0 * growth * below * math.exp(-square))) / (2.0 * growth)
    z = np.log(w) / shift + shift / 2.0
    terms = (zero + 1.0, z - shift), (below, z), (zero + growth, z - 2.0 * shift)
    found[~high], error[~high] = _signed_tails(terms, shift, 2)
    return found, error


def _best_half_line(distance: float, first: Array, second: Array) -> tuple[Array, Array]:
    """sup_t first Phi(-t) - second Phi(-distance - t), and its float error."""
    level = np.log(second / first) / distance
    return _signed_tails(((first, distance / 2.0 - level), (second, -distance / 2.0 - level)), distance, 1)


def _signed_tails(terms: Sequence[tuple[Array, Array]], shift: float, positive: int) -> tuple[Array, Array]:
    """Sum of coefficients times tails, the first ones added and the others subtracted, and the float error.

    A tail is off by a factor within `normal_tails.tail_error` and its coefficient by a few units. Where the half-line
    begins is a stationary point of the sum, so that a slip there counts by its square, times the sum of coefficients
    (|phi'| < 1/2); it comes of a logarithm and a division, rounded by 16 (1 + |argument| shift)/shift units.
    """
    value, error, size, slip = np.zeros(1), np.zeros(1), np.zeros(1), np.zeros(1)
    for index, (coefficient, argument) in enumerate(terms):
        part = coefficient * ndtr(argument)
        value = value + (part if index < positive else -part)
        error = error + part * (tail_error(np.minimum(argument, 0.0)) + 8.0 * UNIT)
        size = size + coefficient
        slip = np.maximum(slip, 16.0 * UNIT * (1.0 / shift + shift + np.abs(argument)))
    return np.maximum(value, 0.0), error + 4.0 * UNIT * np.abs(value) + size * slip**2


def _knots(mean: float, low: float, high: float, step: float) -> Array:
    """Multiples of the step from low to high: all near the mean, then a ladder."""
    centre = round(mean / step)
    sides = []
    for end in (centre - math.floor(low / step), math.ceil(high / step) - centre):
        last = min(max(end, 2), FARTHEST)
        ladder = np.geomspace(CORE, last, 2 + int(math.log(last / CORE) / GROWTH)) if last > CORE else np.empty(0)
        sides.append(np.unique(np.concatenate([np.arange(1.0, min(CORE, last) + 1.0), np.rint(ladder)])))
    return np.concatenate([centre - sides[0][::-1], [float(centre)], centre + sides[1]])


def _term(part: ShuffledPass, growth: float, terms: int, direction: Direction) -> tuple[Lattice, float, float]:
    """Y on a lattice, the step, and what is to be added to the mean's E (...)_+."""
    spread, shift = part.spread(direction), part.shift
    step = spread * max(1.0 / POINTS, WIDTH * math.sqrt(terms) / MOST_POINTS)
    far, away = {"remove": (2.0, 1.0), "add": (1.0, 2.0), "swap": (2.0, 2.0)}[direction]
    high = math.exp(min(shift * far * (REACH + shift * far / 2.0), 600.0))
    low = min(1.0 - growth - 6.0 * spread, -growth * math.exp(min(shift * away * DEPTH, 600.0)))
    if spread < GENTLE:  # Y is nearly normal
        low, high = max(low, 1.0 - growth - ENDS * spread), min(high, 1.0 - growth + ENDS * spread)
    places = _knots(1.0 - growth, low, high, step)
    levels = places * step
    values, error = excess(levels, growth, shift, direction)
    beyond = float(values[-1] + error[-1])
    slopes = np.diff(values - values[-1]) / np.diff(levels)
    masses = np.maximum(np.concatenate([[0.0], np.diff(slopes), [-slopes[-1]]]), 0.0)
    masses[0] = max(0.0, 1.0 - float(masses.sum()))
    masses *= 1.0 + 2.0 * UNIT * len(masses)  # at least 1 in all
    # the excess that these masses have, from above: sums of terms of one sign
    tails = np.cumsum(masses[:0:-1])
    reached = np.append(np.cumsum(tails * np.diff(levels)[::-1])[::-1], 0.0)
    short = float(np.max(values + error - beyond - reached * (1.0 - 4.0 * UNIT * len(masses))))
    grid = np.zeros(int(places[-1] - places[0]) + 1)
    grid[(places - places[0]).astype(np.int64)] = masses
    return Lattice(grid, int(places[0])), step, beyond + max(short, 0.0)


def mean_excess(part: ShuffledPass, growth: float, terms: int, direction: Direction) -> float:
    """Upper bound on E (mean of independent Y)_+.

    Args:
        part: The pass.
        growth: e^epsilon, at least 1.
        terms: How many.
        direction: Which law comes first.
    """
    term, step, added = _term(part, growth, terms, direction)
    places = term.first + np.arange(len(term.masses), dtype=np.float64)
    mean = float(term.masses @ places)
    deviation = math.sqrt(terms * max(float(term.masses @ (places - mean) ** 2), 1e-12))
    start = math.floor(min(terms * mean - WIDTH / 2.0 * deviation, 0.0) + 1.2 * min(places[0], 0.0)) - 1
    reach = max(terms * mean + WIDTH / 2.0 * deviation, 0.0) + 1.2 * places[-1] + 2.0
    size = 1 << math.ceil(math.log2(reach - start))
    power = tilted_power([(term, terms)], 0.0, start, size)
    end, scale = start + size, math.exp(power.log_scale) * (1.0 + power.relative + UNIT * size)
    sums = np.arange(1.0, end)
    inside = float(np.maximum(power.values[1 - start :], 0.0) @ sums) * scale
    noise = power.error_l2 * scale * math.sqrt(float(sums @ sums))
    # what wraps around from below only adds; u <= e^(tilt u)/(e tilt) of what lies above the window
    tilts = np.geomspace(0.5, 3000.0, 40) / size
    exponents = terms * log_mgf(term, tilts) - tilts * end
    best = int(np.argmin(exponents))
    above = (end + 1.0 / (math.e * tilts[best])) * math.exp(min(float(exponents[best]), 600.0)) * (1.0 + 1e-9)
    return float((inside + noise + above) * step / terms * (1.0 + 1e-13) + added)
