"""Trainings by Opacus as audit bundles: what was done is read from its own objects, after the training.

The claim speaks of what the loader does. Opacus's accountants suppose Poisson batches, and go on supposing them where
`poisson_sampling=False` leaves a shuffled loader as it is: then their epsilon is claimed of shuffled batches.
"""

import io
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from opacus import PrivacyEngine
from opacus.optimizers import DPOptimizer
from torch import nn

from dpaudit._files import write_whole
from dpaudit._plain_text import as_argument
from dpaudit.audit.frameworks.named_networks import NamedNetwork, name_network
from dpaudit.audit.frameworks.opacus_training import (
    Training,
    check_ghost_clip,
    check_layers,
    optimizer_table,
    read_training,
)
from dpaudit.audit.frameworks.records import Records, read_records
from dpaudit.audit.inputs.bundles import save_bundle
from dpaudit.audit.inputs.recipes import Recipe
from dpaudit.verify.claims import Adjacency, Claim
from dpaudit.verify.results import up

SMALL_DATA = 64 << 20  # bytes of arrays that are written beside the bundle
LOSS = (
    "the loss and whatever else the loop does: retraining minimises the cross-entropy of the records as they are; "
    "audit_opacus, or dpaudit run --trainer FILE.py:NAME, retrains the loop itself"
)


@dataclass(frozen=True)
class Export:
    """What was written, and what an audit of it covers.

    Args:
        bundle: The bundle's path.
        data: The path of the records; they were not written where they are large.
        data_written: Whether they were.
        recipe: The path of the recipe, which `dpaudit run --recipe` needs where a network is the user's own code.
        claim: The claim on what was done.
        covered, not_covered: In sentences.
    """

    bundle: Path
    data: Path
    data_written: bool
    recipe: Path | None
    claim: Claim
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]

    @property
    def command(self) -> str:
        """The command that audits it."""
        recipe = [] if self.recipe is None else ["--recipe", str(self.recipe)]
        data = [] if self.data_written else ["--data", str(self.data)]
        return shlex.join(["dpaudit", "run", as_argument(self.bundle), *recipe, *data])

    def __str__(self) -> str:
        """What is covered and what is not, a line each, and the command."""
        claim = f"{self.bundle}: claims epsilon {up(self.claim.epsilon)} at delta {self.claim.delta:.12g}"
        lines = [f"covered: {line}" for line in self.covered] + [f"not covered: {line}" for line in self.not_covered]
        if not self.data_written:
            lines.append(f"the records are large: write them to {self.data} as arrays x and y")
        return "\n".join([claim, *(f"  {line}" for line in lines), f"audit it: {self.command}"])


def claim_from_opacus(
    optimizer: DPOptimizer,
    privacy_engine: PrivacyEngine,
    data_loader: Any,
    *,
    delta: float,
    epsilon: float | None = None,
    adjacency: Adjacency = "add-remove",
    module: nn.Module | None = None,
) -> Claim:
    """The claim of a training by Opacus, for `dpaudit.check`: no data are needed, and a model for ghost clipping only.

    Args:
        optimizer, privacy_engine, data_loader: As `make_private` returned them, after the training.
        delta: Of the claim.
        epsilon: Of the claim; None: what the engine says at delta.
        adjacency: Of the claim.
        module: As `make_private` returned it: with ghost clipping it keeps what gradients were clipped to.

    Raises:
        InputError: Nothing was trained, or something has no theorem; one line says what.
    """
    check_ghost_clip(module, optimizer)
    return read_training(optimizer, privacy_engine, data_loader, delta=delta, epsilon=epsilon).claim(adjacency)


