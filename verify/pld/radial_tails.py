"""Tails of the privacy loss of noise with a random radius and a uniform direction, between proven bounds.

Q is centred at 0, P at v, |v| = C. Given r_P = R the loss L = log dP/dQ grows with r_Q, and crosses the level l where
r_Q is T(R): g(T) = g(R) - l, with g the log-density of the noise at a distance. As r_Q^2 = R^2 + C^2 + 2 R C W, with W
one coordinate of a uniform direction in n dimensions, L > l is W > (T^2 - R^2 - C^2)/(2 R C), and with a = (n-1)/2

    P(L > l | R) = I_a(z),  z = ((R + C)^2 - T^2)/(4 C R),   P(L <= l | R) = I_a(z),  z = (T^2 - (R - C)^2)/(4 C R),

where I_a is `equal_beta`, 0 for z <= 0 and 1 for z >= 1. The radii are cut into cells [R1, R2]; every cell's share
of the mean over R is bounded from both sides, and cells are halved until the bounds are near enough to each other.
Nothing can be missed: a cell that hides a peak has bounds far apart.

Any radius. g falls, so T grows with R: T and R in their intervals bound z, and with it I_a; the cell's share is that
times the probability of the cell.

Half-normal radius, g(r) = -r^2/(2 sigma^2) - (n-1) log r. With x = R^2/((n-1) sigma^2), y = T^2/((n-1) sigma^2) and
y = x (1 + D): log(1 + D) + x D = k, k = 2 l/(n-1), so |D| falls and y grows with x. In s = log R, with
w = (R D - C^2/R)/(2 C) the coordinate at which the loss crosses the level, and ' for a derivative by s,

    y' = 2 y (1 + x)/(1 + y),   (R D)' = R D (1 - y)/(1 + y),
    w' = (R D (1-y)/(1+y) + C^2/R)/(2 C),
    w'' = (R D ((1-y)^2 - 4 y (1+x)/(1+y))/(1+y)^2 - C^2/R)/(2 C).

So x, y, D, C^2/R lie between their values at the ends of a cell, |R D| too but for its peak at y = 1 (its logarithm has
slope at most |1-y|/(1+y)), and interval arithmetic bounds w, w', w'' and the second derivative of k(s) = p(s) I(s),
with p the density of log R, p'/p = 1 - (R/sigma)^2, and I' = -c (1-w^2)^(a-1) w' for the first tail. On a cell of width
h about its middle m the integral of k lies in h k(m) + (h^3/24) [least k'', largest k''] (Taylor's formula with
Lagrange's remainder, the odd term vanishing), and in h [least p, largest p] [least I, largest I]; the intersection of
the two counts.
"""

import math
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from scipy.special import erf, wrightomega

from dpaudit.mechanisms.base import Array, HalfNormalRadius, Radial
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.equal_beta import equal_beta

Interval = tuple[Array, Array]  # lower and upper ends

TINY = 1e-300  # smallest probability told from nothing
TOLERANCE = 1e-4  # relative width of a tail at which its cells are fine enough for a history
BLOCK = 80  # levels at a time
FINE = 1e-6  # the same where a tail decides
START = 12  # cells of a level before any is halved
ROUNDS = 60  # divisions of a cell
MOST_PIECES = 12  # of a cell at once
STEEPEST = 600.0  # k beyond which a level counts as this one: a tail falls with its level
SMALLEST_RADIUS = 1e-140  # over sigma; its square over n is still a float
# relative error granted to the incomplete beta function of equal parameters; tests compare with ball arithmetic
BETA_ERROR, BETA_ERROR_PER_DIMENSION = 1e-13, 16 * UNIT


@dataclass(frozen=True)
class Brackets:
    """Lower and upper bounds, shape of what is bounded."""

    lower: Array
    upper: Array


@dataclass(frozen=True)
class _Shares(Brackets):
    """Bounds on the shares of cells, and how much of their distance is rounding, which no halving lessens."""

    rounding: Array


class _Cells(Protocol):
    """How one family of radii bounds the share of a cell; nodes are columns (radius first), shape (columns, nodes)."""

    finest: float  # relative width that its bounds can reach
    most: int  # cells of a block of levels, after which the bounds are what they are

    def ends(self, levels: Array) -> tuple[Array, Array, Brackets]:
        """Radii between which the cells lie, and bounds on what lies outside, per level."""
        ...

    def nodes(self, radius: Array, level: Array) -> Array:
        """What is known at single radii."""
        ...

    def shares(self, left: Array, right: Array, level: Array) -> _Shares:
        """Bounds on the shares of cells."""
        ...


