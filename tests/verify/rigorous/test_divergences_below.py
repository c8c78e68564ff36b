"""Renyi divergences from below in balls: exact ones of small passes, limits at large orders, the first engine's."""

import math
from itertools import combinations

import numpy as np
import pytest

pytest.importorskip("flint")

from scipy.integrate import quad
from scipy.stats import norm

from dpaudit.mechanisms import Gaussian, Laplace, Product
from dpaudit.verify import Claim, Phase
from dpaudit.verify.claims import Adjacency
from dpaudit.verify.guarantees import ZeroConcentratedDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower.divergences import divergence_lower
from dpaudit.verify.rigorous.balls import ball, precision
from dpaudit.verify.rigorous.divergences_below import pair_divergence
from dpaudit.verify.rigorous.guarantees import GuaranteeBracket, guarantee_bracket
from dpaudit.verify.samplers import (
    BallsInBins,
    BufferedShuffle,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)

SIGMA = 2.0
NOISE = Gaussian(SIGMA)


def below(
    sampler: Sampler, order: float, adjacency: Adjacency = "zero-out", noise: Gaussian | Laplace = NOISE
) -> float:
    with precision():
        found = pair_divergence(Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], adjacency).canonical(), ball(order))
        return float(found.lower())


@pytest.mark.parametrize(
    ("sampler", "adjacency", "squares"),
    [
        (Shuffled(batches=20, epochs=5), "zero-out", 5),
        (Shuffled(batches=20, epochs=5), "replace-one", 20),
        (Shuffled(batches=20, epochs=5, reshuffle="once"), "zero-out", 5),
        (WithoutReplacement(prob=0.05, releases=100), "zero-out", 100),
        (WithoutReplacement(prob=0.05, releases=100), "replace-one", 400),
        (BallsInBins(batches=20, epochs=5), "add-remove", 5),
        (RandomAllocation(releases=20, times=3), "add-remove", 3),
        (BufferedShuffle(records=1000, batch=50, buffer=500, epochs=5), "zero-out", 5),
        (TruncatedPoisson(prob=0.05, records=1000, max_batch=60, releases=100), "add-remove", 100),
    ],
    ids=str,
)
def test_no_rho_is_smaller_than_that_of_an_order_that_is_known(
    sampler: Sampler, adjacency: Adjacency, squares: int
) -> None:
    found = guarantee_bracket(claim_stating(ZeroConcentratedDP(1.0), [Phase(NOISE, sampler=sampler)], adjacency))
    assert isinstance(found, GuaranteeBracket)
    assert found.lower == pytest.approx(squares / (2 * SIGMA**2), rel=1e-5)
    assert found.lower <= found.upper


@pytest.mark.parametrize("order", [2.0, 7.0, 40.0])
def test_random_allocation_costs_at_least_that(order: float) -> None:
    releases, times = 4, 2  # the moment of whole orders is a mean over tuples of ways
    ways = np.array([[i in way for i in range(releases)] for way in combinations(range(releases), times)], dtype=float)
    log_moment = {1: 0.0}
    counts = {np.zeros(releases).tobytes(): 1.0}
    for _ in range(min(int(order), 7)):
        following: dict[bytes, float] = {}
        for key, weight in counts.items():
            for way in ways:
                moved = (np.frombuffer(key) + way).tobytes()
                following[moved] = following.get(moved, 0.0) + weight / len(ways)
        counts = following
    a = min(order, 7.0)
    sums = np.array([np.frombuffer(key) for key in counts])
    exponents = ((sums**2).sum(axis=1) - times * a) / (2 * SIGMA**2)
    log_moment[int(a)] = math.log(np.exp(exponents) @ np.array(list(counts.values())))
    assert below(RandomAllocation(releases=releases, times=times), a, "add-remove") <= log_moment[int(a)] / (a - 1)


def test_a_record_in_a_batch_of_fixed_size() -> None:
    g, order = 0.3, 6.0

    def integrand(x: float) -> float:
        logs = norm.logpdf(x, [0.0, 2.0], SIGMA)
        first = np.logaddexp(math.log1p(-g) + logs[0], math.log(g) + logs[1])
        return math.exp(order * first + (1 - order) * logs[0])

    truth = math.log(quad(integrand, -40, 80, limit=400)[0]) / (order - 1)
    found = below(WithoutReplacement(prob=g, releases=1), order, "replace-one")
    assert found == pytest.approx(max(0.0, (order * math.log(g) + order * (order - 1) / SIGMA**2 * 2) / (order - 1)))
    assert found <= truth


@pytest.mark.parametrize("order", [1.5, 20.0, 1e6])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_the_first_engine_shows_as_much(order: float, adjacency: Adjacency) -> None:
    for sampler in (Shuffled(batches=8, epochs=3), WithoutReplacement(prob=0.1, releases=5), BallsInBins(7, 3)):
        claim = Claim(1.0, 1e-5, [Phase(NOISE, sampler=sampler)], adjacency).canonical("lower")
        assert below(sampler, order, adjacency) <= divergence_lower(claim, np.array([order]))[0] * (1 + 1e-9)


def test_laplace_noise_has_patterns_too() -> None:
    found = below(Shuffled(batches=20, epochs=5), 1e6, noise=Laplace(0.5, clip_norm=1.0))
    assert found == pytest.approx(5 * (2.0 - math.log(20)) if math.log(20) < 2 else 0.0, abs=1e-4)
    assert below(Shuffled(batches=4, epochs=5), 1e6, noise=Laplace(0.5, clip_norm=1.0)) == pytest.approx(
        5 * (2.0 - math.log(4)), rel=1e-4
    )


def test_batches_that_are_cut_are_poisson_ones_where_the_others_are_silent() -> None:
    cut = TruncatedPoisson(prob=0.05, records=1000, max_batch=60, releases=100)
    uncut = [Phase(NOISE, 100, cut.kept_rate)]
    for adjacency in ("add-remove", "replace-one"):
        claims = [
            Claim(1.0, 1e-5, phases, adjacency).canonical("lower") for phases in ([Phase(NOISE, sampler=cut)], uncut)
        ]
        first, second = (divergence_lower(claim, np.array([2.0, 20.0])) for claim in claims)
        assert first == pytest.approx(second, rel=1e-9)
        assert below(cut, 2.0, adjacency) == pytest.approx(first[0], rel=1e-2)


def test_noise_without_a_divergence_in_balls_shows_nothing() -> None:
    phases = [Phase(Product(3.0, clip=1.0, dimension=9), sampler=Shuffled(batches=3, epochs=1))]
    with precision():
        assert pair_divergence(Claim(1.0, 1e-5, phases).canonical(), ball(3)) == 0
