"""What a claim may say, and how it is read: mistakes are named, not guessed at."""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import GammaScale, LaplaceCoordinates, Mechanism
from dpaudit.mechanisms.laplace import laplace_law
from dpaudit.verify import check
from dpaudit.verify.checking import AS_ZERO_OUT
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.samplers import (
    BallsInBins,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)

OF_EVERYBODY: list[Sampler] = [
    BallsInBins(1, 3),
    BallsInBins(1, 3, "once"),
    RandomAllocation(3, 3),
    Shuffled(1, 3),
    Shuffled(1, 3, reshuffle="once"),
    Shuffled.of(7, 7, 3, last_batch="dropped"),
    Shuffled.of(7, 7, 3, last_batch="straddling"),
    TruncatedPoisson(1.0, 7, 7, 3),
    WithoutReplacement(1.0, 3),
]


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((3, 0.1, "none"), "Expected sampling_prob=0.1 to be 1 with sampling_kind='none'"),
        ((3, 0.1, "poison"), "Expected sampling_kind='poison' among 'poisson', 'none'"),
        ((0, 0.1, "poisson"), "steps=0"),
        ((10**12, 0.1, "poisson"), "steps=1000000000000"),
    ],
)
def test_a_phase_that_contradicts_itself_is_refused(settings: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Phase(Gaussian(1.0), *settings)
    assert "\n" not in str(caught.value)


def test_no_sampling_is_a_rate_of_one() -> None:
    assert Phase(Gaussian(1.0), 3, sampling_kind="none").sampling_prob == 1.0


@pytest.mark.parametrize(("k", "theta", "epsilon"), [(0.05, 1.0, 0.4), (0.3, 100.0, 3.0)])
def test_the_scale_of_one_coordinate_is_its_own(k: float, theta: float, epsilon: float) -> None:
    """The densities are the same, so the claim is decided as that of independent scales; two coordinates are not."""
    shared = Claim.single(GammaPLRV(k, theta, dimension=1), epsilon=epsilon, delta=1e-3)
    alone = Claim.single(GammaPLRVIID(k, theta, dimension=1), epsilon=epsilon, delta=1e-3)
    assert shared.canonical() == alone
    found, known = check(shared), check(alone)
    assert (found.delta_lower, found.delta_upper) == (known.delta_lower, known.delta_upper)
    two = replace(shared, phases=[Phase(GammaPLRV(k, theta, dimension=2))])
    assert two.canonical() == two


@pytest.mark.parametrize("noise", [Laplace(2.0, 1.0, math.inf, 2), GammaPLRVIID(3.0, 0.3, 1.0, math.inf, 2)])
def test_coordinates_that_are_clipped_each_are_releases(noise: Mechanism) -> None:
    """Two coordinates, two releases, against sums over a grid of the four losses' law; normal noise stays as it is."""
    x = np.linspace(-40.0, 40.0, 160_001)
    p, q = (np.diff(np.asarray(noise.structure.cdf(x - centre))) for centre in (1.0, 0.0))  # type: ignore[union-attr]
    bins = np.rint(np.log(p / np.maximum(q, 1e-300)) / 1e-3).astype(int)
    law = np.bincount(bins - bins.min(), p)
    for _ in range(2):
        law = np.convolve(law, law)
    losses = (4 * bins.min() + np.arange(len(law))) * 1e-3
    claim = Claim.single(noise, epsilon=1.0, delta=1e-5, steps=2)
    assert [(phase.mechanism.dimension, phase.steps) for phase in claim.canonical("upper").phases] == [(1, 4)]
    found = check(claim)
    truth = float((law * np.maximum(-np.expm1(1.0 - losses), 0.0)).sum())
    assert found.delta_upper == pytest.approx(truth, rel=3e-3)
    assert found.delta_lower <= found.delta_upper <= found.delta_lower * 1.003
    normal = Claim.single(Gaussian(1.0, 1.0, math.inf, 2), epsilon=1.0, delta=1e-5)
    assert normal.canonical("upper").phases == normal.phases


def test_noise_that_depends_on_the_number_of_coordinates_stays_as_it_is() -> None:
    @dataclass(frozen=True)
    class Spread(Laplace):
        @property
        def structure(self) -> LaplaceCoordinates:
            return laplace_law(float(self.scale) * int(self.dimension or 1))

    claim = Claim.single(Spread(2.0, 1.0, math.inf, 3), epsilon=1.0, delta=1e-5)
    assert claim.canonical("upper").phases == claim.phases


@pytest.mark.parametrize(("clip_norm", "rate"), [(2.0, 1.0), (2.0, 0.5), (math.inf, 1.0)])
def test_noise_that_is_of_several_coordinates_alone_is_judged_as_such(clip_norm: float, rate: float) -> None:
    """One coordinate of it is refused: the look at its coordinates one by one ended in a traceback."""

    @dataclass(frozen=True)
    class Several(GeneralizedGaussian):
        def __post_init__(self) -> None:
            if self.dimension == 1:
                raise ValueError("Expected dimension=1 to be at least 2.")

    found = check(Claim.single(Several(3.0, 4.0, 1.0, clip_norm, 3), epsilon=9.0, delta=1e-5, sampling_prob=rate))
    assert found.verdict == "certified"


def test_a_hidden_scale_of_a_subclass_is_its_own() -> None:
    @dataclass(frozen=True)
    class Less(GammaPLRV):
        @property
        def structure(self) -> GammaScale:
            return GammaPLRV(self.k, 4.0 * self.theta).structure

    own, same = (
        Claim.single(noise, epsilon=1.0, delta=1e-3)
        for noise in (Less(5.0, 0.1, dimension=1), GammaPLRV(5.0, 0.4, dimension=1))
    )
    assert check(own).epsilon_upper >= check(same).epsilon_lower > 1.9


def _from_a_table(scales: np.ndarray, x: np.ndarray) -> np.ndarray:
    return np.asarray(-np.abs(x) / scales[0] - np.log(2.0 * scales[0]))


def test_a_law_of_its_users_with_arrays_in_it_is_read() -> None:
    """Two arrays have no single truth: their comparison ended in a traceback."""

    @dataclass(frozen=True)
    class Tabled(Laplace):
        @property
        def structure(self) -> LaplaceCoordinates:
            return replace(laplace_law(float(self.scale)), logpdf=partial(_from_a_table, np.full(2, self.scale)))

    claim = Claim.single(Tabled(2.0, 1.0, math.inf, 3), epsilon=1.5, delta=0.0)
    assert check(claim).verdict == "certified"


@pytest.mark.parametrize("sampler", OF_EVERYBODY, ids=lambda sampler: str(sampler.kind))
@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(3.0, dimension=2), GammaPLRV(9.0, 0.1, dimension=2)])
@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_batches_of_everybody_are_no_sampling(noise: Mechanism, sampler: Sampler, adjacency: Adjacency) -> None:
    claim = Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], adjacency)
    assert claim.canonical() == replace(claim, phases=[Phase(noise, 3, sampling_kind="none")]).canonical()


