"""The largest sum of h_eta(s_i) over coordinates with sum s_i^p <= C^p: how a shift is best spread.

With t = s^p it is a resource allocation: at most C^p sup_t h/t in any dimension, at most n times the concave envelope
of h at C^p/n in n of them. Between two evaluated shifts a < b, e^h - 1 (any law here, eta >= 2) or h itself
(log-concave laws, eta > 1) is convex in s, so h lies below its chord there, a concave function of s and, for p >= 1,
of t, which lies below its two end tangents: lines in s, whose largest ratio to t is known, and in t, which make a
polygon.

Of heavy tails whose 1/f is not convex only that h grows with s is used: h/t in (a, b] is at most h(b)/a^p.

With p = inf or n = 1 every coordinate can be moved by C, and h_eta grows with the shift (boundary lemma,
`upper.shift_norms`): the sum is at most n h_eta(C).

Why convex: e^h(s) = int f(y)^eta f(y+s)^(1-eta) dy. If 1/f is convex on each side of 0 and has its least value at 0,
f^-(eta-1) is convex for eta >= 2, and a mixture of convex functions of s is convex. If phi = -log f is convex,
f^-(eta-1) = e^((eta-1) phi) is log-convex, and so is the mixture.
"""

import math
from bisect import bisect_left
from collections.abc import Iterable
from functools import lru_cache

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.coordinate_moments import Coordinate, ShiftedCoordinate, small_shift_bound

TOLERANCE = 1e-3  # relative gap between the bound and the best value found, at which the search stops
COARSE = 2e-2  # the same where there are no chords
ROUNDS = 14
GENTLE = 1e-4  # nats of eta times the largest loss, below which the bound for small shifts is off by no more
KEPT = 40  # sets of shifts whose cells are kept for the next orders: more than an order or two asks for
MOST_PIECES = 16  # of an interval of shifts at once
LEAST_CLIP = 2e-12  # quartiles of a power law: a shorter clip counts as this, for rounding hides how small moments are
BLOCK, MOST_HALVINGS = 8, 64  # halvings of the shift at once, and in all


