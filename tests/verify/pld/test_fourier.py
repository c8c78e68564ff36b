"""Convolution powers against exact binomials in 60 digits."""

import math

import mpmath
import numpy as np
import pytest
from numpy.typing import NDArray

from dpaudit.verify.pld.fourier import (
    LOG_WRAP,
    LONG,
    Lattice,
    Tilted,
    _frequencies,
    _Product,
    chernoff_window,
    decayed_sums,
    log_mgf,
    mixed_power,
    tilted_power,
)


def binomial_pmf(count: int, p: float, k: int) -> mpmath.mpf:
    with mpmath.workdps(60):
        q = mpmath.mpf(p)
        return mpmath.binomial(count, k) * q**k * (1 - q) ** (count - k)


@pytest.mark.parametrize(
    ("count", "p", "target"), [(500, 0.3, 150), (20_000, 0.01, 900), (20_000, 0.01, 200), (7, 0.5, 7)]
)
def test_a_tilted_power_is_within_its_stated_error_of_the_exact_binomial(count: int, p: float, target: int) -> None:
    share = min(target / count, 1.0 - 1e-3)
    theta = math.log(share * (1 - p) / ((1 - share) * p))  # the tilt whose mean is the target
    lattice = Lattice(np.array([1.0 - p, p]), 0)
    start, size = max(0, target - 512), 1024
    power = tilted_power([(lattice, count)], theta, start, size)
    for k in range(max(start, target - 20), min(count, target + 20) + 1):
        scale = mpmath.exp(mpmath.mpf(power.log_scale) - mpmath.mpf(theta) * k)
        exact = binomial_pmf(count, p, k) / scale
        gap = abs(float(mpmath.mpf(float(power.values[k - start])) - exact))
        # windows narrower than the support wrap: at most 2 e^LOG_WRAP where the window holds, which it does here
        assert gap <= power.error_sup + 2.0 * math.exp(LOG_WRAP) + power.relative * float(exact)
    assert power.error_sup + power.relative < 1e-7 * power.values[target - start]


def test_a_mixture_of_sums_is_the_sum_of_its_parts_within_its_stated_error() -> None:
    """Against integer convolutions, exact: masses in thirds and in fifths of one, weights in quarters."""
    size = 64
    one, other, third = ([1, 2, 0], 3), ([2, 0, 3], 5), ([0, 1], 1)
    lattices = [Lattice(np.array(masses) / whole, 0) for masses, whole in (one, other, third)]
    ones = [(tilted := Tilted.of(lattice, 0.0), tilted.transform(size)) for lattice in lattices]
    parts = [(0.25, (3, 1, 0)), (0.5, (0, 20, 7)), (0.25, (0, 0, 0))]
    exact = np.zeros(size)
    for weight, counts in parts:
        sums, whole = np.ones(1, dtype=object), 1
        for (masses, unit), n in zip((one, other, third), counts, strict=True):
            for _ in range(n):
                sums, whole = np.convolve(sums, np.array(masses, dtype=object)), whole * unit
        exact[: len(sums)] += [weight * int(mass) / whole for mass in sums]
    found = mixed_power(ones, parts, size)
    off = np.abs(found.values * math.exp(found.log_scale) - exact)
    assert off.max() <= found.error_sup + found.relative * exact.max()
    assert np.linalg.norm(off) <= found.error_l2 + found.relative * np.linalg.norm(exact)
    assert found.error_sup + found.relative < 1e-11
    # nothing is known of an empty mixture but that it has no mass
    assert not mixed_power(ones, [], size).values.any()


