"""The curve test: exact error rate at true nulls, power on twins, and what it reports."""

from itertools import product

import numpy as np
import pytest
from scipy.special import expit, ndtr
from scipy.stats import binom

from dpaudit.verify.bounds import choose_curve_threshold, curve_violation, gaussian_delta, rate_lower, rate_upper
from dpaudit.verify.bounds.curve_test import DeltaUpper
from dpaudit.verify.results import CurveViolation


def gaussian_curve(mu: float) -> DeltaUpper:
    grid = np.linspace(0.0, 12.0, 6001)
    values = np.array([gaussian_delta(mu, epsilon) for epsilon in grid])
    return lambda epsilons: np.interp(epsilons, grid, values)  # delta is convex: the chord lies above it


def response_curve(truth: float) -> DeltaUpper:
    return lambda epsilons: np.maximum(expit(truth) - np.exp(epsilons) * expit(-truth), 0.0)


def judged(tp: int, fp: int, n: int, delta_upper: DeltaUpper) -> CurveViolation:
    inside, outside = (np.r_[np.ones(k), np.zeros(n - k)] for k in (tp, fp))
    return curve_violation(inside, outside, threshold=0.5, delta_upper=delta_upper, confidence=0.95)


@pytest.mark.parametrize(
    ("curve", "tpr", "fpr"),
    [
        (gaussian_curve(1.0), ndtr(0.5), ndtr(-0.5)),
        (gaussian_curve(1.0), ndtr(-0.5), ndtr(-1.5)),
        (gaussian_curve(1.0), ndtr(1.5), ndtr(0.5)),  # where the complement event tells more
        (response_curve(0.7), expit(0.7), expit(-0.7)),
    ],
)
def test_false_alarms_at_a_correct_mechanism(curve: DeltaUpper, tpr: float, fpr: float) -> None:
    n = 40
    wrong = np.zeros((n + 1, n + 1))
    for tp, fp in product(range(n + 1), repeat=2):
        wrong[tp, fp] = tp > fp and judged(tp, fp, n, curve).violated
    error = binom.pmf(np.arange(n + 1), n, tpr) @ wrong @ binom.pmf(np.arange(n + 1), n, fpr)
    assert 0 < error <= 0.05


def test_reports_the_epsilon_of_largest_excess() -> None:
    curve = gaussian_curve(0.6)
    result = judged(80, 10, 100, curve)
    x, y = result.inputs["tpr_lower"], result.inputs["fpr_upper"]
    assert x == pytest.approx(float(rate_lower(80, 100, confidence=0.975)), rel=1e-12)
    assert y == pytest.approx(float(rate_upper(10, 100, confidence=0.975)), rel=1e-12)
    grid = np.linspace(0, 6, 60_001)
    excess = np.maximum(x - np.exp(grid) * y, 1 - y - np.exp(grid) * (1 - x)) - curve(grid)
    assert result.violated
    assert result.delta_observed_lower - result.delta_upper == pytest.approx(excess.max(), abs=1e-7)
    assert result.delta_upper == pytest.approx(float(curve(result.epsilon)), rel=1e-9)
    assert (result.threshold, result.confidence) == (0.5, 0.95)


def test_complement_event_is_used_and_named() -> None:
    result = judged(100, 60, 100, gaussian_curve(0.5))
    assert result.violated
    assert result.inputs["event"] == "score <= threshold, out over in"


def test_nothing_to_see_is_not_violated() -> None:
    for tp, fp in ((0, 0), (100, 100), (10, 90), (50, 50)):
        result = judged(tp, fp, 100, gaussian_curve(0.1))
        assert not result.violated
        assert result.delta_observed_lower <= result.delta_upper


def test_a_half_noise_twin_falls_with_a_few_hundred_models_and_a_correct_one_does_not() -> None:
    # Claim mu = 0.6 (epsilon 2.445 at 1e-5). 40 audits of 300 models per arm, 60 of them for the threshold.
    # The twin's power is 0.954 (3000 audits), so fewer than 28 of 40 has probability below 1e-6; the correct
    # mechanism is refuted with probability at most 0.05 each: more than 10 of 40 has probability below 1e-5.
    curve, rng = gaussian_curve(0.6), np.random.default_rng(20)

    def audit(mu: float) -> bool:
        inside, outside = rng.normal(mu, 1, 300), rng.normal(0, 1, 300)
        cut = choose_curve_threshold(
            inside[:60], outside[:60], delta_upper=curve, confidence=0.95, trials_in=240, trials_out=240
        )
        return curve_violation(inside[60:], outside[60:], threshold=cut, delta_upper=curve, confidence=0.95).violated

    assert sum(audit(1.2) for _ in range(40)) >= 28
    assert sum(audit(0.6) for _ in range(40)) <= 10


def test_bad_input_is_refused() -> None:
    with pytest.raises(ValueError, match="threshold=nan"):
        curve_violation([1.0], [0.0], threshold=np.nan, delta_upper=gaussian_curve(1.0), confidence=0.95)
    with pytest.raises(ValueError, match="out_scores"):
        curve_violation([1.0], [np.nan], threshold=0.0, delta_upper=gaussian_curve(1.0), confidence=0.95)
