"""The probability that a record is ever sampled bounds what it costs, whatever the noise."""

import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, Gaussian, Laplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.upper import never_sampled


def test_next_to_no_noise_costs_all_of_it() -> None:
    """Without noise a record is seen as soon as it is in a batch: the bound is attained, in both directions."""
    claim = Claim.single(Gaussian(1e-3, dimension=1), epsilon=1.0, delta=1e-5, steps=7, sampling_prob=0.03)
    most = 1.0 - 0.97**7
    bound = never_sampled.bound(claim)
    np.testing.assert_allclose(bound.delta(np.array([0.0, 1.0, 9.0])), most, rtol=1e-11)
    assert bound.epsilon(np.array([0.1, 0.2])).tolist() == [np.inf, 0.0]
    attained = float(certified_lower(claim).delta(np.array([1.0]))[0])
    assert attained == pytest.approx(most, rel=1e-4)
    assert attained <= most


@pytest.mark.parametrize("rate", [0.01, 0.03, 0.3])
def test_one_release_costs_the_rate_itself_to_the_bit(rate: float) -> None:
    claim = Claim.single(Gaussian(1e-3, dimension=1), epsilon=1.0, delta=rate, sampling_prob=rate)
    assert check(claim).verdict == "certified"


def test_phases_multiply_and_any_unsampled_one_shows_the_record() -> None:
    phases = Phase(Laplace(0.1), 3, 0.01), Phase(Laplace(0.2), 2, 0.1)
    assert never_sampled.ever_sampled(Claim(1.0, 1e-5, phases)) == pytest.approx(1 - 0.99**3 * 0.9**2, rel=1e-11)
    assert not never_sampled.applies(Claim(1.0, 1e-5, (*phases, Phase(Laplace(0.1), 1, 1.0))))
    with pytest.raises(ValueError, match="rates below 1"):
        never_sampled.bound(Claim.single(Laplace(1.0), epsilon=1.0, delta=0.0))


@pytest.mark.parametrize(
    "mechanism",
    [
        GammaPLRV(k=0.173, theta=0.3637, clip=43.16, clip_norm=1.0, dimension=208),  # a heavy tail, and no moments
        Gaussian(1e-300),  # out of the reach of floats
    ],
)
def test_noise_without_another_theorem_is_certified_by_it(mechanism: GammaPLRV | Gaussian) -> None:
    found = check(Claim.single(mechanism, epsilon=9.0, delta=0.00129114, sampling_prob=0.00129113))
    assert (found.verdict, found.methods[0]) == ("certified", never_sampled.METHOD)
    assert found.delta_upper <= 0.00129114
