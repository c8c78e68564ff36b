"""Kinds of guarantee in which privacy is promised: pure, approximate, Gaussian, zero-concentrated, Renyi, a curve."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from dpaudit.mechanisms.base import Domain, keep_as_python_numbers
from dpaudit.mechanisms.quoting import shown

EPSILON = Domain(0.0, math.inf, (0.01, 20.0), "nats", closed_low=True)
DELTA = Domain(0.0, 1.0, (1e-10, 1e-3), "probability", closed_low=True)
MU = Domain(0.0, 1e150, (0.05, 8.0), "standard deviations", closed_low=True, closed_high=True)
RHO = Domain(0.0, 1e300, (1e-3, 10.0), "nats per order", closed_low=True, closed_high=True)  # that of such a mu
ORDER = Domain(1.0, 1e100, (1.1, 256.0), "order of the Renyi divergence", closed_high=True)


@dataclass(frozen=True)
class PureDP:
    """P(S) <= e^epsilon Q(S) for every event S, without a delta (Dwork, McSherry, Nissim and Smith 2006).

    Args:
        epsilon: At least 0.

    Raises:
        ValueError: epsilon is outside its domain.
    """

    kind: ClassVar[str] = "pure"
    epsilon: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        EPSILON.validate("epsilon", self.epsilon)

    def __str__(self) -> str:
        return f"pure epsilon={self.epsilon:.6g}"


@dataclass(frozen=True)
class ApproximateDP:
    """P(S) <= e^epsilon Q(S) + delta for every event S (Dwork et al. 2006): what a claim says when it names no kind.

    Args:
        epsilon: At least 0.
        delta: In [0, 1).

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "approximate"
    epsilon: float
    delta: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        EPSILON.validate("epsilon", self.epsilon)
        DELTA.validate("delta", self.delta)

    def __str__(self) -> str:
        return f"epsilon={self.epsilon:.6g} at delta={self.delta:.6g}"


@dataclass(frozen=True)
class GaussianDP:
    """No easier to tell apart than N(0, 1) and N(mu, 1) (Dong, Roth and Su 2022, Definition 4).

    Args:
        mu: At least 0.

    Raises:
        ValueError: mu is outside its domain.
    """

    kind: ClassVar[str] = "gdp"
    mu: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        MU.validate("mu", self.mu)

    def __str__(self) -> str:
        return f"Gaussian mu={self.mu:.6g}"


@dataclass(frozen=True)
class ZeroConcentratedDP:
    """Renyi divergence at most rho times its order, at every order above 1 (Bun and Steinke 2016, Definition 1.1).

    Args:
        rho: At least 0.

    Raises:
        ValueError: rho is outside its domain.
    """

    kind: ClassVar[str] = "zcdp"
    rho: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        RHO.validate("rho", self.rho)

    def __str__(self) -> str:
        return f"zero-concentrated rho={self.rho:.6g}"


@dataclass(frozen=True)
class RenyiDP:
    """Renyi divergence at most epsilon at one order (Mironov 2017, Definition 4).

    Args:
        order: Above 1.
        epsilon: At least 0.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "rdp"
    order: float
    epsilon: float

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        ORDER.validate("order", self.order)
        EPSILON.validate("epsilon", self.epsilon)

    def __str__(self) -> str:
        return f"Renyi epsilon={self.epsilon:.6g} at order {self.order:.6g}"


@dataclass(frozen=True)
class PrivacyCurve:
    """Several (epsilon, delta) that all hold.

    Args:
        points: (epsilon, delta) each, at least one.

    Raises:
        ValueError: There is no point, one is no pair, or a number is outside its domain.
    """

    kind: ClassVar[str] = "curve"
    points: tuple[tuple[float, float], ...]

    def __post_init__(self) -> None:
        if not isinstance(self.points, (list, tuple)) or not self.points:
            raise ValueError("Expected points to be one or more [epsilon, delta].")
        for point in self.points:
            if not isinstance(point, (list, tuple)) or len(point) != 2:
                raise ValueError(f"Expected every point to be [epsilon, delta], not {shown(point)}.")
            ApproximateDP(*point)
        object.__setattr__(self, "points", tuple((float(epsilon), float(delta)) for epsilon, delta in self.points))

    def __str__(self) -> str:
        return f"a curve through {len(self.points)} points (epsilon, delta)"


Guarantee = PureDP | ApproximateDP | GaussianDP | ZeroConcentratedDP | RenyiDP | PrivacyCurve
GUARANTEES: dict[str, type[Guarantee]] = {
    kind.kind: kind for kind in (PureDP, ApproximateDP, GaussianDP, ZeroConcentratedDP, RenyiDP, PrivacyCurve)
}


def check_guarantee(value: object) -> None:
    """Refuse what is no guarantee.

    Raises:
        TypeError: It is none; the message names the value and the rule.
    """
    if not isinstance(value, Guarantee):
        raise TypeError(f"Expected guarantee={shown(value)} to be a guarantee, such as PureDP(1.0).")


def guarantee_from_dict(data: Mapping[str, Any]) -> Guarantee:
    """A guarantee from a `[claim.guarantee]` table.

    Raises:
        TypeError: A number is not one.
        ValueError: The kind or a key is unknown, a key is missing, or a number is outside its domain.

    >>> guarantee_from_dict({"kind": "zcdp", "rho": 0.81})
    ZeroConcentratedDP(rho=0.81)
    """
    kind = data.get("kind")
    if not isinstance(kind, str) or kind not in GUARANTEES:
        raise ValueError(f"expected guarantee.kind={shown(kind)} among {', '.join(map(repr, GUARANTEES))}.")
    names = [field.name for field in fields(GUARANTEES[kind])]
    keys = {key: value for key, value in data.items() if key != "kind"}
    unknown = sorted(set(keys) - set(names))
    if unknown:
        raise ValueError(f"unknown key 'guarantee.{unknown[0]}': expected {', '.join(names)} with kind {kind!r}.")
    missing = [name for name in names if name not in keys]
    if missing:
        raise ValueError(f"expected guarantee.{missing[0]} to be given with kind {kind!r}.")
    return GUARANTEES[kind](**keys)


def guarantee_to_dict(guarantee: Guarantee) -> dict[str, Any]:
    """Its `[claim.guarantee]` table.

    >>> guarantee_to_dict(PrivacyCurve(((1.0, 1e-5),)))
    {'kind': 'curve', 'points': [[1.0, 1e-05]]}
    """
    keys = {field.name: getattr(guarantee, field.name) for field in fields(guarantee)}
    if isinstance(guarantee, PrivacyCurve):
        keys = {"points": [list(point) for point in guarantee.points]}
    return {"kind": guarantee.kind, **keys}
