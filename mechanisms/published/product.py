"""product: a half-normal radius times a uniform direction, calibrated by a tail bound on the radius and an angle."""

import math

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaln, logsumexp, ndtr

from dpaudit.mechanisms.base import Array, Domain, Mechanism, require_dimension
from dpaudit.mechanisms.product import Product
from dpaudit.mechanisms.published.moments import validate_release
from dpaudit.mechanisms.published.values import PublishedValue

_EPSILON = Domain(0.0, math.inf, (0.01, 20.0), "nats")
_TUNING = Domain(1.0, math.inf, (100.0, 3e5), "k", closed_low=True)
_MARGIN = Domain(2.0, math.inf, (14, 1e10), "coordinates, M > 2")
DELTA_TILDE = 1e-8  # of Theorem 5, called arbitrary there; with it the paper's epsilon of 0.99 on MNIST is reproduced
_LOG_K = 700.0


def log_hyp1f1(a: float, b: float, z: float) -> tuple[float, float]:
    """log 1F1(a; b; z) for a, b > 0 and z >= 0 from its series, all of whose terms are positive.

    Summed in logs until the ratio of successive terms, (a+j)/(b+j) z/(j+1), is below 1/2 and the terms are below
    1e-18 of the sum; from there on the ratio is at most max(1, (a+j)/(b+j)) z/(j+1), which falls, so that the rest is
    at most twice the last term. No term cancels, so a = 2.5e9 (M = 1e10) is as good as a = 1.

    Args:
        a: > 0.
        b: > 0.
        z: >= 0.

    Returns:
        The logarithm and a bound on its error.

    >>> value, error = log_hyp1f1(2.0, 2.0, 3.0)  # 1F1(a; a; z) = e^z
    >>> abs(value - 3) <= error < 1e-12
    True
    """
    if z == 0:
        return 0.0, 0.0
    count = 64
    while True:
        j = np.arange(count, dtype=np.float64)
        steps = np.log((a + j) / (b + j)) + np.log(z / (j + 1))
        logs = np.concatenate([[0.0], np.cumsum(steps)])
        total = float(logsumexp(logs))
        if steps[-1] < -math.log(2) and logs[-1] < total - 42:
            # every partial sum of logs is rounded to 2^-53 of the largest, count times
            return total, 2 * math.exp(logs[-1] - total) + count * 2.3e-16 * (1 + float(np.abs(logs).max()))
        count *= 2


def radius_factor(dimension: int, k: float) -> float:
    """t with t^2 = 2 k^(4/M) (M/4 + 3/2)^(1 + 4/M) / e^(1 + 2/M), so that sigma_M = Delta t / epsilon (Theorem 8).

    Args:
        dimension: M > 2.
        k: Tuning parameter, at least 1.

    >>> round(radius_factor(1_000_000, 1000.0) / 0.1, 3)  # sigma_M at Delta = 1, epsilon = 0.1
    4288.994
    """
    _MARGIN.validate("dimension", dimension)
    _TUNING.validate("k", k)
    m = float(dimension)
    log_square = math.log(2) + 4 / m * math.log(k) + (1 + 4 / m) * math.log(m / 4 + 1.5) - 1 - 2 / m
    return math.exp(0.5 * log_square)


def calibrated_sigma(sensitivity: float, *, epsilon: float, dimension: int, k: float) -> float:
    """sigma_M = Delta t / epsilon (product, Theorem 8).

    Corollary 1 (output perturbation): Delta = 2 L / Lambda. Corollary 3 (approximate minima): 2 L / n with epsilon_3
    and n gamma / Lambda with epsilon_2. Corollary 5 (DP-SGD, replace-one): 2 C; its formula is printed with the k^(2/M)
    and epsilon misplaced and stands correctly in Algorithm 4.

    Args:
        sensitivity: Delta_2 f, > 0.
        epsilon: > 0.
        dimension: M > 2.
        k: Tuning parameter, at least 1.

    Raises:
        TypeError, ValueError: A value outside its domain.
    """
    _EPSILON.validate("epsilon", epsilon)
    return sensitivity / epsilon * radius_factor(dimension, k)


def output_perturbation_sensitivity(*, lipschitz: float, regularization: float) -> float:
    """2 L / Lambda, for the mean loss plus Lambda/(2n) |w|^2 (product, Corollary 1 of Section 5.2)."""
    return 2 * lipschitz / regularization


