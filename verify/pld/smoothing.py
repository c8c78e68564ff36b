"""From the privacy curve of a Gaussian history to one of any noise whose coordinates have a Lipschitz log-density.

Let W = dP/dQ of one coordinate have |log W| <= s. It is then dominated by randomized response RR(s) (Kairouz, Oh and
Viswanath 2015, Theorem 3.4): E_Q(W - g)_+ is at most R(g) = (e^s - g)_+/(1 + e^s) for g >= 1. G(g) is the same for
N(s, 1) against N(0, 1).

One coordinate. D = G - R is convex on [1, e^s] and positive beyond; D(1) = 2 D'(1), as both are 2 and 1 times
1/(1 + e^s) - Phi(-s/2). So D is nonnegative or changes sign once, from - to +. The affinities E_Q sqrt(W) are
1/cosh(s/2) >= e^(-s^2/8), that is, the integral of D(g) g^(-3/2) is nonnegative. Hence so is the integral of D psi
whenever g^(3/2) psi(g) is nondecreasing. As E_Q(W - g)_+ = 1 - g + g E_Q(W - 1/g)_+ for symmetric noise, E_Q f(W) is a
linear term plus the integral of [f''(g) + g^-3 f''(1/g)] E_Q(W - g)_+ over g >= 1, so E_Q f(r W) grows from RR (or any
coordinate it dominates) to N(s, 1) for every r > 0 if w^(3/2) f''(w) is convex in log w.

Histories. Given everything else, the ratio of a Poisson-sampled history is A (1 - q + q r w) in one coordinate of one
release. So, with h = f'' and u = c + w, c >= 0, the coordinates are exchanged one at a time (adaptively: the last
release first, E f(A W) over the exchanged ones being again such a function of A) if

    (1)  2 h(u) + 4 w h'(u) + w^2 h''(u) >= 0   for 0 <= w <= u,   h >= 0,

as with 9/4 in place of 2 it says that w^(3/2) h(c + w) is convex in log w. Powers u^a, a >= 1, satisfy it: moments of
real orders are the Gaussian's at most. So does

    f(u) = (u + u0) log(u/u0) - 2 (u - u0) for u > u0, else 0;   h(u) = (u - u0)_+/u^2:

with x = w/u and y = u0/u the left side is 2 (1 - x)(1 - x - y (1 - 3 x))/u >= 0, and the kink at u0 turns upwards.

Direction "add". With U = 1 - q + q W and g >= 1, E_Q(1 - g U)_+ <= E_Q(U - g)_+: it says
(1 - g (1-q))_+ E_Q(W - g q/(1 - g (1-q)))_+ <= q E_Q(W - (g - 1 + q)/q)_+, and the left factor is the smaller, the
left threshold the larger, their difference having the sign of (1-q)(g - 1)^2. As before, E f is larger in direction
"remove" at every release if u^(3/2) h(u) is nondecreasing: it is, being convex in log u and 0 at 0.

The curve. (u - e^epsilon)_+ <= c f(u) with u0 = e^(epsilon - width) and c = max over t > width of
(e^t - e^width)/((e^t + 1) t - 2 (e^t - 1)), and E f = integral over y > epsilon - width of
(1 - e^(epsilon - width - y)) delta_Gauss(y) dy. So for every width in (0, epsilon]

    delta(epsilon) <= c(width) * that integral:

the Gaussian's curve smoothed over a fraction of a nat, which costs a factor of about 2 in delta.
"""

import math
from dataclasses import dataclass, field
from functools import cache

import numpy as np

from dpaudit.mechanisms.base import Array, Function
from dpaudit.verify.curves import FARTHEST_EPSILON

WIDTHS = np.geomspace(1e-3, 12.0, 28)  # the best width is flat: a step of a third in it costs about 1% of delta
COARSE = 4  # every so many of them are tried before those beside the best
TOGETHER = 64  # epsilons that are looked at at once
NEAR_NODES, FAR_NODES = 60, 140  # nodes within three widths and beyond
COST_ERROR = 1e-6  # relative, of the factor c
REMAINDER = 1e-25  # what may remain of the integral past the last node


def excess(t: Array) -> Array:
    """The function (e^t + 1) t - 2 (e^t - 1) of t > 0, rounded down; below 1/2 its series, cut short."""
    near = np.minimum(t, 0.5)
    series = near**3 / 12 * (1 + near**2 / 40 * (1 + near**2 / 112))
    far = np.maximum(t, 0.5)
    return np.asarray(2 * np.exp(t / 2) * np.where(t < 0.5, series, far * np.cosh(far / 2) - 2 * np.sinh(far / 2)))


