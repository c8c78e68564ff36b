"""One pass over shuffled batches with normal noise: delta(epsilon) from a mean of independent worst terms.

The theorem (`verify/upper/shuffled_batches.py`) bounds the pass by E (mean of m terms Y)_+, where E (Y - k)_+ is
`excess` at every k. Y is replaced by a variable on the multiples of a step h whose excess is the same at some of them,
L = first to K = last, and linear between: convex functions lie below chords, so it is convexly larger, and so is the
mean. Below L it is moved up to L. What is above K costs E (Y - K)_+ for every term, hence as much for their mean. The
same holds of an excess that came out too small by d: E (x + Y/m)_+ is (1/m) E (Y + m x)_+, so d/m for each of m terms.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.curve_pairs import Beyond, mirrored_hull
from dpaudit.verify.pld.fourier import Lattice, Tilted, log_mgf, mixed_power
from dpaudit.verify.pld.normal_tails import tail_error
from dpaudit.verify.results import Direction

POINTS = 8.0  # lattice points in a deviation of Y: rounding adds 0.3% to its variance
WIDTH, MOST_POINTS = 24.0, 2.0**18  # deviations of the sum that are represented, and by how many points
LONGEST = 2.0**19  # places of a sum: beyond, Chernoff's bound stands for it
CORE, GROWTH = 400, 0.01  # multiples around the mean, all of them, and a ladder outside
FARTHEST, MOST_PLACES = 2.0**15, 2.0**14  # deviations of Y, and multiples of the step, at most
REACH, DEPTH = 8.3, 5.0  # deviations of the noise at K and at L
# mass of large likelihood ratios that are subtracted, and logarithm of one, beyond which they need not be told apart
DEEP, DEEPEST = 1e-8, 7.0
LARGEST_LOG = 600.0  # of a likelihood ratio
# distances of the law with the record from the other one, of it from the noise alone, and of the other one from that
APART: dict[Direction, tuple[float, float, float]] = {
    "remove": (1.0, 2.0, 1.0),
    "add": (1.0, 1.0, 2.0),
    "swap": (2.0, 2.0, 2.0),
}
TRIED_ENDS, TILTS = 48, 10  # of what is told apart
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

    def excess(self, levels: Array, growth: float, direction: Direction) -> tuple[Array, Array]:
        """The largest E (Y - k)_+ at each level k, and its float error."""
        return excess(levels, growth, self.shift, direction)

    def ends(self, growth: float, direction: Direction) -> tuple[float, float]:
        """Least and largest Y that are told apart."""
        _, far, away = APART[direction]
        high = math.exp(min(self.shift * far * (REACH + self.shift * far / 2.0), LARGEST_LOG))
        return -growth * math.exp(min(self.shift * away * DEPTH, LARGEST_LOG)), high


@dataclass(frozen=True)
class Tradeoff:
    """The largest P(S) for every Q(S) that a bound on delta(epsilon) in both orders leaves, rounded up.

    Args:
        second, first: Corners of it, (Q(S), P(S)), rising from (0, P(L = inf)) to (1, 1); straight between them.
        losses: Of the slopes above 1, ascending from 0.
        deltas: The bound there, and straight in e^epsilon between them.
    """

    second: Array
    first: Array
    losses: Array
    deltas: Array

    @classmethod
    def of_bound(cls, delta: Callable[[Array], Array], losses: Array) -> Self:
        """Of a bound at some losses, ascending from 0."""
        at, values = mirrored_hull(delta, losses)
        beyond = Beyond.of_curve(at, values)
        q = np.maximum(beyond.q - beyond.q_off, 0.0)[::-1]
        p = np.minimum(beyond.p + beyond.p_off + beyond.infinite, 1.0)[::-1]
        rising = np.maximum.accumulate(np.concatenate([q, 1.0 - p[::-1], [1.0]]))
        return cls(rising, np.maximum.accumulate(np.concatenate([p, 1.0 - q[::-1], [1.0]])), at, values)

    def delta(self, epsilon: Array) -> Array:
        """The bound at each epsilon >= 0."""
        if len(self.losses) == 1:
            return np.full(len(epsilon), self.deltas[0])
        at = np.clip(np.searchsorted(self.losses, epsilon, side="right") - 1, 0, len(self.losses) - 2)
        gap, width = np.maximum(epsilon - self.losses[at], 0.0), np.diff(self.losses)[at]
        share = np.exp(np.minimum(gap - width, 0.0)) * np.expm1(-gap) / np.expm1(-width)  # expm1(gap)/expm1(width)
        share = np.where(gap < width, share * (1.0 - 16.0 * UNIT * (1.0 + width)), 1.0)
        found = self.deltas[at] - (self.deltas[at] - self.deltas[at + 1]) * share
        return np.asarray(found * (1.0 + 4.0 * UNIT))

    def most(self, second: Array) -> Array:
        """The largest P(S) where Q(S) is known."""
        return np.asarray(np.interp(second, self.second, self.first))

    def least(self, first: Array) -> Array:
        """The least Q(S) where P(S) is known."""
        at = np.unique(self.first, return_index=True)[1]  # where P(S) is 1, the smallest
        return np.asarray(np.interp(first, self.first[at], self.second[at]))

    def far_out(self, mass: float) -> float:
        """A loss above which Q has at most so much mass."""
        outside = self.second[: len(self.losses)][::-1] <= mass
        return float(self.losses[int(np.argmax(outside))]) if outside.any() else float(self.losses[-1])


@dataclass(frozen=True, eq=False)
class CurvePass:
    """Passes over shuffled batches of any noise, by what distances of one and of two contributions leave.

    Args:
        batches, count: As of `ShuffledPass`.
        once, twice: Of releases that far apart.
        most: Loss beyond which likelihood ratios are not told apart.
    """

    batches: float
    count: int
    once: Tradeoff
    twice: Tradeoff
    most: float

    def _apart(self, direction: Direction) -> list[Tradeoff]:
        return [self.once if times == 1.0 else self.twice for times in APART[direction]]

    def spread(self, direction: Direction) -> float:
        """Deviation of Y without growth, roughly."""
        low, high = self.ends(1.0, direction)
        total = 0.0
        for end in (low, high):
            levels = math.copysign(1.0, end) * np.append(0.0, np.geomspace(1e-6, 1.0, 300) * abs(end))
            values = self.excess(levels, 1.0, direction)[0] + np.minimum(levels, 0.0)
            total += 2.0 * float(np.trapezoid(np.maximum(values, 0.0), np.abs(levels)))
        return max(math.sqrt(total), 1e-12)

    def excess(self, levels: Array, growth: float, direction: Direction) -> tuple[Array, Array]:
        """The largest E (Y - k)_+ at each level k, and its float error.

        For k >= 0 the largest P_a(S) - growth P_b(S) - k P_0(S), where P_a(S) leaves the others a least mass; for k < 0
        the largest P_a(S) - growth P_b(S) + |k| P_0(S), where P_b(S) leaves them a largest one. In that mass both are
        concave and piecewise linear: largest at a corner. At the largest nothing that is subtracted exceeds 1.
        """
        between, first, second = self._apart(direction)
        found, high = np.empty(len(levels)), levels >= 0
        masses = np.unique(np.concatenate([between.first, first.first]))
        lines = masses - growth * between.least(masses), -first.least(masses)
        found[high] = _largest(*lines, levels[high])
        masses = np.unique(np.concatenate([between.second, second.second]))
        found[~high] = _largest(between.most(masses) - growth * masses, second.most(masses), -levels[~high])
        size = 1.0 + growth + np.where(high, 0.0, np.abs(levels))
        return np.maximum(found, 0.0), 64.0 * UNIT * size

    def ends(self, growth: float, direction: Direction) -> tuple[float, float]:
        """Least and largest Y that are told apart."""
        _, first, second = self._apart(direction)
        high = math.exp(min(float(first.losses[-1]), self.most))
        return -growth * math.exp(min(second.far_out(DEEP), DEEPEST)), high


def _largest(values: Array, slopes: Array, at: Array) -> Array:
    """max over lines of value + slope x, at every x >= 0."""
    parts = [np.max(values + np.outer(x, slopes), axis=1) for x in np.array_split(at, len(at) // 256 + 1)]
    return np.concatenate(parts)


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
        last = max(end, 2)
        ladder = np.geomspace(CORE, last, 2 + int(math.log(last / CORE) / GROWTH)) if last > CORE else np.empty(0)
        sides.append(np.unique(np.concatenate([np.arange(1.0, min(CORE, last) + 1.0), np.rint(ladder)])))
    return np.concatenate([centre - sides[0][::-1], [float(centre)], centre + sides[1]])


@dataclass(frozen=True, eq=False)
class Term:
    """Y on the multiples of a step.

    Args:
        lattice: Masses there.
        step: Between neighbouring places.
        added: To a mean's E (...)_+.
    """

    lattice: Lattice
    step: float
    added: float
    sizes: dict[int, tuple[NDArray[np.complex128], Array, Array]] = field(default_factory=dict)

    @cached_property
    def masses(self) -> Tilted:
        """Masses for sums of draws."""
        return Tilted.of(self.lattice, 0.0)

    def of_size(self, size: int) -> tuple[NDArray[np.complex128], Array, Array]:
        """(transform, tilts, log E e^(tilt Y)) for windows of that size."""
        if size not in self.sizes:
            tilts = np.geomspace(0.5, 3000.0, TILTS) / size
            self.sizes[size] = self.masses.transform(size), tilts, log_mgf(self.lattice, tilts)
        return self.sizes[size]


def _ends(part: ShuffledPass | CurvePass, growth: float, direction: Direction, least: float) -> tuple[float, float]:
    """The least and the largest Y that are told apart."""
    spread = part.spread(direction)
    low, high = part.ends(growth, direction)
    low = min(1.0 - growth - 6.0 * spread, low)
    far = (ENDS if spread < GENTLE else FARTHEST) * spread  # gentle ones are nearly normal
    low, high = max(low, 1.0 - growth - far), min(high, 1.0 - growth + far)
    if least > 0.0 and high > spread:
        ends = np.geomspace(spread, high, TRIED_ENDS)
        enough = part.excess(ends, growth, direction)[0] <= least
        high = float(ends[int(np.argmax(enough))]) if enough.any() else high
    return low, high


def _term(
    part: ShuffledPass | CurvePass, growth: float, direction: Direction, ends: tuple[float, float], step: float
) -> Term:
    """Y on a lattice."""
    places = _knots(1.0 - growth, *ends, step)
    levels = places * step
    values, error = part.excess(levels, growth, direction)
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
    return Term(Lattice(grid, int(places[0])), step, beyond + max(short, 0.0))


def term_sums(
    part: ShuffledPass | CurvePass,
    growth: float,
    counts: Sequence[int],
    direction: Direction,
    points: float = POINTS,
    least: float = 0.0,
) -> "list[TermSum]":
    """Sums of so many independent Y.

    Args:
        part: The pass.
        growth: e^epsilon, at least 1.
        counts: How many, ascending.
        direction: Which law comes first.
        points: Of the lattice, in a deviation of Y.
        least: Of E (Y - k)_+, what may be added to a mean's instead of telling larger Y apart.
    """
    spread, ends = part.spread(direction), _ends(part, growth, direction, least)
    found, term = list[TermSum](), None
    for count in counts:
        finest = max(spread / points, (ends[1] - ends[0]) / MOST_PLACES)
        step = max(finest, spread * WIDTH * math.sqrt(count) / MOST_POINTS)
        if term is None or term.step != step:
            term = _term(part, growth, direction, ends, step)
        found.append(TermSum.of(term, count))
    return found


@dataclass(frozen=True, eq=False)
class TermSum:
    """A sum of independent Y, on the multiples of a step.

    Args:
        terms: How many.
        step: Between neighbouring places.
        places, masses: Whole numbers that are told apart, and upper bounds on the masses there but for the noise. None
            where the sum usually lies so far below 0 that they are too many.
        noise: Of the masses, in the mean square.
        tilts, exponents: Some tilts, and log E e^(tilt (sum - end)), end the first place beyond.
        added: To E (...)_+ for every term.
    """

    terms: int
    step: float
    places: Array
    masses: Array
    noise: float
    tilts: Array
    exponents: Array
    added: float

    @classmethod
    def of(cls, term: Term, terms: int) -> Self:
        """Of so many terms."""
        one, places = term.lattice, term.lattice.first + np.arange(len(term.lattice.masses), dtype=np.float64)
        mean = float(one.masses @ places)
        deviation = math.sqrt(terms * max(float(one.masses @ (places - mean) ** 2), 1e-12))
        start = math.floor(min(terms * mean - WIDTH / 2.0 * deviation, 0.0) + 1.2 * min(places[0], 0.0)) - 1
        reach = max(terms * mean + WIDTH / 2.0 * deviation, 0.0) + 1.2 * places[-1] + 2.0
        if reach - start > LONGEST:
            tilts = np.geomspace(1e-2, 1e2, 60) / deviation
            exponents = terms * log_mgf(one, tilts)
            return cls(terms, term.step, np.empty(0), np.empty(0), 0.0, tilts, exponents, term.added)
        size = 1 << math.ceil(math.log2(reach - start))
        transform, tilts, moments = term.of_size(size)
        power = mixed_power([(term.masses, transform)], [(1.0, [terms])], size)
        end, scale = start + size, math.exp(power.log_scale) * (1.0 + power.relative + UNIT * size)
        return cls(
            terms,
            term.step,
            np.arange(start, end, dtype=np.float64),
            np.maximum(np.roll(power.values, -(start % size)), 0.0) * scale,
            power.error_l2 * scale,
            tilts,
            terms * moments - tilts * end,
            term.added,
        )

    def excess(self, more: float = 0.0) -> float:
        """Upper bound on E (more + sum)_+, more >= 0."""
        further = more / self.step * (1.0 + 2.0 * UNIT)
        gains = np.maximum(self.places + further, 0.0)
        inside, noise = float(self.masses @ gains), self.noise * math.sqrt(float(gains @ gains))
        # what wraps around from below only adds; u <= e^(tilt u)/(e tilt) of what lies above the window
        end = float(gains[-1]) + 1.0 if len(gains) else 0.0
        exponents = self.exponents + (0.0 if len(gains) else self.tilts * further)
        slack = 64.0 * UNIT * (np.abs(self.exponents) + self.tilts * further) + 1e-9
        beyond = float(np.min((end + 1.0 / (math.e * self.tilts)) * np.exp(np.minimum(exponents + slack, 600.0))))
        return ((inside + noise + beyond) * self.step * (1.0 + 1e-13) + self.terms * self.added) * (1.0 + 4.0 * UNIT)


def mean_excess(
    part: ShuffledPass | CurvePass, growth: float, terms: int, direction: Direction, points: float = POINTS
) -> float:
    """Upper bound on E (mean of independent Y)_+; the arguments are those of `term_sums`."""
    return term_sums(part, growth, [terms], direction, points)[0].excess() / terms
