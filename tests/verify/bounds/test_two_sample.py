"""Pairs of trials against the largest AUC of a curve."""

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import bdtrc, expit
from scipy.stats import binom, norm

from dpaudit.verify.bounds import Tradeoff, epsilon_paired, gaussian_delta


def test_the_area_of_a_curve_is_its_integral() -> None:
    mu = 2.0
    curve = Tradeoff.of(lambda e: np.array([gaussian_delta(mu, float(x)) for x in e]))
    assert curve.area == pytest.approx(quad(lambda u: norm.cdf(norm.ppf(u) + mu), 0, 1)[0], abs=2e-4)
    inside = np.linspace(0.0, 1.0, 77)[1:-1]
    assert curve.inverse(curve(inside)) == pytest.approx(inside, abs=1e-9)
    assert Tradeoff.of_points([2.0], [0.0]).area == pytest.approx(expit(2.0))
    assert Tradeoff.of_points([0.0], [1.0]).inverse([0.2, 1.0]).tolist() == [0.0, 0.0]


@pytest.mark.parametrize(("epsilon", "delta"), [(1.0, 0.0), (0.5, 0.1)])
def test_false_alarms_of_pairs_at_their_worst_mechanism(epsilon: float, delta: float) -> None:
    """A pair is won with the largest probability that the curve allows: the exact error rate of the bound."""
    pairs, share = 80, Tradeoff.of_points([epsilon], [delta]).area
    alarms = [
        epsilon_paired(np.arange(pairs) < wins, np.full(pairs, 0.5), delta=delta, confidence=0.9).epsilon_lower
        > epsilon
        for wins in range(pairs + 1)
    ]
    error = float(binom.pmf(np.arange(pairs + 1), pairs, share) @ alarms)
    assert 0.02 < error <= 0.1
    assert error == pytest.approx(float(bdtrc(alarms.index(True) - 1, pairs, share)))


def test_pairs_are_blind_to_what_a_pair_shares() -> None:
    rng = np.random.default_rng(0)
    base = 100.0 * rng.normal(size=400)
    bound = epsilon_paired(base + 3.0 + rng.normal(size=400), base + rng.normal(size=400), delta=1e-5, confidence=0.95)
    assert bound.epsilon_lower > 3.0
    with pytest.raises(ValueError, match="in_scores of size 2 and out_scores of size 3"):
        epsilon_paired([1.0, 2.0], [1.0, 2.0, 3.0], delta=0.0, confidence=0.95)
