"""The pair behind a bound on delta(epsilon): against the atoms it came from, chords one by one and plain sums."""

import functools
import math
from collections.abc import Callable
from functools import partial

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.curve_pairs import bounded_pair, mean_pair, sampled_curves
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs, worst_delta

STEP = 0.1


def mirrored_atoms(rng: np.random.Generator, size: int) -> Array:
    """P-masses at losses -size STEP, ..., size STEP of a pair that is its own mirror image, and of an infinite loss."""
    above = rng.dirichlet(np.full(size + 2, 0.3))
    below = above[1:-1] * np.exp(-STEP * np.arange(1, size + 1))
    masses = np.concatenate([below[::-1], above])
    return np.asarray(masses / masses.sum())


def profile(masses: Array, epsilon: Array) -> Array:
    """delta(epsilon) of such atoms, one by one."""
    size = (len(masses) - 2) // 2
    losses = np.append(STEP * np.arange(-size, size + 1), math.inf)
    return np.array([math.fsum(masses * np.maximum(-np.expm1(e - losses), 0.0)) for e in epsilon])


def curve(pair: DominatingPair, epsilon: Array) -> Array:
    tails = pair.tails(epsilon)
    return np.asarray(tails.p_sf + pair.lost - np.exp(epsilon) * tails.q_sf)


@pytest.mark.parametrize("seed", range(4))
def test_atoms_come_back(seed: int) -> None:
    size = 25
    masses = mirrored_atoms(np.random.default_rng(seed), size)
    pair = bounded_pair(partial(profile, masses), STEP * np.arange(size + 1))
    between = STEP * (np.arange(-size - 1, size + 1) + 0.5)
    np.testing.assert_allclose(pair.tails(between).p_sf, np.cumsum(masses[::-1])[::-1] - masses[-1], atol=1e-13)
    assert pair.lost == pytest.approx(masses[-1], rel=1e-12)


def lowest_chord(bound: Callable[[Array], Array], epsilon: Array, at: float) -> float:
    """The largest convex function of e^epsilon below a curve and its mirror image, at a point: its lowest chord."""
    values = np.minimum(bound(epsilon), 1.0)
    a = np.concatenate([np.exp(-epsilon[:0:-1]), np.exp(epsilon)])
    height = np.concatenate([1 - np.exp(-epsilon[:0:-1]) * (1 - values[:0:-1]), values])
    chords = [
        height[i] + (height[j] - height[i]) * (math.exp(at) - a[i]) / (a[j] - a[i])
        for i in range(len(a))
        for j in range(i + 1, len(a))
        if a[i] <= math.exp(at) <= a[j]
    ]
    return min(chords)


@pytest.mark.parametrize("seed", range(6))
def test_a_bound_of_any_shape_becomes_its_convex_hull(seed: int) -> None:
    """Bumps on a curve, and a bound that says nothing near 0: the pair's curve is the lowest chord, never less."""
    rng = np.random.default_rng(seed)
    size = 20
    masses, bumps = mirrored_atoms(rng, size), 1 + 3 * rng.random(size + 1)
    losses, silent = STEP * np.arange(size + 1), STEP * seed

    def bound(epsilon: Array) -> Array:
        return np.where(epsilon < silent, 1.0, profile(masses, epsilon) * np.interp(epsilon, losses, bumps))

    pair = bounded_pair(bound, losses)
    epsilon = np.linspace(0.0, STEP * size, 37)
    falling = np.minimum.accumulate(np.minimum(bound(losses), 1.0))
    lowest = [lowest_chord(lambda e: np.interp(e, losses, falling), losses, at) for at in epsilon]
    np.testing.assert_allclose(curve(pair, epsilon), lowest, rtol=1e-9)
    assert (curve(pair, epsilon) >= profile(masses, epsilon) * (1 - 1e-12)).all()
    tails = pair.tails(epsilon[1:])  # no mass is counted twice
    mirrored = pair.tails(-epsilon[1:])
    assert (tails.p_sf + pair.lost + mirrored.p_cdf <= 1 + 1e-12).all()


def test_some_of_the_points_are_enough_for_a_bound() -> None:
    size = 24
    masses = mirrored_atoms(np.random.default_rng(9), size)
    pair = bounded_pair(partial(profile, masses), STEP * np.arange(0, size + 4, 4))
    epsilon = np.linspace(0.0, STEP * size, 50)
    assert (curve(pair, epsilon) >= profile(masses, epsilon) * (1 - 1e-12)).all()
    assert curve(pair, epsilon)[0] == pytest.approx(profile(masses, epsilon)[0], rel=1e-9)  # a point that was asked


