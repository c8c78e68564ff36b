"""What every noise mechanism is: declared parameters, exact privacy loss, a sampler, and a STRUCTURE.

Proof engines look only at the structure, never at the class, so a new mechanism that declares one of the
structures below is verified, trained and audited without a line of change elsewhere.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any, ClassVar, Protocol, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.quoting import shown

Array = NDArray[np.float64]
Function = Callable[[Array], Array]


@dataclass(frozen=True)
class Domain:
    """The values a parameter may take, and the range in which it is typically used.

    One declaration drives validation, the docs, and the property tests (which draw from `typical`).

    Args:
        low: Lower end; excluded unless `closed_low`.
        high: Upper end; excluded unless `closed_high`.
        typical: (low, high) of ordinary use, inside the domain.
        unit: What the number is measured in, for docs and listings.
        length_power: Power of the contributions' unit of length in it: 1 for the size of absolute noise, -1 for its
            inverse, 0 for a pure number.
    """

    low: float
    high: float
    typical: tuple[float, float]
    unit: str
    closed_low: bool = False
    closed_high: bool = False
    integer: bool = False
    length_power: int = 0

    def __str__(self) -> str:
        kind = "the integers of " if self.integer else ""
        return f"{kind}{'[' if self.closed_low else '('}{self.low:g}, {self.high:g}{']' if self.closed_high else ')'}"

    def validate(self, name: str, value: object) -> None:
        """Refuse a value outside the domain.

        Raises:
            TypeError: The value is not a real number (bool is not one).
            ValueError: The value is NaN or outside the domain, or a float where an integer is needed; the message
                names the value and the rule.
        """
        if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
            raise TypeError(f"Expected {name}={shown(value)} to be a number in {self}.")
        try:
            number = float(value)
        except OverflowError:
            raise ValueError(f"Expected {name} in {self}, and within the range of floats.") from None
        above = number >= self.low if self.closed_low else number > self.low
        below = number <= self.high if self.closed_high else number < self.high
        pointed = self.integer and not isinstance(value, (int, np.integer))
        if not (above and below) or pointed:
            point = ", without a point or an exponent" if pointed and number.is_integer() else ""
            raise ValueError(f"Expected {name}={shown(value)} in {self}{point}.")


CONFIDENCE = Domain(0.0, 1.0, (0.9, 0.99), "probability")
SEED = Domain(0, math.inf, (0, 2**32), "seed", closed_low=True, integer=True)


def generator(name: str, rng: object) -> np.random.Generator:
    """The source of randomness that was given, or the one of a seed.

    Args:
        name: Of the parameter.
        rng: A generator, which is returned, or an integer of at least 0.

    Raises:
        TypeError: It is neither; the message names the value and the rule.
        ValueError: The seed is below 0.
    """
    if isinstance(rng, np.random.Generator):
        return rng
    if isinstance(rng, bool) or not isinstance(rng, (int, np.integer)):
        raise TypeError(f"Expected {name}={shown(rng)} to be a generator or a seed, an integer of at least 0.")
    SEED.validate(name, rng)
    return np.random.default_rng(rng)


def validate_function(name: str, value: object, signature: str) -> None:
    """Refuse what cannot be called.

    Args:
        name: Of the parameter.
        value: What was given for it.
        signature: What it takes and returns, as "(rng, size) -> outputs".

    Raises:
        TypeError: It cannot be called; the message names the value and the rule.
    """
    if not callable(value):
        raise TypeError(f"Expected {name}={shown(value)} to be a function {signature}.")


def usual_errors() -> np.errstate:
    """NumPy's own answers to float errors, as a context or a decorator, whatever a caller has set."""
    return np.errstate(divide="warn", over="warn", under="ignore", invalid="warn")


def keep_as_python_numbers(owner: Any) -> None:
    """Turn the NumPy scalars among a frozen dataclass's fields into int and float; called first in `__post_init__`.

    What is computed from a float32 is rounded to float32, and from an int16 wraps around: too coarse for a proof.
    Integers beyond NumPy's own become floats, where they are within reach of one.
    """
    for name, value in _plain_numbers(owner).items():
        object.__setattr__(owner, name, value)


def in_python_numbers(owner: Any) -> Any:
    """Anybody's dataclass with int and float in place of the NumPy scalars among its fields; else what it is."""
    changed = _plain_numbers(owner) if is_dataclass(owner) else {}
    return replace(owner, **changed) if changed else owner


def _plain_numbers(owner: Any) -> dict[str, int | float]:
    """The fields that hold NumPy's scalars, as Python's numbers, and integers that NumPy has no type for, as floats."""
    given = {field.name: getattr(owner, field.name) for field in fields(owner) if field.init}
    return {
        name: int(value) if isinstance(value, np.integer) else float(value)
        for name, value in given.items()
        if isinstance(value, (np.integer, np.floating)) or (type(value) is int and 2**63 <= abs(value) < 2**1000)
    }


