"""Epsilon from ONE training run whose canaries do not disturb each other.

In general the canaries of a run share a model, and only the exchange inequality of `one_run` is left, which pays for
every dependence a mechanism could have. Where each canary has a coordinate of its own and the noise is independent from
coordinate to coordinate, as for gradient canaries observed step by step, the pairs (coin, score) are independent: a run
with m canaries is then m runs with one, and proves as much.

Each canary's inclusion is one record, and the other coins are data that both neighbours share. So what is proved about
telling one coin from its score is proved about the mechanism under add-remove neighbours.
"""

import math

import numpy as np
from numpy.typing import ArrayLike
from scipy.optimize import brentq
from scipy.stats import nct

from dpaudit.verify.bounds.gdp import gaussian_epsilon
from dpaudit.verify.bounds.rates import (
    COUNT,
    TRIALS,
    rate_lower,
    valid_confidence,
    valid_count,
    valid_scores,
)
from dpaudit.verify.claims import DELTA
from dpaudit.verify.results import LowerBound

LARGEST_MU = 20.0  # epsilon is then near 300: with next to no noise nothing larger is claimed
GAUSSIAN_SCORES = "independent canaries whose scores are normal with one variance, included or not"
INDEPENDENT = "independent canaries"


def epsilon_gaussian_scores(scores: ArrayLike, coins: ArrayLike, *, delta: float, confidence: float) -> LowerBound:
    """Lower bound on epsilon where the scores are known to be independent normals.

    The assumption: given the coins b, the scores are X_i = a + s (mu b_i + Z_i) with independent standard normal Z_i
    and unknown a, s > 0 and mu. So it is for gradient canaries under independent Gaussian noise of whatever scale,
    every canary in every batch: X_i is the sum over the steps of clip b_i plus noise. Then telling b_i is telling
    N(0, 1) from N(mu, 1), and every (epsilon, delta) that holds has epsilon >= `gaussian_epsilon`(mu, delta).

    The bound is exact at every m. With n included and k left out, d the difference of the two means and v the pooled
    variance, t = d / sqrt(v (1/n + 1/k)) is noncentral t with n + k - 2 degrees of freedom and noncentrality
    mu sqrt(nk/(n + k)): its numerator over s is normal with that mean, and (n + k - 2) v/s^2 is an independent
    chi-squared number. P(t' >= t) rises with mu, and the bound is the mu at which it is 1 - confidence.

    The coins need not be fair: coordinates that are watched and never had a canary show the noise as well as those
    whose canary was left out, and sharpen the bound.

    Agrawal et al. (2026) fit a normal law to each of the two groups and compare those; their normal laws hold
    asymptotically in the number of steps. Here the law is exact from the first step, one variance is shared, and the
    error of the fit is part of the level.

    Args:
        scores: Higher = more likely a member, finite, shape (m,), m >= 4.
        coins: True where a canary was included, at least one of each, shape (m,).
        delta: In (0, 1).
        confidence: Level in (0, 1).

    Raises:
        ValueError: Shapes differ, too few canaries, or a parameter out of range.

    Source: Student's and the noncentral t distribution (Johnson and Welch 1940); Dong, Roth and Su (2022), Theorem 2.7;
    Agrawal et al. (2026), arXiv 2606.12733.

    >>> rng = np.random.default_rng(1)
    >>> coins = rng.random(1000) < 0.5
    >>> bound = epsilon_gaussian_scores(2.0 * coins + rng.normal(size=1000), coins, delta=1e-5, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.1f}")
    8.4
    """
    values, included = valid_scores("scores", scores), np.asarray(coins)
    if included.shape != values.shape or included.dtype != np.bool_:
        raise ValueError(f"Expected coins of shape {included.shape}, {included.dtype}, to be {values.shape}, bool.")
    inside, outside = values[included], values[~included]
    n, k = len(inside), len(outside)
    if min(n, k) < 1 or n + k < 4 or not np.isfinite(values).all():
        raise ValueError(f"Expected {n} finite scores of members and {k} of others to be at least 1 each and 4 in all.")
    unit = math.sqrt(1.0 / n + 1.0 / k)
    variance = (((inside - inside.mean()) ** 2).sum() + ((outside - outside.mean()) ** 2).sum()) / (n + k - 2)
    difference = float(inside.mean() - outside.mean())
    # a smaller t proves less, so that cutting it off is safe
    cut = LARGEST_MU * math.sqrt(float(variance))
    ratio = min(difference, cut) / math.sqrt(float(variance)) if cut > 0 else LARGEST_MU * (difference > 0)
    mu = _mu_lower(ratio / unit, n + k - 2, unit, 1.0 - valid_confidence(confidence))
    inputs = {"canaries": n + k, "included": n, "mu_lower": mu, "mu_observed": ratio}
    return LowerBound(
        gaussian_epsilon(mu, delta), delta, confidence, "one-run-gaussian-scores", inputs,
        "noncentral t distribution; Dong, Roth and Su (2022), Theorem 2.7", assumes=GAUSSIAN_SCORES,
    )  # fmt: skip


