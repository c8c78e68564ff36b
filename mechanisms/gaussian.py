"""Gaussian noise."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import ndtr, ndtri

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields


@dataclass(frozen=True)
class Gaussian:
    """iid N(0, sigma^2) noise, sigma = noise_multiplier * clip.

    Privacy loss at output o for shift v: (|o|^2 - |o - v|^2) / (2 sigma^2), l2 norms.

    Args:
        noise_multiplier: sigma / clip, unitless.
        clip: Bound on one record's contribution.
        clip_norm: The p of its l_p norm.
        dimension: Coordinates of the noise vector; None until a model fixes it.

    Source: Dwork and Roth (2014), "The Algorithmic Foundations of Differential Privacy", Theorem A.1.
    """

    noise_multiplier: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "gaussian"
    summary: ClassVar[str] = "independent normal coordinates of standard deviation noise_multiplier * clip"
    domains: ClassVar[dict[str, Domain]] = {
        "noise_multiplier": Domain(0.0, math.inf, (0.5, 10.0), "noise standard deviation over clip"),
    }

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def sigma(self) -> float:
        """Standard deviation of one coordinate, in units of the contribution."""
        return self.noise_multiplier * self.clip

    @property
    def structure(self) -> IIDCoordinates:
        """Independent normal coordinates."""
        sigma = self.sigma
        constant = math.log(sigma) + 0.5 * math.log(2.0 * math.pi)
        return IIDCoordinates(
            logpdf=lambda x: -0.5 * np.square(np.asarray(x) / sigma) - constant,
            cdf=lambda x: ndtr(np.asarray(x) / sigma),
            ppf=lambda q: sigma * ndtri(q),
            gaussian_sigma=sigma,
            power=2.0,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension)."""
        return rng.normal(scale=self.sigma, size=(size, require_dimension(self)))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        # |o|^2 - |o - v|^2 = <v, 2 o - v>, which does not cancel
        return np.asarray((2.0 * np.asarray(output) - shift) @ np.asarray(shift) / (2.0 * self.sigma**2))

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2)."""
        n = require_dimension(self)
        return n * self.sigma * math.sqrt(2.0 / math.pi) if order == 1 else self.sigma * math.sqrt(n)
