"""Shuffled batches of any noise: normal noise's own path, every order of small passes summed up, brackets."""

import itertools
import math
from functools import partial

import numpy as np
import pytest
from one_pass import pass_delta

from dpaudit.mechanisms import (
    GammaPLRV,
    GammaPLRVIID,
    GammaScaleLaplace,
    Gaussian,
    GeneralizedGaussian,
    Laplace,
    Product,
)
from dpaudit.mechanisms.base import Array, IIDCoordinates, Mechanism
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import least_delta
from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass, Tradeoff, excess
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import BufferedShuffle, Sampler, Shuffled
from dpaudit.verify.upper import shuffled_batches, shuffled_by_curve, upper_curves
from dpaudit.verify.upper.gaussian_pld import analytic_delta


def claim(noise: Mechanism, sampler: Sampler, adjacency: Adjacency = "zero-out") -> Claim:
    return Claim(0.5, 1e-6, [Phase(noise, sampler=sampler)], adjacency)


def normal_pass(mu: float, batches: float, count: int = 1) -> CurvePass:
    """Normal noise through its curve alone."""
    known = [
        Tradeoff.of_bound(partial(analytic_delta, times * mu), np.linspace(0.0, times * mu * (9.0 + times * mu), 2000))
        for times in (1.0, 2.0)
    ]
    return CurvePass(batches, count, *known, most=20.0)  # type: ignore[misc]


@pytest.mark.parametrize("mu", [0.05, 0.6])
@pytest.mark.parametrize("growth", [1.0, 1.3])
@pytest.mark.parametrize("direction", ["remove", "add", "swap"])
def test_worst_terms_of_normal_noise_are_those_of_its_half_lines(
    direction: Direction, growth: float, mu: float
) -> None:
    levels = np.array([-1.5, -0.3, -0.01, 0.0, 0.05, 0.4, 2.0])
    exact = excess(levels, growth, mu, direction)[0]
    found, error = normal_pass(mu, 10.0).excess(levels, growth, direction)
    assert (error < 1e-12).all()
    assert (found + error >= exact * (1 - 1e-9)).all()
    np.testing.assert_allclose(found, exact, rtol=1e-3, atol=1e-9)


def test_passes_of_normal_noise_cost_little_more_than_its_own_path_says() -> None:
    """Of rare weights it knows less."""
    given = claim(Gaussian(8.0), Shuffled(600, 3))
    own = shuffled_batches.bound(given)
    found = shuffled_batches.passes_curve(given, [normal_pass(1 / 8.0, 600.0, 3)], "curve")
    at = np.array([1e-4, 1e-6])
    assert (found.epsilon(at) >= own.epsilon(at) * 0.999).all()
    assert (found.epsilon(at) <= own.epsilon(at) * 1.15).all()
    assert ShuffledPass(600.0, 1 / 8.0, 3).spread("remove") == pytest.approx(
        normal_pass(1 / 8.0, 600.0).spread("remove"), rel=0.1
    )


def one_release(noise: Mechanism, adjacency: Adjacency) -> Tradeoff:
    curves = upper_curves(Claim(1.0, 1e-9, [Phase(noise, 1)], adjacency))
    return Tradeoff.of_bound(partial(least_delta, curves), np.linspace(0.0, 12.0, 600))


def in_all_orders(law: IIDCoordinates, contributions: tuple[float, ...], edges: Array) -> Array:
    """Masses of cells of T outputs of batches of one, in a uniformly random order."""
    orders = set(itertools.permutations(contributions))
    cells = {c: np.diff(law.cdf(edges - c), prepend=0.0, append=1.0) for c in set(contributions)}
    total: Array = np.zeros((len(edges) + 1,) * len(contributions))
    for order in itertools.permutations(contributions):
        part = cells[order[0]]
        for c in order[1:]:
            part = np.multiply.outer(part, cells[c])
        total += part
    return total.ravel() / math.factorial(len(contributions)) if orders else total


@pytest.mark.parametrize(
    "noise",
    [Laplace(3.0, dimension=1), GeneralizedGaussian(1.5, 4.0, dimension=1), GammaPLRVIID(20.0, 0.02, dimension=1)],
    ids=lambda noise: noise.name,
)
def test_no_pass_of_three_batches_costs_more(noise: Mechanism) -> None:
    """Cells of the outputs cost no more than the outputs, and all orders of batches of one are summed up."""
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    part = CurvePass(3.0, 1, one_release(noise, "add-remove"), one_release(noise, "replace-one"), 12.0)
    edges = np.unique(np.concatenate([np.linspace(-1.0, 1.0, 21), law.ppf(np.linspace(0.01, 0.99, 40))]))
    tightest = 0.0
    for others in itertools.combinations_with_replacement((-1.0, 0.0, 1.0), 2):
        for record, absent in ((1.0, 0.0), (1.0, -1.0)):
            laws = [in_all_orders(law, (value, *others), edges) for value in (record, absent)]
            for way in ("swap",) if absent else ("remove", "add"):
                first, second = laws if way != "add" else laws[::-1]
                for epsilon in (0.0, 0.05, 0.2):
                    seen = float(np.maximum(first - math.exp(epsilon) * second, 0.0).sum())
                    bound = pass_delta(part, way, epsilon)  # type: ignore[arg-type]
                    assert seen <= bound
                    tightest = max(tightest, seen / bound)
    assert tightest > 0.3  # not for want of a bound that says anything


