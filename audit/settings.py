"""How an audit is run."""

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import get_args

from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.trials.engine import EngineName, Trainer
from dpaudit.mechanisms.base import SEED, validate_function
from dpaudit.mechanisms.learning.training import resolve_device, train
from dpaudit.verify.bounds.rates import SMALLEST_LEVEL


def usable_device(device: str) -> str:
    """ "cpu" or "cuda", as `resolve_device`; another name, or a GPU that is not there, is the user's mistake."""
    try:
        return resolve_device(device)
    except ValueError as error:
        raise InputError(str(error)) from error


@dataclass(frozen=True)
class Settings:
    """How an audit is run.

    Args:
        seed: Root seed of everything random in the audit.
        attacks: Names in ATTACKS; () for all that apply by default.
        trials: Models per arm; None for the attack's default, which finds half the noise.
        control: Whether an audit's positive control is carried out. An audit without one that refutes nothing is
            inconclusive.
        confidence: Level of all statistical bounds together, in [0.5, 1 - 1e-9].
        budget: Seconds after which no model is trained any more; None for no limit.
        device: "auto", "cpu" or "cuda".
        workers: Training processes; None for one per core.
        engine: Where models train: "local", or "ray": on a cluster.
        store: File for the trial store; None keeps trials in memory.
        shared: Use the trials in the other stores of its folder as well.
        fresh: Forget stored trials.
        trainer: The training function that is retrained, the user's own loop where that is under audit: what it is
            given and returns is told in `inputs.user_code.UserTrainer`. If it takes a keyword `noise_factor`,
            positive controls multiply its noise by that.
        command: How to repeat this audit, for the report.

    Raises:
        InputError: A field is outside its domain, or the trainer is no function.
    """

    seed: int
    attacks: Sequence[str] = ()
    trials: int | None = None
    control: bool = True
    confidence: float = 0.95
    budget: float | None = None
    device: str = "auto"
    workers: int | None = None
    engine: EngineName = "local"
    store: str | PathLike[str] | None = None
    shared: bool = False
    fresh: bool = False
    trainer: Trainer = train
    command: str = ""

    def __post_init__(self) -> None:
        try:
            SEED.validate("seed", self.seed)
            validate_function("trainer", self.trainer, "(spec, pool, members, seeds, device=...) -> models")
        except (TypeError, ValueError) as error:
            raise InputError(str(error)) from error
        if not 0.5 <= self.confidence <= 1.0 - SMALLEST_LEVEL:
            raise InputError(f"Expected confidence={self.confidence} in [0.5, 1 - {SMALLEST_LEVEL:g}].")
        if self.trials is not None and self.trials < 10:
            raise InputError(f"Expected trials={self.trials} to be at least 10.")
        if isinstance(self.attacks, str):
            raise InputError(f"Expected attacks={self.attacks!r} to be a sequence of names, as ({self.attacks!r},).")
        usable_device(self.device)
        if self.engine not in get_args(EngineName):
            raise InputError(f"Expected engine={self.engine!r} to be {' or '.join(get_args(EngineName))}.")
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"Expected budget={self.budget} seconds to be positive.")
        if self.fresh and self.shared:
            raise InputError(
                "Expected fresh=True (--fresh) without shared=True (--store): delete the files of the folder."
            )
