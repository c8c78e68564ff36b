"""Upper bound on one pass over shuffled batches, for the tests of it at single epsilons."""

import numpy as np

from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass
from dpaudit.verify.pld.term_sums import term_sums
from dpaudit.verify.results import Direction
from dpaudit.verify.upper.gaussian_pld import analytic_delta
from dpaudit.verify.upper.weight_layers import pass_cost


def pass_delta(part: ShuffledPass | CurvePass, direction: Direction, epsilon: float) -> float:
    """The cost of a pass whose order is hidden, without that of a known order."""
    at = np.array([epsilon])
    if isinstance(part, ShuffledPass):
        known = analytic_delta(part.shift * (2.0 if direction == "swap" else 1.0), at)
    else:
        known = (part.twice if direction == "swap" else part.once).delta(at)
    return pass_cost(part, direction, epsilon, float(known[0])).delta


def mean_excess(part: ShuffledPass | CurvePass, growth: float, terms: int, direction: Direction) -> float:
    """Upper bound on E (mean of so many independent terms)_+."""
    return term_sums(part, growth, [terms], direction)[0].excess() / terms
