"""What the papers print for Gaussian noise beside their own: by an exact composition and by the formulas they cite."""

import math

import mpmath
import numpy as np
import product_steps
import pytest
from dp_accounting.pld import privacy_loss_distribution
from scipy.optimize import brentq
from scipy.stats import chi2, norm

from dpaudit.mechanisms.published import gaussian_baselines, product
from dpaudit.mechanisms.published.moments import epsilon_at_orders, gaussian_log_moments

# samples, batch, epochs, noise multiplier (product, Table 12); printed by PRV and CLT; exact and CLT values
TRAININGS = {
    "Adult": (29_305, 256, 30, 0.55, 15.86, 15.12, 14.95, 14.00),
    "IMDb": (25_000, 512, 60, 0.56, 31.26, 36.27, 31.00, 35.92),
    "MovieLens": (800_167, 10_000, 20, 0.60, 4.53, 10.61, 11.13, 9.64),
    "MNIST": (60_000, 256, 50, 1.30, 1.66, 1.62, 1.65, 1.62),
    "CIFAR-10, 60,000 records": (60_000, 512, 100, 0.50, 43.80, 58.09, 40.00, 50.88),
    "CIFAR-10, 50,000 records": (50_000, 512, 100, 0.50, 43.80, 58.09, 43.71, 57.96),
}


@pytest.mark.parametrize("name", TRAININGS)
def test_gaussian_trainings_beside_product_noise(name: str) -> None:
    samples, batch, epochs, sigma, _, _, exact, limit = TRAININGS[name]
    q, steps = batch / samples, epochs * (samples // batch)
    law = privacy_loss_distribution.from_gaussian_mechanism(
        sigma, sampling_prob=q, value_discretization_interval=3e-4
    ).self_compose(steps)
    assert law.get_epsilon_for_delta(1e-5) == pytest.approx(exact, abs=0.006)
    mu = q * math.sqrt(steps * math.expm1(sigma**-2))  # Bu et al. (2020), Section 3.2

    def excess(epsilon: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - math.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu)) - 1e-5)

    assert brentq(excess, 0.0, 500.0) == pytest.approx(limit, abs=0.006)


def test_which_of_them_the_print_agrees_with() -> None:
    close = {
        name: (abs(exact / prv - 1) < 0.01, abs(limit / clt - 1) < 0.01)
        for name, (*_, prv, clt, exact, limit) in TRAININGS.items()
    }
    assert close == {
        "Adult": (False, False), "IMDb": (True, True), "MovieLens": (False, False), "MNIST": (True, True),
        "CIFAR-10, 60,000 records": (False, False), "CIFAR-10, 50,000 records": (True, True),
    }  # fmt: skip


def test_moments_accountant_of_the_mnist_training() -> None:
    orders = np.arange(1.0, 200.0)
    alpha = 11_700 * gaussian_log_moments(orders, noise_multiplier=1.3, sampling_prob=256 / 60_000)
    assert epsilon_at_orders(alpha, orders, 1e-5).min() == pytest.approx(1.80, abs=0.005)  # as printed


def test_cifar_10_has_50_000_records_to_train_on_and_was_accounted_with_60_000() -> None:
    values = []
    for samples in (60_000, 50_000):
        step, _ = product.amplified(1.8, 0.0, 512 / samples)
        values.append(product.composed(step, 0.0, 100 * (samples // 512), product.DELTA_TILDE)[0])
    assert values == pytest.approx([38.11, 42.46], abs=0.0051)  # 38.11 is printed, beside a text with 50,000


@pytest.mark.parametrize(("sigma", "clip", "printed"), [(0.9456, 5.0, 3.77), (1.8812, 15.0, 22.51)])
def test_distortion_of_the_gaussian_rows_of_plrvos_table_2(sigma: float, clip: float, printed: float) -> None:
    """E|z| = sqrt(2/pi) C sigma."""
    assert math.sqrt(2 / math.pi) * clip * sigma == pytest.approx(printed, abs=0.006)


def test_squared_lengths_in_ten_million_dimensions() -> None:
    """product, 4.5.2: "on the order of 1e9" is exceeded by 2% of its noise vectors; their mean is 1.84e8."""
    target = {"epsilon": 0.1, "delta": 1e-6}
    mean = product.calibrated_sigma(1.0, epsilon=0.1, dimension=10**7, k=1e5) ** 2
    assert mean == pytest.approx(1.84e8, rel=5e-3)
    assert chi2.sf(1e9 / mean, 1) == pytest.approx(0.0197, abs=5e-4)
    assert 1e7 * gaussian_baselines.classic_gaussian_sigma(1.0, **target) ** 2 == pytest.approx(2.81e10, rel=2e-3)
    assert 1e7 * gaussian_baselines.analytic_gaussian_sigma(1.0, **target) ** 2 == pytest.approx(1.32e10, rel=2e-3)


def test_appendix_a_6_at_a_hundred_million_dimensions() -> None:
    """Printed: eq. (13) is least at q = 50,050,050. It is least at 49,326,576, by one part in 10,000."""
    shift = 1 / product.calibrated_sigma(1.0, epsilon=0.1, dimension=10**8, k=1000.0)

    def delta(q: float) -> float:
        return product_steps.tail_delta(dimension=10**8, shift=shift, k=1000.0, q=q)

    best = delta(49_326_576)
    assert best < min(delta(49_326_576 * (1 - 1e-3)), delta(49_326_576 * (1 + 1e-3)))
    assert 1 < delta(50_050_050) / best < 1 + 2e-4
    assert delta(50_050_050) == pytest.approx(1.144e-7, rel=5e-4)
    at_printed = product_steps.approximate_delta(dimension=10**8, shift=shift, k=1000.0, q=49_949_950)
    assert at_printed == pytest.approx(2.318e-7, rel=5e-5)


@pytest.mark.parametrize("epsilon", [0.05, 0.5, 1.0])
def test_k_of_100_000_is_enough_for_delta_of_1e_5_from_14_dimensions_on(epsilon: float) -> None:
    """product, A.7: "conservatively, we set k = 1e5"."""
    for dimension in (14, 50, 1000):
        shift = 1 / product.calibrated_sigma(1.0, epsilon=epsilon, dimension=dimension, k=1e5)
        assert product.theorem_8_delta(dimension=dimension, shift=shift, k=1e5) < 1e-5


def test_classic_gaussian_noise_in_40_digits() -> None:
    with mpmath.workdps(40):
        exact = 3 * mpmath.sqrt(2 * mpmath.log(mpmath.mpf("1.25e7"))) / mpmath.mpf("0.3")
    value = gaussian_baselines.classic_gaussian_sigma(3.0, epsilon=0.3, delta=1e-7)
    assert value == pytest.approx(float(exact), rel=1e-14)
