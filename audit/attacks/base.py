"""What an attack is, and what every attack is given: the audit."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from secrets import token_hex
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.audit.attacks.released_steps import StepCount, StepWatch, watched
from dpaudit.audit.inputs.bundles import Bundle
from dpaudit.audit.inputs.datasets import Dataset
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.inputs.recipes import ApproximateMinimaRecipe
from dpaudit.audit.inputs.user_code import trains_one_model
from dpaudit.audit.settings import Settings
from dpaudit.audit.trials.engine import Score, Trial, TrialRunner, TrialSetup
from dpaudit.audit.trials.keys import NoSourceError, fingerprint
from dpaudit.mechanisms.base import with_noise_factor
from dpaudit.mechanisms.learning.spec import DPFTRLSpec, Pool, TrainingSpec
from dpaudit.mechanisms.learning.training import resolve_device
from dpaudit.verify.bounds import Tradeoff, auc, auc_interval, roc, tpr_at_fpr
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import AttackResult, Control, Verdict

Array = NDArray[np.float64]
NO_GHOST = (
    "Expected a loop train(spec, pool, members, seeds), which can keep a record's place without it, for a claim with "
    "claim.adjacency={adjacency!r} of {kind!r} batches: where a loop train(dataset, seed) is given one record less, "
    "all others move up. Or claim 'replace-one', of a loop that takes a noise_factor."
)
FEWEST = 10  # trained models below which nothing is computed from them
LEAST_SPENT = 1e-15  # by a look: a level of 1 less a part of it is still below 1, as of one that was not written down


def no_warning(text: str) -> None:
    """Tells nobody."""


@dataclass(frozen=True)
class Audit:
    """One model under audit, and what its attacks share.

    Args:
        bundle: The model with its recipe, claim and coins.
        spec: How the recipe trains it.
        dataset: The data of the recipe.
        claim_check: What calculation says of the claim.
        settings: How the audit is run.
        trials: Trains models, and keeps why that ended early.
        notes: Remarks a reader of the result must see, in sentences; attacks add theirs.
        controls: Positive controls that were carried out; attacks add theirs.
        warn: Told what a user should know before hours are spent.
    """

    bundle: Bundle
    spec: TrainingSpec
    dataset: Dataset
    claim_check: Verdict
    settings: Settings
    trials: TrialRunner = field(default_factory=TrialRunner)
    notes: list[str] = field(default_factory=list)
    controls: list[Control] = field(default_factory=list)
    warn: Callable[[str], None] = no_warning

    def delta_upper(self, epsilon: Array) -> Array:
        """The mechanism's certified curve: an upper bound on delta at each epsilon, for both directions."""
        return self.claim_check.delta_at_most(epsilon)

    @cached_property
    def tradeoff(self) -> Tradeoff:
        """What the mechanism's certified curve allows; where nothing is certified, what the claim itself does."""
        certified = Tradeoff.of(self.delta_upper)
        if float(certified(0.5)) < 1.0:
            return certified
        return Tradeoff.of_points([self.claim_check.epsilon_claimed], [self.claim_check.delta_claimed])

    def look(self, attack: str, setup: TrialSetup, *lists: Sequence[Trial], trials: int, count: bool = True) -> int:
        """Count a look at the game of an attack, or say which it would be, its canaries aside: see `TrialRunner.look`.

        Args:
            attack: Its name.
            setup, lists, trials, count: As there.
        """
        game = {
            "attack": attack,
            "spec": self.spec,
            "data": self.dataset.sha256,
            "trainer": self.settings.trainer,
            "seed": self.settings.seed,
        }
        return self.trials.look(game, setup, *lists, trials=trials, count=count)

    def look_at_coins(self, missing: int = 0) -> int:
        """How often the recorded coins of this model have been guessed, this audit included.

        Other attacks, seeds, loops or shadow models, of another recipe for example, guess the same coins by the same
        model: each audit of them is a look.

        Args:
            missing: How many of the shadow models there was no time for.
        """
        coins, settings = self.bundle.coins, self.settings
        weights = {name: tensor.detach().cpu().float().numpy() for name, tensor in self.bundle.state_dict.items()}
        game = {"model": weights, "coins": None if coins is None else coins.included}  # in whatever file
        tried = {"attacks": sorted(settings.attacks), "seed": settings.seed, "trials": settings.trials}
        return self.trials.look_at(game, f"{missing} {fingerprint(tried)} {self._training}")

    @cached_property
    def _training(self) -> str:
        """How models are trained, functions by their text; what nothing identifies is another one in each audit."""
        training = {"spec": self.spec, "data": self.dataset.sha256, "trainer": self.settings.trainer}
        try:
            return fingerprint(training, versions=False)
        except NoSourceError:
            return token_hex()

    @property
    def scaled_claim(self) -> Callable[[float], Claim] | None:
        """The recipe's claim with its noise multiplied by a factor; None where that is not all that may be wrong.

        Noise is not all that is released of approximate minima; and batches that are not drawn as claimed are a fault
        of their own.
        """
        if isinstance(self.bundle.recipe, ApproximateMinimaRecipe) or self.bundle.recipe.claim.sampling is not None:
            return None
        claim = self.bundle.recipe.claim_object()

        def scaled(factor: float) -> Claim:
            phases = [replace(p, mechanism=with_noise_factor(p.mechanism, factor)) for p in claim.phases]
            return replace(claim, phases=phases)

        return scaled

    def trial_setup(
        self, spec: TrainingSpec, pool: Pool, score: Score, watch: StepWatch | StepCount | None = None
    ) -> TrialSetup:
        """Trials on this audit's device, by the training function that is under audit, its steps watched or not."""
        trainer = watched(self.settings.trainer, watch)
        return TrialSetup(spec, pool, score, trainer, resolve_device(self.settings.device))


