"""Batches that straddle two passes in balls: the law against floats, the curve against the first engine's."""

import math

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, Phase
from dpaudit.verify.rigorous.balls import Unavailable, ball, precision
from dpaudit.verify.rigorous.bracket import UpperProof, upper_proof
from dpaudit.verify.rigorous.seams import straddled_curve, twice_chances
from dpaudit.verify.samplers import Sampler, Shuffled
from dpaudit.verify.upper import met_twice, upper_curves


def straddling(records: int, batch: int, epochs: int) -> Shuffled:
    return Shuffled.of(records, batch, epochs, last_batch="straddling")


@pytest.mark.parametrize(("records", "batch", "epochs"), [(3, 2, 2), (10, 7, 5), (1000, 300, 40), (60_000, 256, 60)])
def test_the_law_is_that_of_floats_from_below(records: int, batch: int, epochs: int) -> None:
    sampler = straddling(records, batch, epochs)
    law, told = sampler.twice_chances, min(9, sampler.most_twice)
    assert law is not None
    with precision():
        found = twice_chances(records, batch, epochs, told)
        assert abs(sum(found) - 1) < 1e-20
    expected = [*law[:told], law[told:].sum()]
    for ball_of, value in zip(found, expected, strict=True):
        assert float(ball_of) == pytest.approx(value, rel=1e-9, abs=1e-11)
        assert float(ball_of) <= value * (1.0 + 1e-14)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(("sampler", "sigma"), [(straddling(1000, 300, 40), 5.0), (straddling(600, 7, 60), 1.1)])
def test_the_curve_is_the_first_engines(sampler: Shuffled, sigma: float, adjacency: str) -> None:
    phases = [Phase(Gaussian(sigma), sampler=sampler), Phase(Gaussian(4.0), 3)]
    claim = Claim(1.0, 1e-6, phases, adjacency).canonical("upper")  # type: ignore[arg-type]
    epsilons = np.array([0.5, 4.0, 20.0])
    parts = [upper_curves(part) for part in met_twice.parts(claim)]
    first = met_twice.bound(claim, parts).delta(epsilons)
    with precision():
        curve = straddled_curve(claim)
        assert not isinstance(curve, Unavailable)
        for epsilon, value in zip(epsilons, first, strict=True):
            exact = float(curve(ball(float(epsilon))))
            assert exact * (1.0 - 1e-9) <= value
            assert value <= exact * 1.01 or exact < 1e-7  # blocks are chosen for the claimed delta


def test_it_proves_what_a_known_order_does_not() -> None:
    claim = Claim(55.0, 1e-5, [Phase(Gaussian(1.1), sampler=straddling(60_000, 256, 60))])
    with precision():
        proof = upper_proof(claim.canonical())
        assert isinstance(proof, UpperProof)
        assert proof.kind == "straddling-mean"
        assert proof.delta(ball(55.0)) <= ball(1e-5)
        assert not proof.delta(ball(54.0)) <= ball(1e-5)
    assert math.isclose(float(proof.delta(ball(54.0458))), 1e-5, rel_tol=1e-2)


@pytest.mark.parametrize(
    ("noise", "sampler"),
    [(Gaussian(2.0), Shuffled(10, 4)), (Laplace(2.0), straddling(10, 7, 5)), (Gaussian(2.0), straddling(10, 7, 5001))],
)
def test_it_is_for_normal_noise_in_such_batches(noise: Gaussian | Laplace, sampler: Sampler) -> None:
    with precision():
        claim = Claim(1.0, 1e-5, [Phase(noise, sampler=sampler)], "zero-out").canonical()
        assert isinstance(straddled_curve(claim), Unavailable)
