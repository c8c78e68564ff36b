"""The audit bundle: a model together with everything an audit must know about it."""

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dpaudit._files import atomic_write
from dpaudit.audit.inputs.bundle_meta import known_keys, read_coins, read_ledger, read_meta, write_meta
from dpaudit.audit.inputs.coins import Coins
from dpaudit.audit.inputs.files import InputError, file_sha256, open_regular
from dpaudit.audit.inputs.networks import parameter_shapes
from dpaudit.audit.inputs.recipes import RECIPES, Recipe, recipe_class
from dpaudit.audit.inputs.weights import check_state, read_safetensors, read_torch
from dpaudit.mechanisms.learning.spec import Architecture, Ledger, TrainedModels, TrainingSpec
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.claims import Claim


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
        notes: What a reader of an audit's result must know of the training, in sentences.
    """

    path: str
    sha256: str
    state_dict: dict[str, Tensor]
    recipe: Recipe
    coins: Coins | None = None
    ledger: Ledger | None = None
    notes: tuple[str, ...] = ()

    def __repr__(self) -> str:
        """What it is and what it claims, in a line; never its weights."""
        claim, mechanism = self.recipe.claim, self.recipe.mechanism
        return (
            f"<Bundle {self.path}: {self.recipe.algorithm} of {self.recipe.architecture.name}, {self.parameters:,} "
            f"parameters, {mechanism.name}, claims epsilon {claim.epsilon:.12g} at delta {claim.delta:.12g}>"
        )

    @property
    def one_run(self) -> bool:
        """Whether this one model can prove an epsilon: fair coins, and a claim on adding or removing a record."""
        return self.coins is not None and self.recipe.claim.adjacency != "replace-one"

    @property
    def parameters(self) -> int:
        """How many numbers the model holds."""
        return sum(tensor.numel() for tensor in self.state_dict.values())

    def check_fit(self, architecture: Architecture) -> None:
        """Refuse an architecture whose parameters are others.

        Raises:
            InputError: The model's parameters do not have its names and shapes.
        """
        _check_shapes(self.state_dict, parameter_shapes(architecture), self.path)

    def models(self, spec: TrainingSpec) -> TrainedModels:
        """The model as training would have returned it, for scoring.

        Args:
            spec: From `recipe.spec(dataset)`.

        Raises:
            InputError: As `check_fit`.
        """
        self.check_fit(spec.architecture)
        shapes = parameter_shapes(spec.architecture)
        ledger = self.ledger or Ledger.unrecorded(spec)
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
    notes: Sequence[str] = (),
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
        notes: What a reader of an audit's result must know of the training, in sentences.

    Raises:
        InputError: The tensors are not what they must be or do not fit the recipe's architecture; the claim is not the
            recipe's.
        OSError: The file cannot be written.
    """
    name = os.fspath(path)
    state = check_state(dict(state_dict), name, size=None)
    _check_shapes(state, parameter_shapes(architecture), name)
    stated = recipe.claim_object()
    recipe = recipe.with_dimension(sum(tensor.numel() for tensor in state.values()))
    if recipe.architecture.name != architecture.name:
        raise InputError(
            f"architecture.name: Expected {shown(architecture.name)} to be {shown(recipe.architecture.name)}."
        )
    if claim not in (recipe.claim_object(), stated):
        raise InputError(f"claim: Expected {claim} to be that of the recipe, {recipe.claim_object()}.")
    if recipe.dataset.sha256 is None:
        raise InputError("dataset.sha256: Expected this key in a bundle's recipe: Recipe.filled sets it.")
    meta = write_meta(architecture, recipe, coins, ledger, notes)
    with atomic_write(name) as file:
        torch.save({"state_dict": state, "meta": meta}, file)


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
    if name.endswith(".toml"):
        raise InputError(
            f"Expected {name} to be a trained model: a recipe is trained first (dpaudit train {name} --out model.pt), "
            "and a claims file is for dpaudit verify."
        )
    with open_regular(name) as file:
        start = file.read(9)  # a zip archive begins with PK; what has a brace after eight other bytes is safetensors
        if start[8:] == b"{" and start[:2] != b"PK":
            content: Any = read_safetensors(file, name)
            size = None
        else:
            content, size = read_torch(file, name)
        if isinstance(content, Mapping) and set(content) == {"state_dict", "meta"}:
            bundle = _read_bundle(content, name, size, recipe)
        elif recipe is None:
            raise InputError(
                f"Expected {name} to hold exactly state_dict and meta; bare weights need a recipe (--recipe)."
            )
        else:
            state = check_state(content, name, size=size)
            filled = recipe.with_dimension(sum(tensor.numel() for tensor in state.values()))
            bundle = Bundle(name, "", state, filled)
        return replace(bundle, sha256=file_sha256(file))


