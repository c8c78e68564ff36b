"""The grid and the composition against sums done one by one, in exact or long arithmetic."""

import math
from fractions import Fraction

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair, exact_tails, gaussian_pair, laplace_pair
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.loss_grid import grid_masses, lattice, loss_moments, sampled_pair


def plain_convolution(parts: list[tuple[list[Fraction], int, int]]) -> dict[int, Fraction]:
    """Masses of a sum of independent integers, term by term: (masses, first, count) per part."""
    total = {0: Fraction(1)}
    for masses, first, count in parts:
        for _ in range(count):
            new: dict[int, Fraction] = {}
            for place, weight in total.items():
                for k, mass in enumerate(masses):
                    new[place + first + k] = new.get(place + first + k, Fraction(0)) + weight * mass
            total = new
    return total


def exact_delta(total: dict[int, Fraction], step: float, epsilon: float) -> float:
    with mpmath.workdps(40):
        terms = [
            mpmath.mpf(mass.numerator)
            / mass.denominator
            * (1 - mpmath.e ** (mpmath.mpf(epsilon) - mpmath.mpf(step) * k))
            for k, mass in total.items()
            if step * k > epsilon
        ]
        return float(mpmath.fsum(terms))


@pytest.mark.parametrize("counts", [(1, 0), (2, 1), (9, 4), (30, 0)])
def test_composition_is_never_below_the_plain_sum_and_hardly_above(counts: tuple[int, int]) -> None:
    rng = np.random.default_rng(11)
    step = 0.07
    raw = [
        [Fraction(int(n), 4096) for n in rng.multinomial(4096, rng.dirichlet(np.full(size, 0.4)))] for size in (7, 5)
    ]
    parts = [(raw[i], -2 - i, count) for i, count in enumerate(counts) if count]
    lattices = [(Lattice(np.array([float(m) for m in masses]), first), count) for masses, first, count in parts]
    total = plain_convolution(parts)
    top = step * max(total)
    found = Composed(lattices, step, 0.0, 0.0)
    for epsilon in [0.0, 0.013, 0.25 * top, 0.6 * top, 0.9 * top]:
        exact = exact_delta(total, step, epsilon)
        value = float(found.delta(np.array([epsilon]))[0])
        assert value >= exact * (1 - 1e-12)
        # Chernoff's bound on what lies above the window is e^-25 of the tail a tilt aims at; none aims below 1e-22
        assert value <= exact * (1 + 3e-6) + 1e-30, (epsilon, value, exact)


@pytest.mark.parametrize("atom", [0.3, 0.44, 0.447, 0.5, 0.95])
def test_an_atom_at_the_top_steers_no_tilt_out_of_range(atom: float) -> None:
    """Two releases whose largest loss is about as likely as the first tail aimed at: the bound was 1."""
    lattice = Lattice(np.array([1 - atom - 0.01, *[0.001] * 10, atom]), 0)
    found = Composed([(lattice, 2)], 0.1, 0.0, 0.0)
    masses = np.convolve(lattice.masses, lattice.masses)
    losses = 0.1 * np.arange(len(masses))
    for epsilon in (0.0, 0.05, 1.0, 2.0):
        exact = float(masses @ np.maximum(-np.expm1(epsilon - losses), 0.0))
        assert exact * (1 - 1e-12) <= found.delta(np.array([epsilon]))[0] <= exact + 1e-9


def test_mass_at_infinity_and_slack_only_add() -> None:
    part = [(Lattice(np.array([0.6, 0.3, 0.1]), -1), 5)]
    epsilon = np.linspace(0.0, 2.0, 41)
    plain = Composed(part, 0.3, 0.0, 0.0).delta(epsilon)
    assert plain[0] < 0.5
    np.testing.assert_allclose(Composed(part, 0.3, 0.01, 0.0).delta(epsilon), plain + 0.01, rtol=1e-12)
    shifted = Composed(part, 0.3, 0.0, 0.05).delta(epsilon[1:])
    np.testing.assert_allclose(shifted, plain[:-1], rtol=1e-9, atol=1e-15)


