"""Epsilon from counts: reference value, exact error rate at true nulls, largest possible outcome, tightness."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.special import expit, ndtr, ndtri
from scipy.stats import binom

from dpaudit.verify.bounds import (
    best_possible_epsilon,
    choose_threshold,
    clopper_pearson,
    epsilon_from_counts,
    epsilon_gdp,
    gaussian_delta,
    gaussian_epsilon,
    rate_lower,
    rate_upper,
)


def bound(tp: int, fp: int, n_in: int, n_out: int, delta: float = 0.0, confidence: float = 0.95) -> float:
    counts = {"tp": tp, "fp": fp, "tn": n_out - fp, "fn": n_in - tp}
    return epsilon_from_counts(**counts, delta=delta, confidence=confidence).epsilon_lower


def test_reference_value() -> None:
    result = epsilon_from_counts(tp=90, fp=10, tn=90, fn=10, delta=0.0, confidence=0.95)
    assert result.epsilon_lower == pytest.approx(1.542, abs=5e-4)
    assert (result.delta, result.confidence, result.assumes) == (0.0, 0.95, "")
    assert {k: result.inputs[k] for k in ("tp", "fp", "tn", "fn")} == {"tp": 90, "fp": 10, "tn": 90, "fn": 10}


def test_formula_in_both_directions() -> None:
    delta = 0.01
    x, y = (float(f(k, n, confidence=0.975)) for f, k, n in ((rate_lower, 60, 70), (rate_upper, 5, 90)))
    assert bound(60, 5, 70, 90, delta) == pytest.approx(np.log((x - delta) / y), rel=1e-12)
    x, y = (float(f(k, n, confidence=0.975)) for f, k, n in ((rate_lower, 199, 200), (rate_upper, 150, 200)))
    assert bound(199, 150, 200, 200, delta) == pytest.approx(np.log((1 - y - delta) / (1 - x)), rel=1e-12)


def test_the_complement_event_with_arms_swapped_is_the_same_event() -> None:
    for tp, fp in ((90, 10), (100, 55), (3, 0), (20, 70)):
        assert bound(tp, fp, 100, 100, 1e-3) == pytest.approx(bound(100 - fp, 100 - tp, 100, 100, 1e-3), abs=1e-12)


def test_no_evidence_is_zero() -> None:
    assert bound(0, 0, 10, 10) == bound(10, 10, 10, 10) == bound(0, 10, 10, 10) == bound(5, 5, 10, 10) == 0.0
    assert bound(10, 0, 10, 10, delta=0.9) == 0.0


@pytest.mark.parametrize(("n_in", "n_out", "delta"), [(12, 12, 0.0), (7, 15, 0.05)])
def test_best_possible_is_the_largest_over_all_outcomes(n_in: int, n_out: int, delta: float) -> None:
    largest = max(bound(tp, fp, n_in, n_out, delta) for tp, fp in product(range(n_in + 1), range(n_out + 1)))
    assert best_possible_epsilon(n_in, n_out, delta=delta, confidence=0.95) == pytest.approx(largest, rel=1e-12)
    assert largest > 0


def exact_error(tpr: float, fpr: float, epsilon: float, delta: float, n: int) -> float:
    """P(bound > epsilon) summed over every outcome of n + n trials."""
    wrong = np.array([[bound(tp, fp, n, n, delta) > epsilon for fp in range(n + 1)] for tp in range(n + 1)])
    return float(binom.pmf(np.arange(n + 1), n, tpr) @ wrong @ binom.pmf(np.arange(n + 1), n, fpr))


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 2.0])
def test_false_alarms_at_randomised_response(epsilon: float) -> None:
    # The output bit itself is the most revealing event: TPR = e^epsilon FPR exactly.
    error = exact_error(expit(epsilon), expit(-epsilon), epsilon, 0.0, 40)
    assert 0 < error <= 0.05


@pytest.mark.parametrize("mu", [0.5, 1.5])
def test_false_alarms_at_the_gaussian_with_delta(mu: float) -> None:
    epsilon = 1.0
    delta = gaussian_delta(mu, epsilon)
    cut = mu / 2 + epsilon / mu  # the event that attains delta
    error = exact_error(ndtr(mu - cut), ndtr(-cut), epsilon, delta, 40)
    assert 0 < error <= 0.05


@pytest.mark.parametrize("mu", [1.0, 2.0])
def test_tight_against_the_best_any_threshold_could_prove(mu: float) -> None:
    n, delta = 10_000, 1e-5
    out = ndtri((np.arange(n) + 0.5) / n)
    settings = {"delta": delta, "confidence": 0.95}
    cut = choose_threshold(out[::5] + mu, out[::5], **settings, trials_in=n, trials_out=n)
    grid = np.linspace(-5, 5 + mu, 2001)
    best = max(bound(int((out + mu > t).sum()), int((out > t).sum()), n, n, delta) for t in grid)
    proven = bound(int((out + mu > cut).sum()), int((out > cut).sum()), n, n, delta)
    assert 0.8 * best <= proven <= gaussian_epsilon(mu, delta)
    assert 0.3 <= proven / gaussian_epsilon(mu, delta) <= 0.55


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"tp": -1}, "tp=-1"),
        ({"fn": 1.5}, "fn=1.5"),
        ({"fp": 0, "tn": 0}, "fp \\+ tn=0"),
        ({"delta": 1.0}, "delta=1.0"),
        ({"delta": -1e-9}, "delta=-1e-09"),
        ({"confidence": 1.0}, "confidence=1.0"),
    ],
)
def test_bad_input_is_refused_by_name(change: dict[str, float], named: str) -> None:
    good = {"tp": 5, "fp": 5, "tn": 5, "fn": 5, "delta": 0.0, "confidence": 0.95}
    with pytest.raises(ValueError, match=named):
        epsilon_from_counts(**{**good, **change})


def test_a_count_that_is_no_number_is_refused() -> None:
    with pytest.raises(TypeError, match="tp=True"):
        epsilon_from_counts(tp=True, fp=1, tn=1, fn=1, delta=0.0, confidence=0.95)


def test_a_sum_of_floats_is_a_count() -> None:
    counted = {"tp": 90, "fp": 10, "tn": 90, "fn": 10}
    summed = {name: np.ones(count).sum() for name, count in counted.items()}
    first, second = (epsilon_from_counts(**given, delta=0.0, confidence=0.95) for given in (counted, summed))
    assert first.epsilon_lower == second.epsilon_lower


@pytest.mark.parametrize("trials", [100, 10**9, 10**16, 10**17])
def test_any_number_of_trials_is_counted_without_cancellation(trials: int) -> None:
    """Every trial told apart: TPR_lower is .025^(1/n), and FPR_upper what it lacks to 1."""
    bound = epsilon_from_counts(tp=trials, fp=0, tn=trials, fn=0, delta=0.0, confidence=0.95).epsilon_lower
    log_rate = math.log(0.025) / trials
    assert bound == pytest.approx(log_rate - math.log(-math.expm1(log_rate)), rel=1e-12)


def test_what_are_no_numbers_is_refused() -> None:
    for successes in ("3", True):
        with pytest.raises(ValueError, match="to be integers"):
            clopper_pearson(successes, 10, confidence=0.95)  # type: ignore[arg-type]
    masked = np.ma.masked_array([1.0, 2.0, 3.0], mask=[False, False, True])
    for scores in (masked, ["1", "2"], np.array([1j, 2.0]), np.array(["2020-01-01"], dtype="M8[D]")):
        with pytest.raises(ValueError, match="to be real numbers"):
            epsilon_gdp(scores, [1.0, 2.0], delta=1e-5, confidence=0.95)  # type: ignore[arg-type]
