"""A one-sided bound on the privacy curve delta(epsilon), whoever proved it."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.results import Witness

SMALLEST_DELTA = 1e-300  # of an upper bound that is computed: an underflow must not pass for a proof of delta = 0
FARTHEST_EPSILON = 1e250  # whose products and quotients are floats: an upper bound there is one for all beyond


@dataclass(frozen=True)
class Curve:
    """One valid bound on delta(epsilon) of a whole claim's history, for every epsilon >= 0.

    Args:
        side: "upper" or "lower".
        method: "pld", "rdp", "envelope", "exact-integral", "pure", "witness", ...
        theorem: What proves it, in one line: author (year), theorem.
        delta: epsilon (1-d array, >= 0) -> delta (array in [0, 1]), nonincreasing, float error included.
        epsilon: delta (1-d array, in [0, 1)) -> epsilon (array in [0, inf]), nonincreasing.
        assumptions: What the reader must accept for it.
        witness: The neighbouring pair, for a lower bound.
    """

    side: Literal["upper", "lower"]
    method: str
    theorem: str
    delta: Callable[[Array], Array]
    epsilon: Callable[[Array], Array]
    assumptions: tuple[str, ...] = ()
    witness: Witness | None = None

    @classmethod
    def upper(
        cls, method: str, theorem: str, delta: Callable[[Array], Array], assumptions: tuple[str, ...] = ()
    ) -> "Curve":
        """An upper bound whose epsilon is found from its delta."""
        return cls("upper", method, theorem, delta, partial(epsilon_at, delta), assumptions)


def least_delta(curves: Sequence[Curve], epsilon: Array) -> Array:
    """The least of several upper bounds on delta at each epsilon."""
    return np.asarray(np.minimum.reduce([np.ones(len(epsilon)), *(curve.delta(epsilon) for curve in curves)]))


def mean_delta(deltas: Array, chances: Array, lost: float) -> Array:
    """Upper bound on delta of a history that is one of several, which is revealed: delta is jointly convex.

    Args:
        deltas: Upper bounds of each of them, shape (histories, epsilons).
        chances: Upper bounds on their probabilities, or on those of a law with more of the costlier ones.
        lost: Upper bound on the probability of none of them.
    """
    return np.asarray(np.minimum((chances @ deltas + lost) * (1.0 + 1e-15 * (len(chances) + 8)), 1.0))


def best_theorem(curves: Sequence[Curve], epsilon: float) -> str:
    """What proves the least of several upper bounds on delta at an epsilon."""
    at = np.array([min(epsilon, FARTHEST_EPSILON)])
    return min(curves, key=lambda curve: float(curve.delta(at)[0])).theorem


def assumptions_of(parts: Sequence[Sequence[Curve]]) -> tuple[str, ...]:
    """What the reader must accept for any of the bounds on several parts, each said once."""
    return tuple(dict.fromkeys(text for curves in parts for curve in curves for text in curve.assumptions))


def end_of(curves: Sequence[Curve], delta: float, tail: float, otherwise: float) -> float:
    """Epsilon where the least of several upper bounds falls to a tail, or else to a part of delta.

    Args:
        curves: The bounds.
        delta: Of which a thousandth, or a tenth, will do.
        tail: What is wanted, in (0, 1).
        otherwise: Where they fall to none of these.
    """
    wanted = np.array([tail, max(1e-3 * delta, tail), max(0.1 * delta, tail)])
    found = np.min([np.full(len(wanted), math.inf), *(curve.epsilon(wanted) for curve in curves)], axis=0)
    finite = found[np.isfinite(found)]
    return float(finite[0]) if len(finite) else otherwise
