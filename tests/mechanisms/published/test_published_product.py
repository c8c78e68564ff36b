"""product's formulas: against 40 digits, integrals, and every number that the paper prints for them."""

import math

import mpmath
import numpy as np
import product_steps
import pytest
from scipy.integrate import quad
from scipy.stats import norm

from dpaudit.mechanisms import Laplace, Product
from dpaudit.mechanisms.published import gaussian_baselines, product, product_tails


@pytest.mark.parametrize("a", [0.75, 26.0, 2.5e5, 2.5e9 + 0.5])
@pytest.mark.parametrize("b", [0.5, 1.5])
@pytest.mark.parametrize("weight", [1e-9, 0.01, 3.0, 400.0, 1e5])
def test_hypergeometric_to_its_stated_error(a: float, b: float, weight: float) -> None:
    z = weight / a
    value, error = product_tails.log_hyp1f1(a, b, z)
    with mpmath.workdps(40):
        exact = mpmath.log(mpmath.hyp1f1(a, b, mpmath.mpf(z), maxterms=10**6))
        assert abs(mpmath.mpf(value) - exact) <= error
    assert error < 1e-10 * (1 + abs(value)) * (1 + weight)


def test_hypergeometric_at_0() -> None:
    assert product_tails.log_hyp1f1(3.0, 0.5, 0.0) == (0.0, 0.0)


@pytest.mark.parametrize(("dimension", "printed_delta"), [(10**6, 1.144e-6), (10**8, 1.144e-7)])
def test_theorem_8_at_the_printed_settings(dimension: int, printed_delta: float) -> None:
    sigma = product.calibrated_sigma(1.0, epsilon=0.1, dimension=dimension, k=1000.0)
    delta = product.theorem_8_delta(dimension=dimension, shift=1 / sigma, k=1000.0)
    assert delta == pytest.approx(printed_delta, rel=5e-4)
    if dimension == 10**6:
        assert sigma == pytest.approx(4288.994, abs=5e-4)
        assert delta == pytest.approx(1.14412e-6, abs=5e-12)


@pytest.mark.parametrize("dimension", [4, 100, 10**6, 10**10])
@pytest.mark.parametrize("epsilon", [0.1, 2.0, 30.0])
def test_eq_13_in_40_digits(dimension: int, epsilon: float) -> None:
    k = 5000.0
    shift = 1 / product.calibrated_sigma(1.0, epsilon=epsilon, dimension=dimension, k=k)
    with mpmath.workdps(40):
        m, x = mpmath.mpf(dimension), mpmath.mpf(shift)
        both = mpmath.hyp1f1(m / 4 + 0.5, 0.5, x**2 / 2) + mpmath.sqrt(2) * x * mpmath.hyp1f1(m / 4 + 1, 1.5, x**2 / 2)
        roots = mpmath.sqrt(m - 1) / mpmath.sqrt(m / 2 - 1.5) / mpmath.sqrt(m / 2 + 0.75)
        exact = mpmath.exp(-(x**2) / 2) / (k * mpmath.sqrt(mpmath.pi)) * both * roots
    assert product.theorem_8_delta(dimension=dimension, shift=shift, k=k) == pytest.approx(float(exact), rel=1e-11)


@pytest.mark.parametrize(("q", "shift"), [(2.0, 0.3), (5.5, 1.0), (12.0, 0.05)])
def test_moment_of_the_radius_is_its_integral_from_0(q: float, shift: float) -> None:
    exact = quad(lambda w: w**q * math.sqrt(2 / math.pi) * math.exp(-((w - shift) ** 2) / 2), 0, 40, epsabs=1e-12)[0]
    assert math.exp(product_tails.radius_moment(q, shift=shift)) == pytest.approx(exact, rel=1e-9)
    # which bounds the moment itself, from shift on
    assert exact >= quad(lambda w: w**q * math.sqrt(2 / math.pi) * math.exp(-((w - shift) ** 2) / 2), shift, 40)[0]


@pytest.mark.parametrize(("q", "dimension"), [(2.0, 9), (10.0, 30), (1.5, 4)])
def test_moment_of_the_angle_is_that_of_a_uniform_direction(q: float, dimension: int) -> None:
    def by_density(t: float) -> float:  # u = 1 + t^2 takes the pole at u = 1 away
        u = 1 + t * t
        return u**q * float(product_steps.angle_density(np.array(u), dimension=dimension)) * 2 * t

    scale = quad(lambda a: math.sin(a) ** (dimension - 2), 0, math.pi)[0]
    by_angle = quad(lambda a: math.sin(a) ** (dimension - 2 - q), 0, math.pi)[0] / scale
    value = product_tails.angle_moment(q, dimension=dimension)
    assert value == pytest.approx(by_angle, rel=1e-6)
    assert value == pytest.approx(quad(by_density, 0, math.inf, limit=200)[0], rel=1e-6)