def test_a_record_that_is_taken_away_lets_another_into_a_batch_that_is_cut() -> None:
    """Two records of which one is kept: without the first the second is in, two clips away, nine times in ten."""
    phases = [Phase(Gaussian(2.0), sampler=TruncatedPoisson(0.9, 1, 2, 1))]
    removed, ghost = (check(Claim(1.0, 0.006, phases, way)) for way in ("add-remove", "zero-out"))  # type: ignore[arg-type]
    x = np.linspace(-25.0, 25.0, 100_001)
    at = {c: np.exp(-((x - c) ** 2) / 8.0) / math.sqrt(8.0 * math.pi) for c in (-1, 0, 1)}
    with_it, without = 0.01 * at[0] + 0.495 * (at[1] + at[-1]), 0.1 * at[0] + 0.9 * at[-1]
    delta = float(np.maximum(with_it - math.e * without, 0.0).sum() * (x[1] - x[0]))
    assert ghost.delta_upper < 0.006 < 0.018 < delta <= removed.delta_upper
    assert (removed.verdict, ghost.verdict) == ("refuted", "certified")
    assert removed.delta_lower == pytest.approx(delta, rel=1e-5)
    assert AS_ZERO_OUT not in removed.assumptions
    shuffled = check(Claim(1.0, 0.006, [Phase(Gaussian(2.0), sampler=Shuffled(2, 1))]))
    assert AS_ZERO_OUT in shuffled.assumptions


