"""Passes that go through one buffer as a stream: all draws revealed, normal noise.

Reveal all draws: their law is the same for both neighbours. Given them the record is in batch t some k_t times, known
to the adversary, and normal noise costs mu times sqrt(S), S = sum of k_t^2, mu that of one contribution; delta is
jointly convex, so that it is at most the mean of that over the draws. That of no more than s grows with s, hence

    delta <= sum over levels s_0 < s_1 < ... of delta(mu sqrt(s_j)) (T_(j-1) - T_j) + T_J,    T_(-1) = 1,

for any falling T_j >= P(S > s_j), which `stream_meetings` has.
"""

from dataclasses import dataclass
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve, mean_delta
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma
from dpaudit.verify.upper.stream_meetings import LEAST_DELTA, MOST_BATCHES, SHARE, meetings, most_held

THEOREM = (
    "a stream through a buffer: all draws revealed, and how often copies of a record meet in one batch "
    "(verify/upper/buffered_streams.py)"
)


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
    few = 2 <= sampler.records / sampler.batch <= MOST_BATCHES
    copies = most_held(sampler, claim.delta or LEAST_DELTA) if few else None
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
    met = meetings(found.sampler, found.most, SHARE * (claim.delta or LEAST_DELTA))
    shifts = found.mu * np.sqrt(met.levels) * (1.0 + 8.0 * UNIT)
    return Curve.upper("exact-integral", THEOREM, partial(_delta, shifts, met.beyond, found.lost))


def _delta(shifts: Array, beyond: Array, lost: float, epsilon: Array) -> Array:
    weights = -np.diff(np.concatenate([[1.0], beyond]))
    parts = analytic_delta(shifts[:, None], np.asarray(epsilon, dtype=np.float64)[None, :])
    return mean_delta(parts, weights, float(beyond[-1]) + lost)
