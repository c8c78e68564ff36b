"""The papers' sum over a majorization vector, x_i = C (sqrt i - sqrt(i-1)), for any number of coordinates."""

import math
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import log_sum_exp
from dpaudit.mechanisms.published.moments import (
    PublishedValue,
    log_binomial_weights,
    minimum_over_orders,
    validate_release,
)

DIRECT_COORDINATES = 4_000  # coordinates always summed one by one
_TERMS = 48  # powers of x kept beyond them
_CHUNK = 2048
_SERIES_REACH = 1e-3
_ROUNDING = 5e-12  # bound on the relative error of a directly evaluated term, tested against 50 digits


@dataclass(frozen=True)
class InverseScale:
    """The law of u = 1/b: Gamma(shape, mean/shape), or the constant `mean` where shape is infinite.

    Args:
        mean: E u, in 1 / (unit of the contributions), > 0.
        shape: k of the Gamma law, in (0, inf].
    """

    mean: float
    shape: float = math.inf

    def log_mgf(self, t: Array) -> Array:
        """log E e^(tu) = -k log(1 - theta t), infinite from theta t = 1 on; t/b for a constant."""
        if math.isinf(self.shape):
            return np.asarray(self.mean * t)
        scaled = self.mean / self.shape * t
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(np.where(scaled < 1, -self.shape * np.log1p(-scaled), np.inf))

    def log_tilted_square(self, t: Array) -> Array:
        """log E[u^2 e^(tu)], the second derivative of the moment generating function."""
        if math.isinf(self.shape):
            return np.asarray(2 * math.log(self.mean) + self.mean * t)
        factor = 1 + 2 / self.shape  # the exponent k + 2 is k times this
        return np.asarray(2 * math.log(self.mean) + math.log1p(1 / self.shape) + factor * self.log_mgf(t))

    def power_ratio(self, order: int) -> float:
        """E u^m / (E u)^m = prod over j < m of (1 + j/k)."""
        return math.prod(1 + j / self.shape for j in range(order))


def majorization_set(clip: float, n: int) -> Array:
    """x_i = C (sqrt i - sqrt(i-1)) for i = 1, ..., n, as C / (sqrt i + sqrt(i-1)) so that nothing cancels.

    Its prefix sums are C sqrt k, those of every sorted vector of l2 norm C are at most that, and its own norm is more
    than C (lap2, Lemma III.6; plrvo, Lemma 4.4).

    Args:
        clip: C > 0.
        n: Coordinates.

    Returns:
        Shape (n,), falling.

    >>> majorization_set(1.0, 4).round(4).tolist()
    [1.0, 0.4142, 0.3178, 0.2679]
    """
    return np.asarray(clip * _share(np.arange(1, n + 1, dtype=np.float64)))


def coordinate_moment_excess(law: InverseScale, eta: Array, x: Array) -> Array:
    """E_u F(x u, eta) - 1, F(s, eta) = [eta e^((eta-1)s) + (eta-1) e^(-eta s)] / (2 eta - 1), without cancellation.

    With a = eta - 1 the power series of F - 1 in s starts at s^2: sum over m >= 2 of
    eta a (a^(m-1) - (-eta)^(m-1)) / (2 eta - 1) s^m / m!. It is used where the exponentials are close to 1.

    Args:
        law: Of u.
        eta: Integers at least 0, shape (m,).
        x: Shifts, at least 0, shape (n,).

    Returns:
        Shape (n, m); inf where the moment generating function does not exist.
    """
    column = np.asarray(x, dtype=np.float64)[:, None]
    row = np.asarray(eta, dtype=np.float64)[None, :]
    with np.errstate(over="ignore", invalid="ignore"):
        up = row * np.expm1(law.log_mgf((row - 1) * column))
        down = (row - 1) * np.expm1(law.log_mgf(-row * column))
        value = (np.where(row > 0, up, 0.0) + down) / (2 * row - 1)
    size = row * law.mean * column * (1 + 6 / law.shape)
    if np.any(size < _SERIES_REACH):
        s = law.mean * column
        series = np.zeros_like(value)
        for m in range(7, 1, -1):  # the first term left out is below 1e-19 of the first
            series += law.power_ratio(m) / math.factorial(m) * (((row - 1) ** (m - 1) - (-row) ** (m - 1)) * s**m)
        value = np.where(size < _SERIES_REACH, row * (row - 1) / (2 * row - 1) * series, value)
    return np.asarray(value)


