"""Thresholds at fixed ranks of one arm's scores: nothing is set aside, and nothing depends on their order.

Why a rank is as good as a threshold fixed beforehand. Let t be the k-th largest of n scores without the record, k fixed
by n alone. Given these scores, t is a number independent of the scores with the record, so Clopper-Pearson bounds hold
for P(S > t) with it. Write the scores without it as F^-1(U) with independent uniform U: P(S > t) without it is at most
the k-th smallest of 1 - U, and P(S >= t) at least that, which is Beta(k, n - k + 1). Its quantiles are the
Clopper-Pearson upper bound at k - 1 and lower bound at k events.
"""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.counts import epsilon_from_rates
from dpaudit.verify.bounds.rates import lower_at, upper_at, valid_confidence, valid_scores
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

PER_DOUBLING = 2  # ranks of a band from one rank to twice it


def epsilon_from_ranks(in_scores: ArrayLike, out_scores: ArrayLike, *, delta: float, confidence: float) -> LowerBound:
    """Lower confidence bound on epsilon by many thresholds at once, the error probability shared out (Bonferroni).

    The event {score > k-th largest without the record} for k = 1, 2, 4, ... up to half of them, and its mirror image
    {score < k-th smallest with the record}; of each the formula of `epsilon_from_counts`, both rates at half its share.

    Args:
        in_scores: Scores of trials with the record, independent, shape (n,); infinities allowed.
        out_scores: Scores of trials without it, shape (m,).
        delta: In [0, 1).
        confidence: Level of all of them together, in (0, 1).

    Raises:
        ValueError: Empty scores, NaN, or a parameter out of range.

    >>> bound = epsilon_from_ranks(np.arange(100.0) + 60.0, np.arange(100.0), delta=0.0, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.2f} above {bound.threshold:g}")
    2.02 above 99
    """
    inside, outside = valid_scores("in_scores", in_scores), valid_scores("out_scores", out_scores)
    DELTA.validate("delta", delta)
    alpha = 1.0 - valid_confidence(confidence)
    arms = (("above", inside, outside), ("below", -outside, -inside))
    tests: list[dict[str, Any]] = []
    for side, found, base in arms:
        for k in doubling_ranks(len(base)):
            threshold = float(np.sort(base)[::-1][k - 1])
            tests.append({"side": side, "threshold": threshold, "rank": int(k), "hits": int((found > threshold).sum())})
    tail = alpha / len(tests) / 2.0
    for test in tests:
        _, found, base = arms[test["side"] == "below"]
        lower = lower_at(test["hits"], len(found), tail)
        upper = upper_at(test["rank"] - 1, len(base), tail)
        test["epsilon_lower"] = float(epsilon_from_rates(lower, upper, delta))
        test["threshold"] *= -1.0 if test["side"] == "below" else 1.0
    best = max(tests, key=lambda test: test["epsilon_lower"])
    return LowerBound(
        epsilon_lower=best["epsilon_lower"],
        delta=delta,
        confidence=confidence,
        method="clopper-pearson-bonferroni",
        inputs={"trials_in": len(inside), "trials_out": len(outside), "side": best["side"], "tests": tests},
        source="Clopper and Pearson (1934); Jagielski, Ullman and Oprea (2020); Bonferroni",
        threshold=best["threshold"],
    )


def roc_band(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float) -> dict[str, Any]:
    """A band that holds the whole true ROC curve with the stated confidence, whatever the laws of the scores.

    The curve is x -> the largest TPR of an event {score > t} or {score >= t} with FPR at most x. At the k-th largest
    score without the record, for k on a grid with ends 1 and n, both rates have two one-sided bounds, each at an equal
    share of the error probability. So TPR at x is at least the largest lower bound of the events whose FPR is at most x
    for sure, and at most the smallest upper bound of the events whose FPR is at least x for sure; between the grid's
    points both are steps, for an event inside another has smaller rates.

    Args:
        in_scores: Scores of trials with the record, independent, shape (n,).
        out_scores: Scores of trials without it.
        confidence: Level of the whole band, in (0, 1).

    Returns:
        {"fpr", "tpr_lower", "tpr_upper"}: lists of equal length, rising: from fpr[i] on (to the next) the curve is at
        least tpr_lower[i], and up to fpr[i] (from the one before) at most tpr_upper[i]; {"confidence"}.

    Raises:
        ValueError: Empty scores, NaN, or a level out of range.
    """
    inside, outside = valid_scores("in_scores", in_scores), valid_scores("out_scores", out_scores)
    n, m = len(inside), len(outside)
    ranks = doubling_ranks(m, per_doubling=PER_DOUBLING, most=m)
    tail = (1.0 - valid_confidence(confidence)) / (4 * len(ranks))
    thresholds = np.sort(outside)[::-1][ranks - 1]
    fpr_upper, fpr_lower = upper_at(ranks - 1, m, tail), lower_at(ranks, m, tail)
    tpr_lower = lower_at((inside > thresholds[:, None]).sum(axis=1), n, tail)
    tpr_upper = upper_at((inside >= thresholds[:, None]).sum(axis=1), n, tail)
    fpr = np.unique(np.concatenate([[0.0], fpr_lower, fpr_upper, [1.0]]))
    lower = [float(max(tpr_lower[fpr_upper <= x], default=0.0)) for x in fpr]
    upper = [float(min(tpr_upper[fpr_lower >= x], default=1.0)) for x in fpr]
    lower[-1] = 1.0  # everything is an event
    return {"fpr": fpr.tolist(), "tpr_lower": lower, "tpr_upper": upper, "confidence": confidence}


def band_at(band: dict[str, Any], fpr: float) -> tuple[float, float]:
    """(lower, upper) of a `roc_band` at one FPR in [0, 1].

    >>> band = roc_band(np.arange(100.0) + 50.0, np.arange(100.0), confidence=0.95)
    >>> print("{:.2f} {:.2f}".format(*band_at(band, 0.1)))
    0.35 0.85
    """
    if not 0.0 <= fpr <= 1.0:
        raise ValueError(f"Expected fpr={fpr} in [0, 1].")
    points = np.asarray(band["fpr"])
    below = int(np.searchsorted(points, fpr, side="right")) - 1
    above = int(np.searchsorted(points, fpr, side="left"))
    return band["tpr_lower"][below], band["tpr_upper"][above]


def doubling_ranks(n: int, *, per_doubling: int = 1, most: int | None = None) -> NDArray[np.int_]:
    """Ranks 1..n: 1, 2, 4, ... up to half of them, or to `most`, which is then the last one.

    >>> doubling_ranks(100).tolist(), doubling_ranks(9, most=9).tolist()
    ([1, 2, 4, 8, 16, 32], [1, 2, 4, 8, 9])
    """
    last = max(1, n // 2) if most is None else most
    ranks: Array = 2.0 ** (np.arange(per_doubling * last.bit_length() + 1) / per_doubling)
    kept = np.unique(ranks.astype(int)[ranks <= last])
    return kept if most is None else np.unique(np.append(kept, most))
