"""product: a half-normal radius times a uniform direction, calibrated by the tail bound of `product_tails`."""

import math

import numpy as np

from dpaudit.mechanisms.base import Domain, Mechanism, require_dimension
from dpaudit.mechanisms.product import Product
from dpaudit.mechanisms.published.moments import PublishedValue, validate_release
from dpaudit.mechanisms.published.product_tails import log_delta_times_k

_EPSILON = Domain(0.0, math.inf, (0.01, 20.0), "nats")
_SENSITIVITY = Domain(0.0, math.inf, (0.1, 10.0), "l2 sensitivity")
_TUNING = Domain(1.0, math.inf, (100.0, 3e5), "k", closed_low=True)
_DIMENSION = Domain(2.0, math.inf, (14, 1e10), "coordinates, M > 2")
DELTA_TILDE = 1e-8  # of Theorem 5, called arbitrary there; with it the paper's epsilon of 0.99 on MNIST is reproduced
_LOG_K = 700.0


def radius_factor(dimension: int, k: float) -> float:
    """t with t^2 = 2 k^(4/M) (M/4 + 3/2)^(1 + 4/M) / e^(1 + 2/M), so that sigma_M = Delta t / epsilon (Theorem 8).

    Args:
        dimension: M > 2.
        k: Tuning parameter, at least 1.

    >>> round(radius_factor(1_000_000, 1000.0) / 0.1, 3)  # sigma_M at Delta = 1, epsilon = 0.1
    4288.994
    """
    _DIMENSION.validate("dimension", dimension)
    _TUNING.validate("k", k)
    m = float(dimension)
    log_square = math.log(2) + 4 / m * math.log(k) + (1 + 4 / m) * math.log(m / 4 + 1.5) - 1 - 2 / m
    return math.exp(0.5 * log_square)


def calibrated_sigma(sensitivity: float, *, epsilon: float, dimension: int, k: float) -> float:
    """sigma_M = Delta t / epsilon (product, Theorem 8).

    Corollary 1 (output perturbation): Delta = 2 L / Lambda, for the mean loss plus Lambda/(2n) |w|^2. Corollary 3
    (approximate minima): 2 L / n with epsilon_3 and n gamma / Lambda with epsilon_2. Corollary 5 (DP-SGD, replace-one):
    2 C; its formula is printed with the k^(2/M) and epsilon misplaced and stands correctly in Algorithm 4.

    Args:
        sensitivity: Delta_2 f, > 0.
        epsilon: > 0.
        dimension: M > 2.
        k: Tuning parameter, at least 1.

    Raises:
        TypeError, ValueError: A value outside its domain.
    """
    _EPSILON.validate("epsilon", epsilon)
    _SENSITIVITY.validate("sensitivity", sensitivity)
    return sensitivity / epsilon * radius_factor(dimension, k)


def theorem_8_delta(*, dimension: int, shift: float, k: float) -> float:
    """eq. (12) at q = M/2, with M/2 - 3/2 and M/2 + 3/4 under the roots (product, Theorem 8, eq. (13)).

    Args:
        dimension: M > 2, at least 4 for a finite value.
        shift: lambda = Delta / sigma_M, > 0.
        k: Tuning parameter, at least 1.

    Raises:
        TypeError, ValueError: A value outside its domain.

    >>> sigma = calibrated_sigma(1.0, epsilon=0.1, dimension=1_000_000, k=1000.0)
    >>> f"{theorem_8_delta(dimension=1_000_000, shift=1 / sigma, k=1000.0):.5e}"
    '1.14412e-06'
    """
    _DIMENSION.validate("dimension", dimension)
    _TUNING.validate("k", k)
    if dimension <= 3:
        return math.inf  # M/2 - 3/2 is 0
    return math.exp(log_delta_times_k(dimension, shift, dimension / 2)[0]) / k


