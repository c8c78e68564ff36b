"""Pairs of many coordinates from that of one, against closed forms of normal noise and sums over Laplace atoms."""

import math
from itertools import product

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GeneralizedGaussian
from dpaudit.mechanisms.base import Array, PowerCoordinates
from dpaudit.verify.pld.curve_pairs import convex, pair_of_curve
from dpaudit.verify.pld.dominating_pairs import gaussian_pair, laplace_pair, logconcave_pair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs, worst_delta
from dpaudit.verify.pld.product_pairs import product_pair


def profile(pair_tails: object, at: Array) -> Array:
    tails = pair_tails(at)  # type: ignore[operator]
    return np.asarray(tails.p_sf - np.exp(at) * tails.q_sf)


def normal_delta(mu: float, epsilon: Array) -> Array:
    return np.asarray(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu))


@pytest.mark.parametrize(("mu", "count"), [(0.02, 10), (0.3, 4), (0.05, 1000), (1.5, 3), (2.0, 16)])
def test_normal_coordinates_have_the_curve_of_one_that_moves_by_their_length(mu: float, count: int) -> None:
    pair, length = product_pair(gaussian_pair(mu), count, 1e-20), mu * math.sqrt(count)
    epsilons = length * length / 2 + length * np.linspace(0.0, 7.0, 50)
    found, exact = profile(pair.tails, epsilons) + pair.lost, normal_delta(length, epsilons)
    assert (found >= exact * (1 - 1e-9)).all()
    assert (found <= exact * (1 + 1e-2) + 4 * pair.lost).all()
    tails = pair.tails(-epsilons)  # the mirror image
    reverse = tails.q_cdf - np.exp(epsilons) * tails.p_cdf
    assert reverse == pytest.approx(found, rel=1e-6, abs=1e-18)


@pytest.mark.parametrize("q", [1.0, 0.2, 1e-3])
@pytest.mark.parametrize("steps", [1, 30])
@pytest.mark.parametrize(("mu", "count"), [(0.3, 4), (0.05, 1000)])
def test_sampled_products_compose_as_the_one_normal_law_does(q: float, steps: int, mu: float, count: int) -> None:
    wanted = ("remove", "add")
    delta = 1e-7 * q
    tail = 1e-7 * delta / steps
    many, one = (
        worst_delta(
            compose_pairs([PairPhase(pair, q, steps)], wanted, delta), np.array([0.0, 0.01, 0.1, 0.5, 1.0, 3.0])
        )
        for pair in (product_pair(gaussian_pair(mu), count, tail), gaussian_pair(mu * math.sqrt(count)))
    )
    seen = one > 100 * delta
    assert seen.sum() >= 2
    assert many[seen] == pytest.approx(one[seen], rel=5e-3)
    assert (many[seen] >= one[seen] * (1 - 1e-3)).all()  # which is above the truth by its own rounding


@pytest.mark.parametrize(("shift", "count"), [(0.1, 2), (0.7, 3), (3.0, 4)])
def test_laplace_coordinates_against_sums_over_a_fine_grid_of_their_losses(shift: float, count: int) -> None:
    """One coordinate's loss has atoms at both ends and a density between: in 200 cells, from below and from above."""
    edges = np.linspace(-shift, shift, 201)
    cdf = 0.5 * np.exp((edges - shift) / 2)
    masses = np.concatenate([[cdf[0]], np.diff(cdf), [0.5]])
    pair = product_pair(laplace_pair(shift), count, 1e-15)
    epsilons = shift * count * np.array([0.05, 0.3, 0.6, 0.9, 0.98])
    exact = []
    for places in (
        np.concatenate([edges[:1], edges[:-1], edges[-1:]]),
        np.concatenate([edges[:1], edges[1:], edges[-1:]]),
    ):
        low, unit = places[0], edges[1] - edges[0]
        law = np.zeros(201)
        np.add.at(law, np.rint((places - low) / unit).astype(int), masses)
        total = law
        for _ in range(count - 1):
            total = np.convolve(total, law)
        losses = count * low + unit * np.arange(len(total))
        exact.append([float(total @ np.maximum(-np.expm1(e - losses), 0.0)) for e in epsilons])
    found = profile(pair.tails, epsilons) + pair.lost
    assert (found >= np.array(exact[0]) * (1 - 1e-9)).all()
    assert (found <= np.array(exact[1]) * (1 + 2e-3)).all()


