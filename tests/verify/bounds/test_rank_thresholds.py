"""Thresholds at ranks: exact error rates over uniform ranks, and a band against the known curve of normal scores."""

import numpy as np
import pytest
from scipy.special import ndtr, ndtri
from scipy.stats import binom

from dpaudit.verify.bounds import band_at, epsilon_from_counts, epsilon_from_ranks, gaussian_delta, rate_lower, roc_band
from dpaudit.verify.bounds.rank_thresholds import doubling_ranks


def test_the_band_holds_the_whole_true_curve_as_often_as_it_says() -> None:
    """TPR = Phi(Phi^-1(FPR) + 1); at 50% a band that is too narrow would show. Ours is missed much less often."""
    rng, audits, missed = np.random.default_rng(2), 300, 0
    for _ in range(audits):
        band = roc_band(rng.normal(1.0, 1.0, 150), rng.normal(size=90), confidence=0.5)
        truth = ndtr(ndtri(np.clip(band["fpr"], 1e-300, 1.0)) + 1.0)
        # the curve rises, so the lower step is nearest to it at its own left end, the upper one at its right end
        missed += bool((truth < np.array(band["tpr_lower"])).any() or (truth > np.array(band["tpr_upper"])).any())
    assert 0 < missed <= binom.isf(1e-6, audits, 0.5)


def test_the_band_holds_where_scores_tie() -> None:
    """Scores 0 and 1 alone, TPR .6 of {score > 0} at FPR .3; then all events."""
    rng, missed = np.random.default_rng(2), 0
    for _ in range(200):
        band = roc_band((rng.random(80) < 0.6).astype(float), (rng.random(80) < 0.3).astype(float), confidence=0.5)
        missed += band_at(band, 0.3)[0] > 0.6 or band_at(band, 0.2999)[1] < 0.0 or band_at(band, 0.3)[1] < 0.6
    assert missed <= binom.isf(1e-6, 200, 0.5)


def test_the_band_is_narrower_in_the_tail_than_one_of_equal_width() -> None:
    scores = np.random.default_rng(0).normal(size=2000)
    lower, upper = band_at(roc_band(scores + 3.0, scores, confidence=0.95), 0.01)
    equal = np.sqrt(np.log(4 / 0.05) / (2 * 2000))  # Dvoretzky-Kiefer-Wolfowitz of either arm
    assert upper - lower < 0.6
    assert band_at(roc_band(scores, scores, confidence=0.95), 0.001)[1] < equal + 0.001
    with pytest.raises(ValueError, match=r"fpr=1\.5"):
        band_at(roc_band(scores, scores, confidence=0.95), 1.5)


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_false_alarms_of_thresholds_at_ranks(mu: float) -> None:
    rng, audits, epsilon = np.random.default_rng(3), 400, 1.0
    delta, alarms = gaussian_delta(mu, epsilon), 0
    for _ in range(audits):
        inside, outside = rng.normal(mu, 1.0, 60), rng.normal(size=60)
        alarms += epsilon_from_ranks(inside, outside, delta=delta, confidence=0.8).epsilon_lower > epsilon
    assert alarms <= binom.isf(1e-6, audits, 0.2)


def test_ranks_prove_nearly_what_the_best_threshold_known_beforehand_proves() -> None:
    scores = ndtri((np.arange(10_000) + 0.5) / 10_000)
    bound = epsilon_from_ranks(scores + 2.0, scores, delta=1e-5, confidence=0.95)
    best = 0.0
    for threshold in np.linspace(-1.0, 4.0, 51):
        tp, fp = int((scores + 2.0 > threshold).sum()), int((scores > threshold).sum())
        known = epsilon_from_counts(tp=tp, fp=fp, tn=10_000 - fp, fn=10_000 - tp, delta=1e-5, confidence=0.95)
        best = max(best, known.epsilon_lower)
    assert 0.88 * best < bound.epsilon_lower < best


def test_one_rank_is_the_formula_written_out() -> None:
    inside, outside = np.array([3.0, 4.0, 1.0, 5.0]), np.array([0.0, 2.0])
    bound = epsilon_from_ranks(inside, outside, delta=0.0, confidence=0.1)
    tests = bound.inputs["tests"]
    assert [(t["side"], t["rank"], t["hits"]) for t in tests] == [("above", 1, 3), ("below", 1, 1), ("below", 2, 2)]
    tail = 0.9 / 3 / 2
    lower = float(rate_lower(3, 4, confidence=1 - tail))
    assert tests[0]["epsilon_lower"] == pytest.approx(max(0.0, np.log(lower / (1 - tail**0.5))))
    assert [test["threshold"] for test in tests] == [2.0, 1.0, 3.0]
    assert doubling_ranks(2).tolist() == [1]
