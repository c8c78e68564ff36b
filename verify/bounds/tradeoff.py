"""The largest TPR that a privacy curve allows at each FPR, as the lower envelope of straight lines."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import Array

DeltaUpper = Callable[[Array], Array]
POINTS = 1001  # epsilons at which a curve is evaluated; fewer only make the envelope larger
NEGLIGIBLE = 1e-15  # a delta that no observed rate can show
LARGEST = 64.0  # epsilon beyond which no line is drawn


@dataclass(frozen=True, eq=False)
class Tradeoff:
    """An upper bound g on the TPR of every event, as a function of its FPR: concave, rising, g(u) >= u.

    Curves of the same lines are equal, to the bit.

    Args:
        slopes: Slopes of the lines whose smallest value is g, falling, shape (lines,).
        intercepts: Their values at FPR 0, rising.
        breaks: FPR from which on the next line is the smallest, rising, shape (lines - 1,).
    """

    slopes: Array
    intercepts: Array
    breaks: Array

    @classmethod
    def of(cls, delta_upper: DeltaUpper) -> Self:
        """The envelope of a privacy curve: TPR <= e^epsilon FPR + delta(epsilon) and its mirror image.

        The mirror image is 1 - FPR <= e^epsilon (1 - TPR) + delta(epsilon): the complement of the event, in the other
        direction. Every line is valid for itself, so a finite grid of epsilons makes g larger, never too small.

        Args:
            delta_upper: Array of epsilons >= 0 to an upper bound on delta in both directions.

        Source: Wasserman and Zhou (2010), Theorem 2.4; Dong, Roth and Su (2022), Proposition 6.
        """
        high = 1.0
        while high < LARGEST and float(np.asarray(delta_upper(np.array([high])))[0]) > NEGLIGIBLE:
            high *= 2.0
        epsilons = np.linspace(0.0, high, POINTS)
        return cls.of_points(epsilons, np.asarray(delta_upper(epsilons), np.float64))

    @classmethod
    def of_points(cls, epsilon: ArrayLike, delta: ArrayLike) -> Self:
        """The envelope of some points (epsilon, delta), each a guarantee in both directions.

        Args:
            epsilon: At least 0, finite, shape (points,).
            delta: Upper bounds; above 1 they say as little as 1 does.

        >>> Tradeoff.of_points([np.log(3.0)], [0.0])([0.0, 0.1, 0.25, 0.5, 1.0]).round(3).tolist()
        [0.0, 0.3, 0.75, 0.833, 1.0]
        """
        e, d = np.asarray(epsilon, np.float64), np.minimum(np.asarray(delta, np.float64), 1.0)
        with np.errstate(over="ignore"):  # a line too steep for a float is left out, which makes g larger
            slopes = np.concatenate([np.exp(e), np.exp(-e), [0.0]])
        intercepts = np.concatenate([d, 1.0 - np.exp(-e) * (1.0 - d), [1.0]])
        return cls(*_lower_envelope(slopes, intercepts))

    def __call__(self, fpr: ArrayLike) -> Array:
        """g at each rate in [0, 1], any shape."""
        rates = np.asarray(fpr, np.float64)
        line = np.searchsorted(self.breaks, rates)
        return np.clip(self.slopes[line] * rates + self.intercepts[line], 0.0, 1.0)

    def slope(self, fpr: ArrayLike) -> Array:
        """dg/du at each rate, where g has a kink the one on its left."""
        return self.slopes[np.searchsorted(self.breaks, np.asarray(fpr, np.float64))]

    def inverse(self, tpr: ArrayLike) -> Array:
        """The smallest FPR at which g reaches each rate in [0, 1], any shape; 0 where g is above it from the start.

        >>> Tradeoff.of_points([np.log(3.0)], [0.0]).inverse([0.0, 0.3, 0.75, 1.0]).round(3).tolist()
        [0.0, 0.1, 0.25, 1.0]
        """
        rates = np.asarray(tpr, np.float64)
        levels, slopes, intercepts = self._rising
        if not len(slopes):
            return np.zeros(rates.shape)
        line = np.searchsorted(levels, rates)
        return np.clip((rates - intercepts[line]) / slopes[line], 0.0, 1.0)

    @cached_property
    def _rising(self) -> tuple[Array, Array, Array]:
        """TPR at the breaks between lines that are not flat, and these lines; at most the last one is flat."""
        lines = self.slopes > 0
        return self(self.breaks[: max(0, int(lines.sum()) - 1)]), self.slopes[lines], self.intercepts[lines]

    def __eq__(self, other: object) -> bool:
        return self is other or (isinstance(other, Tradeoff) and self._content == other._content)

    def __hash__(self) -> int:
        return hash(self._content)

    @cached_property
    def _content(self) -> bytes:
        return self.slopes.tobytes() + self.intercepts.tobytes() + self.breaks.tobytes()

    @property
    def area(self) -> float:
        """The integral of g: the largest AUC that the curve allows.

        >>> print(f"{Tradeoff.of_points([0.0], [0.1]).area:.3f}")
        0.595
        """
        points = np.concatenate([[0.0], self.breaks, [1.0]])
        return float(np.trapezoid(self(points), points))


def tradeoff_curve(delta_of_epsilon: DeltaUpper, fpr: ArrayLike) -> Array:
    """The largest TPR that a privacy curve allows at each FPR, as `Tradeoff.of`.

    Args:
        delta_of_epsilon: Array of epsilons >= 0 to an upper bound on delta in both directions.
        fpr: In [0, 1], any shape.

    Returns:
        TPR in [0, 1], the shape of `fpr`.

    Raises:
        ValueError: A rate outside [0, 1].
    """
    rates = np.asarray(fpr, dtype=np.float64)
    if not ((rates >= 0.0) & (rates <= 1.0)).all():
        raise ValueError("Expected every fpr in [0, 1].")
    return Tradeoff.of(delta_of_epsilon)(rates)


def _lower_envelope(slopes: Array, intercepts: Array) -> tuple[Array, Array, Array]:
    """Slopes, intercepts and breaks of the smallest of some lines over [0, 1]; rounding drops a line, adds none."""
    kept: list[tuple[float, float]] = []
    breaks: list[float] = []
    for at in np.lexsort((intercepts, -slopes)):  # steepest first, of parallels the lowest
        slope, intercept = float(slopes[at]), float(intercepts[at])
        while kept:
            last = kept[-1]
            if last[1] >= intercept:  # steeper and not lower at 0: nowhere smaller
                cross = -math.inf
            elif last[0] == slope:
                break
            else:
                cross = (intercept - last[1]) / (last[0] - slope)
            if cross > (breaks[-1] if breaks else 0.0):
                breaks.append(cross)
                kept.append((slope, intercept))
                break
            kept.pop()
            if breaks:
                breaks.pop()
        if not kept:
            kept.append((slope, intercept))
    rising = np.array([cross for cross in breaks if cross < 1.0])
    lines = np.array(kept[: len(rising) + 1])
    return lines[:, 0], lines[:, 1], rising