SEEN_AT = np.array([0.6, 0.9, 0.999])  # probabilities at which noise is seen to be scaled
MULTIPLES_OF_CLIP = "multiples of clip"  # unit of noise that is given relative to the clip
CLIP = Domain(0.0, math.inf, (0.1, 10.0), "norm of one record's contribution", length_power=1)
CLIP_NORM = Domain(1.0, math.inf, (1.0, 4.0), "order p of the l_p norm", closed_low=True, closed_high=True)
DIMENSION = Domain(1, math.inf, (1, 64), "coordinates", closed_low=True, integer=True)
COMMON = {"clip": CLIP, "clip_norm": CLIP_NORM, "dimension": DIMENSION}  # fields of every mechanism beside its noise


@dataclass(frozen=True)
class IIDCoordinates:
    """Noise whose coordinates are independent with one symmetric unimodal law.

    Args:
        logpdf: Log-density of one coordinate; vectorised.
        cdf: Distribution function of one coordinate; vectorised. By symmetry P(X > x) = cdf(-x).
        ppf: Inverse of `cdf`; vectorised.
        lipschitz: A proved Lipschitz constant of the log-density, else None.
        log_convex: Whether it is proved that log f is convex on (0, inf), as for mixtures of exponentials.
        reciprocal_convex: Whether besides that 1/f is convex there, as for heavy tails.
    """

    logpdf: Function
    cdf: Function
    ppf: Function
    lipschitz: float | None = None
    log_convex: bool = False
    reciprocal_convex: bool = False


@dataclass(frozen=True, kw_only=True)
class PowerCoordinates(IIDCoordinates):
    """Independent coordinates of an exponential power law, density ~ exp(-(|x|/scale)^beta): log-concave.

    Args:
        beta: The power, at least 1.
    """

    beta: float


@dataclass(frozen=True, kw_only=True)
class NormalCoordinates(PowerCoordinates):
    """Independent N(0, sigma^2) coordinates.

    Args:
        sigma: Standard deviation, > 0.
    """

    beta: float = 2.0
    sigma: float


@dataclass(frozen=True, kw_only=True)
class LaplaceCoordinates(PowerCoordinates):
    """Independent Laplace coordinates, density exp(-|x|/scale) / (2 scale).

    Args:
        scale: Mean magnitude, > 0.
    """

    beta: float = 1.0
    scale: float


@dataclass(frozen=True, kw_only=True)
class LomaxCoordinates(IIDCoordinates):
    """Independent two-sided Lomax coordinates, density (k theta/2) (1 + theta |x|)^-(k+1): heavy tails.

    Args:
        k: Shape, > 0.
        theta: Inverse of the length scale, > 0.
    """

    k: float
    theta: float


@dataclass(frozen=True)
class Radial:
    """Noise R h: a radius R times an independent uniform direction h, with a radially decreasing density.

    Args:
        radius_logpdf: Log-density of R on (0, inf); vectorised.
        radius_cdf: Distribution function of R; vectorised.
        radius_ppf: Inverse of `radius_cdf`; vectorised.
    """

    radius_logpdf: Function
    radius_cdf: Function
    radius_ppf: Function


@dataclass(frozen=True, kw_only=True)
class HalfNormalRadius(Radial):
    """Noise whose radius is |N(0, sigma^2)|.

    Args:
        sigma: Root mean square of the radius, > 0.
    """

    sigma: float


@dataclass(frozen=True)
class ScaleMixture:
    """Noise that is iid given ONE hidden scale u, drawn once per vector.

    Args:
        given: The law of the coordinates given a scalar u.
        scale_cdf: Distribution function of u; vectorised.
        scale_sf: Survival function of u, accurate in the far tail; vectorised.
        scale_ppf: Inverse of `scale_cdf`; vectorised.
        scale_isf: Inverse of `scale_sf`; vectorised.
        scale_logpdf: Log-density of u; vectorised.
    """

    given: Callable[[float], IIDCoordinates]
    scale_cdf: Function
    scale_sf: Function
    scale_ppf: Function
    scale_isf: Function
    scale_logpdf: Function


@dataclass(frozen=True, kw_only=True)
class GammaScale(ScaleMixture):
    """Noise whose hidden scale u has a Gamma law, density proportional to u^(shape - 1) exp(-u/scale).

    Args:
        shape: > 0.
        scale: In units of u, > 0.
    """

    shape: float
    scale: float


Structure = IIDCoordinates | Radial | ScaleMixture


