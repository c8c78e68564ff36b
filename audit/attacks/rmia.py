"""RMIA: has a record gained more probability over models that never saw it than other records have?

Zarifzadeh, Liu and Shokri (2024), "Low-Cost High-Power Membership Inference Attacks", Section 3. A record is compared
with every record z of a population, by the ratio of two gains; the score is the share of the population it beats.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit

from dpaudit.audit.attacks.base import Array
from dpaudit.audit.attacks.shadow import Comparison, ShadowAttack

SCALING = 0.3  # a: how far models trained with a record are from certain of it, as in the paper for CIFAR-10
GAIN = 1.0  # gamma: how much more a record must have gained than z
_TINY = 1e-300  # a probability that is no longer a float


def gains(target: Array, shadows: Array, outside: NDArray[np.bool_], *, scaling: float = SCALING) -> Array:
    """p(x) of the model under attack over p(x) of models at large, for each record.

    Offline no model was trained with x; the mean over all models is estimated from those trained without it by
    p = ((1 + a) p_out + (1 - a))/2, which supposes that training with x raises its probability to a p_out + 1 - a.

    Args:
        target: Log-odds of the right label by the model under attack, shape (records,).
        shadows: Those of the shadow models, shape (models, records).
        outside: Which of them were trained without which record, the same shape, at least one for each record.
        scaling: a in [0, 1].

    >>> gains(np.array([0.0]), np.array([[0.0], [9.0]]), np.array([[True], [False]]), scaling=1.0)
    array([1.])
    """
    mean_out = np.nanmean(np.where(outside, expit(shadows), np.nan), axis=0)
    return np.asarray(expit(target) / np.maximum(((1.0 + scaling) * mean_out + 1.0 - scaling) / 2.0, _TINY))


def rmia_scores(records: Array, population: Array) -> Array:
    """Share of the population whose gain times gamma is at most the record's, in [0, 1].

    Args:
        records: Gains of the records in question, shape (records,).
        population: Gains of the population, shape (others,), at least one.

    >>> rmia_scores(np.array([0.5, 2.0]), np.array([0.4, 1.0, 3.0])).round(3)
    array([0.333, 0.667])
    """
    beaten = np.searchsorted(np.sort(population), records / GAIN, side="right")
    return np.asarray(beaten / len(population), dtype=np.float64)


def _score(comparison: Comparison) -> Array:
    """RMIA's score; where there is no population apart, the records in question are it."""
    records = gains(comparison.target, comparison.shadows, ~comparison.trained)
    if not len(comparison.target_population):
        return rmia_scores(records, records)
    nobody = np.ones(comparison.shadow_population.shape, dtype=bool)
    return rmia_scores(records, gains(comparison.target_population, comparison.shadow_population, nobody))


RMIA = ShadowAttack("rmia", _score, title="RMIA")
