"""Generalized Gaussian noise."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv

from dpaudit.mechanisms.base import (
    Array,
    Domain,
    LaplaceCoordinates,
    NormalCoordinates,
    PowerCoordinates,
    require_dimension,
    validate_fields,
)
from dpaudit.mechanisms.numerics import aligned, magnitude_drop

# below this y the regularised incomplete gamma function is y^(1/beta) / Gamma(1 + 1/beta) to the last bit
_LINEAR_POWER = 1e-17


def _logpdf(x: Array, beta: float, scale: float) -> Array:
    with np.errstate(over="ignore"):
        power = (np.abs(x) / scale) ** beta
    return np.asarray(-power - math.log(2.0 * scale) - math.lgamma(1.0 + 1.0 / beta))


def _cdf(x: Array, beta: float, scale: float) -> Array:
    x = np.asarray(x, dtype=np.float64)
    size = np.abs(x) / scale
    with np.errstate(over="ignore", under="ignore"):
        power = size**beta
    # for large beta the power underflows at ordinary x, where the law is nearly uniform
    linear = 0.5 * size / math.gamma(1.0 + 1.0 / beta)
    small, below, share = power < _LINEAR_POWER, x < 0, np.empty(x.shape)
    # either is dear: each only where it is needed
    share[below] = gammaincc(1.0 / beta, power[below])
    share[~below] = gammainc(1.0 / beta, power[~below])
    tail = np.where(small, 0.5 - linear, 0.5 * share)
    centre = np.where(small, linear, 0.5 * share)
    return np.asarray(np.where(below, tail, 0.5 + centre))


def _ppf(p: Array, beta: float, scale: float) -> Array:
    p = np.asarray(p, dtype=np.float64)
    linear = np.abs(2.0 * p - 1.0) * math.gamma(1.0 + 1.0 / beta)
    with np.errstate(under="ignore"):
        size = np.where(
            linear**beta < _LINEAR_POWER, linear, gammainccinv(1.0 / beta, 2.0 * np.minimum(p, 1.0 - p)) ** (1.0 / beta)
        )
    return np.asarray(np.copysign(scale * size, p - 0.5))


def _power_drop(output: Array, shift: Array, beta: float, scale: float) -> Array:
    """(|o|^beta - |o - v|^beta) / scale^beta per coordinate, from |o| - |o - v|, known without cancellation."""
    drop = magnitude_drop(output, shift)
    if beta == 1:
        return np.asarray(drop / scale)
    moved = drop != 0
    larger = np.maximum(np.abs(output), np.abs(output - shift))
    share = np.zeros_like(drop)
    np.divide(np.abs(drop), larger, out=share, where=moved)
    with np.errstate(divide="ignore", over="ignore", under="ignore"):
        lost = -np.expm1(beta * np.log1p(-np.minimum(share, 1.0)))  # 1 - (smaller/larger)^beta
        size = np.where(moved, larger / scale, 0.0) ** beta * lost
    return np.asarray(np.copysign(size, drop))


@dataclass(frozen=True)
class GeneralizedGaussian:
    """Independent noise of density beta / (2 scale Gamma(1/beta)) exp(-(|x|/scale)^beta) in every coordinate.

    beta = 1 is Laplace(scale), beta = 2 is the normal law with sigma = scale/sqrt(2). A shift v has the privacy loss
    L(o) = (sum_i |o_i|^beta - sum_i |o_i - v_i|^beta) / scale^beta (gg, Definition 8).

    Args:
        beta: Power of the exponent, in [1, inf).
        scale: Scale of one coordinate, absolute (not in units of clip), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf]; it need not be beta.
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> mechanism = GeneralizedGaussian(beta=4.0, scale=1.0)
    >>> float(mechanism.privacy_loss(np.array([2.0]), np.array([1.0])))
    15.0
    """

    name: ClassVar[str] = "generalized-gaussian"
    summary: ClassVar[str] = "independent noise of density ~ exp(-(|x|/scale)^beta)"
    domains: ClassVar[dict[str, Domain]] = {
        "beta": Domain(1.0, 1e6, (1.0, 4.0), "power of the exponent", closed_low=True, closed_high=True),
        "scale": Domain(0.0, math.inf, (1.0, 20.0), "scale of one coordinate's noise", length_power=1),
    }

    beta: float
    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> PowerCoordinates:
        """Independent coordinates of an exponential power law: the normal one at beta = 2, Laplace's at beta = 1."""
        beta, scale = float(self.beta), float(self.scale)
        law = (
            partial(_logpdf, beta=beta, scale=scale),
            partial(_cdf, beta=beta, scale=scale),
            partial(_ppf, beta=beta, scale=scale),
        )
        if beta == 2:
            return NormalCoordinates(*law, sigma=scale / math.sqrt(2))
        if beta == 1:
            return LaplaceCoordinates(*law, scale=scale, lipschitz=1.0 / scale)
        return PowerCoordinates(*law, beta=beta)

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        |z_i|/scale is Gamma(1/beta)^(1/beta). As Gamma(a) is Gamma(a+1) U^(1/a) in law, it is also
        U Gamma(1 + 1/beta)^(1/beta), which does not underflow at large beta; a U on (-1, 1) brings the sign.

        Raises:
            ValueError: The dimension is not set.
        """
        shape = (size, require_dimension(self))
        noise = rng.standard_gamma(1.0 + 1.0 / self.beta, shape)
        noise **= 1.0 / self.beta
        noise *= rng.uniform(-self.scale, self.scale, shape)
        return noise

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = (sum_i |o_i|^beta - sum_i |o_i - v_i|^beta) / scale^beta, Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        output, shift = aligned(output, shift)
        return np.asarray(_power_drop(output, shift, float(self.beta), float(self.scale)).sum(axis=-1))
