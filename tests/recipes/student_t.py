"""Student-t noise."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import betainc, betaincinv

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields
from dpaudit.mechanisms.numerics import aligned, log_ratio


def _logpdf(x: Array, nu: float, scale: float) -> Array:
    constant = math.lgamma((nu + 1) / 2) - math.lgamma(nu / 2) - math.log(math.pi * nu) / 2 - math.log(scale)
    return np.asarray(constant - (nu + 1) / 2 * np.log1p((np.asarray(x) / scale) ** 2 / nu))


def _cdf(x: Array, nu: float, scale: float) -> Array:
    x = np.asarray(x, dtype=np.float64)
    square = (x / scale) ** 2
    tail = betainc(nu / 2, 0.5, nu / (nu + square)) / 2
    return np.asarray(np.where(x < 0, tail, 0.5 + betainc(0.5, nu / 2, square / (nu + square)) / 2))


def _ppf(p: Array, nu: float, scale: float) -> Array:
    p = np.asarray(p, dtype=np.float64)
    tail, centre = 2.0 * np.minimum(p, 1.0 - p), np.abs(2.0 * p - 1.0)
    share = betaincinv(nu / 2, 0.5, tail)  # nu / (nu + t^2)
    near = betaincinv(0.5, nu / 2, centre)  # t^2 / (nu + t^2)
    with np.errstate(divide="ignore"):  # the quantiles of 0 and 1 are infinite
        square = np.where(centre < 0.5, near / (1.0 - np.minimum(near, 0.99)), (1.0 - share) / share)
    return np.asarray(np.copysign(scale * np.sqrt(nu * square), p - 0.5))


@dataclass(frozen=True)
class StudentT:
    """Independent Student-t noise: density ~ (1 + (x/scale)^2 / nu)^(-(nu+1)/2) in every coordinate.

    The log-density has slope -(nu + 1) x / (nu scale^2 + x^2). By 2 sqrt(nu) scale |x| <= nu scale^2 + x^2 it is at
    most (nu + 1) / (2 sqrt(nu) scale) in size, with equality at |x| = sqrt(nu) scale: its Lipschitz constant.

    Source: Student (1908), "The probable error of a mean".

    Args:
        nu: Degrees of freedom, in (0, inf).
        scale: Scale of one coordinate, absolute (not in units of clip), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> float(StudentT(nu=3.0, scale=1.0).privacy_loss(np.array([0.5]), np.array([1.0])))
    0.0
    """

    name: ClassVar[str] = "student-t"
    summary: ClassVar[str] = "independent Student-t noise, with polynomial tails"
    domains: ClassVar[dict[str, Domain]] = {
        "nu": Domain(0.0, math.inf, (3.0, 30.0), "degrees of freedom"),
        "scale": Domain(0.0, math.inf, (1.0, 50.0), "scale of one coordinate's noise", length_power=1),
    }

    nu: float
    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> IIDCoordinates:
        """Independent coordinates with a Lipschitz log-density."""
        nu, scale = float(self.nu), float(self.scale)
        logpdf, cdf, ppf = (partial(function, nu=nu, scale=scale) for function in (_logpdf, _cdf, _ppf))
        return IIDCoordinates(logpdf, cdf, ppf, lipschitz=(nu + 1) / (2 * math.sqrt(nu) * scale))

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        Raises:
            ValueError: The dimension is not set.
        """
        return self.scale * rng.standard_t(self.nu, (size, require_dimension(self)))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = (nu+1)/2 sum_i log((nu s^2 + o_i^2) / (nu s^2 + (o_i - v_i)^2)), s the scale.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        output, shift = aligned(output, shift)
        width = self.nu * self.scale**2
        difference = shift * (2.0 * output - shift)
        ratio = log_ratio(difference, width + output**2, width + (output - shift) ** 2)
        return np.asarray((self.nu + 1) / 2 * ratio.sum(axis=-1))
