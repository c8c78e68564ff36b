"""The dominating pair behind a bound on delta(epsilon), whoever proved it: so bounds of different theorems compose.

Any convex, falling curve of a = e^epsilon above the true one is that of a pair that dominates (Zhu, Dong and Wang 2022,
Lemma 8): here the largest convex one below the bounds at some losses, straight in a between those. Its slope at a loss
is -Q(L > loss), and P(L > loss) is its value and a times that; what it does not fall below is an infinite loss.

Of a curve that bounds neighbours in both orders the pair is its own mirror image: at a < 1 a bound is 1 - a + a D, with
D that at 1/a. Where a bound says little near a = 1 the largest convex curve is straight from the mirror image of a
point to the point, and its value at a = 1 less than the bound there.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import SMALLEST_MASS
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails

Curves = tuple[Array, Array]  # losses, ascending from 0, and deltas, straight in e^loss between and constant beyond


def bounded_pair(delta: Callable[[Array], Array], losses: Array) -> DominatingPair:
    """The pair of the largest convex curve below a bound in both orders at some losses, and below its mirror image.

    Args:
        delta: Bound on delta(epsilon), for epsilon >= 0 (1-d array).
        losses: Where it is asked, ascending from 0.

    >>> pair = bounded_pair(lambda e: np.maximum(1 - np.exp(e - 1), 0.0), np.array([0.0, 1.0]))
    >>> round(float(pair.tails(np.array([0.5])).p_sf[0]), 3)  # randomized response: e/(1 + e)
    0.731
    """
    return pair_of_curve(*mirrored_hull(delta, losses))


def mirrored_hull(delta: Callable[[Array], Array], losses: Array) -> tuple[Array, Array]:
    """Losses and deltas of that pair's curve, which is straight in e^epsilon between them.

    Args:
        delta, losses: As of `bounded_pair`.
    """
    values = np.minimum.accumulate(np.minimum(delta(losses), 1.0))
    kept = convex(losses, values)
    return _met_at_one(losses[kept], values[kept])


def _met_at_one(losses: Array, deltas: Array) -> tuple[Array, Array]:
    """A convex curve from 0 on, lowered where it would not be convex with its mirror image."""
    shares = -np.diff(deltas) / np.expm1(np.minimum(np.diff(losses), 700.0))  # e^loss times the slope behind a point
    if not len(shares) or 2.0 * shares[0] <= 1.0 - deltas[0]:
        return losses, deltas
    # e^loss times the slope from a point's mirror image to the point
    middle = (1.0 - deltas[1:]) / (1.0 + np.exp(-losses[1:]))
    first = 1 + int(np.argmax(np.append(shares[1:], 0.0) <= middle))
    at_one = deltas[first] + middle[first - 1] * -math.expm1(-losses[first])
    lowered = min(float(at_one) * (1.0 + 8.0 * UNIT), float(deltas[0]))
    return np.append(0.0, losses[first:]), np.append(lowered, deltas[first:])


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


def chords(places: Array, values: Array, x: Array) -> Array:
    """Upper bound anywhere on a delta that is known at places: by chords in e^x, of which it is a convex function."""
    x = x - 16 * UNIT * np.abs(x)
    left = np.clip(np.searchsorted(places, x, side="right") - 1, 0, len(places) - 2)
    with np.errstate(over="ignore", invalid="ignore"):
        share = np.expm1(x - places[left]) / np.expm1(places[left + 1] - places[left])
        between = values[left] + np.clip(np.nan_to_num(share), 0.0, 1.0) * (values[left + 1] - values[left])
    ratio = np.minimum(x - places[0], 0.0)  # below all places delta is 1 where e^x is 0
    return np.asarray(np.where(ratio < 0, np.exp(ratio) * values[0] - np.expm1(ratio), between))


def _log_fall(losses: Array, deltas: Array, i: int, j: int) -> float:
    """log of how fast the deltas fall in e^loss between two points."""
    fallen, apart = float(deltas[i] - deltas[j]), float(losses[j] - losses[i])
    if fallen <= 0:
        return -math.inf
    return math.log(fallen) - float(losses[i]) - (math.log(math.expm1(apart)) if apart < 700.0 else apart)


def sampled_curves(known: Curves, q: float) -> tuple[Curves, Curves]:
    """Curves of a pair under Poisson sampling, in both orders, from that of the pair, its own mirror image.

    With delta(e^l) of the pair, (1 - q) Q + q P against Q has q delta(a) at 1 - q + q a, and Q against it, where u is
    e^-l, the share q u / (1 - q + q u) of delta at 1 / (1 - q + q u): straight where delta is.

    Args:
        known: Of the pair, losses of at most 700.
        q: Sampling probability, in (0, 1].
    """
    losses, deltas = known
    drawn = q * np.exp(-losses)
    rest = (1.0 - q) + drawn  # 1 - q + q u: a sum of positive numbers, where 1 + q (u - 1) cancels
    left = q * np.expm1(-losses)
    rounded = 1.0 + 16.0 * UNIT
    ghost = np.minimum.accumulate(drawn / rest * deltas) * rounded
    down = np.where(left > -0.5, -np.log1p(np.maximum(left, -0.5)), -np.log(rest))
    return _apart(np.log1p(q * np.expm1(losses)), q * deltas * rounded), _apart(down, ghost)


def _apart(losses: Array, deltas: Array) -> Curves:
    """A curve without losses that have become one in floats: of those the largest delta."""
    kept = np.unique(losses, return_index=True)[1]
    return losses[kept], deltas[kept]


def mean_pair(kinds: Sequence[tuple[float, tuple[Curves, Curves]]]) -> DominatingPair:
    """The pair of a release of one of several kinds, which is told and has one law for both neighbours.

    Its delta is the mean of theirs, and straight between all their losses.

    Args:
        kinds: Upper bounds on their probabilities, and their curves in both orders.
    """
    sides = []
    for side in (0, 1):
        curves = [(chance, both[side]) for chance, both in kinds]
        losses = np.unique(np.concatenate([one for _, (one, _) in curves]))
        deltas = sum((chance * _known_at(curve, losses) for chance, curve in curves), np.zeros(len(losses)))
        deltas = np.minimum.accumulate(np.minimum(deltas * (1.0 + 4.0 * len(kinds) * UNIT), 1.0))
        sides.append((losses, deltas))
    record, ghost = ((losses[at], deltas[at]) for losses, deltas in sides for at in [convex(losses, deltas)])
    return pair_of_curve(*of_one_end(record, ghost))


def _known_at(curve: Curves, losses: Array) -> Array:
    """Its deltas at losses, as they are at its own: what is 0 at the end stays so."""
    own, deltas = curve
    place = np.minimum(np.searchsorted(own, losses), len(own) - 1)
    return np.where(losses == own[place], deltas[place], np.where(losses > own[-1], deltas[-1], chords(*curve, losses)))


def of_one_end(record: Curves, ghost: Curves) -> tuple[Array, Array, Curves]:
    """Curves in two orders, raised to end and to begin at the same value."""
    end, start = max(record[1][-1], ghost[1][-1]), max(record[1][0], ghost[1][0])
    for _, deltas in (record, ghost):
        np.maximum(deltas, end, out=deltas)
        deltas[0] = start
    return *record, ghost


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
