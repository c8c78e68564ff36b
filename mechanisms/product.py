"""Product noise: a half-normal radius times an independent uniform direction."""

import math
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import numpy as np
from scipy.special import erf, erfinv

from dpaudit.mechanisms.base import Array, Domain, HalfNormalRadius, require_dimension, validate_fields
from dpaudit.mechanisms.numerics import aligned, log_ratio


def _radius_logpdf(r: Array, sigma: float) -> Array:
    r = np.asarray(r, dtype=np.float64)
    value = -0.5 * np.square(r / sigma) - math.log(sigma) + 0.5 * math.log(2 / math.pi)
    return np.asarray(np.where(r >= 0, value, -np.inf))


def _radius_cdf(r: Array, sigma: float) -> Array:
    return np.asarray(erf(np.maximum(r, 0.0) / sigma / math.sqrt(2)))


def _radius_ppf(p: Array, sigma: float) -> Array:
    return np.asarray(sigma * math.sqrt(2) * erfinv(p))


@dataclass(frozen=True)
class Product:
    """Product noise z = sigma R h: R ~ chi_1 (half-normal) and h uniform on the unit sphere of R^n, independent.

    Its density in R^n is proportional to r^-(n-1) exp(-r^2 / (2 sigma^2)) at distance r. A shift v has the exact
    privacy loss L(o) = (r_Q^2 - r_P^2) / (2 sigma^2) + (n-1) log(r_Q / r_P), r_Q = |o|_2, r_P = |o - v|_2: the
    second term, from the two centres of the polar coordinates, is what the paper's Proposition 3 leaves out
    (mechanism: product, eq. (2)).

    Args:
        sigma: Scale of the radius, absolute, in (0, inf): E|z|_2^2 = sigma^2 in any dimension.
        clip: Bound on the l_p norm of one record's contribution, in (0, inf).
        clip_norm: That p, in [1, inf].
        dimension: n, at least 2, None until a model fixes it.

    Raises:
        TypeError, ValueError: A field is outside its domain.

    >>> loss = Product(sigma=1.0).privacy_loss(np.array([1.0, 1.0]), np.array([1.0, 0.0]))
    >>> round(float(loss), 6)  # 1/2 + log(2)/2
    0.846574
    """

    name: ClassVar[str] = "product"
    summary: ClassVar[str] = "half-normal radius times a uniform direction, in at least 2 dimensions"
    domains: ClassVar[dict[str, Domain]] = {
        "sigma": Domain(0.0, math.inf, (1.0, 5000.0), "root mean square of the noise vector's length", length_power=1),
    }

    sigma: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = None

    def __post_init__(self) -> None:
        validate_fields(self)
        if self.dimension is not None and self.dimension < 2:
            raise ValueError(f"Expected dimension={self.dimension!r} in [2, inf): product noise has a direction.")

    @property
    def structure(self) -> HalfNormalRadius:
        """A half-normal radius in a uniform direction."""
        sigma = float(self.sigma)
        laws = (partial(law, sigma=sigma) for law in (_radius_logpdf, _radius_cdf, _radius_ppf))
        return HalfNormalRadius(*laws, sigma=sigma)

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension).

        Raises:
            ValueError: The dimension is not set.
        """
        direction = rng.standard_normal((size, require_dimension(self)))
        radius = np.abs(rng.normal(0.0, self.sigma, size))
        direction *= (radius / np.linalg.norm(direction, axis=1))[:, None]
        return direction

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ = (r_Q^2 - r_P^2)/(2 sigma^2) + (n-1) log(r_Q/r_P), Q centred at 0 and P at v.

        +inf at the centre of P, -inf at the centre of Q, where the density has a pole.

        Args:
            output: o, shape (..., n).
            shift: v, shape (n,), n at least 2.

        Raises:
            ValueError: The shapes do not fit, or n is not the mechanism's dimension, or 1.
        """
        output, shift = aligned(output, shift, self.dimension)
        if len(shift) < 2:
            raise ValueError(f"Expected shift.shape={shift.shape} to be (n,) with n in [2, inf).")
        away = output - shift
        q2, p2 = (np.square(x / self.sigma).sum(axis=-1) for x in (output, away))
        # q2 - p2, which subtraction would lose far from both centres
        difference = 2.0 * (((output - 0.5 * shift) / self.sigma) @ (shift / self.sigma))
        return np.asarray(0.5 * (difference + (len(shift) - 1) * log_ratio(difference, q2, p2)))