@pytest.mark.parametrize("sampling_prob", [1.0, 0.2, 0.003])
@pytest.mark.parametrize("pair", [gaussian_pair(0.8), laplace_pair(1.3)], ids=["gaussian", "laplace"])
def test_one_release_on_the_grid_bounds_the_exact_profile(pair: DominatingPair, sampling_prob: float) -> None:
    """delta of the rounded-up release against P(L > l) - e^eps Q(L > l) with the sampled loss written out."""
    q, one = sampling_prob, sampled_pair(pair, sampling_prob, 1e-25, math.inf)
    step = 0.02 * math.sqrt(loss_moments(one)[0])
    found = grid_masses(one, step)
    epsilon = np.array([0.0, 0.3, 1.0, 2.0]) * math.log1p(q * math.expm1(1.2))
    for direction in ("remove", "add"):
        masses, infinite = lattice(one, found, step, direction)
        value = Composed([(masses, 1)], step, infinite, 0.0).delta(epsilon)
        a = np.exp(epsilon)
        if direction == "remove":
            inner = np.log1p((a - 1) / q)
            tails = pair.tails(inner)
            exact = q * (tails.p_sf - np.exp(inner) * tails.q_sf)
        else:
            left = 1 - (1 - q) * a
            inner = np.log(q * a / np.where(left > 0, left, 1.0))
            tails = pair.tails(inner)
            exact = np.where(left > 0, left * (tails.p_sf - np.exp(inner) * tails.q_sf), 0.0)
        exact = np.maximum(exact, 0.0)
        assert (value >= exact - 1e-15).all()
        assert (value <= exact * 1.005 + 2e-5 * exact[0]).all()


def test_swap_profile_is_the_amplified_one_and_its_own_mirror_image() -> None:
    """delta(eps) = q delta_base(log(1 + (e^eps - 1)/q)) for eps >= 0; total mass 1; E e^-L <= 1 as for any pair."""
    mu, q = 1.1, 0.15
    one = sampled_pair(gaussian_pair(mu), q, 1e-25, math.inf)
    step = 2e-3
    masses, infinite = lattice(one, grid_masses(one, step), step, "swap")
    assert infinite < 1e-20
    assert masses.masses.sum() == pytest.approx(1.0, abs=1e-9)
    losses = (masses.first + np.arange(len(masses.masses))) * step
    assert (masses.masses * np.exp(-losses)).sum() == pytest.approx(1.0, abs=1e-6)
    epsilon = np.array([0.0, 0.1, 0.4, 1.0])
    inner = np.log1p(np.expm1(epsilon) / q)
    tails = gaussian_pair(mu).tails(inner)
    exact = q * (tails.p_sf - np.exp(inner) * tails.q_sf)
    value = Composed([(masses, 1)], step, infinite, 0.0).delta(epsilon)
    assert (value >= exact).all()
    np.testing.assert_allclose(value, exact, rtol=1e-3)


def test_errors_of_the_tails_are_paid_for() -> None:
    """Tails that are wrong by their stated error still give a bound above the right one."""
    base = gaussian_pair(0.5)
    error = 1e-4

    def wrong(losses: np.ndarray) -> object:
        t = base.tails(losses)
        return exact_tails(t.p_cdf, t.p_sf * (1 - error), t.q_cdf, t.q_sf * (1 + error), error)

    epsilon = np.linspace(0.0, 2.0, 9)
    values = []
    for pair in (base, DominatingPair(wrong)):  # type: ignore[arg-type]
        one = sampled_pair(pair, 1.0, 1e-20, math.inf)
        masses, infinite = lattice(one, grid_masses(one, 0.05), 0.05, "remove")
        values.append(Composed([(masses, 1)], 0.05, infinite, 0.0).delta(epsilon))
    exact = base.tails(epsilon).p_sf - np.exp(epsilon) * base.tails(epsilon).q_sf
    assert (values[1] >= exact).all()
    assert (values[1] > values[0]).all()


