"""A replaced record by way of a ghost: for samplers that hide a record from its absence, not from another value.

A ghost takes a record's place and contributes 0. A record and its ghost are neighbours, and so are the ghost and
another record, whatever the sampler: with A a bound on delta(epsilon) of both in both orders, P, G and R the laws with
the record, the ghost and the other record, every event S and every s in [0, epsilon] have

    P(S) <= e^s G(S) + A(s) <= e^s (e^(epsilon - s) R(S) + A(epsilon - s)) + A(s),

so that delta(epsilon) <= A(s) + e^s A(epsilon - s) (group privacy; Vadhan 2017, "The complexity of differential
privacy", Lemma 2.2). In bins it is next to what the records cost from below: two contributions of opposite signs.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve, assumptions_of, best_theorem, least_delta
from dpaudit.verify.pld.curve_pairs import chords
from dpaudit.verify.samplers import BallsInBins, RandomAllocation

THEOREM = (
    "a replaced record is one that a ghost takes the place of, and a ghost that a record takes the place of: "
    "Vadhan (2017), Lemma 2.2"
)
SHARES = np.geomspace(1e-5, 1e3, 1200)  # of epsilon, that the first of both costs
MOST_SHARE = 0.6  # of epsilon, as the second one's delta counts by e^s
MOST_WEIGHT = 5.0  # nats of the second one's delta, beyond which the bounds are not made tighter farther out


def parts(claim: Claim) -> list[Claim]:
    """The history with the record against its ghost; empty where none of its samplers needs that."""
    hiding = any(isinstance(phase.sampler, BallsInBins | RandomAllocation) for phase in claim.phases)
    if claim.adjacency != "replace-one" or not hiding:
        return []
    epsilon = claim.epsilon / 2.0
    delta = claim.least_delta / (1.0 + math.exp(min(epsilon, MOST_WEIGHT)))
    return [replace(claim, epsilon=epsilon, delta=delta, adjacency="zero-out", guarantee=None)]


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history in which a record is replaced.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of the one of them.
    """
    known = least_delta(curves[0], SHARES)

    def delta(epsilon: Array) -> Array:
        return np.array([_least(known, float(point)) for point in epsilon])

    theorem = f"{THEOREM}; {best_theorem(curves[0], claim.epsilon / 2.0)}"
    return Curve.upper("pld", theorem, delta, assumptions_of(curves))


def _least(known: Array, epsilon: float) -> float:
    """The bound at one epsilon, which falls: so does what every share leaves, and more shares fit."""
    fitting = int(np.searchsorted(SHARES, epsilon * MOST_SHARE, side="right"))
    shares = SHARES[:fitting]
    again = chords(SHARES, known, epsilon - shares)
    with np.errstate(over="ignore", invalid="ignore"):
        found = known[:fitting] + np.where(again > 0, np.exp(shares) * again, 0.0)
    return min(1.0, float(found.min(initial=1.0)) * (1.0 + 1e-14))
