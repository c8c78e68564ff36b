"""Certified operating points (P(S), Q(S)) of a whole history from the cell masses of its steps.

Each step's output is mapped to an integer (its privacy loss in units of a grid step, to the nearest), the history to
the sum S of these integers. S is a function of the output, so for every threshold s the event {S >= s} gives

    delta(epsilon) >= P(S >= s) - e^epsilon Q(S >= s),

with P(S >= s) bounded below and Q(S >= s) above: both are convolution powers of EXACT cell masses, nothing is rounded
in the unsafe direction, and the grid costs only the variance of the loss inside a cell (second order in the step).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Protocol

import numpy as np
from scipy.optimize import isotonic_regression

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.fourier import (
    LOG_WRAP,
    Lattice,
    Power,
    chernoff_window,
    decayed_sums,
    log_mgf,
    tilted_power,
)

MAX_WINDOW = 2**20
CELLS_PER_DEVIATION = 2**13  # of the total loss, at most: the windows of a long history hold some 32 deviations
MAX_LABEL = 2**17
LOG_SMALLEST = -700.0  # tilts are tried, where asked for, until the tail they aim at is below e^-700 = 1e-304
MAX_POINTS = 20_000
SEEN = 1e-6  # error of an event's probabilities, relative to them, up to which a tilt sees it as well as another would
BLOCK = 16  # epsilons that share a choice of events
DECAY = 1000.0  # roundings of the weights in `decayed_sums`, and the logarithms'


@dataclass(frozen=True)
class Step:
    """`count` identical steps: lower bounds on P's and upper bounds on Q's masses, on a common integer grid."""

    first: Lattice
    second: Lattice
    count: int


@dataclass(frozen=True)
class Points:
    """Events {S >= s} with a certified lower bound on P and upper bound on log Q, sorted by the latter.

    Args:
        first_lower: P(S >= s) is at least this.
        log_second_upper: log Q(S >= s) is at most this.
        threshold: s times the grid step, about the privacy loss at the threshold.
    """

    first_lower: Array
    log_second_upper: Array
    threshold: Array

    def delta(self, epsilon: Array) -> Array:
        """Lower bound on delta at each epsilon: max over events of P - e^epsilon Q.

        What an event proves falls with epsilon. Of a block of rising epsilons only those events are looked at that
        prove at the first as much as some event does at the last.
        """
        best, order = np.zeros(len(epsilon)), np.argsort(epsilon, kind="stable")
        for block in np.array_split(order, -(-len(order) // BLOCK)) if len(order) else ():
            points = self
            if len(block) > 2:
                least = max(0.0, float(self._excess(epsilon[block[-1]]).max(initial=0.0)))
                kept = self._excess(epsilon[block[0]]) >= least - 1e-12  # exp may be off by a unit in the last place
                points = Points(self.first_lower[kept], self.log_second_upper[kept], self.threshold[kept])
            best[block] = [max(0.0, float(points._excess(e).max(initial=0.0))) for e in epsilon[block]]
        return best

    def epsilon(self, delta: Array) -> Array:
        """Lower bound on epsilon at each delta: max over events of log((P - delta) / Q)."""
        return np.array([self._ratio(d) for d in delta])

    def near(self, epsilon: float) -> "Points":
        """The events among which the best one at epsilon is: these."""
        return self

    def charged(self, lost: float) -> "Points":
        """The same events where the second probability of any may be larger by `lost`, above 0."""
        more = np.logaddexp(self.log_second_upper, math.log(lost))
        return Points(self.first_lower, more + 4.0 * UNIT * (np.abs(more) + 1.0), self.threshold)

    def best_event(self, epsilon: float) -> int:
        """Index of the event with the largest certified P - e^epsilon Q."""
        return int(np.argmax(self._excess(epsilon)))

    def _excess(self, epsilon: float) -> Array:
        rounding = 4.0 * UNIT * (epsilon + np.abs(self.log_second_upper) + 1.0)
        return np.asarray(self.first_lower - np.exp(np.minimum(epsilon + self.log_second_upper + rounding, 100.0)))

    def _ratio(self, delta: float) -> float:
        room = self.first_lower - delta
        usable = np.flatnonzero(room > 4.0 * UNIT * self.first_lower)
        if not len(usable):
            return 0.0
        ratio = np.log(room[usable]) - self.log_second_upper[usable]
        best = int(np.argmax(ratio))
        # the subtraction and the logarithms round
        return max(float(ratio[best]) - 4.0 * UNIT * (abs(float(self.log_second_upper[usable[best]])) + 40.0), 0.0)


class TiltedPoints:
    """Operating points from a ladder of tilts, the next of which is taken where a query looks that far into the tail.

    The best event for an epsilon or a delta has P(S >= s) of what it proves or delta at least. What a query is told
    depends on the query alone, not on those before it.

    Args:
        ladder: Events by each tilt, and the P down to which it and those before it see all there is, falling.
    """

    def __init__(self, ladder: Iterator[tuple[Points, float]]) -> None:
        self._ladder = ladder
        self._known: list[tuple[Points, float]] = []  # by the first tilts, and the P down to which they see

    def _upto(self, depth: int) -> tuple[Points, float]:
        while len(self._known) <= depth:
            before = [points for points, _ in self._known[-1:]]
            found = next(self._ladder, None)
            if found is None:  # the last ones see what can be seen
                self._known.append((before[0] if before else merge([]), 0.0))
                break
            self._known.append((merge([*before, found[0]]), found[1]))
        return self._known[min(depth, len(self._known) - 1)]

    def delta(self, epsilon: Array) -> Array:
        """Lower bound on delta at each epsilon: max over events of P - e^epsilon Q."""
        best, depth, wanted = np.zeros(len(epsilon)), 0, np.arange(len(epsilon))
        while len(wanted):
            points, seen = self._upto(depth)
            best[wanted] = points.delta(epsilon[wanted])
            wanted, depth = wanted[best[wanted] < seen], depth + 1
        return best

    def epsilon(self, delta: Array) -> Array:
        """Lower bound on epsilon at each delta: max over events of log((P - delta) / Q)."""
        return np.array([self._seeing(d).epsilon(np.array([d]))[0] for d in delta])

    def near(self, epsilon: float) -> Points:
        """The events among which the best one at epsilon is."""
        return self._seeing(float(self.delta(np.array([epsilon]))[0]))

    def all(self) -> Points:
        """The events by every tilt."""
        return self._seeing(0.0)

    def charged(self, lost: float) -> "TiltedPoints":
        """As of `Points`, of events that are asked through it alone from then on."""
        return TiltedPoints((points.charged(lost), seen) for points, seen in chain(self._known, self._ladder))

    def _seeing(self, tail: float) -> Points:
        depth = 0
        while self._upto(depth)[1] > tail:
            depth += 1
        return self._known[min(depth, len(self._known) - 1)][0]


@dataclass(frozen=True)
class Several:
    """Events of one history by grids that suit different losses: the best of all."""

    parts: Sequence[Points | TiltedPoints]

    def delta(self, epsilon: Array) -> Array:
        """Lower bound on delta at each epsilon."""
        return np.asarray(np.max([part.delta(epsilon) for part in self.parts], axis=0))

    def epsilon(self, delta: Array) -> Array:
        """Lower bound on epsilon at each delta."""
        return np.asarray(np.max([part.epsilon(delta) for part in self.parts], axis=0))

    def near(self, epsilon: float) -> Points:
        """The events among which the best one at epsilon is."""
        return merge([part.near(epsilon) for part in self.parts])

    def charged(self, lost: float) -> "Several":
        """As of `Points`, of every grid's events."""
        return Several([part.charged(lost) for part in self.parts])


