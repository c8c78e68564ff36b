"""lap2's formulas: against integrals of the densities, printed values, and the brute force of their definitions."""

import math

import numpy as np
import pytest
from scipy.integrate import quad

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.published import lap2
from dpaudit.mechanisms.published.majorization import InverseScale, majorization_log_moments
from dpaudit.mechanisms.published.moments import gaussian_log_moments

TRAINING = {"sampling_prob": 0.0043, "steps": 5860, "delta": 1e-5}  # CNN on MNIST


@pytest.mark.parametrize(
    ("scale", "printed", "order"),
    [(16.462, 0.13, 99), (2.771, 0.88, 19), (1.521, 1.68, 11), (1.0477, 2.53, 8), (0.7993, 3.42, 6)],
)
def test_the_scale_that_the_printed_epsilons_need(scale: float, printed: float, order: int) -> None:
    value = lap2.theorem_iii_7(Laplace(scale=scale, dimension=26_000), **TRAINING)
    # the scales have four digits; epsilon falls about as fast as they rise
    assert value.epsilon == pytest.approx(printed, rel=3e-4)
    assert value.settings["order"] == order
    assert value.error < 1e-8


@pytest.mark.parametrize(("q", "scale", "order"), [(0.02, 0.8, 3), (0.3, 2.0, 8), (1.0, 1.0, 2)])
def test_the_univariate_theorem_is_the_moment_of_the_mixture(q: float, scale: float, order: int) -> None:
    """alpha = log E_Q (1 - q + q dP/dQ)^(lam+1), by quadrature over the density: Theorem III.2 is exact."""

    def integrand(o: float) -> float:
        ratio = math.exp((abs(o) - abs(o - 1)) / scale)
        return (1 - q + q * ratio) ** (order + 1) * math.exp(-abs(o) / scale) / (2 * scale)

    exact = math.log(sum(quad(integrand, *ends, epsabs=1e-13)[0] for ends in ((-60, 0), (0, 1), (1, 60))))
    value, _ = majorization_log_moments(
        InverseScale(1 / scale), np.array([float(order)]), clip=1.0, dimension=1, sampling_prob=q
    )
    assert value[0] == pytest.approx(exact, rel=1e-9)


def test_both_theorems_agree_on_one_coordinate_and_split_on_many() -> None:
    release = {"sampling_prob": 0.05, "steps": 50, "delta": 1e-5}
    one = lap2.theorem_iii_2(Laplace(scale=2.0, clip=1.5), **release).epsilon
    assert lap2.theorem_iii_7(Laplace(scale=2.0, clip=1.5, dimension=1), **release).epsilon == one
    assert lap2.theorem_iii_7(Laplace(scale=2.0, clip=1.5, dimension=9), **release).epsilon > 1.1 * one
    assert lap2.theorem_iii_2(Laplace(scale=2.0, clip=1.5, dimension=9), **release).epsilon == one


def test_only_the_ratio_of_clip_and_scale_matters() -> None:
    release = {"sampling_prob": 0.05, "steps": 50, "delta": 1e-5}
    values = [lap2.theorem_iii_7(Laplace(scale=2.0 * c, clip=c, dimension=77), **release).epsilon for c in (1.0, 3.0)]
    assert values[0] == pytest.approx(values[1], rel=1e-12)


def test_the_start_of_the_search_is_the_ratio_printed_beside_it() -> None:
    start = lap2.initial_scale(1.7, sampling_prob=0.0043, steps=5860, epsilon=0.88, delta=1e-5)
    ratio = 0.88 / (2 * 0.0043) * math.sqrt(1 / (5860 * math.log(1e5)))
    assert 1.7 / start == pytest.approx(ratio, rel=1e-12)


@pytest.mark.parametrize("order", [1, 4, 16])
def test_the_approximate_moment_is_too_small_by_2_lam_plus_1(order: int) -> None:
    """As printed: for small zeta and rho the univariate moment is T zeta^2 rho^2 lam (lam+1)/2, not divided further."""
    value, _ = majorization_log_moments(
        InverseScale(1e-3), np.array([float(order)]), clip=1.0, dimension=1, sampling_prob=1e-4
    )
    printed = 1e-4**2 * (order * (order + 1) / (2 * (2 * order + 1))) * 1e-3**2  # T zeta^2 kappa rho^2, Section IV-B
    assert value[0] / printed == pytest.approx(2 * order + 1, rel=2e-3)


