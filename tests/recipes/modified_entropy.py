"""Membership inference by the entropy of a prediction, modified to know the right label.

Song and Mittal (2021), "Systematic Evaluation of Privacy Risks of Machine Learning Models", Section 3.2:

    Mentr = -(1 - p_y) log p_y - sum over i != y of p_i log(1 - p_i),

0 where the right label is certain, large where a wrong one is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import softmax

from dpaudit.audit.attacks.base import Array, Audit
from dpaudit.audit.attacks.membership import one_model_result, one_run_tests
from dpaudit.mechanisms.learning.spec import SPECS
from dpaudit.mechanisms.learning.training import logits
from dpaudit.verify.results import AttackResult

TINY = 1e-300  # in place of 0 under a logarithm


def negative_modified_entropy(outputs: NDArray[np.float32], labels: NDArray[np.int64]) -> Array:
    """Score of each record: -Mentr, higher = member.

    Args:
        outputs: Logits, shape (records, classes).
        labels: Shape (records,).

    >>> negative_modified_entropy(np.zeros((1, 2), dtype=np.float32), np.array([0])).round(3)
    array([-0.693])
    """
    p = softmax(outputs.astype(np.float64), axis=1)
    right = p[np.arange(len(labels)), labels]
    wrong = p * np.log(np.maximum(1.0 - p, TINY))
    wrong[np.arange(len(labels)), labels] = 0.0
    return np.asarray((1.0 - right) * np.log(np.maximum(right, TINY)) + wrong.sum(axis=1))


@dataclass(frozen=True)
class ModifiedEntropy:
    """Membership inference on the model as given, among records that recorded coins put in or left out."""

    name: str = "modified-entropy"
    algorithms: tuple[str, ...] = tuple(SPECS)
    by_default: bool = False

    def tests(self, audit: Audit) -> tuple[str, ...]:
        """The one-run bound, where coins were recorded."""
        return one_run_tests(self.name, audit)

    def run(self, audit: Audit, shares: Mapping[str, float]) -> AttackResult | None:
        """Score the coins' records; None without coins."""
        data, coins = audit.dataset, audit.bundle.coins
        if coins is None:
            return None
        outputs = logits(audit.bundle.models(audit.spec), data.x[coins.records])[0].numpy()
        scores = negative_modified_entropy(outputs, data.y[coins.records])
        return one_model_result(self.name, audit, shares, scores, coins.included)


MODIFIED_ENTROPY = ModifiedEntropy()
