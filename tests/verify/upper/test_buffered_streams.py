"""Streams through a buffer, from above, against the exact laws of every record of small files."""

import math

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper import buffered_streams
from dpaudit.verify.upper.gaussian_pld import analytic_delta
from tests.verify.stream_chains import batch_counts

EPSILONS = np.array([0.0, 0.3, 1.0, 2.0, 4.0])
SETTINGS = [
    (4, 2, 2, 5),
    (5, 2, 3, 6),
    (5, 2, 7, 6),
    (6, 3, 4, 5),
    (7, 3, 10, 5),
    (6, 2, 6, 8),
    (9, 2, 5, 9),
    (4, 1, 3, 10),
]


def claim(sampler: BufferedShuffle, adjacency: Adjacency = "add-remove", sigma: float = 2.0) -> Claim:
    return Claim(1.0, 1e-4, (Phase(Gaussian(sigma), sampler=sampler),), adjacency)


def squares(sampler: BufferedShuffle, record: int) -> dict[int, float]:
    """Law of the sum of squares of how often the record is in a batch."""
    found: dict[int, float] = {}
    for counts, mass in batch_counts(sampler, record).items():
        total = sum(count**2 for count in counts)
        found[total] = found.get(total, 0.0) + mass
    return found


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), SETTINGS)
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


def log_moment(sampler: BufferedShuffle, record: int, theta: float) -> float:
    """log E e^(theta S), one draw after the other: of k copies in a batch the (k + 1)-th adds 2 k + 1 to S."""
    weights: dict[tuple[int, int], float] = {(len(range(record, sampler.buffer, sampler.records)), 0): 1.0}
    for draw in range(sampler.steps * sampler.batch):
        after: dict[tuple[int, int], float] = {}
        at = draw + sampler.buffer
        new = int(at >= record and (at - record) % sampler.records == 0)
        for (held, count), weight in weights.items():
            count = 0 if draw % sampler.batch == 0 else count
            stays = held + new, count
            after[stays] = after.get(stays, 0.0) + weight * (1 - held / sampler.buffer)
            if held:
                leaves = held - 1 + new, count + 1
                more = weight * held / sampler.buffer * math.exp(theta * (2 * count + 1))
                after[leaves] = after.get(leaves, 0.0) + more
        weights = {state: weight for state, weight in after.items() if weight > 0}
    return math.log(sum(weights.values()))


@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps", "ratio"),
    [
        (4, 2, 2, 5, 2.0),
        (7, 3, 10, 5, 2.0),
        (9, 2, 5, 9, 2.0),
        (24, 4, 20, 150, 1.15),
        (30, 7, 4, 150, 1.15),
        (15, 5, 40, 90, 1.15),
    ],
)
def test_moments_are_those_of_the_worst_record_or_more(
    records: int, batch: int, buffer: int, steps: int, ratio: float
) -> None:
    """A copy too many and places in a batch weigh less in more passes."""
    sampler, thetas = BufferedShuffle(records, batch, buffer, releases=steps), np.array([0.01, 0.1, 0.4])
    most = min(buffer, 14)
    found = buffered_streams._log_moments(sampler, most, thetas)
    truths = [[log_moment(sampler, record, float(theta)) for theta in thetas] for record in range(records)]
    worst = np.max(truths, axis=0)
    assert (worst <= found).all()
    assert (found <= ratio * worst).all()


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), SETTINGS)
def test_as_many_copies_at_once_are_as_rare_as_is_charged(records: int, batch: int, buffer: int, steps: int) -> None:
    """Of a record that comes in, how many older copies are held, by the chain of one draw after the other."""
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    most, lost = buffered_streams._copies(sampler, claim(sampler)) or (0, 1.0)
    assert 0 < most <= buffer
    for record in range(records):
        held = {sum(at < buffer for at in range(record, buffer, records)): 1.0}
        more = 0.0
        for draw in range(steps * batch):
            after: dict[int, float] = {}
            new = (draw + buffer - record) % records == 0 and draw + buffer >= record
            for count, mass in held.items():
                for rest, chance in ((count, 1 - count / buffer), (count - 1, count / buffer)):
                    if chance > 0:
                        after[rest + new] = after.get(rest + new, 0.0) + mass * chance
            more += sum(mass for count, mass in after.items() if count > most)
            held = {count: mass for count, mass in after.items() if count <= most}
        assert more <= lost + 1e-15


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
