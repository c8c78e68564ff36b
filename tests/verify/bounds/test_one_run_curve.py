"""One run against any curve: a linear program over every mechanism, exact nulls, and the Gaussian case of its own."""

import numpy as np
import pytest
from scipy.optimize import linprog
from scipy.special import expit
from scipy.stats import binom

from dpaudit.verify.bounds import (
    Tradeoff,
    epsilon_one_run,
    epsilon_one_run_curve,
    gaussian_delta,
    one_run_p_value,
    steinke_p_value,
)
from dpaudit.verify.bounds.one_run_gaussian import mu_one_run


def largest_tail(m: int, r: int, v: int, curve: Tradeoff) -> float:
    """max P(C >= v) under the exchange inequality for tail sets, by a linear program: g as the least of its lines."""
    rows, limits = [], []
    for i in range(1, r + 1):
        right = np.where(np.arange(r + 1) >= i, np.arange(r + 1), 0) / m
        wrong = np.where((np.arange(r + 1) >= i - 1) & (np.arange(r + 1) < r), r - np.arange(r + 1), 0) / m
        rows.append(right - curve.slopes[:, None] * wrong)
        limits.append(curve.intercepts)
    goal = -(np.arange(r + 1) >= v).astype(float)
    found = linprog(goal, np.vstack(rows), np.concatenate(limits), np.ones((1, r + 1)), [1.0])
    assert found.success
    return -float(found.fun)


@pytest.mark.parametrize(("m", "r", "v"), [(30, 20, 17), (12, 12, 11), (60, 10, 9)])
@pytest.mark.parametrize(("epsilon", "delta"), [(0.5, 0.0), (0.7, 0.01)])
def test_the_p_value_is_the_most_that_any_mechanism_can_reach(
    m: int, r: int, v: int, epsilon: float, delta: float
) -> None:
    curve = Tradeoff.of_points([epsilon], [delta])
    assert one_run_p_value(m, r, v, curve) == pytest.approx(largest_tail(m, r, v, curve), rel=1e-3)


def test_with_the_gaussian_curve_it_is_the_gaussian_recursion() -> None:
    mu = 0.8
    curve = Tradeoff.of(lambda e: np.array([gaussian_delta(mu, float(x)) for x in e]))
    p_value = one_run_p_value(300, 150, 125, curve)
    assert 1e-4 < p_value < 0.5
    assert mu_one_run(300, 150, 125, tail=p_value) == pytest.approx(mu, abs=2e-3)


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (1.0, 0.02)])
def test_false_alarms_at_randomised_response_that_sometimes_reveals_everything(epsilon: float, delta: float) -> None:
    """Both bounds together, as they share one error probability."""
    m = 60
    counts = np.arange(m + 1)
    settings = {"canaries": m, "guesses": m, "delta": delta, "confidence": 0.9}
    wrong = np.array(
        [
            max(
                epsilon_one_run(correct=int(v), **settings).epsilon_lower,
                epsilon_one_run_curve(correct=int(v), **settings).epsilon_lower,
            )
            > epsilon
            for v in counts
        ]
    )
    error = (1 - delta) * binom.pmf(counts, m, expit(epsilon)) @ wrong + delta * wrong[m]
    assert error <= 0.1
    if delta == 0.0:
        assert error > 0.02


def test_delta_costs_less_than_in_theorem_5_2_and_the_bound_inverts_the_p_value() -> None:
    curve = Tradeoff.of_points([1.0], [1e-2])
    assert one_run_p_value(1000, 500, 390, curve) < 0.3 * steinke_p_value(1000, 500, 390, epsilon=1.0, delta=1e-2)
    settings = {"canaries": 400, "guesses": 200, "correct": 170, "delta": 1e-3, "confidence": 0.95}
    bound = epsilon_one_run_curve(**settings)
    p_values = [
        one_run_p_value(400, 200, 170, Tradeoff.of_points([bound.epsilon_lower + step], [1e-3]))
        for step in (-1e-4, 1e-4)
    ]
    assert p_values[0] <= 0.05 < p_values[1] * 1.001
    assert epsilon_one_run_curve(**{**settings, "correct": 100}).epsilon_lower == 0.0
    with pytest.raises(ValueError, match="correct=6 <= guesses=5"):
        one_run_p_value(10, 5, 6, curve)
