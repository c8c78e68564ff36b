"""The tail bound behind product's Theorem 8: moments of the radius W and of U = 1/sin(angle), to any dimension."""

import math

import numpy as np
from scipy.special import gammaln, logsumexp


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
        enough = np.flatnonzero((steps < -math.log(2)) & (logs[1:] < total - 42))
        if len(enough):
            used = logs[: enough[0] + 2]
            # every partial sum of logs is rounded to 2^-53 of the largest, len(used) times
            rounding = len(used) * 2.3e-16 * (1 + float(np.abs(used).max()))
            return float(logsumexp(used)), 2 * math.exp(used[-1] - total) + rounding
        count *= 2


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


def angle_moment(q: float, *, dimension: int) -> float:
    """Gamma(M/2)/Gamma((M-1)/2) Gamma((M-q-1)/2)/Gamma((M-q)/2) = E U^q (product, Proposition 6).

    Args:
        q: In (1, M - 1).
        dimension: M > 2.
    """
    m = float(dimension)
    return math.exp(gammaln(m / 2) - gammaln((m - 1) / 2) + gammaln((m - q - 1) / 2) - gammaln((m - q) / 2))


def log_delta_times_k(dimension: int, shift: float, q: float) -> tuple[float, float]:
    """log(k delta_1 delta_2) of eq. (12) at the moment q, and a bound on its error.

    Args:
        dimension: M > 2.
        shift: lambda = Delta / sigma_M, > 0.
        q: In (1, M - 3/2).
    """
    half_square = 0.5 * shift * shift
    first, e1 = log_hyp1f1(0.5 * (q + 1), 0.5, half_square)
    second, e2 = log_hyp1f1(0.5 * (q + 2), 1.5, half_square)
    total = np.logaddexp(first, math.log(math.sqrt(2) * shift) + second)
    angle = 0.5 * (math.log(dimension - 1) - math.log(dimension - q - 1.5) - math.log(q + 0.75))
    return float(total) - half_square - 0.5 * math.log(math.pi) + angle, max(e1, e2) + 1e-15 * (1 + abs(float(total)))
