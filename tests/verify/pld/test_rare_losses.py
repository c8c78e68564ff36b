"""Rare large losses apart from the sum of all others, against plain sums and integrals over two releases."""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from scipy.stats import gennorm, norm

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Array
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.pld import curve_pairs, pair_curve
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails, gaussian_pair, laplace_pair
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.half_lines import HalfLineReleases, Halves, NormalMixtures, compose_halves
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs
from dpaudit.verify.pld.rare_losses import WithRareLosses
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import upper_curve

RARE = [(1e-4, 1.0, 1e-9), (1e-5, 1.0 / 0.6, 1e-10), (1e-6, 1.0, 1e-12)]  # rate, shift over sigma, delta


def hockey_stick(losses: Array, masses: Array, at: float) -> float:
    return float(masses @ np.maximum(-np.expm1(at - losses), 0.0))


def powers(lattice: Lattice, step: float, count: int) -> tuple[Array, Array]:
    masses = np.ones(1)
    for _ in range(count):
        masses = np.convolve(masses, lattice.masses)
    return (count * lattice.first + np.arange(len(masses))) * step, masses


def test_one_release_less_is_bounded_by_the_whole_history_moved_by_its_masses() -> None:
    rng = np.random.default_rng(5)
    for _ in range(200):
        lattice = Lattice(rng.dirichlet(np.ones(7)) * rng.uniform(0.5, 1.0), int(rng.integers(-5, 0)))
        step, count = rng.uniform(0.01, 0.5), int(rng.integers(1, 5))
        fewer, whole = powers(lattice, step, count), powers(lattice, step, count + 1)
        losses, masses = powers(lattice, step, 1)
        first, second = masses.sum(), float(masses @ np.exp(-losses))
        for at in rng.uniform(-2.0, 2.0, 10):
            most = hockey_stick(*whole, at + math.log(first / second)) / first
            assert hockey_stick(*fewer, at) <= most * (1.0 + 1e-12) + 1e-15


@pytest.mark.parametrize("count", [2, 40])
def test_below_zero_and_below_the_window_the_curve_is_a_bound_and_no_loose_one(count: int) -> None:
    lattice = Lattice(np.array([0.2, 0.5, 0.3]), -1)
    step = 0.05
    at = np.linspace(-6.0, 1.0, 71)
    exact = np.array([hockey_stick(*powers(lattice, step, count), float(x)) for x in at])
    found = Composed([(lattice, count)], step, 0.0, 0.0).delta(at)
    assert (found >= exact * (1.0 - 1e-12)).all()
    assert found == pytest.approx(exact, rel=1e-3, abs=1e-6)


def integral(integrand: Callable[[Array], Array], points: list[float]) -> float:
    """By Gauss's rule on twenty panels between any two of the points."""
    x, w = np.polynomial.legendre.leggauss(40)
    edges = np.concatenate([np.linspace(a, b, 21)[:-1] for a, b in pairwise(sorted(points))] + [[max(points)]])
    middle, half = (edges[1:] + edges[:-1]) / 2.0, (edges[1:] - edges[:-1]) / 2.0
    return float((integrand((middle[:, None] + half[:, None] * x).ravel()).reshape(-1, 40) @ w) @ half)


def two_normal_releases(q: float, mu: float, epsilon: float) -> float:
    """delta of two Poisson-sampled releases: the second one's in closed form, integrated over the first one's loss."""

    def one(level: Array) -> Array:
        some = level > math.log1p(-q)
        with np.errstate(invalid="ignore", divide="ignore"):
            t = (np.log1p(np.expm1(level) / q) + mu * mu / 2.0) / mu
            value = q * norm.sf(t - mu) - (np.expm1(level) + q) * norm.sf(t)
        return np.asarray(np.where(some, value, -np.expm1(level)))

    def integrand(x: Array) -> Array:
        loss = np.log1p(q * np.expm1(mu * x - mu * mu / 2.0))
        return np.asarray(((1.0 - q) * norm.pdf(x) + q * norm.pdf(x - mu)) * one(epsilon - loss))

    kink = (math.log1p(math.expm1(epsilon) / q) + mu * mu / 2.0) / mu
    return integral(integrand, [-12.0, 0.0, 0.5 * kink, kink, kink + 1.0, kink + 3.0, kink + 12.0])