class SpreadMoment:
    """Upper bound on sum_i h_eta(|v_i|) over |v|_p <= clip, order by order; inf where it has none without a dimension.

    Args:
        noise: One coordinate of it.
        clip: Radius C.
        clip_norm: p in [1, inf].
        dimension: n, None for any.
    """

    def __init__(self, noise: Coordinate, clip: float, clip_norm: float, dimension: int | None) -> None:
        self._noise, self._norm, self._dimension = noise, clip_norm, dimension
        self._near = 1.0 + (TOLERANCE if noise.chords else COARSE)
        self._clip = max(clip, LEAST_CLIP * noise.quartile) if noise.convex else clip
        self._at = lru_cache(KEPT)(lambda shifts: ShiftedCoordinate(noise, np.array(shifts)))

    @property
    def alike(self) -> bool:
        """Whether all coordinates are moved by C: evenly spread each is by C n^(-1/p), next to nothing less."""
        dimension = self._dimension
        return math.isinf(self._norm) or (dimension is not None and dimension ** (-1.0 / self._norm) > 1.0 - 1e-6)

    def __call__(self, eta: float) -> float:
        """The bound at one order.

        Args:
            eta: At least 2; above 1 for log-concave noise, and where all coordinates are moved `alike`.
        """
        dimension, alike = self._dimension, self.alike
        if alike and dimension is None:
            return math.inf
        copies = dimension if alike and dimension is not None else 1
        # small shifts: B of `small_shift_bound` rises faster than s^2, and |v|_2 <= |v|_p
        known = math.isfinite(self._noise.fisher) and (alike or self._norm <= 2)
        if known and not self._noise.convex and eta * float(self._noise.phi(np.array([self._clip]))[0]) < GENTLE:
            return copies * small_shift_bound(self._noise, self._clip, eta)
        if alike or known:
            one = float(self._moments([self._clip], eta)[0])
            if alike or math.isinf(one):
                return copies * one
            whole = small_shift_bound(self._noise, self._clip, eta)
            if whole <= one * self._near:
                return whole
        bound, least = math.inf, 0.0
        if dimension is not None and self._noise.chords and (self._norm > 2 or dimension <= 64):
            bound, least = self._n_coordinates(dimension, eta)
        # without a dimension no bound is below C^p h/t of any shift: nothing to gain where that is reached
        if self._norm <= 2 and math.isfinite(self._noise.fisher) and not bound <= least * self._near:
            bound = min(bound, self._any_dimension(eta))
        return bound

    def _moments(self, shifts: Iterable[float], eta: float) -> Array:
        """h_eta at shifts; their cells are kept for other orders."""
        return self._at(tuple(map(float, shifts))).log_moment(eta)

    def _steepest(self, eta: float) -> float:
        """The largest slope of h: (eta - 1) times that of the log-density, inf where it has none.

        h' = (eta-1) E phi'(y+s) under the law ~ f(y)^eta f(y+s)^(1-eta).
        """
        slope = self._noise.law.lipschitz
        return math.inf if slope is None else (eta - 1.0) * slope * (1.0 + 1e-12)

    def _ratio_below(self, shift: float, eta: float) -> float:
        """Upper bound on h/t at all shifts up to one; infinite where there is none yet."""
        with np.errstate(over="ignore"):
            return float(np.float64(small_shift_bound(self._noise, float(shift), eta)) / shift**self._norm)

    def _any_dimension(self, eta: float) -> float:
        """C^p sup over 0 < t <= C^p of h/t, by cutting the intervals on which it may be too large."""
        p, s, h = self._norm, np.empty(0), np.empty(0)
        while len(s) < MOST_HALVINGS:
            # the bound near zero exceeds h by a factor of at least 1 + O(eta s): go down by factors of 2
            block = self._clip * 0.5 ** np.arange(len(s), len(s) + BLOCK)
            s, h = np.append(s, block), np.append(h, self._moments(block, eta))
            best = float((h / s**p).max())
            if math.isinf(best):
                return math.inf
            # these bounds fall with the shift: the first one that is hardly more than the best value
            first = bisect_left(block, True, key=lambda shift: self._ratio_below(shift, eta) <= best * self._near)
            near_zero = self._ratio_below(block[min(first, BLOCK - 1)], eta)
            if first < BLOCK:
                kept = len(s) - BLOCK + first + 1
                s, h = s[:kept], h[:kept]
                break
        s, h = s[::-1], h[::-1]
        for _ in range(ROUNDS):
            ratio, ends = _largest_ratios(self._noise, s, h, p, self._steepest(eta)), h / s**p
            top = max(near_zero, best, float(ratio.max(initial=0.0)))
            most = max(near_zero, best) * self._near
            bad = np.flatnonzero(ratio > most)
            if not len(bad):
                break
            # a chord's error falls with the square of its length, that of a step with its length
            known = np.maximum(ends[bad], ends[bad + 1])
            wanted = (ratio[bad] - known) / np.maximum(most - known, TOLERANCE * known)
            wanted = np.ceil(np.sqrt(wanted) if self._noise.chords else wanted)
            # 4 or 16, so that a round's shifts are often met again at the next order, where their cells are kept
            pieces = np.where(wanted > math.sqrt(MOST_PIECES), MOST_PIECES, math.isqrt(MOST_PIECES))
            shares = [np.arange(1, count) / count for count in pieces]
            place = np.repeat(bad, pieces - 1)
            middle = s[place] * (s[place + 1] / s[place]) ** np.concatenate(shares)
            added = self._moments(middle, eta)
            best = max(best, float((added / middle**p).max()))
            s, h = np.insert(s, place + 1, middle), np.insert(h, place + 1, added)
        return float(self._clip**p * top)

    def _n_coordinates(self, n: int, eta: float) -> tuple[float, float]:
        """n times the concave envelope of h at C^p/n: the hull of the vertices, and (0, h) of the smallest shift.

        Returns:
            The bound, and the largest C^p h/t of the shifts looked at.
        """
        p, middle = self._norm, n ** (-1.0 / self._norm)
        # intervals are narrow where the hull is read, wide far from there; shifts in units of C, as C^p may overflow
        low = middle * np.append(np.geomspace(0.01, 0.5, 8, endpoint=False), np.geomspace(0.5, 1.0, 14))
        spread = -math.log(middle)
        high = middle * np.exp(spread * np.linspace(0.0, 1.0, 2 + math.ceil(spread / 0.1)))[1:] if n > 1 else []
        s = np.append(low, high)
        h = self._moments(self._clip * s, eta)
        if not np.isfinite(h).all():
            return math.inf, 0.0
        t, height = _vertices(self._noise, s, h, p, self._clip * self._steepest(eta))
        x = np.concatenate([[0.0], s**p, t])
        y = np.concatenate([[h[0]], h, height])
        # in one coordinate x ends at 1, up to rounding
        bound = n * concave_majorant_at(x, y, min(1.0 / n, float(x.max()))) * (1 + 1e-12)
        with np.errstate(divide="ignore", over="ignore", invalid="ignore"):
            return bound, float(np.nanmax(h / s**p))