def bundle_from_opacus(
    path: str | os.PathLike[str],
    module: nn.Module,
    optimizer: DPOptimizer,
    privacy_engine: PrivacyEngine,
    data_loader: Any,
    *,
    delta: float,
    epsilon: float | None = None,
    adjacency: Adjacency = "add-remove",
    architecture: str | None = None,
) -> Export:
    """Write the audit bundle of a model that Opacus trained, and its records beside it where they are small.

    Args:
        path: The bundle, such as model.pt; the records go to model.data.npz, a recipe to model.toml.
        module, optimizer, privacy_engine, data_loader: As `make_private` returned them, after the training.
        delta: Of the claim.
        epsilon: Of the claim; None: what the engine says at delta.
        adjacency: Of the claim.
        architecture: "my_model.py:build" where the module is no named network; `build(inputs, classes)` returns one
            for flat rows.

    Returns:
        What is covered and what is not; print it.

    Raises:
        InputError: Something has no theorem, or cannot be retrained; one line says what.
        OSError: A file cannot be written.
    """
    training = read_training(optimizer, privacy_engine, data_loader, delta=delta, epsilon=epsilon)
    return write_bundle(
        Path(path), module, optimizer, training, read_records(data_loader.dataset), adjacency, architecture
    )


def write_bundle(
    path: Path,
    module: nn.Module,
    optimizer: DPOptimizer,
    training: Training,
    records: Records,
    adjacency: Adjacency,
    architecture: str | None,
    *,
    loop: bool = False,
) -> Export:
    """`bundle_from_opacus` for what has been read.

    Args:
        path, module, optimizer, training, records, adjacency, architecture: As there.
        loop: Whether the loop itself will be retrained, so that nothing is left out in that.
    """
    check_ghost_clip(module, optimizer)
    check_layers(module)
    network = name_network(module, records, architecture, Path())
    rule, notes = optimizer_table(optimizer, len(records.y), training.batches)
    data, own = path.with_suffix(".data.npz"), network.table.code
    table = network.table.model_dump()
    if own:  # a path in a recipe begins in the recipe's folder
        file, _, function = network.table.name.rpartition(":")
        table["name"] = f"{os.path.relpath(file, path.parent)}:{function}"
    rule["init"] = "built" if own else "glorot"
    content = {
        "algorithm": "dp-sgd",
        **training.tables(),
        "dataset": {"file": data.name, "sha256": records.sha256},
        "architecture": table,
        "optimizer": rule,
        "claim": {"epsilon": training.epsilon, "delta": training.delta, "adjacency": adjacency},
    }
    recipe = Recipe.from_dict(content)
    not_covered = () if loop else (*training.not_covered, *notes, LOSS)
    _save(path, network, recipe, not_covered)
    small, toml = records.x.nbytes <= SMALL_DATA, path.with_suffix(".toml") if own else None
    parts: dict[str | os.PathLike[str], bytes] = {}
    if small:
        arrays = io.BytesIO()
        np.savez_compressed(arrays, x=records.x, y=records.y)
        parts[data] = arrays.getvalue()
    if toml is not None:
        parts[toml] = _toml(recipe.to_dict()).encode()
    write_whole(parts)
    weights = sum(weight.numel() for weight in network.state.values())
    kind = f"the network {network.table.name} with {weights:,} weights"
    claim = recipe.with_dimension(weights).claim_object()
    return Export(path, data, small, toml, claim, (*training.covered, kind), not_covered)


def _save(path: Path, network: NamedNetwork, recipe: Recipe, notes: tuple[str, ...]) -> None:
    architecture = replace(network.architecture, name=recipe.architecture.name)
    save_bundle(
        path, state_dict=network.state, architecture=architecture, recipe=recipe, claim=recipe.claim_object(),
        coins=None, notes=[f"Not covered: {note}." for note in notes],
    )  # fmt: skip


def _toml(table: Mapping[str, Any], prefix: str = "") -> str:
    """A recipe as TOML: its scalars are JSON's."""
    inner = {key: value for key, value in table.items() if isinstance(value, dict) and value}
    lines = [f"{key} = {json.dumps(value)}" for key, value in table.items() if not isinstance(value, dict)]
    parts = [f"[{prefix}{key}]\n{_toml(value, f'{prefix}{key}.')}" for key, value in inner.items()]
    return "\n".join([*lines, "", *parts])
