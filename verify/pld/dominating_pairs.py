"""Dominating pairs (P, Q) through the exact tails of their privacy loss L = log dP/dQ."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array, IIDCoordinates

NDTR_ERROR = 1e-14  # relative error of ndtr and of its argument's rounding, with room: it is a few units of 1e-16
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
        slack: Absolute error of the losses at which the tails are taken.
        levels: Most losses at which the tails are worth evaluating.
        heavy: Rare losses are so large that no one grid fits them and the ordinary ones.
    """

    tails: Callable[[Array], Tails]
    largest: float = math.inf
    lost: float = 0.0
    slack: float = 1e-13
    levels: int = 1 << 20
    heavy: bool = False


def exact_tails(p_cdf: Array, p_sf: Array, q_cdf: Array, q_sf: Array, error: float) -> Tails:
    """Both tails of a privacy loss, of one relative error everywhere."""
    everywhere = np.full(len(p_cdf), error)
    return Tails(p_cdf, p_sf, q_cdf, q_sf, everywhere, everywhere)


def gaussian_pair(mu: float) -> DominatingPair:
    """N(mu, 1) against N(0, 1): L is N(mu^2/2, mu^2) under P and N(-mu^2/2, mu^2) under Q."""

    def tails(losses: Array) -> Tails:
        p, q = losses / mu - mu / 2, losses / mu + mu / 2
        return exact_tails(ndtr(p), ndtr(-p), ndtr(q), ndtr(-q), NDTR_ERROR)

    return DominatingPair(tails)


def laplace_pair(shift: float) -> DominatingPair:
    """Lap(1) moved by `shift` against Lap(1): L = clip(2 x - shift, -shift, shift), with atoms at both ends."""

    def tails(losses: Array) -> Tails:
        below, above = losses < -shift, losses >= shift
        inside = np.clip(losses, -shift, shift)
        p_cdf = np.where(above, 1.0, np.where(below, 0.0, 0.5 * np.exp((inside - shift) / 2)))
        q_sf = np.where(below, 1.0, np.where(above, 0.0, 0.5 * np.exp(-(inside + shift) / 2)))
        return exact_tails(p_cdf, 1.0 - p_cdf, 1.0 - q_sf, q_sf, NDTR_ERROR)

    return DominatingPair(tails, largest=shift)


def logconcave_pair(law: IIDCoordinates, shift: float) -> DominatingPair:
    """One coordinate of a log-concave law moved by `shift`: the loss is nondecreasing in the output.

    L(x) = log f(x - shift) - log f(x) is odd about x = shift/2, so only nonnegative losses are inverted.
    """

    def loss(x: Array) -> Array:
        return law.logpdf(x - shift) - law.logpdf(x)

    def tails(losses: Array) -> Tails:
        distance = _invert(lambda away: loss(shift / 2 + away), np.abs(losses), shift)
        x = shift / 2 + np.where(losses >= 0, distance, -distance)
        return exact_tails(law.cdf(x - shift), law.cdf(shift - x), law.cdf(x), law.cdf(-x), 1e-13)

    return DominatingPair(tails, slack=2e-12, levels=8000)


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
        short = increasing(middle) < targets
        low, high = np.where(short, middle, low), np.where(short, high, middle)
    return high
