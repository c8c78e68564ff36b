"""The value of a published accountant, and log-moments as the papers write them, converted to (epsilon, delta)."""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np
from scipy.special import gammaln, logsumexp, xlogy

from dpaudit.mechanisms.base import Array, Domain

_RELEASE = {
    "sampling_prob": Domain(0.0, 1.0, (1e-3, 1.0), "probability", closed_high=True),
    "steps": Domain(1, math.inf, (1, 20_000), "releases", closed_low=True, integer=True),
    "delta": Domain(0.0, 1.0, (1e-10, 1e-3), "probability", closed_low=True),
}
_ORDER = Domain(1, math.inf, (1, 1000), "order of the moment", closed_low=True, integer=True)

# (orders) -> (log-moments over all steps, bounds on their errors)
LogMoments = Callable[[Array], tuple[Array, Array]]
MAX_ORDER = 1000


@dataclass(frozen=True)
class PublishedValue:
    """The epsilon a paper's own formula gives, right or wrong.

    Args:
        epsilon: The formula's value, in [0, inf]; infinite where the formula gives no finite one.
        settings: Everything that went into it beyond the mechanism: the order at which a minimum was taken, the
            paper's free parameters, meshes, and the reason if the formula is undefined there.
        error: Bound on the distance between `epsilon` and the exact value of the formula (rounding, grouped
            coordinates, sampling), in [0, inf]. It says nothing about the formula being right.
    """

    epsilon: float
    settings: Mapping[str, float | str] = field(default_factory=dict)
    error: float = 0.0


def validate_release(sampling_prob: float, steps: int, delta: float) -> None:
    """Refuse a sampling probability, number of steps or delta outside its domain.

    Raises:
        TypeError: One is no number.
        ValueError: One is outside its domain.
    """
    for (name, domain), value in zip(_RELEASE.items(), (sampling_prob, steps, delta), strict=True):
        domain.validate(name, value)


def log_binomial_weights(orders: Array, sampling_prob: float) -> Array:
    """log w_eta = log binom(lam+1, eta) + (lam+1-eta) log(1-q) + eta log q for eta = 0, ..., max(lam)+1.

    Args:
        orders: lam, integers at least 1, shape (m,).
        sampling_prob: q in (0, 1].

    Returns:
        Shape (m, max(lam)+2); -inf where eta > lam+1.

    >>> log_binomial_weights(np.array([1.0]), 0.5).round(6).tolist()
    [[-1.386294, -0.693147, -1.386294]]
    """
    sampling_prob = float(sampling_prob)
    total = np.asarray(orders, dtype=np.float64)[:, None] + 1.0
    eta = np.arange(total.max() + 1.0)[None, :]
    left = np.maximum(total - eta, 0.0)
    logs = gammaln(total + 1) - gammaln(eta + 1) - gammaln(left + 1) + xlogy(left, 1 - sampling_prob)
    return np.asarray(np.where(eta <= total, logs + eta * math.log(sampling_prob), -np.inf))


def gaussian_log_moments(orders: Array, *, noise_multiplier: float, sampling_prob: float) -> Array:
    """Log-moments of one sampled Gaussian step, log sum_eta w_eta exp((eta^2 - eta)/(2 sigma^2)) (plrvo, eq. (8)).

    lap2 prints the same sum with binom(lam, eta) in its eq. (II.10), which leaves out part of every term; the sum here
    is plrvo's (Mironov et al. (2019), Section 3.3).

    Args:
        orders: lam, integers at least 1, shape (m,).
        noise_multiplier: sigma, > 0.
        sampling_prob: q in (0, 1].

    Returns:
        Shape (m,).
    """
    logs = log_binomial_weights(orders, sampling_prob)
    eta = np.arange(logs.shape[1], dtype=np.float64)
    return np.asarray(logsumexp(logs + eta * (eta - 1) / (2 * noise_multiplier**2), axis=1))


def epsilon_at_orders(alpha: Array, orders: Array, delta: float) -> Array:
    """Epsilon alpha/lam + log(lam/(lam+1)) - (log delta + log(lam+1))/lam at every order (plrvo, eq. (9)).

    Balle et al. (2020), Theorem 21, in the papers' notation: lam is the Renyi order minus one.

    Args:
        alpha: Log-moments over all steps, shape (m,).
        orders: lam >= 1, shape (m,).
        delta: In [0, 1); 0 gives infinity.
    """
    log_delta = math.log(delta) if delta > 0 else -math.inf
    return np.asarray(alpha / orders + np.log(orders / (orders + 1)) - (log_delta + np.log(orders + 1)) / orders)


def delta_from_moments(alpha: Array, orders: Array, epsilon: Array) -> Array:
    """Delta, min over lam of exp(alpha(lam) - lam epsilon), at most 1 (lap2, eq. (II.9); plrvo, eq. (7)).

    Args:
        alpha: Log-moments over all steps, shape (m,).
        orders: lam, shape (m,).
        epsilon: Shape (n,), at least 0.

    Returns:
        Shape (n,).
    """
    exponent = np.asarray(alpha)[:, None] - np.asarray(orders)[:, None] * np.asarray(epsilon)[None, :]
    return np.asarray(np.exp(np.minimum(exponent.min(axis=0), 0.0)))


def minimum_over_orders(log_moments: LogMoments, *, delta: float, max_order: int) -> PublishedValue:
    """Least epsilon by plrvo's eq. (9) over lam = 1, ..., max_order, of every integer order that can matter.

    alpha is convex in lam (it is a sum of log E r^(lam+1)), so beyond m it lies above the line through its last two
    values, alpha(m) + (lam - m) s. Put into eq. (9) that is s + [B - log(lam+1)]/lam + log(lam/(lam+1)) with
    B = alpha(m) - m s - log delta, whose derivative is (log(lam+1) - B)/lam^2: it is least at lam + 1 = e^B, or at m if
    that is earlier. Once the least is above the best value found, no later order can win, and the scan stops.

    Args:
        log_moments: Orders -> (log-moments over all steps, bounds on their errors).
        delta: In [0, 1).
        max_order: Last lam tried, at least 1.

    Returns:
        The minimum, not below 0, with "order" and "max_order" in its settings.

    Raises:
        ValueError: max_order is below 1.
    """
    _ORDER.validate("max_order", max_order)
    best, winner, slack = math.inf, 1, 0.0
    first, width = 1, 32
    while delta > 0 and first <= max_order:
        orders = np.arange(first, min(first + width, max_order + 1), dtype=np.float64)
        alpha, error = log_moments(orders)
        values = epsilon_at_orders(alpha, orders, delta)
        index = int(np.argmin(values))
        if values[index] < best:
            best, winner, slack = float(values[index]), int(orders[index]), float(error[index] / orders[index])
        if not math.isfinite(alpha[-1]) or (len(orders) > 1 and _least_beyond(alpha, orders, delta) >= best):
            break
        first, width = first + width, 2 * width
    settings = {"order": float(winner), "max_order": float(max_order)}
    return PublishedValue(max(best, 0.0), settings, slack if math.isfinite(best) else 0.0)


def _least_beyond(alpha: Array, orders: Array, delta: float) -> float:
    """What eq. (9) is at least from the last order on, by convexity of alpha."""
    last, slope = float(orders[-1]), float(alpha[-1] - alpha[-2])
    base = float(alpha[-1]) - last * slope - math.log(delta)
    turn = max(last, math.exp(min(base, 700.0)) - 1)
    bound = slope + (base - math.log(turn + 1)) / turn + math.log(turn / (turn + 1))
    return bound - 1e-9 * (1 + abs(float(alpha[-1])))  # beyond the rounding of the two log-moments