def _end_slopes(noise: Coordinate, s: Array, h: Array, steepest: float) -> tuple[Array, Array]:
    """Slopes by s, at both ends of every interval, of lines above h, whose slope is at most `steepest`.

    They touch the chord drawn in e^h - 1, or in h where that is convex too.
    """
    width, change = s[1:] - s[:-1], h[1:] - h[:-1]
    if noise.convex:
        return change / width, change / width
    rise = np.expm1(np.minimum(change, 600.0)) / width  # of e^h, over its value at the first end
    return np.minimum(rise, steepest), -np.expm1(-change) / width


def _largest_ratios(noise: Coordinate, s: Array, h: Array, p: float, steepest: float) -> Array:
    """Upper bounds on h/s^p, one per interval of shifts: of one end tangent up to where they meet, then of the other.

    A line over s^p has its largest value at an end, or where its derivative is 0. Without chords h is at most its value
    at the second end.
    """
    a, b, ha, hb = s[:-1], s[1:], h[:-1], h[1:]
    if not noise.chords:
        return np.asarray(hb / a**p * (1.0 + 1e-9))
    slope_a, slope_b = _end_slopes(noise, s, h, steepest)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        meet = (hb - ha + slope_a * a - slope_b * b) / (slope_a - slope_b)
        meet = np.clip(np.where(np.isfinite(meet), meet, b), a, b)
        ratios = []
        for place, height, slope, low, high in ((a, ha, slope_a, a, meet), (b, hb, slope_b, meet, b)):
            flat = p * (place - height / slope) / (p - 1.0) if p > 1 else high
            for at in (low, high, np.clip(np.where(np.isfinite(flat), flat, low), low, high)):
                ratios.append((height + slope * (at - place)) / at**p)
    return np.asarray(np.max(ratios, axis=0) * (1.0 + 1e-9))


def _vertices(noise: Coordinate, s: Array, h: Array, p: float, steepest: float) -> tuple[Array, Array]:
    """Vertices (t, height) above h: where the chords' end tangents meet, one per interval of shifts."""
    a, b, ha, hb = s[:-1], s[1:], h[:-1], h[1:]
    slope_a, slope_b = _end_slopes(noise, s, h, steepest)
    ta, tb = a**p, b**p
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        # dt = p s^(p-1) ds, which may be too small for a float: the tangent is then vertical
        slope_a, slope_b = slope_a / (p * a ** (p - 1)), slope_b / (p * b ** (p - 1))
        gap = slope_a - slope_b
        t = np.where(gap > 1e-12 * slope_a, (hb - ha + slope_a * ta - slope_b * tb) / gap, ta)
        t = np.clip(np.where(np.isfinite(slope_a), t, ta), ta, tb)
        # any point between is right as long as its height is that of the lower tangent's partner: take the higher one
        on_a = np.where(t > ta, ha + slope_a * (t - ta), ha)
        on_b = np.where(np.isfinite(slope_b), hb - slope_b * (tb - t), hb)
        height = np.maximum(on_a, on_b)
    return t, height


def concave_majorant_at(x: Array, y: Array, at: float) -> float:
    """The least concave majorant of points, at one place."""
    order = np.argsort(x, kind="stable")
    x, y = x[order], y[order]
    left, right = x <= at, x >= at
    xl, yl, xr, yr = x[left], y[left], x[right], y[right]
    # the best chord over a point: from some point on its left to one on its right
    width = xr[None, :] - xl[:, None]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = (yl[:, None] * (xr[None, :] - at) + yr[None, :] * (at - xl[:, None])) / width
    value = np.where(width > 0, value, np.maximum(yl[:, None], yr[None, :]))
    return float(value.max())
