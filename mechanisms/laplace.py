"""Laplace noise."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, LaplaceCoordinates, require_dimension, validate_fields
from dpaudit.mechanisms.numerics import aligned, magnitude_drop


def _logpdf(x: Array, scale: float) -> Array:
    return np.asarray(-np.abs(x) / scale - math.log(scale) - math.log(2.0))


def _cdf(x: Array, scale: float) -> Array:
    tail = 0.5 * np.exp(-np.abs(x) / scale)
    return np.asarray(np.where(np.asarray(x) < 0, tail, 1.0 - tail))


def _ppf(p: Array, scale: float) -> Array:
    centred = np.asarray(p, dtype=np.float64) - 0.5
    with np.errstate(divide="ignore"):  # the quantiles of 0 and 1 are infinite
        return np.asarray(np.copysign(-scale * np.log(2.0 * np.minimum(p, 1.0 - np.asarray(p))), centred))


def laplace_law(scale: float) -> LaplaceCoordinates:
    """Independent Laplace coordinates, density exp(-|x|/scale) / (2 scale).

    Args:
        scale: Mean magnitude, > 0.
    """
    return LaplaceCoordinates(
        partial(_logpdf, scale=scale), partial(_cdf, scale=scale), partial(_ppf, scale=scale),
        lipschitz=1.0 / scale, scale=scale,
    )  # fmt: skip


@dataclass(frozen=True)
class Laplace:
    """Independent Laplace noise: density prod_i exp(-|z_i|/scale) / (2 scale).

    Privacy loss of a shift v: L(o) = (|o|_1 - |o - v|_1) / scale, never beyond |v|_1 / scale
    (Dwork, McSherry, Nissim and Smith (2006), Proposition 1).

    Args:
        scale: Mean magnitude of one coordinate, absolute (not in units of clip), in (0, inf).
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: Length of the noise vector, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> float(Laplace(scale=2.0).privacy_loss(np.array([9.0, -9.0, 0.5]), np.array([1.0, 1.0, 1.0])))
    0.0
    """

    name: ClassVar[str] = "laplace"
    summary: ClassVar[str] = "independent Laplace noise of one fixed scale"
    domains: ClassVar[dict[str, Domain]] = {
        "scale": Domain(0.0, math.inf, (0.5, 50.0), "mean magnitude of one coordinate's noise", length_power=1),
    }

    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)

    @property
    def structure(self) -> LaplaceCoordinates:
        """Independent Laplace coordinates."""
        return laplace_law(float(self.scale))

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        Raises:
            ValueError: The dimension is not set.
        """
        return rng.laplace(0.0, self.scale, (size, require_dimension(self)))

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = (|o|_1 - |o - v|_1) / scale, Q centred at 0 and P at v.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,).

        Raises:
            ValueError: The shapes do not fit.
        """
        return np.asarray(magnitude_drop(*aligned(output, shift)).sum(axis=-1) / self.scale)
