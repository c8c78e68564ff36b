"""Gamma-PLRV noise with a scale per coordinate: independent two-sided Lomax coordinates."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, LomaxCoordinates, require_dimension, validate_fields
from dpaudit.mechanisms.gamma_plrv import THETA, K
from dpaudit.mechanisms.numerics import aligned, finite, log_ratio, magnitude_drop


def _logpdf(x: Array, k: float, theta: float) -> Array:
    return np.asarray(math.log(k) + math.log(theta) - math.log(2.0) - (k + 1.0) * np.log1p(theta * np.abs(x)))


def _cdf(x: Array, k: float, theta: float) -> Array:
    tail = 0.5 * np.exp(-k * np.log1p(theta * np.abs(x)))
    return np.asarray(np.where(np.asarray(x) < 0, tail, 1.0 - tail))


def _ppf(p: Array, k: float, theta: float) -> Array:
    centred = np.asarray(p, dtype=np.float64) - 0.5
    with np.errstate(divide="ignore", over="ignore"):  # the quantiles of 0 and 1 are infinite
        size = np.expm1(-np.log(2.0 * np.minimum(p, 1.0 - np.asarray(p))) / k) / theta
    return np.asarray(np.copysign(size, centred))


@dataclass(frozen=True)
class GammaPLRVIID:
    """Laplace noise of a random scale per coordinate: u_i ~ Gamma(k, scale theta), then z_i ~ Laplace(1/u_i).

    The coordinates are independent with density (k theta/2) (1 + theta |x|)^-(k+1), so a shift v has the privacy
    loss L(o) = sum_i (k+1) [log(1 + theta |o_i|) - log(1 + theta |o_i - v_i|)] (the reading of plrvo's Definition
    4.6 that its released code has).

    Args:
        k: Shape of the Gamma law of u_i, in (0, inf).
        theta: Scale of the Gamma law of u_i, absolute, 1 / (unit of the contributions), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> law = GammaPLRVIID(k=2.0, theta=1.0).structure
    >>> float(law.cdf(np.array(-1.0)))  # (1/2) (1 + 1)^-2
    0.125
    """

    name: ClassVar[str] = "gamma-plrv-iid"
    summary: ClassVar[str] = "Laplace noise whose inverse scale is Gamma(k, theta), drawn for every coordinate"
    domains: ClassVar[dict[str, Domain]] = {"k": K, "theta": THETA}

    k: float
    theta: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> LomaxCoordinates:
        """Independent coordinates, the scale integrated out: the slope of log f is at most (k+1) theta, at 0."""
        k, theta = float(self.k), float(self.theta)
        return LomaxCoordinates(
            partial(_logpdf, k=k, theta=theta),
            partial(_cdf, k=k, theta=theta),
            partial(_ppf, k=k, theta=theta),
            lipschitz=(k + 1.0) * theta,
            log_convex=True,
            reciprocal_convex=True,  # 1/f is (1 + theta x)^(k+1) up to a factor
            k=k,
            theta=theta,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        log(1 + theta |z_i|) is exponential of mean 1/k, so one draw does for scale and noise.

        Raises:
            ValueError: The dimension is not set.
        """
        logs = rng.laplace(0.0, 1.0 / self.k, (size, require_dimension(self)))
        with np.errstate(over="ignore"):  # for k below 0.1 the tail leaves the range of floats
            return finite(np.copysign(np.expm1(np.abs(logs)) / self.theta, logs))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = sum_i (k+1) [log(1 + theta |o_i|) - log(1 + theta |o_i - v_i|)], Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        output, shift = aligned(output, shift)
        at_zero, at_shift = (1.0 / self.theta + np.abs(x) for x in (output, output - shift))
        return np.asarray((self.k + 1.0) * log_ratio(magnitude_drop(output, shift), at_zero, at_shift).sum(axis=-1))
