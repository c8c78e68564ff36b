"""Bins and random allocation of noise that is not normal: sums over all outputs, normal noise's own path, brackets."""

import math

import numpy as np
import pytest

from dpaudit.mechanisms import (
    GammaPLRV,
    GammaPLRVIID,
    GammaScaleLaplace,
    Gaussian,
    GeneralizedGaussian,
    Laplace,
    Product,
)
from dpaudit.mechanisms.base import Array, Mechanism
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.samplers import BallsInBins, RandomAllocation, Sampler
from dpaudit.verify.upper import balls_in_bins, pass_by_pass, upper_curve, upper_curves

EPSILONS = np.array([0.0, 0.1, 0.4])


def claim(noise: Mechanism, sampler: Sampler, epsilon: float = 0.5, delta: float = 1e-6) -> Claim:
    return Claim(epsilon, delta, [Phase(noise, sampler=sampler)])


def ratio_law(law: Mechanism, edges: Array) -> tuple[Array, Array, Array]:
    """Ratio of one coordinate moved by 1 at both ends of every cell, the smaller one first, and masses without it."""
    structure = law.structure
    masses = np.diff(structure.cdf(edges), prepend=0.0, append=1.0)  # type: ignore[union-attr]
    ratio = np.exp(structure.logpdf(edges - 1.0) - structure.logpdf(edges))  # type: ignore[union-attr]
    ends = np.append(ratio[:1], ratio), np.append(ratio, ratio[-1:])  # next to nothing, or no change, is beyond
    return np.minimum(*ends), np.maximum(*ends), masses


def bracket(low: Array, high: Array, masses: Array, epsilon: float) -> tuple[float, float]:
    """delta in the worse order of a likelihood ratio that lies between two, outcome by outcome."""
    growth = math.exp(epsilon)
    removed = [float(masses @ np.maximum(ratio - growth, 0.0)) for ratio in (low, high)]
    added = [float(masses @ np.maximum(1.0 - growth * ratio, 0.0)) for ratio in (high, low)]
    return max(removed[0], added[0]), max(removed[1], added[1])


def two(combine: np.ufunc, low: Array, high: Array, masses: Array) -> tuple[Array, Array, Array]:
    """The same of two independent ratios combined."""
    return combine.outer(low, low).ravel(), combine.outer(high, high).ravel(), np.outer(masses, masses).ravel()


@pytest.mark.parametrize(
    ("noise", "edges"),
    [
        (Laplace(1.0, dimension=1), np.linspace(0.0, 1.0, 1000)),
        (GeneralizedGaussian(3.0, 1.5, dimension=1), np.linspace(-5.0, 6.0, 2000)),
    ],
)
def test_two_bins_against_a_sum_over_all_outputs(noise: Mechanism, edges: Array) -> None:
    low, high, masses = two(np.add, *ratio_law(noise, edges))
    for epsilon, value in zip(EPSILONS, upper_curve(claim(noise, BallsInBins(2, 1)))(EPSILONS), strict=True):
        least, most = bracket(low / 2, high / 2, masses, float(epsilon))
        assert least <= value <= most * (1 + 2e-3)


def test_the_same_bins_in_two_passes_against_a_sum_over_all_outputs() -> None:
    """The ratio of a bin is a product over the passes, and not that of one release of a longer shift."""
    noise = Laplace(1.0, dimension=1)
    curve = upper_curve(claim(noise, BallsInBins(2, 2, "once")))
    low, high, masses = two(np.add, *two(np.multiply, *ratio_law(noise, np.linspace(0.0, 1.0, 50))))
    for epsilon, value in zip(EPSILONS, curve(EPSILONS), strict=True):
        least, most = bracket(low / 2, high / 2, masses, float(epsilon))
        assert least <= value <= most * (1 + 2e-3)
    twice = upper_curve(claim(noise, BallsInBins(2, 2)))
    assert (curve(EPSILONS) > twice(EPSILONS)).all()  # bins that are drawn anew hide more


@pytest.mark.parametrize(
    ("mu", "bins", "far"), [(1.0, 50, [0.05, 0.5, 2.0]), (0.2, 1000, [0.003, 0.01, 0.03]), (1.5, 2, [0.5, 2.0, 5.0])]
)
def test_the_pair_of_normal_noise_gives_what_its_own_cells_give(mu: float, bins: int, far: list[float]) -> None:
    given = claim(Gaussian(1.0 / mu), BallsInBins(bins, 1))
    epsilons = np.array(far)
    own = balls_in_bins.bound(given).delta(epsilons)
    part = balls_in_bins.PairPass(bins, gaussian_pair(mu), 1)
    found = balls_in_bins.passes_curve(given, [part], "pair").delta(epsilons)
    np.testing.assert_allclose(found, own, rtol=1e-2, atol=1e-10)


