"""Dominating pairs (P, Q) through the exact tails of their privacy loss L = log dP/dQ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array, IIDCoordinates, LomaxCoordinates, PowerCoordinates
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import SMALLEST_MASS, tail_error
from dpaudit.verify.pld.normal_tails import tail_error as normal_error

BISECTIONS = 100  # halvings of a bracket of ratio at most 1e12: below rounding


class Tails(NamedTuple):
    """P(L <= l), P(L > l), Q(L <= l), Q(L > l), and bounds on the relative errors of the smaller tail under P and Q."""

    p_cdf: Array
    p_sf: Array
    q_cdf: Array
    q_sf: Array
    p_error: Array
    q_error: Array


@dataclass(frozen=True)
class DominatingPair:
    """A dominating pair (P, Q) by the tails of its loss L; a mirror image: -L under Q has the law of L under P.

    Args:
        tails: Losses l (1-d array, ascending, finite) -> the exact tails there.
        largest: Supremum of the loss, inf where unbounded.
        lost: Mass left out of the tails; it is moved to an infinite loss.
        slack: The tails at a loss l are taken within slack (1 + |l|) of it.
        levels: Most losses at which the tails are worth evaluating.
        heavy: Rare losses are so large that no one grid fits them and the ordinary ones.
    """

    tails: Callable[[Array], Tails]
    largest: float = math.inf
    lost: float = 0.0
    slack: float = 1e-13
    levels: int = 1 << 20
    heavy: bool = False


def exact_tails(p_cdf: Array, p_sf: Array, q_cdf: Array, q_sf: Array, error: float | Array) -> Tails:
    """Both tails of a privacy loss, of one relative error under both laws."""
    everywhere = np.broadcast_to(np.asarray(error, dtype=np.float64), p_cdf.shape)
    return Tails(p_cdf, p_sf, q_cdf, q_sf, everywhere, everywhere)


def gaussian_pair(mu: float) -> DominatingPair:
    """N(mu, 1) against N(0, 1): L is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""

    def tails(losses: Array) -> Tails:
        middle = losses / mu
        p, q = middle - mu / 2, middle + mu / 2
        errors = [normal_error(x, 2.0 * UNIT * np.abs(middle)) for x in (p, q)]
        return Tails(ndtr(p), ndtr(-p), ndtr(q), ndtr(-q), *errors)

    return DominatingPair(tails)


def laplace_pair(shift: float) -> DominatingPair:
    """Lap(1) moved by `shift` against Lap(1): L = clip(2 x - shift, -shift, shift), with atoms at both ends."""

    def tails(losses: Array) -> Tails:
        below, above = losses < -shift, losses >= shift
        inside = np.clip(losses, -shift, shift)
        p_cdf = np.where(above, 1.0, np.where(below, 0.0, 0.5 * np.exp((inside - shift) / 2)))
        q_sf = np.where(below, 1.0, np.where(above, 0.0, 0.5 * np.exp(-(inside + shift) / 2)))
        # an exponent that is off by its rounding
        error = 8.0 * UNIT * (1.0 + shift + np.abs(inside))
        return exact_tails(p_cdf, 1.0 - p_cdf, 1.0 - q_sf, q_sf, error)

    return DominatingPair(tails, largest=shift)


def logconcave_pair(law: PowerCoordinates, shift: float) -> DominatingPair:
    """One coordinate of exp(-|x|^beta) noise moved by `shift`: the loss is nondecreasing in the output.

    L(x) = log f(x - shift) - log f(x) is odd about x = shift/2, so only nonnegative losses are inverted.

    Rounding. A power is off by (beta + 2) units of its size, as is a loss where x is, and the two powers of a loss l
    are y and y + |l|, with y at most 700 where a tail is above 1e-300: 4 (beta + 2) (1400 + |l|) units in all, at most.
    """

    def loss(x: Array) -> Array:
        with np.errstate(invalid="ignore"):
            value = law.logpdf(x - shift) - law.logpdf(x)
        # both powers beyond floats: so is their difference, but for the middle, which is where the loss is 0
        return np.where(np.isnan(value), np.where(x > shift / 2, np.inf, 0.0), value)

    def tails(losses: Array) -> Tails:
        distance = _invert(lambda away: loss(shift / 2 + away), np.abs(losses), shift)
        x = shift / 2 + np.where(losses >= 0, distance, -distance)
        cdf = [law.cdf(at) for at in (x - shift, shift - x, x, -x)]
        small = [np.maximum(np.minimum(*pair), SMALLEST_MASS) for pair in (cdf[:2], cdf[2:])]
        return Tails(*cdf, *(2.0 * tail_error(law, tail) / tail for tail in small))

    return DominatingPair(tails, slack=5600.0 * UNIT * (law.beta + 2.0), levels=8000)