def test_eq_12_bounds_the_product_of_the_moments() -> None:
    """Proposition 7: E W^q E U^q t^-q <= delta_1 delta_2 at t of its own q, of which eq. (13) is q = M/2."""
    dimension, shift, k = 40, 0.02, 1000.0
    for q in (3.0, 20.0, 35.0):
        log_t = 0.5 * (math.log(2 * k ** (2 / q)) + (1 + 2 / q) * math.log((q + 3) / 2) - 1 - 1 / q)
        log_moments = product_tails.radius_moment(q, shift=shift) + math.log(
            product_tails.angle_moment(q, dimension=dimension)
        )
        assert math.exp(log_moments - q * log_t) <= product_steps.tail_delta(dimension=dimension, shift=shift, k=k, q=q)
    assert product_steps.tail_delta(dimension=dimension, shift=shift, k=k, q=20.0) == product.theorem_8_delta(
        dimension=dimension, shift=shift, k=k
    )


def test_appendix_a_6_prints_moments_that_minimise_nothing() -> None:
    dimension = 10**6
    shift = 1 / product.calibrated_sigma(1.0, epsilon=0.1, dimension=dimension, k=1000.0)
    settings = {"dimension": dimension, "shift": shift, "k": 1000.0}
    best = product_steps.approximate_best_moment(dimension=dimension, shift=shift)
    assert best == pytest.approx(486_768.2, abs=0.1)  # printed: 499,499
    values = [product_steps.approximate_delta(q=q, **settings) for q in (best - 100, best, best + 100, 499_499)]
    assert min(values) == values[1]
    assert values[1] == pytest.approx(2.3173e-6, rel=1e-4)
    assert values[3] == pytest.approx(2.318e-6, rel=5e-4)  # as printed
    assert product_steps.tail_delta(q=493_267, **settings) < product_steps.tail_delta(q=500_500, **settings)
    near = [product_steps.tail_delta(q=q, **settings) for q in (492_000, 493_267, 494_500)]
    assert min(near) == near[1]
    larger = 1 / product.calibrated_sigma(1.0, epsilon=0.1, dimension=10**8, k=1000.0)
    best = product_steps.approximate_best_moment(dimension=10**8, shift=larger)
    assert best == pytest.approx(48_676_827, abs=1)  # printed: 49,949,950
    value = product_steps.approximate_delta(dimension=10**8, shift=larger, k=1000.0, q=best)
    assert value == pytest.approx(2.3173e-7, rel=1e-4)


def test_eq_19_rests_on_an_inequality_that_fails() -> None:
    assert float(mpmath.hyp1f1(100, 0.5, 0.9)) > 3e5 * (1 + 2 * 0.9 * 100 / 0.5)


@pytest.mark.parametrize(
    ("epsilon", "delta", "p"), [(0.3, 2e-7, 0.004), (1e-6, 0.1, 0.5), (800.0, 0.0, 0.01), (2.0, 1e-3, 1.0)]
)
def test_amplification(epsilon: float, delta: float, p: float) -> None:
    value = product.amplified(epsilon, delta, p)
    with mpmath.workdps(400):
        exact = mpmath.log(1 + mpmath.mpf(p) * (mpmath.exp(mpmath.mpf(epsilon)) - 1))
    assert value == pytest.approx((float(exact), p * delta), rel=1e-13)


@pytest.mark.parametrize(
    ("epsilon", "delta", "steps", "tilde"),
    [(0.0015, 8e-10, 11_700, 1e-8), (0.2, 1e-9, 500, 1e-6), (2.0, 1e-8, 3000, 1e-4)],
)
def test_composition_in_60_digits(epsilon: float, delta: float, steps: int, tilde: float) -> None:
    with mpmath.workdps(60):
        e, d, t = mpmath.mpf(epsilon), mpmath.mpf(delta), mpmath.mpf(steps)
        grown = mpmath.exp(e)
        total = t * (grown - 1) * e / (grown + 1) + mpmath.sqrt(2 * mpmath.log(1 / mpmath.mpf(tilde)) * t * e**2)
        count = mpmath.ceil(total / e)
        rest = (
            mpmath.exp(-(total + t * e) / 2)
            * (1 / (1 + grown) * (2 * t * e / (t * e - total))) ** t
            * ((t * e + total) / (t * e - total)) ** (-(total + t * e) / (2 * e))
        )
        share = d / (1 + grown)
        exact = 2 - (1 - grown * share) ** count * (1 - share) ** (t - count) - (1 - share) ** t + rest
    value = product.composed(epsilon, delta, steps, tilde)
    assert value == pytest.approx((float(total), float(exact)), rel=1e-10)