def test_right_wall_slope_of_a_power_law_is_its_power() -> None:
    noise = np.geomspace(0.5, 8, 9)
    np.testing.assert_allclose(lap2.right_wall_slope(noise, noise**-2.0), 0.5, rtol=1e-9)


def test_right_wall_slope_is_the_derivative_of_the_accountant() -> None:
    release = {"sampling_prob": 0.01, "steps": 500, "delta": 1e-5}

    def epsilon(scale: float) -> float:
        return lap2.theorem_iii_7(Laplace(scale=scale, dimension=2000), **release).epsilon

    scales = np.geomspace(0.4, 16, 24)
    slope = lap2.right_wall_slope(scales, np.array([epsilon(scale) for scale in scales]))
    for index in (6, 16):
        near = scales[index] * np.array([0.97, 1.03])
        two_points = math.log(near[1] / near[0]) / math.log(epsilon(near[0]) / epsilon(near[1]))
        assert slope[index] == pytest.approx(two_points, rel=0.02)
    assert slope[0] < 0.8 < 0.9 < slope[-2]  # from saturated to 1/epsilon


def test_left_wall_ratio_is_two_tail_bounds_divided() -> None:
    q, steps, orders = 0.02, 40, np.arange(1.0, 65.0)
    epsilons = np.array([0.2, 1.0, 3.0])
    ratio = lap2.left_wall_ratio(
        epsilons, Laplace(scale=1.5, dimension=30), Gaussian(noise_multiplier=1.2), sampling_prob=q, steps=steps,
        max_order=64,
    )  # fmt: skip
    laplace, _ = majorization_log_moments(InverseScale(1 / 1.5), orders, clip=1.0, dimension=30, sampling_prob=q)
    for epsilon, value in zip(epsilons, ratio, strict=True):
        ours = min(1.0, min(math.exp(steps * a - lam * epsilon) for a, lam in zip(laplace, orders, strict=True)))
        theirs = 1.0
        for lam in range(1, 65):
            moment = sum(
                math.comb(lam + 1, eta) * (1 - q) ** (lam + 1 - eta) * q**eta * math.exp(eta * (eta - 1) / (2 * 1.2**2))
                for eta in range(lam + 2)
                if eta * (eta - 1) / (2 * 1.2**2) < 700
            )
            if lam < 40:  # beyond it the moments of this Gaussian are astronomical
                theirs = min(theirs, math.exp(min(steps * math.log(moment) - lam * epsilon, 0.0)))
        assert value == pytest.approx(theirs / ours, rel=1e-9)


def test_gaussian_moment_is_that_of_the_mixture() -> None:
    q, sigma, order = 0.2, 1.1, 4

    def integrand(o: float) -> float:
        density = math.exp(-o * o / (2 * sigma**2)) / (sigma * math.sqrt(2 * math.pi))
        return density * (1 - q + q * math.exp((2 * o - 1) / (2 * sigma**2))) ** (order + 1)

    exact = math.log(quad(integrand, -20, 40, limit=200, epsabs=1e-13)[0])
    value = gaussian_log_moments(np.array([float(order)]), noise_multiplier=sigma, sampling_prob=q)[0]
    assert value == pytest.approx(exact, rel=1e-9)


def test_eq_ii_10_as_printed_would_sum_to_less_than_1() -> None:
    """lap2 has binom(lam, eta) where lam + 1 stands in the exponents: a moment below 1, a Renyi divergence below 0."""
    lam, q, sigma = 5, 0.01, 10.0
    weights = [math.comb(lam, eta) * (1 - q) ** (lam + 1 - eta) * q**eta for eta in range(lam + 1)]
    printed = sum(w * math.exp(eta * (eta - 1) / (2 * sigma**2)) for eta, w in enumerate(weights))
    assert printed < 1 - 0.9 * q
    assert gaussian_log_moments(np.array([float(lam)]), noise_multiplier=sigma, sampling_prob=q)[0] > 0


@pytest.mark.parametrize(
    ("mechanism", "error", "words"),
    [
        (Gaussian(noise_multiplier=1.0, dimension=3), TypeError, "Expected mechanism='gaussian' to be 'laplace'."),
        (Laplace(scale=1.0), ValueError, "laplace.dimension to be set"),
        (Laplace(scale=1.0, clip_norm=math.inf, dimension=3), ValueError, "Expected clip_norm=inf in"),
    ],
)
def test_theorem_iii_7_refuses_what_it_does_not_speak_about(
    mechanism: Laplace | Gaussian, error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        lap2.theorem_iii_7(mechanism, **TRAINING)
