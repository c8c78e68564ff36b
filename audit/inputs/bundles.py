"""The audit bundle: a model together with everything an audit must know about it."""

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, cast

import numpy as np
import torch
from pydantic import BaseModel, ConfigDict, Field, ValidationError
from torch import Tensor

from dpaudit.audit.inputs.coins import Coins
from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.inputs.files import atomic_write, file_sha256, open_regular
from dpaudit.audit.inputs.networks import parameter_shapes
from dpaudit.audit.inputs.recipe_errors import one_line
from dpaudit.audit.inputs.recipes import ArchitectureTable, Recipe
from dpaudit.audit.inputs.weights import check_state, read_safetensors, read_torch
from dpaudit.mechanisms.learning.spec import Architecture, Ledger, TrainedModels, TrainingSpec
from dpaudit.verify.claims import Claim

BUNDLE_FORMAT = "dpaudit-bundle/1"
_KEYS = {"state_dict", "meta"}


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


class _Meta(_Part):
    format: Literal["dpaudit-bundle/1"]
    architecture: dict[str, Any]
    recipe: dict[str, Any]
    claim: dict[str, Any]
    coins: _Coins | None
    ledger: _Ledger | None = None


@dataclass(frozen=True, eq=False)
class Bundle:
    """A model from a file, checked.

    Args:
        path: The file, as it was named.
        sha256: Of the file.
        state_dict: Contiguous finite float32 tensors on the CPU.
        recipe: How it is said to have been trained, with the mechanism's dimension filled in.
        coins: Whose membership fair coins decided; None if nobody's.
        ledger: What happened in training; None if the file does not say.
    """

    path: str
    sha256: str
    state_dict: dict[str, Tensor]
    recipe: Recipe
    coins: Coins | None = None
    ledger: Ledger | None = None

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(tensor.numel() for tensor in self.state_dict.values())

    def models(self, spec: TrainingSpec) -> TrainedModels:
        """The model as training would have returned it, for scoring.

        Args:
            spec: From `recipe.spec(dataset)`.

        Raises:
            InputError: Its parameters do not have the names and shapes of the architecture.
        """
        shapes = parameter_shapes(spec.architecture)
        _check_shapes(self.state_dict, shapes, self.path)
        ledger = self.ledger or Ledger(
            noise_draws=0, sampling_prob=spec.sampling_prob, batch_sizes=(), divisor=spec.expected_batch_size,
            clip=spec.mechanism.clip, clip_norm=spec.mechanism.clip_norm, device="cpu", engine="unrecorded",
        )  # fmt: skip
        return TrainedModels({name: self.state_dict[name][None] for name in shapes}, spec.architecture, ledger)

    def describe(self) -> dict[str, Any]:
        """What an audit's result says about its model."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "architecture": self.recipe.architecture.name,
            "parameters": self.parameters,
        }


def save_bundle(
    path: str | os.PathLike[str],
    *,
    state_dict: Mapping[str, Tensor],
    architecture: Architecture,
    recipe: Recipe,
    claim: Claim,
    coins: Coins | None,
    ledger: Ledger | None = None,
) -> None:
    """Write an audit bundle, all of it or nothing.

    Args:
        path: The file to write.
        state_dict: Parameters by name, float32, finite.
        architecture: What they are parameters of.
        recipe: How they were trained, from `Recipe.filled`: with the data's SHA-256 and the seed.
        claim: `recipe.claim_object()`; another claim needs another recipe.
        coins: From `draw_coins`; None if no membership was drawn.
        ledger: What happened, from `TrainedModels.ledger`.

    Raises:
        InputError: The tensors are not what they must be, do not fit the recipe's architecture; the claim is not the recipe's, or cannot be written.
    """
    name = os.fspath(path)
    state = check_state(dict(state_dict), name, size=None)
    _check_shapes(state, parameter_shapes(architecture), name)
    stated = recipe.claim_object()
    recipe = recipe.with_dimension(sum(tensor.numel() for tensor in state.values()))
    if recipe.architecture.name != architecture.name:
        raise InputError(f"architecture.name: Expected {architecture.name!r} to be {recipe.architecture.name!r}.")
    if claim not in (recipe.claim_object(), stated):
        raise InputError(f"claim: Expected {claim} to be that of the recipe, {recipe.claim_object()}.")
    meta = {
        "format": BUNDLE_FORMAT,
        "architecture": {**recipe.architecture.model_dump(), "inputs": architecture.inputs,
                         "classes": architecture.classes},
        "recipe": recipe.to_dict(),
        "claim": recipe.claim_summary(),
        "coins": None if coins is None or not len(coins.records) else {
            "records": coins.records.tolist(), "included": coins.included.tolist(), "seed": coins.seed},
        "ledger": None if ledger is None else {
            **asdict(ledger), "clip_norm": "inf" if np.isinf(ledger.clip_norm) else ledger.clip_norm},
    }  # fmt: skip
    with atomic_write(name) as file:
        torch.save({"state_dict": state, "meta": json.dumps(meta, allow_nan=False)}, file)


def load_bundle(path: str | os.PathLike[str], *, recipe: Recipe | None = None) -> Bundle:
    """Read a model file that nobody vouches for.

    Args:
        path: An audit bundle; together with a recipe also a bare state dict (.pt) or a .safetensors file.
        recipe: Needed for a file that is no bundle. With a bundle it must say the same as the one inside, and lets
            the code it names be run.

    Raises:
        InputError: Anything at all is wrong with the file; no code in it is ever run.
    """
    name = os.fspath(path)
    with open_regular(name) as file:
        if file.read(9)[8:] == b"{" and _is_safetensors(file):
            content: Any = read_safetensors(file, name)
            size = None
        else:
            content, size = read_torch(file, name)
        if isinstance(content, Mapping) and set(content) == _KEYS:
            bundle = _read_bundle(content, name, size, recipe)
        elif recipe is None:
            raise InputError(f"Expected {name} to hold exactly state_dict and meta; bare weights need a recipe (--recipe).")
        else:
            state = check_state(content, name, size=size)
            filled = recipe.with_dimension(sum(tensor.numel() for tensor in state.values()))
            bundle = Bundle(name, "", state, filled)
        return Bundle(name, file_sha256(file), bundle.state_dict, bundle.recipe, bundle.coins, bundle.ledger)


def load_weights(path: str | os.PathLike[str], recipe: Recipe) -> Bundle:
    """Read a bare state dict (.pt) or a .safetensors file that was trained by a recipe.

    Raises:
        InputError: As `load_bundle`.
    """
    return load_bundle(path, recipe=recipe)


def _is_safetensors(file: Any) -> bool:
    """A zip archive begins with PK; what has a brace after eight other bytes is meant as safetensors."""
    file.seek(0)
    return cast(bytes, file.read(2)) != b"PK"


def _read_bundle(content: Mapping[str, Any], name: str, size: int | None, recipe: Recipe | None) -> Bundle:
    meta = _read_meta(content["meta"], name)
    inner = Recipe.from_dict(_known_keys(meta.recipe, Recipe), name=f"{name}: meta.recipe")
    table = inner.architecture
    if {key: meta.architecture.get(key) for key in ("name", "kwargs")} != table.model_dump():
        raise InputError(f"Expected meta.architecture of {name} to be that of its recipe, {table.name!r}.")
    state = check_state(content["state_dict"], name, size=size)
    filled = inner.with_dimension(sum(tensor.numel() for tensor in state.values()))
    claim = filled.claim_summary()
    different = [key for key in claim if meta.claim.get(key) != claim[key]]
    if different:
        raise InputError(f"Expected meta.claim.{different[0]} of {name} to be that of its recipe, {claim[different[0]]}.")
    if not table.custom:
        sizes = [meta.architecture.get(key) for key in ("inputs", "classes")]
        if any(type(value) is not int or not 1 <= value <= 1 << 40 for value in sizes):
            raise InputError(f"Expected meta.architecture of {name} to have inputs and classes.")
        _check_shapes(state, parameter_shapes(Architecture(table.name, *sizes, table.kwargs)), name)
    if recipe is not None:
        filled = _same_recipe(filled, recipe, name)
    return Bundle(name, "", state, filled, _read_coins(meta.coins, name), _read_ledger(meta.ledger))


def _read_meta(text: Any, name: str) -> _Meta:
    if not isinstance(text, str):
        raise InputError(f"Expected meta of {name} to be one JSON string, not {type(text).__name__}.")
    try:
        data = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InputError(f"Expected meta of {name} to be JSON: {error}.") from error
    try:
        return _Meta.model_validate(data)
    except ValidationError as error:
        raise InputError(f"{name}: meta.{one_line(error, _Meta)}") from error


def _refuse_constant(text: str) -> float:
    raise ValueError(f"{text} is not a number of JSON")


def _known_keys(data: Mapping[str, Any], model: type[BaseModel]) -> dict[str, Any]:
    """A table without keys of a later version: readers of a bundle ignore what they do not know."""
    known = {}
    for key, value in data.items():
        field = model.model_fields.get(key)
        if field is None:
            continue
        nested = field.annotation
        is_table = isinstance(nested, type) and issubclass(nested, BaseModel) and isinstance(value, dict)
        known[key] = _known_keys(value, cast(type[BaseModel], nested)) if is_table else value
    return known


def _check_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
    if set(state) != set(shapes):
        raise InputError(f"Expected {name}:state_dict to have the parameters {', '.join(shapes)}, not {', '.join(state)}.")
    for key, shape in shapes.items():
        if tuple(state[key].shape) != shape:
            raise InputError(f"Expected {name}:state_dict[{key!r}] of shape {tuple(state[key].shape)} to have {shape}.")


def _same_recipe(inner: Recipe, given: Recipe, name: str) -> Recipe:
    """The given recipe, if it says what the bundle's says wherever it says anything."""
    given = given.with_dimension(inner.mechanism.dimension)
    ours, theirs = inner.to_dict(), given.to_dict()
    filled_in = {**theirs, "dataset": {"sha256": ours["dataset"].get("sha256"), **theirs["dataset"]}}
    filled_in.setdefault("seed", ours.get("seed"))
    different = [key for key in ours if ours[key] != filled_in.get(key)]
    if different:
        raise InputError(f"{different[0]}: Expected the recipe given to say what {name} says, {ours[different[0]]}.")
    seed, digest = filled_in.get("seed"), filled_in["dataset"].get("sha256")
    return given.model_copy(update={"seed": seed, "dataset": given.dataset.model_copy(update={"sha256": digest})})


def _read_coins(coins: _Coins | None, name: str) -> Coins | None:
    if coins is None or not coins.records:
        return None
    if len(coins.records) != len(coins.included) or len(set(coins.records)) != len(coins.records):
        raise InputError(f"Expected meta.coins of {name} to name different records, and one coin for each.")
    return Coins(np.array(coins.records, np.int64), np.array(coins.included, bool), coins.seed)


def _read_ledger(ledger: _Ledger | None) -> Ledger | None:
    if ledger is None:
        return None
    fields = ledger.model_dump()
    return Ledger(**{**fields, "batch_sizes": tuple(ledger.batch_sizes), "clip_norm": float(ledger.clip_norm)})
