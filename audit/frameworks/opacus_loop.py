"""Audits of a training loop that uses Opacus: the loop itself is retrained, with and without a canary."""

import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

from torch import nn

from dpaudit.audit.attacks.base import no_warning
from dpaudit.audit.attacks.control import takes_noise_factor
from dpaudit.audit.frameworks.added_noise import AddedNoise, WeakSteps
from dpaudit.audit.frameworks.opacus import write_bundle
from dpaudit.audit.frameworks.opacus_training import Training, read_training
from dpaudit.audit.frameworks.records import read_records
from dpaudit.audit.frameworks.watched_loop import LoopWatch, watched_loop
from dpaudit.audit.inputs.bundles import load_bundle
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import load_recipe
from dpaudit.audit.inputs.sources import Stage
from dpaudit.audit.inputs.user_code import (
    OneModelTrainer,
    UserFunction,
    dataset_trainer,
    its_own_settings,
    remarks_silenced,
    trainer_name,
)
from dpaudit.audit.runner import run
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import no_progress
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.results import AuditResult

NO_CONTROL = (
    "The positive control was not carried out: the training function takes no noise_factor, by which it would be asked "
    "for half the noise. So if nothing is refuted, that says nothing."
)


def audit_opacus(
    train_fn: Callable[..., Any] | str,
    dataset: Any,
    *,
    epsilon: float | None = None,
    delta: float,
    seed: int,
    adjacency: Adjacency = "add-remove",
    architecture: str | None = None,
    attacks: Sequence[str] = ("clipbkd",),
    control: bool = True,
    stage: Stage = no_progress,
    warn: Callable[[str], None] = no_warning,
    **settings: Any,
) -> AuditResult:
    """Audit a training loop that uses Opacus, as it is: its models are trained on records with a canary and without.

    The first training is on the records alone; meanwhile what `PrivacyEngine.make_private` returns is noted, and
    mechanism, batches, steps and epsilon are read from it as `bundle_from_opacus` does. The noise that its optimizer
    adds is measured; where it is less than what was accounted, that is the first of the result's notes, with what the
    claim is worth then. A canary game follows; its positive control halves the noise that the loop really adds. Where
    the claim is refuted with the noise that was seen, or a step's noise is added again in another, a game that refutes
    nothing is "inconclusive".

    Args:
        train_fn: train_fn(dataset, seed) -> module, a function of a module (not a lambda) or "my_loop.py:train". It
            makes its own loader and engine; everything random comes from `seed`; equal seeds, equal models. If it
            takes a keyword `noise_factor`, the positive control asks it for half the noise; else there is none.
        dataset: A torch data set of records with labels; `train_fn` gets TensorDatasets of such records.
        epsilon: Of the claim; None: what the engine says.
        delta: Of the claim.
        seed: Of everything random in the audit.
        adjacency: Of the claim.
        architecture: As `bundle_from_opacus`.
        attacks: Names in ATTACKS.
        control: Whether the positive control is carried out, where `train_fn` takes a `noise_factor`.
        stage, warn: As `run`.
        settings: Of `Settings`: trials, confidence, budget, workers, store.

    Raises:
        InputError: As `bundle_from_opacus`; the loop calls `make_private` never or more than once, or its steps take
            batches that the loader made there did not draw.
    """
    records = read_records(dataset)
    if isinstance(train_fn, str):  # worker processes load its file themselves
        code = UserFunction.named(train_fn, "train_fn")
        function = code.load()
        settings_kept: AbstractContextManager[None] = its_own_settings(code)
        trainer: Callable[..., Any] = OneModelTrainer(code, records.shape, whole=records.whole)
    else:
        function, settings_kept = train_fn, nullcontext()
        trainer = dataset_trainer(function, records.shape, whole=records.whole)
    with watched_loop() as seen, remarks_silenced(), settings_kept:
        module = function(dataset, seed)
    if not isinstance(module, nn.Module):
        raise InputError(f"Expected {trainer_name(function)} to return a module, not {type(module).__name__}.")
    if len(seen.made) != 1:
        raise InputError(f"Expected the training function to call make_private once, not {len(seen.made)} times.")
    engine, parts = seen.made[0]
    optimizer, loader = parts[1], parts[-1]
    if len(loader.dataset) != len(records.y):
        raise InputError(f"Expected the loader to have all {len(records.y)} records, not {len(loader.dataset)}.")
    training = read_training(optimizer, engine, loader, delta=delta, epsilon=epsilon)
    seen.check_batches()
    noise, lacking, disproven = _least_noise(seen, training, adjacency)
    again = seen.repeated()
    remarks = [*([] if lacking is None else [lacking]), *seen.remarks(training.steps, again)]
    for remark in remarks:
        warn(remark)
    controlled = takes_noise_factor(trainer)
    chosen = Settings(
        seed=seed,
        attacks=attacks,
        trainer=trainer,
        control=controlled and control,
        command="audit_opacus(...)",
        **settings,
    )
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "model.pt")
        export = write_bundle(path, module, optimizer, training, records, adjacency, architecture, loop=True)
        bundle = load_bundle(path, recipe=None if export.recipe is None else load_recipe(export.recipe))
        result = run(
            replace(bundle, path="the first model of the loop"), records.dataset("the data set given"), chosen,
            stage=stage, warn=warn,
        )  # fmt: skip
    told = {"noise_seen": list(noise.interval())} if disproven else {}
    if again:
        told["noise_repeated"] = [again, len(seen.steps)]
    if told:
        verdict = "inconclusive" if result.verdict == "not_refuted" else result.verdict
        result = replace(result, verdict=verdict, reproduce={**result.reproduce, **told})
    return replace(result, notes=[*remarks, *result.notes, *([] if controlled else [NO_CONTROL])])


def _least_noise(
    seen: LoopWatch, training: Training, adjacency: Adjacency
) -> tuple[AddedNoise | WeakSteps, str | None, bool]:
    """The noise that lacks most: of all values or of one weight, or of some steps where the claim is refuted with it.

    Returns:
        The noise, what there is to say of it, and whether the claim is refuted with it.
    """
    claim = training.claim(adjacency)
    noise = min(seen.noises(training.history), key=lambda noise: noise.interval()[1])
    lacking, disproven = noise.lacking(claim) or (None, False)
    weak = None if disproven else seen.weak_steps(training.history)
    if weak is None:
        return noise, lacking, disproven
    batches = training.batches
    poisson = batches.kind == "poisson"  # of other batches each has a record at least
    told, refuted = weak.lacking(claim, batches.rate if poisson else 1.0 / batches.records, poisson)
    return (weak, told, refuted) if refuted or lacking is None else (noise, lacking, disproven)
