"""Gamma-PLRV noise: Laplace noise whose inverse scale is Gamma, drawn once per vector."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv

from dpaudit.mechanisms.base import Array, Domain, GammaScale, IIDCoordinates, require_dimension, validate_fields
from dpaudit.mechanisms.laplace import laplace_law
from dpaudit.mechanisms.numerics import aligned, finite, log_ratio, magnitude_drop

K = Domain(0.0, math.inf, (2.5, 50_000.0), "shape of the Gamma law of the inverse scale")
THETA = Domain(0.0, math.inf, (1e-5, 0.1), "scale of the Gamma law of the inverse scale, 1 / noise", length_power=-1)


def _stirling(k: float) -> float:
    """log Gamma(k) - (k - 1/2) log k + k - log(2 pi)/2; by its series where the difference would cancel."""
    if k < 20:
        return math.lgamma(k) - (k - 0.5) * math.log(k) + k - 0.5 * math.log(2 * math.pi)
    # the first term left out is below 1/(1188 k^9) < 2e-15
    return (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * k * k)) / (k * k)) / (k * k)) / k


def _scale_logpdf(u: Array, k: float, theta: float) -> Array:
    u = np.asarray(u, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        # k log x - x - log Gamma(k) with x = u/theta, relative to its maximum: at k = 1e5 the terms are 1e6 each
        offset = u / theta / k - 1.0
        value = k * (np.log1p(offset) - offset) - np.log(u) + 0.5 * math.log(k / (2 * math.pi)) - _stirling(k)
        # towards u = 0 the power u^(k-1) decides, and log1p(offset) has lost u
        small = (k - 1.0) * np.log(u) - k * math.log(theta) - u / theta - math.lgamma(k)
    return np.asarray(np.where(u > 0, np.where(offset < -0.5, small, value), -np.inf))


def _scale_cdf(u: Array, k: float, theta: float) -> Array:
    return np.asarray(gammainc(k, np.maximum(u, 0.0) / theta))


def _scale_sf(u: Array, k: float, theta: float) -> Array:
    return np.asarray(gammaincc(k, np.maximum(u, 0.0) / theta))


def _scale_ppf(p: Array, k: float, theta: float) -> Array:
    return np.asarray(theta * gammaincinv(k, p))


def _scale_isf(p: Array, k: float, theta: float) -> Array:
    return np.asarray(theta * gammainccinv(k, p))


def _given(u: float) -> IIDCoordinates:
    return laplace_law(1.0 / u)


@dataclass(frozen=True)
class GammaPLRV:
    """Laplace noise of one random scale: u ~ Gamma(k, scale theta) once per vector, then z_i ~ Laplace(1/u).

    The density of z in R^n is proportional to (1 + theta |z|_1)^-(n+k), so a shift v has the exact privacy loss
    L(o) = (n+k) [log(1 + theta |o|_1) - log(1 + theta |o - v|_1)], with u hidden from the adversary
    (plrvo, Definition 4.6, with u = 1/b Gamma as in its Algorithm 2).

    Args:
        k: Shape of the Gamma law of u, in (0, inf).
        theta: Scale of the Gamma law of u, absolute, 1 / (unit of the contributions), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> float(GammaPLRV(k=3.0, theta=0.5, dimension=1).privacy_loss(np.array([2.0]), np.array([2.0])))  # 4 log(2)
    2.772588722239781
    """

    name: ClassVar[str] = "gamma-plrv"
    summary: ClassVar[str] = "Laplace noise whose inverse scale is Gamma(k, theta), drawn once per vector"
    domains: ClassVar[dict[str, Domain]] = {"k": K, "theta": THETA}

    k: float
    theta: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> GammaScale:
        """Laplace coordinates of scale 1/u given u, and the Gamma law of u."""
        k, theta = float(self.k), float(self.theta)
        return GammaScale(
            given=_given,
            scale_cdf=partial(_scale_cdf, k=k, theta=theta),
            scale_sf=partial(_scale_sf, k=k, theta=theta),
            scale_ppf=partial(_scale_ppf, k=k, theta=theta),
            scale_isf=partial(_scale_isf, k=k, theta=theta),
            scale_logpdf=partial(_scale_logpdf, k=k, theta=theta),
            shape=k,
            scale=theta,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension), each with its own scale.

        Raises:
            ValueError: The dimension is not set.
        """
        noise = rng.laplace(0.0, 1.0, (size, require_dimension(self)))
        scale = rng.gamma(self.k, self.theta, (size, 1))
        with np.errstate(divide="ignore", over="ignore"):  # for k below 0.1 the scale may underflow
            noise /= scale
        return finite(noise)

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = (n+k) [log(1 + theta |o|_1) - log(1 + theta |o - v|_1)], Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit, or n is not the mechanism's dimension.
        """
        output, shift = aligned(output, shift, self.dimension)
        with np.errstate(over="ignore"):
            at_zero, at_shift = (1.0 / self.theta + np.abs(x).sum(axis=-1) for x in (output, output - shift))
        drop = magnitude_drop(output, shift).sum(axis=-1)
        return (len(shift) + self.k) * log_ratio(drop, at_zero, at_shift)
