"""What an audit will do, decided before it starts: settings, error budget, number of trials."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.budget import split
from dpaudit.audit.inputs.errors import InputError
from dpaudit.audit.power import default_trials, models_needed
from dpaudit.audit.trials.engine import Trainer
from dpaudit.mechanisms.learning.training import resolve_device, train
from dpaudit.verify.results import Verdict

Array = NDArray[np.float64]

ATTACKS = ("membership", "clipbkd")


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
        attacks: Which of ATTACKS.
        trials: Models per arm, threshold choice included; None for the power estimate's default.
        confidence: Level of all statistical bounds together.
        budget: Seconds after which no new trial is started; None for no limit.
        device: "auto", "cpu" or "cuda".
        workers: Training processes; None for one per core.
        store: File for the trial store; None keeps trials in memory.
        fresh: Forget stored trials.
        trainer: The training function that is retrained, the user's own loop where that is under audit.
        command: How to repeat this audit, for the report.
    """

    seed: int
    attacks: Sequence[str] = ATTACKS
    trials: int | None = None
    confidence: float = 0.95
    budget: float | None = None
    device: str = "auto"
    workers: int | None = None
    store: Path | None = None
    fresh: bool = False
    trainer: Trainer = train
    command: str = ""

    def __post_init__(self) -> None:
        unknown = [name for name in self.attacks if name not in ATTACKS]
        if unknown or not self.attacks:
            raise InputError(f"Expected attacks={','.join(self.attacks)!r} among {', '.join(ATTACKS)}.")
        if not 0.5 <= self.confidence < 1.0:
            raise InputError(f"Expected confidence={self.confidence} in [0.5, 1).")
        if self.trials is not None and self.trials < 10:
            raise InputError(f"Expected trials={self.trials} to be at least 10.")
        usable_device(self.device)
        if self.budget is not None and not self.budget > 0:
            raise InputError(f"Expected budget={self.budget} seconds to be positive.")


@dataclass(frozen=True)
class Plan:
    """What an audit will do, known before it starts.

    Args:
        trials: Models per arm.
        needed: Models per arm that refute a half-noise twin, by test; None: more than 200,000.
        shares: Error probability of each test.
    """

    trials: int
    needed: dict[str, int | None]
    shares: dict[str, float]


def plan_audit(verdict: Verdict, settings: Settings, *, coins: bool) -> Plan:
    """The plan that follows from a checked claim: all that `--dry-run` does.

    Args:
        verdict: The claim check.
        settings: How the audit is run.
        coins: Whether fair recorded coins drew the membership, and the claim is about adding or removing a record.
    """
    tests = []
    if "membership" in settings.attacks and coins:
        tests.append("membership:epsilon_lower")
    if "clipbkd" in settings.attacks:
        tests += ["clipbkd:epsilon_lower", "clipbkd:curve_violation"]
    shares = split(settings.confidence, tests) if tests else {}
    needed = models_needed(
        verdict.epsilon_claimed, verdict.delta_claimed, delta_upper(verdict), share=min(shares.values(), default=0.05)
    )
    return Plan(settings.trials or default_trials(needed), needed, shares)


def delta_upper(verdict: Verdict) -> Callable[[Array], Array]:
    """The mechanism's certified curve: epsilon -> an upper bound on delta, for both directions."""
    return lambda epsilon: verdict.delta(epsilon)[1]
