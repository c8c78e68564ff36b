"""Tails of the normal law, and what their rounding may cost.

For x >= 0 the hazard phi(x)/Phi(-x) is below (x + sqrt(x^2 + 4))/2 <= x + 1 (Birnbaum 1942), and log Phi(-x) falls,
faster and faster. So an argument that is off by at most d moves the tail Phi(-x) by a factor of at most e^r either way,
r = d (x + d + 1). One rounding of x, d = 2^-53 x, makes that about 2^-53 x (x + 1): the error that a tail inherits
grows with the square of x. What scipy's own functions add grows alike, because they square their argument; tests
compare them with ball arithmetic.
"""

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT

# relative error of scipy's ndtr(-x), absolute error of log_ndtr(-x): units of rounding, and as many per x^2
OWN_ERROR, OWN_ERROR_PER_SQUARE = 16.0, 4.0

ENDLESS = 1e10  # what an argument of that size, or off by that much, is charged, is beyond all that is told apart
LAST = 38.0  # ndtr(-38) is below 1e-300, where a tail counts as nothing


def tail_error(x: Array, off: Array | float = 0.0) -> Array:
    """Bound on the relative error of ndtr(-|x|), and on the absolute one of log_ndtr(-|x|), at a rounded x.

    Args:
        x: Arguments, one rounding away from the ones that are meant.
        off: How far they may lie from these besides.
    """
    size = np.minimum(np.abs(x), ENDLESS)
    moved = np.minimum(2.0 * UNIT * size + off, ENDLESS)
    own = (OWN_ERROR + OWN_ERROR_PER_SQUARE * np.square(size)) * UNIT
    return np.asarray(np.expm1(np.minimum(moved * (size + moved + 1.0) + own, 700.0)))


def mean_error(off: float, terms: int) -> float:
    """Bound on the relative error of a weighted sum of tails ndtr(x), of which those beyond LAST count as nothing.

    Args:
        off: How far an argument within LAST may lie from the one that is meant, besides its last rounding.
        terms: Length of the sum.
    """
    return float(tail_error(np.array(LAST), off)) + 2.0 * UNIT * terms
