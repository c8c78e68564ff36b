"""Clopper-Pearson: against quantiles of the beta law, against binomial sums, and its coverage computed exactly."""

import mpmath
import numpy as np
import pytest
from scipy.stats import beta, binom

from dpaudit.verify.bounds import clopper_pearson, rate_lower, rate_upper


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.999])
@pytest.mark.parametrize("trials", [1, 2, 17, 500, 20_000])
def test_the_ends_are_quantiles_of_the_beta_law(trials: int, confidence: float) -> None:
    successes = np.unique(np.linspace(0, trials, 9).astype(int))
    lower, upper = clopper_pearson(successes, trials, confidence=confidence)
    tail = (1 - confidence) / 2
    some, short = successes > 0, successes < trials
    np.testing.assert_allclose(lower[some], beta(successes, trials - successes + 1).ppf(tail)[some], rtol=1e-9)
    np.testing.assert_allclose(upper[short], beta(successes + 1, trials - successes).isf(tail)[short], rtol=1e-9)
    np.testing.assert_array_equal(lower[~some], 0.0)
    np.testing.assert_array_equal(upper[~short], 1.0)


@pytest.mark.parametrize(("k", "n"), [(1, 50), (3, 10), (49, 50), (7, 2000)])
@pytest.mark.parametrize("tail", [0.025, 1e-9])
def test_bounds_solve_the_binomial_equations(k: int, n: int, tail: float) -> None:
    def at_least(p: float, count: int) -> mpmath.mpf:
        return mpmath.fsum(
            mpmath.binomial(n, j) * mpmath.mpf(p) ** j * (1 - mpmath.mpf(p)) ** (n - j) for j in range(count, n + 1)
        )

    with mpmath.workdps(40):
        assert float(at_least(float(rate_lower(k, n, confidence=1 - tail)), k)) == pytest.approx(tail, rel=1e-6)
        below = 1 - at_least(float(rate_upper(k, n, confidence=1 - tail)), k + 1)
        assert float(below) == pytest.approx(tail, rel=1e-6)


def test_the_ends_are_exact() -> None:
    lower, upper = clopper_pearson([0, 10], [10, 10], confidence=0.95)
    assert lower[0] == 0.0
    assert upper[1] == 1.0
    assert lower[1] == pytest.approx(0.025**0.1, rel=1e-12)
    assert upper[0] == pytest.approx(1 - 0.025**0.1, rel=1e-12)


@pytest.mark.parametrize("n", [1, 5, 37])
def test_one_sided_coverage_is_at_least_nominal_everywhere(n: int) -> None:
    counts, rates = np.arange(n + 1), np.linspace(0.001, 0.999, 333)[:, None]
    weight = binom.pmf(counts, n, rates)
    for missed in (rate_lower(counts, n, confidence=0.95) > rates, rate_upper(counts, n, confidence=0.95) < rates):
        error = (weight * missed).sum(axis=1)
        assert error.max() <= 0.05 + 1e-12
        assert error.max() > 0.02  # a bound that never errs would be needlessly weak


@pytest.mark.parametrize(
    ("successes", "trials", "confidence", "named"),
    [
        (-1, 5, 0.95, "successes=-1"),
        (6, 5, 0.95, "successes=6"),
        (1.5, 5, 0.95, "successes=1.5"),
        (0, 0, 0.95, "trials=0"),
        (np.nan, 5, 0.95, "successes=nan"),
        (1, 5, 1.0, "confidence=1.0"),
        (1, 5, 0.0, "confidence=0.0"),
        (1, 5, float("nan"), "confidence=nan"),
    ],
)
def test_bad_input_is_refused_by_name(successes: float, trials: int, confidence: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        clopper_pearson(successes, trials, confidence=confidence)
