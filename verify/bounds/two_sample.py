"""AUC with an interval that holds for finite samples, and epsilon from pairs of trials."""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import xlogy

from dpaudit.verify.bounds.one_run import largest_refuted
from dpaudit.verify.bounds.operating import auc
from dpaudit.verify.bounds.rates import lower_at, valid_confidence, valid_scores
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

HALVINGS = 60


def auc_interval(in_scores: ArrayLike, out_scores: ArrayLike, *, confidence: float) -> tuple[float, float]:
    """Interval for the true AUC, P(in > out) + P(in = out)/2, valid for every sample size and law.

    {p : k KL(AUC_observed || p) <= log(2/(1 - confidence))}, k the size of the smaller arm. The observed AUC is a
    two-sample U-statistic with a kernel in [0, 1]: an average, over all ways of pairing k trials with k, of means of k
    independent terms of mean p (Hoeffding 1963, Section 5b). By Jensen its exponential moments are at most those of one
    such mean, hence of Binomial(k, p)/k (Theorem 1 there), and Chernoff's bound on either side has half the error
    probability.

    Args:
        in_scores: Scores of trials with the record, independent, shape (n,).
        out_scores: Scores of trials without it.
        confidence: Level in (0, 1).

    Returns:
        (lower, upper) in [0, 1].

    Raises:
        ValueError: Empty scores, NaN, or a level out of range.

    >>> lower, upper = auc_interval(np.arange(100.0) + 100.0, np.arange(100.0), confidence=0.95)
    >>> print(f"{lower:.3f} {upper:.3f}")
    0.964 1.000
    """
    observed, k = auc(in_scores, out_scores), min(np.size(in_scores), np.size(out_scores))
    limit = math.log(2.0 / (1.0 - valid_confidence(confidence))) / k

    def outside(p: float) -> bool:
        if p in (0.0, 1.0):
            return observed != p
        gap = xlogy(observed, observed / p) + xlogy(1.0 - observed, (1.0 - observed) / (1.0 - p))
        return bool(gap > limit)

    ends = []
    for end in (0.0, 1.0):
        inner, outer = observed, end
        if outside(outer):
            for _ in range(HALVINGS):
                middle = (inner + outer) / 2.0
                inner, outer = (inner, middle) if outside(middle) else (middle, outer)
        ends.append(outer)
    return ends[0], ends[1]


def epsilon_paired(in_scores: ArrayLike, out_scores: ArrayLike, *, delta: float, confidence: float) -> LowerBound:
    """Lower confidence bound on epsilon from pairs of trials, one with and one without, that share whatever else.

    The record, the other records, the seed of the data may differ from pair to pair, so that scores of different pairs
    need not be comparable. Only which of a pair is higher is used.

    Proof. In pair i the two outputs are independent and neighbours but for the record, so for any score the pair
    (FPR, TPR) of every event lies below the trade-off curve g, and P(in > out) <= P(in > out) + P(in = out)/2 = AUC <=
    the integral of g. Pairs are independent, so the number of wins is stochastically at most Binomial(n, integral of
    g). The bound is the largest epsilon whose integral lies below the Clopper-Pearson lower bound of the wins, and the
    integral rises with epsilon.

    Args:
        in_scores: Of the trials with the record, shape (n,).
        out_scores: Of the trial without it of the same pair, shape (n,). A tie counts against the bound.
        delta: In [0, 1).
        confidence: Level in (0, 1).

    Raises:
        ValueError: Arms of different sizes, empty scores, NaN, or a parameter out of range.

    >>> bound = epsilon_paired(np.arange(100.0) + 0.5, np.arange(100.0), delta=1e-5, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.2f}")
    3.49
    """
    inside, outside = valid_scores("in_scores", in_scores), valid_scores("out_scores", out_scores)
    if inside.shape != outside.shape:
        raise ValueError(f"Expected pairs: in_scores of size {inside.size} and out_scores of size {outside.size}.")
    DELTA.validate("delta", delta)
    wins = int((inside > outside).sum())
    share_lower = float(lower_at(wins, inside.size, 1.0 - valid_confidence(confidence)))
    epsilon = largest_refuted(lambda epsilon: Tradeoff.of_points([epsilon], [delta]).area < share_lower)
    return LowerBound(
        epsilon_lower=epsilon,
        delta=delta,
        confidence=confidence,
        method="paired",
        inputs={"pairs": int(inside.size), "wins": wins, "share_lower": share_lower},
        source="Clopper and Pearson (1934); the area under the trade-off curve",
    )