def test_pairs_of_two_curves_compose_as_their_atoms_do() -> None:
    rng = np.random.default_rng(5)
    first, second = mirrored_atoms(rng, 12), mirrored_atoms(rng, 30)
    atoms = (first, 12), (second, 30)
    pairs = [bounded_pair(partial(profile, masses), STEP * np.arange(size + 1)) for masses, size in atoms]
    total = compose_pairs([PairPhase(pair, 1.0, 1) for pair in pairs], ("remove",), 1e-9)
    plain = np.convolve(first[:-1], second[:-1])
    epsilon = np.linspace(0.0, 4.0, 30)
    exact, value = profile(np.append(plain, 1.0 - plain.sum()), epsilon), worst_delta(total, epsilon)
    assert (value >= exact - 1e-15).all()
    np.testing.assert_allclose(value, exact + first[-1] * second[-1], rtol=2e-3)  # of a grid


def exact_sampled(masses: Array, q: float, loss: float, *, ghost: bool) -> mpmath.mpf:
    """delta of such atoms under Poisson sampling, the record first or its ghost, in 60 digits."""
    size = (len(masses) - 2) // 2
    rate, growth, total = mpmath.mpf(q), mpmath.e ** mpmath.mpf(loss), mpmath.mpf(0)
    for place, mass in zip(range(-size, size + 1), masses[:-1], strict=True):
        p = mpmath.mpf(float(mass))
        other = p * mpmath.e ** (-mpmath.mpf(float(STEP * place)))
        drawn = rate * p + (1 - rate) * other
        total += max(other - growth * drawn if ghost else drawn - growth * other, 0)
    # what is infinite under the one law lies at no loss of the other
    return total + mpmath.mpf(float(masses[-1])) * (0 if ghost else rate)


@functools.cache
def unsampled_curve() -> tuple[Array, Array, Array]:
    """Masses of a random symmetric law on a lattice of losses, and its delta at each loss from 0 on, rounded up."""
    size = 300
    above = np.append(np.random.default_rng(3).dirichlet(np.full(size + 1, 0.3)), 0.0)
    masses = np.concatenate([(above[1:-1] * np.exp(-STEP * np.arange(1, size + 1)))[::-1], above])
    masses /= masses.sum()
    losses: Array = STEP * np.arange(size + 1)
    with mpmath.workdps(60):
        known = np.array([float(exact_sampled(masses, 1.0, x, ghost=False)) for x in losses]) * (1 + 1e-15)
    return masses, losses, known


@pytest.mark.parametrize("q", [1e-12, 0.3, 0.999, 1.0 - 1e-10, 1.0 - 2.0**-53, 1.0])
def test_sampled_curves_are_those_of_the_mixtures(q: float) -> None:
    """Near a rate of 1 the ghost's came out lower than they are, by half a percent."""
    masses, losses, known = unsampled_curve()
    with mpmath.workdps(60):
        for ghost, (at, deltas) in zip((False, True), sampled_curves((losses, known), q), strict=True):
            assert (np.diff(at) > 0).all()
            for loss, delta in list(zip(at, deltas, strict=True))[::29]:
                exact = exact_sampled(masses, q, float(loss) * (1 + 2.0**-46), ghost=ghost)
                assert float(exact) <= delta * (1 + 1e-12) + 1e-15
                assert (
                    delta
                    <= float(exact_sampled(masses, q, float(loss) * (1 - 2.0**-44), ghost=ghost)) * (1 + 1e-9) + 1e-15
                )


def test_the_mean_of_kinds_is_theirs() -> None:
    losses: Array = STEP * np.arange(26)
    both = [mirrored_atoms(np.random.default_rng(seed), 25) for seed in (1, 2)]
    curves = [(losses, profile(masses, losses)) for masses in both]
    pair = mean_pair([(0.3, (curves[0], curves[0])), (0.7, (curves[1], curves[1]))])
    at = np.linspace(0.0, 2.4, 50)
    wanted = 0.3 * profile(both[0], at) + 0.7 * profile(both[1], at)
    assert curve(pair, at) == pytest.approx(wanted, rel=1e-9)
