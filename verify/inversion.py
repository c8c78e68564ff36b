"""Inversion of privacy curves: from delta(epsilon) to epsilon(delta)."""

import math
from collections.abc import Callable

import numpy as np

from dpaudit.mechanisms.base import Array

LARGEST_EPSILON = 1e9
BRACKET_WIDTH = 1e-9  # width of the final bracket, relative to epsilon


def epsilon_at(delta_of: Callable[[Array], Array], delta: Array) -> Array:
    """The smallest epsilon known to have delta_of(epsilon) <= delta, elementwise; inf where none up to 1e9 has.

    Bisection keeps delta_of(high) <= delta, so the answer is valid for an upper bound whatever its float error.

    Args:
        delta_of: epsilon (1-d array, >= 0) -> delta, nonincreasing.
        delta: 1-d array of values in [0, 1).

    >>> float(epsilon_at(lambda e: np.exp(-e), np.array([0.5]))[0])  # doctest: +ELLIPSIS
    0.693147...
    """
    delta = np.asarray(delta, dtype=np.float64)
    low, high = np.zeros_like(delta), np.zeros_like(delta)
    short = delta_of(high) > delta
    step = 0.125
    while short.any() and step <= LARGEST_EPSILON:
        low[short], high[short] = high[short], step
        short[short] = delta_of(high[short]) > delta[short]
        step *= 2.0
    high[short] = math.inf
    # every pass halves the bracket: 80 take any bracket below BRACKET_WIDTH of its upper end
    for _ in range(80):
        active = np.flatnonzero(np.isfinite(high) & (high - low > BRACKET_WIDTH * high))
        if not len(active):
            break
        middle = 0.5 * (low[active] + high[active])
        over = delta_of(middle) > delta[active]
        low[active[over]], high[active[~over]] = middle[over], middle[~over]
    return high
