"""Streams through a buffer, from below, against exact laws of small files."""

import math
from collections import defaultdict

import numpy as np
import pytest
from buffers import batch_counts

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower.buffered_streams import _half_lines, drawn_copies, first_release, stream_curve, windows
from dpaudit.verify.lower.pure_limits import pure_limit
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper.gaussian_pld import analytic_delta

EPSILONS = np.array([0.0, 0.2, 0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps"),
    [
        *((6, 2, 3, 9), (5, 2, 4, 9), (7, 3, 2, 7), (8, 2, 6, 11), (4, 2, 4, 7), (3, 2, 4, 4)),
        *((4, 1, 7, 9), (5, 3, 20, 4), (3, 3, 9, 3), (4, 3, 5, 4), (5, 2, 6, 7), (1, 1, 3, 4)),
    ],
)
def test_windows_are_no_likelier_than_what_the_record_does(records: int, batch: int, buffer: int, steps: int) -> None:
    """P >= c P' for every place of the record in the windows, and P' is a probability."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    found = windows(sampler)
    assert found is not None
    count = len(found.weights)
    starts = [copy * records // batch for copy in range(count)]
    truth: dict[tuple[int, ...], float] = defaultdict(float)
    for counts, mass in batch_counts(sampler, (buffer - 1) % records).items():
        truth[tuple(sum(counts[start : start + found.length]) for start in starts)] += mass
    for inside in np.ndindex(*(2,) * count):
        chance = math.prod(w if k else 1 - w for k, w in zip(inside, found.weights, strict=True))
        assert found.chances[-1] * chance <= truth[inside] + 1e-11  # weights are rounded down
    assert 1e-4 < found.chances[-1] <= 1
    first: dict[int, float] = defaultdict(float)
    for counts, mass in batch_counts(sampler, (buffer - 1) % records).items():
        first[counts[0]] += mass
    alone = first_release(sampler)
    both = alone.chances[0] * np.array([1 - alone.weights[0], alone.weights[0]])
    np.testing.assert_allclose(both, [first[0], first[1]], atol=1e-11)
    if buffer < batch:
        assert found.chances[-1] > 0.5


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), [(6, 2, 3, 7), (5, 2, 8, 6), (3, 2, 3, 6)])
def test_so_many_copies_have_been_drawn(records: int, batch: int, buffer: int, steps: int) -> None:
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    law: dict[int, float] = defaultdict(float)
    for counts, mass in batch_counts(sampler, 0).items():
        law[sum(counts)] += mass
    for copies, chance in drawn_copies(sampler):
        exact = sum(mass for drawn, mass in law.items() if drawn >= copies)
        assert chance <= exact
        assert exact - chance < 0.35


def silent_delta(
    sampler: BufferedShuffle, record: int, noise: Gaussian | Laplace | GeneralizedGaussian, epsilons: np.ndarray
) -> np.ndarray:
    """delta of the record against nobody, all others silent, over fine cells of up to three releases."""
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    reach = -float(law.ppf(np.array([1e-7]))[0])
    edges = np.concatenate([[-np.inf], np.linspace(-reach, 3.0 + reach, 801 if sampler.steps < 3 else 161), [np.inf]])
    cells = np.array([np.diff(law.cdf(edges - around)) for around in range(sampler.batch + 1)])
    axes = "abc"[: sampler.steps]
    product = f"{','.join(axes)}->{axes}"
    without = np.einsum(product, *[cells[0]] * sampler.steps)
    first = np.zeros_like(without)
    for counts, mass in batch_counts(sampler, record).items():
        first += mass * np.einsum(product, *[cells[k] for k in counts])
    return np.array([np.maximum(first - math.exp(e) * without, 0.0).sum() for e in epsilons])


@pytest.mark.parametrize("noise", [Gaussian(1.5), Laplace(0.25, dimension=1), Laplace(2.0, dimension=1)])
@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps"),
    [(4, 2, 3, 3), (5, 2, 2, 3), (6, 3, 2, 3), (4, 3, 5, 1), (3, 1, 4, 2), (5, 2, 12, 2), (3, 2, 4, 2), (4, 1, 7, 3)],
)
def test_the_bound_is_below_the_worst_record_over_cells(
    records: int, batch: int, buffer: int, steps: int, noise: Gaussian | Laplace
) -> None:
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    claim = Claim(0.5, 1e-3, (Phase(noise, sampler=sampler),), "zero-out")
    curve = stream_curve(claim.canonical("lower"))
    assert curve is not None
    truths = np.max([silent_delta(sampler, record, noise, EPSILONS) for record in range(records)], axis=0)
    found = curve.delta(EPSILONS)
    assert (found <= truths * (1.0 + 1e-4) + 1e-9).all()
    assert found[0] > (0.4 if buffer <= records else 0.25) * truths[0]


def test_a_buffer_smaller_than_a_batch_hides_next_to_nothing() -> None:
    """Sixty-four steps add up to a batch, and the buffer is of ten: a published training, judged as it runs."""
    sampler = BufferedShuffle(1_281_167, 65_536, 10_240, releases=1368)
    verdict = check(Claim(10.0, 1e-6, (Phase(Gaussian(1.3127069697), sampler=sampler),), "zero-out"))
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower > 0.7 * verdict.epsilon_upper


@pytest.mark.parametrize("noise", [Laplace(4.0, dimension=1), GeneralizedGaussian(1.5, 4.0, dimension=1)])
def test_other_noise_is_seen_through_windows(noise: Laplace | GeneralizedGaussian) -> None:
    sampler = BufferedShuffle(2000, 20, 60, releases=400)
    verdict = check(Claim(1.0, 1e-5, (Phase(noise, sampler=sampler),), "zero-out"))
    assert verdict.epsilon_lower > 0.2
    assert verdict.witness is not None
    assert "windows" in verdict.witness.event


def test_other_phases_are_left_out() -> None:
    stream = Phase(Gaussian(2.0), sampler=BufferedShuffle(2000, 20, 60, releases=400))
    alone = check(Claim(1.0, 1e-5, (stream,), "zero-out"))
    beside = check(Claim(1.0, 1e-5, (stream, Phase(Gaussian(50.0), 2)), "zero-out"))
    assert beside.epsilon_lower == pytest.approx(alone.epsilon_lower, rel=1e-6)
    assert any("left out" in text for text in beside.assumptions)


def test_half_lines_prove_nearly_what_a_normal_shift_costs() -> None:
    epsilons = np.array([0.0, 0.5, 1.0, 3.0])
    for mu in (0.05, 0.3, 2.0):
        found, exact = _half_lines(mu).delta(epsilons), analytic_delta(mu, epsilons)
        assert (found <= exact).all()
        np.testing.assert_allclose(found[exact > 1e-12], exact[exact > 1e-12], rtol=1e-4)


@pytest.mark.parametrize("buffer", [60_000, 60_001, 150_000])
def test_a_buffer_larger_than_the_data_refutes_as_one_of_its_size(buffer: int) -> None:
    sampler = BufferedShuffle(60_000, 256, buffer, releases=240)
    verdict = check(Claim(1.0, 1e-5, (Phase(Laplace(0.125, dimension=1), sampler=sampler),), "zero-out"))
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower > 2.5


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), [(6, 2, 3, 5), (4, 1, 7, 3), (5, 2, 12, 2)])
@pytest.mark.parametrize("scale", [0.25, 2.0, 0.001])
def test_a_pure_epsilon_counts_the_copies_that_come_out(
    records: int, batch: int, buffer: int, steps: int, scale: float
) -> None:
    """Where all releases are far out, the ratio of densities is the mean of e^(copies/scale)."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    claim = Claim(0.1, 0.0, (Phase(Laplace(scale, dimension=1), sampler=sampler),), "zero-out")
    logs = [math.log(mass) + sum(counts) / scale for counts, mass in batch_counts(sampler, 0).items()]
    truth = float(np.logaddexp.reduce(logs))
    assert 0.3 * truth < pure_limit(claim.canonical("lower")).epsilon <= truth
