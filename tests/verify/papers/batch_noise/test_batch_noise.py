"""Noise on every example, and division by the realised batch size: against enumeration, quadrature and simulation."""

import itertools
import json
import math
import re
from pathlib import Path

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad
from scipy.special import gammaln, kv
from scipy.stats import binom, gamma, laplace, ncx2, norm

from dpaudit.mechanisms import Gaussian, Laplace, Product
from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.verify import Claim, check
from dpaudit.verify.bounds import clopper_pearson
from dpaudit.verify.claim_files import claim_to_dict, load_claims
from dpaudit.verify.claims import Phase
from dpaudit.verify.papers.batch_noise import (
    Reading,
    batch_noise_bracket,
    known_others,
    known_size,
    statistics,
    unknown_size,
)
from dpaudit.verify.papers.batch_noise.other_records import PMF_ERROR, likely_range, other_records

ROOT = Path(__file__).parents[4]
READINGS: tuple[Reading, ...] = ("per-example", "realised")


def normal_mixture(x: Array, weights: list[float], means: list[float], deviations: list[float]) -> Array:
    """Density of a mixture of normal laws."""
    parts = [w * norm.pdf(x, m, s) for w, m, s in zip(weights, means, deviations, strict=True)]
    return np.asarray(np.sum(parts, axis=0))


def enumerated(
    reading: Reading, contributions: Array, record: float, sigma: float, q: float, x: Array
) -> tuple[Array, Array, float, float]:
    """Densities in one dimension of the release without and with the record, over all subsets, and atoms at empty."""
    sides = []
    for extra in (None, record):
        weights, means, deviations, atom = [], [], [], 0.0
        for size in range(len(contributions) + 1):
            for chosen in itertools.combinations(contributions, size):
                weight = q**size * (1 - q) ** (len(contributions) - size)
                total, m = sum(chosen) + (extra or 0.0), size + (extra is not None)
                if m == 0:
                    atom += weight
                    continue
                weights.append(weight)
                means.append(total if reading == "per-example" else total / m)
                deviations.append(sigma * math.sqrt(m) if reading == "per-example" else sigma / m)
        sides.append((normal_mixture(x, weights, means, deviations), atom))
    (without, atom), (with_record, _) = sides
    return without, (1 - q) * without + q * with_record, atom, (1 - q) * atom


def hockey_stick(x: Array, first: Array, second: Array, atoms: tuple[float, float], epsilon: float) -> float:
    """Integral of (first - e^epsilon second)_+, atoms included."""
    body = float(np.trapezoid(np.maximum(first - math.exp(epsilon) * second, 0.0), x))
    return body + max(0.0, atoms[0] - math.exp(epsilon) * atoms[1])


@pytest.mark.parametrize(
    ("n", "noncentrality"),
    [
        (2, 9000.0), (40, 2000.0), (26_000, 1200.0), (26_000, 8e5), (10**6, 5e5),
        (2, known_others.LARGEST_NONCENTRALITY), (known_others.LARGEST_DIMENSION, known_others.LARGEST_NONCENTRALITY),
    ],
)  # fmt: skip
@pytest.mark.parametrize("z", [-12.0, -4.0, 0.5, 12.0])
def test_noncentral_chi_square_keeps_the_error_charged(n: int, noncentrality: float, z: float) -> None:
    y = n + noncentrality + z * math.sqrt(2 * (n + 2 * noncentrality))
    with mpmath.workdps(40):
        half, mean = mpmath.mpf(y) / 2, mpmath.mpf(noncentrality) / 2
        reach = int(16 * mpmath.sqrt(mean) + 60)
        low, high = max(0, int(mean) - reach), int(mean) + reach
        # Poisson mixture of chi-squares, each tail from the next by its one term: the sums have positive terms only
        j = low if z > 0 else high
        a = mpmath.mpf(n) / 2 + j
        ends = (half, mpmath.inf) if z > 0 else (0, half)
        tail = mpmath.gammainc(a, *ends, regularized=True)
        weight = mpmath.exp(-mean + j * mpmath.log(mean) - mpmath.loggamma(j + 1))
        term = mpmath.exp(a * mpmath.log(half) - half - mpmath.loggamma(a + 1))
        total = mpmath.mpf(0)
        for _ in range(high - low + 1):
            total += weight * tail
            if z > 0:
                tail, a = tail + term, a + 1
                term, weight, j = term * half / a, weight * mean / (j + 1), j + 1
            else:
                term = term * a / half
                tail, a, weight, j = tail + term, a - 1, weight * j / mean, j - 1
        found = (ncx2.sf if z > 0 else ncx2.cdf)(y, n, noncentrality)
        assert abs(found / float(total) - 1) < 0.5 * known_others.NCX2_ERROR