def _mu_lower(t: float, freedom: int, unit: float, tail: float) -> float:
    """The mu at which a noncentral t number exceeds t with probability `tail`; 0 where it does so already at mu = 0."""

    def excess(mu: float) -> float:
        return float(nct.sf(t, freedom, mu / unit)) - tail

    if t <= 0.0 or excess(0.0) >= 0.0:
        return 0.0
    return float(brentq(excess, 0.0, t * unit, xtol=1e-9)) - 1e-8


def epsilon_independent_guesses(
    *, canaries: int, correct: int, delta: float, confidence: float, threshold: float | None = None
) -> LowerBound:
    """Lower bound on epsilon from the number of correct guesses on independent canaries, every one of them guessed.

    Under (epsilon, delta)-differential privacy TPR <= e^epsilon FPR + delta and TNR <= e^epsilon FNR + delta. Adding
    both bounds the probability p = (TPR + TNR)/2 of guessing a fair coin by (e^epsilon + delta)/(1 + e^epsilon). The
    guesses are independent and alike (the noise has one law in all coordinates), so their number is Binomial(m, p), and
    p is at least its Clopper-Pearson bound.

    The lower bound 2p - 1 on TPR - FPR, `advantage_lower` of the inputs, holds at the same level, and with it: a
    mechanism whose curve has delta(0) < 2p - 1 is not the one that was run.

    Args:
        canaries: m, all guessed, by a rule fixed before the scores were seen.
        correct: How many guesses were right.
        delta: In [0, 1).
        confidence: Level in (0, 1).
        threshold: Of the score, kept in the result.

    Raises:
        ValueError: Not 0 <= correct <= canaries, or a parameter out of range.

    Source: Kairouz, Oh and Viswanath (2015), Theorem 2.1; Clopper and Pearson (1934).

    >>> bound = epsilon_independent_guesses(canaries=100, correct=75, delta=0.0, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.3f}")
    0.702
    """
    m, right = valid_count("canaries", canaries, TRIALS), valid_count("correct", correct, COUNT)
    if right > m:
        raise ValueError(f"Expected correct={right} <= canaries={m}.")
    DELTA.validate("delta", delta)
    rate = float(rate_lower(right, m, confidence=confidence))
    epsilon = math.log((rate - delta) / (1.0 - rate)) if rate - delta > 1.0 - rate else 0.0
    inputs = {"canaries": m, "correct": right, "advantage_lower": max(0.0, 2.0 * rate - 1.0)}
    return LowerBound(
        epsilon, delta, confidence, "one-run-independent", inputs,
        "Kairouz, Oh and Viswanath (2015), Theorem 2.1; Clopper and Pearson (1934)",
        threshold=threshold, assumes=INDEPENDENT,
    )  # fmt: skip