def check_places(audit: Audit) -> None:
    """Refuse a loop that records can only be taken from, where the claim leaves their places to ghosts.

    All records behind them would move up: other batches, and a true claim could be refuted.

    Raises:
        InputError: The trainer is train(dataset, seed), and the batches of others depend on who is there.
    """
    recipe, adjacency = audit.bundle.recipe, audit.bundle.recipe.claim.adjacency
    if not trains_one_model(audit.settings.trainer) or adjacency == "replace-one":
        return
    claimed = recipe.claimed_sampling
    for table in (claimed,) if adjacency == "add-remove" else (claimed, recipe.sampling):
        sampler = table.sampler(recipe.steps)
        if sampler is not None and not sampler.keeps_others:
            raise InputError(NO_GHOST.format(adjacency=adjacency, kind=table.kind))
    if isinstance(audit.spec, DPFTRLSpec) and audit.spec.batches > 1:  # by the numbers of the records
        raise InputError(NO_GHOST.format(adjacency=adjacency, kind="fixed-order"))


def spent_at(share: float, look: int) -> float:
    """What the i-th look may spend of an error probability: 6/(pi^2 i^2) of it, all looks together the whole."""
    return max(share * 6.0 / (math.pi * look) ** 2, LEAST_SPENT)


class Attack(Protocol):
    """One way of telling from models what they were trained on.

    Args:
        name: What its result and its tests are called.
        algorithms: Training algorithms that it applies to.
        by_default: Whether it is carried out where the settings name no attacks.
    """

    @property
    def name(self) -> str: ...
    @property
    def algorithms(self) -> tuple[str, ...]: ...
    @property
    def by_default(self) -> bool: ...

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The tests that it will ask error probability for, "<name>:<test>"; () if it does not apply.

        Raises:
            InputError: It would apply, and can never be carried out: told before anything is trained.
        """

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """What it measured; None if it does not apply, or was stopped too early.

        Args:
            audit: What is attacked.
            shares: Error probability of each of its tests.
        """


def operating_points(inside: ArrayLike, outside: ArrayLike, *, confidence: float, **details: Any) -> dict[str, Any]:
    """How well scores tell members from others: the fields `auc`, `tpr_at_fpr`, `roc`, ... of a result.

    The details begin with max(AUC, 1/2): an attack worse than guessing counts as guessing (Wei et al. 2023, DPMLBench).

    Args:
        inside: Scores of members.
        outside: Scores of others.
        confidence: Level of the band around the curve, and of the interval around its area.
        details: Anything else worth keeping, by name.

    >>> operating_points([0.0, 1.0], [1.0, 2.0], confidence=0.95)["details"]
    {'tailored_auc': 0.5}
    """
    area = auc(inside, outside)
    return {
        "auc": area,
        "auc_interval": list(auc_interval(area, np.size(inside), np.size(outside), confidence=confidence)),
        "tpr_at_fpr": {str(rate): tpr_at_fpr(inside, outside, rate) for rate in (0.01, 0.001)},
        "roc": roc(inside, outside, confidence=confidence),
        "details": {"tailored_auc": max(area, 0.5), **details},
    }
