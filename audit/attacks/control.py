"""The positive control of an audit: would the same attack, with as many models, have found half the noise?

The control's models are trained as the recipe says but with half of its noise, from seeds of their own. Its scores
enter no bound and no test of the claim: how many models the audit trains may depend on them, but what the audit's own
models are is independent of them, so that the control costs no error probability.

Its power is the share of bootstrap samples of its scores in which the audit's own tests refute, at the level that this
look at the audit's models has. It has the models that the pilot asks for, and half as many again as long as some
samples of two thirds of them do not refute, up to the audit's own number: an audit with more models finds what one with
fewer does. Where that number is not given, the audit has as many as its control.

Growth until samples as large as the control refute would end at a lucky one: of normal scores closer together than the
pilot saw, such audits find half the noise in 92 to 95 of 100, and one control in nine stands for less than 80 of 100.
By two thirds it is 97 to 99 of 100, and one in thirty.
"""

import inspect
import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from dpaudit.audit.attacks.base import FEWEST, Audit
from dpaudit.audit.attacks.pilot import Pilot, separation
from dpaudit.audit.attacks.released_steps import StepWatch, watched
from dpaudit.audit.inputs.user_code import UserTrainer
from dpaudit.audit.power import MODELS, REPEATS, Refutes, resampled
from dpaudit.audit.trials.engine import Score, Scores, Trainer, TrialRunner, TrialSetup, trial_seed
from dpaudit.mechanisms.defects import CORRECT, Defect
from dpaudit.mechanisms.learning.architectures import through_opacus
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec
from dpaudit.mechanisms.learning.training import resolve_device, train
from dpaudit.verify.results import CONTROLLED_NOISE, PROMISED_POWER, Control

NO_NOISE_MODELS = 50  # per arm
GROWTH = 1.5
_HALF_NOISE, _NO_NOISE, _RESAMPLES = (102, 103), (104, 105), 106  # streams of seeds


@dataclass(frozen=True)
class ScaledNoise:
    """A training function of the user's own, told to multiply its noise.

    Args:
        trainer: It takes `noise_factor`.
        noise_factor: What it is told.
    """

    trainer: Trainer
    noise_factor: float

    def __call__(self, *arguments: Any, **options: Any) -> TrainedModels | Sequence[Mapping[str, Tensor]]:
        """Train."""
        return self.trainer(*arguments, noise_factor=self.noise_factor, **options)


def takes_noise_factor(trainer: Trainer) -> bool:
    """Whether a training function has a parameter `noise_factor`."""
    function = trainer.code.load() if isinstance(trainer, UserTrainer) else trainer
    return "noise_factor" in inspect.signature(function).parameters


def controlled_training(audit: Audit) -> str:
    """Whose noise the controls scale, in words."""
    if audit.settings.trainer is train:
        return "the built-in training"
    if takes_noise_factor(audit.settings.trainer):
        return "the training under audit, its own noise scaled by noise_factor"
    return "the built-in training, for the one under audit takes no noise_factor"


def with_noise(audit: Audit, factor: float, *, clipped_as_is: bool = False) -> Callable[..., TrialSetup]:
    """From (spec, pool, score), and a watch if need be, to trials with the noise scaled, and no other planted fault.

    Args:
        audit: Whose training function, where that takes a `noise_factor`; else the built-in one is used.
        factor: Of the noise that the recipe says.
        clipped_as_is: Keep a planted fault in how records are clipped, as a loop of the user's keeps its own: a pilot
            looks for the canary that the training under audit shows best.
    """
    trainer, device = audit.settings.trainer, resolve_device(audit.settings.device)

    def setup(spec: TrainingSpec, pool: Pool, score: Score, watch: StepWatch | None = None) -> TrialSetup:
        if trainer is not train and takes_noise_factor(trainer):
            return TrialSetup(spec, pool, score, ScaledNoise(watched(trainer, watch), factor), device)
        kept = spec.defect if clipped_as_is else CORRECT
        scaled = Defect(noise_factor=factor, clip_norm=kept.clip_norm, unclipped_class=kept.unclipped_class)
        return TrialSetup(replace(spec, defect=scaled), pool, score, train, device)

    return setup


def piloted(audit: Audit) -> list[tuple[float, Callable[..., TrialSetup]]]:
    """How a pilot trains each of its candidates, and what the distances between their scores are multiplied by.

    With half of the noise; and a loop that takes no `noise_factor` as it is besides, for the built-in training shows
    of every canary what a correct loop would: it clips the longest.
    """
    half = with_noise(audit, CONTROLLED_NOISE, clipped_as_is=True)
    if audit.settings.trainer is train or takes_noise_factor(audit.settings.trainer):
        return [(1.0, half)]
    return [(1.0, half), (1.0 / CONTROLLED_NOISE, audit.trial_setup)]