def test_epsilon_at_is_on_the_safe_side_of_a_step() -> None:
    def stairs(epsilon: np.ndarray) -> np.ndarray:
        return np.where(epsilon < 3.0, 0.5, 0.1)

    found = epsilon_at(stairs, np.array([0.6, 0.2, 0.05]))
    assert found[0] == 0.0
    assert found[1] == pytest.approx(3.0, rel=1e-8)
    assert found[1] >= 3.0
    assert math.isinf(found[2])


@pytest.mark.parametrize("rate", [1e-300, 1e-17, 1e-13, 1e-3, 0.6])
def test_the_loss_at_any_rate_is_that_of_the_mixture(rate: float) -> None:
    """log(1 - q + q e^l) in 400 digits; what is left of 1 - q was rounding, or -inf."""
    losses = np.array([-50.0, -1.0, 0.0, 1e-6, 0.5, 3.0, 40.0, 600.0, 1e9])
    found = sampled_pair(gaussian_pair(1.0), rate, 1e-9, 1e9).outer(losses)
    with mpmath.workdps(400):
        exact = [float(mpmath.log(1 - mpmath.mpf(rate) + mpmath.mpf(rate) * mpmath.exp(loss))) for loss in losses[:-1]]
    np.testing.assert_allclose(found[:-1], exact, rtol=1e-12, atol=1e-13)
    assert found[-1] == pytest.approx(1e9 + math.log(rate))


@pytest.mark.parametrize("noise", [Laplace(1e9, dimension=1), GammaPLRVIID(3.0, 1e-30, dimension=1)])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_losses_near_the_end_of_the_floats_have_a_grid(noise: Mechanism, adjacency: Adjacency) -> None:
    """A rate of 1e-300 of much noise: a step of the grid underflowed, and its inverse was infinite."""
    found = check(Claim.single(noise, epsilon=0.5, delta=1e-5, sampling_prob=1e-300, adjacency=adjacency))
    assert found.verdict == "certified"


def test_a_tail_keeps_only_what_queries_look_at(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole windows of 2^21 cells, two sums by eight tilts, took gigabytes."""
    cells = np.arange(-4000, 4001)
    part = Lattice(np.exp(-0.5 * (cells / 1000.0) ** 2) / 1000.0 / math.sqrt(2.0 * math.pi), -4000)
    epsilons = np.concatenate([np.linspace(-9.0, 45.0, 2000), [1e3, 1e6]]) * 32e3 * 1e-4
    found = []
    for smallest in (1 << 30, 1 << 16):
        monkeypatch.setattr("dpaudit.verify.pld.composition.SMALL", smallest)
        total = Composed([(part, 1000)], 1e-4, 0.0, 0.0)
        found.append((total.delta(epsilons), [tail for tail in total._tails if tail is not None]))
    (whole, tails), (trimmed, kept) = found
    assert len(tails) == len(kept) == 8
    np.testing.assert_allclose(trimmed, whole, rtol=1e-9)
    assert 3 * sum(len(tail.upper) for tail in kept) < sum(len(tail.upper) for tail in tails)


@pytest.mark.parametrize("rise", [5, 50, 3000])
def test_what_is_usual_can_lie_many_deviations_below_zero(rise: int) -> None:
    """Rare large losses apart, a release in a million loses nothing: it ended in an IndexError."""
    masses = np.zeros(58_068)
    masses[[0, rise, -1]] = 1.0 - 1e-4, 1e-4, 1e-40
    composed = Composed([(Lattice(masses, -29_033), 410)], 7e-18, 1e-6, 0.0)
    far_below = 410 * -29_033 * 7e-18
    assert composed.delta(np.array([0.0, 1.0])) == pytest.approx([1e-6, 1e-6], rel=1e-9)
    assert 1e-6 <= composed.delta(np.array([far_below]))[0] <= 2e-6 + rise * 410 * 7e-18
