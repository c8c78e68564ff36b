"""The Gaussian noise that the papers compare with."""

import math

from scipy.optimize import brentq

from dpaudit.mechanisms.numerics import gaussian_delta


def classic_gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float) -> float:
    """Classic sigma = Delta sqrt(2 log(1.25/delta)) / epsilon, for epsilon < 1 (Dwork and Roth 2014, Theorem A.1).

    Args:
        sensitivity: Delta > 0.
        epsilon: > 0; the theorem needs epsilon < 1, the paper's comparisons go up to 1.
        delta: In (0, 1).
    """
    return sensitivity * math.sqrt(2 * math.log(1.25 / delta)) / epsilon


def analytic_gaussian_sigma(sensitivity: float, *, epsilon: float, delta: float) -> float:
    """Least sigma with `gaussian_delta`(Delta/sigma, epsilon) <= delta (Balle and Wang 2018, Theorem 8).

    Args:
        sensitivity: Delta > 0.
        epsilon: At least 0.
        delta: In (0, 1).

    >>> round(analytic_gaussian_sigma(1.0, epsilon=1.0, delta=1e-5), 4)
    3.7306
    """

    def excess(log_sigma: float) -> float:
        return gaussian_delta(math.exp(-log_sigma), epsilon) - delta

    return sensitivity * math.exp(float(brentq(excess, -20.0, 40.0, xtol=1e-14)))
