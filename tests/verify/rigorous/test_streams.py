"""The event of a stream in balls: against simulated buffers, and against the first engine's bracket."""

import numpy as np
import pytest

pytest.importorskip("flint")

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, Phase, check
from dpaudit.verify.rigorous.balls import Unavailable
from dpaudit.verify.rigorous.bracket import RigorousBracket, rigorous_bracket
from dpaudit.verify.rigorous.streams import held_batches, stream_event
from dpaudit.verify.samplers import BufferedShuffle

STREAM = BufferedShuffle(records=60, batch=12, buffer=5, releases=30)


def batches_of_the_first_record(sampler: BufferedShuffle, rng: np.random.Generator) -> list[int]:
    """Of each copy of record 0, the batch that it is in: a buffer of the file read again and again; -1 if in none."""
    draws = sampler.steps * sampler.batch
    held, entered, found = list(range(sampler.buffer)), sampler.buffer, dict[int, int]()
    for draw in range(draws):
        slot = int(rng.integers(sampler.buffer))
        if held[slot] % sampler.records == 0:
            found[held[slot] // sampler.records] = draw // sampler.batch
        held[slot] = entered
        entered += 1
    return [found.get(i, -1) for i in range(sampler.begun)]


@pytest.mark.parametrize("late", [0.3, 0.05, 1e-3])
def test_copies_come_later_no_more_often_than_is_said(late: float) -> None:
    rng, histories = np.random.default_rng(3), 2000
    copies, batches, missed = held_batches(STREAM, late)
    needed = int(np.ceil(np.log(late) / np.log(1 - 1 / STREAM.buffer)))
    starts = [max(i * STREAM.records - STREAM.buffer + 1, 0) for i in range(STREAM.begun)]
    windows = [range(start // 12, -(-(start + needed) // 12)) for start in starts]
    windows = [window for window in windows if window.stop <= STREAM.steps]
    assert copies == len(windows)
    assert batches == len({index for window in windows for index in window})
    held = [batches_of_the_first_record(STREAM, rng) for _ in range(histories)]
    late_ones = [any(at not in window for at, window in zip(one, windows, strict=False)) for one in held]
    bound = float(missed)
    assert np.mean(late_ones) <= bound + 4 * np.sqrt(bound / histories) + 3 / histories
    assert bound <= copies * late


@pytest.mark.parametrize("noise", [0.5, 1.0, 3.0])
@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one", "zero-out"])
def test_both_engines_meet(noise: float, adjacency: str) -> None:
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(noise), sampler=STREAM)], adjacency)  # type: ignore[arg-type]
    fast, found = check(claim), rigorous_bracket(claim)
    assert isinstance(found, RigorousBracket)
    assert 0 < found.epsilon_lower <= fast.epsilon_upper
    assert fast.epsilon_lower <= found.epsilon_upper
    assert "batches of a stream" in found.witness
    if noise < 3.0:  # not empty; of a record that is replaced only what it contributes is seen
        assert found.delta_lower > (0.05 if adjacency == "replace-one" else 0.3) * fast.delta_lower


def test_a_stream_that_holds_no_copy_for_sure_hides_no_other() -> None:
    none = Phase(Gaussian(1.0), sampler=BufferedShuffle(records=23, batch=2, buffer=1000, releases=3))
    some = Phase(Gaussian(0.3), sampler=BufferedShuffle(records=23, batch=2, buffer=3, releases=30))
    assert isinstance(stream_event(Claim(1.0, 1e-5, [none])), Unavailable)
    found = [rigorous_bracket(Claim(1.0, 1e-5, phases, "zero-out")) for phases in ([none, some], [some, none])]
    assert all(isinstance(one, RigorousBracket) and one.delta_lower > 0.5 for one in found)


def test_other_noise_has_none() -> None:
    assert isinstance(stream_event(Claim(1.0, 1e-5, [Phase(Laplace(1.0, dimension=1), sampler=STREAM)])), Unavailable)
    assert isinstance(stream_event(Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5)), Unavailable)
