"""The benchmark's bound on what final weights hold, at the one setting where it has a closed form."""

import math
from importlib import import_module
from pathlib import Path

import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.mark.parametrize("epsilon", [1.0, 4.0])
def test_without_sampling_the_last_model_holds_the_epsilon_of_all_steps(
    epsilon: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    final_weights_epsilon = import_module("fashion_mnist").final_weights_epsilon
    # the sum of n releases with noise sigma sqrt(n) is as private as they are together (Dong, Roth and Su 2022,
    # Corollary 2), and half-lines attain it; the noise's scale is estimated from 2 million numbers, within 0.2%
    sigma = analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=1e-5) * math.sqrt(24)
    mechanism = Gaussian(sigma, clip=2.0, dimension=500)
    assert final_weights_epsilon(mechanism, 24, 1.0, 1e-5, seed=1) == pytest.approx(epsilon, rel=0.01)
