"""Bounds of binomial tails against exact fractions: on the right sides, and as near as they say."""

import math
from fractions import Fraction

import numpy as np
import pytest

from dpaudit.verify.binomial_tails import REACH, ROUNDING, TINY, WIDEST, binomial_tails


def exact(count: int, trials: int, chance: float) -> Fraction:
    """Pr[Binomial >= count] of the double `chance`, in whole numbers."""
    p = Fraction(chance)
    hit, miss, whole = p.numerator, p.denominator - p.numerator, p.denominator
    return Fraction(
        sum(math.comb(trials, k) * hit**k * miss ** (trials - k) for k in range(count, trials + 1)), whole**trials
    )


def bounds(count: int, trials: int, chance: float) -> tuple[float, float]:
    low, high = binomial_tails(np.array([[float(count)]]), np.array([float(trials)]), np.array([chance]))
    return float(low[0, 0]), float(high[0, 0])


@pytest.mark.parametrize("trials", [1, 2, 7, 40, 300])
@pytest.mark.parametrize("chance", [1e-12, 1e-4, 0.03, 0.5, 0.77, 1 - 2.0**-50])
def test_every_tail_lies_between_its_bounds(trials: int, chance: float) -> None:
    for count in {0, 1, 2, trials // 3, trials // 2, trials - 1, trials, trials + 1}:
        low, high = bounds(count, trials, chance)
        truth = exact(count, trials, chance)
        assert low <= truth <= high, (count, low, high)
        near = abs(count - trials * chance) <= REACH * math.sqrt(trials * chance * (1 - chance))
        if truth > TINY and near:
            assert high - low <= 3 * ROUNDING * truth, count


def test_bounds_without_their_margin_would_fail() -> None:
    """The positive control: floats round to both sides, so that only the charge for rounding holds them apart."""
    found = [(bounds(k, 200, 0.3), exact(k, 200, 0.3)) for k in range(40, 81)]
    below = [low / (1 - ROUNDING) - truth for (low, _), truth in found]
    assert max(below) > 0


def test_long_rows_and_short_ones_are_bounded_together() -> None:
    """Rows of different windows, each as it is alone; the tail at a mean of 1e4 is half, as far as that is good."""
    trials, chance = np.array([3.0, 1e5, 50.0, 1e5]), np.array([0.2, 0.1, 0.9, 1e-4])
    counts = np.array([[1.0, 2.0], [1e4, 10_200.0], [45.0, 50.0], [10.0, 30.0]])
    low, high = binomial_tails(counts, trials, chance)
    for row in range(4):
        alone = binomial_tails(counts[row : row + 1], trials[row : row + 1], chance[row : row + 1])
        assert alone[0][0] == pytest.approx(low[row], rel=1e-9)
        assert alone[1][0] == pytest.approx(high[row], rel=1e-9)
    assert low[1, 0] == pytest.approx(0.5, abs=0.01)
    assert (high - low)[1] == pytest.approx(np.zeros(2), abs=1e-10)


def test_sure_events_impossible_ones_and_windows_too_wide() -> None:
    assert bounds(5, 5, 1.0)[1] == 1.0
    assert bounds(5, 5, 1.0)[0] > 1 - 1e-10
    assert bounds(1, 5, 0.0) == (0.0, TINY)
    assert bounds(6, 5, 0.5) == (0.0, 0.0)
    assert bounds(0, 5, 0.5)[0] == 1.0
    assert WIDEST < 2 * REACH * 500
    assert bounds(500_000, 1_000_000, 0.5) == (0.0, 1.0)
