"""Hypothesis strategies for mechanisms and questions to accountants, drawn from the declared domains.

Numbers are round (at most three digits) and shrink towards rounder ones, so that a counterexample can be read.
"""

import math
import operator
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hypothesis
from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy

from dpaudit.mechanisms.base import CLIP, DIMENSION, Domain, Mechanism, keep_as_python_numbers
from dpaudit.mechanisms.registry import MECHANISMS, to_dict
from dpaudit.verify.claims import SAMPLING_PROB, STEPS
from dpaudit.verify.guarantees import DELTA

CLIP_NORMS = (2.0, 1.0, 3.0, math.inf)
DIGITS = 3
NARROWEST_DECADE = 10  # mantissas
USUAL_DELTA = 1e-5
LARGEST_MU = 10.0  # mu; beyond it epsilon is in the hundreds and a grid of losses takes gigabytes


@dataclass(frozen=True)
class Setting:
    """One question to an accountant: what do `steps` Poisson-sampled releases of the mechanism cost at delta?

    Args:
        mechanism: The noise, with its clipping.
        sampling_prob: q in (0, 1].
        steps: T, at least 1.
        delta: In [0, 1).
    """

    mechanism: Mechanism
    sampling_prob: float
    steps: int
    delta: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)

    def to_dict(self) -> dict[str, Any]:
        """The JSON object of this setting."""
        return {**vars(self), "mechanism": to_dict(self.mechanism)}


def _mantissas(low: float, high: float, exponent: int) -> tuple[int, int]:
    """The first and last three-digit m with low <= m 10^(exponent-2) <= high; empty where the first is larger."""
    unit = 10.0 ** (exponent - DIGITS + 1)
    least, most = 10 ** (DIGITS - 1), 10**DIGITS - 1
    return max(least, math.ceil(low / unit - 1e-9)), min(most, math.floor(high / unit + 1e-9))


def round_numbers(low: float, high: float, *, near: float = 1.0, integer: bool = False) -> SearchStrategy[float]:
    """Numbers of at most three digits, every power of ten as likely; shrinks to few digits near `near`.

    Args:
        low: Least value, > 0.
        high: Largest value.
        near: The simplest value, > 0.
        integer: Whether they are whole; low and high are then, too.

    Raises:
        ValueError: 0 < low <= high does not hold, or no number of three digits is between them.

    >>> quiet = hypothesis.settings(database=None)
    >>> hypothesis.find(round_numbers(1e-10, 1e-3, near=1e-5), lambda x: True, settings=quiet)
    1e-05
    """
    if not 0 < low <= high < math.inf:
        raise ValueError(f"Expected low={low!r} in (0, high={high!r}].")
    exponents = range(math.floor(math.log10(low)), math.floor(math.log10(high)) + 1)
    fit = [exponent for exponent in exponents if operator.le(*_mantissas(low, high, exponent))]
    if not fit:
        raise ValueError(f"Expected a number of at most {DIGITS} digits in [low={low!r}, high={high!r}].")
    fit.sort(key=lambda e: (abs(e - math.log10(near)), e))
    # a lone end of the range, such as 1 of (0, 1], must not be drawn as often as a whole power of ten
    whole = [exponent for exponent in fit if -operator.sub(*_mantissas(low, high, exponent)) > NARROWEST_DECADE]
    return _round_number(low, high, fit + 2 * whole, integer)


@st.composite
def _round_number(draw: st.DrawFn, low: float, high: float, exponents: list[int], integer: bool) -> float:
    exponent, digits = draw(st.sampled_from(exponents)), draw(st.integers(1, DIGITS))
    mantissa = draw(st.integers(*_mantissas(low, high, exponent)))
    value = float(f"{float(f'{mantissa}e{exponent - DIGITS + 1}'):.{digits - 1}e}")
    value = float(round(value)) if integer else value
    return min(max(value, low), high)  # rounding to fewer digits may leave the range


def _typical(domain: Domain, *, near: float = 1.0) -> SearchStrategy[float]:
    return round_numbers(*domain.typical, near=near, integer=domain.integer)


def mechanisms(
    names: Sequence[str] | None = None,
    *,
    dimension: SearchStrategy[int] | None = None,
    clip_norm: SearchStrategy[float] | None = None,
) -> SearchStrategy[Mechanism]:
    """Mechanisms with parameters from the typical ranges of their declared domains.

    Args:
        names: Which of the registered ones; all by default.
        dimension: Number of coordinates; by default from the typical range.
        clip_norm: p of the clipping norm; by default 2, 1, 3 or inf.

    Raises:
        ValueError: An unknown name.
    """
    chosen = list(MECHANISMS) if names is None else list(names)
    for name in chosen:
        if name not in MECHANISMS:
            raise ValueError(f"Expected name={name!r} to be one of {', '.join(MECHANISMS)}.")
    first, last = (int(end) for end in DIMENSION.typical)
    common = {
        "clip": _typical(CLIP),
        "clip_norm": st.sampled_from(CLIP_NORMS) if clip_norm is None else clip_norm,
        "dimension": st.integers(first, last) if dimension is None else dimension,
    }
    return st.one_of([_mechanism(name, common) for name in chosen])


@st.composite
def _mechanism(draw: st.DrawFn, name: str, common: dict[str, SearchStrategy[Any]]) -> Mechanism:
    kind = MECHANISMS[name]
    values = {key: draw(_typical(domain)) for key, domain in kind.domains.items()}
    values |= {key: draw(strategy) for key, strategy in common.items()}
    try:
        mechanism: Mechanism = kind(**values)
    except ValueError:  # a rule across fields, such as that a direction needs two coordinates
        hypothesis.reject()
    return mechanism


def accountant_settings(mechanism: SearchStrategy[Mechanism]) -> SearchStrategy[Setting]:
    """Questions to an accountant about the drawn mechanisms: rate, steps and delta from their typical ranges.

    Args:
        mechanism: Which mechanisms are asked about.
    """
    return st.builds(
        Setting,
        mechanism=mechanism,
        sampling_prob=_typical(SAMPLING_PROB),
        steps=_typical(STEPS).map(int),
        delta=_typical(DELTA, near=USUAL_DELTA),
    )


@st.composite
def gaussian_settings(draw: st.DrawFn) -> Setting:
    """Questions about Gaussian DP-SGD with clip 1, up to mu = q sqrt(T (e^(1/sigma^2) - 1)) = 10.

    Beyond it epsilon is above 100, and grid accountants need gigabytes.

    Args:
        draw: Given by Hypothesis.
    """
    gaussian = MECHANISMS["gaussian"]
    mechanism = gaussian(draw(_typical(gaussian.domains["noise_multiplier"])))
    sampling_prob = draw(_typical(SAMPLING_PROB))
    limit = (LARGEST_MU / sampling_prob) ** 2 / math.expm1(mechanism.noise_multiplier**-2.0)
    steps = draw(round_numbers(1.0, min(max(limit, 1.0), STEPS.typical[1]), integer=True))
    return Setting(mechanism, sampling_prob, int(steps), draw(_typical(DELTA, near=USUAL_DELTA)))


def aim_at_violation(delta_lower: float, delta_claimed: float) -> None:
    """Let Hypothesis climb towards log(delta_lower / delta_claimed) > 0; silent where that is not finite.

    Args:
        delta_lower: Certified lower bound on delta at the claimed epsilon, in [0, 1].
        delta_claimed: In [0, 1).
    """
    if delta_lower > 0 and delta_claimed > 0:
        hypothesis.target(math.log(delta_lower / delta_claimed), label="log(delta_lower / delta_claimed)")