@pytest.mark.parametrize("noise", [Gaussian(2.0, dimension=1), Laplace(3.0, dimension=1)])
def test_one_of_everybody_is_taken_away(noise: Mechanism) -> None:
    """Half of all are kept, and with one less one more of the others is: a batch of fixed size between two records."""
    cut = [Phase(noise, sampler=TruncatedPoisson(1.0, 5, 10, 4))]
    drawn = [Phase(noise, sampler=WithoutReplacement(0.5, 4))]
    removed, replaced = check(Claim(1.0, 1e-4, cut)), check(Claim(1.0, 1e-4, drawn, "replace-one"))
    assert removed.epsilon_upper <= replaced.epsilon_upper * (1 + 1e-3)
    assert removed.epsilon_upper == pytest.approx(removed.epsilon_lower, rel=1e-3)
    assert removed.epsilon_lower == pytest.approx(replaced.epsilon_lower, rel=1e-3)
    ghost = check(Claim(1.0, 1e-4, cut, "zero-out"))
    assert ghost.epsilon_upper < 0.95 * removed.epsilon_upper


@pytest.mark.parametrize("noise", [Gaussian(2.0), Laplace(2.0, dimension=2)])
def test_batches_of_everybody_get_the_bracket_of_no_sampling(noise: Mechanism) -> None:
    """A Poisson rate of 1 too; that add-remove is read as zero-out stands among the assumptions."""
    plain = check(Claim(1.0, 1e-5, [Phase(noise, 3, sampling_kind="none")]))
    known = (plain.epsilon_lower, plain.epsilon_upper, plain.delta_lower, plain.delta_upper, plain.verdict)
    assert plain.epsilon_lower > 1.0
    for phase in (Phase(noise, 3, 1.0), Phase(noise, sampler=Shuffled(1, 3)), Phase(noise, sampler=OF_EVERYBODY[-1])):
        found = check(Claim(1.0, 1e-5, [phase]))
        of_it = (found.epsilon_lower, found.epsilon_upper, found.delta_lower, found.delta_upper, found.verdict)
        assert of_it == known
        assert (AS_ZERO_OUT in found.assumptions) == (phase.sampler is not None)


@pytest.mark.parametrize(
    "sampler", [TruncatedPoisson(1.0, 6, 7, 3), Shuffled.of(7, 6, 3, last_batch="dropped"), RandomAllocation(3, 2)]
)
def test_batches_of_nearly_everybody_stay_as_they_are(sampler: Sampler) -> None:
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(2.0), sampler=sampler)])
    assert claim.canonical() == claim.canonical().canonical() == claim
    ghost = replace(claim, adjacency="zero-out").canonical()
    assert ghost.canonical() == ghost


def test_a_name_or_a_phase_alone_is_no_mechanism_and_no_history() -> None:
    with pytest.raises(TypeError, match=r"mechanism='gaussian' to be a mechanism, such as Gaussian\(1.0\)"):
        Claim.single("gaussian", epsilon=1.0, delta=1e-5)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="phases of a claim to be of type Phase, not Gaussian"):
        Claim(1.0, 1e-5, [Gaussian(1.0)])  # type: ignore[list-item]
    for alone in (Phase(Gaussian(1.0)), None):
        with pytest.raises(TypeError, match=r"Expected phases=.* to be a sequence of phases, such as \[Phase\("):
            Claim(1.0, 1e-5, alone)  # type: ignore[arg-type]


@pytest.mark.parametrize("zero", [-0.0, 0.0, 0])
def test_a_zero_has_no_sign(zero: float) -> None:
    """TOML knows -0.0: it passes as a zero, and "delta -0" is no claim that anybody made."""
    claim = Claim.single(Gaussian(1.0), epsilon=zero, delta=zero)
    assert (str(float(claim.epsilon)), str(float(claim.delta))) == ("0.0", "0.0")
