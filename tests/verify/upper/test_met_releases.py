"""Samplers from theorems for other histories."""

import numpy as np
import pytest

from dpaudit.mechanisms import GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import upper_curve


@pytest.mark.parametrize(
    "noise",
    [
        GeneralizedGaussian(3.0, 500.0, dimension=50),
        GeneralizedGaussian(1.5, 500.0, clip_norm=1.5, dimension=4),
        Laplace(100.0, dimension=30),
    ],
)
def test_who_is_sampled_under_replace_one_costs_at_most_who_is_always_there(noise: Mechanism) -> None:
    """The coins have one law for both neighbours: revealed, they leave at most as many releases."""
    epsilons = np.array([0.01, 0.1, 0.3])
    always, sampled = (
        upper_curve(Claim(0.3, 1e-3, [Phase(noise, 20, rate)], "replace-one"))(epsilons) for rate in (1.0, 0.3)
    )
    assert (sampled <= always).all()
    assert always[-1] < 1e-3
    fixed = upper_curve(Claim(0.3, 1e-3, [Phase(noise, sampler=WithoutReplacement(0.3, 20))], "replace-one"))
    assert (fixed(epsilons) <= always).all()
