"""What a bundle says about its model: one JSON string, written from our objects and read with suspicion."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Annotated, Any, Literal, cast

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dpaudit.audit.inputs.coins import Coins
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.mechanisms.learning.spec import Architecture, Ledger
from dpaudit.verify.validation import one_line


class _Part(BaseModel):
    """A part of `meta`: unknown keys are ignored, wrong types, NaN and infinity refused."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True, allow_inf_nan=False)


class _Coins(_Part):
    records: list[Annotated[int, Field(ge=0, lt=1 << 40)]]
    included: list[bool]
    seed: Annotated[int, Field(ge=0)] | None = None


class _Ledger(_Part):
    noise_draws: int
    sampling_prob: float
    batch_sizes: list[int]
    divisor: float
    clip: float
    clip_norm: float | Literal["inf"]
    device: str
    engine: str
    releases: list[int] = []


class Meta(_Part):
    """The JSON object, its recipe still to be checked."""

    format: Literal["dpaudit-bundle/1"]
    architecture: dict[str, Any]
    recipe: dict[str, Any]
    claim: dict[str, Any]
    coins: _Coins | None
    ledger: _Ledger | None = None
    notes: Annotated[list[Annotated[str, Field(max_length=1000)]], Field(max_length=100)] = []


def write_meta(
    architecture: Architecture,
    recipe: Recipe,
    coins: Coins | None,
    ledger: Ledger | None,
    notes: Sequence[str] = (),
) -> str:
    """The JSON string of a bundle.

    Args:
        architecture: With the sizes of the data it was built for.
        recipe: With the mechanism's dimension filled in.
        coins: None, or empty, where no membership was drawn.
        ledger: What happened in training, if it was kept.
        notes: What a reader of an audit's result must know of the training, in sentences.
    """
    tosses = None if coins is None or not len(coins.records) else {
        "records": coins.records.tolist(), "included": coins.included.tolist(), "seed": coins.seed,
    }  # fmt: skip
    events = None if ledger is None else {
        **asdict(ledger), "clip_norm": "inf" if np.isinf(ledger.clip_norm) else ledger.clip_norm,
    }  # fmt: skip
    sizes = {"inputs": architecture.inputs, "classes": architecture.classes}
    meta: dict[str, Any] = {
        "format": "dpaudit-bundle/1",
        "architecture": {**recipe.architecture.model_dump(), **sizes},
        "recipe": recipe.to_dict(),
        "claim": recipe.claim_summary(),
        "coins": tosses,
        "ledger": events,
    }
    if notes:
        meta["notes"] = list(notes)
    return json.dumps(meta, allow_nan=False)


def read_meta(text: Any, name: str) -> Meta:
    """Read the JSON string of a bundle.

    Raises:
        InputError: Not one string of JSON of this format; the key is named.
    """
    if not isinstance(text, str):
        raise InputError(f"Expected meta of {name} to be one JSON string, not {type(text).__name__}.")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected meta of {name} to be JSON: {error}.") from error
    try:
        return Meta.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{name}: meta.{one_line(error, Meta)}") from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def known_keys(data: Mapping[str, Any], *models: type[BaseModel]) -> dict[str, Any]:
    """A table without keys of a later version: readers of a bundle ignore what they do not know.

    Args:
        data: As JSON holds it.
        models: A key is known if one of them has it; the first that has it knows its table.
    """
    known = {}
    for key, value in data.items():
        nested = next((model.model_fields[key].annotation for model in models if key in model.model_fields), None)
        if nested is None:
            continue
        is_table = isinstance(nested, type) and issubclass(nested, BaseModel) and isinstance(value, dict)
        if is_table and hasattr(nested, "known_keys"):  # which decides by what the table holds
            known[key] = nested.known_keys(value)
            continue
        known[key] = known_keys(value, cast(type[BaseModel], nested)) if is_table else value
    return known


def read_coins(coins: _Coins | None, name: str) -> Coins | None:
    """The coins; None where there are none.

    Raises:
        InputError: A record is named twice, or has no coin.
    """
    if coins is None or not coins.records:
        return None
    if len(coins.records) != len(coins.included) or len(set(coins.records)) != len(coins.records):
        raise InputError(f"Expected meta.coins of {name} to name different records, and one coin for each.")
    records, included = np.array(coins.records, np.int64), np.array(coins.included, bool)
    order = np.argsort(records)  # equal scores go to the first: members listed first would be told by that alone
    return Coins(records[order], included[order], coins.seed)


def read_ledger(ledger: _Ledger | None) -> Ledger | None:
    """The ledger, if the file has one."""
    if ledger is None:
        return None
    fields = ledger.model_dump()
    counted = {"batch_sizes": tuple(ledger.batch_sizes), "releases": tuple(ledger.releases)}
    return Ledger(**{**fields, **counted, "clip_norm": float(ledger.clip_norm)})
