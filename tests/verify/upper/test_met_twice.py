"""Batches that straddle two passes: every way to be in them against integrals of the two laws."""

import math
from collections import Counter
from dataclasses import dataclass, replace
from itertools import product
from typing import ClassVar

import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import ndtr

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, Laplace
from dpaudit.mechanisms.base import Domain, IIDCoordinates, Mechanism
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.bounds import gaussian_epsilon
from dpaudit.verify.samplers import BufferedShuffle, Shuffled
from dpaudit.verify.upper import met_twice, upper_curve

FEW_PASSES = Shuffled.of(3, 2, 7, last_batch="straddling")
MANY_PASSES = Shuffled.of(1000, 300, 400, last_batch="straddling")
STRADDLING = Shuffled.of(3, 2, 2, last_batch="straddling")  # batches 01, 20, 12: one of them may hold a record twice


def two_releases(noise: Mechanism, epsilon: float) -> float:
    """delta of two releases around 1 against two around 0: E (1 - e^(epsilon - L1 - L2))+, on a grid of both."""
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    ends = np.unique([0.0, 1.0, *(sign * 10.0**k for sign in (-1.0, 1.0) for k in np.linspace(-3, 6, 1200))])
    masses = [np.diff(np.append(np.insert(law.cdf(ends - centre), 0, 0.0), 1.0)) for centre in (1.0, 0.0)]
    p, q = (np.outer(mass, mass) for mass in masses)
    return float(np.maximum(p - math.exp(epsilon) * q, 0.0).sum())


def one_release(noise: Mechanism, shift: float, epsilon: float) -> float:
    law = noise.structure
    assert isinstance(law, IIDCoordinates)

    def excess(x: float) -> float:
        p, q = (math.exp(float(law.logpdf(np.array([x - centre]))[0])) for centre in (shift, 0.0))
        return max(p - math.exp(epsilon) * q, 0.0)

    found = [quad(excess, a, b, limit=400)[0] for a, b in ((-100, 0), (0, shift), (shift, 100), (100, 1e4))]
    return float(sum(found))


@pytest.mark.parametrize("epsilon", [0.05, 0.3, 0.9])
@pytest.mark.parametrize("noise", [Laplace(2.0, dimension=1), GammaPLRVIID(k=1.5, theta=0.4, dimension=1)])
def test_the_bound_is_the_mean_over_the_ways_to_be_in_the_batches(noise: Mechanism, epsilon: float) -> None:
    claim = Claim(epsilon, 1e-2, [Phase(noise, sampler=STRADDLING)], "zero-out")
    mean = (8.0 * two_releases(noise, epsilon) + one_release(noise, 2.0, epsilon)) / 9.0
    found = float(upper_curve(claim)(np.array([epsilon]))[0])
    assert mean * 0.9999 <= found <= mean * 1.01


