"""Laplace noise whose scale, and not its inverse, is Gamma distributed: a scale for every coordinate."""

import math
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import ClassVar

import numpy as np
from scipy.special import gammaln, zeta

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields
from dpaudit.mechanisms.numerics import aligned, magnitude_drop

# With t = log b about its saddle point the integrals below are of exp(-order g) for a convex g, analytic in a strip of
# half-width pi/2: the trapezoidal rule with this step, in widths of the peak, is right to rounding (against mpmath).
_STEP = 0.5
_LARGEST_EXPONENT = 40.0  # exponents beyond this are below rounding
_LARGEST_RATIO = 1e300  # y/order^2 beyond which the tail is 0 anyway
_NEWTON_STEPS = 40

# One integral per number would take microseconds, so for every order a table of Chebyshev polynomials in log s is made.
# The function is analytic for |Im log s| < pi: on cells of half-width 1/2 the coefficients fall by 12 from each degree
# to the next.
_CELLS = np.arange(-36.0, 36.0)  # left ends
_DEGREE = 15
_SMALL_GAP = 0.05  # differences of log s below this go by the derivative
_GENTLE = 1.99  # orders from here on: below the table the rest is its derivative at 0
_NODES, _WEIGHTS = np.polynomial.legendre.leggauss(3)


def _saddle(y: Array, order: float) -> Array:
    """s >= 0 with s + s^2 = y/order^2: the peak of b^order e^(-b - y/b) in log b lies at b = order (1 + s)."""
    c = np.minimum(y / order / order, _LARGEST_RATIO)
    return np.asarray(2.0 * c / (1.0 + np.sqrt(1.0 + 4.0 * c)))


def _peak(s: Array, order: float) -> tuple[Array, Array, Array]:
    """(weights at the nodes, cosh u - 1 there, the integral of e^(-order g(u)) du), a row for every s.

    g(u) = (e^u - 1 - u) + 2 s (cosh u - 1), with u = 0 at the peak. Left of it g >= -1 - u, and g >= u^2/2 right of it.
    """
    step = _STEP / (math.sqrt(order) * np.sqrt(1.0 + 2.0 * s + 4.0 / order)[:, None])
    widest = _STEP / math.sqrt(order + 4.0)
    side = math.sqrt(2 * _LARGEST_EXPONENT / order)
    # the half in place of one keeps the digits of small exponents, whose terms are e^-u times larger
    u = step * np.arange(-math.ceil((side + _LARGEST_EXPONENT / (order - 0.5)) / widest), math.ceil(side / widest) + 1)
    bowl = 2.0 * np.sinh(u / 2.0) ** 2
    square = u * u
    series = 1 + square / 20 * (1 + square / 42 * (1 + square / 72 * (1 + square / 110 * (1 + square / 156))))
    lift = np.where(np.abs(u) < 0.5, bowl + u * square / 6 * series, np.expm1(u) - u)
    weight = np.exp(-order * (lift + 2.0 * s[:, None] * bowl))
    return weight, bowl, step[:, 0] * weight.sum(axis=1)


def _rest_by_quadrature(s: Array, order: float) -> Array:
    """log I(0) - log I(s) for the integral I of `_peak`, nonnegative and nearly all digits right."""
    weight, bowl, total = _peak(np.zeros(1), order)
    result = np.empty(len(s))
    near = s <= 0.5  # one grid fits both: the difference is a sum of terms of one sign
    lost = (weight * np.expm1(-2.0 * order * s[near, None] * bowl)).sum(axis=1)
    result[near] = -np.log1p(lost / weight.sum())
    result[~near] = np.log(total) - np.log(_peak(s[~near], order)[2])
    return result


@lru_cache(maxsize=256)
def _table(order: float) -> tuple[Array, Array]:
    """Coefficients, degree by cell, of the rest over log(1 + 2 s) as a function of log s, and of its derivative."""
    x = np.polynomial.chebyshev.chebpts1(_DEGREE + 1)
    s = np.exp(_CELLS[None, :] + 0.5 * (1.0 + x[:, None]))
    ratio = _rest_by_quadrature(s.ravel(), order).reshape(s.shape) / np.log1p(2.0 * s)
    coefficients = np.asarray(np.linalg.solve(np.polynomial.chebyshev.chebvander(x, _DEGREE), ratio), dtype=np.float64)
    return coefficients, np.asarray(2.0 * np.polynomial.chebyshev.chebder(coefficients))


def _clenshaw(coefficients: Array, t: Array) -> Array:
    """The tabulated function at log s = t, inside the cells."""
    cell = np.clip((t - _CELLS[0]).astype(np.int64), 0, len(_CELLS) - 1)
    doubled = 4.0 * (t - _CELLS[cell]) - 2.0
    last = before = np.zeros(t.shape)
    for row in coefficients[:0:-1]:
        last, before = row[cell] + doubled * last - before, last
    return np.asarray(coefficients[0][cell] + 0.5 * doubled * last - before)


