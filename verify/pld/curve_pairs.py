"""The dominating pair behind a bound on delta(epsilon), whoever proved it: so bounds of different theorems compose.

Let D bound delta(epsilon) of neighbouring outputs in both orders. With a = e^epsilon, the hockey-stick divergence of
one order is convex in a, at most D for a >= 1 and at most 1 - a + a D(-epsilon) for a < 1 (the other order's). So it is
at most the largest convex function H below these values at the points e^(k h), k whole, which falls from H(0) = 1 and
is the profile of a pair (Zhu, Dong and Wang 2022, Lemma 8); pairs compose (their Theorem 10). H is piecewise linear:
with slopes s_k before and s_k+1 behind a point, the pair has P-mass e^(k h) (s_k+1 - s_k) at the loss k h. Between
neighbouring points k < m of H,

    e^(k h) slope = (H_m - H_k) / (e^((m-k) h) - 1),    e^(m h) slope = (H_m - H_k) / (1 - e^(-(m-k) h)),

and behind the last point lies an infinite loss, of mass H there. H is its own mirror image, so at -k h lies e^(-k h)
times the mass at k h.
"""

import math
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.fourier import UNIT, Lattice

ROUNDING = 16.0 * UNIT  # of a few operations on the two slopes at a point
LARGEST_LOSS = 700.0  # e to it is a float


def curve_lattice(delta: Callable[[Array], Array], step: float, places: NDArray[np.int64]) -> tuple[Lattice, float]:
    """P-masses of the pair's loss on multiples of a step, rounded up, and that of an infinite loss.

    Args:
        delta: Bound on delta(epsilon) in both orders, for epsilon >= 0 (1-d array).
        step: h.
        places: Multiples k of h at which the bound is asked: 0 = k_0 < k_1 < ...

    >>> curve, mass = curve_lattice(lambda e: np.maximum(1 - np.exp(e - 1), 0.0) / 2, 0.5, np.arange(4))
    >>> curve.first, np.round(curve.masses, 3).tolist(), mass
    (-3, [0.0, 0.184, 0.0, 0.316, 0.0, 0.5, 0.0], 0.0)
    """
    points = np.asarray(places * step, dtype=np.float64)
    values = np.minimum.accumulate(np.minimum(delta(points), 1.0))
    knots = _hull(values, points)
    losses, heights = points[knots], values[knots]
    gaps, falls = np.diff(losses), -np.diff(heights)
    with np.errstate(over="ignore"):
        before, behind = falls / -np.expm1(-gaps), falls / np.expm1(gaps)
    first = _middle(float(losses[0]), float(heights[0]))
    steep = np.concatenate([[first], before])
    flat = np.append(behind, 0.0)
    masses = np.maximum(steep - flat, 0.0) + ROUNDING * (steep + flat)
    last = int(places[knots[-1]])
    grid = np.zeros(2 * last + 1)
    grid[last + places[knots]] = masses
    grid[last - places[knots]] = masses * np.exp(-losses) * (1.0 + ROUNDING * (1.0 + losses))
    if knots[0] == 0:  # both slopes, each with the mirror image of the other
        grid[last] = max(1.0 - heights[0] - 2.0 * float(flat[0]), 0.0) + ROUNDING * (1.0 + float(flat[0]))
    return Lattice(grid, -last), float(heights[-1])


def _middle(loss: float, height: float) -> float:
    """Minus e^loss times the slope from a point's mirror image to the point."""
    if loss == 0:
        return 0.0
    # (H(-l) - H(l)) / (e^l - e^-l) e^l, with H(-l) = 1 - e^-l + e^-l H(l)
    fall = -math.expm1(-loss) * (1.0 - height)
    return fall / -math.expm1(-2.0 * loss)


def _hull(values: Array, losses: Array) -> NDArray[np.int64]:
    """Points of the largest convex function of e^loss below the values and their mirror images, from 0 on."""
    found: list[int] = []
    for index in range(len(values)):
        while len(found) > 1 and not _below(values, losses, found[-2], found[-1], index):
            found.pop()
        found.append(index)
    while len(found) > 1:  # the middle: from a point's mirror image to the point, or through 0
        here, there = found[0], found[1]
        gap = float(losses[there] - losses[here])
        behind = float(values[here] - values[there]) / math.expm1(min(gap, LARGEST_LOSS))
        if here == 0:
            kept = 2.0 * behind <= 1.0 - float(values[0])
        else:
            kept = behind <= _middle(float(losses[here]), float(values[here]))
        if kept:
            break
        found.pop(0)
    return np.array(found)


def _below(values: Array, losses: Array, left: int, middle: int, right: int) -> bool:
    """Whether the middle one of three points lies below the chord of the others, in e^loss."""
    whole = math.exp(float(losses[left] - losses[right]))
    part = math.exp(float(losses[middle] - losses[right]))
    chord = float(values[left]) * (1.0 - part) + float(values[right]) * (part - whole)
    return float(values[middle]) * (1.0 - whole) < chord