def _read_bundle(content: Mapping[str, Any], name: str, size: int | None, recipe: Recipe | None) -> Bundle:
    meta = read_meta(content["meta"], name)
    known = known_keys(meta.recipe, recipe_class(meta.recipe), *RECIPES.values())
    inner = Recipe.from_dict(known, name=f"{name}: meta.recipe")
    if inner.dataset.sha256 is None:
        raise InputError(f"{name}: meta.recipe.dataset.sha256: Expected this key: it is required in a bundle.")
    table = inner.architecture
    if {key: meta.architecture.get(key) for key in ("name", "kwargs")} != table.model_dump():
        raise InputError(f"Expected meta.architecture of {name} to be that of its recipe, {table.name!r}.")
    state = check_state(content["state_dict"], name, size=size)
    filled = inner.with_dimension(sum(tensor.numel() for tensor in state.values()))
    claim = filled.claim_summary()
    different = [key for key in claim if meta.claim.get(key) != claim[key]]
    if different:
        raise InputError(
            f"Expected meta.claim.{different[0]} of {name} to be that of its recipe, {claim[different[0]]}."
        )
    if not table.custom:
        inputs, classes = (_size(meta.architecture, key, name) for key in ("inputs", "classes"))
        _check_shapes(state, parameter_shapes(Architecture(table.name, inputs, classes, table.kwargs)), name)
    filled = _beside(filled, name) if recipe is None else _same_recipe(filled, recipe, name)
    coins, ledger = read_coins(meta.coins, name), read_ledger(meta.ledger)
    return Bundle(name, "", state, filled, coins, ledger, tuple(meta.notes))


def _beside(recipe: Recipe, name: str) -> Recipe:
    """The recipe with the path of its records, where a bare file name lies beside the bundle and not in this folder."""
    file = recipe.dataset.file
    if (
        file is None
        or Path(file).name != file
        or Path(file).exists()
        or not (found := Path(name).parent / file).exists()
    ):
        return recipe
    return recipe.model_copy(update={"dataset": recipe.dataset.model_copy(update={"file": str(found)})})


def _size(architecture: Mapping[str, Any], key: str, name: str) -> int:
    value = architecture.get(key)
    if type(value) is not int or not 1 <= value <= 1 << 40:
        raise InputError(f"Expected meta.architecture.{key} of {name} to be a positive integer, not {shown(value)}.")
    return value


def _check_shapes(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]], name: str) -> None:
    if set(state) != set(shapes):
        raise InputError(f"Expected {name}:state_dict to have the architecture's parameters: {_names(state, shapes)}")
    for key, shape in shapes.items():
        if tuple(state[key].shape) != shape:
            raise InputError(
                f"Expected {name}:state_dict[{shown(key)}] of shape {tuple(state[key].shape)} to have {shape}, "
                "that of the architecture."
            )


def _names(state: Mapping[str, Tensor], shapes: Mapping[str, tuple[int, ...]]) -> str:
    """How the names of tensors are not those of parameters; long lists are cut."""
    first = next(iter(state), "")
    for prefix in (first.removesuffix(key) for key in shapes if first.endswith(f".{key}")):
        if set(state) == {prefix + key for key in shapes}:  # "module." of DataParallel, "_orig_mod." of torch.compile
            return f"every name begins with {shown(prefix)}; save model.{prefix}state_dict()."
    lists = {
        "it lacks": [key for key in shapes if key not in state],
        "it has": [key for key in state if key not in shapes],
    }
    told = [f"{verb} {', '.join(keys[:5])}{f' and {len(keys) - 5} more' if len(keys) > 5 else ''}"
            for verb, keys in lists.items() if keys]  # fmt: skip
    untrained = (
        "; what is not trained is no part of the released model: leave it out" if set(shapes) <= set(state) else ""
    )
    return f"{', and '.join(told)}{untrained}."


def _same_recipe(inner: Recipe, given: Recipe, name: str) -> Recipe:
    """The given recipe, if it says what the bundle's says wherever it says anything."""
    given = given.with_dimension(inner.mechanism.dimension)
    ours, theirs = inner.to_dict(), given.to_dict()
    filled_in = {**theirs, "dataset": {"sha256": ours["dataset"].get("sha256"), **theirs["dataset"]}}
    filled_in.setdefault("seed", ours.get("seed"))
    # a report is what an owner may state later
    more = [key for key, value in filled_in.items() if value is not None and key not in ours and key != "report"]
    different = [key for key in ours if ours[key] != filled_in.get(key)] + more
    if different:
        said = ours.get(different[0], "nothing")
        raise InputError(f"{different[0]}: Expected the recipe given to say what {name} says, {said}.")
    seed, digest = filled_in.get("seed"), filled_in["dataset"].get("sha256")
    return given.model_copy(update={"seed": seed, "dataset": given.dataset.model_copy(update={"sha256": digest})})
