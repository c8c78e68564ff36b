"""Streams through a buffer, from above, against the exact laws of every record of small files."""

import math
from dataclasses import replace

import numpy as np
import pytest
from buffers import STREAMS, batch_counts

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.guarantees import PureDP
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper import buffered_streams
from dpaudit.verify.upper.gaussian_pld import analytic_delta

DELTA = 1e-4
EPSILONS = np.array([0.0, 0.3, 1.0, 2.0, 4.0])


def claim(sampler: BufferedShuffle, adjacency: Adjacency = "add-remove", sigma: float = 2.0) -> Claim:
    return Claim(1.0, DELTA, (Phase(Gaussian(sigma), sampler=sampler),), adjacency)


def squares(sampler: BufferedShuffle, record: int) -> dict[int, float]:
    """Law of the sum of squares of how often the record is in a batch."""
    found: dict[int, float] = {}
    for counts, mass in batch_counts(sampler, record).items():
        total = sum(count**2 for count in counts)
        found[total] = found.get(total, 0.0) + mass
    return found


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), STREAMS)
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_no_record_costs_more_when_all_draws_are_revealed(
    records: int, batch: int, buffer: int, steps: int, adjacency: Adjacency
) -> None:
    """And the worst of them costs at least three quarters as much in the moments, so that the bound is not empty."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    own = claim(sampler, adjacency)
    bound = buffered_streams.bound(own).delta(EPSILONS)
    mu = (2.0 if adjacency == "replace-one" else 1.0) / 2.0
    for record in range(records):
        law = squares(sampler, record)
        assert math.isclose(sum(law.values()), 1.0)
        truth = sum(mass * (analytic_delta(mu * math.sqrt(s), EPSILONS) if s else 0.0) for s, mass in law.items())
        assert (truth <= bound).all()


def test_it_covers_normal_noise_in_one_stream_alone() -> None:
    stream, passes = BufferedShuffle(9, 2, 5, releases=9), BufferedShuffle(9, 2, 5, 2)
    phase = Phase(Gaussian(1.0), sampler=stream)
    assert buffered_streams.applies(claim(stream))
    assert not buffered_streams.applies(claim(passes))
    assert not buffered_streams.applies(Claim(1.0, 1e-5, (phase, phase)))
    assert not buffered_streams.applies(Claim(1.0, 1e-5, (Phase(Laplace(1.0, dimension=1), sampler=stream),)))
    with pytest.raises(ValueError, match="one phase, of normal noise and a buffered stream"):
        buffered_streams.bound(claim(passes))


def test_many_copies_at_once_are_left_to_the_bound_for_all_in_one_batch() -> None:
    assert not buffered_streams.applies(claim(BufferedShuffle(10, 2, 1000, releases=9)))


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), [*STREAMS, (6, 6, 20, 4), (3, 2, 30, 6)])
def test_no_record_is_met_more_often_than_is_said(records: int, batch: int, buffer: int, steps: int) -> None:
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    most = max(max(squares(sampler, record)) for record in range(records))
    assert most <= sampler.meetings <= steps * batch**2


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize(
    "sampler",
    [
        BufferedShuffle(10**6, 1000, 10**4, releases=9 * 10**7),
        BufferedShuffle(9 * 10**14, 45 * 10**13, 10**14, releases=24_000),  # copies come after more than 2^63 draws
    ],
)
def test_many_passes_and_long_ones_have_bounds(sampler: BufferedShuffle) -> None:
    verdict = check(Claim(8.0, 1e-5, (Phase(Gaussian(900.0), sampler=sampler),), "zero-out"))
    assert verdict.verdict == "certified"
    assert 0 < verdict.epsilon_lower < verdict.epsilon_upper < 8


def test_a_pass_of_half_a_billion_batches_is_no_array() -> None:
    sampler = BufferedShuffle(5 * 10**8, 1, 10**8, releases=10**6)
    verdict = check(Claim(8.0, 1e-5, (Phase(Gaussian(1.0), sampler=sampler),), "zero-out"))
    assert verdict.verdict == "certified"
    assert verdict.epsilon_upper < 5  # one release is 4.38


def test_noise_with_a_pure_epsilon_adds_it_up_for_all_copies() -> None:
    """Of 1,000 draws from a hundred records and a buffer of 30, eleven copies at most: 11/20."""
    sampler = BufferedShuffle(100, 10, 30, releases=100)
    for delta, guarantee in ((0.0, PureDP(0.5501)), (1e-9, None)):
        claim = Claim(0.5501, delta, (Phase(Laplace(20.0, dimension=1), sampler=sampler),), "zero-out")
        assert check(replace(claim, guarantee=guarantee)).verdict == "certified"
    other = check(Claim(50.0, 1e-6, (Phase(GeneralizedGaussian(3.0, 2.0, dimension=1), sampler=sampler),), "zero-out"))
    assert other.verdict == "undecided"
    assert "only normal noise, and a pure epsilon, have bounds from above" in other.reason
