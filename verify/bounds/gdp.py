"""Gaussian differential privacy from scores (Dong, Roth and Su 2022; Nasr et al. 2023)."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.special import ndtri

from dpaudit.mechanisms.base import Domain
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify.bounds.rates import THRESHOLD, lower_at, upper_at, valid_confidence, valid_scores
from dpaudit.verify.results import LowerBound

SOME_MU = Domain(0.0, math.inf, (0.05, 8.0), "standard deviations", closed_low=True)
OPEN_DELTA = Domain(0.0, 1.0, (1e-10, 1e-3), "probability")
TARGETS = (0.5, 0.1, 0.01)  # false-positive rates of the built-in thresholds: for small, middling and large mu


def gaussian_epsilon(mu: float, delta: float) -> float:
    """The exact epsilon of a mu-GDP mechanism at delta: the root of `gaussian_delta`(mu, epsilon) = delta.

    Args:
        mu: At least 0.
        delta: In (0, 1): at 0 every mu > 0 costs infinitely much.

    Returns:
        inf where the root is no float, for mu beyond 1e154.

    Raises:
        TypeError: mu or delta is not a number.
        ValueError: mu is negative or infinite, or delta is out of range.

    Source: Balle and Wang (2018), Theorem 8.

    >>> print(f"{gaussian_epsilon(1.0, 1e-5):.4f}")
    4.3772
    """
    OPEN_DELTA.validate("delta", delta)
    SOME_MU.validate("mu", mu)
    mu, delta = float(mu), float(delta)
    if gaussian_delta(mu, 0.0) <= delta:
        return 0.0
    high = 1.0
    while gaussian_delta(mu, high) > delta:
        high *= 2.0
    if high == math.inf:
        return math.inf
    return float(brentq(lambda epsilon: gaussian_delta(mu, epsilon) - delta, 0.0, high, xtol=1e-12))


def epsilon_gdp(
    in_scores: ArrayLike, out_scores: ArrayLike, *, delta: float, confidence: float, threshold: float | None = None
) -> LowerBound:
    """Lower confidence bound on epsilon at delta, assuming the mechanism's trade-off curve is a Gaussian one.

    mu_lower = Phi^-1(TPR_lower) - Phi^-1(FPR_upper), the same as Phi^-1(1 - FPR_upper) - Phi^-1(FNR_upper), with
    one-sided Clopper-Pearson bounds at (1 - confidence)/2 each for the event {score > threshold}; then the exact
    epsilon of a mu-GDP mechanism at delta. mu-GDP says TPR <= Phi(Phi^-1(FPR) + mu) for every event, so
    mu >= mu_lower wherever both rates are bracketed.

    Without a threshold, three are tried at 1 - (1 - confidence)/3 each: the k-th largest OUT score for
    k = ceil(0.5 m), ceil(0.1 m), ceil(0.01 m). No trial is set aside, nothing depends on the order of the scores, and
    the bounds are as valid as with a threshold fixed beforehand. Proof: k is fixed by m alone. Given the out scores,
    the threshold is a number independent of the in scores, so TPR_lower holds. Write the out scores as F^-1(U) with
    independent uniform U: the chance that a new one exceeds the k-th largest is at most 1 - U_(k-th largest), which
    is Beta(k, m - k + 1); so its quantile at level 1 - a is an upper bound on FPR at level 1 - a. It is the
    Clopper-Pearson bound at k - 1 false positives.

    Args:
        in_scores: Scores of trials with the record, independent, shape (n,); infinities allowed.
        out_scores: Scores of trials without it, shape (m,).
        delta: In (0, 1).
        confidence: Level in (0, 1).
        threshold: Fixed before the scores were seen; None for the three above.

    Returns:
        A bound with `assumes = "gaussian-tradeoff"`: it may enter a verdict only where the claimed mechanism implies
        that curve.

    Raises:
        TypeError: A parameter is not a number.
        ValueError: Empty scores, NaN, or a parameter out of range (delta = 0 is: any mu > 0 is infinite there).

    Source: Nasr et al. (2023); Dong, Roth and Su (2022), Definition 4; Balle and Wang (2018), Theorem 8.
    """
    scores_in, scores_out = valid_scores("in_scores", in_scores), np.sort(valid_scores("out_scores", out_scores))
    OPEN_DELTA.validate("delta", delta)
    alpha = 1.0 - valid_confidence(confidence)
    n, m = scores_in.size, scores_out.size
    if threshold is None:
        ranks = [math.ceil(target * m) for target in TARGETS]
        tests = [(float(scores_out[m - rank]), rank - 1) for rank in ranks]
    else:
        THRESHOLD.validate("threshold", threshold)
        tests = [(float(threshold), int((scores_out > threshold).sum()))]
    tail = alpha / len(tests) / 2.0
    family = []
    for at, fp in tests:
        tp = int((scores_in > at).sum())
        tpr_lower, fpr_upper = float(lower_at(tp, n, tail)), float(upper_at(fp, m, tail))
        mu = max(0.0, float(ndtri(tpr_lower) - ndtri(fpr_upper)))
        family.append({"threshold": at, "tp": tp, "fp": fp, "tpr_lower": tpr_lower, "fpr_upper": fpr_upper, "mu": mu})
    best = max(family, key=lambda test: test["mu"])
    return LowerBound(
        epsilon_lower=gaussian_epsilon(best["mu"], delta),
        delta=delta,
        confidence=confidence,
        method="gaussian-dp",
        inputs={"trials_in": n, "trials_out": m, "mu_lower": best["mu"], "tests": family},
        source="Nasr et al. (2023); Balle and Wang (2018), Theorem 8",
        threshold=best["threshold"],
        assumes="gaussian-tradeoff",
    )
