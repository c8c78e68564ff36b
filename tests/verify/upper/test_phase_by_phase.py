"""Histories whose phases are bounded by different theorems: against pairs composed whole, and against each phase."""

import math

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.upper import mixed, phase_by_phase, upper_curve, upper_curves

DELTA = 1e-6


def of(*phases: Phase, epsilon: float = 1.0, delta: float = DELTA) -> Claim:
    return Claim(epsilon, delta, phases)


EXACT = [
    (Phase(Gaussian(3.0), 10, 0.2), Phase(Laplace(5.0, 1.0, 1.0), 4)),
    (Phase(Gaussian(40.0), 300), Phase(GeneralizedGaussian(3.0, 2.0, dimension=1), 1, 0.01)),
    (Phase(GammaPLRVIID(3.0, 0.3, dimension=1), 20, 0.1), Phase(Gaussian(0.7), 1, 1e-3), Phase(Laplace(9.0, 1.0, 1.0))),
]


@pytest.mark.parametrize("phases", EXACT)
def test_curves_of_phases_lose_next_to_nothing_against_their_pairs_composed_whole(phases: tuple[Phase, ...]) -> None:
    claim = of(*phases)
    assert phase_by_phase.parts(claim) == []  # one pair for each phase: nothing to gain
    curve = phase_by_phase.bound(claim, [upper_curves(of(phase)) for phase in phases])
    whole = mixed.bound(claim)
    epsilon = np.linspace(0.0, 1.3 * float(whole.epsilon(np.array([DELTA]))[0]), 15)
    value, exact = curve.delta(epsilon), whole.delta(epsilon)
    assert (value >= exact * (1 - 1e-3)).all()  # the whole is rounded up too
    assert float(curve.epsilon(np.array([DELTA]))[0]) == pytest.approx(
        float(whole.epsilon(np.array([DELTA]))[0]), rel=2e-3
    )


def test_every_phase_has_the_theorem_that_suits_it() -> None:
    """Moments of all would say 27.8: of the last phase, which is within .2205 whatever delta, they say nothing."""
    phases = (
        Phase(GammaPLRVIID(0.0223, 0.000571, clip=404.6, clip_norm=5.45, dimension=8752), 21927, 2.855e-06),
        Phase(Gaussian(85.6142, dimension=13870), 53),
        Phase(Laplace(0.269311, dimension=1), 1, 0.00616795),
    )
    claim = of(*phases, epsilon=0.7, delta=2.26e-10)
    verdict = check(claim)
    assert verdict.verdict == "certified"
    assert verdict.epsilon_upper < 0.645
    assert verdict.epsilon_lower > 0.63


def test_a_phase_of_noise_without_moments_does_not_empty_the_others_bounds() -> None:
    """Product noise beside noise with a Lomax law in many coordinates: no theorem alone covers both."""
    phases = (
        Phase(GammaPLRVIID(0.180085, 123.844, clip=0.00806897, dimension=95)),
        Phase(Product(24.2336, clip_norm=78.1427, dimension=129), 1, 6.40201e-06),
    )
    claim = of(*phases, delta=2.28e-05)
    verdict = check(claim)
    alone = check(of(phases[0], delta=2.28e-05))
    assert alone.epsilon_upper < verdict.epsilon_upper < alone.epsilon_upper + 0.03
    assert verdict.epsilon_lower <= verdict.epsilon_upper


def test_losses_far_out_do_not_coarsen_the_grid_of_the_others() -> None:
    """A rare release of hundreds of nats beside one of a hundredth: both are seen."""
    small, rare = Phase(Gaussian(100.0, dimension=3), 4), Phase(Laplace(0.01, dimension=50), 1, 1e-7)
    claim = of(small, rare, epsilon=0.2, delta=1e-5)
    curve = upper_curve(claim)
    alone = upper_curve(of(small, epsilon=0.2, delta=1e-5))
    at = np.array([0.02, 0.05, 0.08])
    assert (curve(at) <= alone(at) * 1.02 + 1.01e-7).all()
    assert (curve(at) >= alone(at)).all()


def test_phases_of_one_kind_are_one_part() -> None:
    laplace = [Phase(Laplace(scale, dimension=9), 10, 0.1) for scale in (2.0, 3.0, 4.0)]
    assert phase_by_phase.parts(of(*laplace)) == []
    parts = phase_by_phase.parts(of(*laplace, Phase(Gaussian(3.0, dimension=9), 5), Phase(Gaussian(2.0), 1, 0.1)))
    assert sorted(len(part.phases) for part in parts) == [2, 3]
    shuffled = phase_by_phase.parts(of(Phase(Gaussian(3.0), 5), Phase(Gaussian(3.0), sampler=Shuffled(5, 2))))
    assert [len(part.phases) for part in shuffled] == [1, 1]


def test_a_part_without_a_bound_leaves_the_history_without_this_one() -> None:
    unknown = Phase(Gaussian(3.0), 5, 0.1, "shuffled")  # a rate alone
    claim = of(Phase(Laplace(9.0, dimension=4)), unknown)
    assert all(curve.theorem != phase_by_phase.THEOREM for curve in upper_curves(claim))
    assert math.isinf(check(claim).epsilon_upper)
