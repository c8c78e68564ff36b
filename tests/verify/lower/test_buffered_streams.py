"""Streams through a buffer, from below, against exact laws of small files and quadrature."""

import math
from collections import defaultdict

import numpy as np
import pytest
from buffers import batch_counts

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower.buffered_streams import _half_lines, drawn_copies, stream_curve, windows
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper.gaussian_pld import analytic_delta

EPSILONS = np.array([0.0, 0.2, 0.5, 1.0, 2.0])


@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps"), [(6, 2, 3, 9), (5, 2, 4, 9), (7, 3, 2, 7), (8, 2, 6, 11), (4, 2, 4, 7)]
)
def test_windows_are_no_likelier_than_what_the_record_does(records: int, batch: int, buffer: int, steps: int) -> None:
    """P >= c P' for every place of the record in the windows, and P' is a probability."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    found = windows(sampler)
    assert found is not None
    count = len(found.weights)
    starts = [copy * records // batch for copy in range(count)]
    truth: dict[tuple[int, ...], float] = defaultdict(float)
    for counts, mass in batch_counts(sampler, buffer - 1).items():
        truth[tuple(sum(counts[start : start + found.length]) for start in starts)] += mass
    for inside in np.ndindex(*(2,) * count):
        chance = math.prod(w if k else 1 - w for k, w in zip(inside, found.weights, strict=True))
        assert found.chances[-1] * chance <= truth[inside]
    assert 1e-3 < found.chances[-1] <= 1
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


def silent_delta(sampler: BufferedShuffle, record: int, sigma: float, epsilons: np.ndarray) -> np.ndarray:
    """delta of the record against nobody, all others silent, by quadrature over three releases."""
    axis = np.linspace(-7 * sigma, 3 + 7 * sigma, 161)
    outputs = np.stack(np.meshgrid(axis, axis, axis, indexing="ij"), axis=-1)
    density = np.exp(-0.5 * (outputs / sigma) ** 2).prod(axis=-1)
    density /= density.sum()
    ratio = np.zeros_like(density)
    for counts, mass in batch_counts(sampler, record).items():
        at = np.array(counts, dtype=float)
        ratio += mass * np.exp((outputs @ at - 0.5 * at @ at) / sigma**2)
    return np.array([(density * np.maximum(ratio - math.exp(e), 0.0)).sum() for e in epsilons])


@pytest.mark.parametrize(("records", "batch", "buffer"), [(4, 2, 3), (5, 2, 2), (6, 3, 2)])
def test_the_bound_is_below_the_worst_record_by_quadrature(records: int, batch: int, buffer: int) -> None:
    sampler = BufferedShuffle(records, batch, buffer, releases=3)
    claim = Claim(0.5, 1e-3, (Phase(Gaussian(1.5), sampler=sampler),), "zero-out")
    curve = stream_curve(claim.canonical("lower"))
    assert curve is not None
    truths = np.max([silent_delta(sampler, record, 1.5, EPSILONS) for record in range(records)], axis=0)
    found = curve.delta(EPSILONS)
    assert (found <= truths * (1.0 + 1e-4) + 1e-9).all()
    assert found[0] > 0.4 * truths[0]


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
