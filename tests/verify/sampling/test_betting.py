"""Betting bounds keep their level, and are nearly as tight as bounds made for the case."""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds import clopper_pearson
from dpaudit.verify.sampling.betting import Excesses, Sample, choose_level_bet, level_lower, mean_lower


def generator(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def limit(trials: int, rate: float) -> int:
    """Errors that a bound with this error rate exceeds with probability at most 1e-4."""
    return int(binom.isf(1e-4, trials, rate))


def sample_of(values: Array) -> Sample:
    return Sample(values[values > 0], len(values))


def bernoulli(rng: np.random.Generator, size: int) -> Array:
    return (rng.random(size) < 0.004).astype(np.float64)


def uniform(rng: np.random.Generator, size: int) -> Array:
    return rng.random(size)


def spiked(rng: np.random.Generator, size: int) -> Array:
    """Mostly zero, mostly small where not: like the excess of a privacy loss."""
    return np.asarray(rng.random(size) ** 4 * (rng.random(size) < 0.05))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("draw", "mean", "trials"), [(bernoulli, 0.004, 300), (uniform, 0.5, 150), (spiked, 0.01, 150)]
)
def test_betting_bounds_keep_their_level(
    draw: Callable[[np.random.Generator, int], Array], mean: float, trials: int
) -> None:
    rng, tail = generator(1), 0.1
    wrong = 0
    for _ in range(trials):
        pilot, sample = sample_of(draw(rng, 200)), sample_of(draw(rng, 800))
        wrong += mean_lower(sample, pilot, tail=tail) > mean
    assert 0 < wrong <= limit(trials, tail)  # a bound that never errs at this level is far too wide


@pytest.mark.parametrize("rate", [0.002, 0.02, 0.3, 0.98])
def test_betting_is_nearly_as_tight_as_the_exact_binomial_bound(rate: float) -> None:
    size, hits = 20_000, round(20_000 * rate)
    sample = Sample(np.ones(hits), size)
    pilot = Sample(np.ones(hits // 10), size // 10)
    lower = float(clopper_pearson(hits, size, confidence=0.95)[0])
    assert lower - 0.4 * (rate - lower) < mean_lower(sample, pilot, tail=0.025) < rate


def test_betting_uses_the_variance_where_a_range_bound_could_not() -> None:
    rng = generator(2)
    pilot, sample = (sample_of(0.3 + 0.01 * rng.random(size)) for size in (500, 5000))
    hoeffding = math.sqrt(math.log(40) / (2 * 5000))
    assert sample.values.sum() / sample.size - mean_lower(sample, pilot, tail=0.025) < 0.1 * hoeffding


def test_betting_at_the_ends_of_the_range() -> None:
    nothing, everything = Sample(np.zeros(0), 1000), Sample(np.ones(1000), 1000)
    assert mean_lower(nothing, nothing, tail=0.05) == 0.0
    assert 1 - 4.5 / 1000 < mean_lower(everything, everything, tail=0.05) < 1
    with pytest.raises(ValueError, match=r"tail=0\.0"):
        mean_lower(everything, everything, tail=0.0)


@pytest.mark.slow
def test_the_level_bound_keeps_its_level() -> None:
    """Exponential losses: E(1 - e^(e - L))_+ = e^-e / 2, so delta = 0.01 is met from log 50 on."""
    rng, trials, tail, truth = generator(3), 150, 0.1, math.log(50)
    wrong, found = 0, []
    for _ in range(trials):
        pilot, sample = (Excesses(rng.exponential(size=s), np.zeros(s), s) for s in (300, 1500))
        bet, _ = choose_level_bet(pilot, 0.01, share=5.0)
        found.append(level_lower(sample, 0.01, bet=bet, tail=tail))
        wrong += found[-1] > truth
    assert 0 < wrong <= limit(trials, tail)
    assert np.median(found) > truth - 1.0
