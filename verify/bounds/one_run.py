"""Epsilon from ONE training run with many canaries (Steinke, Nasr and Jagielski 2023).

The game: each of m canaries is included by its own fair coin, independent of everything else; the mechanism runs once;
the auditor sees its output and guesses some canaries "in" or "out" and abstains on the others. Number the coins
S_1..S_m; r is the number of guesses and C the number of correct ones. The claim is add-remove differential privacy:
flipping one coin, the others held fixed, adds or removes one record.

The exchange inequality behind both methods. Fix a set I of values of C. For a canary j, its coin b and the other
coins s, let E be the set of outputs on which j is guessed b and C would be in I. Under the flipped coin the same
outputs have j wrong and C lower by one. So P(E | S_j = b) <= g(P(E | S_j = 1 - b)), where g = 1 - f and f is the
trade-off curve, or g(y) = e^epsilon y + delta. Averaged over j, b and s (Jensen, g is concave), with p_i = P(C = i):

    sum_{i in I} i p_i <= m g( (1/m) sum_{i in I} (r - i + 1) p_{i-1} )                                       (*)
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betainc, expit, gammaln

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.gdp import gaussian_epsilon
from dpaudit.verify.bounds.one_run_gaussian import mu_one_run
from dpaudit.verify.bounds.rates import COUNT, TRIALS, valid_confidence, valid_count, valid_scores
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

Method = Literal["steinke", "f-dp"]
SOURCES = {
    "steinke": "Steinke, Nasr and Jagielski (2023), Theorem 5.2",
    "f-dp": "Mahloujifar, Melis and Chaudhuri (2024), recursion over the number of correct guesses",
}
GAME = "independent fair coins; number of guesses fixed in advance; add-remove"
FRACTIONS = (0.1, 0.3, 0.7)
RESOLUTION = 1e-6  # of the reported epsilon, downwards


def epsilon_one_run(
    *, canaries: int, guesses: int, correct: int, delta: float, confidence: float, method: Method = "steinke"
) -> LowerBound:
    """Lower confidence bound on epsilon from the number of correct membership guesses in one run.

    "steinke": the largest epsilon whose `steinke_p_value` is at most 1 - confidence. "f-dp": the largest mu whose
    Gaussian trade-off curve makes that many correct guesses less likely than 1 - confidence (`mu_one_run`),
    converted to epsilon at delta; it holds where the mechanism's trade-off curve lies above that of a Gaussian with
    the same epsilon at delta, and says so in `assumes`.

    No monotonicity of the p-value is needed. For the true epsilon let v be the smallest count for which some
    epsilon' above it has a p-value of at most 1 - confidence. The mechanism is (epsilon', delta) private too, so
    P(C >= v) <= 1 - confidence, and a bound above the truth needs C >= v.

    Args:
        canaries: m, how many fair coins were thrown.
        guesses: r, how many canaries were guessed, fixed in advance; the others are abstentions.
        correct: C, how many guesses were right.
        delta: In [0, 1); in (0, 1) for "f-dp".
        confidence: Level in (0, 1).
        method: "steinke" or "f-dp".

    Raises:
        ValueError: Not 0 <= correct <= guesses <= canaries, or a parameter out of range.

    Source: Steinke, Nasr and Jagielski (2023), Theorem 5.2; Mahloujifar, Melis and Chaudhuri (2024).

    >>> bound = epsilon_one_run(canaries=100, guesses=100, correct=75, delta=0.0, confidence=0.95)
    >>> print(f"{bound.epsilon_lower:.3f}")
    0.702
    """
    m, r, v = valid_game(canaries, guesses, correct)
    DELTA.validate("delta", delta)
    level = 1.0 - valid_confidence(confidence)
    inputs: dict[str, object] = {"canaries": m, "guesses": r, "correct": v, "game": GAME}
    assumes = ""
    if method == "steinke":
        epsilon = largest_refuted(lambda epsilon: steinke_p_value(m, r, v, epsilon=epsilon, delta=delta) <= level)
    elif method == "f-dp":
        mu = mu_one_run(m, r, v, tail=level)
        epsilon = gaussian_epsilon(mu, delta)
        inputs["mu_lower"] = mu
        assumes = "gaussian-tradeoff"
    else:
        raise ValueError(f"Expected method={method!r} to be 'steinke' or 'f-dp'.")
    return LowerBound(epsilon, delta, confidence, f"one-run-{method}", inputs, SOURCES[method], assumes=assumes)


def steinke_p_value(canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float) -> float:
    """Upper bound on P(C >= v) for r guesses on m canaries under (epsilon, delta)-differential privacy.

    P(W >= v) + 2 m delta max_{1 <= i <= v} P(v - i <= W < v)/i, W ~ Binomial(r, q), q = 1/(1 + e^-epsilon); 1 where
    delta > 0 and v is at most the mean r q.

    As published the sum is for every v, and in the lower tail it is no bound. Coins of m = r = 3 at epsilon 0, guessed
    by fair coins, but all three wrong with probability 1/8 - a only and the rest spread evenly, is (0, 8a/7)-private:
    P(C >= 1) = 7/8 + 7 delta/8, and the sum is 7/8 + 6 delta/8. Nothing is lost there: the median of a binomial law is
    at least the whole part of its mean, so P(W >= v) is at least 1/2 at every whole v up to the mean.

    The first term alone at delta = 0: by (*) with I = {i}, p_i/p_{i-1} <= e^epsilon (r - i + 1)/i, which is the ratio
    of the binomial probabilities of W; so C is below W in likelihood-ratio order, hence stochastically. The tests
    maximise P(C >= v) under (*) by a linear program: at every setting drawn with a p-value between 1e-4 and 1/2 the
    published delta term is at least twice what it needs.

    Args:
        canaries: m, at least 1.
        guesses: r in [0, m], fixed in advance.
        correct: v in [0, r].
        epsilon: At least 0.
        delta: In [0, 1).

    Returns:
        At most 1.

    Source: Steinke, Nasr and Jagielski (2023), Theorem 5.2.
    """
    m, r, v = valid_game(canaries, guesses, correct)
    epsilon, delta = float(epsilon), float(delta)
    if v == 0:
        return 1.0
    tail = float(betainc(v, r - v + 1, expit(epsilon)))
    if delta == 0.0:
        return tail
    if v <= r * expit(epsilon):
        return 1.0
    below = np.arange(v - 1, -1, -1)  # W = v - 1, v - 2, ..., 0: cumulated, P(v - i <= W < v)
    log_binomial = gammaln(r + 1) - gammaln(below + 1) - gammaln(r - below + 1)
    # log(1 - q) = -epsilon - log(1 + e^-epsilon), written out: 1 - q rounds to 0 at large epsilon.
    log_probability = log_binomial - (r - below) * epsilon - r * math.log1p(math.exp(-epsilon))
    share = np.cumsum(np.exp(log_probability)) / np.arange(1, v + 1)
    return min(1.0, tail + 2.0 * m * delta * float(share.max()))


def one_run_from_scores(
    scores: ArrayLike,
    coins: ArrayLike,
    *,
    delta: float,
    confidence: float,
    fractions: Sequence[float] = FRACTIONS,
    method: Method = "steinke",
) -> LowerBound:
    """Lower bound on epsilon from membership scores of canaries that fair coins put in or left out of ONE run.

    For each fraction, the k canaries of highest score are guessed in and the k of lowest score out,
    k = max(1, round(fraction m/2)) but at most m/2; every fraction is tried at level 1 - (1 - confidence)/(number of
    fractions) and the best bound is returned.

    Proof of validity. The guesses are a function of the scores, and the scores of the model's output and of things
    independent of the coins: so guesses are post-processing of the mechanism, as (*) needs. k depends on m alone, so
    the number of guesses is fixed before anything is seen. Ties go to the canary that comes first, whose place says
    nothing about its coin. By Bonferroni all bounds of the family hold together with probability at least
    `confidence`, so their maximum holds.

    Args:
        scores: Higher = more likely a member, shape (m,), m >= 2; infinities allowed. Must not depend on the coins
            but through the model; nor may their order, by which ties are broken.
        coins: True where the canary was included, shape (m,).
        delta: In [0, 1).
        confidence: Level of the returned bound, in (0, 1).
        fractions: Declared in advance: shares of the canaries that are guessed, each in (0, 1].
        method: "steinke" or "f-dp".

    Raises:
        ValueError: Shapes differ, NaN, fewer than two canaries, no fraction, or a parameter out of range.

    Source: Steinke, Nasr and Jagielski (2023), Algorithm 1 and Theorem 5.2.
    """
    values = valid_scores("scores", scores)
    included = np.asarray(coins)
    if included.shape != values.shape or included.dtype != np.bool_:
        raise ValueError(f"Expected coins of shape {included.shape}, {included.dtype}, to be {values.shape}, bool.")
    if values.size < 2:
        raise ValueError(f"Expected canaries={values.size} to be at least 2.")
    if not len(fractions) or not all(0.0 < fraction <= 1.0 for fraction in fractions):
        raise ValueError(f"Expected fractions={tuple(fractions)!r} to be one or more numbers in (0, 1].")
    each = 1.0 - (1.0 - valid_confidence(confidence)) / len(fractions)
    family = []
    for fraction in fractions:
        k = min(max(1, round(fraction * values.size / 2)), values.size // 2)
        correct = correct_guesses(values, included, k)
        family.append(
            epsilon_one_run(
                canaries=values.size, guesses=2 * k, correct=correct, delta=delta, confidence=each, method=method
            )
        )
    best = max(family, key=lambda bound: bound.epsilon_lower)
    inputs = {
        **best.inputs,
        "fractions": list(fractions),
        "confidence_each": each,
        "family": [{**bound.inputs, "epsilon_lower": bound.epsilon_lower} for bound in family],
    }
    return LowerBound(best.epsilon_lower, delta, confidence, best.method, inputs, best.source, assumes=best.assumes)


def correct_guesses(scores: Array, included: NDArray[np.bool_], k: int) -> int:
    """How many guesses are right: the k canaries of highest score "in", the k of lowest score of the others "out".

    Ties go to the canary that comes first: the order must be known before the coins fall, such as that of the records.

    Args:
        scores: Higher = more likely a member, shape (m,).
        included: How the coins fell, shape (m,).
        k: At most m/2.

    >>> correct_guesses(np.array([3.0, 2.0, 1.0, 0.0]), np.array([True, False, True, False]), 1)
    2
    """
    scores, included = np.asarray(scores, np.float64), np.asarray(included, np.bool_)
    ascending, descending = np.argsort(scores, kind="stable"), np.argsort(-scores, kind="stable")
    # All canaries beyond the top k, in ascending order: a constant score must not be guessed twice.
    rest = ascending[~np.isin(ascending, descending[:k])]
    return int(included[descending[:k]].sum()) + int((~included[rest[:k]]).sum())


def valid_game(canaries: int, guesses: int, correct: int) -> tuple[int, int, int]:
    """The three counts as ints, or an error that names them."""
    m = valid_count("canaries", canaries, TRIALS)
    r = valid_count("guesses", guesses, COUNT)
    v = valid_count("correct", correct, COUNT)
    if not v <= r <= m:
        raise ValueError(f"Expected correct={v} <= guesses={r} <= canaries={m}.")
    return m, r, v


def largest_refuted(refuted: Callable[[float], bool]) -> float:
    """An epsilon >= 0 at which `refuted` holds, within RESOLUTION of one at which it does not; 0 if it never holds."""
    if not refuted(0.0):
        return 0.0
    low, high = 0.0, 1.0
    while refuted(high):
        low, high = high, 2.0 * high
        if high == math.inf:  # at a confidence that is 0 in floats
            return low
    while high - low > RESOLUTION:
        middle = (low + high) / 2.0
        low, high = (middle, high) if refuted(middle) else (low, middle)
    return low
