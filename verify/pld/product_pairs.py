"""A dominating pair of many independent coordinates from that of one, as a pair of discrete laws that can be sampled.

The coordinates' losses add up, so that their delta(epsilon) is bounded from above as a history's is (`composition`).
Any convex, falling curve of a = e^epsilon above the true one is that of a pair that dominates (Zhu, Dong and Wang 2022,
Lemma 8): here the largest convex one below the bounds at some losses, straight in a between those. Its slope at a loss
is -Q(L > loss), and P(L > loss) is its value and a times that; what it does not fall below is an infinite loss.
"""

import math
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.cells import SMALLEST_MASS
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails
from dpaudit.verify.pld.fourier import UNIT
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


def convex(losses: Array, deltas: Array) -> NDArray[np.int64]:
    """Which points lie on the largest convex function of e^loss that is nowhere above them."""
    kept, falls = [0], [math.inf]
    for k in range(1, len(losses)):
        while (fall := _log_fall(losses, deltas, kept[-1], k)) >= falls[-1]:
            kept.pop()
            falls.pop()
        kept.append(k)
        falls.append(fall)
    return np.array(kept)


def _log_fall(losses: Array, deltas: Array, i: int, j: int) -> float:
    """log of how fast the deltas fall in e^loss between two points."""
    fallen, apart = float(deltas[i] - deltas[j]), float(losses[j] - losses[i])
    if fallen <= 0:
        return -math.inf
    return math.log(fallen) - float(losses[i]) - (math.log(math.expm1(apart)) if apart < 700.0 else apart)


@dataclass(frozen=True)
class Beyond:
    """What a discrete pair has above each of its losses, an infinite loss left out, with bounds on the errors.

    Args:
        p: P(inf > L > loss).
        q: Q(L > loss).
        p_off, q_off: Their errors at most.
        infinite: P(L = inf), which is Q(L = -inf).
    """

    p: Array
    q: Array
    p_off: Array
    q_off: Array
    infinite: float

    @classmethod
    def of_curve(cls, losses: Array, deltas: Array) -> Self:
        """Of the pair whose delta(epsilon) is straight in e^epsilon between these points, and constant beyond them."""
        fallen, apart = -np.diff(deltas), np.diff(losses)
        rounding = 8.0 * UNIT * (deltas[:-1] / np.maximum(fallen, SMALLEST_MASS) + 1.0 + np.abs(losses[:-1]))
        with np.errstate(under="ignore"):
            near = np.minimum(apart, 700.0)
            share = fallen / np.expm1(near) * np.exp(near - apart)  # e^loss Q(L > loss)
            q = np.append(share * np.exp(-losses[:-1]), 0.0)
        p = np.append(share + (deltas[:-1] - deltas[-1]), 0.0)
        p_off = np.append(rounding * share, 0.0) + 8.0 * UNIT * (deltas + p)
        return cls(p, q, p_off, np.append(rounding, 0.0) * q, float(deltas[-1]))


def pair_of_curve(losses: Array, deltas: Array, mirrored: tuple[Array, Array] | None = None) -> DominatingPair:
    """The pair whose delta(epsilon) is straight in e^epsilon between points of a convex curve.

    Args:
        losses: Ascending from 0.
        deltas: Falling; the last one is the mass of an infinite loss.
        mirrored: The same of the second law against the first, of as much mass at an infinite loss; without it the
            pair is its own mirror image.
    """
    above, below = Beyond.of_curve(losses, deltas), Beyond.of_curve(*(mirrored or (losses, deltas)))
    down = mirrored[0] if mirrored else losses

    def tails(at: Array) -> Tails:
        size, positive = np.abs(at), at >= 0
        i = np.searchsorted(losses, np.maximum(at, 0.0), side="right") - 1  # of L > at
        j = np.maximum(np.searchsorted(down, size, side="left") - 1, 0)  # of -L >= size, where that is not 0
        within = size <= down[-1]
        small = np.where(within, below.q[j], 0.0)  # P(L <= -size)
        large = np.where(within, below.p[j], 0.0) + below.infinite  # Q(L <= -size)
        p_cdf = np.where(positive, 1.0 - above.infinite - above.p[i], small)
        p_sf = np.where(positive, above.p[i], 1.0 - above.infinite - small)
        q_cdf, q_sf = np.where(positive, 1.0 - above.q[i], large), np.where(positive, above.q[i], 1.0 - large)
        off = np.where(positive, above.p_off[i], below.q_off[j]), np.where(positive, above.q_off[i], below.p_off[j])
        ends = [np.maximum(np.minimum(*pair), SMALLEST_MASS) for pair in ((p_cdf, p_sf), (q_cdf, q_sf))]
        return Tails(p_cdf, p_sf, q_cdf, q_sf, off[0] / ends[0], off[1] / ends[1])

    return DominatingPair(tails, largest=float(max(losses[-1], down[-1])), lost=above.infinite)
