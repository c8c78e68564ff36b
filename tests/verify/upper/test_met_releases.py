"""Samplers from theorems for other histories: batches that are cut."""

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import TruncatedPoisson


@pytest.mark.parametrize("noise", [Gaussian(300.0), Laplace(300.0, dimension=1)])
def test_the_bound_of_batches_that_are_cut_falls(noise: Mechanism) -> None:
    """Between any two epsilons: e^epsilon times the chance of a cut is no part of it."""
    sampler = TruncatedPoisson(0.05, 10, 100, 20)
    claim = Claim(0.01, 1e-3, [Phase(noise, sampler=sampler)], "zero-out")
    epsilons = np.linspace(0.0, 1.0, 1001)
    upper = np.asarray(check(claim).delta(epsilons)[1])
    assert (np.diff(upper) <= 0).all()
    assert upper[-1] >= sampler.overflow