@pytest.mark.parametrize(("records", "q"), [(20, 0.5), (60_000, 0.01), (60_000, 0.0043)])
def test_sizes_and_their_range_against_mpmath(records: int, q: float) -> None:
    low, high = likely_range(records, q, 1e-25)
    others = other_records(records, q, 1e-25)
    with mpmath.workdps(40):
        p = mpmath.mpf(q)

        def pmf(k: int) -> mpmath.mpf:
            return mpmath.binomial(records, k) * p**k * (1 - p) ** (records - k)

        for k in np.linspace(low, high, 9).astype(int):
            place = int(np.flatnonzero(others.sizes == k)[0])
            assert abs(others.weights[place] / float(pmf(int(k))) - 1) < PMF_ERROR / 10
        if low > 0:
            assert mpmath.fsum(pmf(k) for k in range(max(low - 60, 0), low)) < 1e-25
            assert mpmath.fsum(pmf(k) for k in range(max(low - 60, 0), low + 1)) > 1e-25
        if high < records:
            assert mpmath.fsum(pmf(k) for k in range(high + 1, min(high + 60, records) + 1)) < 1e-25


def test_tails_of_statistics_against_mpmath() -> None:
    with mpmath.workdps(40):
        most = float(statistics.LARGEST_SHAPE)
        for shape, z in [(0.5, 1.0), (13_000.0, -5.0), (13_000.0, 5.0), *((most, z) for z in (-9, -6, -4.5, 4.5, 9))]:
            x = shape + z * math.sqrt(shape)
            cells = statistics.from_tails(*_gamma_tails(shape, x))
            below = float(mpmath.gammainc(shape, 0, x, regularized=True))
            assert cells.lower[0] <= below <= cells.upper[0]
            assert cells.lower[1] <= float(mpmath.gammainc(shape, x, regularized=True)) <= cells.upper[1]
    found = statistics.count(26_000, np.array([[0.5], [0.504]]), np.arange(1))
    total = found.lower.sum(axis=-1), found.upper.sum(axis=-1)
    assert (total[0] <= 1).all()
    assert (total[1] >= 1).all()
    assert (total[1] - total[0] < 1e-7).all()


def _gamma_tails(shape: float, x: float) -> tuple[Array, Array]:
    found = statistics.gammainc(shape, np.array([x])), statistics.gammaincc(shape, np.array([x]))
    return np.asarray(found[0]), np.asarray(found[1])


@pytest.mark.parametrize("draws", [1, 2, 7, 60])
def test_sum_of_laplace_draws_against_its_characteristic_function(draws: int) -> None:
    edges = np.array([-11.0, -3.0, 0.5, 2.0, 9.0])
    below, above = statistics.laplace_sum(np.array([draws]), 1.3, np.array(1.0), edges)
    for edge, low, high in zip(edges, below[0], above[0], strict=True):
        if draws == 1:
            expected = float(laplace.cdf(edge, 1.0, 1.3))
        else:  # Gil-Pelaez
            at = edge - 1.0
            integral = quad(lambda t, at=at: math.sin(t * at) / t / (1 + (1.3 * t) ** 2) ** draws, 0, 40, limit=400)[0]
            expected = 0.5 + integral / math.pi
        assert low == pytest.approx(expected, abs=2e-5 if draws == 2 else 1e-9)
        assert low + high == pytest.approx(1.0, abs=1e-12)