@cache
def smoothing_cost(width: float) -> float:
    """Factor c(width) of the smoothed Gaussian curve: least c with (u - e^width)_+ <= c f(u), u0 = 1.

    Args:
        width: > 0.

    >>> round(smoothing_cost(1e-3) * 1e-6, 3)  # 8/9 width^-2 for small widths
    0.889
    """

    def gain(t: Array) -> Array:
        return np.asarray(math.exp(width) * np.expm1(t - width))

    edges = width * np.geomspace(1.0, max(20.0, 30.0 / width), 400)
    best = float((gain(edges) / excess(edges)).max())
    if edges[-1] <= 2.0 + 1.0 / best:
        raise ArithmeticError(f"the scan for width={width:g} ends too early")
    # gain and excess grow, so their ratio is at most gain(right)/excess(left) in a cell
    left, right = edges[:-1], edges[1:]
    while True:
        wide = gain(right) > best * (1.0 + COST_ERROR) * excess(left)
        if not wide.any():
            return best * (1.0 + 1.01 * COST_ERROR)
        parts = np.linspace(left[wide], right[wide], 9)
        best = max(best, float((gain(parts) / excess(parts)).max()))
        left, right = parts[:-1].ravel(), parts[1:].ravel()


@dataclass(frozen=True)
class Smoothed:
    """Smoothed Gaussian curve: a bound on delta of noise with a Lipschitz log-density.

    Args:
        gaussian: Upper bound on the Gaussian history's delta, direction "remove", at epsilon >= 0.
        orders: lam > 0, whole or real.
        alpha: The same history's log-moments there.
    """

    gaussian: Function
    orders: Array
    alpha: Array
    _known: dict[float, float] = field(default_factory=dict, repr=False, compare=False)  # asked for again and again

    def delta(self, epsilon: Array) -> Array:
        """Upper bound on delta at each epsilon > 0; 1 where no width fits, as at 0."""
        asked = [min(float(point), FARTHEST_EPSILON) for point in epsilon]  # delta falls
        fresh = np.array(sorted({point for point in asked if point not in self._known}))
        for block in np.array_split(fresh, math.ceil(len(fresh) / TOGETHER)) if len(fresh) else ():
            self._known.update(zip(block.tolist(), self._at(block).tolist(), strict=True))
        return np.array([self._known[point] for point in asked])

    def _at(self, epsilon: Array) -> Array:
        """The least over the widths that fit, all of which prove a bound: some first, then those beside the best."""
        fitting = np.searchsorted(WIDTHS, epsilon, side="right")
        if not len(self.orders):
            return np.ones(len(epsilon))
        every, places = np.arange(len(epsilon)), np.arange(len(WIDTHS))
        found = np.full((len(every), len(places)), np.inf)
        wanted = (places % COARSE == 0) & (places < fitting[:, None])
        for step in (COARSE // 2, COARSE // 4, 0):
            row, column = np.nonzero(wanted)
            chosen = WIDTHS[column]
            costs = np.array([smoothing_cost(float(width)) for width in chosen])
            found[row, column] = costs * self._integrals(np.nextafter(epsilon[row] - chosen, -np.inf), chosen)
            wanted = np.zeros(found.shape, dtype=bool)
            for beside in (found.argmin(axis=1) + side for side in (-step, step)):
                fits = (beside >= 0) & (beside < fitting)
                wanted[every[fits], beside[fits]] = True
        return np.asarray(np.minimum(1.0, found.min(axis=1) * (1 + 1e-12)))

    def _integrals(self, low: Array, widths: Array) -> Array:
        """Integral of (1 - e^(low - y)) delta(y) over y > low, rounded up.

        The first factor rises and the second falls, so over a cell at most the product of their means counts
        (Chebyshev); delta lies below its chord in e^y, whose mean exceeds that of the ends by Delta/12 of their
        difference at most. Far out y = low + t is rounded by more than t itself; delta falls, and is taken where y is
        rounded down.
        """
        # where the rest of the integral is below REMAINDER
        last = ((self.alpha - np.log(self.orders) - math.log(REMAINDER)) / self.orders).min()
        length = np.maximum(last - low, 6 * widths)
        inner = np.linspace(0.0, 3.0, NEAR_NODES + 1)[None, :] * widths[:, None]
        outer = np.geomspace(3 * widths, length, FAR_NODES + 1, axis=1)[:, 1:]
        offset = np.concatenate([inner, outer], axis=1)
        place = np.nextafter(low[:, None] + offset, -np.inf)
        value = self.gaussian(place.ravel()).reshape(offset.shape)
        gap = np.diff(offset, axis=1)
        # a cell's integral of 1 - e^-t, t from a to b, is (b - a) - e^-a (1 - e^-(b - a))
        weight = np.where(
            offset[:, 1:] < 1e-3,
            np.diff(np.square(np.minimum(offset, 1.0)) / 2, axis=1),
            gap + np.exp(-offset[:, :-1]) * np.expm1(-gap) + 1e-16,
        )
        drop = value[:, :-1] - value[:, 1:]
        mean = 0.5 * (value[:, :-1] + value[:, 1:]) + np.maximum(drop, 0.0) * np.minimum(gap / 12, 0.5)
        return np.asarray((weight * mean).sum(axis=1) * (1 + 1e-10) + self._rest(place[:, -1]))

    def _rest(self, end: Array) -> Array:
        """Integral of delta beyond `end`, by delta(y) <= e^(alpha - lam y)."""
        exponent = self.alpha[None, :] - np.log(self.orders)[None, :] - self.orders[None, :] * end[:, None]
        return np.asarray(np.exp(np.minimum(exponent.min(axis=1), 0.0)))
