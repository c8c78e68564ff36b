"""The pilot of a canary game: a few models of every candidate decide which is played, and with how many models.

Its models have seeds of their own, and their scores enter no bound and no test: whatever is decided by them is decided
before, and independently of, the trials that count. So choosing the best of many candidates costs no error
probability.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from dpaudit.audit.attacks.arms import Arms, Candidate
from dpaudit.audit.attacks.base import Array, Audit
from dpaudit.audit.attacks.released_steps import StepWatch, released_ratio
from dpaudit.audit.trials.engine import Score, Scores, TrialSetup
from dpaudit.mechanisms.learning.spec import TrainedModels, TrainingSpec

PAIRS = 10  # models of either arm for every candidate
# Whoever sees every release can do whatever one who sees the outputs can, so a few models that say otherwise are
# believed only where they say it clearly: 10 pairs know a separation to a fifth or so
FAVOUR = 1.3
# A score that is lower with the canary by so many standard deviations, as no ten pairs show by chance, tells as much:
# noise that is the same in all models of an arm moves it either way
TURNED = 3.0
# Standard errors that are taken off the distances of further ways to train: a loop whose models share no noise in a
# pair would choose by luck, and then a canary that its control, by other models, cannot see
SURE = 2.0
_FURTHEST = 1e300  # standard deviations, of scores without any
_STREAM = 101  # of seeds; one for both arms: a pair of models shares its noise and its batches


@dataclass(frozen=True)
class Pilot:
    """What a few models of every candidate showed.

    Args:
        spec: How every model of the chosen candidate is trained.
        arms: On which two data sets.
        score: What tells them apart best.
        score_name: In words.
        separation: Of the chosen candidate's scores with half of the recipe's noise: the distance of the arms' means,
            in standard deviations of one arm; of the training that controls have.
        candidates: How many were tried.
        models: Models trained.
        seconds: They took.
        watch: What the score needs to be computed in every step; None: nothing.
    """

    spec: TrainingSpec
    arms: Arms
    score: Score
    score_name: str
    separation: float
    candidates: int
    models: int
    seconds: float
    watch: StepWatch | None = None


@dataclass(frozen=True)
class Turned:
    """A score with its sign turned.

    Args:
        score: Lower with the canary.
    """

    score: Score

    def __call__(self, models: TrainedModels) -> Scores:
        """Higher with the canary."""
        return -self.score(models)


def run_pilot(
    audit: Audit, candidates: Sequence[Candidate], ways: Sequence[tuple[float, Callable[..., TrialSetup]]]
) -> Pilot | None:
    """Train a few models of every candidate, and choose the one whose arms lie furthest apart.

    Args:
        audit: Whose settings.
        candidates: What there is to choose from.
        ways: To train them, from (spec, pool, score, watch) to trials, each with what its distances count; the first
            is with half of the noise.

    Returns:
        None where the trials were stopped first.
    """
    began, chosen, worth = time.monotonic(), None, 0.0
    for candidate in candidates:
        lists = candidate.arms.trials(PAIRS, audit.settings.seed, (_STREAM, _STREAM))
        distances, errors = [], []
        for _, setup in ways:
            trials = setup(candidate.spec, candidate.arms.pool, candidate.all_scores, candidate.watch)
            without, with_canary = audit.trials.run(trials, *lists, what="Trying canaries")
            if len(without) < PAIRS:
                return None
            distances.append(separation(without, with_canary))
            errors.append(separation_error(without, with_canary))
        # what is infinite in both arms shows nothing
        apart = np.nan_to_num(distances, posinf=_FURTHEST, neginf=-_FURTHEST)
        turned = apart.min(axis=0) < -TURNED
        apart = np.where(turned, -1.0, 1.0) * apart
        favours = np.array([FAVOUR if score is released_ratio else 1.0 for score in candidate.scores.values()])
        doubts = SURE * np.nan_to_num(errors, posinf=_FURTHEST)[1:]
        sure = np.vstack([apart[:1], np.maximum(apart[1:] - doubts, 0.0)])
        counted = np.array([count for count, _ in ways]) @ sure * favours
        best = int(counted.argmax())
        if chosen is None or counted[best] > worth:
            worth = float(counted[best])
            name, score = list(candidate.scores.items())[best]
            watch = candidate.watch if score is released_ratio else None
            if turned[best]:
                name, score = f"{name}, turned round", Turned(score)
            chosen = Pilot(
                candidate.spec, candidate.arms, score, name, float(apart[0, best]), len(candidates), 0, 0.0, watch
            )
    models = 2 * PAIRS * len(candidates) * len(ways)
    return None if chosen is None else replace(chosen, models=models, seconds=time.monotonic() - began)


def separation(without: Scores, with_canary: Scores) -> Array:
    """Distance of the means of two samples in standard deviations of one, for every column; 0 where nothing varies.

    >>> separation(np.array([[0.0], [2.0]]), np.array([[2.0], [4.0]])).round(3).tolist()
    [1.414]
    """
    distance = with_canary.mean(axis=0) - without.mean(axis=0)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(np.where(distance == 0, 0.0, distance / _spread(without, with_canary)))


def separation_error(without: Scores, with_canary: Scores) -> Array:
    """Standard error of `separation` from the differences in pairs, small where pairs share their noise; per column.

    >>> separation_error(np.array([[0.0], [2.0]]), np.array([[1.0], [3.0]])).tolist()
    [0.0]
    """
    error = (with_canary - without).std(axis=0, ddof=1) / np.sqrt(len(without))
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.asarray(error / _spread(without, with_canary))


def _spread(without: Scores, with_canary: Scores) -> Array:
    """Standard deviation of one of two samples, pooled, for every column."""
    return np.asarray(np.sqrt((with_canary.var(axis=0, ddof=1) + without.var(axis=0, ddof=1)) / 2.0))
