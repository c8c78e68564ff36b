"""Operating points of small histories against enumeration of every outcome."""

import itertools
import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.verify.pld.operating_points import (
    SEEN,
    Points,
    Several,
    TiltedPoints,
    grid_step,
    loss_variance,
    merge,
    on_grid,
    operating_points,
    single_points,
)

P = np.array([0.5, 0.3, 0.15, 0.05])
Q = np.array([0.1, 0.25, 0.3, 0.35])


def exact_delta(first: np.ndarray, second: np.ndarray, steps: int, epsilon: float) -> float:
    total = 0.0
    for outcome in itertools.product(range(len(first)), repeat=steps):
        total += max(0.0, math.prod(first[list(outcome)]) - math.exp(epsilon) * math.prod(second[list(outcome)]))
    return total


@pytest.mark.parametrize("q", [1.0, 0.2])
@pytest.mark.parametrize("epsilon", [0.0, 0.3, 1.0, 2.5, 6.0])
def test_composed_points_are_below_and_near_the_enumerated_delta(q: float, epsilon: float) -> None:
    steps = 6
    first, second = (1 - q) * Q + q * P, Q
    h, deviation = grid_step([(loss_variance(first, second), steps)])
    points = operating_points([on_grid(first, second, h, steps)], h, deviation)
    exact = exact_delta(first, second, steps, epsilon)
    found = points.delta(np.array([epsilon]))[0]
    assert found <= exact
    assert found >= 0.999 * exact - 1e-12


def test_two_phases_compose_like_their_enumeration() -> None:
    first, second = np.array([0.7, 0.2, 0.1]), np.array([0.3, 0.3, 0.4])
    h, deviation = grid_step([(loss_variance(P, Q), 2), (loss_variance(first, second), 3)])
    points = operating_points([on_grid(P, Q, h, 2), on_grid(first, second, h, 3)], h, deviation)
    total = 0.0
    for a in itertools.product(range(4), repeat=2):
        for b in itertools.product(range(3), repeat=3):
            p = math.prod(P[list(a)]) * math.prod(first[list(b)])
            q = math.prod(Q[list(a)]) * math.prod(second[list(b)])
            total += max(0.0, p - math.e * q)
    found = points.delta(np.array([1.0]))[0]
    assert 0.999 * total <= found <= total


def test_one_release_needs_no_grid() -> None:
    points = single_points(P, Q)
    for epsilon in (0.0, 0.5, 1.2, 3.0):
        exact = exact_delta(P, Q, 1, epsilon)
        assert points.delta(np.array([epsilon]))[0] == pytest.approx(exact, abs=1e-13)
        assert points.delta(np.array([epsilon]))[0] <= exact


def test_epsilon_inverts_delta() -> None:
    h, deviation = grid_step([(loss_variance(P, Q), 50)])
    points = operating_points([on_grid(P, Q, h, 50)], h, deviation)
    deltas = np.array([1e-3, 1e-8, 1e-15])
    assert points.delta(points.epsilon(deltas)) == pytest.approx(deltas, rel=1e-6)


def test_a_query_takes_the_tilts_that_it_needs_and_is_told_what_all_of_them_tell() -> None:
    h, deviation = grid_step([(loss_variance(P, Q), 50)])

    def asked() -> TiltedPoints:
        return operating_points([on_grid(P, Q, h, 50)], h, deviation)

    everything, one = asked().all(), asked()
    one.delta(np.array([60.0]))  # far out: what is asked before makes no difference
    for delta in (0.3, 1e-3, 1e-9, 1e-20, 1e-40):
        epsilon = everything.epsilon(np.array([delta]))
        assert asked().epsilon(np.array([delta])) == pytest.approx(epsilon, abs=SEEN)
        assert asked().delta(epsilon) == pytest.approx(everything.delta(epsilon), rel=1e-6)
        assert one.delta(epsilon) == asked().delta(epsilon)
    near = asked()
    near.epsilon(np.array([1e-3]))
    assert 2 * len(near._known) < len(one._known)


