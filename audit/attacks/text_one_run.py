"""Canary sentences in ONE training: misspelled sentences with random labels, put in by fair coins."""

import numpy as np

from dpaudit.audit.attacks.base import Audit
from dpaudit.audit.attacks.one_run_canaries import OneRunCanaries, movement_score
from dpaudit.audit.attacks.text_canaries import sentences_of, text_canaries
from dpaudit.mechanisms.learning.spec import Pool


def sentences(audit: Audit, count: int, rng: np.random.Generator) -> Pool:
    """Misspelled training sentences with labels by fair dice; what is no text is refused."""
    return Pool(*text_canaries(audit.dataset, count, int(rng.integers(1 << 32))))


SENTENCES = OneRunCanaries(
    "one-run-sentences",
    sentences,
    movement_score,
    "misspelled training sentences with random labels",
    requires=sentences_of,
)
