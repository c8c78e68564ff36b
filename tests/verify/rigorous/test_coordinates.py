"""One coordinate's tails and moments in balls against mpmath."""

import math

import mpmath as mp
import pytest

pytest.importorskip("flint")

import numpy as np
from ball_moments import coordinate_moment, lomax_density, power_density
from flint import arb

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates, Mechanism
from dpaudit.mechanisms.gamma_plrv_iid import GammaPLRVIID
from dpaudit.mechanisms.gamma_scale_laplace import GammaScaleLaplace
from dpaudit.verify.pld.coordinate_moments import LARGEST_GAP, coordinate, log_moment
from dpaudit.verify.rigorous.balls import ball, total
from dpaudit.verify.rigorous.coordinates import CoordinateLaw, cell_masses, coordinate_law

LAWS: list[Mechanism] = [
    Gaussian(1.3),
    Laplace(2.0),
    GeneralizedGaussian(beta=1.5, scale=2.0),
    GeneralizedGaussian(beta=40.0, scale=1.0),
    GammaPLRVIID(k=0.05, theta=1.0),
    GammaPLRVIID(k=40_000.0, theta=6e-5),
    GammaScaleLaplace(k=30.0, theta=0.1),
]


def law_of(mechanism: Mechanism) -> CoordinateLaw:
    law = coordinate_law(mechanism)
    assert isinstance(law, CoordinateLaw)
    return law


@pytest.mark.parametrize("mechanism", LAWS, ids=repr)
def test_tails_are_those_of_the_mechanism(mechanism: Mechanism) -> None:
    structure = mechanism.structure
    assert isinstance(structure, IIDCoordinates)
    for x in (0.0, 0.01, 0.5, 1.0, 3.0):
        expected = float(structure.cdf(np.array(-x)))
        assert float(law_of(mechanism).tail(ball(x))) == pytest.approx(expected, rel=1e-11, abs=1e-300)


@pytest.mark.parametrize("mechanism", LAWS, ids=repr)
def test_cells_add_up_to_one(mechanism: Mechanism) -> None:
    edges = [ball(x) for x in ("-2", "-0.1", "0", "0.25", "0.5", "7")]
    masses = cell_masses(law_of(mechanism), edges, ball("0.25"))
    assert total(masses).overlaps(arb(1))
    assert all(mass > -1e-30 for mass in masses)


def power_moment(beta: float, scale: float, shift: float, eta: float) -> mp.mpf:
    with mp.workdps(25):
        b, a, s = mp.mpf(str(beta)), mp.mpf(str(scale)), mp.mpf(str(shift))
        ends = sorted(
            {x * a for x in (-300, -30, -6, -2, -1.1, -1, -0.9, -0.5)}
            | {x * a + s for x in (0.5, 0.9, 1, 1.1, 2, 6, 20, 60, 300)}
        )
        ends = sorted({*ends, mp.mpf(0), s})
        value = mp.quad(lambda x: mp.exp(-eta * (abs(x - s) / a) ** b + (eta - 1) * (abs(x) / a) ** b), ends)
        return value / (2 * a * mp.gamma(1 + 1 / b))


@pytest.mark.parametrize(
    ("beta", "scale", "shift", "eta"),
    [
        (1.0, 1.0, 0.5, 3.0),
        (1.5, 2.0, 1.0, 2.0),
        (2.0, 1.0, 0.3, 4.5),
        (3.0, 5.0, 1.0, 6.0),
        (16.0, 1.0, 0.01, 3.0),
        (40.0, 1.0, 4.99e-6, 2.0),
        (40.0, 1.0, 0.01, 2.0),
        (100.0, 1.0, 1e-3, 3.0),
    ],
)
def test_moments_of_power_laws(beta: float, scale: float, shift: float, eta: float) -> None:
    found = coordinate_moment(power_density(ball(beta), ball(scale)), ball(shift), ball(eta))
    assert float(found) == pytest.approx(float(power_moment(beta, scale, shift, eta)), rel=1e-9)


@pytest.mark.parametrize("eta", [2.0, 5.0])
def test_moments_of_laplace_noise_are_the_closed_form(eta: float) -> None:
    s, h = ball("0.7"), ball(eta)
    closed = (h * ((h - 1) * s).exp() + (h - 1) * (-h * s).exp()) / (2 * h - 1)
    found = coordinate_moment(power_density(arb(1), arb(1)), s, h)
    assert abs(found - closed) < 1e-10


@pytest.mark.parametrize(("k", "shift", "eta"), [(0.03, 0.5, 3.0), (0.01, 1.0, 2.0), (5.0, 0.1, 10.0)])
def test_moments_of_heavy_tails(k: float, shift: float, eta: float) -> None:
    with mp.workdps(30):
        ends = {j / mp.mpf(8) * shift for j in range(9)}

        # in log(1 + |x|) the tails are plain exponentials
        def part(x: mp.mpf) -> mp.mpf:
            return k / mp.mpf(2) * mp.exp((k + 1) * (-eta * mp.log1p(abs(x - shift)) + (eta - 1) * mp.log1p(abs(x))))

        far = (
            [mp.mpf(j) / 2 for j in range(9)]
            + [mp.mpf(j) for j in range(6, 60, 6)]
            + [60 + j / k for j in range(1, 80, 4)]
        )
        outside = mp.quad(lambda y: part(1 - mp.exp(y)) * mp.exp(y), far)
        outside += mp.quad(lambda y: part(shift + mp.exp(y) - 1) * mp.exp(y), far)
        expected = outside + mp.quad(part, sorted(ends))
    found = coordinate_moment(lomax_density(ball(k), arb(1)), ball(shift), ball(eta))
    assert float(found) == pytest.approx(float(expected), rel=1e-7)


@pytest.mark.slow
def test_moments_in_floats_are_those_in_balls_at_random_points() -> None:
    """Never below, and above by what they may be: shifts from 1e-6, beta to 100, k from .01, orders to 56."""
    rng, compared = np.random.default_rng(3), 0
    while compared < 100:
        eta, size = (float(f"{math.exp(rng.uniform(*ends)):.4g}") for ends in ((-3, 4), (-12, 1)))
        if rng.random() < 0.75:
            beta = float(f"{1 + math.exp(rng.uniform(-4, 4.6)):.4g}")
            noise: Mechanism = GeneralizedGaussian(beta, 1.0)
            density, shift = power_density(ball(beta), arb(1)), float(f"{size / beta:.4g}")
        else:
            k = float(f"{math.exp(rng.uniform(-4.6, 8)):.4g}")
            noise, density, shift = GammaPLRVIID(k, 1.0), lomax_density(ball(k), arb(1)), size
        assert isinstance(noise.structure, IIDCoordinates)
        one = coordinate(noise.structure)
        assert one is not None
        value = float(log_moment(one, np.array([shift]), 1 + eta)[0])
        if value > 600.0:
            continue
        found = coordinate_moment(density, ball(shift), 1 + ball(eta), digits=25)
        if not found.rad() < 1e-5 * (found - 1).mid():  # of the smallest the balls know less
            continue
        exact, compared = found.log(), compared + 1
        assert ball(value) >= exact.lower()
        assert value <= float(exact) * (1.0 + 1.2 * LARGEST_GAP)
