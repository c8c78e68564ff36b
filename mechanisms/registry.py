"""The mechanisms by name, and their JSON."""

import math
from collections.abc import Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from dpaudit.mechanisms.base import CLIP, CLIP_NORM, DIMENSION, Mechanism
from dpaudit.mechanisms.gamma_plrv import GammaPLRV
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.gaussian import Gaussian
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.laplace import Laplace
from dpaudit.mechanisms.product import Product

MECHANISMS: dict[str, type[Any]] = {
    cls.name: cls
    for cls in (
        Gaussian,
        Laplace,
        GammaPLRV,
        GammaPLRVIID,
        Product,
        GeneralizedGaussian,
    )
}


def from_dict(data: Mapping[str, Any]) -> Mechanism:
    """A mechanism from its `name` and parameters.

    Raises:
        ValueError: Unknown name or key, a missing or out-of-domain parameter; named, with a suggestion where near.
        TypeError: A parameter is not a number.

    >>> from_dict({"name": "laplace", "scale": 2.0})
    Laplace(scale=2.0, clip=1.0, clip_norm=2.0, dimension=None)
    """
    name = data.get("name")
    cls = MECHANISMS.get(name) if isinstance(name, str) else None
    if cls is None:
        raise ValueError(f"Expected mechanism name={name!r} among {', '.join(MECHANISMS)}{_suggest(name, MECHANISMS)}.")
    known = {field.name: field for field in fields(cls)}
    given = {key: _number(value) for key, value in data.items() if key != "name"}
    for key in given:
        if key not in known:
            raise ValueError(f"Unknown key {key!r} of {name}: expected {', '.join(known)}{_suggest(key, known)}.")
    for key, field in known.items():
        if key not in given and field.default is MISSING:
            raise ValueError(f"Expected {name} to have {key}.")
    mechanism: Mechanism = cls(**given)
    return mechanism


def to_dict(mechanism: Mechanism) -> dict[str, Any]:
    """The inverse of `from_dict`, ready for JSON: infinity is "inf", an unset dimension is left out."""
    values = {field.name: getattr(mechanism, field.name) for field in fields(mechanism)}  # type: ignore[arg-type]
    plain = {key: "inf" if value == math.inf else value for key, value in values.items() if value is not None}
    return {"name": mechanism.name, **plain}


def describe() -> list[dict[str, Any]]:
    """Name, summary and parameters of every mechanism, for listings."""
    common = {"clip": CLIP, "clip_norm": CLIP_NORM, "dimension": DIMENSION}
    return [
        {
            "name": name,
            "summary": cls.summary,
            "parameters": [
                {"name": key, "domain": str(domain), "unit": domain.unit,
                 "typical": f"{domain.typical[0]:g} to {domain.typical[1]:g}"}
                for key, domain in {**cls.domains, **common}.items()
            ],
        }
        for name, cls in MECHANISMS.items()
    ]


def _number(value: Any) -> Any:
    return math.inf if value == "inf" else value


def _suggest(word: object, known: Mapping[str, Any]) -> str:
    near = get_close_matches(str(word), list(known), n=1)
    return f" (did you mean {near[0]!r}?)" if near else ""
