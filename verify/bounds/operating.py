"""Operating points of a score, for reports: ROC and area."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import rel_entr

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.rates import FPR, rate_lower, rate_upper, valid_confidence, valid_scores

POINTS = 200


def roc(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float) -> dict[str, Any]:
    """ROC points on a log grid of FPR, with a pointwise Clopper-Pearson band for TPR.

    At each grid value the largest TPR with FPR at most that value; first the point with no false positive.

    Args:
        in_scores: Member scores, higher = member, shape (n,).
        out_scores: Non-member scores, shape (m,).
        confidence: Level of each pointwise interval, in (0, 1).

    Returns:
        {"fpr", "tpr", "tpr_lower", "tpr_upper"}: lists of at most 202 numbers, rising; {"confidence"}.

    Raises:
        ValueError: Empty scores, NaN, or a level out of range.
    """
    scores_in = valid_scores("in_scores", in_scores)
    tp, fp = _counts_by_threshold(scores_in, out_scores)
    m = int(fp[-1])
    targets = np.concatenate([[0], np.unique(np.floor(np.geomspace(1, m, POINTS)).astype(int))])
    at = np.unique(np.searchsorted(fp, targets, side="right") - 1)
    side = (1.0 + valid_confidence(confidence)) / 2.0  # of each end of the two-sided interval
    lower, upper = (rate(tp[at], scores_in.size, confidence=side) for rate in (rate_lower, rate_upper))
    return {
        "fpr": (fp[at] / m).tolist(),
        "tpr": (tp[at] / scores_in.size).tolist(),
        "tpr_lower": lower.tolist(),
        "tpr_upper": upper.tolist(),
        "confidence": confidence,
    }


def auc_interval(area: float, members: int, others: int, *, confidence: float) -> tuple[float, float]:
    """Interval for the AUC of a population from the AUC of independent scores, whatever their laws.

    All A with kl(area, A) <= log(2 / (1 - confidence)) / k, k = min(members, others), where kl(u, A) = u log(u / A) +
    (1 - u) log((1 - u) / (1 - A)). Proof: the area is a mean, over the ways of pairing k scores of one side with k of
    the other, of means of k independent terms in [0, 1] of mean A (Hoeffding 1963, section 5b). By convexity its moment
    generating function is at most theirs, which is at most that of a binomial (Hoeffding 1963, Theorem 1), so each
    side is missed with probability at most exp(-k kl).

    Args:
        area: AUC of the scores, in [0, 1].
        members: Scores of members, at least 1.
        others: Scores of others, at least 1.
        confidence: Level, in (0, 1).

    >>> print("{:.3f} {:.3f}".format(*auc_interval(0.5, 65, 75, confidence=0.95)))
    0.336 0.664
    """
    area = float(area)
    most = math.log(2.0 / (1.0 - valid_confidence(confidence))) / min(members, others)

    def farthest(outside: float) -> float:
        inside = area
        for _ in range(60):  # the side that is kept stays outside or on the border
            middle = 0.5 * (inside + outside)
            divergence = float(rel_entr(area, middle) + rel_entr(1.0 - area, 1.0 - middle))
            inside, outside = (middle, outside) if divergence <= most else (inside, middle)
        return outside

    return farthest(0.0), farthest(1.0)


def auc(in_scores: ArrayLike, out_scores: ArrayLike) -> float:
    """Area under the ROC curve: P(in > out) + P(in = out)/2 over all pairs (Mann and Whitney 1947).

    Args:
        in_scores: Member scores, shape (n,).
        out_scores: Non-member scores, shape (m,).

    Raises:
        ValueError: Empty scores or NaN.

    >>> auc([2.0, 3.0], [1.0, 2.0])
    0.875
    """
    scores_in, scores_out = valid_scores("in_scores", in_scores), valid_scores("out_scores", out_scores)
    n, m = scores_in.size, scores_out.size
    others = np.sort(scores_out)
    below = np.searchsorted(others, scores_in, "left") + np.searchsorted(others, scores_in, "right")  # ties are halves
    return float(below.sum() / (2.0 * n * m))


def tpr_at_fpr(in_scores: ArrayLike, out_scores: ArrayLike, fpr: float) -> float:
    """The largest TPR of any threshold whose FPR is at most `fpr`; no interpolation, no randomised threshold.

    Args:
        in_scores: Member scores, shape (n,).
        out_scores: Non-member scores, shape (m,).
        fpr: In [0, 1].

    Raises:
        TypeError: fpr is not a number.
        ValueError: Empty scores, NaN, or fpr out of range.

    >>> tpr_at_fpr([1.0, 3.0, 5.0, 7.0], [0.0, 2.0, 4.0, 6.0], 0.25)
    0.5
    """
    FPR.validate("fpr", fpr)
    tp, fp = _counts_by_threshold(in_scores, out_scores)
    # One part in 1e12: fpr = 0.1 of 30 trials is 3 of them, whatever the rounding of 0.1 * 30.
    allowed = np.floor(fpr * fp[-1] * (1.0 + 1e-12))
    return float(tp[np.searchsorted(fp, allowed, side="right") - 1] / tp[-1])


def _counts_by_threshold(in_scores: ArrayLike, out_scores: ArrayLike) -> tuple[Array, Array]:
    """(tp, fp) of every distinct event {score > t} and {all}, rising from (0, 0) to (n, m)."""
    scores_in = np.sort(valid_scores("in_scores", in_scores))
    scores_out = np.sort(valid_scores("out_scores", out_scores))
    thresholds = np.unique(np.concatenate([scores_in, scores_out]))[::-1]
    tp = scores_in.size - np.searchsorted(scores_in, thresholds, side="right")
    fp = scores_out.size - np.searchsorted(scores_out, thresholds, side="right")
    return np.append(tp, scores_in.size).astype(np.float64), np.append(fp, scores_out.size).astype(np.float64)
