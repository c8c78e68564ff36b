"""How often copies of a record meet in a stream, against chains that go from draw to draw."""

import math

import mpmath as mp
import numpy as np
import pytest
from buffers import STREAMS
from mpmath import mpf, workdps

from dpaudit.mechanisms.base import Array
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.upper import stream_meetings

DELTA = 1e-4


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


@pytest.mark.parametrize(("records", "batch", "buffer", "steps"), STREAMS)
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


def log_moment_beside(sampler: BufferedShuffle, record: int, theta: float, lone: int) -> float:
    """As `log_moment`, of a copy that leaves alone in the whole batches of a window of at least so many nothing."""
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    first = range(record, sampler.steps * b + size, n)
    coming = {(at - size + 1) // b for at in first if at >= size}
    hides = min(coming, default=sampler.steps) >= lone
    weights: dict[tuple[int, int], float] = {(sum(at < size for at in first), 0): 1.0}  # held, left in this window
    for batch in range(sampler.steps):
        inside = {(held, left, 0): weight for (held, left), weight in weights.items()}
        for draw in range(batch * b, batch * b + b):
            after: dict[tuple[int, int, int], float] = {}
            new = int(draw + size in first)
            for (held, left, count), weight in inside.items():
                for taken, chance in ((0, 1 - held / size), (1, held / size)):
                    state = held - taken + new, left, count + taken
                    after[state] = after.get(state, 0.0) + weight * chance
            inside = {state: weight for state, weight in after.items() if weight > 0}
        if batch in coming:
            hides = True  # from the next one
        weights = {}
        for (held, left, count), weight in inside.items():
            square, total = count**2, left + count
            if batch in coming:
                total = 0
            elif hides and count and total == 1:
                square = 0
            elif hides and count and left == 1:
                square += 1
            state = held, min(total, 2)
            weights[state] = weights.get(state, 0.0) + weight * math.exp(theta * square)
    return math.log(sum(weights.values()))


@pytest.mark.parametrize(
    ("records", "batch", "buffer", "steps", "most", "ratio"),
    [
        (15, 3, 9, 60, 7, 1.9),  # with so many copies in so small a buffer one is thought to leave at once
        (24, 4, 20, 150, 12, 1.3),
        (30, 7, 12, 120, 6, 1.5),
        (15, 4, 40, 90, 14, 1.1),
        (40, 1, 12, 200, 6, 1.3),
        (200, 40, 50, 40, 6, 1.8),
    ],
)
@pytest.mark.parametrize("cases", [stream_meetings.MOST_CASES, 0.0])
def test_moments_beside_lone_copies_are_those_of_the_worst_record_or_more(
    records: int,
    batch: int,
    buffer: int,
    steps: int,
    most: int,
    ratio: float,
    cases: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(stream_meetings, "MOST_CASES", cases)
    monkeypatch.setattr(stream_meetings, "SETTLED", 8)
    sampler, thetas = BufferedShuffle(records, batch, buffer, releases=steps), np.array([0.01, 0.4])
    lone = max(records // batch - 2, 1)
    found = stream_meetings._log_moments(sampler, most, thetas, lone)
    some = range(0, records, 1 + records // 12)
    truths = [[log_moment_beside(sampler, record, float(theta), lone) for theta in thetas] for record in some]
    worst = np.max(truths, axis=0)
    assert (worst <= found).all()
    assert (found <= (ratio if cases else 2.0 * ratio) * worst).all()
    assert (found < 0.9 * stream_meetings._log_moments(sampler, most, thetas)).all()


def test_shorter_first_windows_hide_a_lone_copy_where_they_may(monkeypatch: pytest.MonkeyPatch) -> None:
    """The first copies of 60,000 in batches of 256 have 195 whole batches or more, later ones 232."""
    sampler = BufferedShuffle(600, 8, 100, releases=90)
    theta, found = np.array([0.1]), []
    for lone in (62, 73):
        worst = max(log_moment_beside(sampler, record, 0.1, lone) for record in range(0, 600, 7))
        found.append(float(stream_meetings._log_moments(sampler, 4, theta, lone)[0]))
        assert worst <= found[-1] <= 1.3 * worst
    assert found[0] < 0.5 * found[1]


def empty_law(places: int, draws: int) -> Array:
    """Law of how many of the places none of the draws takes, one draw after the other."""
    taken = np.zeros(places + 1)
    taken[0] = 1.0
    for _ in range(draws):
        rest = taken * np.arange(places + 1) / places
        rest[1:] += taken[:-1] * (1.0 - np.arange(places) / places)
        taken = rest
    return taken[::-1]


@pytest.mark.parametrize(("places", "draws"), [(5, 3), (40, 52), (300, 100), (300, 2000)])
@pytest.mark.parametrize("chance", [0.3, 1e-3, 1e-9])
def test_so_many_places_that_are_not_drawn_are_rare(places: int, draws: int, chance: float) -> None:
    found = stream_meetings._empty(places, draws, chance)
    law = empty_law(places, draws)
    mean = float(law @ np.arange(places + 1))
    assert found >= places or law[math.ceil(found) :].sum() <= chance
    assert mean < found <= mean + math.sqrt(places * math.log(1.0 / chance) / 2.0)  # Hoeffding's


@pytest.mark.parametrize(
    ("places", "draws", "chance"),
    [
        (10**4, 60_000, 1e-9),
        (10**9, 3 * 10**9, 1e-9),
        (10**15, 10**12, 1e-9),
        (30346978738816, 380909342178546, 0.0028),
    ],
)
def test_so_many_places_are_rare_to_all_digits(places: int, draws: int, chance: float) -> None:
    """Of 10^13 places the divergence is 1e-13, not far from the rounding of its terms."""
    found = stream_meetings._empty(places, draws, chance)
    with workdps(60):
        part, missed = mpf(found) / places, mp.exp(draws * mp.log1p(-mpf(1) / places))
        divergence = part * mp.log(part / missed) + (1 - part) * mp.log((1 - part) / (1 - missed))
        assert missed < part <= 1
        assert places * divergence >= -mp.log(mpf(chance))


def test_windows_hide_a_lone_copy_among_most_of_the_batches_of_the_buffer() -> None:
    """Of 10,000 places 9,700 come up in 232 batches with all but 1e-9, 256 in the batch that a copy comes in."""
    found = stream_meetings.hiding_windows(BufferedShuffle(60_000, 256, 10_000, releases=14_000), 1e-5)
    assert found is not None
    assert 0.95 * 10_000 / 256 < found.batches + 1.0 < 10_000 / 256
    assert found.count == 60
    assert stream_meetings.hiding_windows(BufferedShuffle(1000, 256, 600, releases=10), 1e-5) is None
    assert stream_meetings.hiding_windows(BufferedShuffle(10_000, 256, 600, releases=10), 1e-5) is None


def test_what_no_lone_copy_costs_is_a_law() -> None:
    """Of 60 copies .8 leave in the batch that they come in, and .15 leave in a window together with an older one."""
    law = stream_meetings.costs_beside(BufferedShuffle(60_000, 256, 10_000, releases=14_000), 1e-5)
    assert law is not None
    assert math.isclose(law.sum(), 1.0, rel_tol=1e-8)
    assert (law >= 0).all()
    assert law[-1] < 1e-8
    assert 1.1 < law[:-1] @ np.arange(len(law) - 1.0) < 3.0


def test_the_least_delta_there_is_has_windows() -> None:
    """A share of it is 0 in floats, and has no logarithm."""
    found = stream_meetings.hiding_windows(BufferedShuffle(60_000, 256, 10_000, releases=14_000), 5e-324)
    assert found is not None
    assert 0 < found.lost < 1e-300
