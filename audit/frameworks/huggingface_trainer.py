"""Trainings by transformers' Trainer with an optimizer of Opacus, as audit bundles."""

import os
from typing import Any

from opacus import PrivacyEngine

from dpaudit.audit.frameworks.opacus import Export, bundle_from_opacus
from dpaudit.audit.frameworks.records import read_batches
from dpaudit.audit.inputs.files import InputError
from dpaudit.verify.claims import Adjacency


def opacus_callback() -> Any:
    """A `transformers.TrainerCallback` that clears the gradients of single records after every step.

    Between steps the Trainer clears the gradients of the model and not those that Opacus keeps for every record; its
    optimizer refuses to take the same ones twice.
    """
    from transformers import TrainerCallback  # seconds, and an optional dependency

    def clear(self: Any, args: Any, state: Any, control: Any, **parts: Any) -> None:
        parts["optimizer"].zero_grad()

    return type("OpacusCallback", (TrainerCallback,), {"on_step_end": clear})()


def bundle_from_trainer(
    path: str | os.PathLike[str],
    trainer: Any,
    privacy_engine: PrivacyEngine,
    *,
    delta: float,
    epsilon: float | None = None,
    adjacency: Adjacency = "add-remove",
    architecture: str | None = None,
) -> Export:
    """Write the audit bundle of a model that transformers' Trainer trained with an optimizer of Opacus.

    The batches are those of the loader that the Trainer used. Unless its `get_train_dataloader` returns the loader of
    `make_private`, that is one of its own, which shuffles.

    Args:
        path: As `bundle_from_opacus`.
        trainer: A `transformers.Trainer` after `train()`, made with callbacks=[opacus_callback()] and
            optimizers=(optimizer, scheduler), of which the optimizer is that of `make_private(..., wrap_model=False)`.
        privacy_engine: The engine.
        delta, epsilon, adjacency: Of the claim.
        architecture: As `bundle_from_opacus`: "my_model.py:build"; the rows that its module reads are token ids.

    Raises:
        InputError: As `bundle_from_opacus`; or the Trainer has not trained, adds up gradients of several batches, or
            took steps that were not counted.
    """
    loader = trainer.callback_handler.train_dataloader
    if loader is None:
        raise InputError("Expected the Trainer to have trained: call train() first.")
    if trainer.args.gradient_accumulation_steps != 1:
        raise InputError(
            f"Expected gradient_accumulation_steps={trainer.args.gradient_accumulation_steps} to be 1: a record in two "
            "batches of one step counts twice. Opacus's BatchMemoryManager splits large batches up instead."
        )
    counted = sum(int(count) for _, _, count in privacy_engine.accountant.history)
    if trainer.state.global_step > counted and not read_batches(loader).split:  # a step there is a part of a batch
        raise InputError(
            f"Expected the accountant to have counted all {trainer.state.global_step} steps of the Trainer, not "
            f"{counted}: a training that went on from a checkpoint goes on with the accountant's state, too."
        )
    optimizer = trainer.optimizer
    while hasattr(optimizer, "optimizer"):  # accelerate's wrapper
        optimizer = optimizer.optimizer
    return bundle_from_opacus(
        path, trainer.model, optimizer, privacy_engine, loader, delta=delta, epsilon=epsilon, adjacency=adjacency,
        architecture=architecture,
    )  # fmt: skip