def dp_sgd_sensitivity(clip: float) -> float:
    """2 C: two clipped gradients in opposite directions (product, Corollary 5 of Section 5.4)."""
    return 2 * clip


def _log_delta_times_k(dimension: int, shift: float, q: float) -> tuple[float, float]:
    """log(k delta) of eq. (12) at the moment q, lambda = `shift`, and a bound on its error."""
    half_square = 0.5 * shift * shift
    first, e1 = log_hyp1f1(0.5 * (q + 1), 0.5, half_square)
    second, e2 = log_hyp1f1(0.5 * (q + 2), 1.5, half_square)
    total = np.logaddexp(first, math.log(math.sqrt(2) * shift) + second)
    angle = 0.5 * (math.log(dimension - 1) - math.log(dimension - q - 1.5) - math.log(q + 0.75))
    return float(total) - half_square - 0.5 * math.log(math.pi) + angle, max(e1, e2) + 1e-15 * (1 + abs(float(total)))


def tail_delta(*, dimension: int, shift: float, k: float, q: float) -> float:
    """delta_1 delta_2 at the moment q, before the minimum over q is taken (product, eq. (12)).

    Args:
        dimension: M > 2.
        shift: lambda = Delta / sigma_M, > 0.
        k: Tuning parameter, at least 1.
        q: In (1, M - 3/2).
    """
    return math.exp(_log_delta_times_k(dimension, shift, q)[0]) / k


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
    _MARGIN.validate("dimension", dimension)
    _TUNING.validate("k", k)
    if dimension <= 3:
        return math.inf  # M/2 - 3/2 is 0
    return tail_delta(dimension=dimension, shift=shift, k=k, q=dimension / 2)


def approximate_delta(*, dimension: int, shift: float, k: float, q: float) -> float:
    """2 e^(-lambda^2/2) sqrt(M-1) (1 + lambda^2 (q+1)) / (k sqrt(pi) sqrt((M - q - 3/2)(q + 3/4))) (product, eq. (19)).

    It rests on 1F1(a; c; x) < 1 + 2 x a / c for 0 < x < 1, which is false for large a x: at a = 100, c = 1/2, x = 0.9
    the left side is 8e8 times the right.

    Args:
        dimension: M > 2.
        shift: lambda, in (0, 1/sqrt 2).
        k: Tuning parameter, at least 1.
        q: In (1, M - 3/2).
    """
    scale = 2 * math.exp(-0.5 * shift**2) * math.sqrt(dimension - 1) / (k * math.sqrt(math.pi))
    return scale * (1 + shift**2 * (q + 1)) / math.sqrt((dimension - q - 1.5) * (q + 0.75))


def approximate_best_moment(*, dimension: int, shift: float) -> float:
    """q* = (4M - 2 lambda^2 M - 9) / (4 lambda^2 M + 8 - lambda^2), the minimum of eq. (19) (product, A.6)."""
    square = shift * shift
    return (4 * dimension - 2 * square * dimension - 9) / (4 * square * dimension + 8 - square)


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


def radius_moment(q: float, *, shift: float) -> float:
    """log of the bound on E W^q, W = R + lambda, from extending the integral to 0 (product, Proposition 4, eq. (9)).

    2^(-q/2) e^(-lambda^2/2) Gamma(q+1) [1F1((q+1)/2; 1/2; lambda^2/2) / Gamma((q+2)/2)
    + sqrt 2 lambda 1F1((q+2)/2; 3/2; lambda^2/2) / Gamma((q+1)/2)].

    Args:
        q: > 0.
        shift: lambda > 0.
    """
    square = 0.5 * shift * shift
    first = log_hyp1f1(0.5 * (q + 1), 0.5, square)[0] - gammaln(0.5 * q + 1)
    second = math.log(math.sqrt(2) * shift) + log_hyp1f1(0.5 * q + 1, 1.5, square)[0] - gammaln(0.5 * (q + 1))
    return float(-0.5 * q * math.log(2) - square + gammaln(q + 1) + np.logaddexp(first, second))


