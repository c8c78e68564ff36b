"""How often copies of one record meet in a batch, of passes that go through one buffer as a stream.

The record enters the buffer once in n draws, and each draw takes one of the B records that are held, uniformly. It is
in batch t some k_t times, and S is the sum of the k_t^2 of all batches that count. For any falling T_j >= P(S > s_j) at
levels s_0 < s_1 < ... what grows with S has a mean of at most its value at s_j times T_(j-1) - T_j, summed, and T_J
times the largest value; and P(S > s) <= (E e^(theta S) - 1)/(e^(theta (s + 1)) - 1), by Markov.

The moment goes backwards over batches. With N copies held at the beginning of a batch of b draws in which none comes
in, k of them leave by a chain that steps from N to N - 1 with probability N/B in each draw: one entry of the b-th power
of a matrix. A copy that comes in during a batch leaves in it with a probability that depends on when it comes, and on
when the others leave, of at most p = 1 - (1 - 1/(B - N))^b, each draw that takes none of the others taking it with
probability at most 1/(B - N): the moment is linear in that probability, and so at most what it is at 0 or at p. Where
in the file the record is decides in which batches its copies come. If the first draw of the first copy that is not in
the buffer from the beginning is one of f, ..., f + w - 1, then that of the e-th is in batch floor((f + e n)/b), and p
has no more draws than follow in it, or in the next where it can be: both are tried, the larger value counts, for every
f. All f of one place in their batch have the same values, but for where the draws end: a copy that may come before that
counts, and more batches after the last one only add to S.
With too many copies for that, either number of batches between two of them is tried, too, and f is forgotten: then the
values before a copy are F of those after it, F the same for all, and as F is monotone and homogeneous F(v) <= g v gives
F(F(v)) <= g^2 v, and so on.

More than M copies at once are counted as a failure of the whole. Of r copies, all are still held after m more draws
with probability (1 - r/B)^m <= (1 - 1/B)^(r m): so when the l-th copy comes in, M others are held with a probability
of at most the M-th elementary symmetric polynomial of (1 - 1/B)^(n j), j = 1, ..., l, and as many (1 - 1/B)^(n l) as
there were copies at the beginning.

Lone copies. The batches between those in which a copy comes in are a window. One that leaves in a window in which no
other copy leaves need not count: `shuffled_batches` has what it costs. Of the chain over the m batches of a window that
is the one entry that goes from N to N - 1, without its e^theta. In the last window a copy is alone where it is in as
many batches as the others have, whether or not the stream goes on so far. If W of the B places come up in the whole
batches of a window, and in none of the draws between the copy's coming and them, a lone copy is in one of these,
uniformly: in one batch with probability at most b/W. Of m b draws some places take none. That is a number of empty
bins, which is a sum of negatively associated indicators (Dubhashi and Ranjan 1998, Theorem 13), so that it is at least
e > B q, q = (1 - 1/B)^(m b), with probability at most e^(-B kl(e/B, q)); the b draws before take others.
"""

import math
import sys
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import xlogy

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.samplers import BufferedShuffle

MOST_BATCHES = 1000  # of a pass: a case for each
OFFSETS = 16  # into which a batch is cut where it is told apart when in it a copy comes
MOST_COPIES = 40  # that are held at once
SHARE = 1e-4  # of the claimed delta: the chance of more copies at once, and that S is above all levels
THETAS = np.geomspace(1e-3, 1.5, 40)
LEVELS = 80
LEAST_DELTA = 1e-10  # of a claim of none
FORGOTTEN = 60  # passes after which what was held at the beginning counts as it did then
LARGEST_POWER = 600.0  # of e
MOST_CASES = 3e6  # copies times first batches times entries of a matrix; of more c is forgotten
SETTLED = 200  # copies after which, coming so, each adds as much as the one before
LARGEST_DRAW = 2**62  # that has a number in numpy
LEAST_VALUE = 1e-200  # relative to the largest one


@dataclass(frozen=True)
class Meetings:
    """How often copies meet: P(S > levels[j]) <= beyond[j], arrays of one shape."""

    levels: Array
    beyond: Array


