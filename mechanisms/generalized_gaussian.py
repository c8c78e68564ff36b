"""Generalized Gaussian noise."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from scipy.special import gammaincc, gammainccinv

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields


@dataclass(frozen=True)
class GeneralizedGaussian:
    """iid coordinates of density beta / (2 scale Gamma(1/beta)) exp(-(|x| / scale)^beta).

    Privacy loss at output o for shift v: (sum |o_i|^beta - sum |o_i - v_i|^beta) / scale^beta. beta = 1 is Laplace
    noise of the same scale, beta = 2 Gaussian noise of standard deviation scale / sqrt(2).

    Args:
        beta: Exponent of the tail, at least 1.
        scale: sigma in the paper, in units of the contribution.
        clip: Bound on one record's contribution.
        clip_norm: The p of its l_p norm; the paper takes p = beta.
        dimension: Coordinates of the noise vector; None until a model fixes it.

    Source: paper `gg`, Definition of the generalized Gaussian mechanism.
    """

    beta: float
    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "generalized-gaussian"
    summary: ClassVar[str] = "independent coordinates with tails exp(-(|x| / scale)^beta)"
    domains: ClassVar[dict[str, Domain]] = {
        "beta": Domain(1.0, math.inf, (1.0, 4.0), "exponent, unitless", closed_low=True),
        "scale": Domain(0.0, math.inf, (0.5, 20.0), "unit of the contribution"),
    }

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> IIDCoordinates:
        """Independent coordinates."""
        beta, scale = self.beta, self.scale
        constant = math.log(beta / (2.0 * scale)) - math.lgamma(1.0 / beta)

        def cdf(x: Array) -> Array:
            tail = 0.5 * gammaincc(1.0 / beta, np.power(np.abs(x) / scale, beta))
            return np.where(np.asarray(x) > 0, 1.0 - tail, tail)

        def ppf(q: Array) -> Array:
            tail = np.minimum(q, 1.0 - np.asarray(q))
            return np.sign(np.asarray(q) - 0.5) * scale * np.power(gammainccinv(1.0 / beta, 2.0 * tail), 1.0 / beta)

        return IIDCoordinates(
            logpdf=lambda x: constant - np.power(np.abs(x) / scale, beta),
            cdf=cdf,
            ppf=ppf,
            gaussian_sigma=scale / math.sqrt(2.0) if beta == 2.0 else None,
            laplace_scale=scale if beta == 1.0 else None,
            power=beta,
        )

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension): (|x| / scale)^beta is Gamma(1/beta)."""
        shape = (size, require_dimension(self))
        magnitude = self.scale * rng.gamma(1.0 / self.beta, size=shape) ** (1.0 / self.beta)
        return np.where(rng.random(shape) < 0.5, -magnitude, magnitude)

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        near, far = np.abs(np.asarray(output) - shift) / self.scale, np.abs(output) / self.scale
        return np.asarray((np.power(far, self.beta) - np.power(near, self.beta)).sum(axis=-1))

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2): E |x|^m = scale^m Gamma((m + 1)/beta) / Gamma(1/beta)."""
        n = require_dimension(self)
        moment = math.exp(math.lgamma((order + 1.0) / self.beta) - math.lgamma(1.0 / self.beta)) * self.scale**order
        return n * moment if order == 1 else math.sqrt(n * moment)