def test_both_curves_fall_and_stay_in_range() -> None:
    h, deviation = grid_step([(loss_variance(P, Q), 20)])
    points = operating_points([on_grid(P, Q, h, 20)], h, deviation)
    delta = points.delta(np.linspace(0.0, 60.0, 50))
    epsilon = points.epsilon(np.array([0.0, 1e-30, 1e-9, 1e-3, 0.5, 0.999999, 1.0 - 1e-15]))
    assert np.all(np.diff(delta) <= 0)
    assert np.all((delta >= 0) & (delta <= 1))
    assert np.all(np.diff(epsilon) <= 0)
    assert np.all((epsilon >= 0) & (epsilon <= 20 * math.log(5)))


def test_cells_of_unbounded_loss_and_no_cells_at_all_are_handled() -> None:
    assert merge([]).delta(np.array([0.0, 1.0])) == pytest.approx([0.0, 0.0])
    points = single_points(np.array([0.25, 0.75]), np.array([1e-300, 1.0]))
    assert points.epsilon(np.array([0.1]))[0] > 600


def test_what_is_left_out_of_the_events_costs_no_more_than_the_floor() -> None:
    h = 0.01
    whole, part = on_grid(P, Q, h, 1), on_grid(P, Q, h, 1, floor=0.06)
    assert whole.first.masses.sum() - part.first.masses.sum() == pytest.approx(0.05, abs=1e-12)
    assert part.second.masses.sum() < 0.66


@pytest.mark.parametrize("count", [0, 1, 2, 17, 300])
def test_a_curve_is_what_the_best_of_all_events_proves(count: int) -> None:
    """Two normal laws, epsilons in any order: every event counts at each of them, to the last bit."""
    rng, threshold = np.random.default_rng(count), np.linspace(8.0, -3.0, 2000)
    points = Points(norm.sf(threshold - 1.0), norm.logsf(threshold), threshold)
    epsilon = np.concatenate([rng.permutation(np.linspace(0.0, 6.0, count)), [0.3, 0.0, np.inf]])
    every = [points.first_lower - np.exp(np.minimum(e + points.log_second_upper, 100.0)) for e in epsilon]
    plain = np.maximum(np.max(every, axis=1), 0.0)
    np.testing.assert_allclose(points.delta(epsilon), plain, rtol=1e-12, atol=1e-14)
    assert points.delta(epsilon).tolist() == [float(points.delta(np.array([e]))[0]) for e in epsilon]
    assert len({int(np.argmax(row)) for row in every}) >= min(count, 100)


def test_what_any_event_may_have_beside_counts_in_the_choice_of_one() -> None:
    """Events far out have next to nothing of the second law, and then what is lost."""
    threshold, lost = np.linspace(-3.0, 12.0, 300), 1e-9
    first, second = norm.sf(threshold - 2.0), norm.sf(threshold)
    order = np.argsort(second)
    points = Points(first[order], np.log(second[order]), threshold[order])
    seen = float(points.first_lower[points.first_lower > 0].min())
    deltas, epsilons = np.array([1e-30, 1e-12, 1e-7, 0.01, 0.4]), np.array([0.0, 2.0, 9.0, 16.0, 25.0])
    room = np.maximum(first - deltas[:, None], 1e-300)
    at_deltas = np.maximum(np.log(room) - np.log(second + lost), 0.0).max(axis=1)
    at_epsilons = np.maximum(first - np.exp(epsilons)[:, None] * (second + lost), 0.0).max(axis=1)
    for found in (points, Several([points]), TiltedPoints(iter([(points, seen), (points, 0.0)]))):
        charged = found.charged(lost)
        assert charged.epsilon(deltas) == pytest.approx(at_deltas, rel=1e-9)
        assert charged.delta(epsilons) == pytest.approx(at_epsilons, rel=1e-9, abs=1e-15)
        assert (charged.epsilon(deltas) <= at_deltas).all()
