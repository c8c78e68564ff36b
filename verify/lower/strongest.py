"""Several certified witnesses as one lower bound: the best of them at every point."""

import math
from collections.abc import Callable, Sequence
from typing import Protocol

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.operating_points import Events
from dpaudit.verify.results import Witness, down

NOTHING = 1e-40  # of the claimed delta: a witness of less at the claimed epsilon is one for another place
LEAST_LOG = -690.0  # of a probability that is printed as a float
FIRST_RELEASES = (10**6, 10**4, 100)  # of longer histories, which are looked at where nothing is seen in the whole
FIRST_SEEN = (
    "lower bound: where nothing is seen in the whole of so long a history, its first releases alone are looked at"
)


class Bounds(Protocol):
    """What a witness proves, or several."""

    @property
    def delta(self) -> Callable[[Array], Array]:
        """epsilon -> a lower bound on delta."""
        ...

    @property
    def epsilon(self) -> Callable[[Array], Array]:
        """delta -> a lower bound on epsilon."""
        ...


def merit(points: Bounds, claim: Claim) -> tuple[float, float]:
    """What a witness proves: delta at the claimed epsilon, or epsilon at the claimed delta where that is nothing."""
    delta = float(points.delta(np.array([claim.epsilon]))[0])
    return delta if delta > NOTHING * claim.delta else 0.0, float(points.epsilon(np.array([claim.delta]))[0])


def of_first_releases(points: Callable[[float], Events], longest: int, claim: Claim) -> Events:
    """Operating points of a history or, of one so long that nothing is seen in it, of its first releases alone.

    They are a part of the output, the rest of which need not be looked at (post-processing).

    Args:
        points: Of so many releases of each kind, at most.
        longest: How many there are of a kind.
        claim: Where something is to be seen.
    """
    found = points(math.inf)
    for most in FIRST_RELEASES if longest > FIRST_RELEASES[0] else ():
        if max(merit(found, claim)) > 0:
            break
        found = points(most)
    return found


def strongest_curve(
    witnesses: Sequence[Bounds],
    claim: Claim,
    theorem: str,
    assumptions: Sequence[str],
    witness: Callable[[int], Witness | None],
) -> Curve:
    """The pointwise best of several certified witnesses, shown by the one that is best at the claim.

    Args:
        witnesses: What they prove, at least one.
        claim: Where the best is chosen.
        theorem: What proves them, in one line.
        assumptions: What the reader must accept for them.
        witness: Index into `witnesses` -> the neighbouring pair.
    """

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.max([points.delta(epsilon) for points in witnesses], axis=0))

    def epsilon(delta: Array) -> Array:
        return np.asarray(np.max([points.epsilon(delta) for points in witnesses], axis=0))

    best = max(range(len(witnesses)), key=lambda index: merit(witnesses[index], claim))
    return Curve("lower", "witness", theorem, delta, epsilon, tuple(assumptions), witness(best))


def aim(points: Events, claim: Claim) -> float:
    """Epsilon at which a witness is shown: the claimed one, or what it proves at delta if that proves nothing."""
    excess, at = merit(points, claim)
    return claim.epsilon if excess > 0 else at


def event(points: Events, epsilon: float, what: str) -> str:
    """The event of a witness with the largest P - e^epsilon Q, in words.

    Args:
        points: Of the witness.
        epsilon: Where it is best.
        what: The number that is compared with a threshold.
    """
    near = points.near(epsilon)
    if not len(near.threshold):
        return "none"
    best = near.best_event(epsilon)
    return (
        f"{what} >= {near.threshold[best]:.6g}: probability at least {down(near.first_lower[best], 6)} against at most "
        f"{_probability(min(near.log_second_upper[best], 0.0))}"
    )


def _probability(log: float) -> str:
    """A probability of this logarithm, also where it is none of floats."""
    return f"{math.exp(log):.6g}" if log > LEAST_LOG else f"e^{log:.6g}"
