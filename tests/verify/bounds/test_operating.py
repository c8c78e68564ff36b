"""ROC, area and trade-off curves against counting and closed forms."""

import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from dpaudit.verify.bounds import auc, auc_interval, clopper_pearson, gaussian_delta, roc, tpr_at_fpr, tradeoff_curve


@pytest.fixture
def scores() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(4)
    return np.round(rng.normal(1, 1, 70), 1), np.round(rng.normal(0, 1, 90), 1)  # rounded: with ties


def test_auc_counts_pairs(scores: tuple[np.ndarray, np.ndarray]) -> None:
    inside, outside = scores
    pairs = (inside[:, None] > outside) + 0.5 * (inside[:, None] == outside)
    assert auc(inside, outside) == pytest.approx(pairs.mean(), abs=1e-12)
    assert auc([np.inf, 1.0], [-np.inf, 0.0]) == 1.0
    assert auc([1.0], [1.0]) == 0.5


@pytest.mark.parametrize("fpr", [0.0, 0.011, 0.1, 0.5, 1.0])
def test_tpr_at_fpr_is_the_best_threshold(scores: tuple[np.ndarray, np.ndarray], fpr: float) -> None:
    inside, outside = scores
    cuts = np.r_[-np.inf, np.unique(np.r_[inside, outside])]
    best = max((inside > t).mean() for t in cuts if (outside > t).mean() <= fpr)
    assert tpr_at_fpr(inside, outside, fpr) == best


def test_tpr_at_fpr_of_constant_scores_and_bad_rates() -> None:
    assert tpr_at_fpr([1.0, 1.0], [1.0, 1.0], 0.99) == 0.0
    assert tpr_at_fpr([1.0, 1.0], [1.0, 1.0], 1.0) == 1.0
    with pytest.raises(TypeError, match=r"fpr='0\.1' to be a number in \[0, 1\]"):
        tpr_at_fpr([1.0], [1.0], "0.1")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"fpr=1\.5"):
        tpr_at_fpr([1.0], [1.0], 1.5)


def test_roc_points_are_attained_and_banded(scores: tuple[np.ndarray, np.ndarray]) -> None:
    inside, outside = scores
    result = roc(inside, outside, confidence=0.9)
    assert result["confidence"] == 0.9
    for fpr, tpr, lower, upper in zip(*(result[k] for k in ("fpr", "tpr", "tpr_lower", "tpr_upper")), strict=True):
        assert tpr_at_fpr(inside, outside, fpr) == pytest.approx(tpr)
        assert (lower, upper) == pytest.approx(
            tuple(map(float, clopper_pearson(round(tpr * 70), 70, confidence=0.9))), abs=1e-12
        )
    assert result["fpr"][0] == 0.0
    assert (result["fpr"][-1], result["tpr"][-1]) == (1.0, 1.0)
    assert np.all(np.diff(result["fpr"]) > 0)
    assert np.all(np.diff(result["tpr"]) >= 0)


def test_roc_of_many_scores_has_few_points_down_to_the_smallest_rate() -> None:
    rng = np.random.default_rng(4)
    result = roc(rng.normal(2, 1, 20_000), rng.normal(0, 1, 20_000), confidence=0.95)
    assert 100 <= len(result["fpr"]) <= 202
    assert result["fpr"][1] == 1 / 20_000


@pytest.mark.parametrize("mu", [0.3, 1.0, 3.0])
def test_tradeoff_curve_is_the_gaussian_closed_form(mu: float) -> None:
    fpr = np.r_[np.geomspace(1e-6, 0.5, 30), np.linspace(0.5, 1.0, 20)]
    allowed = tradeoff_curve(lambda e: np.array([gaussian_delta(mu, x) for x in e]), fpr)
    exact = ndtr(ndtri(fpr) + mu)
    assert np.all(allowed >= exact - 1e-12)
    np.testing.assert_allclose(allowed, exact, rtol=2e-3)


def test_tradeoff_curve_of_randomised_response_is_two_lines() -> None:
    truth, fpr = 1.0, np.linspace(0, 1, 21)
    allowed = tradeoff_curve(lambda e: np.maximum(expit(truth) - np.exp(e) * expit(-truth), 0.0), fpr)
    exact = np.minimum(np.exp(truth) * fpr, 1 - np.exp(-truth) * (1 - fpr))
    np.testing.assert_allclose(allowed, exact, atol=2e-3)
    assert np.all(allowed >= exact - 1e-12)
    assert tradeoff_curve(lambda e: np.zeros_like(e), 0.3).shape == ()


@pytest.mark.parametrize("truth", [0.5, 0.7, 0.95])
def test_the_interval_of_an_auc_is_valid_and_not_far_from_tight(truth: float) -> None:
    """Members far above all others with probability `truth`, else far below: no law has an AUC of more variance.

    Then 100 times the AUC is binomial, and the error probability a finite sum.
    """
    hits = np.arange(101)
    outside = [
        not low <= truth <= high for low, high in (auc_interval(k / 100, 100, 300, confidence=0.95) for k in hits)
    ]
    error = binom.pmf(hits, 100, truth)[outside].sum()
    assert 0.05 / 10 < error < 0.05


def test_the_interval_of_an_auc_is_not_empty_at_the_ends() -> None:
    low, high = auc_interval(1.0, 50, 60, confidence=0.95)
    assert high == 1.0
    assert low == pytest.approx((0.05 / 2) ** (1 / 50), rel=1e-9)  # kl(1, A) = -log A
    assert auc_interval(0.0, 60, 50, confidence=0.95) == pytest.approx((0.0, 1.0 - low))
