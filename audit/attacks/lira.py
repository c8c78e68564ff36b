"""LiRA, offline: how far is a record's confidence above what models that never saw it give it?

Carlini, Chien, Nasr, Song, Terzis and Tramer (2022), "Membership Inference Attacks From First Principles", Section
IV-B and Appendix A. Shadow models are trained by the recipe on random halves of the records in question; for each
record the confidences of those that were trained without it are fitted by a Gaussian.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import FEWEST, Array, Audit
from dpaudit.audit.attacks.clipbkd import margin
from dpaudit.audit.attacks.membership import NOBODY, one_model_result, one_run_tests
from dpaudit.audit.inputs.formats import fixed_order
from dpaudit.audit.trials.engine import trial_seed
from dpaudit.mechanisms.learning.spec import Pool, TrainedModels
from dpaudit.mechanisms.learning.training import logits
from dpaudit.verify.results import AttackResult

SHADOW_MODELS = 64
_TRIALS, _HALVES = 2, 3  # streams of seeds beside those of a game's two arms
_LEAST_SPREAD = 1e-9  # of confidences that no record moves


def log_odds(models: TrainedModels, x: NDArray[np.float32], y: NDArray[np.int64]) -> Array:
    """phi = log(p_y / (1 - p_y)) of each model at each record, shape (models, records)."""
    outputs = logits(models, x).numpy()
    return np.stack([margin(outputs[:, record], int(label)) for record, label in enumerate(y)], axis=1)


def offline_scores(target: Array, shadows: Array, outside: NDArray[np.bool_]) -> Array:
    """Score of each record: z = (phi - mu) / sigma, mu and sigma over shadow models trained without it.

    The paper's score is the normal distribution function at z, which orders records alike and rounds to 1 earlier.

    Args:
        target: phi of the model under attack, shape (records,).
        shadows: phi of the shadow models, shape (models, records).
        outside: Which of them were trained without which record, the same shape, at least two for each record.

    >>> offline_scores(np.array([3.0]), np.array([[0.0], [9.0], [2.0]]), np.array([[True], [False], [True]])).round(3)
    array([1.414])
    """
    phi = np.where(outside, shadows, np.nan)
    return np.asarray((target - np.nanmean(phi, axis=0)) / np.maximum(np.nanstd(phi, axis=0, ddof=1), _LEAST_SPREAD))


def random_halves(models: int, records: int, seed: int) -> NDArray[np.bool_]:
    """Members of each shadow model, bool, shape (models, records): a fair coin per record, then the complement.

    >>> random_halves(4, 100, seed=1).sum(axis=0).tolist() == [2] * 100
    True
    """
    coins = np.random.default_rng(trial_seed(seed, _HALVES, 0)).integers(0, 2, (-(-models // 2), records)) == 1
    return np.stack([coins, ~coins], axis=1).reshape(-1, records)[:models]


def records_in_question(audit: Audit) -> tuple[Pool, NDArray[np.int64], NDArray[np.bool_]]:
    """A pool, the records in it that are to be told apart, and which of them the model was trained on.

    With coins these are the coins' records; without, as many training as test records, so that shadow models have
    about as many members as the model under attack.
    """
    data, coins = audit.dataset, audit.bundle.coins
    if coins is not None:
        return Pool(data.x, data.y), coins.records, coins.included
    n, half = len(data.y), min(len(data.y), len(data.y_test))
    pool = Pool(np.vstack([data.x, data.x_test[:half]]), np.append(data.y, data.y_test[:half]))
    return pool, np.append(fixed_order(n)[:half], np.arange(n, n + half)), np.arange(2 * half) < half


@dataclass(frozen=True)
class OfflineLiRA:
    """The likelihood-ratio attack on the model as given, from shadow models that never saw the record in question."""

    name: str = "lira"
    algorithms: tuple[str, ...] = ("dp-sgd", "dp-ftrl")
    by_default: bool = False  # it shares the error probability, which would weaken the tests of the attacks that do

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The one-run bound, where coins were recorded."""
        return one_run_tests(self.name, audit) if audit.spec.algorithm in self.algorithms else ()

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Train shadow models and score the records; None if there are none, or it was stopped too early."""
        if audit.spec.algorithm not in self.algorithms:
            return None
        pool, records, members = records_in_question(audit)
        if not len(records):
            audit.notes.append(NOBODY)
            return None
        count, seed = audit.settings.trials or SHADOW_MODELS, audit.settings.seed
        training = np.ones((count, len(pool.y)), dtype=bool)
        training[:, records] = random_halves(count, len(records), seed)
        score = partial(log_odds, x=pool.x[records], y=pool.y[records])
        (shadows,) = audit.trials.run(
            audit.trial_setup(audit.spec, pool, score),
            [(row, trial_seed(seed, _TRIALS, trial)) for trial, row in enumerate(training)],
            what="Training shadow models",
        )
        if len(shadows) < FEWEST:
            audit.notes.append(f"LiRA was stopped after {len(shadows)} shadow models: too few to compare with.")
            return None
        target = score(audit.bundle.models(audit.spec))[0]
        scores = offline_scores(target, shadows, ~training[: len(shadows), records])
        return one_model_result(self.name, audit, shares, scores, members, shadow_models=len(shadows))


LIRA = OfflineLiRA()