def lomax_pair(law: LomaxCoordinates, shift: float) -> DominatingPair:
    """One two-sided Lomax coordinate moved by `shift`: the loss exceeds l > 0 between two outputs on both sides of it.

    With d = theta shift the loss is (k+1) log((1 + theta |x|)/(1 + |theta x - d|)), at most (k+1) log(1 + d), and odd
    about shift/2. With g = e^(l/(k+1)) in [1, 1 + d] the two outputs lie at x_1 <= shift <= x_2, where

        1 + theta (shift - x_1) = (2 + d)/(1 + g) = e^-a,    1 + theta (x_2 - shift) = d/(g - 1) = e^-b,

    and 1 + theta x_i is g times as much, so that

        P(L <= l) = (e^(k a) + e^(k b))/2,    Q(L > l) = g^-k (e^(k a) - e^(k b))/2.

    Rounding. With t = d - (g - 1), a = log(1 - t/(2 + d)), b = log(1 - t/d) and b - a = log(1 - 2 t/(d (1 + g))). Where
    t is below d/2 its error is that of a loss within 16 (k + 1) units, and else a relative one of 16; so each of the
    three logarithms, taken from whichever form does not cancel, is right to 48 units of itself.
    """
    k, d = law.k, law.theta * shift
    largest = (k + 1.0) * math.log1p(d) * (1.0 + 8.0 * UNIT)

    def tails(losses: Array) -> Tails:
        size = np.abs(losses)
        ratio = np.minimum(size / (k + 1.0), math.log1p(d))
        above_one = np.minimum(np.expm1(ratio), d)  # g - 1
        t = np.where(size >= largest, 0.0, d - above_one)
        with np.errstate(divide="ignore"):  # at loss 0 the second output is infinite
            a = _log_of_less(t / (2.0 + d), (2.0 + above_one) / (2.0 + d))
            b = _log_of_less(t / d, above_one / d)
            gap = _log_of_less(2.0 * t / (d * (2.0 + above_one)), above_one * (2.0 + d) / (d * (2.0 + above_one)))
        near, far = 0.5 * np.exp(k * a), 0.5 * np.exp(k * b)
        inside = -0.5 * (np.expm1(k * a) + np.expm1(k * b))  # P(L > |l|)
        beyond = -np.exp(-k * ratio) * near * np.expm1(k * gap)  # Q(L > |l|)
        exponents = np.abs(a) + np.abs(np.where(far > 0, b, 0.0)) * far / np.maximum(near, SMALLEST_MASS) + ratio
        vanished = np.minimum(near, beyond) < 1e10 * SMALLEST_MASS
        error = np.where(vanished, 1.0, 64.0 * UNIT * (1.0 + k * exponents))
        # -L under Q has the law of L under P
        above = losses >= 0
        p_sf, q_sf = np.where(above, inside, 1.0 - beyond), np.where(above, beyond, near + far)
        p_cdf, q_cdf = np.where(above, near + far, beyond), np.where(above, 1.0 - beyond, inside)
        return exact_tails(p_cdf, p_sf, q_cdf, q_sf, error)

    return DominatingPair(tails, largest=largest, slack=64.0 * UNIT * (k + 1.0))


def peaked_pair(law: IIDCoordinates, shift: float) -> DominatingPair:
    """One coordinate of log-convex tails moved by `shift`: the loss rises to its peak at x = shift, and falls behind.

    With phi = -log f concave on (0, inf), L(x) = phi(|x|) - phi(|x - shift|) grows from 0 at shift/2 to its largest
    value phi(shift) - phi(0) at the shift, falls to 0 beyond and is odd about shift/2.

    Rounding. A log-density is off by 1e-13 of its size, which is at most 700 where a tail is above 1e-300, and so the
    loss by 2e-10.
    """

    def loss(moved: Array, still: Array) -> Array:
        with np.errstate(invalid="ignore"):
            value = law.logpdf(moved) - law.logpdf(still)
        return np.where(np.isnan(value), 0.0, value)

    slack = 2e-10
    top = float(loss(np.zeros(1), np.array([shift]))[0])

    def rising(away: Array) -> Array:
        before, behind = np.split(away, 2)
        before = np.minimum(before, shift / 2)
        values = loss(np.append(before - shift / 2, behind), np.append(shift / 2 + before, shift + behind))
        return np.append(values[: len(before)], -values[len(before) :])

    def tails(losses: Array) -> Tails:
        size = np.minimum(np.abs(losses), top)
        before, behind = np.split(_invert(rising, np.append(size, -size), shift), 2)
        before = np.minimum(before, shift / 2)
        near, far = law.cdf(before - shift / 2), law.cdf(-behind)
        left, right = law.cdf(-shift / 2 - before), law.cdf(-shift - behind)
        errors = [tail_error(law, tail) for tail in (near, far, left, right)]
        p_error, q_error = errors[0] + errors[1] + 2.0 * UNIT, errors[2] + errors[3] + 2.0 * UNIT * left
        some = np.abs(losses) < top + slack
        inside = np.where(some, np.maximum((0.5 - near) + (0.5 - far), p_error), 0.0)
        beyond = np.where(some, np.maximum(left - right, q_error), 0.0)
        p_error, q_error = (np.where(some, part, 0.0) for part in (p_error, q_error))
        p_error = p_error / np.maximum(np.minimum(inside, near + far), SMALLEST_MASS)
        q_error = q_error / np.maximum(beyond, SMALLEST_MASS)
        # -L under Q has the law of L under P
        above = losses >= 0
        return Tails(
            np.where(above, near + far, beyond),
            np.where(above, inside, 1.0 - beyond),
            np.where(above, 1.0 - beyond, inside),
            np.where(above, beyond, near + far),
            np.where(above, p_error, q_error),
            np.where(above, q_error, p_error),
        )

    return DominatingPair(tails, largest=top + slack, slack=slack, levels=8000)


def _log_of_less(missing: Array, left: Array) -> Array:
    """log(1 - missing), of which left = 1 - missing: from whichever is smaller."""
    return np.asarray(np.where(missing < 0.5, np.log1p(-np.minimum(missing, 0.5)), np.log(left)))


def _invert(increasing: Callable[[Array], Array], targets: Array, scale: float) -> Array:
    """The smallest x >= 0 with increasing(x) >= target, by bisection; a value so large that no mass is beyond it."""
    low, high = np.zeros_like(targets), np.full_like(targets, scale)
    for _ in range(60):
        short = increasing(high) < targets
        if not short.any():
            break
        low, high = np.where(short, high, low), np.where(short, 4.0 * high, high)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        if not ((low < middle) & (middle < high)).any():
            break
        short = increasing(middle) < targets
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high