def run_control(
    attack: str, audit: Audit, pilot: Pilot, models: int, refutes: Callable[[int], Refutes]
) -> Control | None:
    """Play the game with half the noise and with none, and count how often the audit's own tests would refute.

    Under a budget it ends with half of the time that is left, where a verdict is to follow.

    Args:
        attack: Its name.
        audit: Whose settings, trials and training.
        pilot: What was chosen.
        models: Models per arm to begin with.
        refutes: From models per arm to the audit's own tests of as many, at the level of that look.

    Returns:
        None where it was stopped before there were models to judge by.
    """
    began, seed, limit = time.monotonic(), audit.settings.seed, audit.settings.trials or MODELS[-1]
    deadline = audit.trials.deadline
    if deadline is not None and audit.trials.concludes:
        deadline = began + (deadline - began) / 2
    trials = replace(audit.trials, deadline=deadline, trained=0)
    rng_seed = trial_seed(seed, _RESAMPLES, 0)

    def play(factor: float, size: int, streams: tuple[int, int]) -> tuple[Scores, Scores]:
        setup = with_noise(audit, factor)(pilot.spec, pilot.arms.pool, pilot.score, pilot.watch)
        lists = pilot.arms.trials(size, seed, streams)
        without, with_canary = trials.run(setup, *lists, what=f"Positive control, {factor:g} of the noise")
        return without, with_canary

    def power(scores: tuple[Scores, Scores], share: float = 1.0) -> int:
        size = round(share * models)
        return resampled(refutes(models), *scores, (size, size), rng=np.random.default_rng(rng_seed))

    silent = play(0.0, NO_NOISE_MODELS, _NO_NOISE)
    half = play(CONTROLLED_NOISE, models, _HALF_NOISE)
    while len(half[0]) >= FEWEST:
        models = min(models, len(half[0]))  # where it was cut short: a few, drawn again and again, are no more
        found = power(half)
        enough = found >= PROMISED_POWER * REPEATS and power(half, 1 / GROWTH) == REPEATS
        if enough or models == limit or trials.stopped:
            break
        models = min(round(GROWTH * models), limit)
        half = play(CONTROLLED_NOISE, models, _HALF_NOISE)
    _hand_on(trials, audit)
    if min(len(half[0]), len(silent[0])) < FEWEST:
        return None
    no_noise, apart = power(silent), float(separation(*(scores[:, None] for scores in half))[0])
    return Control(
        attack=attack,
        training=controlled_training(audit),
        noise_factor=CONTROLLED_NOISE,
        models=models,
        trials=len(half[0]),
        resamples=REPEATS,
        power=found / REPEATS,
        found=found >= PROMISED_POWER * REPEATS,
        no_noise_trials=len(silent[0]),
        no_noise_found=no_noise >= PROMISED_POWER * REPEATS,
        seed=rng_seed,
        seconds=time.monotonic() - began,
        separation=apart if math.isfinite(apart) else None,
    )


def built_in_control(
    attack: str, audit: Audit, pilot: Pilot, own: Control | None, refutes: Callable[[int], Refutes]
) -> Control | None:
    """The same control of the built-in training, beside that of a loop that is its own: how many models it takes.

    A loop that adds half of the claimed noise halves that again for its own control, which fewer models find than the
    loop itself. Under a budget it has a quarter of the time that is left.

    Args:
        attack, audit, pilot, refutes: As of `run_control`.
        own: The loop's own control; the other has as many models to begin with.

    Returns:
        None for other loops, where every noisy sum is seen, which tells half of the noise as well as can be, where
        models of this network are not trained together, where the loop's own found nothing, and where it was stopped.
    """
    trials, settings = audit.trials, audit.settings
    if settings.trainer is train or not takes_noise_factor(settings.trainer) or pilot.watch is not None:
        return None
    if through_opacus(pilot.spec.architecture):
        return None
    if own is None or not own.found or trials.stopped or trials.control_cut:
        return None
    deadline = trials.deadline
    if deadline is not None and trials.concludes:
        now = time.monotonic()
        deadline = now + (deadline - now) / 2  # of which a control takes half
    apart = replace(trials, deadline=deadline)
    built_in = replace(audit, settings=replace(settings, trainer=train), trials=apart, notes=[])
    control = run_control(attack, built_in, pilot, own.models, refutes)
    trials.trained, trials.stopped = apart.trained, apart.stopped
    if apart.control_cut:
        audit.notes.append(
            "The time was too short for a positive control of the built-in training besides: a loop that adds half of "
            "the claimed noise may take more models than its own asked for."
        )
    return None if apart.control_cut or apart.stopped else control


def canary_control(
    attack: str,
    training: str,
    scored: Callable[[float], Scores | None],
    inside: NDArray[np.bool_],
    refutes: Refutes,
    *,
    seed: int,
) -> Control | None:
    """Score canaries of one training with half the noise and with none, and count how often the audit would refute.

    The power is over bootstrap samples of the canaries, and enters no bound.

    Args:
        attack: Its name.
        training: Whose noise is scaled, in words.
        scored: From the factor of the noise to a score of every canary; None where it was stopped.
        inside: Which canaries were put in, shape (canaries,).
        refutes: The audit's own tests.
        seed: Of the bootstrap samples.

    Returns:
        None where it was stopped.
    """
    began, rng, found = time.monotonic(), np.random.default_rng(seed), []
    for factor in (CONTROLLED_NOISE, 0.0):
        scores = scored(factor)
        if scores is None:
            return None
        arms = scores[~inside], scores[inside]
        found.append(resampled(refutes, *arms, (len(arms[0]), len(arms[1])), rng=rng))
    return Control(
        attack=attack,
        training=training,
        noise_factor=CONTROLLED_NOISE,
        models=int(inside.sum()),
        trials=int(inside.sum()),
        resamples=REPEATS,
        power=found[0] / REPEATS,
        found=found[0] >= PROMISED_POWER * REPEATS,
        no_noise_trials=int(inside.sum()),
        no_noise_found=found[1] >= PROMISED_POWER * REPEATS,
        seed=seed,
        seconds=time.monotonic() - began,
        unit="canary",
    )


def _hand_on(control: TrialRunner, audit: Audit) -> None:
    """What ended the control ends the audit too, except for its own share of the time."""
    trials = audit.trials
    trials.trained += control.trained
    if control.stopped != "budget" or not trials.concludes:
        trials.stopped = control.stopped
        return
    trials.control_cut = True
    audit.notes.append("The positive control ended with its half of the time, before it had all its models.")