Events = Points | TiltedPoints | Several


class Sum(Protocol):
    """Bounds on the law of a sum of integers over a history: a measure on them, that need not have a total of one."""

    def log_mgf(self, thetas: Array) -> Array:
        """log of the sum over s of the mass at s times e^(theta s), for each theta."""
        ...

    def tilted(self, theta: float, start: int, size: int) -> Power | None:
        """Its tilted masses on a window of a power of two integers; None where that takes too long."""
        ...


@dataclass(frozen=True)
class Draws:
    """The sum over independent draws: lattices with how many draws there are from each."""

    parts: Sequence[tuple[Lattice, int]]

    def log_mgf(self, thetas: Array) -> Array:
        """As of `Sum`."""
        return np.asarray(np.sum([count * log_mgf(part, thetas) for part, count in self.parts], axis=0))

    def tilted(self, theta: float, start: int, size: int) -> Power:
        """As of `Sum`."""
        return tilted_power(self.parts, theta, start, size)


def on_grid(
    first_lower: Array,
    second_upper: Array,
    step: float,
    count: int,
    floor: float = 0.0,
    cap: float = math.inf,
    *,
    ordered: bool = False,
) -> Step:
    """Cell masses by whole multiples of step of the cells' log-ratio; cells without mass under P are left out.

    Args:
        first_lower: Lower bounds on P's cell masses.
        second_upper: Upper bounds on Q's cell masses, positive where the former are.
        step: Grid step of the loss.
        count: Number of such steps in the history.
        floor: The lowest losses are left out of every event, up to this much of P.
        cap: Losses beyond it in size go to the outermost cells.
        ordered: The masses are of two laws that bound the true ones in stochastic order: labels grow with the cell.
    """
    limit = int(min(cap / step, MAX_LABEL))
    ratio = first_lower / second_upper
    order = np.arange(len(ratio)) if ordered else np.argsort(ratio, kind="stable")
    reached = np.cumsum(first_lower[order]) > floor
    keep = order[reached if ordered else reached & (first_lower[order] > 0)]
    first, second, ratio = first_lower[keep], second_upper[keep], ratio[keep]
    if ordered:  # cells whose ratios fall are pooled: sum of first over sum of second
        ratio = np.maximum(isotonic_regression(ratio, weights=second).x, 1e-300)
    label = np.clip(np.rint(np.log(ratio) / step), -limit, limit).astype(np.int64)
    base = int(label.min())
    # a sum of n nonnegative terms has relative error at most n u
    drift = UNIT * float(np.bincount(label - base).max())
    masses = [np.bincount(label - base, weights=w).astype(np.float64) for w in (first, second)]
    return Step(Lattice(masses[0] * (1.0 - drift), base), Lattice(masses[1] * (1.0 + drift), base), count)


