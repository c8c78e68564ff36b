"""The tables of a recipe, with the values that each key may take."""

import json
from collections.abc import Callable, Mapping, Set
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.registry import from_dict, to_dict

PROBABILITY = Field(gt=0, le=1)

_Rule = tuple[Callable[[Any], bool], str]
_TRUTH: _Rule = (lambda value: isinstance(value, bool), "true or false")
_WIDTH: _Rule = (lambda value: type(value) is int and 1 <= value <= 1_000_000, "an integer in 1..1000000")
KWARGS: dict[str, dict[str, _Rule]] = {"linear": {"bias": _TRUTH}, "fnn": {"hidden": _WIDTH}, "cnn": {}, "logistic": {}}

ON_MINIMA = ("output-perturbation", "approximate-minima")
NETWORKS = ("linear", "fnn", "cnn")  # what DP-FTRL and schedules are for
KEYS: dict[str, tuple[set[str], set[str]]] = {  # algorithm: (keys it needs, keys it may have besides)
    "dp-sgd": ({"steps", "sampling"}, {"schedule"}),
    "dp-ftrl": ({"steps", "batches"}, {"sampling"}),
    "output-perturbation": ({"regularization"}, {"steps", "sampling"}),
    "approximate-minima": ({"regularization", "gradient_norm", "output_mechanism"}, {"loss", "steps", "sampling"}),
}

Positive = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class Table(BaseModel):
    """Unknown keys, wrong types, NaN and infinity are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False)


class DatasetTable(Table):
    """[dataset]: one of `name` and `file`, and the part of it that is used; see `datasets.load`."""

    name: str | None = None
    file: str | None = None
    classes: list[int] | None = None
    records: int | list[int] | None = None
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")] | None = None

    @model_validator(mode="after")
    def _one_source(self) -> Self:
        if (self.name is None) == (self.file is None):
            raise ValueError("Expected exactly one of name and file.")
        return self

    @field_validator("records", mode="before")
    @classmethod
    def _records(cls, value: Any) -> Any:
        return count_or_indices(value, least=1)


class ArchitectureTable(Table):
    """[architecture]: "linear", "fnn", "cnn", "logistic", or the user's own as "my_model.py:build"."""

    name: str
    kwargs: dict[str, Any] = Field(default_factory=dict)

    @property
    def custom(self) -> bool:
        """Whether the user's own code builds it."""
        return ":" in self.name

    @model_validator(mode="after")
    def _known(self) -> Self:
        if not self.custom:
            if self.name not in KWARGS:
                raise ValueError(f"Expected name={self.name!r} among {', '.join(KWARGS)}, or 'my_model.py:build'.")
            for key, value in self.kwargs.items():
                if key not in KWARGS[self.name]:
                    known = ", ".join(KWARGS[self.name]) or "none"
                    raise ValueError(f"Expected kwargs.{key} among those of {self.name}: {known}.")
                holds, rule = KWARGS[self.name][key]
                if not holds(value):
                    raise ValueError(f"Expected kwargs.{key}={value!r} to be {rule}.")
        try:
            json.dumps(self.kwargs, allow_nan=False)
        except (TypeError, ValueError) as error:
            raise ValueError(
                f"Expected kwargs to hold finite numbers, text, truth values and lists: {error}."
            ) from None
        return self


class SamplingTable(Table):
    """[sampling]: "poisson" with a rate, or "none" for all records in every step."""

    kind: Literal["poisson", "none"]
    prob: Annotated[float, PROBABILITY] | None = None

    @model_validator(mode="after")
    def _rate(self) -> Self:
        if self.kind == "poisson" and self.prob is None:
            raise ValueError("Expected prob in (0, 1] with kind='poisson'.")
        if self.kind == "none" and self.prob not in (None, 1.0):
            raise ValueError(f"Expected prob={self.prob} to be absent or 1.0 with kind='none'.")
        return self


class OptimizerTable(Table):
    """[optimizer]: plain gradient descent on the noisy sum divided by the public batch size."""

    name: Literal["sgd"] = "sgd"
    learning_rate: Positive = 0.1
    momentum: Annotated[float, Field(ge=0, lt=1)] = 0.0
    init: Literal["zeros", "glorot"] = "glorot"


