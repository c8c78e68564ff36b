"""The Gaussian noise that the papers compare with."""

import math

from scipy.optimize import brentq
from scipy.special import ndtr


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