@runtime_checkable
class Mechanism(Protocol):
    """A noise mechanism: additive noise on the SUM of clipped per-record contributions.

    Implementations are frozen dataclasses whose fields are the noise parameters, then `clip` (bound on one
    record's contribution), `clip_norm` (the p of its l_p norm) and `dimension` (None until a model fixes it).
    """

    name: ClassVar[str]
    summary: ClassVar[str]
    domains: ClassVar[dict[str, Domain]]  # the noise parameters only; clip, clip_norm, dimension are common

    @property
    def clip(self) -> float: ...

    @property
    def clip_norm(self) -> float: ...

    @property
    def dimension(self) -> int | None: ...

    @property
    def structure(self) -> Structure:
        """The shape of the noise law, which decides what can be proved about it."""
        ...

    def sample(self, rng: np.random.Generator, size: int) -> Array:
        """Draw `size` independent noise vectors, shape (size, dimension)."""
        ...

    def privacy_loss(self, output: Array, shift: Array) -> Array:
        """log dP/dQ at outputs of shape (..., n): Q is the noise centred at 0, P centred at `shift` of shape (n,)."""
        ...


def validate_fields(mechanism: Any) -> None:
    """Check every field of a mechanism against its declared domain; called from `__post_init__`.

    NumPy's scalars become Python's numbers.

    Raises:
        TypeError: A field is not a number.
        ValueError: A field is outside its domain; the message names the value and the rule.
    """
    keep_as_python_numbers(mechanism)
    for field in fields(mechanism):
        value = getattr(mechanism, field.name)
        if field.name == "dimension" and value is None:
            continue
        (mechanism.domains.get(field.name) or COMMON[field.name]).validate(field.name, value)


def at_clip(mechanism: Mechanism, clip: float) -> Any:
    """The same release in another unit of length: clip and absolute noise multiplied alike, at the same cost.

    Args:
        mechanism: In any unit.
        clip: Its clip in the new one, > 0.

    >>> from dpaudit.mechanisms import GammaPLRV
    >>> at_clip(GammaPLRV(k=3.0, theta=0.5), 2.0).theta
    0.25
    """
    factor = clip / float(mechanism.clip)
    noise = {
        name: getattr(mechanism, name) * factor**domain.length_power
        for name, domain in mechanism.domains.items()
        if domain.length_power
    }
    return replace(cast(Any, mechanism), clip=clip, **noise)


def with_noise_factor(mechanism: Mechanism, factor: float) -> Mechanism:
    """The same clipping with noise of the same family, every draw of it multiplied by a number.

    Args:
        mechanism: With its noise as accounted.
        factor: In (0, inf); 0.5 is half the noise.

    Raises:
        ValueError: Its fields would leave their domains, or these do not say how the noise scales.

    >>> from dpaudit.mechanisms import Gaussian, Laplace
    >>> with_noise_factor(Laplace(scale=2.0), 0.5).scale, with_noise_factor(Gaussian(noise_multiplier=2.0), 0.5).sigma
    (1.0, 1.0)
    """
    powers = {
        name: 1.0 if domain.unit == MULTIPLES_OF_CLIP else domain.length_power
        for name, domain in getattr(mechanism, "domains", {}).items()
    }
    noise = {name: getattr(mechanism, name) * factor**power for name, power in powers.items() if power}
    found = cast(Mechanism, replace(cast(Any, mechanism), **noise))
    wanted, sizes = factor * _sizes(mechanism.structure), _sizes(found.structure)
    known = np.isfinite(wanted) & np.isfinite(sizes)
    if not np.allclose(sizes[known], wanted[known], rtol=1e-6, atol=1e-300):  # of a user's mechanism
        raise ValueError(f"Expected the domains of {mechanism.name} to say by length_power what scales with its noise.")
    return found


def _sizes(noise: Structure) -> Array:
    """Some quantiles of the size of a coordinate or of a radius, with a hidden scale given each of its quantiles."""
    if isinstance(noise, ScaleMixture):
        return np.concatenate([_sizes(noise.given(float(scale))) for scale in noise.scale_ppf(SEEN_AT)])
    return noise.radius_ppf(SEEN_AT) if isinstance(noise, Radial) else noise.ppf(SEEN_AT)


def with_dimension(mechanism: Mechanism, dimension: int) -> Mechanism:
    """The same noise on vectors of another length.

    Args:
        mechanism: Its dimension may still be None.
        dimension: Coordinates, at least 1.

    >>> from dpaudit.mechanisms import Laplace
    >>> with_dimension(Laplace(scale=2.0), 3)
    Laplace(scale=2.0, clip=1.0, clip_norm=2.0, dimension=3)
    """
    return cast(Mechanism, replace(cast(Any, mechanism), dimension=dimension))


def require_dimension(mechanism: Mechanism) -> int:
    """A mechanism's dimension; a ValueError that says how to set it where it is None."""
    if mechanism.dimension is None:
        raise ValueError(f"Expected {mechanism.name}.dimension to be set: it fixes the length of the noise vector.")
    return int(mechanism.dimension)
