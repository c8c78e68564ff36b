"""What a canary game is played with: two neighbouring data sets, the training, and what tells the models apart."""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.released_steps import StepWatch
from dpaudit.audit.trials.engine import Score, Scores, Trial, trial_seed
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels, TrainingSpec


@dataclass(frozen=True)
class Arms:
    """Two neighbouring data sets, as subsets of one pool.

    Args:
        pool: The records of both data sets.
        without: Members of the first, bool, shape (records,): the neighbour P is told apart from.
        with_canary: Members of the second.
        canary: The record whose presence is tested, x of shape (inputs,).
        label: Its label.
        description: The pair, for the report.
    """

    pool: Pool
    without: NDArray[np.bool_]
    with_canary: NDArray[np.bool_]
    canary: NDArray[np.float32]
    label: int
    description: dict[str, Any]

    def trials(self, models: int, seed: int, streams: tuple[int, int] = (0, 1)) -> list[list[Trial]]:
        """Members and seed of every model, first those without the canary.

        Args:
            models: In each arm.
            seed: Root seed.
            streams: Stream of seeds of each arm; the same twice pairs the models, each with its twin's noise.
        """
        return [
            [(members, trial_seed(seed, stream, trial)) for trial in range(models)]
            for stream, members in zip(streams, (self.without, self.with_canary), strict=True)
        ]


@dataclass(frozen=True)
class Candidate:
    """One way to play a canary game.

    Args:
        spec: How every model is trained.
        arms: On which two data sets.
        scores: What may tell them apart, by name; each is higher with the canary.
        watch: What is computed in every step of a loop of the user's own, for scores that need it; None: nothing.
    """

    spec: TrainingSpec
    arms: Arms
    scores: Mapping[str, Score]
    watch: StepWatch | None = None

    @property
    def all_scores(self) -> Score:
        """Every score of each model, shape (models, scores)."""
        return partial(stacked_scores, scores=tuple(self.scores.values()))


def stacked_scores(models: TrainedModels, scores: tuple[Score, ...]) -> Scores:
    """Several scores of each model, shape (models, scores)."""
    return np.stack([score(models) for score in scores], axis=1)