@dataclass(frozen=True)
class Windows:
    """Where a lone copy is hidden.

    Args:
        batches: Among how many, in windows of at least `lone` whole batches.
        count: How many copies there are at most.
        lone: The batches of the shortest window in which they are hidden.
        lost: Probability that some window hides less.
    """

    batches: float
    count: int
    lone: int
    lost: float


def _arrivals(sampler: BufferedShuffle) -> int:
    """The most copies of a record that come in between the first draw and the last, and one more."""
    return -(-sampler.steps * sampler.batch // sampler.records) + 1


def _at_the_beginning(sampler: BufferedShuffle) -> int:
    """The most copies of a record that the full buffer can hold."""
    return -(-sampler.buffer // sampler.records)


def most_held(sampler: BufferedShuffle, delta: float) -> tuple[int, float] | None:
    """M, and the probability that more copies than that are held at once; None where that takes too many."""
    arrivals, early = _arrivals(sampler), _at_the_beginning(sampler)
    stays = math.exp(sampler.records * math.log1p(-1.0 / sampler.buffer)) if sampler.buffer > 1 else 0.0
    totals = np.zeros(MOST_COPIES + 1)
    for copy in range(min(arrivals, FORGOTTEN)):
        last = copy == FORGOTTEN - 1  # which stands for all that follow
        older = stays ** np.arange(1.0, (arrivals if last else copy) + 1.0)
        held = _symmetric(np.concatenate([np.full(early, stays**copy), older]), MOST_COPIES)
        totals += (arrivals - copy if last else 1) * held * (1.0 + 1e-12 * arrivals)
    for most in range(early + 1, MOST_COPIES + 1):
        if most >= sampler.buffer:
            return sampler.buffer, 0.0
        if totals[most] <= SHARE * delta:
            return most, float(totals[most])
    return None


def _symmetric(values: Array, most: int) -> Array:
    """Elementary symmetric polynomials of degree 0..most."""
    found = np.zeros(most + 1)
    found[0] = 1.0
    for value in values[values > 1e-300]:
        found[1:] += value * found[:-1]
    return found


def _leaving(sampler: BufferedShuffle, most: int) -> Array:
    """Probabilities of going from N to N' copies in one batch in which none comes in, [N, N']."""
    one = np.zeros((most + 1, most + 1))
    held = np.arange(most + 1)
    one[held, held] = 1.0 - held / sampler.buffer
    one[held[1:], held[:-1]] = held[1:] / sampler.buffer
    return np.linalg.matrix_power(one, sampler.batch)


def meetings(sampler: BufferedShuffle, most: int, target: float, lone: int | None = None) -> Meetings:
    """Levels of S from about its mean to where it is above them with probability at most `target`.

    Args:
        sampler: The stream.
        most: Copies that are held at once; failures of that count as nothing.
        target: The probability.
        lone: Batches of the shortest window in which a lone copy does not count; None where all copies count.
    """
    thetas = THETAS[THETAS * (most + 1.0) ** 2 <= LARGEST_POWER]
    logs = _log_moments(sampler, most, thetas, lone)

    gained = logs + np.log(-np.expm1(-logs))  # of E e^(theta S) - 1

    def beyond(level: float) -> float:
        needed = thetas * (level + 1.0)
        return math.exp(min(0.0, float((gained - needed - np.log(-np.expm1(-needed))).min())))

    least = max(0.0 if lone else 1.0, math.floor((logs / thetas).min()) - 1.0)  # by Jensen's inequality about the mean
    top = least
    while beyond(top) > target:
        top = math.ceil(top * 1.02 + 1.0)
    levels = np.unique(np.floor(np.linspace(least, top, LEVELS)))
    return Meetings(levels, np.minimum.accumulate([beyond(level) for level in levels]))


def _windows(leaving: Array, quiet: Array, thetas: Array, batches: int, lone: int | None) -> Array:
    """From N to N' copies in so many batches in which none comes in, weighted by what counts, [theta, N, N']."""
    found = np.stack([np.linalg.matrix_power(one, batches) for one in quiet])
    if lone is not None and batches >= lone:
        held = np.arange(1, leaving.shape[0])
        found[:, held, held - 1] = np.linalg.matrix_power(leaving, batches)[held, held - 1]
    return found


def _log_moments(sampler: BufferedShuffle, most: int, thetas: Array, lone: int | None = None) -> Array:
    """log E e^(theta S) from above, for every theta, whatever record it is; failures of the whole count as nothing."""
    n, b, size, copies = sampler.records, sampler.batch, sampler.buffer, _arrivals(sampler)
    leaving, gone = _leaving(sampler, most), np.arange(most + 1)
    fell = gone[:, None] - gone[None, :]
    cost = np.exp(thetas[:, None, None] * np.maximum(fell, 0) ** 2)
    quiet = np.where(fell >= 0, leaving * cost, 0.0)  # theta, N, N'
    whole, one = n // b, math.log1p(-1.0 / (size - most)) if size - most > 1 else -math.inf
    windows = [_windows(leaving, quiet, thetas, max(whole + more, 0), lone) for more in (-2, -1, 0, 1)]

    # of records by their first draw: in what place of its batch it is, and of how many copies the draws are over
    width = -(-b // OFFSETS)
    firsts = (np.arange(n // b + 1)[:, None] * b + np.arange(0, b, width)[None, :]).ravel()
    draws = min(sampler.steps * b, LARGEST_DRAW)
    over = copies - np.clip(-(-(draws - firsts) // n), 0, copies)
    kinds, kind = np.unique(np.stack([firsts % b, over], axis=1), axis=0, return_inverse=True)
    alike = len(kinds) * copies * (most + 1) ** 2 > MOST_CASES or (copies + 2) * n > LARGEST_DRAW
    if alike:
        kinds, kind = np.zeros((1, 2), dtype=np.int64), np.zeros_like(kind)

    def through(values: Array, kernel: Array) -> Array:
        return values @ kernel.transpose(0, 2, 1)

    def arrival(values: Array, draws: Array) -> Array:
        """One batch, of which at most so many draws find a copy: it is held afterwards, or leaves with others."""
        soon = -np.expm1(draws[:, None] * one)
        stays = np.concatenate([values[:, :, 1:], np.zeros_like(values[:, :, :1])], axis=2)
        found = np.zeros_like(values)
        for k in range(most + 1):
            power = np.exp(thetas * (2 * k + 1))[:, None, None]
            worst = np.maximum(stays, (1.0 - soon) * stays + soon * power * values)[:, :, : most + 1 - k]
            weights = quiet[:, gone[k:], gone[: most + 1 - k]]
            found[:, :, k:] += weights[:, None, :] * worst
        return found

    # at the beginning of the batch in which the next copy comes in: the first of the two that it can be, the second
    first, second = (np.ones((len(thetas), len(kinds), most + 1)) for _ in range(2))

    def window(least: int) -> Array:
        """From after the batch of a copy to that of the next, `first` so many batches behind it, or one more."""
        return np.maximum(through(first, windows[least - whole + 2]), through(second, windows[least - whole + 3]))

    logs = np.zeros(len(thetas))
    for copy in reversed(range(copies)):
        after = first, second
        by_start = [window(whole - 1 - start) for start in range(2)]
        if alike:
            by_start = [np.maximum(window(whole - start), values) for start, values in enumerate(by_start)]
            first, second = (arrival(values, np.array([b])) for values in by_start)
        else:
            at, following = (kinds[:, 0] + e * n for e in (copy, copy + 1))
            longer = (following // b - at // b > whole)[:, None]
            if longer.any():
                by_start = [np.where(longer, window(whole - start), values) for start, values in enumerate(by_start)]
            next_batch = (at % b + width > b)[:, None]
            first, second = arrival(by_start[0], b - at % b), arrival(by_start[1], np.full(len(kinds), b)) * next_batch
            late = (copy >= copies - kinds[:, 1])[:, None]
            first, second = np.where(late, after[0], first), np.where(late, after[1], second)
        if alike and copies - copy >= SETTLED:
            growth = np.maximum(first / after[0], second / after[1]).max(axis=(1, 2))
            logs = logs + (copy + 1.0) * np.log(growth)
            first, second = after
            break
        largest = np.maximum(first, second).max(axis=(1, 2))
        first, second = (np.maximum(values / largest[:, None, None], LEAST_VALUE) for values in (first, second))
        logs = logs + np.log(largest)

    def beginning(now: Array, values: Array, batches: int) -> Array:
        """`now`, so many batches before `values`, without what a lone copy costs in them where it does not count."""
        if lone is None or batches < lone:
            return now
        held = np.arange(1, most + 1)
        chances = np.linalg.matrix_power(leaving, batches)[held, held - 1]
        counted = np.expm1(thetas)[:, None, None] * chances * values[:, :, :-1]
        return np.concatenate([now[:, :, :1], now[:, :, 1:] - counted], axis=2)

    begun, starts = np.zeros(len(thetas)), (first, second)
    first, second = first, through(second, quiet)
    for batch in range(n // b + 1):
        values = np.maximum(beginning(first, starts[0], batch), beginning(second, starts[1], batch + 1))
        for low, row in zip(firsts[firsts // b == batch], kind[firsts // b == batch], strict=True):
            for held in _held_at_the_beginning(sampler, int(low), width, most):
                begun = np.maximum(begun, values[:, row, held])
        first, second = through(first, quiet), through(second, quiet)
    rounding = 8.0 * UNIT * (most + 4.0) * ((copies + 1.0) * n + 4.0 * b + 1e3)
    return np.asarray(logs + np.log(begun) + rounding)


def _held_at_the_beginning(sampler: BufferedShuffle, low: int, width: int, most: int) -> set[int]:
    """How many copies the full buffer may hold of records with a first draw of `low` or one of the next."""
    high = min(low + width - 1, sampler.records, (low // sampler.batch + 1) * sampler.batch - 1)
    low = max(low, 1)
    return {min((sampler.buffer - 1 + at) // sampler.records, most) for at in (low, high)} if low <= high else set()


@lru_cache(16)
def hiding_windows(sampler: BufferedShuffle, delta: float) -> Windows | None:
    """Where a stream hides lone copies; None where windows hide nothing.

    Args:
        sampler: A stream.
        delta: Of a claim; windows hide less with a probability of a small share of it.
    """
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    full, first = n // b - 2, (n - size + 1) // b  # whole batches, at least: of a window, and of one that begins
    if full < 1 or size < 3 * b:
        return None
    lost = max(SHARE * delta, sys.float_info.min)

    def hiding(batches: int) -> float:
        return (size - _empty(size, batches * b, lost / (_arrivals(sampler) + 1.0)) - b) / b

    lone, windows = full, sampler.begun
    if 1 <= first < full and hiding(first) >= 1 and windows / hiding(first) < windows / hiding(full) + 1.0:
        lone = first  # what is hidden in shorter windows costs less than one that is known
    batches = hiding(lone)
    return Windows(batches, windows, lone, lost) if batches >= 1 else None


def _empty(places: int, draws: int, chance: float) -> float:
    """Of how many places that so many draws take none, with probability `chance` there are as many or more."""
    log_missed = draws * math.log1p(-1.0 / places)
    missed, wanted = math.exp(log_missed), -math.log(chance) / places * (1.0 + 1e-9)

    def divergence(part: float) -> float:
        held = float(xlogy(part, part) + xlogy(1.0 - part, 1.0 - part))
        return held - part * log_missed - (1.0 - part) * math.log1p(-missed)

    low, high = missed, 1.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if divergence(middle) < wanted else (low, middle)
    return high * places * (1.0 + 1e-9)


@lru_cache(16)
def costs_beside(sampler: BufferedShuffle, delta: float) -> Array | None:
    """Upper bounds on the probabilities that what is no lone copy costs 0, 1, 2, ... releases; the last is of more.

    None where windows hide nothing, or too many copies are held at once.
    """
    windows, held = hiding_windows(sampler, delta), most_held(sampler, delta)
    if windows is None or held is None:
        return None
    found = meetings(sampler, held[0], SHARE * delta, windows.lone)
    law = np.zeros(int(found.levels[-1]) + 2)
    law[found.levels.astype(np.int64)] = -np.diff(np.concatenate([[1.0], found.beyond]))
    law[-1] = (found.beyond[-1] + held[1] + windows.lost) * (1.0 + 1e-12)
    return law