class DecayTable(Table):
    """A rule of [schedule]: `levels` values from start to end in equal ratios, each for an equal part of the steps."""

    start: Positive
    end: Positive
    levels: Annotated[int, Field(ge=1, le=100)]


class ClaimTable(Table):
    """[claim]: the privacy that is promised."""

    epsilon: Positive
    delta: Annotated[float, Field(ge=0, lt=1)]
    adjacency: Literal["add-remove", "replace-one"] = "add-remove"


def read_mechanism(value: Any) -> Mechanism:
    """[mechanism]: the entry of a claims file.

    Raises:
        ValueError: Unknown, incomplete or outside its domain.
    """
    if not isinstance(value, Mapping):
        raise ValueError(f"Expected a table with name and parameters, not {value!r}.")
    try:
        return from_dict(dict(value))
    except TypeError as error:  # pydantic only collects ValueError
        raise ValueError(str(error)) from error


def check_keys(algorithm: str, given: Set[str]) -> None:
    """Every key that an algorithm needs, and none that it does not know.

    Raises:
        ValueError: The key is named.
    """
    needed, other = KEYS[algorithm]
    for key in sorted(needed - given):
        raise ValueError(f"{key}: Expected this key with algorithm={algorithm!r}.")
    special = {key for keys in KEYS.values() for part in keys for key in part}
    for key in sorted((special - needed - other) & given):
        users = [name for name, (own, more) in KEYS.items() if key in own | more]
        raise ValueError(f"{key}: Expected it only with algorithm={' or '.join(map(repr, users))}.")


def check_structure(algorithm: str, architecture: str, *, steps: int, sampling: str, schedule: bool) -> None:
    """Network, steps and sampling that an algorithm can be used with.

    Raises:
        ValueError: The key is named.
    """
    on_minima = algorithm in ON_MINIMA
    if on_minima and (steps != 1 or sampling != "none"):
        raise ValueError(f"steps: Expected one step on all records with algorithm={algorithm!r}.")
    if algorithm == "dp-ftrl" and sampling != "none":
        raise ValueError(f"sampling.kind: Expected {sampling!r} to be 'none' with algorithm='dp-ftrl'.")
    if on_minima and architecture != "logistic":
        raise ValueError(f"architecture.name: Expected {architecture!r} to be 'logistic' with algorithm={algorithm!r}.")
    if architecture == "logistic" and not on_minima:
        raise ValueError(
            f"architecture.name: Expected 'logistic' only with algorithm={' or '.join(map(repr, ON_MINIMA))}."
        )
    if (algorithm == "dp-ftrl" or schedule) and architecture not in NETWORKS:
        raise ValueError(
            f"architecture.name: Expected {architecture!r} to be one of {', '.join(NETWORKS)} "
            f"with {'a schedule' if schedule else 'algorithm=' + repr(algorithm)}."
        )


def check_sensitivity(key: str, mechanism: Mechanism, least: float) -> None:
    """A mechanism without clipping must be accounted for the l2 sensitivity that there is.

    Raises:
        ValueError: Its clip is below `least`, or its norm below l2.
    """
    if mechanism.clip < least * (1 - 1e-9):
        raise ValueError(f"{key}.clip: Expected {mechanism.clip!r} to be at least {least:g}, the sensitivity.")
    if mechanism.clip_norm < 2:
        raise ValueError(f"{key}.clip_norm: Expected {mechanism.clip_norm!r} to be at least 2: sensitivity is in l2.")


def optional_mechanism(mechanism: Mechanism | None) -> dict[str, Any] | None:
    """A mechanism's table, if there is one."""
    return None if mechanism is None else to_dict(mechanism)


def count_or_indices(value: Any, *, least: int) -> Any:
    """A number of records, or their indices; checked here, because a union's own messages speak of both its members.

    Raises:
        ValueError: Neither.
    """
    if value is None or (type(value) is int and value >= least):
        return value
    whole = isinstance(value, list) and value and all(type(item) is int and item >= 0 for item in value)
    if not whole or len(set(value)) != len(value):
        raise ValueError(f"Expected an integer of at least {least}, or a list of different indices of at least 0.")
    return value