@pytest.mark.parametrize("reading", READINGS)
def test_loss_of_a_pair_against_integration(reading: Reading) -> None:
    pair = known_others.scaled_pair(reading, 0.9, 1, 3, 3)
    x = np.linspace(-60, 60, 2_000_001)
    p, q = norm.pdf(x, pair.shift, pair.first), norm.pdf(x, 0.0, pair.second)
    loss = norm.logpdf(x, pair.shift, pair.first) - norm.logpdf(x, 0.0, pair.second)
    losses = np.array([-0.6, -0.05, 0.1, 0.4])
    found = np.stack(pair.tails(losses))
    for i, level in enumerate(losses):
        direct = [np.trapezoid(law * inside, x) for law in (p, q) for inside in (loss <= level, loss > level)]
        assert found[:, i] == pytest.approx(np.array(direct), abs=1e-4)


def _delta(pair: known_others.Scaled, epsilon: float) -> tuple[float, float]:
    """Exact deltas in both directions, at any sign of epsilon."""
    _, p, _, q = (float(tail[0]) for tail in pair.tails(np.array([epsilon])))
    p_low, _, q_low, _ = (float(tail[0]) for tail in pair.tails(np.array([-epsilon])))
    return p - math.exp(epsilon) * q, q_low - math.exp(epsilon) * p_low


@pytest.mark.parametrize("dimension", [1, 3, 500])
@pytest.mark.parametrize("epsilon", [-1.0, -0.1, 0.0, 0.2, 1.5])
def test_longer_shifts_and_fewer_others_are_worse(dimension: int, epsilon: float) -> None:
    for reading in READINGS:
        deltas = [
            _delta(known_others.scaled_pair(reading, mu, dimension, 6, 6), epsilon) for mu in (0.05, 0.2, 0.7, 2.0)
        ]
        assert (np.diff(np.array(deltas), axis=0) >= -1e-11).all()
        worst = _delta(known_others.scaled_pair(reading, 0.7, dimension, 6, 10), epsilon)
        for k in range(6, 11):
            each = _delta(known_others.scaled_pair(reading, 0.7, dimension, k, k), epsilon)
            assert each[0] <= worst[0] + 1e-11
            assert each[1] <= worst[1] + 1e-11


@pytest.mark.parametrize(("records", "q"), [(40, 0.5), (3000, 0.02)])
def test_sizes_are_dominated_by_the_gaussian_pair(records: int, q: float) -> None:
    sizes = known_size.batch_sizes(records, q, 1e-8)
    assert sizes is not None
    assert sizes.first.sum() == pytest.approx(1, abs=1e-12)
    assert sizes.second.sum() == pytest.approx(1, abs=1e-12)
    assert 1 < sizes.gaussian * math.sqrt(records * q * (1 - q)) < 1.6
    for epsilon in np.linspace(-2, 2, 81):
        mu, a = sizes.gaussian, math.exp(epsilon)
        bound = norm.cdf(mu / 2 - epsilon / mu) - a * norm.cdf(-mu / 2 - epsilon / mu)
        assert np.maximum(sizes.first - a * sizes.second, 0).sum() <= bound + 1e-13
        assert np.maximum(sizes.second - a * sizes.first, 0).sum() <= bound + 1e-13


def test_product_pair_against_its_sum_over_sizes() -> None:
    sizes = known_size.batch_sizes(400, 0.1, 1e-10)
    assert sizes is not None
    mu = 2.0 / np.sqrt(sizes.sizes)
    tails = known_size.product_pair(sizes, mu).tails(np.array([0.3]))
    found = float(tails.p_sf[0] - math.exp(0.3) * tails.q_sf[0])
    x = np.linspace(-12, 14, 20_001)
    direct = [
        np.trapezoid(np.maximum(p * norm.pdf(x, m) - math.exp(0.3) * q * norm.pdf(x), 0.0), x)
        for p, q, m in zip(sizes.first, sizes.second, mu, strict=True)
    ]
    assert found == pytest.approx(float(np.sum(direct)), rel=1e-5)