def tail_brackets(
    noise: Radial,
    dimension: int,
    length: float,
    levels: Array,
    tolerance: float = TOLERANCE,
    narrow: Array | None = None,
) -> Brackets:
    """Bounds on P(L > l) at positive levels l, and on P(L <= l) at negative ones.

    Args:
        noise: Law of the radius; the density of the noise must fall with it.
        dimension: n, at least 2.
        length: l2 norm C of the shift.
        levels: Not 0, shape (levels,).
        tolerance: Relative width of the bounds that is aimed at.
        narrow: Width at each level that does as well; hardly any if None.
    """
    narrow = np.full(len(levels), TINY) if narrow is None else np.maximum(narrow, TINY)
    if len(levels) > BLOCK:  # so that the cells of a block stay in the cache
        blocks = [slice(start, start + BLOCK) for start in range(0, len(levels), BLOCK)]
        parts = [tail_brackets(noise, dimension, length, levels[b], tolerance, narrow[b]) for b in blocks]
        return Brackets(*(np.concatenate([getattr(part, end) for part in parts]) for end in ("lower", "upper")))
    family: _Cells = (
        _HalfNormalCells(noise.sigma, dimension, length)
        if isinstance(noise, HalfNormalRadius)
        else _AnyRadiusCells(noise, dimension, length)
    )
    tolerance = max(tolerance, family.finest)
    bottom, top, outside = family.ends(levels)
    count = len(levels)
    edges = bottom[:, None] * np.exp(np.log(top / bottom)[:, None] * np.linspace(0.0, 1.0, START + 1))
    index = np.repeat(np.arange(count), START)
    nodes = family.nodes(edges.ravel(), np.repeat(levels, START + 1)).reshape(-1, count, START + 1)
    left, right = (part.reshape(len(nodes), -1) for part in (nodes[:, :, :-1], nodes[:, :, 1:]))
    bounds = family.shares(left, right, levels[index])
    lower, upper, rounding, evaluated = bounds.lower, bounds.upper, bounds.rounding, len(index)
    for _ in range(ROUNDS):
        sums = np.bincount(index, lower, count) + outside.lower, np.bincount(index, upper, count) + outside.upper
        aim = tolerance * sums[1] + narrow
        wide = sums[1] - sums[0] > aim
        gap, cells = np.maximum(upper - lower, 0.0), np.bincount(index, minlength=count)
        able = wide[index] & (right[0] - left[0] > 8 * UNIT * left[0]) & (gap > 2.0 * rounding)
        pieces = np.ones(len(index), dtype=np.int64)
        for _ in range(2):  # the error of a cell cut in k falls by k^4, and there are then more cells to share it
            size = (0.5 * aim / cells)[index]
            wanted = np.ceil((gap / size) ** 0.25)
            pieces = np.where(able & (gap > size), np.clip(np.where(gap > 0.3 * upper, 2, wanted), 2, MOST_PIECES), 1)
            cells = np.bincount(index, pieces, count)
        halved = pieces > 1
        if not halved.any() or evaluated > family.most:
            break
        kept, many = ~halved, pieces[halved].astype(np.int64)
        place = np.arange(many.sum()) - np.repeat(np.cumsum(many) - many, many)
        at, ratio = np.repeat(index[halved], many), np.repeat(right[0, halved] / left[0, halved], many)
        start, share = np.repeat(left[0, halved], many), np.repeat(1.0 / many, many)
        first, last = place == 0, place + 1 == np.repeat(many, many)
        # ends are computed once: the start of a piece is the end of the one before it
        ends = [family.nodes(start[~first] * ratio[~first] ** (place * share)[~first], levels[at[~first]])]
        lefts = np.empty((len(left), len(at)))
        rights = np.empty_like(lefts)
        lefts[:, first], rights[:, last] = left[:, halved], right[:, halved]
        lefts[:, ~first] = rights[:, ~last] = ends[0]
        bounds = family.shares(lefts, rights, levels[at])
        evaluated += len(at)
        left, right = (np.concatenate([old[:, kept], new], axis=1) for old, new in ((left, lefts), (right, rights)))
        lower, upper = np.append(lower[kept], bounds.lower), np.append(upper[kept], bounds.upper)
        rounding = np.append(rounding[kept], bounds.rounding)
        index = np.append(index[kept], at)
    slack = 1e-12  # sums of millions of positive terms, pairwise or not, of 2^-53 each, and of the cells' own
    return Brackets(
        np.maximum((np.bincount(index, lower, count) + outside.lower) * (1 - slack) - TINY, 0.0),
        np.minimum((np.bincount(index, upper, count) + outside.upper) * (1 + slack) + TINY, 1.0),
    )