def _rest(s: Array, order: float) -> Array:
    """log I(0) - log I(s), from the table where it reaches."""
    with np.errstate(divide="ignore"):
        t = np.log(s)
    inside = (t >= _CELLS[0]) & (t < _CELLS[-1] + 1.0)
    result = np.zeros(len(s))
    result[inside] = _clenshaw(_table(order)[0], t[inside]) * np.log1p(2.0 * s[inside])
    near, beyond = (s > 0) & (t < _CELLS[0]), t >= _CELLS[-1] + 1.0
    if near.any():
        result[near] = s[near] * (order / (order - 1.0) if order >= _GENTLE else _steep_slope(t[near], order))
    if beyond.any():
        result[beyond] = _rest_by_quadrature(s[beyond], order)
    return result


def _steep_slope(t: Array, order: float) -> Array:
    """The rest over s below the table for an order below _GENTLE, where its slope at 0 is infinite or nearly so.

    With d = order - 1 the exponent is y/d (1 - Gamma(1-d)/Gamma(2+d) y^d + y/(2-2d)), up to terms of order y^2 without
    a pole at d = 1 (DLMF 10.27.4 and 10.25.2), and y = order^2 s; of that order s belongs to the saddle point. The
    last two terms count for nothing from _GENTLE on, where their poles cancel: the rest is order/d s.
    """
    d = max(order - 1.0, 1e-300)
    odd = d * (2.0 * np.euler_gamma + d * d * (2.0 * zeta(3.0) / 3.0 + d * d * 2.0 * zeta(5.0) / 5.0))
    log_ratio = (odd if d < 0.01 else gammaln(1.0 - d) - gammaln(1.0 + d)) - math.log1p(d)
    return np.asarray(-np.expm1(log_ratio + d * (t + 2.0 * math.log(order))) * order**2 / d - order)


def _rest_drop(low: Array, rise: Array, order: float) -> Array:
    """log I(low) - log I(low + rise), with the digits of a small rise."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):  # low may be 0
        t, gap = np.log(low), np.log1p(rise / low)
        close = (gap < _SMALL_GAP) & (t >= _CELLS[0]) & (np.log(low + rise) < _CELLS[-1] + 1.0)
    result = np.empty(len(low))
    result[~close] = _rest(low[~close] + rise[~close], order) - _rest(low[~close], order)
    low, rise, t, gap = low[close], rise[close], t[close], gap[close]
    values, slopes = _table(order)
    turn = 0.5 * gap * (_clenshaw(slopes, t[:, None] + 0.5 * gap[:, None] * (1.0 + _NODES)) @ _WEIGHTS)
    result[close] = _clenshaw(values, t + gap) * np.log1p(2.0 * rise / (1.0 + 2.0 * low)) + turn * np.log1p(2.0 * low)
    return result


def laplace_exponent(y: Array, order: float) -> Array:
    """-log E exp(-y/G) for G ~ Gamma(order), that is -log(2 y^(order/2) K_order(2 sqrt(y)) / Gamma(order)).

    With s from `_saddle`, order (2 s - log(1+s)) is the value at the saddle point, and what is left is an integral over
    log G about it, done by the trapezoidal rule. Relative error below 1e-13 for every y >= 0.

    Args:
        y: At least 0, any shape.
        order: At least 1.

    >>> round(float(laplace_exponent(np.array(1e-20), 3.0)) / 1e-20, 12)  # E 1/G = 1/2
    0.5
    """
    y = np.asarray(y, dtype=np.float64)
    s = _saddle(y.ravel(), order)
    value = order * (2.0 * s - np.log1p(s)) + _rest(s, order)
    return np.asarray(np.where(np.isinf(y), np.inf, value.reshape(y.shape)))


def _units(x: Array, theta: float) -> Array:
    """|x|/theta; infinite where it leaves the range of floats."""
    with np.errstate(over="ignore"):
        return np.asarray(np.abs(x) / theta)


def _logpdf(x: Array, k: float, theta: float) -> Array:
    at_zero = -math.log(2.0) - math.log(theta) - math.log(k - 1.0)
    return np.asarray(at_zero - laplace_exponent(_units(x, theta), k - 1.0))


def _cdf(x: Array, k: float, theta: float) -> Array:
    tail = 0.5 * np.exp(-laplace_exponent(_units(x, theta), k))
    return np.asarray(np.where(np.asarray(x) < 0, tail, 1.0 - tail))


def _ppf(p: Array, k: float, theta: float) -> Array:
    """Newton's method on the concave exponent: from its first step on it approaches the root from the left."""
    centred = np.atleast_1d(np.asarray(p, dtype=np.float64)) - 0.5
    with np.errstate(divide="ignore"):
        goal = -np.log(2.0 * np.minimum(np.atleast_1d(p), 1.0 - np.atleast_1d(p)))
    least = goal * (k - 1.0)  # the exponent is at most y E 1/G
    y = np.where(np.isinf(goal), np.inf, least + np.square(goal) / 4.0)
    todo = np.flatnonzero((goal > 0) & np.isfinite(goal))
    for _ in range(_NEWTON_STEPS):
        if not len(todo):
            break
        at, value = y[todo], laplace_exponent(y[todo], k)
        slope = np.exp(value - laplace_exponent(at, k - 1.0)) / (k - 1.0)
        y[todo] = np.maximum(at + (goal[todo] - value) / slope, least[todo])
        todo = todo[np.abs(y[todo] - at) > 1e-15 * at]
    return np.asarray(np.copysign(theta * y, centred)).reshape(np.shape(p))


