"""Cells for noise with a random radius and a uniform direction: level sets of the privacy loss, by quadrature.

Q is centred at 0, P at v, |v| = length. Given r_P = R, the other radius is r_Q^2 = R^2 + length^2 + 2 R length W with W
one coordinate of a uniform direction, and the loss L = log dP/dQ increases in W. So P(L > l) is the mean over R of a
Beta tail. Reflection at v/2 turns P into Q and L into -L, hence Q(L >= l) = P(L <= -l): the same integral.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc

from dpaudit.mechanisms.base import Radial
from dpaudit.verify.loss.cells import TINY, Cells

Array = NDArray[np.float64]

LEVELS = 300
SCAN = 200  # radii of the scan that finds where an integrand lives
ZOOM, RESOLVED = 48, 12  # radii of a closer scan, made where the first one sees the integrand in few places
ZOOMS = 8  # each narrows the range by at least 3: the last one resolves 1e-6 of the first scan's spacing
PANELS, NODES = 8, 16
KINKED = 2  # times as many panels in few dimensions, where the angle's law has kinks at its ends
PEAKED = 64  # dimensions up to which the refined scan and the narrower panels are worth their time
# Rounding of radii, thresholds and the incomplete beta function, relative; tests compare with mpmath.
ROUNDING = 1e-9
FAR = 1e-15  # probability of a radius beyond the scan
SLOW = 4.0  # times the change from the coarse rule: about kinks the rules converge slowly, and not steadily
NOTHING = 1e-18  # share of an integrand's largest value that counts as nothing in the scan; part of the error


@dataclass(frozen=True)
class LossTails:
    """P(L > l) and Q(L >= l) = P(L <= -l) at levels l > 0, with absolute errors."""

    levels: Array
    first: Array
    first_error: Array
    second: Array
    second_error: Array


@dataclass(frozen=True)
class _Geometry:
    noise: Radial
    dimension: int
    length: float

    def loss(self, radius: Array, w: Array) -> Array:
        """log dP/dQ where r_P = radius and the direction's coordinate along v is w."""
        other = np.square(radius) + self.length**2 + 2.0 * radius * self.length * w
        ratio = (self.length**2 + 2.0 * radius * self.length * w) / np.square(radius)
        other = np.sqrt(np.maximum(other, 1e-300))
        gap = self.noise.radius_logpdf(radius) - self.noise.radius_logpdf(other)
        return np.asarray(gap + 0.5 * (self.dimension - 1) * np.log1p(np.maximum(ratio, -1.0 + 1e-16)))

    def threshold(self, radius: Array, level: Array) -> Array:
        """The w in [-1, 1] at which the loss crosses the level, or the end at which it stays short of it."""
        radius, level = (part.ravel() for part in np.broadcast_arrays(radius, level))
        ends = np.full(len(radius), -1.0), np.ones(len(radius))
        w = np.where(self.loss(radius, ends[1]) <= level, 1.0, -1.0)
        active = np.flatnonzero((self.loss(radius, ends[0]) < level) & (w < 0))
        low, high = ends[0][active], ends[1][active]
        r, target = radius[active], level[active]
        before = np.full(len(active), -min(1.0, 4.0 / math.sqrt(self.dimension)))
        now = np.zeros(len(active))
        value_before = self.loss(r, before) - target
        for _ in range(60):  # secant steps inside a shrinking bracket; bisection where they leave it
            value = self.loss(r, now) - target
            high, low = np.where(value > 0, now, high), np.where(value > 0, low, now)
            with np.errstate(divide="ignore", invalid="ignore"):
                step = now - value * (now - before) / (value - value_before)
            following = np.where((step > low) & (step < high), step, 0.5 * (low + high))
            before, value_before, now = now, value, following
            if not len(now) or float(np.max(np.abs(now - before))) < 1e-15:
                break
        w[active] = now
        return w

    def beta_tail(self, w: Array) -> Array:
        """P(W > w) for one coordinate W of a uniform direction, accurate when small."""
        half = 0.5 * (self.dimension - 1)
        return np.asarray(betainc(half, half, 0.5 * (1.0 - w)))


