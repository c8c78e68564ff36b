"""Product noise: a chi-distributed radius times a uniform direction."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import erf, erfinv

from dpaudit.mechanisms.base import Array, Domain, Radial, require_dimension, validate_fields


@dataclass(frozen=True)
class Product:
    """sigma R h with R ~ chi_1 (a half-normal) and h uniform on the unit sphere of R^n.

    The density is proportional to r^-(n - 1) exp(-r^2 / (2 sigma^2)); privacy loss at output o for shift v, with
    r_Q = |o| and r_P = |o - v|: (r_Q^2 - r_P^2) / (2 sigma^2) + (n - 1) log(r_Q / r_P).

    Args:
        sigma: Scale of the radius, in units of the contribution.
        clip: Bound on one record's contribution; half the sensitivity of a query of known replace-one sensitivity.
        clip_norm: The p of its l_p norm.
        dimension: Coordinates of the noise vector, M in the paper; None until a model fixes it.

    Source: paper `product`, eq. (2).
    """

    sigma: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "product"
    summary: ClassVar[str] = "a half-normal radius times a uniform direction"
    domains: ClassVar[dict[str, Domain]] = {"sigma": Domain(0.0, math.inf, (1.0, 5000.0), "unit of the contribution")}

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> Radial:
        """A radius and a uniform direction."""
        sigma = self.sigma
        constant = 0.5 * math.log(2.0 / math.pi) - math.log(sigma)
        return Radial(
            radius_logpdf=lambda r: constant - 0.5 * np.square(np.asarray(r) / sigma),
            radius_cdf=lambda r: erf(np.asarray(r) / (sigma * math.sqrt(2.0))),
            radius_ppf=lambda q: sigma * math.sqrt(2.0) * erfinv(q),
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension)."""
        direction = rng.normal(size=(size, require_dimension(self)))
        length = np.linalg.norm(direction, axis=1, keepdims=True)
        return np.asarray(direction * (self.sigma * np.abs(rng.normal(size=(size, 1))) / length))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        output, shift = np.asarray(output), np.asarray(shift)
        near = np.square(output - shift).sum(axis=-1)
        gap = (2.0 * output - shift) @ shift  # |o|^2 - |o - v|^2 without cancellation
        far = np.square(output).sum(axis=-1)
        n = output.shape[-1]
        with np.errstate(divide="ignore"):
            ratio = np.where(np.abs(gap) < 0.5 * near, np.log1p(gap / near), np.log(far) - np.log(near))
        return np.asarray(gap / (2.0 * self.sigma**2) + 0.5 * (n - 1) * ratio)

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2)."""
        n = require_dimension(self)
        if order == 2:
            return self.sigma
        # E R E |h|_1, E |h_i| = Gamma(n/2) / (sqrt(pi) Gamma((n + 1)/2))
        mean = math.exp(math.lgamma(n / 2.0) - math.lgamma((n + 1.0) / 2.0)) / math.sqrt(math.pi)
        return self.sigma * math.sqrt(2.0 / math.pi) * n * mean