@pytest.mark.parametrize("reading", READINGS)
def test_bracket_holds_every_pair_of_data_sets(reading: Reading) -> None:
    records, q, sigma, rng = 10, 0.6, 1.2, np.random.default_rng(5)
    mechanism = Gaussian(sigma, dimension=1)
    claim = Claim.single(mechanism, epsilon=0.5, delta=0.05, sampling_prob=q)
    verdict = batch_noise_bracket(claim, reading=reading, records=records)
    x = np.linspace(-40, 40, 2001) if reading == "per-example" else np.linspace(-9, 9, 6001)
    truths = []
    for contributions, record in (
        (np.ones(records), -1.0),
        (np.zeros(records), 1.0),
        (np.ones(records), 1.0),
        (rng.uniform(-1, 1, records), 1.0),
    ):
        q_density, p_density, q_atom, p_atom = enumerated(reading, contributions, record, sigma, q, x)
        truths.append(
            max(
                hockey_stick(x, p_density, q_density, (p_atom, q_atom), 0.5),
                hockey_stick(x, q_density, p_density, (q_atom, p_atom), 0.5),
            )
        )
    assert max(truths) <= verdict.delta_upper
    # the families searched are the first two (or one), and binning loses little
    searched = max(truths[:2]) if reading == "per-example" else truths[0]
    assert 0.97 * searched <= verdict.delta_lower <= searched * (1 + 1e-6)
    assert verdict.delta_upper < 2.5 * searched + 0.01


@pytest.mark.parametrize("reading", READINGS)
def test_two_releases_against_a_product_grid(reading: Reading) -> None:
    records, q, sigma = 9, 0.6, 1.2
    claim = Claim.single(Gaussian(sigma, dimension=1), epsilon=0.6, delta=0.05, steps=2, sampling_prob=q)
    verdict = batch_noise_bracket(claim, reading=reading, records=records)
    x = np.linspace(-28, 37, 2401) if reading == "per-example" else np.linspace(-6, 7, 3001)
    families = [(np.ones(records), -1.0)] + [(np.zeros(records), 1.0)] * (reading == "per-example")
    truths = []
    for contributions, record in families:
        without, with_record, *atoms = enumerated(reading, contributions, record, sigma, q, x)
        q_mass, p_mass = np.append(without * (x[1] - x[0]), atoms[0]), np.append(with_record * (x[1] - x[0]), atoms[1])
        for one, other in ((p_mass, q_mass), (q_mass, p_mass)):
            truths.append(float(np.maximum(np.outer(one, one) - math.exp(0.6) * np.outer(other, other), 0).sum()))
    assert 0.95 * max(truths) <= verdict.delta_lower <= max(truths) * (1 + 1e-4)
    assert max(truths) <= verdict.delta_upper


def test_hidden_size_in_twenty_dimensions_against_simulated_losses() -> None:
    records, q, n, epsilon = 30, 0.3, 20, 0.4
    claim = Claim.single(Gaussian(1.0, dimension=n), epsilon=epsilon, delta=1e-3, sampling_prob=q)
    rng, trials = np.random.default_rng(7), 200_000
    for reading in READINGS:
        found = [
            one for one in unknown_size.findings(claim, reading=reading, records=records) if one.direction == "remove"
        ]
        bound = max(float(one.points.delta(np.array([epsilon]))[0]) for one in found if one.seen.family == "against")
        present, k = rng.random(trials) < q, rng.binomial(records, q, trials)
        m = k + present
        scale = np.sqrt(m) if reading == "per-example" else 1 / np.maximum(m, 1)
        centre = k - present if reading == "per-example" else (k - present) / np.maximum(m, 1)
        x = centre + scale * rng.standard_normal(trials)
        r = scale**2 * rng.chisquare(n - 1, trials)
        empty = m == 0
        values = []
        for record in (0, 1):
            parts = []
            for size in range(records + 1):
                total = size + record
                if total == 0:
                    continue
                s = math.sqrt(total) if reading == "per-example" else 1 / total
                c = size - record if reading == "per-example" else (size - record) / total
                parts.append(
                    binom.logpmf(size, records, q) + norm.logpdf(x, c, s) - (n - 1) * math.log(s) - r / (2 * s * s)
                )
            values.append(np.logaddexp.reduce(np.stack(parts), axis=0))
        loss = np.where(empty, math.log(1 - q), np.logaddexp(math.log(1 - q), math.log(q) + values[1] - values[0]))
        excess = np.maximum(1 - np.exp(epsilon - loss), 0.0)
        mean, error = float(excess.mean()), float(excess.std()) / math.sqrt(trials)
        assert bound <= mean + 4 * error
        assert bound >= 0.97 * (mean - 4 * error)


