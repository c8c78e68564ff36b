"""Every privacy loss against a slow oracle: the printed log-densities in 60 digits, subtracted."""

import math
from typing import Any

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from dpaudit.mechanisms import (
    GammaPLRV,
    GammaPLRVIID,
    GammaScaleLaplace,
    Gaussian,
    GeneralizedGaussian,
    Laplace,
    Product,
)

MECHANISMS: list[Any] = [
    Gaussian(noise_multiplier=0.7, clip=1.3),
    Laplace(scale=2.1),
    GammaPLRV(k=3.3, theta=0.1),
    GammaPLRV(k=40_000.0, theta=6e-5),
    GammaPLRVIID(k=2.5, theta=0.4),
    GammaPLRVIID(k=40_000.0, theta=6e-5),
    Product(sigma=0.8),
    Product(sigma=4288.994),
    GeneralizedGaussian(beta=1.0, scale=1.7),
    GeneralizedGaussian(beta=1.5, scale=2.88777),
    GeneralizedGaussian(beta=2.0, scale=1.1),
    GeneralizedGaussian(beta=4.0, scale=15.892),
    GammaScaleLaplace(k=5.5, theta=0.3),
]


def log_density(mechanism: Any, z: list[Any]) -> Any:
    """Up to its constant, as the table of laws prints it."""
    n, absolute = len(z), [abs(x) for x in z]
    if mechanism.name == "gaussian":
        return -sum(x * x for x in z) / (2 * (mpf(mechanism.noise_multiplier) * mpf(mechanism.clip)) ** 2)
    if mechanism.name == "laplace":
        return -sum(absolute) / mpf(mechanism.scale)
    if mechanism.name == "gamma-plrv":
        return -(n + mpf(mechanism.k)) * mpmath.log(1 + mpf(mechanism.theta) * sum(absolute))
    if mechanism.name == "gamma-plrv-iid":
        return -(mpf(mechanism.k) + 1) * sum(mpmath.log(1 + mpf(mechanism.theta) * x) for x in absolute)
    if mechanism.name == "product":
        square = sum(x * x for x in z)
        return -(n - 1) * mpmath.log(square) / 2 - square / (2 * mpf(mechanism.sigma) ** 2)
    if mechanism.name == "gamma-scale-laplace":
        order, y = mpf(mechanism.k) - 1, [x / mpf(mechanism.theta) or mpf("1e-400") for x in absolute]
        return sum(order / 2 * mpmath.log(x) + mpmath.log(mpmath.besselk(order, 2 * mpmath.sqrt(x))) for x in y)
    assert mechanism.name == "generalized-gaussian"
    return -sum((x / mpf(mechanism.scale)) ** mpf(mechanism.beta) for x in absolute)


def oracle(mechanism: Any, output: np.ndarray, shift: np.ndarray) -> tuple[float, float]:
    """(the loss, the sum of the sizes of its coordinates' contributions): rounding may cost a share of the latter."""
    with mpmath.workdps(60):
        o, v = [mpf(float(x)) for x in output], [mpf(float(x)) for x in shift]
        away = [a - b for a, b in zip(o, v, strict=True)]
        if mechanism.name == "product":
            q2, p2 = sum(x * x for x in o), sum(x * x for x in away)
            moves = sum(abs(b * (a + c)) for a, b, c in zip(o, v, away, strict=True))
            size = moves * (1 / mpf(mechanism.sigma) ** 2 + (len(o) - 1) / min(q2, p2))
        elif mechanism.name == "gamma-plrv":
            farthest = 1 / mpf(mechanism.theta) + min(sum(map(abs, o)), sum(map(abs, away)))
            size = (len(o) + mpf(mechanism.k)) * sum(map(abs, v)) / farthest
        else:
            size = sum(
                abs(log_density(mechanism, [b]) - log_density(mechanism, [a])) for a, b in zip(o, away, strict=True)
            )
        return float(log_density(mechanism, away) - log_density(mechanism, o)), float(size)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