@pytest.mark.parametrize("sampler", [STRADDLING, Shuffled.of(4, 3, 6, last_batch="straddling")])
@pytest.mark.parametrize("sigma", [0.7, 3.0])
@pytest.mark.parametrize("epsilon", [0.05, 1.0, 6.0])
def test_normal_noise_costs_the_mean_over_all_places(sampler: Shuffled, sigma: float, epsilon: float) -> None:
    records, batch = sampler.records or 0, sampler.batch or 1
    mean = 0.0
    for at in product(range(records), repeat=sampler.epochs):
        batches = [(i * records + place) // batch for i, place in enumerate(at)]
        mu = math.sqrt(sum(count**2 for count in Counter(batches).values())) / sigma
        mean += ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
    mean /= records**sampler.epochs
    claim = Claim(epsilon, 1e-2, [Phase(Gaussian(sigma), sampler=sampler)], "zero-out")
    found = float(upper_curve(claim)(np.array([epsilon]))[0])
    assert records * sampler.epochs % batch == 0  # of what is left over at the end the bound counts a release
    assert mean * (1.0 - 1e-9) <= found <= mean * (1.0 + 1e-8)


def test_large_data_hardly_ever_has_a_batch_with_a_record_twice() -> None:
    """The order known, as where there is so little noise, it costs what no such batch at all does."""
    never = gaussian_epsilon(math.sqrt(60.0) / 0.3, 1e-5)
    for sampler in (
        Shuffled.of(60_000, 256, 60, last_batch="straddling"),
        BufferedShuffle(60_000, 256, 10_000, 60, last_batch="straddling"),
    ):
        assert never < check(Claim(1.0, 1e-5, [Phase(Gaussian(0.3), sampler=sampler)])).epsilon_upper < 1.0001 * never


def test_where_many_batches_hide_a_record_those_that_straddle_add_little() -> None:
    """The order known it costs 54.0458."""
    whole, short = Shuffled.of(60_000, 256, 60, last_batch="straddling"), BufferedShuffle(60_000, 256, 10_000, 60)
    for sampler, most in ((whole, 29.0), (replace(short, last_batch="straddling"), 45.0)):
        assert check(Claim(1.0, 1e-5, [Phase(Gaussian(1.1), sampler=sampler)])).epsilon_upper < most


def test_two_places_apart_can_cost_more_than_both_in_one_batch() -> None:
    """Heavy tails have a largest loss of (k + 1) log(1 + theta v) a release, at twice the shift less than two"""
    noise = GammaPLRVIID(k=1.5, theta=0.4, dimension=1)
    epsilon = (noise.k + 1.0) * math.log1p(0.8) * 1.01
    claim = Claim(epsilon, 1e-3, [Phase(noise, sampler=STRADDLING)], "zero-out")
    assert one_release(noise, 2.0, epsilon) < 1e-9 < two_releases(noise, epsilon)
    assert two_releases(noise, epsilon) * 8.0 / 9.0 * 0.9999 <= float(upper_curve(claim)(np.array([epsilon]))[0])


@pytest.mark.parametrize("sampler", [FEW_PASSES, MANY_PASSES, replace(MANY_PASSES, epochs=10**6)])
@pytest.mark.parametrize("noise", [Gaussian(1.0), Laplace(5.0)])
def test_blocks_cover_every_number_of_batches_with_the_record_twice(noise: Mechanism, sampler: Shuffled) -> None:
    parts = met_twice.parts(Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)]))
    if isinstance(noise, Gaussian) and sampler.twice_chances is None:
        assert parts == []
        return
    most = dict(sampler.worst_meetings)[2]
    for j in {*range(min(most, 200) + 1), most // 3, most - 1, most}:
        once = sampler.epochs - 2 * j
        if isinstance(noise, Gaussian):
            assert any(part.phases[0].steps >= once + 4 * j for part in parts)
        else:
            assert any(twice >= j and whole >= once for twice, whole in map(halved_and_whole, parts))


@pytest.mark.parametrize(
    ("records", "batch", "epochs"), [(3, 2, 2), (3, 2, 6), (3, 2, 9), (1000, 300, 160), (7, 5, 10**6)]
)
def test_without_a_law_the_last_block_has_little_more_than_the_worst_order(
    records: int, batch: int, epochs: int
) -> None:
    """Out of a buffer, of noise that is not normal: how often that is depends on where in the file the record is."""
    sampler = BufferedShuffle(records, batch, 2, epochs, last_batch="straddling")
    parts = met_twice.parts(Claim(1.0, 1e-5, [Phase(Laplace(5.0), sampler=sampler)]))
    found, most = [halved_and_whole(part) for part in parts], dict(sampler.worst_meetings)[2]
    for j in {*range(min(most, 200) + 1), most // 3, most - 1, most}:
        assert any(twice >= j and once >= epochs - 2 * j for twice, once in found)
    assert 4 * found[-1][0] + found[-1][1] <= 1.06 * (4 * most + epochs - 2 * most) or most <= 4


def halved_and_whole(part: Claim) -> list[int]:
    """Releases of half of Laplace noise of scale 5, and of all of it."""
    return [sum(phase.steps for phase in part.phases if phase.mechanism.scale == scale) for scale in (2.5, 5.0)]


def test_noise_of_a_shared_scale_has_more_than_a_pure_bound() -> None:
    """It was 267.6, the pure epsilon of every place; 12 releases cost at most .2557."""
    noise = GammaPLRV(k=5666.49, theta=0.0031285, clip=0.00120869, dimension=48126)
    verdict = check(Claim(2.0, 1e-5, [Phase(noise, sampler=Shuffled.of(267, 16, 6, last_batch="straddling"))]))
    assert 0.03 < verdict.epsilon_lower < verdict.epsilon_upper < 0.27
    assert verdict.verdict == "certified"


def test_it_is_for_such_batches_alone() -> None:
    whole, stream = Shuffled(5, 2), BufferedShuffle(100, 10, 20, releases=30)
    for noise, sampler in ((Laplace(1.0), whole), (Gaussian(1.0), whole), (Laplace(1.0), stream)):
        assert met_twice.parts(Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)])) == []


