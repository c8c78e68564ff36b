"""Gamma-PLRV noise with one random scale per vector."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammainc, gammaincc, gammainccinv, gammaincinv, gammaln, xlogy

from dpaudit.mechanisms.base import Array, Domain, ScaleMixture, require_dimension, validate_fields
from dpaudit.mechanisms.laplace import laplace_coordinates


@dataclass(frozen=True)
class GammaPLRV:
    """Laplace noise whose inverse scale u ~ Gamma(k, scale theta) is drawn ONCE per vector.

    The density of the vector is proportional to (1 + theta |z|_1)^-(n + k); privacy loss at output o for shift v:
    (n + k) [log(1 + theta |o|_1) - log(1 + theta |o - v|_1)].

    Args:
        k: Shape of u; the noise has a mean size only for k > 1.
        theta: Scale of u, in units of 1 / contribution.
        clip: Bound on one record's contribution.
        clip_norm: The p of its l_p norm.
        dimension: Coordinates of the noise vector; None until a model fixes it.

    Source: paper `plrvo`, Definition 4.6, with u = 1/b as in its Theorem 5.1.
    """

    k: float
    theta: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "gamma-plrv"
    summary: ClassVar[str] = "Laplace coordinates with one Gamma-distributed inverse scale per vector"
    domains: ClassVar[dict[str, Domain]] = {
        "k": Domain(0.0, math.inf, (2.5, 1000.0), "shape of the inverse scale"),
        "theta": Domain(0.0, math.inf, (1e-4, 0.2), "1 / unit of the contribution"),
    }

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> ScaleMixture:
        """Laplace coordinates of scale 1/u given u."""
        k, theta = self.k, self.theta
        constant = float(gammaln(k)) + k * math.log(theta)
        return ScaleMixture(
            given=lambda u: laplace_coordinates(1.0 / u),
            scale_cdf=lambda u: gammainc(k, np.asarray(u) / theta),
            scale_sf=lambda u: gammaincc(k, np.asarray(u) / theta),
            scale_ppf=lambda q: theta * gammaincinv(k, q),
            scale_isf=lambda q: theta * gammainccinv(k, q),
            scale_logpdf=lambda u: xlogy(k - 1.0, u) - np.asarray(u) / theta - constant,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension)."""
        u = rng.gamma(self.k, self.theta, size=(size, 1))
        return rng.laplace(size=(size, require_dimension(self))) / u

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        output, shift = np.asarray(output), np.asarray(shift)
        near = np.abs(output - shift).sum(axis=-1)
        gap = (np.abs(output) - np.abs(output - shift)).sum(axis=-1)  # coordinate by coordinate: no cancellation
        return np.asarray((output.shape[-1] + self.k) * np.log1p(self.theta * gap / (1.0 + self.theta * near)))

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2); infinite for k <= 1 or k <= 2."""
        n = require_dimension(self)
        if self.k <= order:
            return math.inf
        if order == 1:
            return n / (self.theta * (self.k - 1.0))
        return math.sqrt(2.0 * n / ((self.k - 1.0) * (self.k - 2.0))) / self.theta