def loss_tails(noise: Radial, dimension: int, length: float, levels: Array, tail: float) -> LossTails:
    """Both tails of the privacy loss at positive levels.

    Args:
        noise: Law of the radius; the density of the noise must fall with it.
        dimension: At least 2.
        length: l2 norm of the shift.
        levels: Positive, shape (levels,).
        tail: Probability of a radius too small to be scanned.
    """
    geometry = _Geometry(noise, dimension, length)
    ends = np.log(noise.radius_ppf(np.array([tail, 1.0 - FAR])))
    scan = np.linspace(ends[0], ends[1], SCAN)
    missing = float(noise.radius_cdf(np.exp(ends[:1]))[0])
    results = []
    for sign, points in ((1.0, scan), (-1.0, _with_peak(geometry, scan))):
        given = _given_radius(geometry, points[None, :], sign * levels[:, None], sign)
        results.append(_integrate(geometry, points, given, sign * levels, sign, missing))
    (first, first_error), (second, second_error) = results
    return LossTails(levels, first, first_error, second, second_error)


def _with_peak(geometry: _Geometry, scan: Array) -> Array:
    """The scan, refined towards R = length where the dimension is small.

    L <= -l needs the output near 0, so |R - length| of the order of length e^-l: for few coordinates that narrow peak
    carries the tail, for many the direction never points there.
    """
    if geometry.dimension > PEAKED:
        return scan
    offsets = np.geomspace(1e-13, 1.0, SCAN // 2)
    peak = math.log(geometry.length) + np.concatenate([-offsets, [0.0], offsets])
    return np.unique(np.concatenate([scan, peak[(peak > scan[0]) & (peak < scan[-1])]]))


def join_tails(one: LossTails, other: LossTails) -> LossTails:
    """The tails at the levels of both, each level once."""
    levels, index = np.unique(np.concatenate([one.levels, other.levels]), return_index=True)
    columns = (
        (one.first, other.first),
        (one.first_error, other.first_error),
        (one.second, other.second),
        (one.second_error, other.second_error),
    )
    return LossTails(levels, *(np.concatenate(pair)[index] for pair in columns))


def _given_radius(geometry: _Geometry, log_radius: Array, level: Array, sign: float) -> Array:
    """P(L > level | R) for sign +1, P(L <= level | R) for sign -1; shape of the broadcast arguments."""
    radius, level = np.broadcast_arrays(np.exp(log_radius), level)
    return geometry.beta_tail(sign * geometry.threshold(radius, level)).reshape(radius.shape)


@dataclass(frozen=True)
class _Support:
    """Where the integrand of each level lives: from start to end in log R.

    Args:
        start, end: What lies beyond counts as nothing, or as one below start where the conditional tail is one.
        base: P(R < e^start) where the conditional tail is one there, else 0.
        outside: Bound on what lies beyond.
    """

    start: Array
    end: Array
    base: Array
    outside: Array


def _ends(given: Array, top: Array) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """First and last column worth integrating, and whether the conditional tail starts at one."""
    count = given.shape[1]
    whole = given >= 1.0
    alive = given > NOTHING * top[:, None]
    left = np.where(whole[:, 0], np.argmin(whole, axis=1), np.argmax(alive, axis=1)) - 1
    right = np.minimum(count - np.argmax(alive[:, ::-1], axis=1), count - 1)
    return np.maximum(left, 0), right, whole[:, 0]


def _support(geometry: _Geometry, scan: Array, given: Array, levels: Array, sign: float, missing: float) -> _Support:
    """The support from a scan, and from closer scans where it is narrow."""
    top = given.max(axis=1)
    left, right, whole = _ends(given, top)
    start, end, span = scan[left], scan[right], right - left
    outside = np.where(right == len(scan) - 1, 2.0 * FAR, 0.0)
    outside += np.where((left == 0) & ~whole & (given[:, 0] > NOTHING * top), missing, 0.0)
    for _ in range(ZOOMS):
        narrow = np.flatnonzero(span < RESOLVED)
        if not len(narrow):
            break
        places = start[narrow, None] + (end - start)[narrow, None] * np.linspace(0.0, 1.0, ZOOM)
        closer = _given_radius(geometry, places, levels[narrow, None], sign)
        top[narrow] = np.maximum(top[narrow], closer.max(axis=1))
        left, right, _ = _ends(closer, top[narrow])
        rows = np.arange(len(narrow))
        start[narrow], end[narrow], span[narrow] = places[rows, left], places[rows, right], right - left
    base = np.where(whole, geometry.noise.radius_cdf(np.exp(start)), 0.0)
    return _Support(start, end, base, outside + (1 + ZOOMS) * NOTHING * top)


def _integrate(
    geometry: _Geometry, scan: Array, given: Array, levels: Array, sign: float, missing: float
) -> tuple[Array, Array]:
    """Mean over R of the conditional tail, and its error: panels are halved, the coarse rule's error is charged."""
    support = _support(geometry, scan, given, levels, sign, missing)
    start, width = support.start[:, None], (support.end - support.start)[:, None]
    x, w = np.polynomial.legendre.leggauss(NODES)
    values = []
    finest = PANELS * (KINKED if geometry.dimension <= PEAKED else 1)
    for panels in (finest // 2, finest):
        offsets = ((np.arange(panels)[:, None] + 0.5 * (x + 1.0)) / panels).ravel()
        s = start + width * offsets
        density = np.exp(geometry.noise.radius_logpdf(np.exp(s)) + s)
        inner = _given_radius(geometry, s, levels[:, None], sign)
        values.append(support.base + width[:, 0] * ((density * inner) @ np.tile(0.5 * w / panels, panels)))
    error = SLOW * np.abs(values[1] - values[0]) + (ROUNDING + 2.0 * NOTHING) * values[1] + support.outside + TINY
    return values[1], error


def radial_cells(tails: LossTails) -> Cells:
    """Cells between consecutive levels of the loss, centres (Q, P): negative ones, the middle one, positive ones."""
    first, second = (
        (np.maximum(value - error, 0.0), value + error)
        for value, error in ((tails.first, tails.first_error), (tails.second, tails.second_error))
    )
    up = _differences(*first)  # P of the positive cells = Q of the negative ones
    down = _differences(*second)
    # within a cell the ratio of the masses lies between its levels' exponentials
    bottom = np.exp(-tails.levels)
    down = down[0], np.minimum(down[1], up[1] * bottom) + TINY
    middle = max(0.0, 1.0 - first[1][0] - second[1][0]), 1.0 - first[0][0] - second[0][0]
    under_p = [np.concatenate([d[::-1], [m], u]) for d, m, u in zip(down, middle, up, strict=True)]
    return Cells(*(np.stack([side[::-1], side]) for side in under_p))


def _differences(low: Array, high: Array) -> tuple[Array, Array]:
    """Bounds on the masses between consecutive levels, given bounds on the tails; the last cell is the tail."""
    below = np.maximum(low - np.append(high[1:], 0.0), 0.0)
    return below, high - np.append(low[1:], 0.0)


def log_second_upper(tails: LossTails) -> Array:
    """Upper bounds on log Q(L > l), far beyond the range of floating point.

    dQ = e^-L dP, so Q(L > l_j) is at most the sum over i >= j of e^-l_i P(l_i < L <= l_(i+1)).
    """
    high, low = tails.first + tails.first_error, np.maximum(tails.first - tails.first_error, 0.0)
    log_mass = np.log(high - np.append(low[1:], 0.0) + TINY) - tails.levels
    summed = np.logaddexp.accumulate(log_mass[::-1])[::-1] + 1e-12
    return np.asarray(np.minimum(summed, np.log(tails.second + tails.second_error + TINY)))


def level_ladder(noise: Radial, dimension: int, length: float, tail: float) -> Array:
    """Levels of the loss from far below its ordinary size up to where P(L > l) is about `tail`, geometric."""
    geometry = _Geometry(noise, dimension, length)
    radii = noise.radius_ppf(np.array([0.5, tail]))
    small = abs(float(geometry.loss(radii[:1], np.array([1.0 / math.sqrt(dimension)]))[0]))
    large = abs(float(geometry.loss(radii[1:], np.zeros(1))[0]))
    return np.geomspace(1e-3 * small, max(2.0 * large, 10.0 * small), LEVELS)
