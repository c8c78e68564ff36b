"""What a claim may say, and how it is read: mistakes are named, not guessed at."""

from dataclasses import replace
from typing import Any

import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ((3, 0.1, "none"), "Expected sampling_prob=0.1 to be 1 with sampling_kind='none'"),
        ((3, 0.1, "poison"), "Expected sampling_kind='poison' among 'poisson', 'none'"),
        ((0, 0.1, "poisson"), "steps=0"),
    ],
)
def test_a_phase_that_contradicts_itself_is_refused(settings: tuple[Any, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        Phase(Gaussian(1.0), *settings)
    assert "\n" not in str(caught.value)


def test_no_sampling_is_a_rate_of_one() -> None:
    assert Phase(Gaussian(1.0), 3, sampling_kind="none").sampling_prob == 1.0


@pytest.mark.parametrize(("k", "theta", "epsilon"), [(0.05, 1.0, 0.4), (0.3, 100.0, 3.0)])
def test_the_scale_of_one_coordinate_is_its_own(k: float, theta: float, epsilon: float) -> None:
    """The densities are the same, so the claim is decided as that of independent scales; two coordinates are not."""
    shared = Claim.single(GammaPLRV(k, theta, dimension=1), epsilon=epsilon, delta=1e-3)
    alone = Claim.single(GammaPLRVIID(k, theta, dimension=1), epsilon=epsilon, delta=1e-3)
    assert shared.canonical() == alone
    found, known = check(shared), check(alone)
    assert (found.delta_lower, found.delta_upper) == (known.delta_lower, known.delta_upper)
    two = replace(shared, phases=[Phase(GammaPLRV(k, theta, dimension=2))])
    assert two.canonical() == two
