"""The largest sum of h_eta(s_i) over coordinates with sum s_i^p <= C^p: how a shift is best spread.

With t = s^p it is a resource allocation: at most C^p sup_t h/t in any dimension, at most n times the concave envelope
of h at C^p/n in n of them. Both read off the vertices of a polygon that lies above h(t): between two evaluated shifts
a < b, e^h - 1 (for any law here, eta >= 2) or h itself (log-concave laws) is convex in s, so h lies below its chord, a
concave function of t for p >= 1, which lies below its two end tangents.

Why convex: e^h(s) = int f(y)^eta f(y+s)^(1-eta) dy. If 1/f is convex on each side of 0 and has its least value at 0,
f^-(eta-1) is convex for eta >= 2, and a mixture of convex functions of s is convex. If phi = -log f is convex,
f^-(eta-1) = e^((eta-1) phi) is log-convex, and so is the mixture.
"""

import math

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.upper.numerics.coordinate import Coordinate, log_moment, small_shift_bound

TOLERANCE = 1e-3  # relative gap between the bound and the best value found, at which the search stops
ROUNDS = 14


def spread_moment(one: Coordinate, clip: float, clip_norm: float, dimension: int | None, eta: float) -> float:
    """Upper bound on sum_i h_eta(|v_i|) over |v|_p <= clip; inf where it has none without a dimension.

    Args:
        one: The coordinate.
        clip: Radius C.
        clip_norm: p in [1, inf].
        dimension: n, None for any.
        eta: Order, at least 2.
    """
    if math.isinf(clip_norm):
        if dimension is None:
            return math.inf
        return dimension * float(log_moment(one, np.array([clip]), eta)[0])
    bounds = [math.inf]
    if clip_norm <= 2 and math.isfinite(one.fisher):
        bounds.append(_any_dimension(one, clip, clip_norm, eta))
    if dimension is not None and (clip_norm > 2 or dimension <= 64):
        bounds.append(_n_coordinates(one, clip, clip_norm, dimension, eta))
    return min(bounds)


def _vertices(one: Coordinate, s: Array, h: Array, p: float) -> tuple[Array, Array]:
    """(t, height) where the end tangents of the chords over consecutive shifts meet, one per interval.

    The chord is drawn in e^h - 1, or in h where that is convex too; it is linear in s, hence concave in t.
    """
    a, b, ha, hb = s[:-1], s[1:], h[:-1], h[1:]
    if one.convex:
        slope_a = slope_b = (hb - ha) / (b - a)
    else:
        rise = np.expm1(np.minimum(hb - ha, 600.0)) / (b - a)  # slope of e^h, over e^(h_a)
        slope_a, slope_b = rise, rise * np.exp(ha - hb)
    # dt = p s^(p-1) ds
    slope_a, slope_b = slope_a / (p * a ** (p - 1)), slope_b / (p * b ** (p - 1))
    ta, tb = a**p, b**p
    gap = slope_a - slope_b
    with np.errstate(divide="ignore", invalid="ignore"):
        t = np.where(gap > 1e-12 * slope_a, (hb - ha + slope_a * ta - slope_b * tb) / gap, ta)
    t = np.clip(t, ta, tb)
    # any point between is right as long as its height is that of the lower tangent's partner: take the higher one
    height = np.maximum(ha + slope_a * (t - ta), hb - slope_b * (tb - t))
    return t, height


def _any_dimension(one: Coordinate, clip: float, p: float, eta: float) -> float:
    """C^p sup over 0 < t <= C^p of h/t, by bisecting the intervals whose vertex is too high."""
    shifts = [clip]
    moments = [float(log_moment(one, np.array([clip]), eta)[0])]
    best = moments[0] / clip**p
    for _ in range(60):
        near_zero = small_shift_bound(one, shifts[-1], eta) / shifts[-1] ** p
        if near_zero <= best * (1 + TOLERANCE):
            break
        # the bound near zero exceeds h by a factor of at least 1 + O(eta s): go down by factors of 2
        shifts.append(shifts[-1] / 2)
        moments.append(float(log_moment(one, np.array([shifts[-1]]), eta)[0]))
        best = max(best, moments[-1] / shifts[-1] ** p)
    s, h = np.array(shifts[::-1]), np.array(moments[::-1])
    top = max(near_zero, best)
    for _ in range(ROUNDS):
        t, height = _vertices(one, s, h, p)
        ratio = height / t
        top = max(near_zero, best, float(ratio.max(initial=0.0)))
        bad = np.flatnonzero(ratio > max(near_zero, best) * (1 + TOLERANCE))
        if not len(bad):
            break
        middle = np.sqrt(s[bad] * s[bad + 1])
        added = log_moment(one, middle, eta)
        best = max(best, float((added / middle**p).max()))
        s, h = np.insert(s, bad + 1, middle), np.insert(h, bad + 1, added)
    return float(clip**p * top)


def _n_coordinates(one: Coordinate, clip: float, p: float, n: int, eta: float) -> float:
    """n times the concave envelope of h at C^p/n: the upper hull of the vertices, and (0, h) of the smallest shift."""
    middle = clip * n ** (-1.0 / p)
    # intervals are narrow where the hull is read, wide far below
    low = np.geomspace(middle / 100, middle, 60)
    high = np.geomspace(middle, clip, 2 + math.ceil(math.log(clip / middle) / 0.04))[1:] if n > 1 else np.empty(0)
    s = np.concatenate([low, high])
    h = log_moment(one, s, eta)
    t, height = _vertices(one, s, h, p)
    x = np.concatenate([[0.0], s**p, t]) / clip**p
    y = np.concatenate([[h[0]], h, height])
    # in one coordinate x ends at 1, up to rounding
    return n * _hull_at(x, y, min(1.0 / n, float(x.max()))) * (1 + 1e-12)


def _hull_at(x: Array, y: Array, at: float) -> float:
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