def algorithm_1(
    *, dimension: int, sensitivity: float, epsilon: float, delta: float, k: float, factor: float
) -> tuple[float, float]:
    """Increase k by `factor` until eq. (13) is at most delta (product, Algorithm 1).

    Args:
        dimension: M > 3.
        sensitivity: Delta_2 f > 0.
        epsilon: > 0.
        delta: In (0, 1).
        k: Where it starts, at least 1.
        factor: alpha > 1.

    Returns:
        (sigma_M, k).

    Raises:
        TypeError, ValueError: A value outside its domain.
    """
    Domain(1.0, math.inf, (1.1, 10.0), "step").validate("factor", factor)
    Domain(0.0, 1.0, (1e-10, 1e-3), "probability").validate("delta", delta)
    Domain(3.0, math.inf, (14, 1e10), "coordinates").validate("dimension", dimension)
    while True:
        sigma = calibrated_sigma(sensitivity, epsilon=epsilon, dimension=dimension, k=k)
        if theorem_8_delta(dimension=dimension, shift=sensitivity / sigma, k=k) <= delta:
            return sigma, k
        k *= factor


def amplified(epsilon: float, delta: float, sampling_prob: float) -> tuple[float, float]:
    """(log(1 + p (e^epsilon - 1)), p delta) under Poisson sampling (product, Theorem 4).

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
        sampling_prob: p in (0, 1].
    """
    if epsilon > 700:  # e^epsilon would overflow, and 1 - p is nothing beside p e^epsilon
        return epsilon + math.log(sampling_prob), sampling_prob * delta
    return math.log1p(sampling_prob * math.expm1(epsilon)), sampling_prob * delta


def composed(epsilon: float, delta: float, steps: int, delta_tilde: float) -> tuple[float, float]:
    """(epsilon', delta') of T adaptive (epsilon, delta)-private steps (product, Theorem 5, from He et al. 2021).

    epsilon' = T (e^epsilon - 1) epsilon / (e^epsilon + 1) + sqrt(2 log(1/delta~) T epsilon^2);
    delta' = 2 - (1 - e^epsilon d)^c (1 - d)^(T-c) - (1 - d)^T + delta'', d = delta/(1 + e^epsilon),
    c = ceil(epsilon'/epsilon), with delta'' = e^(-(epsilon' + T epsilon)/2) (2 T epsilon / ((1 + e^epsilon)
    (T epsilon - epsilon')))^T ((T epsilon + epsilon')/(T epsilon - epsilon'))^(-(epsilon' + T epsilon)/(2 epsilon)).

    Args:
        epsilon: Of one step, > 0.
        delta: Of one step, in [0, 1].
        steps: T.
        delta_tilde: In (0, 1), free.

    Returns:
        (epsilon', delta'); delta' is infinite where epsilon' >= T epsilon, the formula being undefined there.
    """
    t, ratio = float(steps), math.tanh(epsilon / 2)
    total = t * ratio * epsilon + math.sqrt(2 * math.log(1 / delta_tilde) * t) * epsilon
    if total >= t * epsilon:
        return total, math.inf
    count = math.ceil(total / epsilon)
    share = delta / (1 + math.exp(min(epsilon, _LOG_K)))
    larger = delta / (1 + math.exp(-epsilon))  # e^epsilon share
    with np.errstate(divide="ignore"):
        none = t * float(np.log1p(-share))
        some = count * float(np.log1p(-larger)) + (t - count) * float(np.log1p(-share))
    log_rest = (
        -0.5 * (total + t * epsilon)
        + t * (math.log(2 * t * epsilon / (t * epsilon - total)) - float(np.logaddexp(0.0, epsilon)))
        - (total + t * epsilon) / (2 * epsilon) * math.log((t * epsilon + total) / (t * epsilon - total))
    )
    return total, -math.expm1(some) - math.expm1(none) + math.exp(log_rest)


