"""What an Opacus training did, read from Opacus's own objects after it."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from inspect import Parameter, signature
from typing import Any

import torch
from opacus import PrivacyEngine
from opacus.optimizers import (
    AdaClipDPOptimizer,
    DPOptimizer,
    DPOptimizerFastGradientClipping,
    DPPerLayerOptimizer,
)
from opacus.validators import ModuleValidator
from torch import nn

from dpaudit.audit.frameworks.named_networks import unwrapped
from dpaudit.audit.frameworks.records import LoaderBatches, read_batches
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipe_tables import SamplingTable
from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.learning.update_rules import ELEMENTWISE
from dpaudit.verify.accountants.base import quiet
from dpaudit.verify.claims import Adjacency, Claim, Phase

Step = tuple[float, float, int]  # noise multiplier, rate and count, as an accountant keeps them


@dataclass(frozen=True)
class Training:
    """What an Opacus training did, read from its objects.

    Args:
        history: Of the accountant: noise multiplier, Poisson rate as it was told, steps.
        batches: Of the loader.
        clip: Bound on the l2 norm of a record's whole gradient.
        epsilon: Claimed.
        delta: Claimed.
        covered: What an audit of it speaks of, in sentences.
        not_covered: What it does not speak of.
    """

    history: tuple[Step, ...]
    batches: LoaderBatches
    clip: float
    epsilon: float
    delta: float
    covered: tuple[str, ...]
    not_covered: tuple[str, ...]

    @property
    def steps(self) -> int:
        """Noisy steps."""
        return sum(count for _, _, count in self.history)

    def claim(self, adjacency: Adjacency) -> Claim:
        """The claim on what was done.

        Raises:
            InputError: Batches that are not Poisson, with noise that changed.
        """
        if self.batches.kind == "poisson":
            told = self.history[-1][1]  # the loader's rate, rounded by Opacus
            phases = [
                Phase(Gaussian(noise, self.clip), count, self.batches.rate if rate == told else rate)
                for noise, rate, count in self.history
            ]
            return Claim(self.epsilon, self.delta, phases, adjacency)
        self._one_noise(f"{self.batches.kind} batches")
        table = SamplingTable(**self.batches.sampling(self.steps))
        phase = table.phase(Gaussian(self.history[0][0], self.clip), self.steps)
        return Claim(self.epsilon, self.delta, (phase,), adjacency)

    def _one_noise(self, where: str) -> None:
        if len(self.history) > 1:
            raise InputError(f"Expected one noise multiplier and rate with {where}, not {_listed(self.history)}.")

    def tables(self) -> dict[str, Any]:
        """What a recipe says of mechanism, sampling and steps.

        Raises:
            InputError: Rates that changed, which one recipe does not hold.
        """
        if len({rate for _, rate, _ in self.history}) > 1 or self.batches.kind != "poisson":
            self._one_noise("a bundle" if self.batches.kind == "poisson" else f"{self.batches.kind} batches")
        tables = {
            "steps": self.steps,
            "mechanism": {"name": "gaussian", "noise_multiplier": self.history[0][0], "clip": self.clip},
            "sampling": self.batches.sampling(self.steps),
        }
        if len(self.history) > 1:
            noise = [noise for noise, _, count in self.history for _ in range(count)]
            tables["schedule"] = {"noise_multiplier": noise}
        return tables


def read_training(
    optimizer: Any, privacy_engine: PrivacyEngine, data_loader: Any, *, delta: float, epsilon: float | None
) -> Training:
    """What an Opacus training did.

    Raises:
        InputError: As `claim_from_opacus`.
    """
    if not 0.0 <= delta < 1.0:
        raise InputError(f"Expected delta={delta} in [0, 1).")
    if not isinstance(optimizer, DPOptimizer):
        raise InputError(f"Expected the optimizer that make_private returned, not {type(optimizer).__name__}.")
    # the adjusted noise is set by adaptive clipping with ghost clipping, whose optimizer has no class of its own
    if isinstance(optimizer, AdaClipDPOptimizer) or hasattr(optimizer, "_adjusted_noise_multiplier"):
        raise InputError(
            "Expected a fixed max_grad_norm: adaptive clipping also releases how many gradients were clipped, divided "
            "by the size of the batch that was drawn, and there is no theorem on that here."
        )
    history = tuple((float(n), float(q), int(k)) for n, q, k in privacy_engine.accountant.history)
    if not history:
        raise InputError("Expected the accountant to have counted steps: hand over the engine after the training.")
    _check_counted(optimizer, sum(count for _, _, count in history))
    if isinstance(optimizer, DPPerLayerOptimizer):
        _check_clip(math.hypot(*optimizer.max_grad_norms), optimizer)
    batches = read_batches(data_loader)
    told = history[-1][1]
    true = batches.rate if batches.kind == "poisson" else 1.0 / batches.passes_batches
    if min(abs(told - true), abs(told - 1.0 / int(1.0 / true))) > 1e-9:  # Opacus cuts 1 / rate to whole batches
        raise InputError(
            f"Expected the loader's rate {true:g} to be the accountant's {told:g}: gradients of several batches were "
            "added up before a step (a record in two of them counts twice), or this is not the loader of the training."
        )
    for ratio in (rate / told for _, rate, _ in history):  # Opacus multiplies the rate by how many batches there were
        if round(ratio) > 1 and abs(ratio - round(ratio)) < 1e-9:
            raise InputError(
                f"Expected the accountant's rates to be {told:g}, not {told * ratio:g}: gradients of {round(ratio)} "
                "batches were added up before a step, and a record in two of them counts twice."
            )
    with quiet():  # of the remarks that accountants make on their own settings
        try:
            claimed = float(privacy_engine.get_epsilon(delta)) if epsilon is None else float(epsilon)
        except ArithmeticError:  # of the PRV accountant, without noise or at delta 0
            claimed = math.inf
    if not math.isfinite(claimed):
        raise InputError(f"Expected a finite epsilon, not {claimed} at delta={delta:g}: nothing is claimed.")
    covered, not_covered = _coverage(optimizer, privacy_engine, history, batches, stated=epsilon is not None)
    return Training(
        history, batches, float(optimizer.max_grad_norm), claimed, float(delta), tuple(covered), tuple(not_covered)
    )


def _coverage(
    optimizer: DPOptimizer, engine: PrivacyEngine, history: tuple[Step, ...], batches: LoaderBatches, *, stated: bool
) -> tuple[list[str], list[str]]:
    name = type(engine.accountant).__name__
    said = "stated by you" if stated else f"what {name} says"
    covered = [
        f"{_listed(history)}; gradients clipped to {float(optimizer.max_grad_norm):g}; epsilon {said}",
        f"{batches}",
    ]
    if batches.kind != "poisson":
        covered[1] += f", where {name} supposes Poisson ones"
    if batches.split:
        covered.append("batches split up in memory, which changes no release")
    lacking = []
    if isinstance(optimizer, DPPerLayerOptimizer):
        lacking.append("clipping layer by layer: the claim is on all layers together, and so is retraining")
    if "Distributed" in type(optimizer).__name__ or "FSDP" in type(optimizer).__name__:
        lacking.append("training on several devices: the claim is on all of them together, and retraining is on one")
    if engine.secure_mode:
        lacking.append("secure_mode: retraining draws its noise from an ordinary generator")
    if optimizer.noise_multiplier not in {noise for noise, _, _ in history}:
        lacking.append(
            f"noise_multiplier={optimizer.noise_multiplier:g} of the optimizer, which no step was accounted with"
        )
    return covered, lacking


def _check_counted(optimizer: DPOptimizer, counted: int) -> None:
    """Refuse an optimizer that took more steps than were accounted; plain descent keeps no count."""
    taken = max((int(state.get("step", 0)) for state in optimizer.original_optimizer.state.values()), default=0)
    if taken > counted:
        raise InputError(
            f"Expected the accountant to have counted all {taken} steps of the optimizer, not {counted}: a training "
            "that went on from a checkpoint goes on with the accountant's state, too (privacy_engine.load_checkpoint)."
        )


def _check_clip(clip: float, optimizer: DPOptimizer) -> None:
    """Refuse noise that was scaled to another bound than gradients were clipped to."""
    told = float(optimizer.max_grad_norm)
    if abs(clip - told) > 1e-6 * told:  # Opacus adds layers up in single precision
        raise InputError(
            f"Expected gradients to be clipped to max_grad_norm={told:g} of the optimizer, which scales the noise, not "
            f"to {clip:g}: Opacus's schedules of max_grad_norm change the noise, and leave clipping layer by layer and "
            "ghost clipping as they were."
        )


def check_ghost_clip(module: nn.Module | None, optimizer: DPOptimizer) -> None:
    """Refuse ghost clipping, which keeps a bound of its own, to another bound than the noise was scaled to.

    Raises:
        InputError: They differ, or the module that keeps the one is not there.
    """
    if not isinstance(optimizer, DPOptimizerFastGradientClipping):
        return
    clip = getattr(module, "max_grad_norm", None)
    if not isinstance(clip, (int, float)):
        raise InputError("Expected module= as make_private returned it: with ghost clipping it keeps max_grad_norm.")
    _check_clip(float(clip), optimizer)


def check_layers(module: nn.Module) -> None:
    """Refuse layers whose records have no gradient of their own.

    Raises:
        InputError: Such as BatchNorm; Opacus itself refuses them while it wraps the module.
    """
    for name, part in unwrapped(module).named_modules():
        if ModuleValidator.VALIDATORS.get(type(part), lambda _: [])(part):
            raise InputError(
                f"Expected no {type(part).__name__} ({name or 'the module'}): no record has its own gradient there."
            )


def optimizer_table(optimizer: DPOptimizer, records: int, batches: LoaderBatches) -> tuple[dict[str, Any], list[str]]:
    """[optimizer] of a recipe, and what it leaves out."""
    own, notes = optimizer.original_optimizer, []
    kind, first = type(own), own.param_groups[0]
    name = kind.__name__.lower()
    if ELEMENTWISE.get(name) != kind.__name__ or kind is not getattr(torch.optim, kind.__name__):
        notes.append(f"the optimizer {kind.__name__}: retraining takes plain descent")
        return {"name": "sgd", "learning_rate": float(first["lr"])}, notes
    rate = float(first.get("initial_lr", first["lr"]))
    if "initial_lr" in first:
        notes.append(f"the learning-rate schedule: retraining keeps the first rate, {rate:g}")
    if len(own.param_groups) > 1:
        notes.append("groups of weights with settings of their own: retraining takes those of the first group for all")
    kwargs = _changed(kind, first)
    divisor = float(optimizer.expected_batch_size or 1) if optimizer.loss_reduction == "mean" else 1.0
    public = records * (batches.rate if batches.kind == "poisson" else 1.0 / batches.passes_batches)
    if name == "sgd":
        momentum = float(kwargs.pop("momentum", 0.0))
        rate *= public / divisor  # the recipe divides the noisy sum by the public batch size
        table = {"name": name, "learning_rate": rate, "momentum": momentum}
    else:
        table = {"name": name, "learning_rate": rate}
        if abs(public / divisor - 1.0) > 0.1:
            notes.append(f"the sum of gradients divided by {divisor:g}: retraining divides it by {public:g}")
    return {**table, "kwargs": kwargs} if kwargs else table, notes


def _changed(kind: type[torch.optim.Optimizer], group: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of an optimizer, but the learning rate, that are not its defaults, as a recipe holds them."""
    defaults = {name: p.default for name, p in signature(kind).parameters.items() if p.default is not Parameter.empty}
    changed = {}
    for name, default in defaults.items():
        value = group.get(name, default)
        plain = isinstance(value, (bool, int, float)) or (isinstance(value, (tuple, list)) and value)
        if name not in ("lr", "foreach", "fused", "capturable", "differentiable") and value != default and plain:
            changed[name] = list(value) if isinstance(value, (tuple, list)) else value
    return changed


def _listed(history: tuple[Step, ...]) -> str:
    """The first few entries of an accountant's history in words."""
    shown = ", ".join(f"{count} steps with noise {noise:g}" for noise, _, count in history[:3])
    return shown + (f" and {len(history) - 3} more kinds" if len(history) > 3 else "")