@pytest.mark.parametrize(
    ("noise", "sampler", "adjacency", "ratio"),
    [
        (Laplace(5.0, clip_norm=1.0, dimension=100), Shuffled(234, 40), "zero-out", 1.4),  # was [.326, 5.80]
        (Laplace(5.0, clip_norm=1.0, dimension=100), Shuffled(234, 40), "replace-one", 1.4),  # was [.647, 12.5]
        (Laplace(2.0, clip_norm=1.0, dimension=100), BufferedShuffle(60_000, 5, 30_000, 5), "zero-out", 2.5),
    ],
)
def test_brackets_of_bounded_ratios_are_within_small_factors(
    noise: Mechanism, sampler: Sampler, adjacency: Adjacency, ratio: float
) -> None:
    verdict = check(claim(noise, sampler, adjacency))
    assert 0 < verdict.epsilon_lower <= verdict.epsilon_upper <= ratio * verdict.epsilon_lower
    assert verdict.delta_lower <= verdict.delta_upper


def test_normal_noise_beside_other_noise_is_hidden_as_well() -> None:
    sampler = Shuffled(1000, 3)
    laplace = Phase(Laplace(5.0, clip_norm=1.0, dimension=100), sampler=sampler)
    both = check(Claim(0.5, 1e-6, [Phase(Gaussian(8.0), sampler=sampler), laplace]))
    assert both.epsilon_lower < both.epsilon_upper < 0.08  # was .639


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("noise", "adjacency", "sampler"),
    [
        (GammaScaleLaplace(2.1, 0.5, dimension=8_723_640), "zero-out", Shuffled(47_030, 21)),
        (Product(1e6, clip_norm=1.0, dimension=3055), "replace-one", Shuffled(30_000, 2)),
        (GammaPLRV(0.05, 8.0, dimension=36), "zero-out", Shuffled(10**5, 3)),
        (GammaPLRV(0.05, 8.0, dimension=36), "replace-one", Shuffled(10**5, 3)),
        (Laplace(1e-6, dimension=1), "zero-out", Shuffled(10**6, 2)),
        (Laplace(1e-6, dimension=1), "replace-one", Shuffled(10**6, 2)),
        (Laplace(1e6, dimension=None), "replace-one", Shuffled(10**6, 2)),
        (Laplace(1.4e90, dimension=176), "zero-out", Shuffled(132, 16)),
        (GeneralizedGaussian(30.0, 0.01, dimension=5), "replace-one", BufferedShuffle(10**9, 3, 10**6, 2)),
    ],
)
def test_what_cannot_be_bounded_so_is_no_crash(noise: Mechanism, adjacency: Adjacency, sampler: Sampler) -> None:
    verdict = check(Claim(0.5, 2e-10, [Phase(noise, sampler=sampler)], adjacency))
    assert verdict.epsilon_lower <= verdict.epsilon_upper


def test_a_curve_that_never_falls_to_nothing_is_followed_to_its_end() -> None:
    noise = Product(0.0278464, clip=0.00204353, dimension=2)
    verdict = check(Claim(2.5, 1e-5, [Phase(noise, sampler=Shuffled(40_795, 1))]))
    assert verdict.epsilon_lower <= verdict.epsilon_upper < 8.0


def test_a_pass_that_is_looked_at_to_the_end_of_its_losses_has_nothing_beyond() -> None:
    """Of Laplace noise losses end where a known release has none: what is beyond was an empty list, and a crash."""
    found = upper_curves(claim(Laplace(5.0, dimension=1), Shuffled(28, 1)).canonical("upper"))
    deltas = least_delta(found, np.array([0.05, 0.21]))
    assert 0.0 < deltas[0] < 0.05
    assert deltas[1] < 1e-9


def test_what_is_left_to_other_theorems() -> None:
    assert shuffled_by_curve.parts(claim(Gaussian(8.0), Shuffled(600, 3))) == []
    assert shuffled_by_curve.parts(claim(Laplace(8.0), Shuffled(600, 3, reshuffle="once"))) == []
    assert shuffled_by_curve.parts(claim(Laplace(8.0), Shuffled.of(100, 30, 3, last_batch="straddling"))) == []
    few = claim(Laplace(0.5), Shuffled(3, 1))
    assert shuffled_by_curve.bound(few, [upper_curves(one) for one in shuffled_by_curve.parts(few)]) is None


def test_a_spread_beyond_floats_only_guides_the_grid() -> None:
    """A step of 5e7 nats had growths that are no floats: a traceback, where no record costs more than .155."""
    noise = GammaPLRV(k=529.904, theta=5.7406e-07, clip=0.00406538, clip_norm=math.inf, dimension=30722700)
    verdict = check(Claim(51.5, 5.4e-7, [Phase(noise, sampler=Shuffled(117, 8))], "replace-one"))
    assert verdict.verdict == "certified"
    assert 0.0 < verdict.epsilon_lower < verdict.epsilon_upper < 0.16
