"""Gaussian bounds: exact curve against integrals, error rates by simulation, tightness on quantile scores."""

from typing import Any

import mpmath
import numpy as np
import pytest
from scipy.special import ndtri
from scipy.stats import binom

from dpaudit.verify.bounds import epsilon_gdp, gaussian_delta, gaussian_epsilon, rate_lower, rate_upper


@pytest.mark.parametrize(("mu", "epsilon"), [(0.3, 0.5), (1.0, 0.0), (1.0, 4.0), (4.0, 2.0), (0.5, 3.0)])
def test_gaussian_delta_is_the_hockey_stick_integral(mu: float, epsilon: float) -> None:
    with mpmath.workdps(30):
        cut = mpmath.mpf(epsilon) / mu + mpmath.mpf(mu) / 2
        integral = mpmath.quad(lambda x: mpmath.npdf(x, mu) - mpmath.exp(epsilon) * mpmath.npdf(x), [cut, cut + 5, 60])
    assert gaussian_delta(mu, epsilon) == pytest.approx(float(integral), rel=1e-9)


def test_gaussian_epsilon_inverts_delta() -> None:
    assert gaussian_epsilon(0.6, 1e-5) == pytest.approx(2.445, abs=5e-4)  # the claim of the headline recipe
    for mu in (0.05, 1.0, 7.0):
        for delta in (1e-10, 1e-5, 0.01):
            epsilon = gaussian_epsilon(mu, delta)
            assert epsilon == 0.0 or gaussian_delta(mu, epsilon) == pytest.approx(delta, rel=1e-6)
    assert gaussian_epsilon(0.0, 1e-5) == 0.0
    assert gaussian_epsilon(1e-6, 1e-5) == 0.0


@pytest.mark.parametrize("mu", [0.5, 1.0, 2.0, 4.0, 6.0])
def test_within_a_fifth_of_the_truth_on_quantile_scores(mu: float) -> None:
    out = ndtri((np.arange(10_000) + 0.5) / 10_000)
    result = epsilon_gdp(out + mu, out, delta=1e-5, confidence=0.95)
    assert 0.8 <= result.epsilon_lower / gaussian_epsilon(mu, 1e-5) <= 1.0
    assert result.assumes == "gaussian-tradeoff"


def test_a_given_threshold_uses_the_plain_formula() -> None:
    inside, outside = np.r_[np.ones(80), np.zeros(20)], np.r_[np.ones(15), np.zeros(85)]
    result = epsilon_gdp(inside, outside, delta=1e-5, confidence=0.95, threshold=0.5)
    mu = ndtri(rate_lower(80, 100, confidence=0.975)) - ndtri(rate_upper(15, 100, confidence=0.975))
    assert result.inputs["mu_lower"] == pytest.approx(float(mu), rel=1e-12)
    assert result.epsilon_lower == pytest.approx(gaussian_epsilon(float(mu), 1e-5), rel=1e-12)
    assert result.threshold == 0.5


@pytest.mark.parametrize(("mu", "decimals"), [(0.0, None), (1.0, None), (3.0, None), (1.0, 0)])
@pytest.mark.parametrize("size", [20, 300])
def test_false_alarms_with_built_in_thresholds(mu: float, decimals: int | None, size: int) -> None:
    # 600 audits at level 0.1: more than the binomial limit of chance 1e-6 would mean an error rate above 0.1.
    rng, audits = np.random.default_rng(77), 600
    alarms = 0
    for _ in range(audits):
        inside, outside = rng.normal(mu, 1, size), rng.normal(0, 1, size)
        if decimals is not None:
            inside, outside = np.round(inside, decimals), np.round(outside, decimals)
        alarms += epsilon_gdp(inside, outside, delta=1e-5, confidence=0.9).inputs["mu_lower"] > mu
    assert alarms <= binom.isf(1e-6, audits, 0.1)


@pytest.mark.parametrize(
    ("mu", "epsilon", "message"),
    [
        (1, np.nan, r"epsilon=nan in \[0, inf\]"),
        (np.nan, 1, r"mu=nan in \[0, inf\]"),
        (1, -1, r"epsilon=-1 in \[0, inf\]"),
        (1, "2", "epsilon='2' to be a number"),
    ],
)
def test_a_curve_of_no_number_is_refused(mu: float, epsilon: float, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gaussian_delta(mu, epsilon)


@pytest.mark.parametrize(("mu", "message"), [("a", "mu='a' to be a number in"), (np.nan, "mu=nan"), (np.inf, "mu=inf")])
def test_an_epsilon_of_no_number_is_refused(mu: float, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        gaussian_epsilon(mu, 1e-5)


def test_order_of_scores_does_not_matter() -> None:
    rng = np.random.default_rng(1)
    inside, outside = rng.normal(1, 1, 500), rng.normal(0, 1, 400)
    first = epsilon_gdp(inside, outside, delta=1e-5, confidence=0.95)
    assert first == epsilon_gdp(np.sort(inside), np.sort(outside)[::-1], delta=1e-5, confidence=0.95)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"delta": 0.0}, "delta=0.0"),
        ({"threshold": np.nan}, "threshold=nan"),
        ({"threshold": "1"}, "threshold='1' to be a number"),
        ({"confidence": 2.0}, "confidence=2.0"),
    ],
)
def test_bad_input_is_refused(change: dict[str, Any], named: str) -> None:
    with pytest.raises((TypeError, ValueError), match=named):
        epsilon_gdp([1.0], [0.0], **{"delta": 1e-5, "confidence": 0.95, **change})
