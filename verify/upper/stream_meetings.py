"""How often copies of one record meet in a batch, of passes that go through one buffer as a stream.

The record enters the buffer once in n draws, and each draw takes one of the B records that are held, uniformly. It is
in batch t some k_t times, and S is the sum of the k_t^2 of all batches that count. For any falling T_j >= P(S > s_j) at
levels s_0 < s_1 < ... what grows with S has a mean of at most its value at s_j times T_(j-1) - T_j, summed, and T_J
times the largest value; and P(S > s) <= e^(-theta (s + 1)) E e^(theta S).

The moment goes backwards over batches. With N copies held at the beginning of a batch of b draws in which none comes
in, k of them leave by a chain that steps from N to N - 1 with probability N/B in each draw: one entry of the b-th power
of a matrix. A copy that comes in during a batch leaves in it with a probability that depends on when it comes, and on
when the others leave, of at most p = 1 - (1 - 1/(B - N))^b, each draw that takes none of the others taking it with
probability at most 1/(B - N): the moment is linear in that probability, and so at most what it is at 0 or at p. Where
in the file the record is decides in which batches its copies come. With first draws b c, ..., b c + b - 1 of the first
copy that is not in the buffer from the beginning, the e-th one comes in batch floor((b c + e n)/b) or the next: both
are tried, the larger value counts, for every c. More batches after the last copy came in only add to S.
With too many copies for that, either number of batches between two of them is tried, too, and c is forgotten: then the
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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.special import xlogy

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.samplers import BufferedShuffle

MOST_BATCHES = 1000  # of a pass: a case for each
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
SHORTER = 0.9  # of the batches that hide a copy in the shortest full window, where a shorter one may count, too


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

    def beyond(level: float) -> float:
        return math.exp(min(0.0, float((logs - thetas * (level + 1.0)).min())))

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
    n, b, size, arrivals = sampler.records, sampler.batch, sampler.buffer, _arrivals(sampler)
    leaving, gone = _leaving(sampler, most), np.arange(most + 1)
    fell = gone[:, None] - gone[None, :]
    cost = np.exp(thetas[:, None, None] * np.maximum(fell, 0) ** 2)
    quiet = np.where(fell >= 0, leaving * cost, 0.0)  # theta, N, N'
    soon = 1.0 if size - most < 2 else -math.expm1(b * math.log1p(-1.0 / (size - most)))
    cells, whole = np.arange(n // b + 1), n // b
    alike = len(cells) * arrivals * (most + 1) ** 2 > MOST_CASES or (arrivals + 2) * n > LARGEST_DRAW
    if not alike:
        coming = (cells[:, None] * b + np.arange(arrivals + 1)[None, :] * n) // b
        longer, late = np.diff(coming, axis=1) > whole, coming >= sampler.steps
    windows = [_windows(leaving, quiet, thetas, max(whole + more, 0), lone) for more in (-2, -1, 0, 1)]

    def through(values: Array, kernel: Array) -> Array:
        return values @ kernel.transpose(0, 2, 1)

    def arrival(values: Array) -> Array:
        """One batch in which a copy comes in: it is there afterwards, or it leaves with the others."""
        stays = np.concatenate([values[:, :, 1:], np.zeros_like(values[:, :, :1])], axis=2)
        found = np.zeros_like(values)
        for k in range(most + 1):
            power = np.exp(thetas * (2 * k + 1))[:, None, None]
            worst = np.maximum(stays, (1.0 - soon) * stays + soon * power * values)[:, :, : most + 1 - k]
            weights = quiet[:, gone[k:], gone[: most + 1 - k]]
            found[:, :, k:] += weights[:, None, :] * worst
        return found

    def beginning(values: Array, more: int) -> Array:
        """The batches before the first copy comes in, so many more than its cell says."""
        batches, held = cells + more, np.arange(1, most + 1)
        values = np.broadcast_to(values, (len(thetas), len(cells), most + 1))
        found, power, one = values, np.eye(most + 1), np.zeros((len(cells), most))
        for batch in range(int(batches[-1])):
            power = power @ leaving
            found = np.where((batches > batch)[None, :, None], through(found, quiet), found)
            one[batches == batch + 1] = power[held, held - 1]
        if lone is not None:
            counted = np.where((batches >= lone)[None, :, None], np.expm1(thetas)[:, None, None] * one, 0.0)
            found = np.concatenate([found[:, :, :1], found[:, :, 1:] - counted * values[:, :, :-1]], axis=2)
        return found

    # at the beginning of the batch in which the next copy comes in: the first of the two that it can be, the second
    first, second = (np.ones((len(thetas), 1 if alike else len(cells), most + 1)) for _ in range(2))

    def window(least: int) -> Array:
        """From after the batch of a copy to that of the next, `first` so many batches behind it, or one more."""
        return np.maximum(through(first, windows[least - whole + 2]), through(second, windows[least - whole + 3]))

    logs = np.zeros(len(thetas))
    for copy in reversed(range(arrivals)):
        after = first, second
        by_start = [window(whole - 1 - start) for start in range(2)]
        if alike or longer[:, copy].any():
            pairs = zip(by_start, [window(whole - start) for start in range(2)], strict=True)
            by_start = [
                np.maximum(*pair) if alike else np.where(longer[:, copy][:, None], *pair[::-1]) for pair in pairs
            ]
        first, second = map(arrival, by_start)
        if not alike:
            over = late[:, copy][None, :, None]
            first, second = np.where(over, after[0], first), np.where(over, after[1], second)
        elif arrivals - copy >= SETTLED:
            growth = np.maximum(first / after[0], second / after[1]).max(axis=(1, 2))
            logs = logs + (copy + 1.0) * np.log(growth)
            first, second = after
            break
        largest = np.maximum(first, second).max(axis=(1, 2))
        first, second = (np.maximum(values / largest[:, None, None], LEAST_VALUE) for values in (first, second))
        logs = logs + np.log(largest)
    values = np.maximum(beginning(first, 0), beginning(second, 1))
    starts = _beginnings(sampler, range(len(cells)), most)
    begun = np.array([max(float(values[t, c, held].max()) for c, held in starts) for t in range(len(thetas))])
    draws = (arrivals + 1.0) * n + 4.0 * b
    return np.asarray(logs + np.log(begun) + 8.0 * UNIT * (most + 4.0) * (draws + 1e3))


def _beginnings(sampler: BufferedShuffle, cells: Sequence[int], most: int) -> Sequence[tuple[int, list[int]]]:
    """For every cell of first draws, how many copies the full buffer may hold."""
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    found = []
    for cell in cells:
        low, high = max(1, cell * b), min(n, cell * b + b - 1)
        if low <= high:
            found.append((cell, [min((size - 1 + at) // n, most) for at in (low, high)]))
    return found


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
    lost = SHARE * delta

    def hiding(batches: int) -> float:
        return (size - _empty(size, batches * b, lost / (_arrivals(sampler) + 1.0)) - b) / b

    lone = first if 1 <= first < full and hiding(first) >= SHORTER * hiding(full) else full
    return Windows(hiding(lone), sampler.begun, lone, lost)


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
