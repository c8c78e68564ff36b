"""Shadow models: trained by the recipe on random halves of the records in question, once for all attacks that ask.

An attack with shadow models compares what the model under attack says of a record with what models of the same
recipe say that were trained with it, or without it (Shokri et al. 2017; Carlini et al. 2022). The models depend on
the recipe, the data and the audit's seed alone, and all attacks have them scored alike: so the trial store trains
them for the first and finds them for the others.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

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
POPULATION = 2500  # records at most that nobody asks about, as in Zarifzadeh et al. (2024)
_TRIALS, _HALVES = 2, 3  # streams of seeds beside those of a game's two arms


def log_odds(models: TrainedModels, x: NDArray[np.float32], y: NDArray[np.int64]) -> Array:
    """phi = log(p_y / (1 - p_y)) of each model at each record, shape (models, records)."""
    outputs = logits(models, x).numpy()
    return np.stack([margin(outputs[:, record], int(label)) for record, label in enumerate(y)], axis=1)


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
        coins.check_sides()
        return Pool(data.x, data.y), coins.records, coins.included
    n, half = len(data.y), min(len(data.y), len(data.y_test))
    pool = Pool(np.vstack([data.x, data.x_test[:half]]), np.append(data.y, data.y_test[:half]))
    return pool, np.append(fixed_order(n)[:half], np.arange(n, n + half)), np.arange(2 * half) < half


@dataclass(frozen=True)
class Comparison:
    """What the model under attack and its shadow models say of some records.

    Args:
        target: phi of the model under attack at the records in question, shape (records,).
        shadows: phi of the shadow models there, shape (models, records).
        trained: Which shadow model was trained on which record, the same shape.
        target_population, shadow_population: phi at further records, shape (others,) and (models, others), which no
            shadow model was trained on; none where the records in question are all there are.
        missing: How many shadow models there was no time for.
    """

    target: Array
    shadows: Array
    trained: NDArray[np.bool_]
    target_population: Array
    shadow_population: Array
    missing: int = 0


@dataclass(frozen=True)
class ShadowAttack:
    """An attack on the model as given by comparison with shadow models.

    Args:
        name: What its result and its test are called.
        score: From a comparison to a score per record in question, higher = member, shape (records,).
        title: The name in a sentence.
        algorithms: Training algorithms that it applies to.
        by_default: Whether it is carried out where the settings name no attacks: it shares the error probability,
            which would weaken the tests of the attacks that do.
    """

    name: str
    score: Callable[[Comparison], Array]
    title: str
    algorithms: tuple[str, ...] = ("dp-sgd", "dp-ftrl")
    by_default: bool = False

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
        comparison = compare(audit, pool, records)
        if len(comparison.shadows) < FEWEST:
            count = len(comparison.shadows)
            audit.notes.append(f"{self.title} was stopped after {count} shadow models: too few to compare with.")
            return None
        details: dict[str, Any] = {"shadow_models": len(comparison.shadows)}
        scores, missing = self.score(comparison), comparison.missing
        return one_model_result(self.name, audit, shares, scores, members, missing=missing, **details)


def compare(audit: Audit, pool: Pool, records: NDArray[np.int64]) -> Comparison:
    """Train the shadow models, or find them in the store, and ask them and the model under attack about the records.

    Args:
        audit: Of the model.
        pool: From `records_in_question`.
        records: Likewise.
    """
    data, seed, asked = audit.dataset, audit.settings.seed, len(records)
    count = audit.settings.trials or SHADOW_MODELS
    training = np.ones((count, len(pool.y)), dtype=bool)
    training[:, records] = random_halves(count, asked, seed)
    others = np.arange(0) if audit.bundle.coins is None else fixed_order(len(data.y_test))[:POPULATION]
    score = partial(
        log_odds,
        x=np.vstack([pool.x[records], data.x_test[others]]),
        y=np.append(pool.y[records], data.y_test[others]),
    )
    (shadows,) = audit.trials.run(
        audit.trial_setup(audit.spec, pool, score),
        [(row, trial_seed(seed, _TRIALS, trial)) for trial, row in enumerate(training)],
        what="Training shadow models",
    )
    shadows = shadows.reshape(-1, asked + len(others))
    target = score(audit.bundle.models(audit.spec))[0]
    trained = training[: len(shadows), records]
    missing = count - len(shadows)
    return Comparison(target[:asked], shadows[:, :asked], trained, target[asked:], shadows[:, asked:], missing)
