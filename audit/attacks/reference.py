"""The reference attack: is a record's loss below that of nearly all models that never saw it?

Ye, Maddi, Murakonda, Bindschaedler and Shokri (2022), "Enhanced Membership Inference Attacks against Machine Learning
Models", Attack R: the threshold of each record is a percentile of its own loss over reference models, so that every
record has the same false-positive rate. The score is the percentile at which the record would just be called a member.
"""

import numpy as np
from numpy.typing import NDArray

from dpaudit.audit.attacks.base import Array
from dpaudit.audit.attacks.shadow import Comparison, ShadowAttack


def percentiles(target: Array, shadows: Array, outside: NDArray[np.bool_]) -> Array:
    """Share of the models trained without a record whose loss there exceeds the target's, a tie counting half.

    The loss -log p falls with the log-odds, so that the order of log-odds is used. With k such models the score takes
    2 k + 1 values: no false-positive rate below 1/k can be resolved.

    Args:
        target: Log-odds of the right label by the model under attack, shape (records,).
        shadows: Those of the shadow models, shape (models, records).
        outside: Which of them were trained without which record, the same shape, at least one for each record.

    >>> percentiles(np.array([1.0]), np.array([[0.0], [2.0], [1.0], [9.0]]), np.array([[True]] * 3 + [[False]]))
    array([0.5])
    """
    below = (shadows < target) + 0.5 * (shadows == target)
    return np.asarray((below * outside).sum(axis=0) / outside.sum(axis=0))


def _score(comparison: Comparison) -> Array:
    return percentiles(comparison.target, comparison.shadows, ~comparison.trained)


REFERENCE = ShadowAttack("reference", _score, title="The reference attack")