@pytest.mark.parametrize("n", [2, 40])
@pytest.mark.parametrize(
    ("shift_size", "output_size"), [(1.0, 1.0), (1e-12, 1.0), (1.0, 1e8), (1e-9, 1e6), (3.0, 1e-9)], ids=str
)
def test_loss_is_the_difference_of_log_densities(mechanism: Any, n: int, shift_size: float, output_size: float) -> None:
    rng = np.random.default_rng(n)
    shift = shift_size * rng.standard_normal(n)
    outputs = output_size * rng.standard_normal((6, n))
    for output, loss in zip(outputs, mechanism.privacy_loss(outputs, shift), strict=True):
        expected, size = oracle(mechanism, output, shift)
        assert abs(loss - expected) <= 1e-13 * size, (output, loss, expected)


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_loss_is_exact_next_to_both_centres(mechanism: Any) -> None:
    shift = np.array([1.0, -0.5, 0.25])
    for output in (shift + 1e-9, shift * (1 + 1e-15), shift / 2 + 1e-9, np.full(3, 1e-9), np.array([1e-300, 0.0, 0.0])):
        expected, size = oracle(mechanism, output, shift)
        assert abs(float(mechanism.privacy_loss(output, shift)) - expected) <= 1e-13 * size


LARGE: list[Any] = [
    pytest.param(m, marks=pytest.mark.slow) if isinstance(m, GammaScaleLaplace) else m for m in MECHANISMS
]


@pytest.mark.parametrize("mechanism", LARGE, ids=repr)
def test_loss_of_a_spread_shift_in_a_large_model(mechanism: Any) -> None:
    n = 1_000
    rng = np.random.default_rng(5)
    shift = np.full(n, 0.5 / math.sqrt(n))
    output = rng.laplace(0.0, 0.4, n)
    expected, size = oracle(mechanism, output, shift)
    assert abs(float(mechanism.privacy_loss(output, shift)) - expected) <= 1e-13 * size


def test_product_loss_is_infinite_at_the_poles_and_zero_without_a_shift() -> None:
    mechanism, shift = Product(sigma=1.0), np.array([1.0, 0.0])
    assert mechanism.privacy_loss(np.array([shift, np.zeros(2)]), shift).tolist() == [math.inf, -math.inf]
    assert mechanism.privacy_loss(np.array([[0.0, 0.0], [1.0, 2.0]]), np.zeros(2)).tolist() == [0.0, 0.0]


def test_losses_never_turn_into_nan_when_powers_overflow() -> None:
    mechanism = GeneralizedGaussian(beta=900.0, scale=1.0)
    loss = mechanism.privacy_loss(np.array([[5.0], [5.5], [-5.0], [0.3]]), np.array([10.0]))
    assert loss.tolist() == [0.0, math.inf, -math.inf, -math.inf]


@pytest.mark.parametrize(
    "mechanism", [GammaPLRV(k=3.0, theta=0.1, dimension=4), Product(sigma=1.0, dimension=4)], ids=repr
)
def test_a_law_of_dependent_coordinates_refuses_a_part_of_its_output(mechanism: Any) -> None:
    with pytest.raises(ValueError, match=r"shift\.shape=\(3,\) to be \(4,\)"):
        mechanism.privacy_loss(np.ones((2, 3)), np.ones(3))


@pytest.mark.parametrize("mechanism", MECHANISMS, ids=repr)
def test_shapes_that_do_not_fit_are_refused(mechanism: Any) -> None:
    for output, shift in ((np.ones((2, 3)), np.ones(4)), (np.ones(3), np.ones((1, 3))), (np.float64(1.0), np.ones(1))):
        with pytest.raises(ValueError, match="shape"):
            mechanism.privacy_loss(output, shift)


def test_product_noise_in_one_dimension_is_refused() -> None:
    with pytest.raises(ValueError, match=r"\[2, inf\)"):
        Product(sigma=1.0).privacy_loss(np.ones(1), np.ones(1))
