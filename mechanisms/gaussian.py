"""Gaussian noise."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from dpaudit.mechanisms.base import (
    MULTIPLES_OF_CLIP,
    Array,
    Domain,
    NormalCoordinates,
    require_dimension,
    validate_fields,
)
from dpaudit.mechanisms.numerics import aligned


def _logpdf(x: Array, sigma: float) -> Array:
    return np.asarray(-0.5 * np.square(np.asarray(x) / sigma) - math.log(sigma) - 0.5 * math.log(2 * math.pi))


def _cdf(x: Array, sigma: float) -> Array:
    return np.asarray(ndtr(np.asarray(x) / sigma))


def _ppf(p: Array, sigma: float) -> Array:
    return np.asarray(sigma * ndtri(p))


@dataclass(frozen=True)
class Gaussian:
    """Independent normal noise: z ~ N(0, sigma^2 I), sigma = noise_multiplier * clip.

    Privacy loss of a shift v: L(o) = (|o|_2^2 - |o - v|_2^2) / (2 sigma^2) = <v, o - v/2> / sigma^2, normal with
    mean |v|_2^2 / (2 sigma^2) and variance |v|_2^2 / sigma^2 under P (Balle and Wang (2018), Lemma 3).

    Args:
        noise_multiplier: sigma in units of clip, in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain, or sigma outside the range of floats.

    >>> mechanism = Gaussian(noise_multiplier=2.0, clip=0.5, dimension=1)
    >>> mechanism.sigma
    1.0
    >>> float(mechanism.privacy_loss(np.array([0.5]), np.array([0.5])))
    0.125
    """

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "independent normal noise, sigma = noise_multiplier * clip"
    domains: ClassVar[dict[str, Domain]] = {
        "noise_multiplier": Domain(0.0, math.inf, (0.5, 10.0), MULTIPLES_OF_CLIP),
    }

    noise_multiplier: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)
        if not 0 < self.sigma < math.inf:
            raise ValueError(
                f"Expected noise_multiplier={self.noise_multiplier!r} times clip={self.clip!r} in (0, inf) as floats."
            )

    @property
    def sigma(self) -> float:
        """Standard deviation of one coordinate, noise_multiplier * clip."""
        return float(self.noise_multiplier) * float(self.clip)

    @property
    def structure(self) -> NormalCoordinates:
        """Independent normal coordinates."""
        sigma = self.sigma
        return NormalCoordinates(
            partial(_logpdf, sigma=sigma), partial(_cdf, sigma=sigma), partial(_ppf, sigma=sigma), sigma=sigma
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        Raises:
            ValueError: The dimension is not set.
        """
        return rng.normal(0.0, self.sigma, (size, require_dimension(self)))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = <v, o - v/2> / sigma^2, Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        output, shift = aligned(output, shift)
        return np.asarray(((output - 0.5 * shift) / self.sigma) @ (shift / self.sigma))