def angle_density(u: Array, *, dimension: int) -> Array:
    """2/sqrt(pi) Gamma(M/2)/Gamma((M-1)/2) (u^2 - 1)^(-1/2) u^(1-M) of U = 1/sin theta (product, Proposition 5).

    Args:
        u: > 1, any shape.
        dimension: M > 2.
    """
    u = np.asarray(u, dtype=np.float64)
    scale = gammaln(dimension / 2) - gammaln((dimension - 1) / 2) + math.log(2 / math.sqrt(math.pi))
    return np.asarray(np.exp(scale + (1 - dimension) * np.log(u)) / np.sqrt(u * u - 1))


def angle_moment(q: float, *, dimension: int) -> float:
    """Gamma(M/2)/Gamma((M-1)/2) Gamma((M-q-1)/2)/Gamma((M-q)/2) = E U^q (product, Proposition 6).

    Args:
        q: In (1, M - 1).
        dimension: M > 2.
    """
    m = float(dimension)
    return math.exp(gammaln(m / 2) - gammaln((m - 1) / 2) + gammaln((m - q - 1) / 2) - gammaln((m - q) / 2))


def amplified(epsilon: float, delta: float, sampling_prob: float) -> tuple[float, float]:
    """(log(1 + p (e^epsilon - 1)), p delta) under Poisson sampling (product, Theorem 4).

    Args:
        epsilon: At least 0.
        delta: In [0, 1].
        sampling_prob: p in (0, 1].
    """
    if epsilon > 30:  # e^epsilon may overflow; log(1 - p + p e^epsilon)
        return float(np.logaddexp(math.log(sampling_prob) + epsilon, np.log1p(-min(sampling_prob, 1 - 1e-300)))), (
            sampling_prob * delta
        )
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

    sigma_M fixes lambda = Delta/sigma_M, eq. (13) gives k delta, hence k (not below 1), and epsilon = Delta t(k)/sigma_M.
    With more than one step the k is the smallest whose delta' is at most `delta`, found by inverting Theorem 5, at
    which delta' falls with k.

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
    span = dp_sgd_sensitivity(float(mechanism.clip)) if sensitivity is None else sensitivity
    shift = span / float(mechanism.sigma)
    log_product, error = _log_delta_times_k(dimension, shift, dimension / 2)

    def at(log_k: float) -> tuple[float, float, float, float]:
        """(epsilon, delta) of the release and of one step, at log k."""
        step = shift * math.exp(0.5 * math.log(2) + 2 / dimension * log_k + _half_log_square(dimension))
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
        log_k = float(brentq(lambda value: at(value)[1] - delta, 0.0, _LOG_K, xtol=1e-13))
    epsilon, reached, step, single = at(log_k)
    settings |= {"k": math.exp(log_k), "delta": reached, "step_epsilon": step, "step_delta": single}
    # epsilon depends on k through k^(2/M), and Theorem 5 is at most 2 T epsilon + sqrt(...) times steeper
    slope = 2 / dimension * step * (1 if steps == 1 else steps)
    return PublishedValue(epsilon, settings, slope * (error + 1e-12) + 1e-13 * epsilon)


def _half_log_square(dimension: int) -> float:
    m = float(dimension)
    return 0.5 * ((1 + 4 / m) * math.log(m / 4 + 1.5) - 1 - 2 / m)


def classic_gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float) -> float:
    """Delta sqrt(2 log(1.25/delta)) / epsilon, for epsilon < 1 (Dwork and Roth 2014, Theorem A.1).

    Args:
        sensitivity: Delta > 0.
        epsilon: > 0; the theorem needs epsilon < 1, the paper's comparisons go up to 1.
        delta: In (0, 1).
    """
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def analytic_gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float) -> float:
    """The sigma with Phi(D/2s - e s/D) - e^epsilon Phi(-D/2s - e s/D) = delta (Balle and Wang 2018, Theorem 8).

    Args:
        sensitivity: Delta > 0.
        epsilon: At least 0.
        delta: In (0, 1).

    >>> round(analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5), 4)
    3.7306
    """

    def excess(log_sigma: float) -> float:
        s = math.exp(log_sigma)
        lower = ndtr(-0.5 / s - epsilon * s)
        return float(ndtr(0.5 / s - epsilon * s) - (math.exp(epsilon) * lower if lower > 0 else 0.0)) - delta

    return sensitivity * math.exp(float(brentq(excess, -20.0, 40.0, xtol=1e-14)))


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
