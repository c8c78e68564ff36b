"""Equal shifts of a thousand million coordinates: their sum is nearly normal, with moments known to many digits."""

import math
from dataclasses import replace

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRVIID, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.numerics import gaussian_delta
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.pld.coordinate_cells import shifted_coordinates

COUNT = 10**9


def log_density(mechanism: Mechanism, x: mpmath.mpf) -> mpmath.mpf:
    if isinstance(mechanism, GeneralizedGaussian):
        beta = mpmath.mpf(mechanism.beta)
        return -((abs(x) / mechanism.scale) ** beta) - mpmath.log(2 * mechanism.scale * mpmath.gamma(1 + 1 / beta))
    if isinstance(mechanism, Laplace):
        return -abs(x) / mechanism.scale - mpmath.log(2 * mechanism.scale)
    assert isinstance(mechanism, GammaPLRVIID)
    k, theta = mpmath.mpf(mechanism.k), mpmath.mpf(mechanism.theta)
    return mpmath.log(k * theta / 2) - (k + 1) * mpmath.log(1 + theta * abs(x))


def limit_mu(mechanism: Mechanism, count: int) -> float:
    """Standard deviation of the sum of `count` losses; its mean is half the square, to what n leaves of skewness."""
    v = mpmath.mpf(mechanism.clip) / (1 if math.isinf(mechanism.clip_norm) else mpmath.sqrt(count))
    far = 2 if isinstance(mechanism, GeneralizedGaussian) else 400
    with mpmath.workdps(30):

        def moment(power: int) -> mpmath.mpf:
            def integrand(x: mpmath.mpf) -> mpmath.mpf:
                first = log_density(mechanism, x - v)
                return mpmath.exp(first) * (first - log_density(mechanism, x)) ** power

            ends = [-far, -3, -1.2, -1, -0.8, 0, v, 0.8, 1, 1.2, 3, far]
            return mpmath.quad(integrand, sorted({e for e in ends if abs(e) <= far}))

        mean = moment(1)
        square = count * (moment(2) - mean**2)
        assert abs(count * mean - square / 2) < 2e-3 * square
        return float(mpmath.sqrt(square))


CLIP = 4.9911191e-6
CASES = [
    GeneralizedGaussian(40.0, 1.0, CLIP, math.inf, COUNT),
    GeneralizedGaussian(50.0, 1.0, CLIP, math.inf, COUNT),
    Laplace(1.0, 1.2, 2.0, COUNT),
    GammaPLRVIID(3.0, 0.4, 1.0, 2.0, COUNT),
]


@pytest.mark.parametrize("mechanism", [pytest.param(CASES[1], marks=pytest.mark.slow), *CASES[2:]])
def test_the_certified_delta_is_that_of_the_limit_and_never_above_it(mechanism: Mechanism) -> None:
    """The limit itself is off by the skewness over sqrt(n), about 1e-4 of delta."""
    mu = limit_mu(mechanism, COUNT)
    curve = certified_lower(Claim.single(mechanism, epsilon=3.94, delta=1e-5))
    assert curve.witness is not None
    assert curve.witness.coordinates == COUNT
    for epsilon in (0.0, 1.0, 3.94, 5.5):
        found, exact = float(curve.delta(np.array([epsilon]))[0]), gaussian_delta(mu, epsilon)
        assert 0.96 * exact < found < 1.001 * exact, epsilon


def test_a_tiny_loss_is_not_lost_in_the_rounding_of_all_the_masses() -> None:
    """mu = 1e-4, delta(0) = 3.99e-5: what fewer coordinates prove, where all of them together prove nothing."""
    verdict = check(Claim.single(Laplace(1.0, 1e-4, 2.0, COUNT), epsilon=1e-5, delta=1e-5))
    one = -math.expm1(-(1e-4 - 1e-5) / 2.0)  # of one coordinate, which shows more of so little
    assert 0.97 * gaussian_delta(1e-4, 1e-5) < verdict.delta_lower <= one


@pytest.mark.parametrize("mechanism", CASES[:2])
def test_what_a_fixed_quadrature_once_certified_is_refuted(mechanism: Mechanism) -> None:
    """delta is 5.96e-5 and 3.7e-4 at epsilon 3.94, not 1e-5."""
    verdict = check(Claim.single(mechanism, epsilon=3.94, delta=1e-5))
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower > 0.9 * verdict.epsilon_upper


def test_blocks_agree_with_cells_where_both_are_at_hand(monkeypatch: pytest.MonkeyPatch) -> None:
    """20,000 coordinates by blocks, as if they were too many for single cells: bounds on sums of the same masses."""
    law, groups = Laplace(1.0).structure, [(np.array([0.0, 0.01]), 20_000)]
    plain = shifted_coordinates(law, groups, 1e-12)
    monkeypatch.setattr("dpaudit.verify.pld.coordinate_cells.MANY", 1000)
    monkeypatch.setattr("dpaudit.verify.pld.coordinate_cells.BLOCKS", 100.0)
    blocks = shifted_coordinates(law, groups, 1e-12)
    few = blocks.lower.shape[1]
    assert few <= plain.lower.shape[1] // 4
    # cells end at the mirror image of the first one, blocks at a power of two
    rest = ((0, 0), (0, (1 << plain.lower.shape[1].bit_length()) - plain.lower.shape[1]))
    cells = [np.pad(side, rest) for side in (plain.lower, plain.upper)]
    for low, high in ((cells[0], blocks.upper), (blocks.lower, cells[1])):
        sums = [side.reshape(2, few, -1).sum(axis=2) for side in (low, high)]
        assert np.all(sums[0] <= sums[1] * (1 + 1e-12) + 1e-300)
    assert blocks.lower.sum(axis=1) == pytest.approx(np.ones(2), abs=1e-6)


@pytest.mark.parametrize("noise", [Laplace(1.0), GammaPLRVIID(10.0, 0.0988)])
def test_the_many_of_a_rare_record_show_as_much_as_a_few_thousand(noise: Mechanism) -> None:
    """Rates at which roundings of as many masses as there are coordinates would hide a fifth of epsilon."""
    found = []
    for dimension in (2_000, 125_000_000):
        claim = Claim.single(
            replace(noise, dimension=dimension), epsilon=0.07, delta=1e-6, steps=30_000, sampling_prob=1e-4
        )
        found.append(float(certified_lower(claim).epsilon(np.array([1e-6]))[0]))
    assert found[1] >= 0.998 * found[0] > 0.08


def test_a_few_coordinates_beside_many_add_their_rounding_for_each_of_themselves() -> None:
    """It counted for every draw of the many: 1.2e-3 of the mass was left out of the lower bounds, now .2e-3."""
    groups = [(np.array([0.0, 1e-8]), 10**8), (np.array([0.0, 0.3]), 20)]
    cells = shifted_coordinates(Laplace(1.0).structure, groups, 1e-12)
    assert 1.0 - 4e-4 < cells.lower[1].sum() <= 1.0 <= cells.upper[1].sum() < 1.0 + 4e-4