@pytest.mark.parametrize("target", [0.0, 5.0])
def test_blocks_of_a_binomial_of_a_thousand_million_draws(target: float) -> None:
    """Sums of 256 exact probabilities, in the bulk and five deviations out."""
    count, p, block, size = 10**9, 0.3, 256, 2**20
    deviation = math.sqrt(count * p * (1 - p))
    middle = round(count * p + target * deviation)
    share = middle / count
    theta = math.log(share * (1 - p) / ((1 - share) * p))
    start = middle - size // 2
    power = tilted_power([(Lattice(np.array([1.0 - p, p]), 0), count)], theta, start, size, block)
    assert len(power.values) == size // block
    for j in (size // block // 2, size // block // 2 + 150, size // block // 2 - 150):
        k = start + j * block
        with mpmath.workdps(40):
            scale = mpmath.exp(mpmath.mpf(power.log_scale) - mpmath.mpf(theta) * k)
            first = mpmath.exp(
                mpmath.loggamma(count + 1) - mpmath.loggamma(k + 1) - mpmath.loggamma(count - k + 1)
                + k * mpmath.log(mpmath.mpf(p)) + (count - k) * mpmath.log(1 - mpmath.mpf(p))
            )  # fmt: skip
            odds, total = mpmath.mpf(p) / (1 - mpmath.mpf(p)), mpmath.mpf(0)
            for i in range(k, k + block):
                total += first
                first *= odds * (count - i) / (i + 1)
            exact = float(total / scale)
        # 1 - p in floats is not the exact one's complement: a share of 2^-53 a draw
        charge = power.error_sup + 2.0 * math.exp(LOG_WRAP) * power.weight + (power.relative + 2e-7) * exact
        assert abs(float(power.values[j]) - exact) <= charge
        assert charge < 2e-4 * exact


def _slow_transform(one: Tilted, size: int, alive: NDArray[np.int64]) -> NDArray[np.clongdouble]:
    turn = 2 * np.longdouble("3.14159265358979323846264338327950288") / size
    angles = turn * (np.multiply.outer(alive, one.places) % size).astype(np.longdouble)
    return np.asarray((one.masses * (np.cos(angles) - 1j * np.sin(angles))).sum(axis=1))


def test_most_frequencies_of_a_short_transform_are_taken_from_the_whole_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """93 s of a verdict on 24 million coordinates were a product of 68,141 places with 65,537 frequencies."""
    masses = np.random.default_rng(4).random(700)
    one, size = Tilted(np.arange(-500, 200), masses / masses.sum(), 0.0, 0.0), 2**12
    alive = np.arange(300, size // 2 + 1)
    exact = _slow_transform(one, size, alive)
    found = []
    for whole in (0, size):
        monkeypatch.setattr("dpaudit.verify.pld.fourier.WHOLE", whole)
        values, error = _frequencies(one, size, alive)
        assert np.abs(values - exact).max() < 0.1 * error < 1e-14
        found.append(values)
    assert (found[0] != found[1]).any()


@pytest.mark.parametrize("apart", [1, 3, 50])
@pytest.mark.parametrize("long", [False, True])
def test_frequencies_of_a_law_are_its_transform_within_their_stated_error(apart: int, *, long: bool) -> None:
    """Long laws are summed in rows first, unless they are mostly gaps."""
    count = 2 * LONG + 77 if long else 500
    masses = np.random.default_rng(3).random(count) ** 3
    one = Tilted(apart * (np.arange(count) - count // 3), masses / masses.sum(), 0.0, 0.0)
    alive, size = np.array([0, 1, 2, 77, 900, 2**21, 2**23 - 1, 2**23]), 2**24
    found, error = _frequencies(one, size, alive)
    exact = _slow_transform(one, size, alive)
    assert error < (2e-14 if long else 5e-15)
    assert np.abs(found - exact).max() < 0.1 * error


@pytest.mark.parametrize("depths", [(1e-9, 1e-5), (1e-5, 1e-9), (1e-6, 1e-6)])
@pytest.mark.parametrize("counts", [(300, 20), (20, 300), (1, 3), (5000, 1)])
def test_a_product_is_off_by_no_more_than_its_factors_errors_say(
    counts: tuple[int, int], depths: tuple[float, float]
) -> None:
    """Each factor's error counts for its own draws: the few's rounding, times the draws of the many, hid bounds."""
    rng = np.random.default_rng(5)
    size = 2000
    radius = np.stack([rng.uniform(0.0, 1.0, size) ** (1.0 / count) for count in counts])
    true = radius * np.exp(2j * np.pi * rng.random((2, size)))
    wrong = true + np.array(depths)[:, None] * np.exp(2j * np.pi * rng.random((2, size)))
    product = _Product(np.arange(size), 0.0)
    for factor, count, depth in zip(wrong, counts, depths, strict=True):
        product.times(factor[product.alive], count, depth)
    error, vanished = product.error()
    exact = np.prod([factor**count for factor, count in zip(true, counts, strict=True)], axis=0)
    off = np.abs(product.values - exact[product.alive])
    assert (off <= error).all()
    assert off.max() > 0.1 * max(count * depth for count, depth in zip(counts, depths, strict=True))
    dead = np.setdiff1d(np.arange(size), product.alive)
    assert np.abs(exact[dead]).max(initial=0.0) <= vanished
    assert error.max() <= 4.0 * sum(count * depth for count, depth in zip(counts, depths, strict=True))


@pytest.mark.parametrize("odd", [0.0, 1e-9, 0.05])
def test_blocks_are_sums_of_the_window_they_divide(odd: float) -> None:
    """Also where the law sits on every second integer, or nearly, so that its spectrum is large at both ends."""
    rng = np.random.default_rng(8)
    masses = rng.random(41) * np.where(np.arange(41) % 2, odd, 1.0)
    parts = [(Lattice(masses / masses.sum(), -20), 30_000), (Lattice(np.array([0.5, 0.25, 0.25]), -1), 40_000)]
    for theta in (0.0, 3e-4, -3e-4):
        plain, blocks = (tilted_power(parts, theta, -(2**15), 2**16, block) for block in (1, 16))
        weights = np.exp(-theta * np.arange(16))
        assert blocks.values == pytest.approx(plain.values.reshape(-1, 16) @ weights, abs=2.0 * blocks.error_sup)
        assert blocks.error_sup < 1e-7 * blocks.values.max()
        assert blocks.weight >= max(weights.sum(), weights.max())


def test_wrapped_mass_only_adds() -> None:
    count, p, size = 400, 0.5, 64
    power = tilted_power([(Lattice(np.array([1.0 - p, p]), 0), count)], 0.0, 168, size)
    exact = np.array([float(binomial_pmf(count, p, k)) for k in range(168, 168 + size)])
    gap = power.values - exact
    assert gap.min() > -power.error_sup
    assert gap.sum() == pytest.approx(1.0 - exact.sum(), abs=1e-12)


def test_different_lattices_multiply() -> None:
    one, other = Lattice(np.array([0.2, 0.3, 0.5]), -1), Lattice(np.array([0.6, 0.4]), 2)
    slow = np.array([1.0])
    for masses in (one.masses, one.masses, other.masses, other.masses, other.masses):
        slow = np.convolve(slow, masses)
    power = tilted_power([(one, 2), (other, 3)], 0.7, 4, 64)
    places = np.arange(4, 4 + len(slow))
    assert np.exp(power.log_scale - 0.7 * places) * power.values[: len(slow)] == pytest.approx(slow, rel=1e-13)


def test_the_chernoff_window_leaves_out_no_more_than_it_says() -> None:
    count, p = 1000, 0.1
    grid = np.concatenate([-np.geomspace(1e-3, 4, 40)[::-1], [0.0], np.geomspace(1e-3, 4, 40)])
    low, high = chernoff_window(grid, count * log_mgf(Lattice(np.array([1 - p, p]), 0), grid), 40)
    above = sum(binomial_pmf(count, p, k) for k in range(math.ceil(high), count + 1))
    below = sum(binomial_pmf(count, p, k) for k in range(math.floor(low) + 1))
    assert max(above, below) <= math.exp(LOG_WRAP)
    assert high - low < 30 * math.sqrt(count * p * (1 - p))


def test_log_mgf_in_rows_is_the_plain_sum() -> None:
    rng = np.random.default_rng(0)
    masses = rng.random(10_000) * 10.0 ** rng.integers(-300, 0, 10_000)
    masses[rng.random(10_000) < 0.3] = 0.0
    thetas = np.array([-350.0, -40.0, -1.5, -0.01, 0.0, 0.002, 0.3, 7.0, 74.0, 301.0])
    support = np.flatnonzero(masses)
    exponents = thetas[:, None] * (support - 50) + np.log(masses[support])
    top = exponents.max(axis=1)
    plain = [t + math.log(math.fsum(np.exp(row - t))) for t, row in zip(top, exponents, strict=True)]
    assert log_mgf(Lattice(masses, -50), thetas) == pytest.approx(plain, rel=1e-13, abs=1e-11)


@pytest.mark.parametrize("rate", [-0.01, 0.0, 0.02, 1.7, 40.0, 299.0, 900.0])
def test_decayed_sums_are_those_of_one_place_after_the_other(rate: float) -> None:
    rng = np.random.default_rng(1)
    masses = rng.random(401) * 10.0 ** rng.integers(-120, 0, 401) * (rng.random(401) < 0.7)
    plain, total = [], 0.0
    for mass in masses[::-1]:
        total = mass + total * math.exp(-rate)
        plain.append(total)
    assert decayed_sums(masses, rate) == pytest.approx(plain[::-1], rel=1e-12, abs=0.0)
