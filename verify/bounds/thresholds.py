"""Thresholds chosen on a selection sample, for bounds that are then counted on fresh trials.

The event is always {score > threshold}. Nothing here is a confidence statement: a bad choice costs power, never
validity, because the counted trials are independent of it.
"""

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.counts import epsilon_from_rates
from dpaudit.verify.bounds.rates import TRIALS, lower_at, upper_at, valid_confidence, valid_count, valid_scores
from dpaudit.verify.guarantees import DELTA

CANDIDATES = 1000  # per tail: every score of the first hundred or so, then ever sparser


def choose_threshold(
    in_scores: ArrayLike,
    out_scores: ArrayLike,
    *,
    delta: float,
    confidence: float,
    trials_in: int,
    trials_out: int,
) -> float:
    """The threshold with the largest epsilon that `epsilon_from_counts` would give at the expected counts.

    The expected rates are (k + 1)/(n + 2), Laplace's rule of succession: the bare k/n would say that an empty tail
    of a small sample is empty for ever, and pick a threshold far out on the strength of it.

    Args:
        in_scores: Selection scores of trials with the record, shape (n,); infinities allowed.
        out_scores: Selection scores of trials without it, shape (m,).
        delta: In [0, 1).
        confidence: Level at which the counted trials will be used, in (0, 1).
        trials_in: Trials with the record that will be counted, at least 1.
        trials_out: Trials without it that will be counted, at least 1.

    Returns:
        One of the scores; the event is {score > threshold}. Both the event and its complement are considered.

    Raises:
        ValueError: Empty scores, NaN, or a parameter out of range.

    >>> choose_threshold([2.0, 3.0, 4.0], [0.0, 1.0, 1.5], delta=0.0, confidence=0.9, trials_in=50, trials_out=50)
    1.5
    """
    DELTA.validate("delta", delta)
    thresholds, tpr, fpr = _expected_rates(in_scores, out_scores)
    lower, upper = _expected_bounds(tpr, fpr, trials_in, trials_out, confidence)
    return float(thresholds[np.argmax(epsilon_from_rates(lower, upper, delta))])


def _expected_rates(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Array, Array, Array]:
    """Candidate thresholds with their smoothed TPR and FPR."""
    scores_in = np.sort(valid_scores("in_scores", in_scores))
    scores_out = np.sort(valid_scores("out_scores", out_scores))
    thresholds: Array = np.unique(np.concatenate([scores_in, scores_out]))
    if thresholds.size > 2 * CANDIDATES:
        # Dense where counts are small and every score matters, in proportion to the count elsewhere.
        ranks = np.geomspace(1, thresholds.size, CANDIDATES).astype(int) - 1
        thresholds = thresholds[np.unique(np.concatenate([ranks, thresholds.size - 1 - ranks]))]
    tp = (scores_in.size - np.searchsorted(scores_in, thresholds, side="right")).astype(np.float64)
    fp = (scores_out.size - np.searchsorted(scores_out, thresholds, side="right")).astype(np.float64)
    return thresholds, (tp + 1.0) / (scores_in.size + 2.0), (fp + 1.0) / (scores_out.size + 2.0)


def _expected_bounds(tpr: Array, fpr: Array, trials_in: int, trials_out: int, confidence: float) -> tuple[Array, Array]:
    """TPR_lower and FPR_upper at the expected counts of the counted trials."""
    into, out = valid_count("trials_in", trials_in, TRIALS), valid_count("trials_out", trials_out, TRIALS)
    tail = (1.0 - valid_confidence(confidence)) / 2.0
    return lower_at(tpr * into, into, tail), upper_at(fpr * out, out, tail)
