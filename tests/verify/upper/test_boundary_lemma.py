"""The boundary lemma on lattices, where sums take the place of integrals and it holds to the last rounding.

A density cut off outside a box that is symmetric about 0, and looked at on the points of a lattice through 0, is still
symmetric and nonincreasing in every coordinate; sets of lattice points overlap less the farther they are moved apart.
"""

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GeneralizedGaussian, Product
from dpaudit.mechanisms.base import Array, IIDCoordinates, Radial, ScaleMixture
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify import Claim
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.upper import upper_curve

HALF = 40  # lattice points on each side of 0
LONGEST = 24  # of a shift, in lattice points
EPSILONS = (-2.0, -0.3, 0.0, 0.1, 1.0, 4.0)


def drawn(kind: Any, rng: np.random.Generator) -> Any:
    """A mechanism in two dimensions, its parameters from their typical ranges."""
    values = {name: math.exp(rng.uniform(*np.log(domain.typical))) for name, domain in kind.domains.items()}
    return kind(**values, dimension=2)


def lattice_density(structure: Any, spacing: float) -> Array:
    """The density of two coordinates on the lattice, up to a factor; a hidden scale is one of 64 quantiles."""
    x = spacing * np.arange(-HALF, HALF + 1)
    if isinstance(structure, Radial):
        radius = np.hypot(x[:, None], x[None, :])
        radius[HALF, HALF] = 0.5 * spacing  # a pole may stand there
        return np.asarray(np.exp(structure.radius_logpdf(radius)) / radius)
    if isinstance(structure, ScaleMixture):
        scales = structure.scale_ppf((np.arange(64) + 0.5) / 64)
        return np.asarray(np.mean([lattice_density(structure.given(float(u)), spacing) for u in scales], axis=0))
    coordinate = np.exp(structure.logpdf(x))
    return np.asarray(coordinate[:, None] * coordinate[None, :])


def spread(structure: Any) -> float:
    """A length that suits the noise: the upper quartile of a coordinate, or the median radius."""
    if isinstance(structure, Radial):
        return float(structure.radius_ppf(np.array(0.5)))
    if isinstance(structure, ScaleMixture):
        structure = structure.given(float(structure.scale_ppf(np.array(0.5))))
    return float(structure.ppf(np.array(0.75)))


def deltas(density: Array, shift: tuple[int, int], other: Array | None = None) -> Array:
    """sum (f(z - v) - a f(z))_+ over all lattice points, at every epsilon; `other` in place of the second f."""
    unmoved = np.pad(density / density.sum() if other is None else other / other.sum(), LONGEST)
    moved = np.roll(np.pad(density / density.sum(), LONGEST), shift, axis=(0, 1))
    return np.array([np.maximum(moved - math.exp(epsilon) * unmoved, 0.0).sum() for epsilon in EPSILONS])


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("seed", range(5))
def test_delta_grows_with_the_size_of_each_coordinate_of_the_shift(name: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    structure = drawn(MECHANISMS[name], rng).structure
    density = lattice_density(structure, spread(structure) * math.exp(rng.uniform(-4.0, 0.0)))
    for _ in range(4):
        fixed = int(rng.integers(-LONGEST, LONGEST + 1))
        curves = [deltas(density, (size, fixed)) for size in range(LONGEST + 1)]
        assert (np.diff(curves, axis=0) >= -1e-13).all()
        np.testing.assert_allclose(deltas(density, (-LONGEST, -fixed)), curves[-1], atol=1e-13)


def test_the_two_laws_may_be_of_different_noises() -> None:
    first = lattice_density(GeneralizedGaussian(3.0, 2.0).structure, 0.2)
    second = lattice_density(GammaPLRV(k=3.0, theta=0.5).structure, 0.2)
    for density, other in ((first, second), (second, first)):
        curves = [deltas(density, (size, 5), other) for size in range(LONGEST + 1)]
        assert (np.diff(curves, axis=0) >= -1e-13).all()


def test_radial_noise_sees_the_length_only() -> None:
    density = lattice_density(Product(0.5, dimension=2).structure, 0.05)
    np.testing.assert_allclose(deltas(density, (9, 12)), deltas(density, (15, 0)), atol=5e-3)


def test_noise_with_two_peaks_breaks_it() -> None:
    """Moved from one peak to the other it is harder to tell apart than halfway."""
    peaks = IIDCoordinates(lambda x: -np.square(np.abs(x) - 2.0), np.asarray, np.asarray)
    density = lattice_density(peaks, 0.2)
    assert (deltas(density, (20, 0))[2:] < deltas(density, (10, 0))[2:] - 0.05).any()


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(("rate", "steps"), [(1.0, 3), (0.2, 5)])
def test_a_clip_of_all_coordinates_costs_no_more_than_one_of_each(
    adjacency: Adjacency, rate: float, steps: int
) -> None:
    """In few coordinates too, where moments of noise of high power say next to nothing; sampled no more than always."""
    epsilons = np.array([0.1, 1.0, 5.0, 20.0])
    noise = GeneralizedGaussian(6.0, 2.4, dimension=3)
    each, one = replace(noise, clip_norm=math.inf), replace(noise, dimension=1)
    together, apart, always, line = (
        upper_curve(Claim(5.0, 1e-3, [phase], adjacency))(epsilons)
        for phase in (
            Phase(noise, steps, rate),
            Phase(each, steps, rate),
            Phase(each, steps),
            Phase(one, 3 * steps),
        )
    )
    assert (together <= apart).all()
    assert (apart <= always).all()
    assert always == pytest.approx(line, rel=1e-9)


def test_batches_of_a_random_order_cost_no_more_than_known_ones_with_a_clip_of_each_coordinate() -> None:
    """Orders revealed leave releases without sampling, whose coordinates are looked at one by one."""
    epsilons = np.array([0.1, 1.0, 5.0])
    noise = GeneralizedGaussian(6.0, 2.4, clip_norm=math.inf, dimension=3)
    shuffled = upper_curve(Claim(5.0, 1e-3, [Phase(noise, sampler=Shuffled(4, 2))], "zero-out"))(epsilons)
    known = upper_curve(Claim(5.0, 1e-3, [Phase(noise, 2)]))(epsilons)
    assert (shuffled <= known).all()
