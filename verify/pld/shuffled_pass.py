"""Passes over shuffled batches, and the worst term of one: the largest E (Y - k)_+ at every k.

What they cost is proved in `verify/upper/shuffled_batches.py`; sums of such terms are in `verify/pld/term_sums.py`.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.curve_pairs import Beyond, mirrored_hull
from dpaudit.verify.pld.normal_tails import tail_error
from dpaudit.verify.results import Direction

REACH, DEPTH = 8.3, 5.0  # deviations of the noise at the largest and the least Y that are told apart
# mass of large likelihood ratios that are subtracted, and logarithm of one, beyond which they need not be told apart
DEEP, DEEPEST = 1e-8, 7.0
LARGEST_LOG = 600.0  # of a likelihood ratio
# distances of the law with the record from the other one, of it from the noise alone, and of the other one from that
APART: dict[Direction, tuple[float, float, float]] = {
    "remove": (1.0, 2.0, 1.0),
    "add": (1.0, 1.0, 2.0),
    "swap": (2.0, 2.0, 2.0),
}


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
