"""White box, one run: gradient canaries in one training, scored at every step.

The observer of the claim sees every noisy sum. So here: ONE model is trained by the recipe, with canaries put in by
fair coins that each add clip at a coordinate of their own (`mechanisms/learning/gradient_canaries.py`), and every step
is scored by the log-likelihood ratio of what it shows there, with the canary against without. No test of one canary is
better than one of this ratio (Neyman and Pearson).

What is released is noise on a sum: momentum, Adam or any other optimizer works on the released sum, and changes nothing
here. The canaries change the model that is trained; it is trained for the audit alone.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import FEWEST, Array, Audit, spent_at
from dpaudit.audit.attacks.canary_game import family_bound, joint_result
from dpaudit.audit.attacks.control import canary_control
from dpaudit.audit.attacks.membership import scored_result
from dpaudit.audit.inputs.files import InputError
from dpaudit.audit.score_deciders import joint_bound
from dpaudit.audit.trials.engine import Scores, Trial, TrialSetup, trial_seed
from dpaudit.mechanisms.base import IIDCoordinates, with_dimension
from dpaudit.mechanisms.defects import Defect
from dpaudit.mechanisms.learning.architectures import weight_count
from dpaudit.mechanisms.learning.spec import DPSGDSpec, Pool, TrainedModels
from dpaudit.mechanisms.learning.training import train
from dpaudit.verify.bounds import JointTest
from dpaudit.verify.results import AttackResult, Control

CANARIES = 5000  # put in or left out by coins
CONTROLS = 5000  # further weights that are watched and never touched: they show the noise
INDEPENDENT = "noise with independent coordinates, as claimed"
TIES = 1e-9  # of what was seen: puts equal ratios in order, such as those of all large values under Laplace noise
_COINS, _TRAINING, _CONTROLS, _RESAMPLES = 4, 5, 10, 11  # streams of seeds beside those of games and shadow models


def log_likelihood_ratios(models: TrainedModels, spec: DPSGDSpec) -> Array:
    """Score of every canary of every model: the log-likelihood ratio of all that its coordinate showed, summed.

    With l the privacy loss of the step's mechanism at what was seen there, the ratio of a step is that of a batch which
    the canary is in with probability q to one without it: log(1 - q + q e^l). Of noise whose coordinates hang together
    the mechanism's law of one coordinate is used: a score like any other.

    Args:
        models: With `observed`, from a training with gradient canaries.
        spec: Of the training.

    Returns:
        Shape (models, canaries).

    Raises:
        ValueError: The training function did not observe the canaries.
    """
    if models.observed is None:
        raise ValueError("Expected the training function to observe the gradient canaries of its specification.")
    q = spec.sampling_prob
    total = np.zeros((len(models.observed), models.observed.shape[2]))
    for step, seen in enumerate(models.observed.numpy().astype(np.float64).swapaxes(0, 1)):
        mechanism = with_dimension(spec.mechanism_at(step), 1)
        loss = mechanism.privacy_loss(seen[..., None], np.array([float(mechanism.clip)]))
        loss = loss + TIES * seen / float(mechanism.clip)
        total += loss if q == 1 else np.logaddexp(np.log1p(-q), np.log(q) + loss)
    return total


@dataclass(frozen=True)
class WhiteBox:
    """Gradient canaries in one training of the recipe."""

    name: str = "white-box"
    algorithms: tuple[str, ...] = ("dp-sgd",)
    by_default: bool = False  # it shares the error probability, which would weaken the tests of the attacks that do

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """One: the claimed (epsilon, delta) and the mechanism's whole curve share its error probability.

        Raises:
            InputError: The coins leave too few canaries on a side.
        """
        if not _applies(audit):
            return ()
        _, inside = coins(audit)
        if min(inside.sum(), (~inside).sum()) < FEWEST:
            raise InputError(
                f"Expected {self.name} to have {FEWEST} canaries or more in the training and as many left out, not "
                f"{inside.sum()} and {(~inside).sum()}: at most one for each of the network's "
                f"{weight_count(audit.spec.architecture):,} weights, twice as many as --trials, and put in by coins."
            )
        return (f"{self.name}:joint",)

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Train one model with canaries; None if it does not apply, or there was no time."""
        spec = audit.spec
        if not isinstance(spec, DPSGDSpec) or not _applies(audit):
            if spec.algorithm in self.algorithms:
                audit.notes.append(
                    "White box needs the built-in training on Poisson batches or all records, and a claim on adding "
                    "or removing a record."
                )
            return None
        pool, members, fair = plant(audit)
        inside = members[len(audit.dataset.y) :]
        spec, share = replace(spec, gradient_canaries=len(fair)), shares[self.tests(audit)[0]]
        look = partial(audit.look, self.name, *_trials(audit, spec, pool, members, None), trials=len(fair))
        if audit.settings.control and self._independent(spec):
            control = self._control(audit, spent_at(share, look(count=False)), spec, pool, members)
            audit.controls.extend([] if control is None else [control])
        scores = observe(audit, spec, pool, members, noise_factor=None)
        if not len(scores):
            audit.notes.append("White box was stopped after 0 models: it needs one.")
            return None
        audit.notes.append(
            "White box trains one new model with gradient canaries from the recipe: it judges the training function's "
            "sum, clipping, sampling and noise, not the model's file."
        )
        return self.judge(audit, share, spec, scores[0], inside, fair, look=look())

    def _independent(self, spec: DPSGDSpec) -> bool:
        """Whether the claimed noise has independent coordinates in every step."""
        mechanisms = spec.schedule or (spec.mechanism,)
        return all(isinstance(mechanism.structure, IIDCoordinates) for mechanism in mechanisms)

    def _control(
        self, audit: Audit, share: float, spec: DPSGDSpec, pool: Pool, members: NDArray[np.bool_]
    ) -> Control | None:
        """The same canaries in a training with half of the noise and in one with none, held against the same curve."""
        claimed = audit.tradeoff

        def refutes(without: Scores, with_canary: Scores) -> bool:
            return JointTest(with_canary, without, claimed, 1.0 - share, audit.settings.seed).rejects(claimed)

        return canary_control(
            self.name,
            "the built-in training",
            lambda factor: next(iter(observe(audit, spec, pool, members, noise_factor=factor)), None),
            members[len(audit.dataset.y) :],
            refutes,
            seed=trial_seed(audit.settings.seed, _RESAMPLES, 0),
        )

    def judge(
        self,
        audit: Audit,
        share: float,
        spec: DPSGDSpec,
        watched: Array,
        inside: NDArray[np.bool_],
        fair: NDArray[np.bool_],
        *,
        look: int = 1,
    ) -> AttackResult:
        """What the scores prove: as much as so many trainings where canaries do not disturb each other.

        The claimed noise decides that, before the coins fall. If its coordinates are independent, the scores of all
        canaries and controls are: in every step each shows a coordinate of fresh noise, plus the clip if its canary is
        in the batch. Given the coins they are two arms of independent scores, as from a game on two data sets that
        differ in one record, the other canaries being data that both share. Noise of other structure leaves the
        one-run bounds, which allow for every dependence, on the canaries whose coin was fair.

        Args:
            audit: Of the model.
            share: Error probability, over all looks together.
            spec: Of the training.
            watched: Scores of canaries and controls, shape (watched,).
            inside: Which of them were put in.
            fair: Which of them a coin decided.
            look: How often growing numbers of canaries have been looked at, this time included.
        """
        arms = {
            "pair": "gradient canaries that fair coins put in, and those they left out or that were never there",
            "canaries": int(fair.sum()),
            "controls": int((~fair).sum()),
            "records": len(audit.dataset.y),
            "steps": spec.steps,
        }
        if not self._independent(spec):
            return scored_result(self.name, audit, share, watched[fair], inside[fair], arms, look=look)
        claimed, promised = audit.tradeoff, audit.claim_check
        with_canary, without = watched[inside], watched[~inside]
        level = 1.0 - spent_at(share, look)
        test = JointTest(with_canary, without, claimed, confidence=level, seed=audit.settings.seed)
        bound = replace(joint_bound(test, promised.delta_claimed, promised.epsilon_claimed), assumes=INDEPENDENT)
        family = family_bound(audit, test)
        if family is not None:
            family = replace(family, assumes=f"{INDEPENDENT}; {family.assumes}")
        result = joint_result(self.name, audit, test, bound, arms, look=look)
        return replace(result, confidence_spent=share, family_bound=family)