def grid_step(moments: Sequence[tuple[float, int]]) -> tuple[float, float]:
    """Grid step, and standard deviation of the total loss, from each phase's loss variance and count.

    Merging losses within h of each other costs about count h^2/12 of the mean total loss: h is chosen so that this
    is 1/8000 of the total's standard deviation and 1/1200 of the information of a step, and at most 1/400 of the
    former to place the threshold well; but never more than
    CELLS_PER_DEVIATION of the latter, which costs 1e-9/8 of its variance a step.
    """
    deviation = math.sqrt(sum(variance * count for variance, count in moments))
    total = sum(count for _, count in moments)
    small = min(deviation / 400.0, math.sqrt(1.5e-3 * deviation / total), deviation / (10.0 * math.sqrt(total)))
    return max(small, deviation / CELLS_PER_DEVIATION), deviation


def loss_variance(first_lower: Array, second_upper: Array, cap: float = math.inf) -> float:
    """Variance of log P/Q, clipped to [-cap, cap], under P; a guide to the grid, never part of a bound."""
    keep = first_lower > 0
    weight = first_lower[keep] / first_lower[keep].sum()
    loss = np.clip(np.log(first_lower[keep]) - np.log(second_upper[keep]), -cap, cap)
    return max(float(weight @ np.square(loss - weight @ loss)), 1e-300)


def largest_loss(first_lower: Array, second_upper: Array, floor: float) -> float:
    """Largest |log P/Q| of a cell that matters: the rarest losses of either sign are left out, up to floor of P."""
    loss = np.log(np.maximum(first_lower, 1e-300)) - np.log(second_upper)
    order = np.argsort(loss)
    sums = np.cumsum(first_lower[order])
    kept = loss[order][(sums > floor) & (sums < sums[-1] - 1e-6 * floor)]
    return float(np.abs(kept).max(initial=1e-12))


