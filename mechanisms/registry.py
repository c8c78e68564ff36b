"""The mechanisms by name: from a table in a file to a mechanism, and back."""

import math
from collections.abc import Iterable, Mapping
from dataclasses import MISSING, fields
from difflib import get_close_matches
from typing import Any

from dpaudit.mechanisms.base import COMMON, Mechanism
from dpaudit.mechanisms.gamma_plrv import GammaPLRV
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.gamma_scale_laplace import GammaScaleLaplace
from dpaudit.mechanisms.gaussian import Gaussian
from dpaudit.mechanisms.generalized_gaussian import GeneralizedGaussian
from dpaudit.mechanisms.laplace import Laplace
from dpaudit.mechanisms.product import Product
from dpaudit.mechanisms.quoting import shown

# a new mechanism is one more line here: conformance tests, command line, training and proofs follow
_KINDS: tuple[type[Mechanism], ...] = (
    Gaussian,
    Laplace,
    GammaPLRV,
    GammaPLRVIID,
    Product,
    GeneralizedGaussian,
    GammaScaleLaplace,
)

MECHANISMS: dict[str, type[Any]] = {kind.name: kind for kind in _KINDS}


def from_dict(data: Mapping[str, Any]) -> Mechanism:
    """A mechanism from its name and fields, as recipes and claims files hold them.

    Args:
        data: "name" and the mechanism's fields; clip_norm may be the string "inf", dimension may be None or absent.

    Raises:
        TypeError: `data` is no mapping, or a value is no number.
        ValueError: An unknown name or key, a missing one, or a value outside its domain.

    >>> from_dict({"name": "laplace", "scale": 2.0, "clip_norm": 1})
    Laplace(scale=2.0, clip=1.0, clip_norm=1, dimension=None)
    >>> from_dict({"name": "laplace", "scael": 2.0})
    Traceback (most recent call last):
    ValueError: Expected 'scael' to be a key of laplace: did you mean 'scale'?
    """
    if not isinstance(data, Mapping):
        raise TypeError(f"Expected a mechanism as a table of name and parameters, not {type(data).__name__}.")
    if "name" not in data:
        raise ValueError(f"Expected a mechanism to have a name: {_listed(MECHANISMS)}.")
    name = data["name"]
    if not isinstance(name, str) or name not in MECHANISMS:
        raise ValueError(f"Expected name={shown(name)} to be a mechanism: {_suggestion(name, MECHANISMS)}")
    mechanism = MECHANISMS[name]
    parameters = {field.name: field for field in fields(mechanism)}
    for key in data:
        if key != "name" and key not in parameters:
            raise ValueError(f"Expected {shown(key)} to be a key of {name}: {_suggestion(key, parameters)}")
    for key, field in parameters.items():
        if field.default is MISSING and key not in data:
            raise ValueError(f"Expected {name} to have {key}, in {mechanism.domains[key]}.")
    values = {key: value for key, value in data.items() if key != "name"}
    if values.get("clip_norm") == "inf":
        values["clip_norm"] = math.inf
    try:
        result: Mechanism = mechanism(**values)
    except OverflowError as error:  # an integer that no float can hold
        raise ValueError(f"Expected every parameter of {name} to be within the range of floats.") from error
    return result


def to_dict(mechanism: Mechanism) -> dict[str, Any]:
    """A mechanism's name and fields, ready for JSON: an infinite clip_norm as "inf", no dimension if it is None.

    >>> to_dict(Laplace(scale=2, clip_norm=math.inf, dimension=3))
    {'name': 'laplace', 'scale': 2.0, 'clip': 1.0, 'clip_norm': 'inf', 'dimension': 3}
    """
    data: dict[str, Any] = {"name": mechanism.name}
    for field in fields(mechanism):  # type: ignore[arg-type]  # the protocol's implementations are dataclasses
        value = getattr(mechanism, field.name)
        if field.name == "dimension":
            if value is not None:
                data["dimension"] = int(value)
        else:
            data[field.name] = "inf" if math.isinf(value) else float(value)
    return data


def describe() -> list[dict[str, Any]]:
    """The registered mechanisms with their parameters, a row for each.

    Returns:
        Rows of {"name", "summary", "parameters"}, the latter rows of {"name", "domain", "unit", "typical"}, as text.

    >>> [row["name"] for row in describe()][:3]
    ['gaussian', 'laplace', 'gamma-plrv']
    """
    return [
        {
            "name": name,
            "summary": mechanism.summary,
            "parameters": [
                {
                    "name": parameter,
                    "domain": str(domain),
                    "unit": domain.unit,
                    "typical": "{:g} to {:g}".format(*domain.typical),
                }
                for parameter, domain in {**mechanism.domains, **COMMON}.items()
            ],
        }
        for name, mechanism in MECHANISMS.items()
    ]


def _listed(names: Iterable[str]) -> str:
    return "one of " + ", ".join(names)


def _suggestion(word: object, names: Iterable[str]) -> str:
    """How the sentence about an unknown word ends: the nearest known one, or all of them."""
    names = list(names)
    near = get_close_matches(str(word), names, n=1)
    return f"did you mean {near[0]!r}?" if near else f"{_listed(names)}."
