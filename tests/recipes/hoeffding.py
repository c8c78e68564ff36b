"""Epsilon from the counts of one event in the two arms of a game, by Hoeffding's inequality."""

import math

from dpaudit.verify.bounds.counts import epsilon_from_rates
from dpaudit.verify.bounds.rates import TRIALS, valid_confidence, valid_count
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

SOURCE = "Hoeffding (1963), Theorem 1"


def epsilon_hoeffding(*, tp: int, fp: int, tn: int, fn: int, delta: float, confidence: float) -> LowerBound:
    """Lower confidence bound on epsilon from the counts of one pre-fixed event under both neighbours.

    As `epsilon_from_counts`, with rates bounded by TPR >= tp/(tp+fn) - sqrt(log(2/(1 - confidence)) / (2 (tp+fn))), and
    FPR likewise from above, each but for a probability of (1 - confidence)/2 (Hoeffding's inequality).

    Args:
        tp: Trials with the record in which the event happened.
        fp: Trials without the record in which it happened.
        tn: Trials without the record in which it did not happen.
        fn: Trials with the record in which it did not happen.
        delta: In [0, 1).
        confidence: Level in (0, 1).

    Raises:
        TypeError: A count is not a number.
        ValueError: A count is negative or not an integer, an arm is empty, delta or the level is out of range.

    >>> bound = epsilon_hoeffding(tp=90, fp=10, tn=90, fn=10, delta=0.0, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.3f}")
    1.176
    """
    counts = {name: valid_count(name, value) for name, value in (("tp", tp), ("fp", fp), ("tn", tn), ("fn", fn))}
    trials_in = valid_count("tp + fn", counts["tp"] + counts["fn"], TRIALS)
    trials_out = valid_count("fp + tn", counts["fp"] + counts["tn"], TRIALS)
    DELTA.validate("delta", delta)
    log_level = math.log(2.0 / (1.0 - valid_confidence(confidence)))
    tpr_lower = max(counts["tp"] / trials_in - math.sqrt(log_level / (2 * trials_in)), 0.0)
    fpr_upper = min(counts["fp"] / trials_out + math.sqrt(log_level / (2 * trials_out)), 1.0)
    return LowerBound(
        epsilon_lower=float(epsilon_from_rates(tpr_lower, fpr_upper, delta)),
        delta=delta,
        confidence=confidence,
        method="hoeffding",
        inputs={**counts, "tpr_lower": tpr_lower, "fpr_upper": fpr_upper},
        source=SOURCE,
    )