def observe(
    audit: Audit, spec: DPSGDSpec, pool: Pool, members: NDArray[np.bool_], *, noise_factor: float | None
) -> Scores:
    """The scores of one training, shape (1, watched), or none where there was no time.

    Args:
        audit: Whose settings and trials.
        spec: With gradient canaries.
        pool, members: From `plant`.
        noise_factor: Of a positive control, which has no other fault; None for the training under audit.
    """
    what = "Training with gradient canaries" if noise_factor is None else f"Control, {noise_factor:g} of the noise"
    (scores,) = audit.trials.run(*_trials(audit, spec, pool, members, noise_factor), what=what)
    return scores


def _trials(
    audit: Audit, spec: DPSGDSpec, pool: Pool, members: NDArray[np.bool_], noise_factor: float | None
) -> tuple[TrialSetup, list[Trial]]:
    stream = _TRAINING if noise_factor is None else _CONTROLS
    trained = spec if noise_factor is None else replace(spec, defect=Defect(noise_factor=noise_factor))
    setup = audit.trial_setup(trained, pool, partial(log_likelihood_ratios, spec=spec))
    return setup, [(members, trial_seed(audit.settings.seed, stream, 0))]


def plant(audit: Audit) -> tuple[Pool, NDArray[np.bool_], NDArray[np.bool_]]:
    """The data with a row for every weight that is watched, the members of the one model, and whose coin was fair.

    Canaries and controls lie in random order over the weights.
    """
    data, (fair, inside) = audit.dataset, coins(audit)
    x = np.vstack([data.x, np.zeros((len(fair), data.x.shape[1]), dtype=np.float32)])
    pool = Pool(x, np.append(data.y, np.zeros(len(fair), dtype=np.int64)))
    return pool, np.append(np.ones(len(data.y), dtype=bool), inside), fair


def coins(audit: Audit) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Of every weight that is watched, whether a coin decides of its canary, and whether that is put in."""
    settings, weights = audit.settings, weight_count(audit.spec.architecture)
    canaries = min(CANARIES if settings.trials is None else 2 * settings.trials, weights)
    watched = min(canaries + CONTROLS, weights)
    rng = np.random.default_rng(trial_seed(settings.seed, _COINS, 0))
    fair = rng.permutation(np.arange(watched) < canaries)
    return fair, fair & (rng.integers(0, 2, watched) == 1)


def _applies(audit: Audit) -> bool:
    """Whether this training has the hook, and its claim is on adding or removing a record."""
    return (
        isinstance(audit.spec, DPSGDSpec)
        and audit.spec.sampler is None
        and audit.settings.trainer is train
        and audit.bundle.recipe.claim.adjacency != "replace-one"
    )


WHITE_BOX = WhiteBox()
