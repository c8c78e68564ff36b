"""Upper bound on one pass over shuffled batches, for the tests of it at single epsilons."""

from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass
from dpaudit.verify.results import Direction
from dpaudit.verify.upper.shuffled_batches import hidden_delta, large_weights_cost


def pass_delta(part: ShuffledPass | CurvePass, terms: int, direction: Direction, epsilon: float) -> float:
    """What is left to tell of a mean of so many terms, and what large weights cost."""
    return hidden_delta(part, terms, direction, epsilon) + large_weights_cost(part, terms, direction, epsilon)