def rare_loss(looks: Sequence[tuple[Array, Array]], counts: Sequence[int], often: float) -> float:
    """The loss that so many releases of a history exceed, a guide to the grid.

    Args:
        looks: Cell masses of one release of each phase under both laws, positive under the second.
        counts: Releases of each phase.
        often: Expected number of releases, under the first law.
    """
    losses = np.concatenate([np.log(np.maximum(first, 1e-300)) - np.log(second) for first, second in looks])
    masses = np.concatenate([count * first for (first, _), count in zip(looks, counts, strict=True)])
    order = np.argsort(-losses)
    at = int(np.searchsorted(np.cumsum(masses[order]), often))
    return max(float(losses[order[min(at, len(order) - 1)]]), 1e-12)


def operating_points(steps: Sequence[Step], step: float, deviation: float, jump: float = 0.0) -> TiltedPoints:
    """Certified operating points of a history, by convolution under a ladder of exponential tilts.

    Args:
        steps: The phases on a common grid.
        step: Grid step.
        deviation: Standard deviation of the total loss, which scales the ladder.
        jump: Largest loss of one step, where single ones make the tail: the ladder has tilts that see them; else 0.
    """
    first = Draws([(part.first, part.count) for part in steps])
    second = Draws([(part.second, part.count) for part in steps])
    return sum_points(first, second, step, deviation, jump)


def sum_points(
    first: Sum, second: Sum, step: float, deviation: float, jump: float = 0.0, longest: int = MAX_WINDOW
) -> TiltedPoints:
    """Certified operating points {S >= s} of a sum S of integers, whatever law it has.

    Args:
        first: The law of S from below, if the history is P's.
        second: From above, if it is Q's.
        step: Privacy loss that an integer stands for, about; a guide to the tilts.
        deviation: Standard deviation of the total loss, which scales the ladder.
        jump: As of `operating_points`.
        longest: Window that a tilt may have.
    """
    return TiltedPoints(_ladder(first, second, step, deviation, jump, longest))


def _ladder(
    first: Sum, second: Sum, step: float, deviation: float, jump: float, longest: int
) -> Iterator[tuple[Points, float]]:
    """Events by each tilt, from none upwards, and the P down to which they are seen.

    A tilt at whose mean P's tail is larger still, by Chernoff's bound, is left out if that of the next one is, too.
    """
    low, high = min(0.25 / deviation, 0.5, 1.0 / max(jump, 1e-9)), 4e4 / deviation
    ladder = low * 2.0 ** (0.5 * np.arange(math.ceil(2.0 * math.log2(high / low)) + 1))
    grid = np.concatenate([-ladder[::-1], [0.0], ladder]) * step
    ks = [first.log_mgf(grid), second.log_mgf(grid + step)]
    zero = len(ladder)
    slopes = (ks[0][2:] - ks[0][:-2]) / (grid[2:] - grid[:-2])  # means of the tilted sums
    log_tails = np.minimum(ks[0][1:-1] - grid[1:-1] * slopes, 0.0)

    def windows() -> Iterator[tuple[int, int, int]]:
        limit = float(longest)
        for index in [zero, *range(zero + 3, len(grid) - 4)]:
            ends = [chernoff_window(grid, k, index) for k in ks]
            start = math.floor(min(low for low, _ in ends)) - 1
            length = max(high for _, high in ends) - start + 2
            if length > limit:  # where the tilt splits the sum between bulk and rare large losses
                continue
            size = 1 << max(6, math.ceil(math.log2(length)))
            limit = min(limit, 4.0 * size)
            yield index, start, size
            if log_tails[index - 1] < LOG_SMALLEST:
                break

    log_seen, candidates = 0.0, windows()
    following = next(candidates, None)
    while following is not None:
        (index, start, size), following = following, next(candidates, None)
        if index > zero and following is not None and log_tails[following[0] - 1] > log_seen:
            continue
        mean = float(slopes[index - 1])
        tilt, place = float(grid[index]), (start, size)
        with_it, without = first.tilted(tilt, *place), second.tilted(tilt + step, *place)
        if with_it is None or without is None:
            return
        points, seen = _tail_points(with_it, without, step, deviation, start, mean)
        log_seen = min(log_seen, max(seen, LOG_SMALLEST))
        yield points, math.exp(log_seen)


