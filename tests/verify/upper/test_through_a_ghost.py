"""A replaced record by way of a ghost: exact games of one and two bins, and the lower bounds of many."""

import math

import numpy as np
import pytest
from scipy.stats import norm

from dpaudit.mechanisms import GammaPLRV, Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import BallsInBins, RandomAllocation, Sampler, Shuffled
from dpaudit.verify.upper import through_a_ghost, upper_curve, upper_curves

EPSILONS = np.concatenate([np.linspace(0.0, 6.0, 61), [50.0, 1e4, 1e250]])


def claim(noise: Mechanism, sampler: Sampler, epsilon: float = 1.0, adjacency: str = "replace-one") -> Claim:
    return Claim(epsilon, 1e-5, [Phase(noise, sampler=sampler)], adjacency)  # type: ignore[arg-type]


def bound(given: Claim) -> np.ndarray:
    [ghost] = through_a_ghost.parts(given)
    return through_a_ghost.bound(given, [upper_curves(ghost)]).delta(EPSILONS)


def test_the_bound_falls_and_is_above_the_exact_games_of_one_and_two_bins() -> None:
    """Contributions of 1 and -1: alone, and in one of two bins each of which either may be."""
    found = bound(claim(Gaussian(1.5, dimension=1), BallsInBins(1, 1)))
    assert (np.diff(found) <= 0).all()
    assert found[-1] < 1e-20
    assert (found[:61] >= [gaussian_delta(2.0 / 1.5, e) for e in EPSILONS[:61]]).all()
    axis = np.linspace(-12.0, 12.0, 1201)
    one, none, other = (norm.pdf(axis, centre, 1.5) * (axis[1] - axis[0]) for centre in (1.0, 0.0, -1.0))
    first, second = (0.5 * (np.outer(law, none) + np.outer(none, law)) for law in (one, other))
    exact = [np.maximum(first - math.exp(e) * second, 0.0).sum() for e in EPSILONS[:40]]
    found = bound(claim(Gaussian(1.5, dimension=1), BallsInBins(2, 1)))
    assert (found[:40] >= exact).all()
    assert (found[:40] <= 6.0 * np.array(exact) + 0.05).all()


@pytest.mark.parametrize(
    ("noise", "most"),
    [
        (Gaussian(2.0, dimension=10), 1.1),
        (Laplace(2.0, dimension=1), 1.15),
        (GammaPLRV(20.0, 1 / 40.0, dimension=10), 1.7),
        (GeneralizedGaussian(3.0, 4.0, dimension=1), 2.2),
    ],
)
@pytest.mark.parametrize("sampler", [BallsInBins(100, 5), RandomAllocation(1000, 10)])
def test_two_contributions_of_opposite_signs_cost_nearly_as_much(
    noise: Mechanism, most: float, sampler: Sampler
) -> None:
    """Without a ghost between them such records had what they cost unsampled: an epsilon of 5 and more."""
    found = check(claim(noise, sampler))
    assert found.epsilon_lower <= found.epsilon_upper < most * found.epsilon_lower
    ghost = check(claim(noise, sampler, adjacency="zero-out"))
    assert ghost.epsilon_upper < found.epsilon_upper < 2.5 * ghost.epsilon_upper


def test_phases_of_other_samplers_compose_with_it() -> None:
    phases = [Phase(Gaussian(2.0, dimension=3), sampler=BallsInBins(100, 5)), Phase(Gaussian(20.0, dimension=3), 4)]
    both = Claim(1.0, 1e-5, phases, "replace-one")
    at = np.array([0.9, 1.2])  # at 2 both are what is beyond their lattices
    alone = upper_curve(Claim(1.0, 1e-5, phases[:1], "replace-one"))(at)
    assert (alone <= upper_curve(both)(at)).all()
    found = check(both)
    assert found.epsilon_upper < 1.3 * found.epsilon_lower


def test_only_what_hides_a_record_from_its_absence_alone_needs_a_ghost() -> None:
    assert through_a_ghost.parts(claim(Laplace(2.0), Shuffled(5, 2))) == []
    assert through_a_ghost.parts(claim(Laplace(2.0), BallsInBins(5, 2), adjacency="zero-out")) == []
    [ghost] = through_a_ghost.parts(claim(Laplace(2.0), BallsInBins(5, 2), epsilon=1e6))
    assert 0 < ghost.delta < 1e-5
    assert ghost.epsilon == 5e5
    assert ghost.adjacency == "zero-out"
