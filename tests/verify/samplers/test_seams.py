"""Where batches straddle two passes: the law of how many hold a record twice, by enumeration of all its places."""

import math
from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from itertools import product

import numpy as np
import pytest

from dpaudit.verify.samplers import BufferedShuffle, Shuffled
from dpaudit.verify.samplers.seams import MOST_PASSES, chances

Law = Sequence[float]


def buffer_places(records: int, buffer: int, own: int) -> Law:
    """Law of the draw that takes record `own` of the file, draw by draw."""
    law, left = [0.0] * records, 1.0
    for draw in range(records):
        held = min(buffer, records - draw)
        if own < buffer + draw:
            law[draw] = left / held
            left -= law[draw]
    return law


def seams_by_enumeration(records: int, batch: int, epochs: int) -> dict[int, float]:
    """Law of the sum of squares of how often the batches that straddle hold the record."""
    found: dict[int, float] = {}
    for at in product(range(records), repeat=epochs):
        times = Counter((i * records + place) // batch for i, place in enumerate(at))
        seams = [b for b in times if b * batch // records < ((b + 1) * batch - 1) // records < epochs]
        cost = sum(times[b] ** 2 for b in seams)
        found[cost] = found.get(cost, 0.0) + records ** -float(epochs)
    return found


def twice_by_enumeration(records: int, batch: int, epochs: int, places: Law) -> Law:
    """Law of the number of batches with the record twice; records that are left over at the end are in none."""
    found = [0.0] * (epochs // 2 + 1)
    for at in product(range(records), repeat=epochs):
        batches = [(i * records + place) // batch for i, place in enumerate(at)]
        whole = [b for b in batches if b < records * epochs // batch]
        found[len(whole) - len(set(whole))] += math.prod(places[place] for place in at)
    return found


@pytest.mark.parametrize(("records", "batch"), [(2, 1), (3, 2), (4, 3), (5, 2), (5, 3), (5, 4), (6, 4), (7, 5)])
@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_the_law_is_that_of_all_places(records: int, batch: int, epochs: int) -> None:
    sampler = Shuffled.of(records, batch, epochs, last_batch="straddling")
    truth = twice_by_enumeration(records, batch, epochs, [1.0 / records] * records)
    if not sampler.meets_twice:
        assert truth[0] == pytest.approx(1.0)
        assert sampler.twice_chances is None
        return
    assert sampler.seam_chances is not None
    seams = seams_by_enumeration(records, batch, epochs)
    truth_of_all = [seams.get(k, 0.0) for k in range(2 * epochs + 2)]
    assert sampler.seam_chances == pytest.approx(truth_of_all, rel=1e-10, abs=1e-11)
    assert sampler.twice_chances is not None
    found = np.append(sampler.twice_chances, [0.0] * (epochs // 2 - sampler.most_twice))
    assert found == pytest.approx(truth, rel=1e-10, abs=1e-11)
    assert np.all(found >= np.array(truth) * (1.0 - 1e-14))


@pytest.mark.parametrize(
    ("records", "batch", "buffer"), [(5, 2, 2), (5, 2, 4), (5, 3, 2), (7, 2, 3), (7, 3, 2), (7, 3, 5)]
)
@pytest.mark.parametrize("epochs", [2, 3, 4])
def test_no_record_of_a_buffer_is_in_them_more_often(records: int, batch: int, buffer: int, epochs: int) -> None:
    sampler = BufferedShuffle(records, batch, buffer, epochs, last_batch="straddling")
    if (found := sampler.twice_chances) is None:
        pytest.skip("no law is known")
    more = np.cumsum(np.append(found, [0.0] * (epochs // 2 + 1 - len(found)))[::-1])[::-1]
    laws = [twice_by_enumeration(records, batch, epochs, buffer_places(records, buffer, r)) for r in range(records)]
    largest = np.max([np.cumsum(law[::-1])[::-1] for law in laws], axis=0)
    assert np.all(more >= largest * (1.0 - 1e-12))
    assert more[1] <= 3.0 * largest[1] + 1e-9


def test_a_short_buffer_hardly_ever_has_one_in_a_large_file() -> None:
    """A record is in the first batch of a pass only if it comes early in the file, and then is not held to its end."""
    sampler = BufferedShuffle(60_000, 256, 10_000, 60, last_batch="straddling")
    found, whole = sampler.twice_chances, Shuffled.of(60_000, 256, 60, last_batch="straddling").twice_chances
    assert found is not None
    assert whole is not None
    assert 1e-6 < found[1] < 1e-4 < whole[1] < 3e-4


def test_a_mean_is_that_of_all_seams() -> None:
    """By linearity: the sum over seams of what the two ends are of a pass."""
    first, last = np.array([0.0, 0.3, 0.2, 0.5, 0.1]), np.array([0.4, 0.6, 0.8, 0.1, 0.9])
    for place, pair in ((0, 1), (1, 2), (3, 0)):
        found = chances(first, last, place=place, pair=pair, most=30)
        assert found.sum() == pytest.approx(1.0, abs=1e-13)
        mean = place * (first + last).sum() + pair * (last[:-1] @ first[1:])
        assert found @ np.arange(len(found)) == pytest.approx(mean, rel=1e-12)


def test_larger_sums_count_as_the_largest() -> None:
    first, last = np.array([0.0, 0.3, 0.2, 0.5, 0.1]), np.array([0.4, 0.6, 0.8, 0.1, 0.9])
    whole = chances(first, last, place=1, pair=2, most=20)
    for most in (0, 1, 2, 7):
        found = chances(first, last, place=1, pair=2, most=most)
        assert found == pytest.approx([*whole[:most], whole[most:].sum()], abs=1e-13)


def test_too_many_passes_have_no_law() -> None:
    assert Shuffled.of(5, 2, MOST_PASSES, last_batch="straddling").twice_chances is not None
    assert Shuffled.of(5, 2, MOST_PASSES + 1, last_batch="straddling").twice_chances is None


def test_few_draws_from_a_large_buffer_are_not_lost_in_rounding() -> None:
    """What three draws of 10^15 leave is 1 less few units in the last place: the chance was 5e-4 of it too small."""
    records, batch = 10**15 - 11, 499_999_999_999_996
    buffer, over = records - 1, records % batch
    first = 1 - (1 - Fraction(1, buffer)) * Fraction(records - (batch - over), buffer)
    twice = first * (1 - Fraction(1, buffer)) * Fraction(over, buffer)
    found = BufferedShuffle(records, batch, buffer, 2, "straddling").twice_chances
    assert found is not None
    assert twice <= Fraction(float(found[1])) <= twice * (1 + Fraction(1, 10**11))
