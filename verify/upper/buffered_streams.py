"""Passes that go through one buffer as a stream: how often a record's copies meet in one batch, and normal noise.

The record enters the buffer once in n draws, and each draw takes one of the B records that are held, uniformly. Reveal
all draws: their law is the same for both neighbours. Given them the record is in batch t some k_t times, known to the
adversary, and normal noise costs mu times sqrt(S), S = sum of k_t^2, mu that of one contribution; delta is jointly
convex, so that it is at most the mean of that over the draws. That of no more than s grows with s, hence

    delta <= sum over levels s_0 < s_1 < ... of delta(mu sqrt(s_j)) (T_(j-1) - T_j) + T_J,    T_(-1) = 1,

for any falling T_j >= P(S > s_j), and P(S > s) <= e^(-theta (s + 1)) E e^(theta S).

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
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve, mean_delta
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma

THEOREM = (
    "a stream through a buffer: all draws revealed, and how often copies of a record meet in one batch "
    "(verify/upper/buffered_streams.py)"
)
MOST_BATCHES = 1000  # of a pass: a case for each
MOST_COPIES = 40  # that are held at once
SHARE = 1e-4  # of the claimed delta: the chance of more copies at once, and that S is above all levels
THETAS = np.geomspace(1e-3, 1.5, 40)
LEVELS = 80
FORGOTTEN = 60  # passes after which what was held at the beginning counts as it did then
LARGEST_POWER = 600.0  # of e
MOST_CASES = 3e6  # copies times first batches times entries of a matrix; of more c is forgotten
SETTLED = 200  # copies after which, coming so, each adds as much as the one before
LARGEST_DRAW = 2**62  # that has a number in numpy
LEAST_VALUE = 1e-200  # relative to the largest one


@dataclass(frozen=True)
class _Meetings:
    """How often copies meet: P(S > levels[j]) <= beyond[j], arrays of one shape."""

    levels: Array
    beyond: Array


@dataclass(frozen=True)
class _Stream:
    """The sampler of the only phase, mu of one contribution, M, and how likely more copies than M are."""

    sampler: BufferedShuffle
    mu: float
    most: int
    lost: float


def _stream(claim: Claim) -> _Stream | None:
    """What the theorem needs of a claim; None where it does not apply."""
    if len(claim.phases) != 1:
        return None
    [phase] = claim.phases
    mu, sampler = shift_over_sigma(phase, claim.adjacency), phase.sampler
    if mu is None or not isinstance(sampler, BufferedShuffle) or sampler.passes is not None:
        return None
    copies = _copies(sampler, claim) if 2 <= sampler.records / sampler.batch <= MOST_BATCHES else None
    return None if copies is None else _Stream(sampler, mu, *copies)


def applies(claim: Claim) -> bool:
    """One phase of normal noise, a stream of passes of some batches, in a buffer that holds few copies of a record."""
    return _stream(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), directed rounding throughout.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    found = _stream(claim)
    if found is None:
        raise ValueError(f"Expected claim {claim.id!r} to have one phase, of normal noise and a buffered stream.")
    meetings = _meetings(found.sampler, found.most, SHARE * (claim.delta or 1e-10))
    shifts = found.mu * np.sqrt(meetings.levels) * (1.0 + 8.0 * UNIT)
    return Curve.upper("exact-integral", THEOREM, partial(_delta, shifts, meetings.beyond, found.lost))


def _delta(shifts: Array, beyond: Array, lost: float, epsilon: Array) -> Array:
    weights = -np.diff(np.concatenate([[1.0], beyond]))
    parts = analytic_delta(shifts[:, None], np.asarray(epsilon, dtype=np.float64)[None, :])
    return mean_delta(parts, weights, float(beyond[-1]) + lost)


def _arrivals(sampler: BufferedShuffle) -> int:
    """The most copies of a record that come in between the first draw and the last, and one more."""
    return -(-sampler.steps * sampler.batch // sampler.records) + 1


def _at_the_beginning(sampler: BufferedShuffle) -> int:
    """The most copies of a record that the full buffer can hold."""
    return -(-sampler.buffer // sampler.records)


def _copies(sampler: BufferedShuffle, claim: Claim) -> tuple[int, float] | None:
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
        if totals[most] <= SHARE * (claim.delta or 1e-10):
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


def _meetings(sampler: BufferedShuffle, most: int, target: float) -> _Meetings:
    """Levels of S from about its mean to where it is above them with probability `target`, and these probabilities."""
    thetas = THETAS[THETAS * (most + 1.0) ** 2 <= LARGEST_POWER]
    logs = _log_moments(sampler, most, thetas)

    def beyond(level: float) -> float:
        return math.exp(min(0.0, float((logs - thetas * (level + 1.0)).min())))

    least = max(1.0, math.floor((logs / thetas).min()) - 1.0)  # by Jensen's inequality about the mean
    top = least
    while beyond(top) > target:
        top = math.ceil(top * 1.02 + 1.0)
    levels = np.unique(np.floor(np.linspace(least, top, LEVELS)))
    return _Meetings(levels, np.minimum.accumulate([beyond(level) for level in levels]))


def _log_moments(sampler: BufferedShuffle, most: int, thetas: Array) -> Array:
    """log E e^(theta S) from above, for every theta, whatever record it is; failures of the whole count as nothing."""
    n, b, size, arrivals = sampler.records, sampler.batch, sampler.buffer, _arrivals(sampler)
    leaving, gone = _leaving(sampler, most), np.arange(most + 1)
    fell = gone[:, None] - gone[None, :]
    cost = np.exp(thetas[:, None, None] * np.maximum(fell, 0) ** 2)
    quiet = np.where(fell >= 0, leaving * cost, 0.0)  # theta, N, N'
    soon = 1.0 if size - most < 2 else -math.expm1(b * math.log1p(-1.0 / (size - most)))
    cells, least = np.arange(n // b + 1), n // b - 2  # batches at least between those in which a copy may come
    alike = len(cells) * arrivals * (most + 1) ** 2 > MOST_CASES or (arrivals + 2) * n > LARGEST_DRAW
    if not alike:
        coming = (cells[:, None] * b + np.arange(arrivals + 1)[None, :] * n) // b
        longer, late = np.diff(coming, axis=1) - 2 > least, coming >= sampler.steps
    silence = np.stack([np.linalg.matrix_power(one, least) for one in quiet])

    def batch(values: Array, kernel: Array) -> Array:
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

    values, logs = np.ones((len(thetas), 1 if alike else len(cells), most + 1)), np.zeros(len(thetas))
    for copy in reversed(range(arrivals)):
        after, values = values, batch(values, silence)
        if n % b:
            later = batch(values, quiet)
            values = np.maximum(values, later) if alike else np.where(longer[:, copy][None, :, None], later, values)
        values = np.maximum(arrival(batch(values, quiet)), batch(arrival(values), quiet))
        if not alike:
            values = np.where(late[:, copy][None, :, None], after, values)
        elif arrivals - copy >= SETTLED:
            logs = logs + (copy + 1.0) * np.log((values / after).max(axis=(1, 2)))
            values = after
            break
        largest = values.max(axis=(1, 2))
        values, logs = np.maximum(values / largest[:, None, None], LEAST_VALUE), logs + np.log(largest)
    values = np.broadcast_to(values, (len(thetas), len(cells), most + 1))
    for early in range(int(cells[-1])):
        values = np.where((cells > early)[None, :, None], batch(values, quiet), values)
    starts = _beginnings(sampler, range(len(cells)), most)
    first = np.array([max(float(values[t, c, held].max()) for c, held in starts) for t in range(len(thetas))])
    draws = (arrivals + 1.0) * n + 4.0 * b
    return np.asarray(logs + np.log(first) + 8.0 * UNIT * (most + 4.0) * (draws + 1e3))


def _beginnings(sampler: BufferedShuffle, cells: Sequence[int], most: int) -> Sequence[tuple[int, list[int]]]:
    """For every cell of first draws, how many copies the full buffer may hold."""
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    found = []
    for cell in cells:
        low, high = max(1, cell * b), min(n, cell * b + b - 1)
        if low <= high:
            found.append((cell, [min((size - 1 + at) // n, most) for at in (low, high)]))
    return found
