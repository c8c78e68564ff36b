"""Many shuffled batches in balls: terms by search, sums by enumeration, passes by integrals, and the first engine."""

import itertools
import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
from one_pass import mean_excess
from scipy.stats import norm

pytest.importorskip("flint")

from flint import fmpz_poly

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.pld.shuffled_pass import ShuffledPass, excess
from dpaudit.verify.results import Direction
from dpaudit.verify.rigorous import shuffled_choices
from dpaudit.verify.rigorous.agreement import confirmed
from dpaudit.verify.rigorous.balls import Unavailable, ball, precision
from dpaudit.verify.rigorous.bracket import RigorousBracket, UpperProof, rigorous_bracket, upper_proof
from dpaudit.verify.rigorous.shuffled_choices import (
    Fineness,
    ShuffledBound,
    chosen_lattice,
    pass_profile,
    shuffled_bound,
)
from dpaudit.verify.rigorous.shuffled_upper import (
    ShuffledBatches,
    TermLattice,
    cyclic_power,
    pass_delta,
    profile_masses,
    shuffled_passes,
    term_excess,
)
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.upper import shuffled_batches

BITS = 97
FARTHEST: dict[Direction, tuple[float, float, float]] = {  # |x - y|, |x|, |y| in units of the clip
    "remove": (1.0, 2.0, 1.0),
    "add": (1.0, 1.0, 2.0),
    "swap": (2.0, 2.0, 2.0),
}


def claim(epsilon: float, *phases: tuple[float, Shuffled], adjacency: Adjacency = "zero-out") -> Claim:
    return Claim(epsilon, 1e-5, [Phase(Gaussian(sigma), sampler=sampler) for sigma, sampler in phases], adjacency)


def one_pass(batches: int, mu: float, direction: Direction) -> tuple[ShuffledBatches, TermLattice]:
    part = ShuffledBatches(batches, ball(mu), 1, swaps=direction == "swap")
    return part, chosen_lattice(part, batches, Fineness(20.0, 0.1), 1e-5, ball(0))


@pytest.mark.parametrize("direction", FARTHEST)
def test_the_worst_term_is_the_best_of_all_half_lines(direction: Direction) -> None:
    """sup over t of what a set of mass Phi(-t) under the one law has at least, or at most, under the others."""
    mu, growth, t = 0.7, 1.4, np.linspace(-9.0, 9.0, 200_001)
    between, first, second = (mu * x for x in FARTHEST[direction])
    for level in (0.0, 0.3, 4.0, -0.2, -3.0):
        if level >= 0:
            gains = norm.sf(t) - growth * norm.sf(between + t) - level * norm.sf(first + t)
        else:
            gains = norm.sf(t - between) - growth * norm.sf(t) - level * norm.sf(t - second)
        found = term_excess(ball(mu), ball(growth), ball(level), direction, below=level < 0)
        assert float(found.upper()) == pytest.approx(gains.max(), rel=1e-8)
        assert gains.max() < float(found.upper()) + 1e-12


def test_a_cyclic_power_counts_all_sums_modulo_the_size() -> None:
    masses = [0.5, 0.125, 0.0, 0.375]
    expected = np.zeros(4)
    for places in itertools.product(range(4), repeat=5):
        expected[sum(places) % 4] += math.prod(masses[place] for place in places)
    law = cyclic_power(fmpz_poly([int(mass * 2**BITS) for mass in masses]), 5, 4, BITS)
    found = [int(mass) / 2**BITS for mass in law.coeffs()]
    assert found == pytest.approx(expected, abs=1e-15)
    assert int(law(1)) >= 2**BITS  # rounded up


@pytest.mark.parametrize("direction", FARTHEST)
def test_the_mean_of_two_terms_is_a_double_sum(direction: Direction) -> None:
    """E ((Y + Y')/2)_+ = E s(-Y)/2, s the first engine's excess; the law of Y by differences of s on a fine grid."""
    part, lattice = one_pass(2, 0.4, direction)
    growth, grid = 1.1, np.linspace(-30.0, 60.0, 90_001)
    below = np.concatenate([[0.0], 1.0 + np.diff(excess(grid, growth, 0.4, direction)[0]) / np.diff(grid), [1.0]])
    truth = float(np.diff(below) @ excess(-grid, growth, 0.4, direction)[0]) / 2.0
    bound, cost = (float(x.upper()) for x in pass_delta(part, lattice, ball(growth).log(), direction, BITS))
    assert truth < bound - cost + 1e-9
    assert bound - cost < truth * (1.0 + 5e-3)