def single_points(first_lower: Array, second_upper: Array) -> Points:
    """Operating points of a history of one release: its cells in the order of their losses, no grid, no transform."""
    keep = first_lower > 0
    first, second = first_lower[keep], second_upper[keep]
    loss = np.log(first) - np.log(second)
    order = np.argsort(-loss, kind="stable")
    error = 2.0 * UNIT * len(order)
    sums = np.cumsum(first[order]) * (1.0 - error), np.cumsum(second[order]) * (1.0 + error)
    return merge([Points(np.minimum(sums[0], 1.0), np.log(sums[1]) + 4.0 * UNIT, loss[order])])


def _tail_points(
    first: Power, second: Power, step: float, deviation: float, start: int, mean: float
) -> tuple[Points, float]:
    """Bounds on P(S >= s) and Q(S >= s) for s in the window, P tilted by theta and Q by theta + step.

    Returns:
        The events; log of the P down to which, from the mean on, neither probability is off by more than SEEN of it.
    """
    theta, size = first.theta, len(first.values)
    low, low_error = _tail(first)
    high, high_error = _tail(second)
    some = slice(None, None, max(1, int(deviation / (400.0 * step))))
    places, low, high = np.arange(start, start + size, dtype=np.float64)[some], low[some], high[some]
    sum_error = 2.0 * size * UNIT
    a = low * (1.0 - sum_error) - low_error
    unseen = (places >= mean) & ((low_error > SEEN * low) | (high_error > SEEN * high))
    largest = np.log(np.maximum(low, low_error)[unseen]) - theta * places[unseen]
    seen = first.log_scale + float(largest.max(initial=LOG_WRAP - theta * (start + size)))
    places, a, high = places[a > 0], a[a > 0], high[a > 0]
    log_a = np.log(a) + first.log_scale - theta * places
    log_a -= first.relative + 4.0 * UNIT * (np.abs(theta * places) + DECAY)
    log_b = np.log(np.maximum(high, 0.0) * (1.0 + sum_error) + high_error) + second.log_scale
    log_b += second.relative - (theta + step) * places + 4.0 * UNIT * (np.abs((theta + step) * places) + DECAY)
    keep = log_a > LOG_SMALLEST
    return Points(np.minimum(np.exp(log_a[keep]), 1.0), log_b[keep], places[keep] * step), seen


def _tail(power: Power) -> tuple[Array, float]:
    """sum over s' >= s of values[s'] e^(-theta (s' - s)) for every s, and its absolute error without the summation's.

    The weights are at most 1, so wrapped mass counts at most its own size; Cauchy-Schwarz against the l2 error, which
    a negative value only lowers when it is taken for the 0 that the true one is at least.
    """
    theta, size = power.theta, len(power.values)
    cells = size if theta <= 0 else min(size, 1.0 / -math.expm1(-2.0 * theta))
    error = 1.01 * (2.0 * math.exp(LOG_WRAP) + math.sqrt(cells) * power.error_l2)
    return decayed_sums(np.maximum(power.values, 0.0), theta), error


def merge(parts: Sequence[Points]) -> Points:
    """The events that no other event beats in both probabilities, thinned to a bounded number."""
    if not parts:
        return Points(np.zeros(0), np.zeros(0), np.zeros(0))
    first = np.concatenate([p.first_lower for p in parts])
    second = np.concatenate([p.log_second_upper for p in parts])
    threshold = np.concatenate([p.threshold for p in parts])
    order = np.argsort(second, kind="stable")  # quick, as every part is in order
    first, second, threshold = first[order], second[order], threshold[order]
    best = np.maximum.accumulate(np.concatenate([[0.0], first[:-1]])) if len(first) else first
    keep = np.flatnonzero(first > best)
    keep = keep[np.append(np.diff(second[keep]) > 0, True)] if len(keep) else keep  # of equal ones the last is best
    keep = keep[:: max(1, len(keep) // MAX_POINTS)]
    return Points(first[keep], second[keep], threshold[keep])