@pytest.mark.parametrize(("q", "mu", "delta"), RARE)
def test_two_sampled_normal_releases_against_an_integral(q: float, mu: float, delta: float) -> None:
    [found] = compose_pairs([PairPhase(gaussian_pair(mu), q, 2)], ("remove",), delta)
    assert isinstance(found, WithRareLosses)
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = 0.5 * (low + high)
        low, high = (middle, high) if two_normal_releases(q, mu, middle) > delta else (low, middle)
    for epsilon in (0.3 * low, low, 2.0 * low):
        exact, bound = two_normal_releases(q, mu, epsilon), float(found.delta(np.array([epsilon]))[0])
        assert exact * (1.0 - 1e-7) <= bound <= exact * 1.03 + 1e-3 * delta


def sampled_as_a_whole(q: float, mu: float, *, mirrored: bool) -> DominatingPair:
    """A sampled release as a pair that is never sampled, in either order."""
    base = gaussian_pair(mu)

    def tails(losses: Array) -> Tails:
        if mirrored:
            flipped = forward(-losses[::-1])
            return Tails(*(c[::-1] for c in (flipped.q_sf, flipped.q_cdf, flipped.p_sf, flipped.p_cdf)), *flipped[4:])
        return forward(losses)

    def forward(losses: Array) -> Tails:
        inside = losses > math.log1p(-q)
        with np.errstate(divide="ignore", invalid="ignore"):
            at = np.where(inside, np.log1p(np.expm1(np.minimum(losses, 600.0)) / q), -700.0)
        found = base.tails(np.maximum(at, -700.0))
        p_cdf, p_sf = (q * p + (1.0 - q) * r for p, r in ((found.p_cdf, found.q_cdf), (found.p_sf, found.q_sf)))
        return Tails(p_cdf, p_sf, found.q_cdf, found.q_sf, found.p_error + found.q_error, found.q_error)

    return DominatingPair(tails)


@pytest.mark.parametrize("mirrored", [False, True])
def test_a_pair_that_is_not_sampled_has_its_rare_losses_in_either_order(mirrored: bool) -> None:
    q, mu, steps, delta = 1e-4, 1.0, 1000, 1e-12
    way: Direction = "add" if mirrored else "remove"
    [known] = compose_pairs([PairPhase(gaussian_pair(mu), q, steps)], ("remove",), delta)
    [found] = compose_pairs([PairPhase(sampled_as_a_whole(q, mu, mirrored=mirrored), 1.0, steps)], (way,), delta)
    assert isinstance(known, WithRareLosses)
    assert isinstance(found, WithRareLosses)
    epsilon = np.array([0.02, 0.05, 0.095, 0.12])
    assert found.delta(epsilon) == pytest.approx(known.delta(epsilon), rel=4e-2)


def two_half_lines(pair: NormalMixtures, epsilon: float) -> float:
    """delta of two releases of a pair whose loss rises, in one direction."""
    centres, first, second = pair.centres[:, None], np.array(pair.first), np.array(pair.second)
    x = np.linspace(-20.0, 20.0, 400_001)
    losses = pair.loss(x)

    def one(level: Array) -> Array:
        t = np.interp(level, losses, x)  # any threshold proves less, by the second order of its error
        value = first @ norm.sf(t - centres) - np.exp(level) * (second @ norm.sf(t - centres))
        return np.asarray(np.maximum(value, -np.expm1(level)))

    kink = float(np.interp(epsilon, losses, x))
    return integral(
        lambda x: (first @ norm.pdf(x - centres)) * one(epsilon - pair.loss(x)),
        [-12.0, -3.0, 0.0, 0.5 * kink, kink, kink + 1.0, kink + 3.0, 20.0],
    )


@pytest.mark.parametrize(("q", "mu", "delta"), RARE[:2])
def test_two_replaced_normal_releases_against_an_integral(q: float, mu: float, delta: float) -> None:
    pair = NormalMixtures(mu, (0.0, 1.0 - q, q), (q, 1.0 - q, 0.0))
    found = compose_halves([HalfLineReleases([(1.0, Halves(pair, pair))], 2)], delta)
    assert isinstance(found, WithRareLosses)
    for epsilon in (3e-4, 3e-3, 3e-2):
        exact, bound = two_half_lines(pair, epsilon), float(found.delta(np.array([epsilon]))[0])
        assert exact * (1.0 - 1e-5) <= bound <= exact * 1.03 + 1e-3 * delta