def laplace_sum_density(x: Array, k: int, scale: float) -> Array:
    """Density of a sum of k Laplace draws through the modified Bessel function."""
    z = np.maximum(np.abs(x) / scale, 1e-12)
    log_factor = (k - 0.5) * np.log(z / 2) - 0.5 * math.log(math.pi) - gammaln(k) - math.log(scale)
    return np.asarray(np.exp(log_factor) * kv(k - 0.5, z))


@pytest.mark.parametrize("n", [1, 2])
def test_laplace_noise_on_every_example_against_bessel_densities(n: int) -> None:
    records, q, scale, epsilon = 12, 0.5, 0.7, 0.2
    claim = Claim.single(Laplace(scale, dimension=n), epsilon=epsilon, delta=1e-2, sampling_prob=q)
    verdict = batch_noise_bracket(claim, reading="per-example", records=records)
    x = np.linspace(-25, 25, 20_001 if n == 1 else 1001) + 1e-4
    cell = (x[1] - x[0]) ** n
    without, with_record = np.zeros((len(x),) * n), np.zeros((len(x),) * n)
    for k in range(records + 1):
        weight = binom.pmf(k, records, q)
        first, moved = laplace_sum_density(x, k + 1, scale), laplace_sum_density(x - 1.0, k + 1, scale)
        with_record += weight * (moved if n == 1 else np.outer(moved, first))
        if k:
            base = laplace_sum_density(x, k, scale)
            without += weight * (base if n == 1 else np.outer(base, base))
    both, empty = (1 - q) * without + q * with_record, (1 - q) ** records
    assert (both.sum() * cell + (1 - q) * empty) == pytest.approx(1.0, abs=1e-3)
    a = math.exp(epsilon)
    truths = [
        float(np.maximum(both - a * without, 0).sum()) * cell,
        float(np.maximum(without - a * both, 0).sum()) * cell + max(0.0, empty * (1 - a * (1 - q))),
    ]
    assert verdict.delta_lower <= max(truths) * (1 + 1e-3)
    assert verdict.delta_lower >= (0.95 if n == 1 else 0.5) * max(truths)
    assert max(truths) <= verdict.delta_upper


def test_signs_and_gauge_of_laplace_noise_against_their_densities() -> None:
    records, q, scale, n, epsilon = 30, 0.4, 1.5, 8, 0.4
    claim = Claim.single(Laplace(scale, dimension=n), epsilon=epsilon, delta=1e-3, sampling_prob=q)
    verdict = batch_noise_bracket(claim, reading="realised", records=records)
    gauges, m = 2, 6
    assert verdict.witness is not None
    assert verdict.witness.coordinates == m
    prob = float(laplace.cdf(2 / math.sqrt(m), 0, scale))
    size = np.linspace(0, 60, 60_001)[1:]
    counts = np.arange(m + 1)[:, None]
    without, with_record = np.zeros((m + 1, len(size))), np.zeros((m + 1, len(size)))
    for k in range(records + 1):
        weight = binom.pmf(k, records, q)
        with_record += weight * binom.pmf(counts, m, prob) * gamma.pdf(size, gauges, scale=scale / (k + 1))
        if k:
            without += weight * binom.pmf(counts, m, 0.5) * gamma.pdf(size, gauges, scale=scale / k)
    both, a = (1 - q) * without + q * with_record, math.exp(epsilon)
    step = size[1] - size[0]
    truth = max(np.maximum(both - a * without, 0).sum() * step, np.maximum(without - a * both, 0).sum() * step)
    assert 0.97 * truth <= verdict.delta_lower <= truth * (1 + 1e-3)
    assert truth <= verdict.delta_upper


def test_counts_of_signs_are_those_of_a_release() -> None:
    records, q, n, trials, rng = 40, 0.3, 30, 100_000, np.random.default_rng(3)
    law = Laplace(1.0, dimension=n).structure
    assert isinstance(law, IIDCoordinates)
    each = 1.0 / math.sqrt(n)
    k = rng.binomial(records, q, trials)
    output = ((k - 1)[:, None] * each + rng.laplace(0, 1.0, (trials, n))) / (k + 1)[:, None]
    counts = (output < each).sum(axis=1)
    prob = float(law.cdf(np.array([2 * each]))[0])
    for cut in (14, 17, 20, 23):
        assert float((counts >= cut).mean()) == pytest.approx(float(binom.sf(cut - 1, n, prob)), abs=0.006)


