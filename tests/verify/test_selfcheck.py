"""The self-check passes on the shipped bounds and fails on a bound that breaks its promise."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import binom

from dpaudit.verify import selfcheck
from dpaudit.verify.bounds import BOUNDS, epsilon_from_counts
from dpaudit.verify.selfcheck import cases, laplace_curve, measure_error_rates


@pytest.mark.slow
def test_every_bound_keeps_its_level() -> None:
    # each row fails by bad luck with probability at most 1e-6
    done: list[int] = []
    rows = measure_error_rates(np.random.default_rng(2024), trials=100, progress=done.append)
    assert [row for row in rows if not row.passed] == []
    assert done == [100] * len(cases()) == [100] * len(rows)
    assert {row.allowed for row in rows} == {int(binom.isf(1e-6, 100, 0.1))}
    assert sum(row.false_alarms for row in rows) > 0  # the truths are near enough to be contradicted by chance


def test_a_bound_at_the_wrong_level_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def overconfident(*, confidence: float, **counts: float) -> object:
        return epsilon_from_counts(**counts, confidence=0.3)

    monkeypatch.setitem(BOUNDS, "epsilon_from_counts", overconfident)
    # the bound and one other: that no other row fails is the test above
    few = {key: audit for key, audit in cases().items() if key[0] in ("epsilon_from_counts", "epsilon_gdp")}
    monkeypatch.setattr(selfcheck, "cases", lambda: few)
    rows = measure_error_rates(np.random.default_rng(1), trials=200)
    caught = {row.bound for row in rows if not row.passed}
    assert caught == {"epsilon_from_counts"}
    assert len(rows) == 4


def test_the_known_truth_of_laplace_is_its_integral() -> None:
    for epsilon in (0.0, 0.4, 0.9, 1.0, 2.0):

        def excess(x: float, epsilon: float = epsilon) -> float:
            return max(np.exp(-abs(x - 1)) - np.exp(epsilon - abs(x)), 0.0) / 2

        assert laplace_curve(np.array([epsilon]))[0] == pytest.approx(
            quad(excess, -30, 40, points=[0, 0.5, 1])[0], abs=1e-7
        )


def test_bad_trials_are_refused() -> None:
    with pytest.raises(ValueError, match="trials=0"):
        measure_error_rates(np.random.default_rng(0), trials=0)
