"""Streams through a buffer, from above, against the exact laws of every record of small files."""

import math
from dataclasses import replace

import numpy as np
import pytest
from buffers import batch_counts

from dpaudit.mechanisms import Gaussian, GeneralizedGaussian, Laplace
from dpaudit.verify import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.guarantees import PureDP
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper import buffered_streams, stream_meetings
from dpaudit.verify.upper.gaussian_pld import analytic_delta

DELTA = 1e-4
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
    return Claim(1.0, DELTA, (Phase(Gaussian(sigma), sampler=sampler),), adjacency)


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
@pytest.mark.parametrize("cases", [stream_meetings.MOST_CASES, 0.0])
def test_moments_are_those_of_the_worst_record_or_more(
    records: int, batch: int, buffer: int, steps: int, ratio: float, cases: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A copy too many and places in a batch weigh less in more passes; also where first draws are not told apart."""
    monkeypatch.setattr(stream_meetings, "MOST_CASES", cases)
    monkeypatch.setattr(stream_meetings, "SETTLED", 8)
    sampler, thetas = BufferedShuffle(records, batch, buffer, releases=steps), np.array([0.01, 0.1, 0.4])
    most = min(buffer, 14)
    found = stream_meetings._log_moments(sampler, most, thetas)
    truths = [[log_moment(sampler, record, float(theta)) for theta in thetas] for record in range(records)]
    worst = np.max(truths, axis=0)
    assert (worst <= found).all()
    assert (found <= (ratio if cases else 2.0 * ratio) * worst).all()


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), SETTINGS)
def test_as_many_copies_at_once_are_as_rare_as_is_charged(
    records: int, batch: int, buffer: int, steps: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a record that comes in, how many older copies are held, by the chain of one draw after the other."""
    monkeypatch.setattr(stream_meetings, "SHARE", 1e3)  # a tenth, so that some settings charge for it
    sampler = BufferedShuffle(records, batch, buffer, releases=steps)
    most, lost = stream_meetings.most_held(sampler, DELTA) or (0, 1.0)
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
    assert lost > 0 or (records, buffer) != (9, 5)


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


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), [*SETTINGS, (6, 6, 20, 4), (3, 2, 30, 6)])
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


def test_noise_with_a_pure_epsilon_adds_it_up_for_all_copies() -> None:
    """Of 1,000 draws from a hundred records and a buffer of 30, eleven copies at most: 11/20."""
    sampler = BufferedShuffle(100, 10, 30, releases=100)
    for delta, guarantee in ((0.0, PureDP(0.5501)), (1e-9, None)):
        claim = Claim(0.5501, delta, (Phase(Laplace(20.0, dimension=1), sampler=sampler),), "zero-out")
        assert check(replace(claim, guarantee=guarantee)).verdict == "certified"
    other = check(Claim(50.0, 1e-6, (Phase(GeneralizedGaussian(3.0, 2.0, dimension=1), sampler=sampler),), "zero-out"))
    assert other.verdict == "undecided"
    assert "only normal noise, and a pure epsilon, have bounds from above" in other.reason