@dataclass(frozen=True)
class GammaScaleLaplace:
    """Laplace noise of a random scale per coordinate: b_i ~ Gamma(k, scale theta), then z_i ~ Laplace(b_i).

    The law that plrvo's released language-model code draws, where its paper inverts the Gamma number. The coordinates
    are independent; with y = |x|/theta their density and tail are

        f(x) = E exp(-|x|/b) / (2 b) = y^((k-1)/2) K_(k-1)(2 sqrt(y)) / (theta Gamma(k)),
        P(X > |x|) = E exp(-|x|/b) / 2 = y^(k/2) K_k(2 sqrt(y)) / Gamma(k)

    (Gradshteyn and Ryzhik (2007), 3.471.9). Facts that proofs rest on, for x > 0:

    - log f is convex: f is a mixture of exponentials e^(-x/b), and log E e^(-x/b) is convex (Hoelder).
    - |(log f)'| <= 1/((k-2) theta). The slope is E[1/b] under the law of b given x, of density ~ b^(k-2)
      e^(-b/theta - x/b). The ratio of two such laws, e^(-(x'-x)/b) with x' > x, grows with b, so b grows with x and
      E[1/b] falls from its value at x = 0, where b is Gamma(k-1, theta). For k <= 2 that value is infinite, and so
      the domain of k begins there.
    - 1/f is convex for k >= 4: that is E[1/b^2] <= 2 E[1/b]^2 given x. Let M_p be the integral of
      b^p e^(-b/theta - x/b) and r_p = M_p/M_(p-1), which grows with p (Hoelder). Integration by parts gives
      r_p = theta (p + x/r_(p-1)), so with a = x/r_(k-3) the ratio M_(k-4) M_(k-2)/M_(k-3)^2 = r_(k-2)/r_(k-3) is at
      most (k-2+a)/(k-3+a) <= 2.

    Args:
        k: Shape of the Gamma law of b_i, in (2, inf).
        theta: Scale of the Gamma law of b_i, absolute (not in units of clip), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> law = GammaScaleLaplace(k=3.0, theta=1.0).structure
    >>> round(float(np.exp(law.logpdf(np.array(0.0)))), 12)  # E 1/(2 b) = 1/(2 (k-1) theta)
    0.25
    """

    name: ClassVar[str] = "gamma-scale-laplace"
    summary: ClassVar[str] = "Laplace noise whose scale (not inverted) is Gamma(k, theta), drawn for every coordinate"
    domains: ClassVar[dict[str, Domain]] = {
        "k": Domain(2.0, math.inf, (5.0, 5_000.0), "shape of the Gamma law of the scale"),
        "theta": Domain(0.0, math.inf, (1e-4, 1.0), "scale of the Gamma law of the scale", length_power=1),
    }

    k: float
    theta: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> IIDCoordinates:
        """Independent coordinates, the scale integrated out.

        f is a mixture of exponentials e^-xt, t = 1/b, hence log-convex; 1/f is convex where f f'' <= 2 f'^2. These are
        moments of t under t^-k e^(-1/(theta t) - x t), Bessel functions of y = 2 sqrt(x/theta): the condition reads
        K_(nu-1) K_(nu+1) <= 2 K_nu^2 at nu = k - 2, and holds for nu >= 2, as K_(nu-1) K_(nu+1) < nu/(nu-1) K_nu^2
        (Baricz 2010, "Turan type inequalities for modified Bessel functions").
        """
        k, theta = float(self.k), float(self.theta)
        return IIDCoordinates(
            partial(_logpdf, k=k, theta=theta),
            partial(_cdf, k=k, theta=theta),
            partial(_ppf, k=k, theta=theta),
            lipschitz=1.0 / ((k - 2.0) * theta),
            log_convex=True,
            reciprocal_convex=k >= 4.0,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        Raises:
            ValueError: The dimension is not set.
        """
        shape = (size, require_dimension(self))
        noise = rng.gamma(self.k, self.theta, shape)
        noise *= rng.laplace(0.0, 1.0, shape)
        return noise

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = sum_i [log f(o_i - v_i) - log f(o_i)], Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        output, shift = aligned(output, shift)
        order, theta = float(self.k) - 1.0, float(self.theta)
        drop = magnitude_drop(output, shift)
        at_zero, at_shift = (_saddle(_units(x, theta).ravel(), order) for x in (output, output - shift))
        low = np.minimum(at_zero, at_shift)
        # from s + s^2 = y/order^2, so that the difference of the saddles keeps the digits of the drop
        rise = _units(drop, theta).ravel() / order / order / (1.0 + at_zero + at_shift)
        size = order * (2.0 * rise - np.log1p(rise / (1.0 + low))) + _rest_drop(low, rise, order)
        return np.asarray(np.copysign(size.reshape(drop.shape), drop).sum(axis=-1))