def test_simulated_histories_stay_below_the_upper_bound() -> None:
    records, q, n, steps, trials, rng = 50, 0.2, 6, 3, 100_000, np.random.default_rng(13)
    for reading in READINGS:
        claim = Claim.single(Gaussian(0.8, dimension=n), epsilon=0.5, delta=1e-3, steps=steps, sampling_prob=q)
        verdict = batch_noise_bracket(claim, reading=reading, records=records)
        totals = np.zeros((2, trials))
        for world in (0, 1):
            for _ in range(steps):
                k = rng.binomial(records, q, trials)
                present = (rng.random(trials) < q) & (world == 1)
                m = np.maximum(k + present, 1)
                noise = rng.standard_normal((trials, n)) * 0.8
                if reading == "per-example":
                    output = noise * np.sqrt(m)[:, None]
                    output[:, 0] += k - 1.0 * present
                    totals[world] += 0.15 * np.square(output[:, 1:]).sum(axis=1) - output[:, 0]
                else:
                    totals[world] += -(noise[:, 0] + k - 1.0 * present) / m
        for share in (0.5, 0.9, 0.99):
            cut = float(np.quantile(totals[1], share))
            p = clopper_pearson(int((totals[1] > cut).sum()), trials, confidence=0.999)[0]
            other = clopper_pearson(int((totals[0] > cut).sum()), trials, confidence=0.999)[1]
            assert p - math.exp(0.5) * other <= verdict.delta_upper


def test_a_noncentral_chi_square_out_of_reach_is_no_bound() -> None:
    """Hardly any noise: the mean of the loss is some 1e15, and the bound by the others' number is left out."""
    claim = Claim.single(Gaussian(1e-6, dimension=3), epsilon=1.0, delta=1e-5)
    assert known_others.upper_curve(claim.phases[0], reading="realised", records=100, delta=1e-5) is None
    found = batch_noise_bracket(claim, reading="realised", records=100)
    assert (found.verdict, found.epsilon_upper) == ("refuted", math.inf)


def test_without_sampling_the_others_are_known() -> None:
    claim = Claim.single(Gaussian(2.0, dimension=1), epsilon=0.7, delta=1e-3)
    verdict = batch_noise_bracket(claim, reading="per-example", records=3)
    pair = known_others.scaled_pair("per-example", 0.5, 1, 3, 3)
    truth = max(_delta(pair, 0.7))
    assert truth <= verdict.delta_upper <= truth * 1.01 + 1e-9
    # "apart" IS that pair, K being 3
    assert 0.98 * truth <= verdict.delta_lower <= truth * (1 + 1e-9)


def test_more_noise_or_more_records_cost_less() -> None:
    def upper(sigma: float, records: int, reading: Reading) -> float:
        claim = Claim.single(Gaussian(sigma, dimension=2), epsilon=1.0, delta=1e-3, sampling_prob=0.5)
        return batch_noise_bracket(claim, reading=reading, records=records).epsilon_upper

    for reading in READINGS:
        assert upper(2.0, 30, reading) < upper(1.0, 30, reading)
    assert upper(1.0, 30, "per-example") < upper(1.0, 10, "per-example")


def test_replace_one_with_everybody_in_is_the_sum_reading() -> None:
    mechanism = Gaussian(2.0, dimension=3)
    claim = Claim.single(mechanism, epsilon=5.0, delta=1e-5, adjacency="replace-one")
    found, plain = batch_noise_bracket(claim, reading="realised", records=9), check(claim)
    assert (found.epsilon_lower, found.epsilon_upper) == (plain.epsilon_lower, plain.epsilon_upper)
    assert "realised size" in found.assumptions[0]


