"""The power estimate against a simulation of the very audit it plans."""

import numpy as np
from scipy.stats import norm

from dpaudit.audit.power import FEWEST, MOST, SELECTION, default_trials, models_needed
from dpaudit.verify.bounds import choose_curve_threshold, curve_violation

EPSILON, DELTA = 2.445, 1e-5


def delta_upper(epsilon: np.ndarray) -> np.ndarray:
    mu = 0.6
    return np.asarray(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


def test_the_estimate_has_the_power_it_states() -> None:
    """With the models it asks for, at least 90% of half-noise twins are refuted; 0.95 is meant, binomial slack."""
    total = models_needed(EPSILON, DELTA, delta_upper, share=0.025)["curve"]
    assert total is not None
    chosen = int(SELECTION * total)
    rng = np.random.default_rng(11)
    refuted = 0
    for _ in range(60):
        out, inside = rng.normal(size=total), rng.normal(size=total) + 1.2
        threshold = choose_curve_threshold(
            inside[:chosen],
            out[:chosen],
            delta_upper=delta_upper,
            confidence=0.975,
            trials_in=total - chosen,
            trials_out=total - chosen,
        )
        test = curve_violation(
            inside[chosen:], out[chosen:], threshold=threshold, delta_upper=delta_upper, confidence=0.975
        )
        refuted += test.violated
    assert refuted >= 50


def test_default_trials_stay_within_patience() -> None:
    assert default_trials({"epsilon_lower": None, "curve": 20}) == FEWEST
    assert default_trials({"epsilon_lower": None, "curve": None}) == MOST