def test_kept_points_are_those_of_the_lower_hull() -> None:
    rng = np.random.default_rng(5)
    for _ in range(50):
        losses = np.concatenate([[0.0], np.sort(rng.uniform(0, 5, 12))])
        deltas = np.sort(rng.uniform(0, 1, 13))[::-1]
        kept, a = set(convex(losses, deltas).tolist()), np.exp(losses)
        for k in range(13):
            chords = [
                deltas[i] + (deltas[j] - deltas[i]) * (a[k] - a[i]) / (a[j] - a[i])
                for i, j in product(range(k), range(k + 1, 13))
            ]
            assert (k in kept) == (not chords or deltas[k] < min(chords))


def test_points_further_apart_than_floats_of_their_exponentials_are_joined_by_a_chord() -> None:
    """At 999 a mass between the points lay a step too low: .30234 for .30336."""
    pair = pair_of_curve(np.array([0.0, 1000.0, 2000.0]), np.array([0.9, 0.5, 0.1]))
    epsilons = np.array([10.0, 990.0, 999.0, 1500.0, 1999.0])
    found = worst_delta(compose_pairs([PairPhase(pair, 0.5, 1)], ("remove", "add"), 1e-5), epsilons)
    inner = epsilons + np.log(2.0 - np.exp(-epsilons))  # of the base
    left = np.where(inner < 1000.0, 0.9, 0.5) - 0.4 * np.exp(np.where(inner < 1000.0, inner - 1000.0, inner - 2000.0))
    assert (found >= 0.5 * left * (1 - 1e-9)).all()
    assert found == pytest.approx(0.5 * left, rel=2e-2)  # a step of the grid is 0.012


@pytest.mark.parametrize(("shift", "count"), [(1e-5, 1_000_000), (1e-150, 3), (1e-300, 10)])
def test_coordinates_that_hardly_move_have_the_curve_of_a_normal_law(shift: float, count: int) -> None:
    """Guesses of so small a mean are rounding, and the variance of losses near 1e-300 is no float."""
    pair = product_pair(laplace_pair(shift), count, 1e-20)
    length = shift * math.sqrt(count)
    found = float(profile(pair.tails, np.zeros(1))[0]) + pair.lost
    if length > 1e-12:
        assert found == pytest.approx(length / math.sqrt(2 * math.pi), rel=1e-2)
    assert found >= 0.4 * shift


def test_losses_beyond_all_grids_leave_no_bound_and_no_error() -> None:
    noise = GeneralizedGaussian(20.0, 1.0, clip=2.5)
    assert isinstance(noise.structure, PowerCoordinates)
    pair = product_pair(logconcave_pair(noise.structure, 2.5), 2, 1e-20)
    for q in (0.5, 0.01):
        found = worst_delta(compose_pairs([PairPhase(pair, q, 1)], ("remove", "add"), 1e-5), np.array([1.0, 100.0]))
        assert (found >= q * 0.999).all()


@pytest.mark.parametrize("q", [1.0, 0.5])
@pytest.mark.parametrize(("top", "lost"), [(9e-4, 4e-6), (0.23, 1e-3), (0.2, 3.6e-4)])
def test_what_the_second_law_has_at_a_loss_of_minus_infinity_lowers_no_sum(top: float, lost: float, q: float) -> None:
    """Five releases of losses -inf, -top, 0, top and inf, whose sums are few."""
    second = 0.2
    pair = pair_of_curve(np.array([0.0, top]), np.array([lost + second * math.expm1(top), lost]))
    first = second * math.exp(top)
    rest = 1.0 - first - second - lost
    with_record = np.array([0.0, second, rest, first, lost])  # at losses -inf, -top, 0, top, inf
    without = with_record[::-1]
    mixed = q * with_record + (1 - q) * without
    a, b = np.ones(1), np.ones(1)
    for _ in range(5):
        a, b = np.multiply.outer(a, mixed).ravel(), np.multiply.outer(b, without).ravel()
    epsilons = math.log1p(q * math.expm1(top)) * np.array([0.0, 0.3, 0.7, 0.99, 1.5, 3.9])
    for direction, p, r in (("remove", a, b), ("add", b, a)):
        exact = np.array([np.maximum(p - math.exp(e) * r, 0.0).sum() for e in epsilons])
        [composed] = compose_pairs([PairPhase(pair, q, 5)], (direction,), 1e-3)  # type: ignore[arg-type]
        assert (composed.delta(epsilons) >= exact * (1 - 1e-12)).all()
