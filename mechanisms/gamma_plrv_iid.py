"""Gamma-PLRV noise with a random scale of its own for every coordinate."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields


@dataclass(frozen=True)
class GammaPLRVIID:
    """iid coordinates of density (k theta / 2) (1 + theta |x|)^-(k + 1): Laplace with inverse scale Gamma(k, theta).

    Privacy loss at output o for shift v: sum_i (k + 1) [log(1 + theta |o_i|) - log(1 + theta |o_i - v_i|)].

    Args:
        k: Shape of the inverse scale.
        theta: Scale of the inverse scale, in units of 1 / contribution.
        clip: Bound on one record's contribution.
        clip_norm: The p of its l_p norm.
        dimension: Coordinates of the noise vector; None until a model fixes it.

    Source: the released code of the paper `plrvo`, which draws a scale per coordinate.
    """

    k: float
    theta: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "gamma-plrv-iid"
    summary: ClassVar[str] = "Laplace coordinates, each with its own Gamma-distributed inverse scale"
    domains: ClassVar[dict[str, Domain]] = {
        "k": Domain(0.0, math.inf, (2.5, 1000.0), "shape of the inverse scale"),
        "theta": Domain(0.0, math.inf, (1e-4, 0.2), "1 / unit of the contribution"),
    }

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> IIDCoordinates:
        """Independent coordinates with polynomial tails."""
        k, theta = self.k, self.theta
        constant = math.log(k) + math.log(theta / 2.0)

        def cdf(x: Array) -> Array:
            tail = 0.5 * np.exp(-k * np.log1p(theta * np.abs(x)))
            return np.where(np.asarray(x) > 0, 1.0 - tail, tail)

        def ppf(q: Array) -> Array:
            tail = np.minimum(q, 1.0 - np.asarray(q))
            return np.sign(np.asarray(q) - 0.5) * np.expm1(-np.log(2.0 * tail) / k) / theta

        return IIDCoordinates(logpdf=lambda x: constant - (k + 1.0) * np.log1p(theta * np.abs(x)), cdf=cdf, ppf=ppf)

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension)."""
        shape = (size, require_dimension(self))
        return rng.laplace(size=shape) / rng.gamma(self.k, self.theta, size=shape)

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        near = np.abs(np.asarray(output) - shift)
        ratio = self.theta * (np.abs(output) - near) / (1.0 + self.theta * near)
        return np.asarray((self.k + 1.0) * np.log1p(ratio).sum(axis=-1))

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2); infinite for k <= 1 or k <= 2."""
        n = require_dimension(self)
        if self.k <= order:
            return math.inf
        if order == 1:
            return n / (self.theta * (self.k - 1.0))
        return math.sqrt(2.0 * n / ((self.k - 1.0) * (self.k - 2.0))) / self.theta