def test_noise_without_a_theorem_is_undecided() -> None:
    claim = Claim.single(Product(5.0, dimension=4), epsilon=1.0, delta=1e-5, sampling_prob=0.1)
    verdict = batch_noise_bracket(claim, reading="realised", records=100)
    assert (verdict.verdict, verdict.epsilon_lower, verdict.epsilon_upper) == ("undecided", 0.0, math.inf)


@pytest.mark.parametrize(
    ("claim", "reading", "records", "message"),
    [
        (Claim.single(Gaussian(1.0), epsilon=1, delta=0), "realised", 10, "dimension"),
        (Claim.single(Gaussian(1.0, dimension=2), epsilon=1, delta=0), "mean", 10, "reading='mean'"),
        (Claim.single(Gaussian(1.0, dimension=2), epsilon=1, delta=0), "realised", 0, "records=0"),
        (
            Claim.single(Gaussian(1.0, dimension=2), epsilon=1, delta=0, adjacency="replace-one"),
            "per-example",
            10,
            "replace-one",
        ),
        (
            Claim(1, 0, [Phase(Gaussian(1.0, dimension=2), 1, 0.5, "shuffled")]),
            "realised",
            10,
            "sampling_kind='shuffled'",
        ),
        (Claim(1, 0, [Phase(Gaussian(1.0, dimension=2))] * 2), "realised", 10, "phases=2"),
    ],
)
def test_what_is_not_covered_is_refused(claim: Claim, reading: Reading, records: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        batch_noise_bracket(claim, reading=reading, records=records)


PAGE = (ROOT / "docs" / "batch-noise.md").read_text().splitlines()
ROWS = [line.split("|")[1:-1] for line in PAGE if line.startswith("| `")]
RECORDS = 60_000


def documented_claim(name: str) -> Claim:
    """The claim of a row: one of the claim files, or the Gaussian run described under the table."""
    if name == "gaussian":
        return Claim.single(Gaussian(1.0, dimension=26_000), epsilon=1.1, delta=1e-5, steps=300, sampling_prob=0.01)
    files = ("plrvo-table-13-last-row", "lap2-table-2", "released-code")
    claims = [claim for file in files for claim in load_claims(ROOT / "reports" / "claims" / f"{file}.toml")]
    return next(claim for claim in claims if claim.id == name)


def assert_cell(cell: str, low: float, high: float, verdict: str) -> None:
    """A cell such as "[0.1, 0.2] certified"."""
    bracket, word = cell.strip().rsplit(" ", 1)
    expected = [float(part) for part in bracket.strip("[]").split(",")]
    assert [low, high] == pytest.approx(expected, rel=3e-3)
    assert word == verdict


def test_the_page_has_the_rows_it_promises() -> None:
    assert len(ROWS) == 8


ALIKE = re.compile(r" `lap2-table2-row[234]` ")  # the first and the last of these five rows are asked


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not ALIKE.fullmatch(row[0])], ids=lambda row: row[0].strip(" `")
)
def test_page_on_readings_is_what_is_computed(row: list[str]) -> None:
    claim = documented_claim(row[0].strip(" `"))
    for reading, cell in zip(READINGS, row[3:], strict=True):
        if cell.strip() == "not covered":
            with pytest.raises(ValueError, match="replace-one"):
                batch_noise_bracket(claim, reading=reading, records=RECORDS)
            continue
        found = batch_noise_bracket(claim, reading=reading, records=RECORDS)
        assert_cell(cell, found.epsilon_lower, found.epsilon_upper, found.verdict)


def test_page_on_readings_has_the_sum_reading_right() -> None:
    """As the register has it, which `dpaudit register check` computes again; the Gaussian is in none of its tables."""
    document = json.loads((ROOT / "reports/register/register.json").read_bytes())
    unnamed = {"id": "", "source": ""}
    entries = [entry for source in document["sources"] for entry in source["claims"].values()]
    for name, epsilon, cell, *_ in ROWS:
        claim = documented_claim(name.strip(" `"))
        assert float(epsilon) == claim.epsilon
        if claim.id:
            table = claim_to_dict(claim) | unnamed
            verdict = next(entry["verdict"] for entry in entries if entry["claim"] | unnamed == table)
        else:
            verdict = check(claim).to_dict()
        assert_cell(cell, *(verdict[key] for key in ("epsilon_lower", "epsilon_upper", "verdict")))
