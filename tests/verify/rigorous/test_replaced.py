"""A sampled record that is replaced, from above in balls: against an integral, the first engine and mixed histories."""

import math

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

pytest.importorskip("flint")

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket
from dpaudit.verify.upper import sampled_normal


def bracket(claim: Claim) -> RigorousBracket:
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    return found


@pytest.mark.parametrize(("mu", "rate", "epsilon"), [(1.0, 0.2, 0.1), (0.4, 0.05, 0.01), (2.0, 0.5, 1.0)])
def test_one_release_is_an_integral(mu: float, rate: float, epsilon: float) -> None:
    def gain(x: float) -> float:
        p = (1 - rate) * norm.pdf(x) + rate * norm.pdf(x - mu)
        q = (1 - rate) * norm.pdf(x) + rate * norm.pdf(x + mu)
        return max(float(p - math.exp(epsilon) * q), 0.0)

    truth = sum(quad(gain, a, a + 0.5, epsabs=1e-14)[0] for a in np.arange(-9.0, 9.0 + mu, 0.5))
    claim = Claim.single(Gaussian(1 / mu), epsilon=epsilon, delta=truth, sampling_prob=rate, adjacency="replace-one")
    found = bracket(claim).delta_upper
    assert truth * (1 - 1e-7) < found < truth * 1.01


@pytest.mark.parametrize(
    "phases",
    [
        [Phase(Gaussian(4.0), 400, 0.05)],
        [Phase(Gaussian(2.0), 30, 0.05), Phase(Gaussian(3.0), 20, 0.1), Phase(Gaussian(20.0), 3)],
    ],
)
def test_both_engines_bound_the_same(phases: list[Phase]) -> None:
    claim = Claim(1.5, 1e-5, phases, "replace-one")
    low, high = check(claim).delta_lower, float(sampled_normal.bound(claim).delta(np.array([1.5]))[0])
    found = bracket(claim)
    assert found.theorem == "gaussian-grid"
    assert low < found.delta_upper < high * 1.03
    assert found.delta_upper > high * 0.98


def test_other_noise_has_no_such_bound() -> None:
    claim = Claim.single(Laplace(4.0, dimension=1), epsilon=1.0, delta=1e-5, steps=3, sampling_prob=0.1)
    found = bracket(Claim(1.0, 1e-5, claim.phases, "replace-one"))
    assert (found.delta_upper, "replace-one has no rigorous upper bound" in found.theorem) == (1.0, True)
