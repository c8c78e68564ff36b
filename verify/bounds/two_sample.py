"""Epsilon from pairs of trials."""

from numpy.typing import ArrayLike

from dpaudit.verify.bounds.one_run import largest_refuted
from dpaudit.verify.bounds.rates import lower_at, valid_confidence, valid_scores
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound


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

    >>> import numpy as np
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
