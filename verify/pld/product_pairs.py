"""A dominating pair of many independent coordinates from that of one, as a pair of discrete laws that can be sampled.

The coordinates' losses add up, so that their delta(epsilon) is bounded from above as a history's is (`composition`).
The largest convex curve below the bounds at some losses is that of a pair that dominates (`curve_pairs`).
"""

import math

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.curve_pairs import convex, pair_of_curve
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.loss_grid import sampled_pair
from dpaudit.verify.pld.pair_curve import compose_sampled

# losses are FINE deviations apart up to FAR of them above the mean, then by GROWTH of themselves
FINE, FAR, GROWTH, MOST = 0.01, 8.0, 0.01, 1 << 14


def product_pair(pair: DominatingPair, count: int, tail: float) -> DominatingPair:
    """A pair that dominates `count` independent coordinates which `pair` dominates one by one.

    Args:
        pair: Of one coordinate; its own mirror image.
        count: Coordinates.
        tail: Mass that may go to an infinite loss.
    """
    return pair_of_curve(*product_curve(pair, count, tail))


def product_curve(pair: DominatingPair, count: int, tail: float) -> tuple[Array, Array]:
    """Losses and deltas of such a pair: the points between which its delta is straight in e^epsilon."""
    one = sampled_pair(pair, 1.0, 0.25 * tail / count, math.inf)
    [total] = compose_sampled([(one, count)], ("remove",))
    mean, deviation = _moments(total)
    unit = max(FINE * deviation, total.step)
    most = count * (one.cutoff + total.step)  # every coordinate's loss is rounded up
    near = unit * np.arange(FAR / FINE + min(max(mean, 0.0) / unit, MOST))
    near = near[near < most]
    last = max(near[-1], unit)
    far = last * np.exp(GROWTH * np.arange(1.0, math.log(max(most / last, 1.0)) / GROWTH))
    losses = np.unique(np.concatenate([near, far, [most]]))
    deltas = np.minimum.accumulate(total.delta(losses))
    enough = int(np.searchsorted(-deltas, -tail))
    losses, deltas = losses[: enough + 1], deltas[: enough + 1]
    at = convex(losses, deltas)
    return losses[at], deltas[at]


def _moments(total: Composed) -> tuple[float, float]:
    """Mean and standard deviation of the finite losses: guides to the points, never part of a bound."""
    [(part, count)] = total.parts
    places, weights = part.first + np.arange(len(part.masses), dtype=np.float64), part.masses
    if not (mass := float(weights.sum())):
        return 0.0, 0.0
    mean = float(weights @ places) / mass
    variance = float(weights @ np.square(places - mean)) / mass
    return count * mean * total.step, math.sqrt(count * variance) * total.step
