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
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Self

import numpy as np
from numpy.typing import NDArray
from scipy.special import xlogy

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.samplers import BufferedShuffle

MOST_BATCHES = 10_000  # of a pass: a case for each
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
        most: How many copies are held at once.
        lost: Probability that some window hides less, or more copies are held.
    """

    batches: float
    count: int
    lone: int
    most: int
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


@dataclass(frozen=True)
class _Records:
    """Records by the first draw of the first of their copies that is not in the buffer from the beginning.

    Args:
        sampler: The stream.
        first: Such draws, each standing for `width` neighbours, shape (batches, places in a batch).
        width: How many.
        kind: Which entries of `place` and `over` are theirs, shape of `first`.
        place: Their place in its batch, by kind.
        over: Of how many copies the draws are over when they come, by kind.
    """

    sampler: BufferedShuffle
    first: NDArray[np.int64]
    width: int
    kind: NDArray[np.int64]
    place: NDArray[np.int64]
    over: NDArray[np.int64]

    @classmethod
    def of(cls, sampler: BufferedShuffle, copies: int) -> Self:
        """All records, so many copies of each."""
        n, b = sampler.records, sampler.batch
        width = -(-b // OFFSETS)
        first = np.arange(n // b + 1)[:, None] * b + np.arange(0, b, width)[None, :]
        draws = min(sampler.steps * b, LARGEST_DRAW)
        over = copies - np.clip(-(-(draws - first) // n), 0, copies)
        rows = np.stack([(first % b).ravel(), over.ravel()], axis=1)
        kinds, kind = np.unique(rows, axis=0, return_inverse=True)
        return cls(sampler, first, width, kind.reshape(first.shape), kinds[:, 0], kinds[:, 1])

    def alike(self) -> Self:
        """All of one kind, of which is forgotten what makes them different."""
        nothing = np.zeros(1, dtype=np.int64)
        return replace(self, kind=np.zeros_like(self.kind), place=nothing, over=nothing)

    def at_the_beginning(self, batch: int, most: int) -> Iterator[tuple[int, int]]:
        """Kinds with such draws in a batch, and how many copies the full buffer may hold of them."""
        n, b = self.sampler.records, self.sampler.batch
        for first, kind in zip(self.first[batch], self.kind[batch], strict=True):
            low, high = max(int(first), 1), min(int(first) + self.width - 1, n, (batch + 1) * b - 1)
            for at in {low, high} if low <= high else ():
                yield int(kind), min((self.sampler.buffer - 1 + at) // n, most)


class _Chain:
    """How many copies are held, from batch to batch, weighted by e^(theta S).

    Values are what is expected of the batches that follow, shape (thetas, kinds of records, copies held).

    Args:
        sampler: The stream.
        most: Copies that are held at once.
        thetas: The exponents.
        lone: As of `meetings`.
    """

    def __init__(self, sampler: BufferedShuffle, most: int, thetas: Array, lone: int | None) -> None:
        self._most, self._thetas, self._lone = most, thetas, lone
        self._leaving = _leaving(sampler, most)
        fell = np.arange(most + 1)[:, None] - np.arange(most + 1)[None, :]
        cost = np.exp(thetas[:, None, None] * np.maximum(fell, 0) ** 2)
        self._batch = np.where(fell >= 0, self._leaving * cost, 0.0)  # theta, N, N'
        self._missed = math.log1p(-1.0 / (sampler.buffer - most)) if sampler.buffer - most > 1 else -math.inf
        whole = sampler.records // sampler.batch
        self._windows = {batches: self._window(batches) for batches in range(whole - 2, whole + 2)}

    def _alone(self, batches: int) -> Array:
        """Probabilities that of 1, 2, ... copies one leaves in so many batches."""
        held = np.arange(1, self._most + 1)
        return np.asarray(np.linalg.matrix_power(self._leaving, batches)[held, held - 1])

    def _window(self, batches: int) -> Array:
        """From N to N' copies in so many batches in which none comes in."""
        found = np.stack([np.linalg.matrix_power(one, batches) for one in self._batch])
        if self._lone is not None and batches >= self._lone:
            held = np.arange(1, self._most + 1)
            found[:, held, held - 1] = self._alone(batches)
        return found

    def batch(self, values: Array) -> Array:
        """Before a batch in which no copy comes in."""
        return np.asarray(values @ self._batch.transpose(0, 2, 1))

    def window(self, first: Array, second: Array, batches: int) -> Array:
        """Before so many batches between two copies if `first` follows, or one more and `second`: the larger."""
        parts = [(first, batches), (second, batches + 1)]
        return np.maximum(*(values @ self._windows[size].transpose(0, 2, 1) for values, size in parts))

    def arrival(self, values: Array, draws: NDArray[np.int64]) -> Array:
        """Before a batch, at most so many draws of which find a copy: it is held afterwards, or leaves with others."""
        soon = -np.expm1(draws[:, None] * self._missed)
        stays = np.concatenate([values[:, :, 1:], np.zeros_like(values[:, :, :1])], axis=2)
        found, held = np.zeros_like(values), np.arange(self._most + 1)
        for k in held:
            power = np.exp(self._thetas * (2 * k + 1))[:, None, None]
            worst = np.maximum(stays, (1.0 - soon) * stays + soon * power * values)[:, :, : self._most + 1 - k]
            found[:, :, k:] += self._batch[:, held[k:], held[: self._most + 1 - k]][:, None, :] * worst
        return found

    def without_lone(self, now: Array, values: Array, batches: int) -> Array:
        """`now`, so many batches before `values`, less what a lone copy that need not count costs in these."""
        if self._lone is None or batches < self._lone:
            return now
        counted = np.expm1(self._thetas)[:, None, None] * self._alone(batches) * values[:, :, :-1]
        return np.concatenate([now[:, :, :1], now[:, :, 1:] - counted], axis=2)


