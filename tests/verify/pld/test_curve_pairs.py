"""The pair behind a bound on delta(epsilon): against the atoms it came from, chords one by one and plain sums."""

import math
from collections.abc import Callable
from functools import partial

import numpy as np
import pytest

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.curve_pairs import curve_lattice

STEP = 0.1


def mirrored_atoms(rng: np.random.Generator, size: int) -> Array:
    """P-masses at losses -size STEP, ..., size STEP of a pair that is its own mirror image, and of an infinite loss."""
    above = rng.dirichlet(np.full(size + 2, 0.3))
    below = above[1:-1] * np.exp(-STEP * np.arange(1, size + 1))
    masses = np.concatenate([below[::-1], above])
    return np.asarray(masses / masses.sum())


def profile(masses: Array, first: int, epsilon: Array) -> Array:
    """delta(epsilon) of atoms, the last of them infinite, one by one."""
    losses = np.append(STEP * (first + np.arange(len(masses) - 1)), math.inf)
    return np.array([math.fsum(masses * np.maximum(-np.expm1(e - losses), 0.0)) for e in epsilon])


@pytest.mark.parametrize("seed", range(4))
def test_atoms_come_back(seed: int) -> None:
    size = 25
    masses = mirrored_atoms(np.random.default_rng(seed), size)
    found, infinite = curve_lattice(partial(profile, masses, -size), STEP, np.arange(size + 1))
    assert found.first == -size
    np.testing.assert_allclose(np.append(found.masses, infinite), masses, rtol=1e-9, atol=1e-14)
    assert (np.append(found.masses, infinite) >= masses * (1 - 1e-12)).all()


def lowest_chord(curve: Callable[[Array], Array], epsilon: Array, at: float) -> float:
    """The largest convex function of e^epsilon below a curve and its mirror image, at a point: its lowest chord."""
    values = np.minimum(curve(epsilon), 1.0)
    a = np.concatenate([np.exp(-epsilon[:0:-1]), np.exp(epsilon)])
    height = np.concatenate([1 - np.exp(-epsilon[:0:-1]) * (1 - values[:0:-1]), values])
    chords = [
        height[i] + (height[j] - height[i]) * (math.exp(at) - a[i]) / (a[j] - a[i])
        for i in range(len(a))
        for j in range(i + 1, len(a))
        if a[i] <= math.exp(at) <= a[j]
    ]
    return min(chords)


@pytest.mark.parametrize("seed", range(4))
def test_a_bound_of_any_shape_becomes_its_convex_hull(seed: int) -> None:
    """Bumps on a curve, and a bound that says nothing near 0: the pair's profile is the lowest chord, never less."""
    rng = np.random.default_rng(seed)
    size = 20
    masses, bumps = mirrored_atoms(rng, size), 1 + 3 * rng.random(size + 1)
    places, silent = np.arange(size + 1), STEP * int(rng.integers(4))

    def curve(epsilon: Array) -> Array:
        loose = profile(masses, -size, epsilon) * np.interp(epsilon, places * STEP, bumps)
        return np.where(epsilon < silent, 1.0, loose)

    found, infinite = curve_lattice(curve, STEP, places)
    epsilon = np.linspace(0.0, STEP * size, 37)
    value = profile(np.append(found.masses, infinite), found.first, epsilon)
    monotone = np.minimum.accumulate(np.minimum(curve(places * STEP), 1.0))
    lowest = [lowest_chord(lambda e: np.interp(e, places * STEP, monotone), places * STEP, at) for at in epsilon]
    np.testing.assert_allclose(value, lowest, rtol=1e-9)
    assert (value >= profile(masses, -size, epsilon) * (1 - 1e-12)).all()
    assert found.masses.sum() + infinite == pytest.approx(1.0, abs=1e-11)


def test_some_of_the_points_are_enough_for_a_bound() -> None:
    size = 24
    masses = mirrored_atoms(np.random.default_rng(9), size)
    found, infinite = curve_lattice(partial(profile, masses, -size), STEP, np.arange(0, size + 4, 4))
    epsilon = np.linspace(0.0, STEP * size, 50)
    value, exact = profile(np.append(found.masses, infinite), found.first, epsilon), profile(masses, -size, epsilon)
    assert (value >= exact * (1 - 1e-12)).all()
    np.testing.assert_allclose(value[0], exact[0], rtol=1e-9)  # a point that was asked


def test_pairs_of_two_curves_compose_as_their_atoms_do() -> None:
    rng = np.random.default_rng(5)
    first, second = mirrored_atoms(rng, 12), mirrored_atoms(rng, 30)
    parts = [
        curve_lattice(partial(profile, masses, -size), STEP, np.arange(size + 1))
        for masses, size in ((first, 12), (second, 30))
    ]
    total = Composed([(part, 1) for part, _ in parts], STEP, sum(mass for _, mass in parts), 0.0)
    plain = np.convolve(first[:-1], second[:-1])
    exact = profile(np.append(plain, 1.0 - plain.sum()), -42, epsilon := np.linspace(0.0, 4.0, 30))
    value = total.delta(epsilon)
    assert (value >= exact - 1e-15).all()
    np.testing.assert_allclose(value, np.minimum(exact + first[-1] * second[-1], 1.0), rtol=1e-6)