def test_composition_of_few_steps_is_undefined() -> None:
    assert product.composed(0.1, 1e-9, 10, 1e-8)[1] == math.inf


@pytest.mark.parametrize(
    ("samples", "batch", "epochs", "step_epsilon", "printed"),
    [
        (60_000, 256, 50, 0.3, 0.99), (60_000, 512, 100, 1.8, 38.11), (29_305, 256, 30, 0.8, 3.97),
        (25_000, 512, 60, 1.0, 12.99), (800_167, 10_000, 20, 0.8, 3.88),
    ],
)  # fmt: skip
def test_printed_epsilons_of_the_five_trainings(
    samples: int, batch: int, epochs: int, step_epsilon: float, printed: float
) -> None:
    """Table 12's settings by Theorems 4 and 5: delta~ = 1e-8 and only whole batches in an epoch."""
    step, _ = product.amplified(step_epsilon, 0.0, batch / samples)
    total, _ = product.composed(step, 0.0, epochs * (samples // batch), product.DELTA_TILDE)
    assert total == pytest.approx(printed, abs=0.0051)


def test_mnist_training_from_its_noise_alone() -> None:
    dimension, settings = 26_010, {"sampling_prob": 256 / 60_000, "steps": 11_700}
    sigma = product.calibrated_sigma(2.0, epsilon=0.3, dimension=dimension, k=40_000.0)
    step_delta = product.theorem_8_delta(dimension=dimension, shift=2 / sigma, k=40_000.0)
    assert step_delta == pytest.approx(1.978e-7, rel=5e-4)
    total, delta = product.composed(*product.amplified(0.3, step_delta, 256 / 60_000), 11_700, 1e-8)
    assert (round(total, 2), round(delta * 1e6, 2)) == (0.99, 9.87)  # as printed in Section 6.3
    value = product.theorem_8(Product(sigma=sigma, clip=1.0, dimension=dimension), **settings, delta=delta * (1 + 1e-9))
    assert value.epsilon == pytest.approx(total, rel=1e-6)
    assert value.settings["k"] == pytest.approx(40_000, rel=1e-3)
    assert float(value.settings["delta"]) <= delta * (1 + 1e-9)


@pytest.mark.parametrize(("dimension", "epsilon", "k"), [(100, 0.1, 1e5), (784, 1.0, 1000.0), (10**7, 3.0, 50.0)])
def test_theorem_8_inverts_the_calibration(dimension: int, epsilon: float, k: float) -> None:
    sigma = product.calibrated_sigma(1.0, epsilon=epsilon, dimension=dimension, k=k)
    delta = product.theorem_8_delta(dimension=dimension, shift=1 / sigma, k=k)
    noise = Product(sigma=sigma, clip=0.5, dimension=dimension)
    value = product.theorem_8(noise, sampling_prob=1.0, steps=1, delta=delta)
    assert abs(value.epsilon - epsilon) <= value.error < 1e-9 * epsilon
    sampled = product.theorem_8(noise, sampling_prob=0.02, steps=1, delta=0.02 * delta)
    assert sampled.epsilon == pytest.approx(math.log1p(0.02 * math.expm1(epsilon)), rel=1e-9)
    other = Product(sigma=sigma, clip=9.0, dimension=dimension)
    same = product.theorem_8(other, sampling_prob=1.0, steps=1, delta=delta, sensitivity=1.0)
    assert same.epsilon == value.epsilon


def test_theorem_8_never_goes_below_k_1_and_says_when_it_has_no_value() -> None:
    noise = Product(sigma=50.0, clip=0.5, dimension=400)
    generous = product.theorem_8(noise, sampling_prob=1.0, steps=1, delta=0.9)
    assert generous.settings["k"] == 1.0
    assert generous.epsilon == pytest.approx(product.radius_factor(400, 1.0) / 50)
    few = product.theorem_8(noise, sampling_prob=0.1, steps=5, delta=1e-5)
    assert few.epsilon == math.inf
    assert "undefined" in str(few.settings["reason"])
    assert product.theorem_8(noise, sampling_prob=1.0, steps=1, delta=0.0).epsilon == math.inf


@pytest.mark.parametrize("start", [1.5, 1000.0, 1e6])
def test_algorithm_1_stops_at_the_first_k_that_meets_delta(start: float) -> None:
    settings = {"dimension": 200, "sensitivity": 2.0, "epsilon": 0.5}
    sigma, k = product.algorithm_1(**settings, delta=1e-6, k=start, factor=1.5)
    assert sigma == product.calibrated_sigma(2.0, epsilon=0.5, dimension=200, k=k)
    assert product.theorem_8_delta(dimension=200, shift=2 / sigma, k=k) <= 1e-6
    if k > start:
        before = product.calibrated_sigma(2.0, epsilon=0.5, dimension=200, k=k / 1.5)
        assert product.theorem_8_delta(dimension=200, shift=2 / before, k=k / 1.5) > 1e-6


def test_squared_noise_against_the_classic_gaussian() -> None:
    """Corollaries 9 and 10, by sigma_M^2 / (M sigma^2) itself."""
    for dimension in (14, 1000):
        for epsilon in (0.1, 0.9):
            ours = product.calibrated_sigma(1.0, epsilon=epsilon, dimension=dimension, k=1e5)
            classic = gaussian_baselines.classic_gaussian_sigma(1.0, epsilon=epsilon, delta=1e-5)
            ratio = product.squared_noise_ratio(dimension, k=1e5, delta=1e-5)
            assert ratio == pytest.approx(ours**2 / (dimension * classic**2), rel=1e-12)
    values = [product.squared_noise_ratio(m, k=1e5, delta=1e-5) for m in range(14, 2000)]
    assert max(values) < 1
    assert product.squared_noise_ratio(11, k=1e5, delta=1e-5) > 1
    limit = product.squared_noise_ratio_limit(1e-5)
    assert product.squared_noise_ratio(10**10, k=1e5, delta=1e-5) == pytest.approx(limit, rel=1e-6)
    assert 1 / limit == pytest.approx(127.6, abs=0.05)
    # the constants of the proof of Corollary 9
    assert (1 + 4 / 7) * math.log(7 / 4 + 1.5) - math.log(7) == pytest.approx(-0.09374, abs=5e-6)
    assert 4 * math.log(1e5) / (1 + math.log(math.log(1.25e5))) == pytest.approx(13.2995, abs=5e-5)


@pytest.mark.parametrize(("epsilon", "delta"), [(0.1, 1e-5), (1.0, 1e-10), (5.0, 0.01), (0.0, 0.1)])
def test_analytic_gaussian_is_the_integral_of_its_densities(epsilon: float, delta: float) -> None:
    sigma = gaussian_baselines.analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=delta)
    start = epsilon * sigma**2 + 0.5  # where the density ratio is e^epsilon
    law, moved = norm(0, sigma), norm(1, sigma)
    mass = quad(lambda o: moved.pdf(o) - math.exp(epsilon) * law.pdf(o), start, start + 40 * sigma, epsabs=0, limit=200)
    assert mass[0] == pytest.approx(delta, rel=1e-6)
    if 0 < epsilon < 1:
        assert sigma < gaussian_baselines.classic_gaussian_sigma(1.0, epsilon=epsilon, delta=delta)


def test_what_theorem_8_refuses() -> None:
    release = {"sampling_prob": 1.0, "steps": 1, "delta": 1e-5}
    with pytest.raises(TypeError, match="Expected mechanism='laplace' to be 'product'"):
        product.theorem_8(Laplace(scale=1.0, dimension=5), **release)
    with pytest.raises(ValueError, match=r"Expected dimension=3 in \(3, inf\)"):
        product.theorem_8(Product(sigma=1.0, dimension=3), **release)
    with pytest.raises(ValueError, match=r"Expected clip_norm=4\.0 in"):
        product.theorem_8(Product(sigma=1.0, dimension=5, clip_norm=4.0), **release)
    with pytest.raises(ValueError, match=r"Expected k=0\.5 in \[1, inf\)"):
        product.calibrated_sigma(1.0, epsilon=1.0, dimension=5, k=0.5)
    with pytest.raises(ValueError, match=r"Expected dimension=2 in \(2, inf\)"):
        product.radius_factor(2, 5.0)
