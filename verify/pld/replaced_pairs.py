"""The pair of a Poisson-sampled record that is replaced, from that of the record against nothing.

A release is R without the record, and R_v or R_w with the one or the other version. Let S have mass s under R. A pair
that dominates R_v against R and R_w against R, whose largest mass of a set of mass s is U(s), gives R_v(S) <= U(s) and
R_w(S) >= 1 - U(1-s) (Neyman-Pearson). So for every a >= 0

    P(S) - a Q(S) <= (1 - a)(1 - q) s + q U(s) - a q (1 - U(1-s)),

of which H(a), the largest over s, is convex in a with H(0) = 1 and H(a) = 1 - a + a H(1/a): the profile of a pair, its
own mirror image, that dominates and composes (Zhu, Dong and Wang 2022, Lemma 8 and Theorem 10). On the line, for noise
whose loss rises with the output, half-lines attain both at v = -w, so that it is the best there is. U is straight
between the points of a discrete pair, and so is what is maximised: at one of those.
"""

import math

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.curve_pairs import Beyond, Curves, convex, pair_of_curve
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.product_pairs import product_curve

LARGEST = 600.0  # loss of the record against nothing: e to that is a float
MOST = 1500  # losses at which the curve is computed
BLOCK = 1 << 21  # numbers at a time


def replaced_pair(pair: DominatingPair, count: int, q: float, tail: float) -> DominatingPair | None:
    """A pair that dominates a sampled release of a replaced record; None for losses beyond floats.

    Args:
        pair: Of one coordinate with the record against it without; its own mirror image.
        count: Coordinates.
        q: Sampling probability, in (0, 1).
        tail: Mass that may go to an infinite loss.
    """
    curve = replaced_curve(product_curve(pair, count, tail), q)
    return None if curve is None else pair_of_curve(*curve)


def replaced_curve(known: Curves, q: float) -> Curves | None:
    """The curve of that pair, from that of the record against nothing: losses and deltas, straight in e^loss between.

    Args:
        known: The latter.
        q: Sampling probability, in (0, 1).
    """
    losses, deltas = known
    if losses[-1] > LARGEST:
        return None
    wanted = losses[np.unique(np.linspace(0, len(losses) - 1, min(len(losses), MOST)).astype(int))]
    larger, smaller = (np.log1p(q * np.expm1(sign * wanted)) for sign in (1.0, -1.0))
    epsilons = np.unique(np.append(larger - smaller, larger[-1] - math.log1p(-q)))
    curve = np.minimum.accumulate(_curve(Beyond.of_curve(losses, deltas), q, epsilons))
    at = convex(epsilons, curve)
    return epsilons[at], curve[at]


def most_mass(beyond: Beyond) -> tuple[Array, Array]:
    """Points (s, U(s)), straight between which a set of mass s has at most U(s) of the other law; errors included."""
    above, off = _above(beyond)
    at = np.concatenate([[0.0], (beyond.q - beyond.q_off)[::-1], 1.0 - above - off, [1.0]])
    most = np.concatenate([[beyond.infinite], (above + off)[::-1], 1.0 - beyond.q + beyond.q_off, [1.0]])
    at, most = np.maximum(np.minimum.accumulate(at[::-1])[::-1], 0.0), np.minimum(np.maximum.accumulate(most), 1.0)
    return at, most * (1.0 + 8.0 * UNIT)


def least_mass(beyond: Beyond) -> tuple[Array, Array]:
    """Points (s, 1 - U(1-s)), straight between which a set of mass s has at least as much; errors included."""
    above, off = _above(beyond)
    at = np.concatenate([[0.0], (above + off)[::-1], 1.0 - beyond.q + beyond.q_off, [1.0]])
    least = np.concatenate([[0.0], (beyond.q - beyond.q_off)[::-1], 1.0 - above - off, [1.0]])
    at, least = np.maximum.accumulate(np.minimum(at, 1.0)), np.maximum(np.minimum.accumulate(least[::-1])[::-1], 0.0)
    return at, least * (1.0 - 8.0 * UNIT)


def _above(beyond: Beyond) -> tuple[Array, Array]:
    """P(L > loss), the infinite one included, and its error."""
    above = beyond.p + beyond.infinite
    return above, beyond.p_off + 4.0 * UNIT * above


def _curve(beyond: Beyond, q: float, epsilons: Array) -> Array:
    """Upper bounds on H at each epsilon."""
    at, most = most_mass(beyond)
    ats, least = least_mass(beyond)
    s = np.unique(np.concatenate([at, ats]))
    return largest_difference(q, np.interp(s, at, most), s, np.interp(s, ats, least), epsilons)


def largest_difference(rate: float, drawn: Array, others: Array, version: Array, epsilons: Array) -> Array:
    """The largest P(S) - e^epsilon Q(S) of two mixtures over some sets S, at each epsilon >= 0; rounded up.

    Args:
        rate: At which the record is drawn.
        drawn: Mass of each S in the first law where it is.
        others: In both laws where it is not.
        version: In the second law where it is.
        epsilons: Where.
    """
    found = []
    for part in np.array_split(epsilons, math.ceil(len(epsilons) * len(others) / BLOCK)):
        growth = np.expm1(part)[:, None]
        lost = (1.0 - rate) * growth * others + (rate * (growth + 1.0)) * version
        found.append(np.max(rate * drawn * (1.0 + 4.0 * UNIT) - lost * (1.0 - 16.0 * UNIT), axis=1))
    return np.asarray(np.clip(np.concatenate(found), rate * drawn[0], 1.0))
