"""The predictor of Appendix D: what it learns from, what it reports, what it refuses."""

from typing import Any

import numpy as np
import pytest
from sklearn.linear_model import LinearRegression

from dpaudit.mechanisms import GammaPLRV
from dpaudit.verify.accountants.published_adapter import Published
from dpaudit.verify.papers.searches.plrvo_prediction import FEATURES, RANGES, Solved, fit, solve_configurations


def bent_law(count: int, rng: np.random.Generator) -> Solved:
    """theta = epsilon / ((2 + epsilon) k C q sqrt(T)): what a high-noise mechanism obeys, bent in epsilon."""
    low, high = np.log(np.array([RANGES[name] for name in FEATURES])).T
    inputs = np.exp(rng.uniform(low, high, size=(count, 5)))
    k, epsilon, clip, steps, q = inputs.T
    return Solved(inputs, epsilon / ((2 + epsilon) * k * clip * q * np.sqrt(steps)), 0)


@pytest.mark.parametrize(("line", "most"), [(True, 0.02), (False, 0.35)])  # a constant is off by 0.97, a line by 0.08
def test_a_known_law_is_learned_and_the_reported_error_is_that_of_fresh_configurations(line: bool, most: float) -> None:
    rng = np.random.default_rng(5)
    predictor = fit(bent_law(600, rng), rng=rng, line=line)
    assert len(predictor.held_out.theta) == 150
    assert predictor.held_out_error() < most
    assert predictor.held_out_error() < predictor.held_out_error(0.9)
    one = dict(zip(FEATURES, predictor.held_out.inputs[0], strict=True))
    assert predictor.theta(**one) == pytest.approx(predictor.held_out_ratios[0] * predictor.held_out.theta[0])
    fresh = bent_law(300, np.random.default_rng(6))
    guesses = [predictor.theta(**dict(zip(FEATURES, row, strict=True))) for row in fresh.inputs]
    error = float(np.median(np.abs(np.array(guesses) / fresh.theta - 1)))
    assert error == pytest.approx(predictor.held_out_error(), rel=0.5)


@pytest.mark.parametrize(("line", "first"), [(True, "epsilon"), (False, "k")])
def test_importance_is_that_of_what_the_start_leaves(line: bool, first: str) -> None:
    rng = np.random.default_rng(7)
    importance = fit(bent_law(300, rng), rng=rng, line=line).importance
    assert sum(importance.values()) == pytest.approx(1.0)
    assert max(importance, key=lambda name: importance[name]) == first  # k has the widest range


def test_flags_that_a_matrix_product_leaves_are_not_heeded(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of the tests in many failed by such a warning, of finite numbers."""
    predict = LinearRegression.predict

    def flagging(self: Any, x: Any) -> Any:
        assert np.isnan(np.subtract(np.inf, np.full(1, np.inf)))
        return predict(self, x)

    monkeypatch.setattr(LinearRegression, "predict", flagging)
    with pytest.warns(RuntimeWarning, match="invalid value"):
        flagging(LinearRegression().fit([[0.0], [1.0]], [0.0, 1.0]), [[1.0]])
    rng = np.random.default_rng(1)
    assert np.isfinite(fit(bent_law(40, rng), rng=rng).held_out_ratios).all()


def test_what_was_not_learned_from_is_refused() -> None:
    rng = np.random.default_rng(1)
    predictor = fit(bent_law(40, rng), rng=rng)
    with pytest.raises(ValueError, match=r"Expected epsilon=40\.0 in \[0\.1, 4\]"):
        predictor.theta(k=100.0, epsilon=40.0, clip=1.0, steps=300, sampling_prob=0.01)
    with pytest.raises(ValueError, match="Expected 8 solved configurations to be at least 20"):
        fit(bent_law(8, rng), rng=rng)


@pytest.mark.slow
def test_solved_configurations_meet_epsilon_and_no_more() -> None:
    accountant = Published("plrvo-theorem-4.9", {"max_order": 80})
    solved = solve_configurations(2, dimension=500, delta=1e-5, rng=np.random.default_rng(2), accountant=accountant)
    for (k, epsilon, clip, steps, q), theta in zip(solved.inputs, solved.theta, strict=True):
        for factor, enough in ((1.0, True), (1.003, False)):
            mechanism = GammaPLRV(k=k, theta=theta * factor, clip=clip, dimension=500)
            assert (accountant(mechanism, q, int(steps), 1e-5) <= epsilon) == enough
    again = solve_configurations(2, dimension=500, delta=1e-5, rng=np.random.default_rng(2), accountant=accountant)
    np.testing.assert_array_equal(again.theta, solved.theta)
