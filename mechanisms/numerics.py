"""Exact differences and ratios that the privacy losses share, arranged so that nothing cancels; the Gaussian curve."""

import math

import numpy as np
from scipy.special import erfcx, ndtr

from dpaudit.mechanisms.base import Array, Domain

UNIT = 2.0**-53  # unit roundoff: the largest relative error of one rounding to the nearest float
_NOT_NEGATIVE = Domain(0.0, math.inf, (0.01, 20.0), "of mu or epsilon", closed_low=True, closed_high=True)
_LARGEST_FLOAT = float(np.finfo(np.float64).max)


def aligned(output: Array, shift: Array, dimension: int | None = None) -> tuple[Array, Array]:
    """Output and shift of a privacy loss as float64, their shapes checked.

    Args:
        output: Shape (..., n).
        shift: Shape (n,).
        dimension: The n of a law whose coordinates depend on each other, None where every n will do.

    Raises:
        ValueError: The shapes do not fit, or n is not `dimension`.
    """
    output, shift = np.asarray(output, dtype=np.float64), np.asarray(shift, dtype=np.float64)
    if shift.ndim != 1 or output.ndim < 1 or output.shape[-1] != len(shift):
        raise ValueError(
            f"Expected output.shape={output.shape} to be (..., n) and shift.shape={shift.shape} to be (n,)."
        )
    if dimension is not None and len(shift) != dimension:
        raise ValueError(f"Expected shift.shape={shift.shape} to be ({dimension},), the mechanism's dimension.")
    return output, shift


def magnitude_drop(output: Array, shift: Array) -> Array:
    """Drop of the magnitude, |o| - |o - v|, for every coordinate, which is clip(2 o, 0, 2 v) - v for v > 0.

    The two magnitudes are never subtracted: where o lies outside [0, v] the value is +-|v| to the last bit, even if
    |o| is so large that o - v rounds to o.

    Args:
        output: Shape (..., n).
        shift: Shape (n,).

    >>> magnitude_drop(np.array([1e20, -1e20, 0.75]), np.array([1.0, 1.0, 1.0]))
    array([ 1. , -1. ,  0.5])
    """
    size = np.abs(shift)
    return np.asarray(2.0 * np.clip(np.where(shift < 0, -output, output), 0.0, size) - size)


def log_ratio(difference: Array, first: Array, second: Array) -> Array:
    """log(first / second), given their difference to more digits than subtraction would leave of it.

    Args:
        difference: first - second, any shape.
        first: At least 0.
        second: At least 0; where one of them is 0 the result is infinite, where both are it is 0.

    >>> log_ratio(np.array([1e-20]), np.array([1.0]), np.array([1.0]))
    array([1.e-20])
    """
    difference = np.asarray(difference, dtype=np.float64)
    smaller = np.where(difference >= 0, second, first)
    excess = np.zeros_like(difference)
    # a ratio to 0, or beyond the largest float, is meant to be infinite
    with np.errstate(divide="ignore", over="ignore"):
        np.divide(np.abs(difference), smaller, out=excess, where=difference != 0)
    return np.asarray(np.copysign(np.log1p(excess), difference))


def log_sum_exp(values: Array) -> Array:
    """log of the sums of e^values along the last axis; scipy's, which takes any array, costs three times as much.

    Args:
        values: Shape (..., n), n at least 1; infinite ones count as what they are.

    >>> log_sum_exp(np.array([[0.0, 0.0], [-np.inf, -np.inf], [800.0, np.inf]])).round(4)
    array([0.6931,   -inf,    inf])
    """
    top = np.clip(values.max(axis=-1, keepdims=True), -_LARGEST_FLOAT, _LARGEST_FLOAT)
    with np.errstate(divide="ignore"):
        return np.asarray(top[..., 0] + np.log(np.exp(values - top).sum(axis=-1)))


def finite(values: Array) -> Array:
    """Values beyond the range of floats brought back to its ends, in place.

    A law with a very heavy tail really does leave that range, and an infinite output would make every loss NaN.
    """
    return np.clip(values, -_LARGEST_FLOAT, _LARGEST_FLOAT, out=values)


def gaussian_delta(mu: float, epsilon: float) -> float:
    """delta(epsilon) of a mu-GDP mechanism: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu).

    Args:
        mu: Sensitivity over noise, at least 0.
        epsilon: At least 0.

    Raises:
        TypeError: mu or epsilon is not a number.
        ValueError: mu or epsilon is negative or NaN.

    To rounding, not rounded up: a certified bound is `verify.upper.gaussian_pld.analytic_delta`. The second term is
    e^(-a^2/2) erfcx(b/sqrt(2))/2 with a = mu/2 - epsilon/mu and b = mu/2 + epsilon/mu, since b^2 - a^2 = 2 epsilon: no
    epsilon is too large for it.

    Source: Balle and Wang (2018), Theorem 8; Dong, Roth and Su (2022), Corollary 1.

    >>> print(f"{gaussian_delta(1.0, 1.0):.6f}")
    0.126937
    """
    for name, value in (("mu", mu), ("epsilon", epsilon)):
        _NOT_NEGATIVE.validate(name, value)
    mu, epsilon = float(mu), float(epsilon)
    if mu == 0.0:
        return 0.0
    nearer, farther = mu / 2 - epsilon / mu, mu / 2 + epsilon / mu
    return float(ndtr(nearer)) - math.exp(-nearer * nearer / 2) * float(erfcx(farther / math.sqrt(2))) / 2
