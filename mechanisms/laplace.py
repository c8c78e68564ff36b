"""Laplace noise."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, IIDCoordinates, require_dimension, validate_fields


def laplace_coordinates(scale: float) -> IIDCoordinates:
    """The law of one Laplace coordinate of a given scale."""

    def cdf(x: Array) -> Array:
        tail = 0.5 * np.exp(-np.abs(x) / scale)
        return np.where(np.asarray(x) > 0, 1.0 - tail, tail)

    def ppf(q: Array) -> Array:
        tail = np.minimum(q, 1.0 - np.asarray(q))
        return -np.sign(np.asarray(q) - 0.5) * scale * np.log(2.0 * tail)

    return IIDCoordinates(
        logpdf=lambda x: -np.abs(x) / scale - math.log(2.0 * scale), cdf=cdf, ppf=ppf, laplace_scale=scale, power=1.0
    )


@dataclass(frozen=True)
class Laplace:
    """iid Laplace noise of density exp(-|x|/scale) / (2 scale).

    Privacy loss at output o for shift v: (|o|_1 - |o - v|_1) / scale.

    Args:
        scale: b, in units of the contribution; absolute, not a multiple of clip.
        clip: Bound on one record's contribution.
        clip_norm: The p of its l_p norm; 1 gives pure differential privacy.
        dimension: Coordinates of the noise vector; None until a model fixes it.

    Source: Dwork, McSherry, Nissim and Smith (2006); under l2 clipping the paper `lap2`.
    """

    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "independent Laplace coordinates"
    domains: ClassVar[dict[str, Domain]] = {"scale": Domain(0.0, math.inf, (0.5, 20.0), "unit of the contribution")}

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> IIDCoordinates:
        """Independent Laplace coordinates."""
        return laplace_coordinates(self.scale)

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Noise vectors, shape (size, dimension)."""
        return rng.laplace(scale=self.scale, size=(size, require_dimension(self)))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n), shift of shape (n,)."""
        return np.asarray((np.abs(output) - np.abs(np.asarray(output) - shift)).sum(axis=-1) / self.scale)

    def expected_norm(self, order: int) -> float:
        """E |z|_1 or sqrt(E |z|_2^2)."""
        n = require_dimension(self)
        return n * self.scale if order == 1 else self.scale * math.sqrt(2.0 * n)