def _product(a: tuple[Array, Array], b: tuple[Array, Array]) -> tuple[Array, Array]:
    """The interval of products of two intervals; an undefined product (0 times inf) is left out."""
    ends = [p * q for p in a for q in b]
    return np.fmin.reduce(ends), np.fmax.reduce(ends)


def _square(a: tuple[Array, Array]) -> tuple[Array, Array]:
    """The interval of squares."""
    ends = np.square(a[0]), np.square(a[1])
    return np.where((a[0] < 0) & (a[1] > 0), 0.0, np.minimum(*ends)), np.maximum(*ends)


class _HalfNormalCells:
    """Cells of a half-normal radius; nodes are rows R, D, Y = 1 + D, bounds on z, bounds on I_a(z)."""

    finest = 0.0
    most = 4_000_000

    def __init__(self, sigma: float, dimension: int, length: float) -> None:
        self.sigma, self.length, self.dimension, self.order = sigma, length, dimension, dimension - 1
        self.half = 0.5 * (dimension - 1)
        self.beta_error = BETA_ERROR + BETA_ERROR_PER_DIMENSION * dimension
        self.log_density = _log_density_of_direction(dimension)

    def _steepness(self, level: Array) -> Array:
        """k = 2 l/(n-1)."""
        return np.asarray(np.clip(2.0 * level / self.order, -STEEPEST, STEEPEST))

    def ends(self, levels: Array) -> tuple[Array, Array, Brackets]:
        """Below the first radius w < -1, as T <= R e^(k/2): the first tail is one there and the second none."""
        k = self._steepness(levels)
        wanted = 1e-2 * min(self.length, self.sigma) * np.exp(-0.5 * np.maximum(k, 0.0))
        bottom = np.where(k > 0, np.maximum(wanted, SMALLEST_RADIUS * self.sigma), wanted)
        inside = np.where(k > 0, erf(bottom / self.sigma / math.sqrt(2.0)), 0.0)
        # a level beyond the steepest has a smaller tail than that one
        reached = (np.abs(2.0 * levels / self.order) <= STEEPEST) & (bottom == wanted)
        return bottom, np.full(len(k), 39.0 * self.sigma), Brackets(np.where(reached, inside, -1.0), inside)

    def _relative_error(self, k: Array, x: Array) -> Array:
        """Of D and 1 + D: the equation's terms are known to a few units of their size."""
        return np.asarray((np.abs(k) + np.abs(np.log(x)) + 8.0) * 8.0 * UNIT)

    def nodes(self, radius: Array, level: Array) -> Array:
        """What is known at single radii."""
        r, c, k = radius, self.length, self._steepness(level)
        x = np.square(r / self.sigma) / self.order
        big = wrightomega(x + np.log(x) + k) / x
        small = np.clip(np.where(np.abs(k) < 1e-3 * (1.0 + x), k / (1.0 + x), big - 1.0), -0.9, 1.0)
        for _ in range(3):  # Newton's steps on a concave function, from within a factor of its root
            small = small - (np.log1p(small) + x * small - k) / (1.0 / (1.0 + small) + x)
            small = np.clip(small, -0.9, 1.0)
        gentle = np.abs(big - 1.0) < 0.5
        d, y = np.where(gentle, small, big - 1.0), np.where(gentle, 1.0 + small, big)
        error = self._relative_error(k, x)
        other, moved = r * np.sqrt(y), r * np.abs(d) / (1.0 + np.sqrt(y))  # r_Q, |r_Q - R|
        apart = np.abs(r - c)
        plain = (k > 0) | ((r >= c) & gentle)
        short = np.where(plain, c - moved, other - apart)
        unsure = np.where(plain, (c + moved) * error, other * error + 4.0 * UNIT * apart)
        wide = np.where(k > 0, r + c + other, other + apart)
        z, spread = short * wide / (4.0 * c * r), (unsure * wide / (4.0 * c * r)) * 1.01
        spread += np.abs(z) * 16.0 * UNIT
        low, high = z - spread, z + spread
        return np.stack([r, d, y, low, high, *self._beta(low, high)])

    def _beta(self, low: Array, high: Array) -> tuple[Array, Array]:
        """Bounds on I_a between z's that are a few roundings apart.

        For a >= 1 the density 2 c (4 z (1-z))^(a-1) is largest where z is nearest to 1/2, and the interval's width
        times it bounds the change.
        """
        ends = [np.clip(z, 0.0, 1.0) for z in (low, high)]
        values = [equal_beta(self.dimension, ends[0])]
        if self.half < 1.0:
            values.append(equal_beta(self.dimension, ends[1]))
        else:
            nearest = np.clip(0.5, *ends)
            with np.errstate(divide="ignore"):
                density = self.log_density + (self.half - 1.0) * np.log(
                    np.maximum(4.0 * nearest * (1.0 - nearest), TINY)
                )
            values.append(values[0] + 2.1 * np.exp(density) * (ends[1] - ends[0]))
        upper = np.minimum(values[-1] * (1.0 + self.beta_error), 1.0)
        return np.where(low >= 1.0, 1.0, values[0] * (1.0 - self.beta_error)), np.where(high <= 0.0, 0.0, upper)

    def _density(self, radius: Array) -> Array:
        """Density of log R."""
        r = radius / self.sigma
        return np.asarray(math.sqrt(2.0 / math.pi) * r * np.exp(-0.5 * np.square(r)))

    def shares(self, left: Array, right: Array, level: Array) -> _Shares:
        """Bounds on the integral of p I over cells of log R."""
        middle = self.nodes(np.sqrt(left[0]) * np.sqrt(right[0]), level)
        r1, r2, c, s = left[0], right[0], self.length, self.sigma
        sign, k = np.sign(level), self._steepness(level)
        x1, x2 = np.square(r1 / s) / self.order, np.square(r2 / s) / self.order
        y1, y2 = x1 * left[2], x2 * right[2]
        width = np.log1p((r2 - r1) / r1)
        error = np.maximum(self._relative_error(k, x1), self._relative_error(k, x2))
        turn1, turn2 = (1.0 - y1) / (1.0 + y1), (1.0 - y2) / (1.0 + y2)  # falls with y
        peak = (y1 < 1.0) & (y2 > 1.0)
        rd = np.abs(r1 * left[1]), np.abs(r2 * right[1])
        bulge = np.exp(np.where(peak, width * np.maximum(np.abs(turn1), np.abs(turn2)), 0.0))
        rd_low, rd_high = np.minimum(*rd) * (1.0 - error), np.maximum(*rd) * bulge * (1.0 + error)
        signed = np.where(sign > 0, rd_low, -rd_high), np.where(sign > 0, rd_high, -rd_low)
        near, far = c * (c / r2) * (1 - 8 * UNIT), c * (c / r1) * (1 + 8 * UNIT)
        ulps = 4.0 * UNIT + 4.0 * error
        turn = turn2 - ulps, turn1 + ulps
        slope = tuple((part + b) / (2.0 * c) for part, b in zip(_product(signed, turn), (near, far), strict=True))
        # w'': (1-y)^2/(1+y)^2 - 4 y (1+x)/(1+y)^3
        bell1, bell2 = y1 / np.square(1.0 + y1), y2 / np.square(1.0 + y2)
        bell = np.minimum(bell1, bell2), np.where(peak, 0.25, np.maximum(bell1, bell2))
        pace = (1.0 + x1) / (1.0 + y2), (1.0 + x2) / (1.0 + y1)
        turned = _square(turn)
        bend = turned[0] - 4.0 * bell[1] * pace[1] * (1 + ulps), turned[1] - 4.0 * bell[0] * pace[0] * (1 - ulps)
        bent = _product(signed, bend)
        curve = (bent[0] - far) / (2.0 * c), (bent[1] - near) / (2.0 * c)
        # v = w for the first tail, -w for the second: the tail given the radius is I_a((1 - v)/2)
        flip = sign < 0
        v1 = np.where(flip, -slope[1], slope[0]), np.where(flip, -slope[0], slope[1])
        v2 = np.where(flip, -curve[1], curve[0]), np.where(flip, -curve[0], curve[1])
        crossing = (signed[0] - far) / (2.0 * c), (signed[1] - near) / (2.0 * c)
        steady = (slope[0] >= 0) | (slope[1] <= 0)
        # z itself, not through v: near the ends of [-1, 1] the difference is all that counts
        z = (
            np.where(steady, np.minimum(left[3], right[3]), 0.5 - 0.5 * np.where(flip, -crossing[0], crossing[1])),
            np.where(steady, np.maximum(left[4], right[4]), 0.5 - 0.5 * np.where(flip, -crossing[1], crossing[0])),
        )
        tail = np.minimum(left[5], right[5]), np.maximum(left[6], right[6])
        some = ~steady
        if some.any():
            for bound, part, factor in zip(tail, z, (1 - self.beta_error, 1 + self.beta_error), strict=True):
                bound[some] = equal_beta(self.dimension, np.clip(part[some], 0.0, 1.0)) * factor
        density1, density2 = self._density(r1), self._density(r2)
        top = math.sqrt(2.0 / math.pi) * math.exp(-0.5)
        low_p = np.minimum(density1, density2) * (1 - 1e-12)
        high_p = np.where((r1 < s) & (r2 > s), top, np.maximum(density1, density2)) * (1 + 1e-12)
        lower, upper = width * low_p * tail[0], width * high_p * np.minimum(tail[1], 1.0)
        k2 = self._second_derivative(r1, r2, z, v1, v2, tail, (low_p, high_p))
        centre = self._density(middle[0]) * width
        cube = width**3 / 24.0
        fine = centre * middle[5] * (1 - 1e-12) + cube * k2[0], centre * middle[6] * (1 + 1e-12) + cube * k2[1]
        usable = np.isfinite(fine[0]) & np.isfinite(fine[1])
        lower = np.where(usable, np.maximum(lower, fine[0]), lower)
        upper = np.where(usable, np.minimum(upper, fine[1]), upper)
        return _Shares(np.maximum(lower, 0.0), upper, centre * (middle[6] - middle[5]))

    def _second_derivative(
        self, r1: Array, r2: Array, z: Interval, v1: Interval, v2: Interval, tail: Interval, p: Interval
    ) -> Interval:
        """Bounds on (p I)'' over cells; NaN where the crossing passes an end of [-1, 1]."""
        with np.errstate(over="ignore", invalid="ignore"):  # what is not finite is not used
            rate = 1.0 - np.square(r2 / self.sigma), 1.0 - np.square(r1 / self.sigma)  # p'/p
            squared = _square(rate)
            second = squared[0] - 2.0 * np.square(r2 / self.sigma), squared[1] - 2.0 * np.square(r1 / self.sigma)
        constant = (z[0] >= 1.0) | (z[1] <= 0.0)
        inside = (z[0] > 0.0) & (z[1] < 1.0)
        # 1 - v^2 = 4 z (1-z), largest at z = 1/2
        rest = [4.0 * np.where(inside, part, 0.5) * (1.0 - np.where(inside, part, 0.5)) for part in z]
        widest = np.where((z[0] < 0.5) & (z[1] > 0.5), 1.0, np.maximum(*rest))
        with np.errstate(all="ignore"):
            densities = [
                np.exp(self.log_density + (self.half - 1.0) * np.log(np.where(inside, at, 1.0)))
                for at in (widest, np.minimum(*rest))
            ]
            g = np.minimum(*densities) * (1 - 10 * self.beta_error), np.maximum(*densities) * (1 + 10 * self.beta_error)
            minus_g = -g[1], -g[0]
            first = _product(minus_g, v1)
            # I'' = -G (v'' - 2 (a-1) v/(1-v^2) v'^2), v/(1-v^2) growing with v, that is, falling with z
            lean = (1.0 - 2.0 * z[1]) / rest[1], (1.0 - 2.0 * z[0]) / rest[0]
            pull = _product(lean, _square(v1))
            factor = 2.0 * (self.half - 1.0)
            pull = (factor * pull[0], factor * pull[1]) if factor >= 0 else (factor * pull[1], factor * pull[0])
            third = _product(minus_g, (v2[0] - pull[1], v2[1] - pull[0]))
            base = _product(second, tail)
            cross = _product((2.0 * rate[0], 2.0 * rate[1]), first)
            low = np.where(constant, base[0], base[0] + cross[0] + third[0])
            high = np.where(constant, base[1], base[1] + cross[1] + third[1])
            result = _product(p, (low, high))
        usable = inside | constant
        # roundings of sums whose terms are bounded by the interval's own ends
        slack = 1e-9 * (np.abs(result[0]) + np.abs(result[1]))
        return np.where(usable, result[0] - slack, np.nan), np.where(usable, result[1] + slack, np.nan)