@pytest.mark.parametrize(("batches", "mu", "direction"), [(12, 0.1, "swap"), (60, 0.3, "remove"), (9, 0.5, "remove")])
def test_every_corner_is_shown_by_its_own_lattice(batches: int, mu: float, direction: Direction) -> None:
    """The least of those before would be shown by none where fewer terms cost more again."""
    with precision():
        part, lattice = one_pass(batches, mu, direction)
        step = ball(0.3 * mu / math.sqrt(batches))
        profile, lattices = pass_profile(part, lattice, step, Fineness(8.0, 0.2), 1e-5, BITS)
        assert len({look for *_, look in profile}) > 1
        for place, value, look in profile:
            way: Direction = direction if place >= 0 else "add" if direction == "remove" else "swap"
            found = pass_delta(part, lattices[look], abs(place) * step, way, BITS)[0]
            assert ball(value) >= found or ball(value) >= part.known(abs(place) * step)


def pass_density(outputs: Array, contributions: tuple[float, ...], sigma: float) -> Array:
    """Density of three releases of batches of one in a random order, over that of noise alone."""
    orders = np.array(list(itertools.permutations(contributions)))
    return np.asarray(np.exp((outputs @ orders.T - (orders**2).sum(axis=1) / 2) / sigma**2).mean(axis=1))


@pytest.mark.parametrize(("value", "absent"), [(1.0, 0.0), (1.0, -1.0)])
def test_no_pass_of_three_releases_costs_more(value: float, absent: float) -> None:
    """Whole passes by an integral over their outputs, others that are constant, all bounds in between a few percent."""
    sigma = 3.0
    points, weights = np.polynomial.hermite_e.hermegauss(36)
    outputs = sigma * np.array(list(itertools.product(points, repeat=3)))
    mass = np.prod(np.array(list(itertools.product(weights / weights.sum(), repeat=3))), axis=1)
    with precision():
        for direction in ("remove", "add"):
            way: Direction = "swap" if absent else "remove" if direction == "remove" else "add"
            part, lattice = one_pass(3, 1 / sigma, way)
            for epsilon in (0.0, 0.1, 0.3):
                most = 0.0
                for others in ((-1.0, -1.0), (0.0, 0.0), (-1.0, 1.0)):
                    laws = [pass_density(outputs, (x, *others), sigma) for x in (value, absent)]
                    p, q = laws if direction == "remove" else laws[::-1]
                    most = max(most, float(mass @ np.maximum(p - math.exp(epsilon) * q, 0.0)))
                looks = [replace(lattice, terms=m) for m in (1, 2, 3)]
                looks += [replace(lattice, terms=1, level=c, cut=g) for c in ("1.2", "1.8") for g in ("0.1", "0.5")]
                tried = [pass_delta(part, look, ball(epsilon), way, BITS)[0] for look in looks]
                assert most < min(float(bound.upper()) for bound in tried)


def test_the_masses_of_a_profile_have_it_again() -> None:
    """delta of the pair at every corner, both directions, and the rest infinite; of normal noise, which is convex."""
    profile = [(place, repr(gaussian_delta(0.1, abs(place) * 0.02)), 0) for place in (-9, -4, -1, 0, 2, 5, 10)]
    first, second = ([float(mass) for mass in side] for side in profile_masses(profile, ball(0.02)))
    for place, value, _ in profile:
        own, sign, e = first if place >= 0 else second, 1 if place >= 0 else -1, abs(place) * 0.02
        losses = [sign * at * 0.02 for at, *_ in profile]
        infinite = 1.0 - sum(own)
        above = sum(m * max(0.0, -math.expm1(e - loss)) for m, loss in zip(own, losses, strict=True))
        assert infinite + above == pytest.approx(float(value), abs=1e-15)
        assert infinite == pytest.approx(float(profile[-1 if place >= 0 else 0][1]), abs=1e-15)


def large_weights_price(
    batches: int, mu: float, terms: int, look: TermLattice, epsilon: float, way: Direction
) -> float:
    """The lesser of both, in floats."""
    known, growth = gaussian_delta(mu * (2 if way == "swap" else 1), epsilon), math.exp(epsilon)
    levels = np.array([1.0 - growth, float(look.cut)])
    constants, above = excess(levels, growth, mu, way)[0]
    filled = float(constants) * gaussian_delta(2 * mu, math.log(batches / terms))
    left = 1.0 - terms * float(look.level) / (batches - 1)
    rho = gaussian_delta(2 * mu, math.log(float(look.level))) / left if left > 0 else 1.0
    return min(filled, rho * known + (float(look.cut) * rho + float(above)) / batches)


@pytest.mark.parametrize("way", FARTHEST)
def test_a_pass_is_the_first_engines_mean_of_terms_and_the_large_weights_price(way: Direction) -> None:
    batches, mu, terms = 100, 0.2, 30
    with precision():
        part, _ = one_pass(batches, mu, way)
        for epsilon in (0.0, 0.02, 0.1):
            look = chosen_lattice(part, terms, Fineness(16.0, 0.1), 1e-6, ball(epsilon))
            found = float(pass_delta(part, look, ball(epsilon), way, BITS)[0].upper())
            mean = mean_excess(ShuffledPass(float(batches), mu, 1), math.exp(epsilon), terms, way)
            expected = mean + large_weights_price(batches, mu, terms, look, epsilon, way)
            assert found == pytest.approx(expected, rel=1e-2)