def theorem_8(
    mechanism: Mechanism, *, sampling_prob: float, steps: int, delta: float, sensitivity: float | None = None,
    delta_tilde: float = DELTA_TILDE,
) -> PublishedValue:  # fmt: skip
    """epsilon at a given sigma_M: Theorem 8, then Theorem 4 if sampled, then Theorem 5 if repeated (Remark 6).

    sigma_M fixes lambda = Delta/sigma_M, eq. (13) gives k delta, hence k (not below 1), and epsilon is
    Delta t(k)/sigma_M.
    With more than one step k is found by bisection of Theorem 5's delta', which falls with k.

    Args:
        mechanism: Product noise, its dimension set, at least 4; clip_norm at most 2.
        sampling_prob: p in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1); 0 gives infinity.
        sensitivity: Delta_2 f; 2 clip where not given (Corollary 5, replace-one).
        delta_tilde: Of Theorem 5.

    Returns:
        The value, with k and the per-step epsilon and delta in its settings; infinite where no k is enough.

    Raises:
        TypeError, ValueError: Another mechanism, no dimension, or a value outside its domain.

    >>> noise = Product(sigma=4288.994, clip=0.5, dimension=1_000_000)
    >>> value = theorem_8(noise, sampling_prob=1.0, steps=1, delta=1.14412e-6)
    >>> round(value.epsilon, 6), round(value.settings["k"], 1)
    (0.1, 1000.0)
    """
    validate_release(sampling_prob, steps, delta)
    if not isinstance(mechanism, Product):
        raise TypeError(f"Expected mechanism={mechanism.name!r} to be 'product'.")
    dimension = require_dimension(mechanism)
    Domain(3.0, math.inf, (14, 1e10), "coordinates").validate("dimension", dimension)
    if mechanism.clip_norm > 2:
        raise ValueError(f"Expected clip_norm={mechanism.clip_norm!r} in [1, 2]: Theorem 8 measures in l2.")
    span = 2 * float(mechanism.clip) if sensitivity is None else sensitivity  # two clipped gradients, opposite
    shift = span / float(mechanism.sigma)
    log_product, error = log_delta_times_k(dimension, shift, dimension / 2)

    half_log_square = 0.5 * ((1 + 4 / dimension) * math.log(dimension / 4 + 1.5) - 1 - 2 / dimension)

    def at(log_k: float) -> tuple[float, float, float, float]:
        """(epsilon, delta) of the release and of one step, at log k."""
        step = shift * math.exp(0.5 * math.log(2) + 2 / dimension * log_k + half_log_square)
        single = math.exp(min(log_product - log_k, 0.0))
        whole = amplified(step, single, sampling_prob)
        if steps > 1:
            whole = composed(whole[0], whole[1], steps, delta_tilde)
        return (*whole, step, single)

    settings: dict[str, float | str] = {"sensitivity": span, "delta_tilde": delta_tilde}
    if delta == 0 or at(_LOG_K)[1] > delta:
        reason = "delta'' of Theorem 5 is undefined or above delta" if delta > 0 else "Theorem 8 gives no delta of 0"
        return PublishedValue(math.inf, {**settings, "reason": reason})
    if at(0.0)[1] <= delta:
        log_k = 0.0
    elif steps == 1:
        log_k = log_product + math.log(sampling_prob) - math.log(delta)
    else:
        low, log_k = 0.0, _LOG_K
        while log_k - low > 1e-12:  # delta' has small jumps, where its ceiling does: keep to the side that meets delta
            middle = 0.5 * (low + log_k)
            low, log_k = (low, middle) if at(middle)[1] <= delta else (middle, log_k)
    epsilon, reached, step, single = at(log_k)
    settings |= {"k": math.exp(log_k), "delta": reached, "step_epsilon": step, "step_delta": single}
    # epsilon of a step goes with k^(2/M), and epsilon' of Theorem 5, below T epsilon, at most 3 T times as fast
    slope = 2 / dimension * step * (1 if steps == 1 else 3 * steps)
    return PublishedValue(epsilon, settings, slope * (error + 2e-12) + 1e-13 * epsilon)


def squared_noise_ratio(dimension: int, *, k: float, delta: float) -> float:
    """f(M) = E|n|^2 / E|n_classic|^2 = t(k)^2 / (2 M log(1.25/delta)), the same for every epsilon (eq. (21)).

    Corollary 9: below 1 from M = 14 on at delta = 1e-5, k = 1e5. Corollary 10: its limit is
    `squared_noise_ratio_limit`.

    Args:
        dimension: M > 2.
        k: Tuning parameter, at least 1.
        delta: In (0, 1).
    """
    return radius_factor(dimension, k) ** 2 / (2 * dimension * math.log(1.25 / delta))


def squared_noise_ratio_limit(delta: float) -> float:
    """1 / (4 e log(1.25/delta)), the limit of f(M) (product, Corollary 10).

    >>> round(1 / squared_noise_ratio_limit(1e-5))  # "approximately 1/127" in Remark 3
    128
    """
    return 1 / (4 * math.e * math.log(1.25 / delta))