def _log_density_of_direction(dimension: int) -> float:
    """log c with c (1 - w^2)^((n-3)/2) the density of one coordinate of a uniform direction."""
    a = 0.5 * (dimension - 1)
    if dimension < 2000:
        return math.lgamma(a + 0.5) - math.lgamma(a) - 0.5 * math.log(math.pi)
    # Gamma(a + 1/2)/Gamma(a) by its asymptotic series: the log-gammas are too large to subtract
    series = 1 - 1 / (8 * a) + 1 / (128 * a**2) + 5 / (1024 * a**3) - 21 / (32768 * a**4)
    return 0.5 * math.log(a / math.pi) + math.log(series)


class _AnyRadiusCells:
    """Cells of any radius whose noise density falls; nodes are rows R, bounds on T, distribution function of R."""

    finest = 2e-3
    most = 150_000

    def __init__(self, noise: Radial, dimension: int, length: float) -> None:
        self.noise, self.dimension, self.length = noise, dimension, length
        self.beta_error = BETA_ERROR + BETA_ERROR_PER_DIMENSION * dimension

    def ends(self, levels: Array) -> tuple[Array, Array, Brackets]:
        """Radii of all but a few units of rounding."""
        radii = self.noise.radius_ppf(np.array([1e-15, 1.0 - 1e-15]))
        bottom, top = (np.full(len(levels), radius) for radius in radii)
        outside = float(self.noise.radius_cdf(radii[:1])[0]) + 1e-14
        return bottom, top, Brackets(np.zeros(len(levels)), np.full(len(levels), outside))

    def _log_density(self, radius: Array) -> Array:
        """g up to a constant."""
        return np.asarray(self.noise.radius_logpdf(radius) - (self.dimension - 1) * np.log(radius))

    def nodes(self, radius: Array, level: Array) -> Array:
        """The distance T at which the loss crosses the level, by bisection inside [|R - C|, R + C]."""
        goal = self._log_density(radius) - level
        ends = np.maximum(np.abs(radius - self.length), 1e-300), radius + self.length
        low, high = np.log(ends[0]), np.log(ends[1])
        inside = (self._log_density(ends[0]) >= goal) & (self._log_density(ends[1]) <= goal)
        beyond = self._log_density(ends[1]) > goal
        for _ in range(34):  # to a relative 1e-9 of the distance
            mean = 0.5 * (low + high)
            above = self._log_density(np.exp(mean)) > goal
            low, high = np.where(above, mean, low), np.where(above, high, mean)
        found = np.exp(low) * (1 - 1e-9), np.exp(high) * (1 + 1e-9)
        t_low = np.where(inside, found[0], np.where(beyond, ends[1], 0.0))
        t_high = np.where(inside, found[1], np.where(beyond, np.inf, ends[0]))
        return np.stack([radius, t_low, t_high, self.noise.radius_cdf(radius)])

    def shares(self, left: Array, right: Array, level: Array) -> _Shares:
        """The probability of each cell times bounds on I_a."""
        r1, r2, c = left[0], right[0], self.length
        t1, t2 = left[1], right[2]
        if_first = np.square(r1 + c) - np.square(t2), np.square(r2 + c) - np.square(t1)
        gap = np.abs(r1 - c), np.abs(r2 - c)
        nearest = np.where((r1 < c) & (r2 > c), 0.0, np.minimum(*gap))
        if_second = np.square(t1) - np.square(np.maximum(*gap)), np.square(t2) - np.square(nearest)
        over = [np.where(level > 0, a, b) for a, b in zip(if_first, if_second, strict=True)]
        low = over[0] / (4.0 * c * np.where(over[0] > 0, r2, r1)) - 1e-9
        high = over[1] / (4.0 * c * np.where(over[1] > 0, r1, r2)) + 1e-9
        tail = [
            equal_beta(self.dimension, np.clip(z, 0.0, 1.0)) * (1 + sign * self.beta_error)
            for sign, z in ((-1, low), (1, high))
        ]
        mass = np.maximum(right[3] - left[3], 0.0)
        rounding = 4.0 * UNIT * right[3]
        lower, upper = np.maximum(mass - rounding, 0.0) * tail[0], (mass + rounding) * np.minimum(tail[1], 1.0)
        return _Shares(lower, upper, np.zeros(len(lower)))
