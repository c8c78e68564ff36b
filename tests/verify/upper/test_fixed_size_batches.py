"""Batches of fixed size under zero-out: brackets, and releases on a grid, against which no bound may be lower."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.fixed_size_pairs import fixed_size_pair
from dpaudit.verify.pld.product_pairs import product_curve
from dpaudit.verify.samplers import Deterministic, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import fixed_size_batches, upper_curve


@pytest.mark.parametrize("g", [1e-4, 0.05, 0.5, 0.95])
@pytest.mark.parametrize("mu", [0.05, 0.5, 3.0])
def test_both_orders_of_normal_noise_are_those_of_half_lines(mu: float, g: float) -> None:
    """The record at mu, the other at -mu and its ghost at 0; and the ghost at 0, record and other at -mu."""
    pair = fixed_size_pair(*(product_curve(gaussian_pair(shift), 1, 1e-18) for shift in (mu, 2 * mu)), g)
    assert pair is not None
    x = np.linspace(-10.0 - mu, mu + 10.0, 200_001)
    own, ghost, other = norm.sf(x - mu), norm.sf(x), norm.sf(x + mu)
    epsilons = np.log1p(g * np.expm1(np.array([0.01, 0.3, 1.0, 2.0]) * mu + mu * mu / 2))
    orders = [((1 - g) * other + g * own, (1 - g) * other + g * ghost), ((1 - g) * other + g * ghost, other)]
    tails = [pair.tails(epsilons), pair.tails(-epsilons)]
    found = [
        tails[0].p_sf - np.exp(epsilons) * tails[0].q_sf + pair.lost,
        tails[1].q_cdf - np.exp(epsilons) * tails[1].p_cdf,
    ]
    for (first, second), delta in zip(orders, found, strict=True):
        exact = np.array([float((first - math.exp(e) * second).max()) for e in epsilons])
        assert (delta >= exact * (1 - 1e-9)).all()
        assert (delta <= exact * 1.01 + 1e-15).all()


@pytest.mark.parametrize(
    ("noise", "rate", "steps", "apart"),
    [
        (Laplace(10.0, dimension=1), 0.1, 100, 1.05),
        (Laplace(2.0, clip_norm=1.0, dimension=3), 0.3, 4, 1.01),
        (GeneralizedGaussian(3.0, 1.5, dimension=1), 0.1, 30, 1.03),
        (GammaPLRVIID(4.0, 0.3, dimension=1), 0.1, 100, 1.08),
    ],
    ids=["laplace-line", "laplace-l1", "power-line", "gamma-plrv-line"],
)
def test_both_bounds_nearly_meet(noise: Mechanism, rate: float, steps: int, apart: float) -> None:
    verdict = check(Claim(1.0, 1e-5, [Phase(noise, sampler=WithoutReplacement(rate, steps))], "zero-out"))
    assert verdict.epsilon_lower <= verdict.epsilon_upper <= apart * verdict.epsilon_lower


def law(noise: Mechanism, edges: Array, place: float) -> Array:
    return np.diff(noise.structure.cdf(np.concatenate([[-np.inf], edges - place, [np.inf]])))


@pytest.mark.parametrize(
    "noise",
    [Laplace(1.5, dimension=1), GeneralizedGaussian(4.0, 2.0, dimension=1), GammaPLRVIID(4.0, 0.3, dimension=1)],
    ids=lambda n: n.name,
)
@pytest.mark.parametrize("rate", [0.1, 0.6])
def test_no_bound_is_below_any_history_on_a_grid(noise: Mechanism, rate: float) -> None:
    """Two releases, both orders; record and others anywhere within the clip. Cells are joined, which only loses."""
    edges = np.linspace(-9.0, 9.0, 721)
    epsilons = np.array([0.05, 0.2, 0.6, 1.2])
    found = upper_curve(Claim(0.3, 1e-3, [Phase(noise, sampler=WithoutReplacement(rate, 2))], "zero-out"))(epsilons)
    laws = {place: law(noise, edges, place) for place in np.linspace(-1, 1, 5)}
    largest = np.zeros(len(epsilons))
    for own, *others in itertools.product((-1.0, -0.5, 0.5, 1.0), laws, laws):
        pairs = [[(1 - rate) * laws[y] + rate * laws[at] for at in (own, 0.0)] for y in others]
        p, q = (np.multiply.outer(*side).ravel() for side in zip(*pairs, strict=True))
        for first, second in ((p, q), (q, p)):
            largest = np.maximum(largest, [np.maximum(first - math.exp(e) * second, 0.0).sum() for e in epsilons])
    assert (found >= largest).all()
    if noise.name != "gamma-plrv-iid":  # whose loss is not monotone, so that half-lines are not the best sets
        assert (found <= largest * 1.15 + 1e-6).all()


def test_no_bound_is_below_two_coordinates_on_a_grid() -> None:
    """Laplace noise under an l1 bound: record and other anywhere on its ball."""
    noise, rate = Laplace(1.5, clip_norm=1.0, dimension=2), 0.4
    edges = np.linspace(-7.0, 7.0, 141)
    epsilons = np.array([0.05, 0.2, 0.4])
    found = upper_curve(Claim(0.3, 1e-3, [Phase(noise, sampler=WithoutReplacement(rate, 1))], "zero-out"))(epsilons)
    around = {
        place: np.multiply.outer(*(law(noise, edges, x) for x in place)).ravel()
        for place in [(0.0, 0.0), (1.0, 0.0), (-1.0, 0.0), (0.0, 1.0), (0.5, 0.5), (-0.5, -0.5), (0.5, -0.5)]
    }
    for own, other in itertools.product(around, around):
        p, q = ((1 - rate) * around[other] + rate * around[at] for at in (own, (0.0, 0.0)))
        for first, second in ((p, q), (q, p)):
            assert (found >= [np.maximum(first - math.exp(e) * second, 0.0).sum() for e in epsilons]).all()


def test_other_phases_and_batches_that_are_often_cut() -> None:
    noise = Laplace(10.0, dimension=1)
    drawn, fixed = Phase(noise, sampler=WithoutReplacement(0.1, 50)), Phase(noise, sampler=WithoutReplacement(0.1, 100))
    sampled = Phase(noise, 50, 0.1)
    normal = Phase(Gaussian(50.0, dimension=1), 5)
    passes = Phase(noise, sampler=Deterministic(10, 1))
    alone = check(Claim(1.0, 1e-5, [fixed])).epsilon_upper
    both = check(Claim(1.0, 1e-5, [drawn, sampled, normal]))
    assert both.epsilon_lower <= both.epsilon_upper < alone + 0.2
    assert check(Claim(1.0, 1e-5, [drawn, passes])).epsilon_upper < 0.6
    cut = check(Claim(1.0, 1e-5, [Phase(noise, sampler=TruncatedPoisson(0.1, 40, 1000, 100))], "zero-out"))
    kept = check(Claim(1.0, 1e-5, [Phase(noise, sampler=WithoutReplacement(0.04, 100))], "zero-out"))
    assert cut.epsilon_upper == pytest.approx(kept.epsilon_upper, rel=0.02)


@pytest.mark.slow
def test_coordinates_that_are_clipped_each_stay_apart_beside_batches_of_fixed_size() -> None:
    """Poisson batches cost less, and were taken by the l1 norm of all coordinates."""
    noise = Laplace(10.0, clip_norm=math.inf, dimension=4)
    fixed, poisson = Phase(noise, sampler=WithoutReplacement(0.1, 50)), Phase(noise, 50, 0.1)
    mixed, both = (check(Claim(1.0, 1e-5, [fixed, other])) for other in (poisson, fixed))
    assert mixed.epsilon_lower <= mixed.epsilon_upper < both.epsilon_upper < 0.9
    known = [Phase(noise, 2, 0.1), Phase(noise, 1)]
    replaced = check(Claim(1.0, 1e-5, known, "replace-one"))
    assert replaced.epsilon_lower <= replaced.epsilon_upper <= 1.03 * replaced.epsilon_lower


def test_what_has_no_pair_here_is_left_to_other_theorems() -> None:
    sampler = WithoutReplacement(0.1, 3)
    for phase in (
        Phase(Gaussian(1.0, dimension=1), sampler=sampler),
        Phase(Product(1.0, dimension=3), sampler=sampler),
        Phase(Laplace(1.0, dimension=1), 3, 0.1),
    ):
        assert not fixed_size_batches.applies(Claim(1.0, 1e-5, [phase]))
    one = Claim(1.0, 1e-5, [Phase(Laplace(1.0, dimension=1), sampler=sampler)])
    assert fixed_size_batches.applies(one)
    assert not fixed_size_batches.applies(Claim(1.0, 1e-5, one.phases, "replace-one"))
    with pytest.raises(ValueError, match="batches of fixed size"):
        fixed_size_batches.bound(Claim(1.0, 1e-5, one.phases, "replace-one"))
    far = Claim(1.0, 1e-5, [Phase(GeneralizedGaussian(3.0, 0.05, dimension=1), sampler=sampler)])
    assert (fixed_size_batches.bound(far).delta(np.array([1.0])) == 1).all()
