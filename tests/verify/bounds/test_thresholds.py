"""Threshold choice: near the best possible, robust to ties, infinities and tiny samples, fast."""

import time

import numpy as np
import pytest
from scipy.special import ndtr

from dpaudit.verify.bounds import choose_threshold
from dpaudit.verify.bounds.counts import epsilon_from_rates
from dpaudit.verify.bounds.rates import lower_at, upper_at

SETTINGS = {"delta": 1e-5, "confidence": 0.95}


def expected_epsilon(cut: np.ndarray | float, mu: float, trials: int) -> np.ndarray:
    """What a threshold proves at the true expected counts of a Gaussian pair."""
    cut = np.asarray(cut)
    tail = (1 - SETTINGS["confidence"]) / 2
    lower, upper = lower_at(ndtr(mu - cut) * trials, trials, tail), upper_at(ndtr(-cut) * trials, trials, tail)
    return epsilon_from_rates(lower, upper, SETTINGS["delta"])


@pytest.mark.parametrize(
    ("mu", "selection", "trials", "share"), [(1.2, 5000, 20_000, 0.9), (2.0, 200, 800, 0.85), (3.0, 30, 120, 0.75)]
)
def test_chosen_threshold_proves_nearly_the_most_on_average(
    mu: float, selection: int, trials: int, share: float
) -> None:
    rng = np.random.default_rng(11)
    best = expected_epsilon(np.linspace(-4, 4 + mu, 4001), mu, trials).max()
    cuts = [
        choose_threshold(
            rng.normal(mu, 1, selection), rng.normal(0, 1, selection), **SETTINGS, trials_in=trials, trials_out=trials
        )
        for _ in range(20)
    ]
    assert share * best <= expected_epsilon(np.array(cuts), mu, trials).mean() <= best


def test_the_complement_direction_is_found() -> None:
    # Only non-members ever fall low: {score <= t} has FNR 0, while no high event tells the arms apart.
    rng = np.random.default_rng(5)
    inside, outside = rng.normal(0, 1, 400), rng.normal(0, 1, 400)
    outside[:80] = -10.0 - rng.random(80)
    cut = choose_threshold(inside, outside, **SETTINGS, trials_in=1000, trials_out=1000)
    assert -11.0 <= cut < -2.5


def test_ties_constants_and_infinities() -> None:
    sizes = {"trials_in": 50, "trials_out": 50}
    assert choose_threshold([1.0] * 9, [1.0] * 9, **SETTINGS, **sizes) == 1.0
    inside, outside = np.r_[np.full(15, np.inf), np.zeros(5)], np.r_[np.zeros(10), np.full(10, -np.inf)]
    cut = choose_threshold(inside, outside, **SETTINGS, **sizes)
    assert (cut == 0.0) or (cut == -np.inf)
    assert choose_threshold([2, 2, 2, 3], [1, 1, 1, 1], **SETTINGS, **sizes) == 1.0


@pytest.mark.parametrize("bad", [[np.nan, 1.0], [], [[1.0]]])
def test_bad_scores_are_refused(bad: list[float]) -> None:
    with pytest.raises(ValueError, match="Expected in_scores"):
        choose_threshold(bad, [1.0], **SETTINGS, trials_in=5, trials_out=5)


def test_fast_at_many_scores() -> None:
    rng = np.random.default_rng(1)
    scores = rng.normal(1, 1, 20_000), rng.normal(0, 1, 20_000)
    sizes = {"trials_in": 20_000, "trials_out": 20_000, "confidence": 0.95}
    began = time.perf_counter()
    choose_threshold(*scores, delta=1e-5, **sizes)
    assert time.perf_counter() - began < 1.0