def _log_moments(sampler: BufferedShuffle, most: int, thetas: Array, lone: int | None = None) -> Array:
    """log E e^(theta S) from above, for every theta, whatever record it is; failures of the whole count as nothing."""
    n, b, copies = sampler.records, sampler.batch, _arrivals(sampler)
    chain, records, whole = _Chain(sampler, most, thetas, lone), _Records.of(sampler, copies), n // b
    alike = len(records.place) * copies * (most + 1) ** 2 > MOST_CASES or (copies + 2) * n > LARGEST_DRAW
    if alike:
        records = records.alike()
    # at the beginning of the batch in which the next copy comes in: the first of the two that it can be, the second
    first, second = (np.ones((len(thetas), len(records.place), most + 1)) for _ in range(2))
    all_draws, logs = np.full(len(records.place), b), np.zeros(len(thetas))
    for copy in reversed(range(copies)):
        after = first, second
        shorter, longer = (
            [chain.window(first, second, size - start) for start in range(2)] for size in (whole - 1, whole)
        )
        if alike:
            first, second = (chain.arrival(np.maximum(*both), all_draws) for both in zip(shorter, longer, strict=True))
        else:
            at, following = (records.place + e * n for e in (copy, copy + 1))
            more = (following // b - at // b > whole)[:, None]
            before = [np.where(more, long, short) for long, short in zip(longer, shorter, strict=True)]
            other = (at % b + records.width > b)[:, None]  # it can be the next batch
            late = (copy >= copies - records.over)[:, None]
            first = np.where(late, after[0], chain.arrival(before[0], b - at % b))
            second = np.where(late, after[1], chain.arrival(before[1], all_draws) * other)
        if alike and copies - copy >= SETTLED:
            growth = np.maximum(first / after[0], second / after[1]).max(axis=(1, 2))
            logs = logs + (copy + 1.0) * np.log(growth)
            first, second = after
            break
        largest = np.maximum(first, second).max(axis=(1, 2))
        first, second = (np.maximum(values / largest[:, None, None], LEAST_VALUE) for values in (first, second))
        logs = logs + np.log(largest)
    begun, now = np.zeros(len(thetas)), (first, chain.batch(second))
    for batch in range(whole + 1):
        of_first, of_second = chain.without_lone(now[0], first, batch), chain.without_lone(now[1], second, batch + 1)
        for kind, held in records.at_the_beginning(batch, most):
            begun = np.maximum(begun, np.maximum(of_first, of_second)[:, kind, held])
        now = chain.batch(now[0]), chain.batch(now[1])
    rounding = 8.0 * UNIT * (most + 4.0) * ((copies + 1.0) * n + 4.0 * b + 1e3)
    return np.asarray(logs + np.log(begun) + rounding)


@lru_cache(16)
def hiding_windows(sampler: BufferedShuffle, delta: float) -> Windows | None:
    """Where a stream hides lone copies; None where windows hide nothing, or too many copies are held at once.

    Args:
        sampler: A stream.
        delta: Of a claim; windows hide less with a probability of a small share of it.
    """
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    full, first = n // b - 2, (n - size + 1) // b  # whole batches, at least: of a window, and of one that begins
    held = most_held(sampler, delta) if full >= 1 and size >= 3 * b and n <= MOST_BATCHES * b else None
    if held is None:
        return None
    lost = max(SHARE * delta, sys.float_info.min)

    def hiding(batches: int) -> float:
        return (size - _empty(size, batches * b, lost / (_arrivals(sampler) + 1.0)) - b) / b * (1.0 - 4.0 * UNIT)

    lone, windows = full, sampler.begun
    if 1 <= first < full and hiding(first) >= 1 and windows / hiding(first) < windows / hiding(full) + 1.0:
        lone = first  # what is hidden in shorter windows costs less than one that is known
    batches = hiding(lone)
    return Windows(batches, windows, lone, held[0], lost + held[1]) if batches >= 1 else None


def _empty(places: int, draws: int, chance: float) -> float:
    """Of how many places that so many draws take none, with probability `chance` there are as many or more."""
    log_missed = draws * math.log1p(-1.0 / places)
    missed, log_taken = math.exp(log_missed), math.log(-math.expm1(log_missed))
    # no product in the divergence, nor its rounding in units, is above 1 + |log_missed|
    wanted = -math.log(chance) / places * (1.0 + 1e-9) + 16.0 * UNIT * (1.0 - log_missed)

    def divergence(part: float) -> float:
        held = float(xlogy(part, part) + xlogy(1.0 - part, 1.0 - part))
        return held - part * log_missed - (1.0 - part) * log_taken

    low, high = missed, 1.0
    for _ in range(100):
        middle = (low + high) / 2.0
        low, high = (middle, high) if divergence(middle) < wanted else (low, middle)
    return high * places * (1.0 + 1e-9)


@lru_cache(16)
def costs_beside(sampler: BufferedShuffle, delta: float) -> Array | None:
    """Upper bounds on the probabilities that what is no lone copy costs 0, 1, 2, ... releases; the last is of more.

    None where windows hide nothing.
    """
    windows = hiding_windows(sampler, delta)
    if windows is None:
        return None
    found = meetings(sampler, windows.most, SHARE * delta, windows.lone)
    law = np.zeros(int(found.levels[-1]) + 2)
    law[found.levels.astype(np.int64)] = -np.diff(np.concatenate([[1.0], found.beyond]))
    law[-1] = (found.beyond[-1] + windows.lost) * (1.0 + 1e-12)
    return law