def test_a_bounded_loss_that_is_not_rare_needs_no_rare_ones() -> None:
    [found] = compose_pairs([PairPhase(laplace_pair(1.0), 0.01, 100)], ("remove",), 1e-9)
    assert isinstance(found, Composed)


@pytest.mark.parametrize(
    ("q", "steps", "noise", "adjacency"), [(1e-5, 10_000, 1.0, "add-remove"), (1e-6, 1000, 1.0, "replace-one")]
)
def test_brackets_are_narrow_where_records_are_hardly_ever_drawn(
    q: float, steps: int, noise: float, adjacency: str
) -> None:
    claim = Claim(0.01, 1e-12, [Phase(Gaussian(noise), steps, q)], adjacency)  # type: ignore[arg-type]
    verdict = check(claim)
    assert verdict.epsilon_upper <= 1.03 * verdict.epsilon_lower


UNUSUAL = [
    # nothing is sampled, and all losses are less than a step; the same of the largest loss of normal mixtures
    Claim(0.1, 1e-9, [Phase(Gaussian(1.0), 2, 1e-3), Phase(Laplace(1e5, dimension=1))]),
    Claim(
        0.1,
        1e-9,
        [Phase(Gaussian(0.55), 10, 4e-7), Phase(Gaussian(1.5), sampler=WithoutReplacement(7e-4, 2))],
        "zero-out",
    ),
    # the farthest place has no less than the mass that was asked for
    Claim(
        0.1, 1e-5, [Phase(Gaussian(0.58), 1, 3e-5), Phase(Gaussian(0.49), sampler=WithoutReplacement(0.15, 1_000_000))]
    ),
]


@pytest.mark.parametrize("claim", UNUSUAL)
def test_phases_beside_one_of_rare_losses_have_a_bound(claim: Claim) -> None:
    at = np.array([0.0, 0.1, 1.0])
    found, alone = (upper_curve(replace(claim, phases=phases))(at) for phases in (claim.phases, claim.phases[:1]))
    assert (found >= alone * 0.98).all()  # both are bounds, within two percent
    assert (found <= 1.0).all()


def test_usual_losses_have_a_bound_at_any_distance(monkeypatch: pytest.MonkeyPatch) -> None:
    """Far above the exponential's range, where a sum of a thousand large losses lies."""
    monkeypatch.setattr(pair_curve, "WORTH", 0.7)  # one grid for all is as good there
    [found] = compose_pairs([PairPhase(gaussian_pair(10.0), 0.1, 1000)], ("remove",), 1e-5)
    assert isinstance(found, WithRareLosses)
    epsilon = np.array([6600.0, 6771.0, 7000.0])
    assert found.delta(epsilon) == pytest.approx(found.together().delta(epsilon), rel=2e-2)
    at = np.concatenate([np.linspace(-800.0, 9000.0, 5001), np.geomspace(1e4, 1e9, 50)])
    exact = found.usual.delta(at)
    bound = curve_pairs.chords(*found._values, at)
    assert (bound >= exact * (1.0 - 1e-6)).all()  # both are bounds
    nearer = found.usual.delta(at - 0.005 * np.abs(at) - 3.0)
    assert (bound <= nearer * (1.0 + 1e-6)).all()


@pytest.mark.filterwarnings("error")
def test_usual_losses_beyond_the_range_of_the_exponential_leave_the_rare_ones_their_share() -> None:
    noise, g, steps, claimed = GeneralizedGaussian(beta=6.0, scale=0.903, dimension=1), 1e-7, 1000, 1000.0
    # the others contribute against the record: (1-g) f(x) + g f(x-2) against f(x), attained
    phase = Phase(noise, steps, 1.0, "without-replacement", WithoutReplacement(g, steps))
    verdict = check(Claim(claimed, 1e-7, [phase], "replace-one"))
    epsilons = np.array([1.0, 500.0, 800.0, claimed])
    law = gennorm(6.0, scale=0.903)
    levels = np.array([1.44, 2.56, 2.76, 2.87])  # of the event that some release lies above
    missed = steps * np.exp(epsilons - (levels / 0.903) ** 6) / 2.0  # more than e^epsilon times what is left without it
    shown = -np.expm1(steps * np.log1p(-g * law.sf(levels - 2.0))) - missed
    assert shown[-1] > 2.9e-6
    assert (verdict.delta(epsilons)[1] >= shown).all()
    assert verdict.verdict != "certified"
