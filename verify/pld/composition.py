"""Upper bound on delta(epsilon) of a history from its releases' privacy losses on one grid.

The total loss S is a sum of independent integers times the grid step h, and

    delta(epsilon) = P(S = inf) + sum over l > epsilon of P(S = l) (1 - e^(epsilon - l)).

The masses come from an exponentially tilted FFT, so that the float error is a small part of a Chernoff bound of the
tail itself and not of one; the error's l2 norm, times that of the weights (Cauchy-Schwarz), is added. Mass that wraps
around can only add, except that above the window, which is bounded by Chernoff and added too.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.curves import FARTHEST_EPSILON, SMALLEST_DELTA
from dpaudit.verify.pld.fourier import Lattice, chernoff_window, decayed_sums, log_mgf, tilted_power

# tail probabilities near which the tilts are most accurate, and the deltas below which the next one is tried too
AIMS = (0.2, 1e-8, 1e-14, 1e-22, 1e-40, 1e-80, 1e-160, 1e-280)
BORDERS = (math.inf, 1e-6, 1e-11, 1e-18, 1e-30, 1e-58, 1e-115, 1e-210)
MAX_SIZE = 1 << 21
LEAST_TILT = 1e-7  # least tilt in units of 1/deviation: practically none
LOG_OUTSIDE = -25.0  # log of the tilted mass outside the window, which costs tightness only
BULK = 8.0  # deviations below 0, beyond which practically no losses lie
SMALL = 1 << 16  # cells of a window up to which it is kept whole
MARGINS = (1e3, 1e9)  # factors above and below the deltas that a tail is for, up to which it is kept
PLACES = 4097  # of a tail at which is seen what is to be kept
RUNS = 1 << 13  # of cells, by which a tilt is chosen
FARTHEST = 2.0**62  # cells, beyond which every loss of a window counts as small


@dataclass(frozen=True)
class Tail:
    """Tail sums of a history's loss under one exponential tilt: A_j, B_j over k >= j, weighted back to j.

    delta(epsilon) = scale_j (A_j - e^(epsilon - l_j) B_j + error) + beyond, with j the first loss above epsilon, from
    the integer `lowest` to `highest`. Below, where the error would be scaled up, the bound is a chord: delta is convex
    in e^epsilon, and 1 where that is 0. Above, it is that at the highest: delta falls.

    Each sum is of `terms` numbers at most.
    """

    start: int
    upper: Array
    lower: Array
    error: float
    theta: float
    log_scale: float
    relative: float
    beyond: float
    lowest: int
    highest: float
    terms: int


@dataclass
class Composed:
    """The total privacy loss of a history in one direction, by tilted transforms computed when a query needs them.

    Args:
        parts: Grids of one release each, with the number of such releases; all on multiples of `step`.
        step: Grid step h.
        infinite: Mass of an infinite loss over the whole history, at most.
        slack: How far the total loss may lie above its place on the grid.
    """

    parts: Sequence[tuple[Lattice, int]]
    step: float
    infinite: float
    slack: float
    _tails: list[Tail | None] = field(default_factory=lambda: [None] * len(AIMS), repr=False)

    def delta(self, epsilon: Array) -> Array:
        """Upper bound on delta at each epsilon.

        Args:
            epsilon: Any 1-d array.
        """
        if self.infinite >= 1 or not all(part.masses.any() for part, _ in self.parts):
            return np.ones(len(epsilon))  # nothing finite is left
        epsilon = np.minimum(epsilon, FARTHEST_EPSILON)  # delta falls
        result, alone = np.ones(len(epsilon)), sum(count for _, count in self.parts) == 1
        for index, aim in enumerate(AIMS):
            wanted = np.flatnonzero(result < BORDERS[index])
            if not len(wanted) or (index and alone):
                break
            tail = self._tails[index]
            if tail is None:
                tail = self._tilted_tail(aim, alone)
                tail = self._tails[index] = tail if alone else self._asked(tail, index)
            result[wanted] = np.minimum(result[wanted], self._evaluate(tail, epsilon[wanted] - self.slack))
        return np.clip(result, SMALLEST_DELTA, 1.0)

    @cached_property
    def deviation(self) -> float:
        """Standard deviation of the total loss, in steps."""
        return math.sqrt(max(sum(count * _variance(part) for part, count in self.parts), 1e-12))

    def _tilted_tail(self, aim: float, alone: bool) -> Tail:
        if alone:  # a history of one release needs no transform
            only = self.parts[0][0]
            return _suffix_sums(only.masses, only.first, self.step, 0.0, 0.0, 0.0, 0.0, 0.0, only.first)
        deviation = self.deviation
        theta = self._aimed(math.log(aim), deviation)
        # Chernoff with tilts near theta: far ones see a release's rare large losses, and bound nothing
        gaps = np.concatenate([0.5 / deviation * 2.0 ** np.arange(7), theta * 2.0 ** np.arange(-5.0, 0.5)])
        thetas = np.unique(np.concatenate([theta - gaps, [theta], theta + gaps]))
        ks = np.sum([count * log_mgf(part, thetas) for part, count in self.parts], axis=0)
        low, high = chernoff_window(thetas, ks, int(np.searchsorted(thetas, theta)), LOG_OUTSIDE)
        start = math.floor(min(low, 0.0)) - 1
        # a shorter window stays valid: what lies above it is added through `beyond`
        size = min(1 << max(6, math.ceil(math.log2(high - start + 2))), MAX_SIZE)
        end = start + size
        power = tilted_power(list(self.parts), theta, start, size)
        beyond = math.exp(min(0.0, float(np.min(ks[thetas > 0] - thetas[thetas > 0] * (end - 1)))))
        decay = min(float(size), 1.0 / -math.expm1(-2.0 * theta))
        error = power.error_l2 * math.sqrt(decay)
        lowest = max(start, -math.ceil(BULK * deviation) - 1)
        return _suffix_sums(
            power.values, start, self.step, error, theta, power.log_scale, power.relative, beyond, lowest
        )

    def _asked(self, tail: Tail, index: int) -> Tail:
        """The part of a tail that queries look at, from where its delta is known to where the next tail knows more."""
        if len(tail.upper) <= SMALL:
            return tail
        last = tail.start + len(tail.upper)
        first = min(tail.lowest, last - 1)  # what is usual can lie far below 0, where all large losses are rare
        places = np.linspace(first, last - 1, PLACES).astype(np.int64)
        found = self._evaluate(tail, np.asarray(places * self.step, dtype=np.float64))
        above = np.flatnonzero(found >= BORDERS[index] * MARGINS[0])
        below = np.flatnonzero(found <= (*BORDERS[1:], 0.0)[index] / MARGINS[1])
        lowest = int(places[above[-1]]) if len(above) else first
        if not len(below) or places[below[0]] <= lowest:
            highest, end = math.inf, last
        else:
            highest = int(places[below[0]])
            end = highest + 2
        kept = slice(max(lowest - tail.start, 0), end - tail.start)
        upper, lower = tail.upper[kept].copy(), tail.lower[kept].copy()
        return replace(tail, start=tail.start + kept.start, upper=upper, lower=lower, lowest=lowest, highest=highest)

    def _aimed(self, aim: float, deviation: float) -> float:
        """The tilt at whose mean the Chernoff bound on the tail is e^aim."""
        # at most twice a normal law's: no tilt leads to less than an atom at the top, and steep ones see it alone
        low, high, most = 0.05 / deviation, 0.2 / deviation, 2.0 * math.sqrt(-2.0 * aim) / deviation
        # rare losses far above the deviation dominate a tilt that would suit a normal law
        while low > LEAST_TILT / deviation and self._reach(low) <= aim:
            low, high = 0.25 * low, low
        while high < most and self._reach(high) > aim:
            low, high = high, min(2.0 * high, most)
        if self._reach(high) > aim:
            return high if aim < math.log(AIMS[0]) else 0.2 / deviation
        for _ in range(12):
            middle = math.sqrt(low * high)
            low, high = (middle, high) if self._reach(middle) > aim else (low, middle)
        return low

    def _reach(self, theta: float) -> float:
        """K(theta) - theta K'(theta): log of the Chernoff bound at the mean of the tilted total."""
        total = 0.0
        for log_masses, places, count in self._logs:
            exponents = log_masses + theta * places
            top = float(exponents.max())
            weights = np.exp(exponents - top)
            mass = float(weights.sum())
            total += count * (top + math.log(mass) - theta * float(weights @ places) / mass)
        return total

    @cached_property
    def _logs(self) -> list[tuple[Array, Array, int]]:
        """(log mass, mean place, count) of runs of every part's cells, places from 0: `_reach` only aims."""
        runs = []
        for part, count in self.parts:
            first = np.arange(0, len(part.masses), -(-len(part.masses) // RUNS))
            masses = np.add.reduceat(part.masses, first)
            moments = np.add.reduceat(part.masses * np.arange(len(part.masses)), first)
            at = np.flatnonzero(masses > 0)
            runs.append((np.log(masses[at]), moments[at] / masses[at], count))
        return runs

    def _evaluate(self, tail: Tail, epsilon: Array) -> Array:
        wanted, lowest = epsilon, tail.lowest * self.step
        epsilon = np.clip(wanted, lowest, tail.highest * self.step)
        within = np.clip(epsilon / self.step, -FARTHEST, FARTHEST)
        first = np.floor(within).astype(np.int64) + 1  # the first loss above epsilon
        index = first - tail.start
        inside = np.clip(index, 0, len(tail.upper) - 1)
        place = (inside + tail.start).astype(float)
        gap = np.minimum(epsilon - place * self.step, 0.0)
        value = tail.upper[inside] - np.exp(gap) * tail.lower[inside]
        # sums of at most len(upper) nonnegative terms, whose difference cancels
        value += tail.error + tail.upper[inside] * 4.0 * UNIT * (tail.terms + 4 + np.abs(epsilon))
        exponent = tail.log_scale - tail.theta * place
        exponent += tail.relative + 8.0 * UNIT * (abs(tail.log_scale) + np.abs(tail.theta * place))
        with np.errstate(over="ignore"):
            value = np.maximum(value, 0.0) * np.exp(np.minimum(exponent, 700.0))
        value = np.where(index >= len(tail.upper), 0.0, value) + tail.beyond + self.infinite
        ratio = wanted - epsilon  # log of where e^epsilon is on the chord, where negative
        chord = -np.expm1(np.minimum(ratio, 0.0)) + np.exp(np.minimum(ratio, 0.0)) * np.minimum(value, 1.0)
        return np.asarray(np.where(ratio < 0, chord * (1.0 + 8.0 * UNIT), value))


def _variance(part: Lattice) -> float:
    places = np.arange(len(part.masses), dtype=float)
    weights = part.masses / part.masses.sum()
    return float(weights @ (places - weights @ places) ** 2)


def _suffix_sums(
    values: Array,
    start: int,
    step: float,
    error: float,
    theta: float,
    log_scale: float,
    relative: float,
    beyond: float,
    lowest: int,
) -> Tail:
    """Both families of weighted suffix sums; negative masses are float error, covered by `error`."""
    masses = np.maximum(values, 0.0)
    upper, lower = (decayed_sums(masses, rate) for rate in (theta, theta + step))
    return Tail(start, upper, lower, error, theta, log_scale, relative, beyond, lowest, math.inf, len(upper))
