"""Samplers from theorems for other histories: batches that are cut."""

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import OF_COINS, UPPER_BOUNDS, upper_curve
from dpaudit.verify.upper.met_releases import carried_over, met_claim

DELTA = 1e-5


@pytest.mark.parametrize("noise", [Gaussian(300.0), Laplace(300.0, dimension=1)])
def test_the_bound_of_batches_that_are_cut_falls(noise: Mechanism) -> None:
    """Between any two epsilons: e^epsilon times the chance of a cut is no part of it."""
    sampler = TruncatedPoisson(0.05, 10, 100, 20)
    claim = Claim(0.01, 1e-3, [Phase(noise, sampler=sampler)], "zero-out")
    epsilons = np.linspace(0.0, 1.0, 1001)
    met = met_claim(claim)
    assert met is not None
    theorems = [theorem for theorem in UPPER_BOUNDS if theorem not in OF_COINS and theorem.applies(met)]
    for curve in [carried_over(claim, met, theorem.bound(met)) for theorem in theorems]:
        upper = curve.delta(epsilons)
        assert (np.diff(upper) <= 0).all()
        assert upper[-1] >= sampler.overflow


@pytest.mark.parametrize("noise", [Gaussian(2.0, dimension=1), Laplace(2.0, dimension=1)])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_batches_that_are_often_cut_cost_at_most_what_batches_of_fixed_size_do(
    noise: Mechanism, adjacency: Adjacency
) -> None:
    found, fixed, everybody = (
        upper_curve(Claim(1.0, DELTA, [Phase(noise, sampler=sampler)], adjacency))(np.array([0.5, 1.0, 2.0]))
        for sampler in (
            TruncatedPoisson(0.05, 10, 100, 20),
            WithoutReplacement(0.05, 20),
            TruncatedPoisson(1.0, 5, 100, 20),
        )
    )
    assert fixed[2] < 0.1
    assert (found <= fixed * (1 + 1e-6)).all()
    assert (found >= 0.5 * fixed).all()  # some batch is cut in one history of two
    assert everybody == pytest.approx(fixed, rel=1e-4)


@pytest.mark.parametrize(("adjacency", "other"), [("zero-out", 0.0), ("replace-one", -1.0)])
@pytest.mark.parametrize("sigma", [0.5, 1.0, 4.0])
def test_one_batch_that_is_often_cut_is_above_the_exact_divergence(
    adjacency: Adjacency, other: float, sigma: float
) -> None:
    """Three records, each in with probability 1/2, of which one is kept; the others contribute -1, the record 1."""
    z = np.linspace(-12.0 * sigma - 1.0, 12.0 * sigma + 1.0, 200_001)
    around = {centre: norm.pdf(z, centre, sigma) for centre in (-1.0, 0.0, 1.0)}

    def law(own: float) -> np.ndarray:
        """So many of the others are drawn, and the record is kept with one in so many and itself."""
        rest = [(0.25, 0, 0.0), (0.5, 1, -1.0), (0.25, 2, -1.0)]
        total = sum(
            [w * (around[own] / (x + 1) + around[y] * (2 - 1 / (x + 1))) / 2 for w, x, y in rest], np.zeros_like(z)
        )
        return np.asarray(total)

    phase = Phase(Gaussian(sigma, dimension=1), sampler=TruncatedPoisson(0.5, 1, 3, 1))
    epsilons = np.array([0.0, 0.3, 1.0, 2.0])
    upper = upper_curve(Claim(1.0, DELTA, [phase], adjacency))(epsilons)
    for first, second in ((law(1.0), law(other)), (law(other), law(1.0))):
        exact = [float(np.maximum(first - np.exp(e) * second, 0.0).sum() * (z[1] - z[0])) for e in epsilons]
        assert (upper >= exact).all()
    assert (upper < 1.0).all()


@pytest.mark.parametrize(
    "noise",
    [
        GeneralizedGaussian(3.0, 500.0, dimension=50),
        GeneralizedGaussian(1.5, 500.0, clip_norm=1.5, dimension=4),
        Laplace(100.0, dimension=30),
    ],
)
def test_who_is_sampled_under_replace_one_costs_at_most_who_is_always_there(noise: Mechanism) -> None:
    """The coins have one law for both neighbours: revealed, they leave at most as many releases."""
    epsilons = np.array([0.01, 0.1, 0.3])
    always, sampled = (
        upper_curve(Claim(0.3, 1e-3, [Phase(noise, 20, rate)], "replace-one"))(epsilons) for rate in (1.0, 0.3)
    )
    assert (sampled <= always).all()
    assert always[-1] < 1e-3
    fixed = upper_curve(Claim(0.3, 1e-3, [Phase(noise, sampler=WithoutReplacement(0.3, 20))], "replace-one"))
    assert (fixed(epsilons) <= always).all()