def log_moment_of_coordinates(law: InverseScale, log_weights: Array, x: Array) -> Array:
    """log sum_eta w_eta E_u F(x u, eta), for every coordinate and order.

    Args:
        law: Of u.
        log_weights: log w_eta, shape (orders, m), rows summing to 1 as exponentials, eta = 0, ..., m-1.
        x: Shifts, shape (n,).

    Returns:
        Shape (n, orders), in [0, inf].
    """
    eta = np.arange(log_weights.shape[1], dtype=np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        total = coordinate_moment_excess(law, eta, x) @ np.exp(log_weights).T
        value = np.log1p(total)
    for index in np.flatnonzero(~np.isfinite(total).all(axis=1)):  # beyond the range of floats: add in logs
        with np.errstate(divide="ignore"):
            up = np.log(eta[1:] / (2 * eta[1:] - 1)) + law.log_mgf((eta[1:] - 1) * x[index])
            down = np.log((eta[1:] - 1) / (2 * eta[1:] - 1)) + law.log_mgf(-eta[1:] * x[index])
        logs = np.concatenate([[0.0], np.logaddexp(up, down)])
        value[index] = logsumexp(_weighted(log_weights, logs), axis=1)
    return np.asarray(value)


def majorization_log_moments(
    law: InverseScale, orders: Array, *, clip: float, dimension: int, sampling_prob: float
) -> tuple[Array, Array]:
    """sum over i of g(x_i), g(x) = log sum_eta w_eta E_u F(x u, eta), at the majorization vector; and its error.

    The first coordinates are summed one by one, at least `DIRECT` of them; the others, i > m, by a bracket:

    1. |F(s, eta) - 1| is at most (1/2) eta (eta-1) |s|^2 e^(eta |s|), and so is the sum of the moduli of the terms of
       its series: |a^(j) - (-eta)^(j)| <= j (2 eta - 1) eta^(j-1) and (j = p-1) (p-1)/p! <= (1/2)/(p-2)!.
    2. So for every complex |x| <= R, |sum_eta w_eta E F - 1| <= E(R) = sum_eta w_eta (1/2) eta (eta-1) R^2
       E[u^2 e^(eta u R)]. R is chosen with E(R) <= 1/2. There g is analytic and |g| <= log 2, and Cauchy's estimate
       bounds what is left of its power series after J terms by log 2 (x/R)^(J+1) / (1 - x/R).
    3. m is chosen so that x_i <= R/2 beyond it. There remains sum over i of x_i^j. With sqrt t = cosh v,
       x(t)/C = sqrt t - sqrt(t-1) = e^-v, and v is concave in t (v' = 1/sinh 2v, v'' = -2 cosh 2v / sinh^3 2v), so
       x^j is convex, and Hermite and Hadamard bracket the sum from a to b between
       int_a^b x^j + (x_a^j + x_b^j)/2 and int_(a-1/2)^(b+1/2) x^j.
    4. dt = sinh 2v dv makes the integral elementary: (1/2)[e^((2-j)v)/(2-j) + e^(-(2+j)v)/(2+j)], and v in place of
       the first term at j = 2.

    The bracket's relative width falls as 1/(32 m^2).

    Args:
        law: Of the inverse scale.
        orders: lam, integers at least 1, shape (k,).
        clip: C > 0.
        dimension: n, number of coordinates.
        sampling_prob: q in (0, 1].

    Returns:
        The sums and bounds on their errors, rounding included, shape (k,) each. Infinite where the moment generating
        function does not exist at x_1.
    """
    log_weights = log_binomial_weights(orders, sampling_prob)
    radius = _radius(law, log_weights)
    start = max(DIRECT_COORDINATES, math.ceil(min((clip / radius.min()) ** 2, dimension)) + 1)
    direct = dimension if start >= dimension else start
    value = np.zeros(len(orders))
    for first in range(1, direct + 1, _CHUNK):
        index = np.arange(first, min(first + _CHUNK, direct + 1), dtype=np.float64)
        value += log_moment_of_coordinates(law, log_weights, clip * _share(index)).sum(axis=0)
    error = np.zeros(len(orders))
    if direct < dimension:
        tail, error = _tail(law, log_weights, radius, clip=clip, first=direct + 1, last=dimension)
        value = value + tail
    finite = np.isfinite(value)
    return value, np.where(finite, error, 0.0) + np.where(finite, value, 0.0) * _ROUNDING


def least_epsilon(
    law: InverseScale, *, clip: float, dimension: int | None, sampling_prob: float, steps: int, delta: float,
    max_order: int,
) -> PublishedValue:  # fmt: skip
    """The least epsilon over orders for steps at the majorization vector, once its inputs are in their domains.

    Args:
        law: Of the inverse scale.
        clip: C > 0.
        dimension: Coordinates of the majorization vector, or None for the univariate theorems, shift C.
        sampling_prob: q in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
        max_order: Last moment tried.

    Raises:
        TypeError, ValueError: A value outside its domain.
    """
    validate_release(sampling_prob, steps, delta)

    def log_moments(orders: Array) -> tuple[Array, Array]:
        value, error = majorization_log_moments(
            law, orders, clip=clip, dimension=dimension or 1, sampling_prob=sampling_prob
        )
        return steps * value, steps * error

    return minimum_over_orders(log_moments, delta=delta, max_order=max_order)


def _weighted(log_weights: Array, logs: Array) -> Array:
    """Their sum, with a weight of 0 cancelling even an infinite term."""
    result = np.full(log_weights.shape, -np.inf)
    np.add(log_weights, logs, out=result, where=log_weights > -np.inf)
    return result


def _share(t: Array) -> Array:
    return np.asarray(1.0 / (np.sqrt(t) + np.sqrt(t - 1.0)))


def _radius(law: InverseScale, log_weights: Array) -> Array:
    """For every order the largest R (to 1%) with E(R) <= 1/2."""
    eta = np.arange(2.0, log_weights.shape[1])
    weights = log_weights[:, 2:] + np.log(0.5 * eta * (eta - 1))
    low = np.full(len(log_weights), -60.0 - math.log(law.mean))
    high = np.full(len(log_weights), 10.0 - math.log(law.mean))
    while (high - low).max() > 0.01:
        middle = 0.5 * (low + high)
        tilt = law.log_tilted_square(eta * np.exp(middle)[:, None])
        bound = log_sum_exp(_weighted(weights, tilt)) + 2 * middle
        inside = bound <= -math.log(2.0)
        low, high = np.where(inside, middle, low), np.where(inside, high, middle)
    return np.asarray(np.exp(low))


def _tail(
    law: InverseScale, log_weights: Array, radius: Array, *, clip: float, first: int, last: int
) -> tuple[Array, Array]:
    """sum of g(x_i) over first <= i <= last, where x_i <= R/2: the series of g times bracketed power sums."""
    coefficients = _log_series(_scaled_series(law, log_weights, radius))
    ratio = clip / radius
    value, error = np.zeros(len(radius)), np.zeros(len(radius))
    for j in range(2, _TERMS + 1):
        lower, upper = _power_sum(j, first, last)
        value += coefficients[j] * ratio**j * (0.5 * (lower + upper))
        error += np.abs(coefficients[j]) * ratio**j * (0.5 * (upper - lower))
    return value, error + 2 * math.log(2.0) * ratio ** (_TERMS + 1) * _power_sum(_TERMS + 1, first, last)[1]


def _scaled_series(law: InverseScale, log_weights: Array, radius: Array) -> list[Array]:
    """a_0, ..., a_J of sum_eta w_eta E F - 1 = sum_m a_m (x/R)^m, one array over the orders each."""
    eta = np.arange(2.0, log_weights.shape[1])
    weights = np.exp(log_weights[:, 2:])
    s = (law.mean * radius)[:, None]
    up, down = (eta - 1) * s, -eta * s
    series = [np.zeros(len(radius)), np.zeros(len(radius))]
    weights *= up * -down / (up - down)
    ups, downs = np.ones_like(up), np.ones_like(down)  # powers as running products: a power apiece costs ten times that
    for m in range(2, _TERMS + 1):
        ups *= up
        downs *= down
        series.append((weights * (ups - downs)).sum(axis=1) * (law.power_ratio(m) / math.factorial(m)))
    return series


def _log_series(series: list[Array]) -> list[Array]:
    """The power series of log(1 + a), from j c_j = j a_j - sum over i < j of i c_i a_(j-i)."""
    result: list[Array] = []
    for j, term in enumerate(series):
        carried = sum((i * result[i] * series[j - i] for i in range(1, j)), np.zeros_like(term))
        result.append(term - carried / max(j, 1))
    return result


def _power_sum(j: int, first: int, last: int) -> tuple[float, float]:
    """Lower and upper bound on the sum of (sqrt i - sqrt(i-1))^j over first <= i <= last."""
    ends = [float(_share(np.array(float(i)))) ** j for i in (first, last)]
    return _power_integral(j, first, last) + 0.5 * sum(ends), _power_integral(j, first - 0.5, last + 0.5)


def _power_integral(j: int, low: float, high: float) -> float:
    start, end = (float(_share(np.array(t))) for t in (low, high))
    head = math.log(start / end) if j == 2 else (end ** (j - 2) - start ** (j - 2)) / (2 - j)
    return 0.5 * (head + (end ** (j + 2) - start ** (j + 2)) / (2 + j))
