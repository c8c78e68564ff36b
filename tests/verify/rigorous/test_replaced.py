"""A sampled record that is replaced, and batches of fixed size, from above in balls: integrals, the first engine."""

import itertools
import math
from collections.abc import Iterable

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.stats import norm

pytest.importorskip("flint")

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.bracket import RigorousBracket, UpperProof, rigorous_bracket, upper_proof
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import sampled_normal


def bracket(claim: Claim) -> RigorousBracket:
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    return found


@pytest.mark.parametrize(("mu", "rate", "epsilon"), [(0.4, 0.05, 0.01), (2.0, 0.5, 1.0)])
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


def upper(claim: Claim) -> float:
    with precision():
        proof = upper_proof(claim.canonical())
        assert isinstance(proof, UpperProof)
        assert (proof.kind, proof.exact) == ("gaussian-grid", False)
        return float(proof.delta(ball(claim.epsilon)).upper())


def test_one_batch_of_fixed_size_is_the_worst_of_all_sums() -> None:
    """One of the others, y, is in where the record is not: v here, w there; all of -1, 0 and 1 times mu."""
    mu, rate, epsilon = 0.6, 0.2, 0.1
    x, step = np.linspace(-11.0, 11.0, 44_001, retstep=True)
    ends = (-mu, 0.0, mu)
    laws = {(y, z): (1 - rate) * norm.pdf(x - y) + rate * norm.pdf(x - z) for y, z in itertools.product(ends, repeat=2)}

    def most(pairs: Iterable[tuple[float, float]]) -> float:
        tried = [laws[y, v] - math.exp(epsilon) * laws[y, w] for y in ends for v, w in pairs]
        return max(float(np.maximum(gain, 0.0).sum() * step) for gain in tried)

    phases = [Phase(Gaussian(1 / mu), sampler=WithoutReplacement(rate, 1))]
    for adjacency, pairs in CASES:
        truth = most([(mu * v, mu * w) for v, w in pairs])
        assert truth * (1 - 1e-6) < upper(Claim(epsilon, truth, phases, adjacency)) < truth * 1.01


CASES: list[tuple[Adjacency, list[tuple[float, float]]]] = [
    ("zero-out", [(v, 0.0) for v in (-1.0, 1.0)] + [(0.0, w) for w in (-1.0, 1.0)]),
    ("replace-one", list(itertools.product((-1.0, 0.0, 1.0), repeat=2))),
]


@pytest.mark.parametrize(
    ("phases", "adjacency", "epsilon"),
    [
        ([Phase(Gaussian(4.0), sampler=WithoutReplacement(0.05, 400))], "replace-one", 2.5),
        ([Phase(Gaussian(4.0), sampler=WithoutReplacement(0.05, 400))], "zero-out", 1.2),
        ([Phase(Gaussian(3.0), sampler=WithoutReplacement(0.05, 90)), Phase(Gaussian(3.0), 20, 0.1)], "zero-out", 1.0),
    ],
)
def test_batches_of_fixed_size_cost_what_the_first_engine_says(
    phases: list[Phase], adjacency: Adjacency, epsilon: float
) -> None:
    claim = Claim(epsilon, 1e-5, phases, adjacency)
    found = float(sampled_normal.bound(claim.canonical("upper")).delta(np.array([epsilon]))[0])
    assert upper(claim) == pytest.approx(found, rel=0.01)


def test_other_noise_has_no_such_bound() -> None:
    claim = Claim.single(Laplace(4.0, dimension=1), epsilon=1.0, delta=1e-5, steps=3, sampling_prob=0.1)
    found = bracket(Claim(1.0, 1e-5, claim.phases, "replace-one"))
    assert (found.delta_upper, "replace-one has no rigorous upper bound" in found.theorem) == (1.0, True)