TWO = [(8.0, Shuffled.of(905, 10, 3)), (12.0, Shuffled.of(305, 10, 2, last_batch="dropped"))]
slow = partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("adjacency", "phases"),
    [
        ("replace-one", [(10.0, Shuffled(12, 71))]),
        ("zero-out", [(10.0, Shuffled(12, 71))]),
        slow("replace-one", [(10.0, Shuffled(100, 10))]),
        slow("zero-out", [(10.0, Shuffled(100, 10))]),
        slow("replace-one", TWO),
        slow("replace-one", [(5.0, Shuffled(1000, 20))]),
        slow("zero-out", [(3.0, Shuffled(2000, 5))]),
    ],
)
def test_the_bound_is_above_the_first_engines_and_near_it(
    adjacency: Adjacency, phases: list[tuple[float, Shuffled]]
) -> None:
    """That one has sharper prices of large weights."""
    curve = shuffled_batches.bound(claim(1.0, *phases, adjacency=adjacency).canonical("upper"))
    epsilon = float(curve.epsilon(np.array([1e-5]))[0])
    with precision():
        found = shuffled_bound(claim(1.4 * epsilon, *phases, adjacency=adjacency).canonical())
        assert isinstance(found, ShuffledBound)
        assert found.delta(ball(1.4 * epsilon)) <= ball(1e-5)
        assert found.delta(ball(epsilon)) > ball(1e-5)


def test_a_finer_bound_is_tried_where_a_coarse_one_nearly_reaches(monkeypatch: pytest.MonkeyPatch) -> None:
    history = claim(1.24, (10.0, Shuffled(12, 71))).canonical()
    for close, proves in ((0.0, False), (shuffled_choices.CLOSE, True)):
        monkeypatch.setattr(shuffled_choices, "CLOSE", close)
        with precision():
            found = shuffled_bound(history)
            assert isinstance(found, ShuffledBound)
            assert (found.delta(ball(history.epsilon)) <= ball(1e-5)) == proves


def test_both_engines_certify_and_say_so() -> None:
    history = claim(3.92, (10.0, Shuffled(12, 71)), adjacency="replace-one")
    verdict = confirmed(history, check(history))
    assert verdict.verdict == "certified"
    assert "proves the same" in verdict.reason
    assert "shuffled-grid" in verdict.reason


@pytest.mark.parametrize(
    ("noise", "sampler", "reason"),
    [
        (Gaussian(0.8), Shuffled(234, 60), "too few"),
        (Gaussian(5.0), Shuffled(10**8, 3), "too long"),
        (Gaussian(8.0), Shuffled(1000, 3, reshuffle="once"), "an order for every pass"),
        (Gaussian(8.0), Shuffled.of(905, 10, 3, last_batch="straddling"), "whole"),
        (Laplace(8.0, clip_norm=1.0), Shuffled(1000, 3), "normal noise"),
    ],
)
def test_what_is_not_covered_says_why(noise: Gaussian | Laplace, sampler: Shuffled, reason: str) -> None:
    history = Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], "zero-out").canonical()
    found = shuffled_bound(history)
    assert isinstance(found, Unavailable)
    assert reason in found.reason


def test_a_claim_that_a_known_order_proves_needs_no_more() -> None:
    proof = upper_proof(claim(4.0, (5.0, Shuffled(1000, 20))).canonical())
    assert isinstance(proof, UpperProof)
    assert proof.kind == "gaussian-curve"


def test_a_tiny_delta_leaves_the_known_order() -> None:
    """Knots so far out that no exponent tilts the terms as far as is usual."""
    sampler = Shuffled(batches=19, epochs=59, records=19, batch=1, last_batch="straddling")
    noise = Gaussian(5.31895, clip_norm=math.inf, dimension=6)
    found = upper_proof(Claim(32.5873, 2.7278e-149, [Phase(noise, sampler=sampler)]))
    assert isinstance(found, UpperProof)
    assert found.kind == "gaussian-curve"


def test_a_smaller_last_batch_counts_as_the_records_over_the_batch() -> None:
    samplers = Shuffled.of(905, 10, 3), Shuffled.of(905, 10, 3, last_batch="dropped"), Shuffled(91, 3)
    found = [shuffled_passes(claim(1.0, (8.0, sampler)).canonical()) for sampler in samplers]
    assert [float(parts[0].batches) for parts in found if not isinstance(parts, Unavailable)] == [90.5, 90.0, 91.0]


def test_next_to_no_noise_is_hidden_by_no_number_of_batches() -> None:
    claim = Claim(231.525, 3.3e-7, [Phase(Gaussian(0.00486706), sampler=Shuffled(58_793_000, 175))], "replace-one")
    found = rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert found.delta_upper == 1
