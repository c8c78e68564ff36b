"""What a claim may say: mistakes are named, not guessed at."""

from typing import Any

import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claims import Phase


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
