"""Formulas that product prints on its way to Theorem 8 and that no accountant uses, faults included."""

import math

import numpy as np
from scipy.special import gammaln

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.published.product_tails import log_delta_times_k


def angle_density(u: Array, *, dimension: int) -> Array:
    """2/sqrt(pi) Gamma(M/2)/Gamma((M-1)/2) (u^2 - 1)^(-1/2) u^(1-M) of U = 1/sin theta (product, Proposition 5).

    Args:
        u: > 1, any shape.
        dimension: M > 2.
    """
    u = np.asarray(u, dtype=np.float64)
    scale = gammaln(dimension / 2) - gammaln((dimension - 1) / 2) + math.log(2 / math.sqrt(math.pi))
    return np.asarray(np.exp(scale + (1 - dimension) * np.log(u)) / np.sqrt(u * u - 1))


def tail_delta(*, dimension: int, shift: float, k: float, q: float) -> float:
    """delta_1 delta_2 at the moment q, before the minimum over q is taken (product, eq. (12)).

    Args:
        dimension: M > 2.
        shift: lambda = Delta / sigma_M, > 0.
        k: Tuning parameter, at least 1.
        q: In (1, M - 3/2).
    """
    return math.exp(log_delta_times_k(dimension, shift, q)[0]) / k


def approximate_delta(*, dimension: int, shift: float, k: float, q: float) -> float:
    """2 e^(-lambda^2/2) sqrt(M-1) (1 + lambda^2 (q+1)) / (k sqrt(pi) sqrt((M - q - 3/2)(q + 3/4))) (product, eq. (19)).

    It rests on 1F1(a; c; x) < 1 + 2 x a / c for 0 < x < 1, which is false for large a x: at a = 100, c = 1/2, x = 0.9
    the left side is 3.7e5 times the right.

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
