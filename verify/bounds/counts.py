"""Epsilon from the counts of one event in the two arms of a game."""

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.rates import TRIALS, lower_at, upper_at, valid_confidence, valid_count
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

SOURCE = "Clopper and Pearson (1934); Jagielski, Ullman and Oprea (2020)"


def epsilon_from_counts(*, tp: int, fp: int, tn: int, fn: int, delta: float, confidence: float) -> LowerBound:
    """Lower confidence bound on epsilon from the counts of one pre-fixed event under both neighbours.

    max(log((TPR_lower - delta)/FPR_upper), log((TNR_lower - delta)/FNR_upper)), at least 0, where TPR_lower and
    FPR_upper are one-sided Clopper-Pearson bounds at (1 - confidence)/2 each, TNR_lower = 1 - FPR_upper and
    FNR_upper = 1 - TPR_lower.

    Proof. With probability at least `confidence` both TPR >= TPR_lower and FPR <= FPR_upper (union bound). Then all
    four rates are bracketed at once, since TNR = 1 - FPR and FNR = 1 - TPR, and (epsilon, delta)-differential privacy
    of the pair in both directions says TPR <= e^epsilon FPR + delta for the event and TNR <= e^epsilon FNR + delta
    for its complement. So the maximum of the two costs no further error probability.

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

    Source: Clopper and Pearson (1934); Jagielski, Ullman and Oprea (2020).

    >>> bound = epsilon_from_counts(tp=90, fp=10, tn=90, fn=10, delta=0.0, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.3f}")
    1.542
    """
    counts = {name: valid_count(name, value) for name, value in (("tp", tp), ("fp", fp), ("tn", tn), ("fn", fn))}
    trials_in = valid_count("tp + fn", counts["tp"] + counts["fn"], TRIALS)
    trials_out = valid_count("fp + tn", counts["fp"] + counts["tn"], TRIALS)
    DELTA.validate("delta", delta)
    tail = (1.0 - valid_confidence(confidence)) / 2.0
    tpr_lower = float(lower_at(counts["tp"], trials_in, tail))
    fpr_upper = float(upper_at(counts["fp"], trials_out, tail))
    # each rate from its own counts, as 1 - TPR_lower has no digits where TPR_lower is next to 1
    complement = lower_at(counts["tn"], trials_out, tail), upper_at(counts["fn"], trials_in, tail)
    return LowerBound(
        epsilon_lower=float(max(_log_ratio(tpr_lower, fpr_upper, delta), _log_ratio(*complement, delta))),
        delta=delta,
        confidence=confidence,
        method="clopper-pearson",
        inputs={**counts, "tpr_lower": tpr_lower, "fpr_upper": fpr_upper},
        source=SOURCE,
    )


def best_possible_epsilon(trials_in: int, trials_out: int, *, delta: float, confidence: float) -> float:
    """The largest `epsilon_lower` any outcome of this many trials could prove: every trial told apart.

    `epsilon_from_counts` rises in tp and falls in fp, so its maximum is at tp = trials_in, fp = 0.

    Args:
        trials_in: Trials with the record, at least 1.
        trials_out: Trials without it, at least 1.
        delta: In [0, 1).
        confidence: Level in (0, 1).

    Raises:
        ValueError: A number of trials, delta or the level is out of range.

    >>> print(f"{best_possible_epsilon(100, 100, delta=0.0, confidence=0.95):.3f}")
    3.281
    """
    return epsilon_from_counts(
        tp=valid_count("trials_in", trials_in, TRIALS),
        fp=0,
        tn=valid_count("trials_out", trials_out, TRIALS),
        fn=0,
        delta=delta,
        confidence=confidence,
    ).epsilon_lower


def epsilon_from_rates(tpr_lower: ArrayLike, fpr_upper: ArrayLike, delta: float) -> Array:
    """The formula of `epsilon_from_counts` on arrays of rate bounds with tpr_lower < 1 and fpr_upper > 0."""
    x, y = np.asarray(tpr_lower, np.float64), np.asarray(fpr_upper, np.float64)
    return np.asarray(np.maximum(_log_ratio(x, y, delta), _log_ratio(1.0 - y, 1.0 - x, delta)))


def _log_ratio(lower: ArrayLike, upper: ArrayLike, delta: float) -> Array:
    """What a rate of at least `lower` proves beside one of at most `upper`: log((lower - delta)/upper), at least 0."""
    x, y = np.asarray(lower, np.float64), np.asarray(upper, np.float64)
    # A numerator at or below its denominator proves nothing: clamping it there makes the logarithm 0.
    return np.asarray(np.log(np.maximum(x - delta, y) / y))
