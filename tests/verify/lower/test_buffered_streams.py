"""Streams through a buffer, from below, against exact laws of small files."""

import math
from collections import defaultdict

import numpy as np
import pytest
from buffers import batch_counts

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower.buffered_streams import _half_lines, drawn_copies, stream_curve
from dpaudit.verify.lower.pure_limits import pure_limit
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper.gaussian_pld import analytic_delta

EPSILONS = np.array([0.0, 0.2, 0.5, 1.0, 2.0])
Noise = Gaussian | Laplace | GeneralizedGaussian


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


def exact_delta(sampler: BufferedShuffle, record: int, noise: Noise, around: tuple[int, int]) -> np.ndarray:
    """delta of a record whose copies move a batch by so many contributions each, with it and without, over cells."""
    law = noise.structure
    assert isinstance(law, IIDCoordinates)
    reach = -float(law.ppf(np.array([1e-7]))[0])
    edges = np.linspace(-reach, 3.0 + reach, 1601 if sampler.steps < 3 else 201)
    edges = np.concatenate([[-np.inf], edges, [np.inf]])
    cells = np.array([np.diff(law.cdf(edges - centre)) for centre in range(2 * sampler.batch + 1)])
    axes = "abc"[: sampler.steps]
    product = f"{','.join(axes)}->{axes}"
    first = second = np.zeros(())
    for counts, mass in batch_counts(sampler, record).items():
        first = first + mass * np.einsum(product, *[cells[around[0] * k] for k in counts])
        second = second + mass * np.einsum(product, *[cells[around[1] * k] for k in counts])
    return np.array([np.maximum(first - math.exp(e) * second, 0.0).sum() for e in EPSILONS])


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    "noise", [Gaussian(1.5), Laplace(0.25, dimension=1), GeneralizedGaussian(3.0, 2.0, dimension=1)]
)
@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps"),
    [(4, 2, 3, 3), (5, 2, 2, 3), (6, 3, 2, 3), (4, 3, 5, 1), (3, 1, 4, 2), (5, 2, 12, 2), (3, 2, 4, 2), (4, 1, 7, 3)],
)
def test_the_bound_is_below_the_worst_record_over_cells(
    records: int, batch: int, buffer: int, steps: int, noise: Noise, adjacency: Adjacency
) -> None:
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    claim = Claim(0.5, 1e-3, (Phase(noise, sampler=sampler),), adjacency)
    curve = stream_curve(claim.canonical("lower"))
    assert curve is not None
    games = [(2, 1), (1, 0)] if adjacency == "zero-out" else [(2, 0)]
    truths = np.max([exact_delta(sampler, 0, noise, around) for around in games], axis=0)
    found = curve.delta(EPSILONS)
    assert (found <= truths * (1.0 + 1e-4) + 1e-9).all()
    assert found[0] > (0.6 if isinstance(noise, Gaussian) else 0.25) * truths[0]


def test_a_buffer_smaller_than_a_batch_hides_next_to_nothing() -> None:
    """Sixty-four steps add up to a batch, and the buffer is of ten: a published training, judged as it runs."""
    sampler = BufferedShuffle(1_281_167, 65_536, 10_240, releases=1368)
    verdict = check(Claim(10.0, 1e-6, (Phase(Gaussian(1.3127069697), sampler=sampler),), "zero-out"))
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower > 0.7 * verdict.epsilon_upper


@pytest.mark.parametrize("noise", [Laplace(4.0, dimension=1), GeneralizedGaussian(1.5, 4.0, dimension=1)])
def test_other_noise_has_scores(noise: Laplace | GeneralizedGaussian) -> None:
    sampler = BufferedShuffle(2000, 20, 60, releases=400)
    verdict = check(Claim(1.0, 1e-5, (Phase(noise, sampler=sampler),), "zero-out"))
    assert verdict.epsilon_lower > 0.2
    assert verdict.witness is not None
    assert "scores" in verdict.witness.event


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