@pytest.mark.parametrize(
    ("noise", "sampler", "ratio"),
    [
        (Laplace(5.0, clip_norm=1.0, dimension=100), RandomAllocation(156_240, 40), 1.01),  # was [.070, 5.8]
        (Laplace(0.8, clip_norm=1.0, dimension=100), BallsInBins(3906, 5), 1.01),  # was [.157, 6.25]
        (GeneralizedGaussian(3.0, 2.0, dimension=1), BallsInBins(100, 3), 1.02),
        (Laplace(2.0, dimension=100), BallsInBins(234, 5), 1.4),
        (GammaPLRV(30.0, 0.02, dimension=1000), BallsInBins(100, 3), 2.0),
        (GammaPLRVIID(30.0, 0.02, dimension=1000), BallsInBins(100, 3), 1.4),
        (GammaScaleLaplace(30.0, 0.1, dimension=1000), RandomAllocation(100, 3), 1.5),
    ],
)
def test_brackets_are_as_narrow_as_those_of_one_release(noise: Mechanism, sampler: Sampler, ratio: float) -> None:
    verdict = check(claim(noise, sampler))
    assert 0 < verdict.epsilon_lower <= verdict.epsilon_upper <= ratio * verdict.epsilon_lower
    assert verdict.delta_lower <= verdict.delta_upper


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    ("noise", "sampler"),
    [
        (GammaScaleLaplace(2.1, 0.5, dimension=8_723_640), RandomAllocation(47_030, 21)),  # no bound on one release
        (Product(1e6, clip_norm=1.0, dimension=3055), BallsInBins(3, 1)),  # losses of hundreds
        (GammaPLRV(0.05, 8.0, dimension=36), BallsInBins(100, 3)),
        (Laplace(1e-6, dimension=1), BallsInBins(10**6, 2)),
        (Laplace(1e6, dimension=None), BallsInBins(10**6, 2)),
        (Laplace(1.4e90, dimension=176), BallsInBins(132, 16)),  # nothing is lost
        (Laplace(1e12, dimension=1), RandomAllocation(10**5, 1)),
        (GammaScaleLaplace(2.5, 4e11, dimension=1), BallsInBins(10**5, 1)),
        (GammaScaleLaplace(2.5, 4e11, clip_norm=1, dimension=10), RandomAllocation(10**5, 1)),
        (GeneralizedGaussian(3.0, 1e12, dimension=1), BallsInBins(10**8, 2)),
        (GeneralizedGaussian(100.0, 0.3875, clip_norm=math.inf, dimension=3), BallsInBins(10**6, 10**4, "once")),
    ],
)
def test_what_cannot_be_bounded_so_is_no_crash(noise: Mechanism, sampler: Sampler) -> None:
    verdict = check(claim(noise, sampler, delta=2e-10))
    assert verdict.epsilon_lower <= verdict.epsilon_upper


def test_releases_of_which_no_loss_is_known_to_be_finite_have_a_bound_of_one() -> None:
    same_bins = Phase(GammaPLRV(30.0, 0.014, clip_norm=1.0), sampler=BallsInBins(100, 10_000, "once"))
    little = Phase(GammaPLRV(30.0, 1 / 3e7, dimension=2), sampler=BallsInBins(7, 2, "once"))
    for phases in ([same_bins], [same_bins, little]):
        given = Claim(1.0, 1e-5, phases)
        curves = [upper_curves(release) for release in pass_by_pass.parts(given)]
        assert pass_by_pass.bound(given, curves).delta(EPSILONS).tolist() == [1.0, 1.0, 1.0]


def test_what_the_theorem_leaves_to_others() -> None:
    bins = BallsInBins(10, 2)
    assert pass_by_pass.parts(claim(Gaussian(2.0), bins)) == []
    assert pass_by_pass.parts(Claim(1.0, 1e-6, [Phase(Laplace(2.0), sampler=bins)], "replace-one")) == []
    assert pass_by_pass.parts(Claim(1.0, 1e-6, [Phase(Laplace(2.0), sampler=bins), Phase(Laplace(2.0))])) == []
    mixed = Claim(1.0, 1e-6, [Phase(Laplace(2.0), sampler=bins), Phase(Gaussian(2.0), sampler=bins)])
    assert len(pass_by_pass.parts(mixed)) == 2
    assert any(curve.theorem == pass_by_pass.THEOREM for curve in upper_curves(mixed))