@pytest.mark.parametrize("epsilon", [0.1, 2.0, 8.0])
def test_two_phases_of_normal_noise_cost_the_mean_over_both(epsilon: float) -> None:
    sampler, sigmas = Shuffled.of(4, 3, 6, last_batch="straddling"), (1.0, 3.0)
    claim = Claim(epsilon, 1e-2, [Phase(Gaussian(sigma), sampler=sampler) for sigma in sigmas], "zero-out")
    law = sampler.twice_chances
    assert law is not None
    mean = 0.0
    for counts in product(range(len(law)), repeat=2):
        mu = math.sqrt(sum((6 + 2 * j) / sigma**2 for j, sigma in zip(counts, sigmas, strict=True)))
        delta = ndtr(mu / 2 - epsilon / mu) - math.exp(epsilon) * ndtr(-mu / 2 - epsilon / mu)
        mean += float(law[counts[0]] * law[counts[1]] * delta)
    assert mean * 0.9999 <= float(upper_curve(claim)(np.array([epsilon]))[0]) <= mean * 1.0001


def test_three_phases_of_normal_noise_have_few_blocks() -> None:
    sampler = Shuffled.of(2300, 700, 90, last_batch="straddling")
    claim = Claim(2.0, 1e-5, [Phase(Gaussian(20.0), sampler=sampler)] * 3)
    assert len(met_twice.parts(claim)) == 27
    assert met_twice.parts(replace(claim, phases=[*claim.phases, claim.phases[0]]))[1:] == []


def test_phases_of_other_noise_are_not_multiplied() -> None:
    """Three took 74 s, each of whose blocks was looked at beside all of the others."""
    noises = [Laplace(20.0), Gaussian(20.0), Laplace(22.0)]
    phases = [Phase(noise, sampler=Shuffled.of(2300, 7, 9, last_batch="straddling")) for noise in noises]
    (part,) = met_twice.parts(Claim(2.0, 1e-5, phases))
    assert [phase.steps for phase in part.phases] == [1, 9, 11, 1, 9]  # more than one has a probability of 1e-10


@dataclass(frozen=True)
class Undeclared:
    """Laplace noise whose domain does not say that its scale is a length."""

    scale: float
    clip: float = 1.0
    clip_norm: float = 2.0
    dimension: int | None = 1
    name: ClassVar[str] = "undeclared"
    domains: ClassVar[dict[str, Domain]] = {"scale": Domain(0.0, math.inf, (1.0, 9.0), "scale")}

    @property
    def structure(self) -> IIDCoordinates:
        return Laplace(self.scale).structure


@dataclass(frozen=True)
class Bare(Undeclared):
    """It has no domains."""

    @property
    def domains(self) -> dict[str, Domain]:  # type: ignore[override]
        raise AttributeError("domains")


@pytest.mark.parametrize("kind", [Undeclared, Bare])
def test_noise_that_is_not_known_to_be_halved_has_no_such_bound(kind: type[Undeclared]) -> None:
    """It was bounded by .0262: a batch with the record twice was moved by one clip."""
    claim = Claim(0.1, 0.01, [Phase(kind(10.0), sampler=Shuffled.of(3, 2, 2, last_batch="straddling"))])  # type: ignore[arg-type]
    assert met_twice.parts(claim) == []
    assert check(claim).delta_upper > 0.04
