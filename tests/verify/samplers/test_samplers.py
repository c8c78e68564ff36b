"""Every sampler: what it draws against what its pairs and counts say, its keys in a file, and what it refuses."""

from collections import Counter
from itertools import product
from typing import Any, Literal

import numpy as np
import pytest
from scipy.stats import binom

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import check
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import (
    BallsInBins,
    Deterministic,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
    sampler_from_dict,
)

EXAMPLES: list[Sampler] = [
    Deterministic(4, 3),
    Shuffled(4, 3),
    Shuffled(4, 3, reshuffle="once"),
    Shuffled.of(23, 5, 4),
    Shuffled.of(23, 5, 4, last_batch="dropped"),
    Shuffled.of(23, 5, 4, last_batch="straddling"),
    BallsInBins(4, 3),
    BallsInBins(4, 3, reshuffle="once"),
    RandomAllocation(12, 5),
    WithoutReplacement(5 / 23, 6),
    TruncatedPoisson(0.3, 6, 23, 6),
]


@pytest.mark.parametrize("sampler", EXAMPLES, ids=repr)
def test_draws_have_the_releases_and_the_meetings_that_are_accounted(sampler: Sampler) -> None:
    rng, records, straddling = np.random.default_rng(1), 23, 0
    for _ in range(50):
        batches = sampler.draw(rng, records)
        assert len(batches) == sampler.steps
        squares = Counter()
        for batch in batches:
            squares.update({int(record): count**2 for record, count in Counter(batch.tolist()).items()})
        straddling = max(straddling, *squares.values())
        whole = not isinstance(sampler, (WithoutReplacement, TruncatedPoisson))
        if whole and getattr(sampler, "last_batch", "kept") == "kept":  # nothing is left out
            assert set(squares.values()) == {sampler.meetings}
        assert max(squares.values()) <= sampler.meetings
    if getattr(sampler, "last_batch", "") == "straddling":
        assert straddling > 4  # a record really is twice in some batch


@pytest.mark.parametrize("reshuffle", ["every-epoch", "once"])
@pytest.mark.parametrize(("records", "batch"), [(5, 2), (5, 3), (6, 4), (6, 3), (4, 4), (7, 6)])
def test_squared_meetings_of_every_place_in_straddling_batches(
    records: int, batch: int, reshuffle: Literal["every-epoch", "once"]
) -> None:
    """All ways for a record to lie in up to four passes: the largest sum of squares, but for the batch that is lost."""
    for epochs in range(1, 5):
        sampler = Shuffled.of(records, batch, epochs, last_batch="straddling", reshuffle=reshuffle)
        free = [range(records)] * (1 if reshuffle == "once" else epochs)
        most, twice = 0, False
        for places in product(*free):
            stream = [place + records * epoch for epoch, place in enumerate(places * (epochs // len(places)))]
            counts = Counter(place // batch for place in stream if place < sampler.steps * batch).values()
            most, twice = max(most, sum(count**2 for count in counts)), twice or max(counts, default=0) > 1
        assert sampler.meetings == most
        assert sampler.meets_twice == twice


def test_looked_at_are_all_passes_with_so_many_whole_batches() -> None:
    """Batch by batch of every stream of up to 12 records and 7 passes."""
    for records, batch, epochs in product(range(2, 13), range(1, 13), range(2, 8)):
        if batch > records:
            continue
        sampler = Shuffled.of(records, batch, epochs, last_batch="straddling")
        first = [place // records for place in range(0, sampler.steps * batch, batch)]
        last = [place // records for place in range(batch - 1, sampler.steps * batch, batch)]
        whole = [[j for j in range(sampler.steps) if first[j] == last[j] == epoch] for epoch in range(epochs)]
        if sampler.straddles:
            count = sampler.whole_batches
            assert 1 <= count <= max(min(map(len, whole)), 1)
            assert list(sampler.whole_passes) == [epoch for epoch in range(epochs) if len(whole[epoch]) >= count]
            assert sampler.whole_starts == [whole[epoch][0] for epoch in sampler.whole_passes]


@pytest.mark.parametrize("sampler", [e for e in EXAMPLES if e.games(replace_one=False)], ids=repr)
def test_the_record_is_in_each_release_as_often_as_its_game_says(sampler: Sampler) -> None:
    """Of the releases that the game counts, the record enters the stated number, and every one equally often.

    4,000 draws; five standard deviations of a rate are at most 0.04.
    """
    game = sampler.games(replace_one=False)[0]
    rng, releases = np.random.default_rng(2), sum(game.first[0][1])
    in_pass = np.zeros(4000, dtype=int)
    places = np.zeros(releases)
    for trial in range(4000):
        batches = sampler.draw(rng, 23)[:releases]
        entered = [record_is_in(batch) for batch in batches]
        in_pass[trial], places = sum(entered), places + entered
    expected = sum(weight * (counts[1] + counts[2]) for weight, counts in game.first)
    assert in_pass.mean() == pytest.approx(expected, abs=0.04)
    sizes = np.array([len(batch) for batch in sampler.draw(rng, 23)[:releases]])
    if sizes.min() == sizes.max() or not isinstance(sampler, Shuffled):
        assert places / 4000 == pytest.approx(np.full(releases, expected / releases), abs=0.04)


def record_is_in(batch: np.ndarray) -> bool:
    return bool((batch == 0).any())


@pytest.mark.parametrize(
    ("kind", "keys", "message"),
    [
        ("shuffled", {"batches": 0, "epochs": 1}, "batches=0"),
        ("shuffled", {"batches": 3, "epochs": 1.5}, "epochs=1.5"),
        ("shuffled", {"epochs": 1}, "sampling.batches, or"),
        ("shuffled", {"batches": 3}, "sampling.epochs to be given"),
        ("shuffled", {"records": 10, "batch": 11, "epochs": 1}, "batch=11"),
        ("shuffled", {"records": 10, "batch": 2, "batches": 6, "epochs": 1}, "batches=6"),
        ("shuffled", {"batches": 3, "epochs": 1, "last_batch": "dropped"}, "records and batch"),
        ("shuffled", {"batches": 3, "epochs": 1, "times": 2}, "unknown key 'sampling.times'"),
        ("random-allocation", {"steps": 3, "times": 4}, "times=4"),
        ("balls-in-bins", {"epochs": 4}, "sampling.batches to be given"),
        ("balls-in-bins", {"batches": 2, "epochs": 4, "reshuffle": "never"}, "reshuffle='never' among"),
        ("shuffled", {"records": 10, "batch": 2, "epochs": 1, "last_batch": "lost"}, "last_batch='lost' among"),
        ("without-replacement", {"prob": 1.5, "steps": 4}, "prob=1.5"),
        ("truncated-poisson", {"prob": 0.5, "max_batch": 9, "records": 8, "steps": 4}, "max_batch=9"),
    ],
)
def test_wrong_keys_are_refused_by_name(kind: str, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        sampler_from_dict(kind, keys)


@pytest.mark.parametrize(
    ("sampler", "alike"),
    [
        (Shuffled(100, 10**9 - 1, reshuffle="once"), 10**9 - 1),
        (Shuffled.of(62, 26, 10**9 - 1, last_batch="straddling", reshuffle="once"), -(-(10**9 - 1) // 13)),
    ],
)
def test_passes_of_one_order_are_counted_without_a_list_of_them(sampler: Shuffled, alike: int) -> None:
    [game] = sampler.games(replace_one=False)
    assert game.stretch**2 == pytest.approx(alike)


def test_batches_of_the_last_one() -> None:
    """60,000 records in batches of 256 are 234.375 batches."""
    assert Shuffled.of(60_000, 256, 60).steps == 235 * 60
    assert Shuffled.of(60_000, 256, 60, last_batch="dropped").steps == 234 * 60
    straddling = Shuffled.of(60_000, 256, 60, last_batch="straddling")
    assert straddling.steps == 14_062
    assert straddling.whole_batches == (60_000 - 255) // 256


def test_batches_that_are_cut_keep_a_record_as_often_as_stated() -> None:
    """Against 40,000 batches, five standard deviations; and the sum over the binomial law, term by term."""
    sampler = TruncatedPoisson(0.3, 6, 23, 40_000)
    rng = np.random.default_rng(5)
    kept = np.mean([record_is_in(batch) for batch in sampler.draw(rng, 23)])
    assert kept == pytest.approx(sampler.kept_rate, abs=5 * np.sqrt(0.3 * 0.7 / 40_000))
    others = np.arange(23)
    exact = 0.3 * float(binom.pmf(others, 22, 0.3) @ np.minimum(1.0, 6 / (1 + others)))
    assert sampler.kept_rate == pytest.approx(exact, rel=1e-8)
    assert sampler.kept_rate < exact
    assert TruncatedPoisson(0.3, 9, 23, 2).overflow == pytest.approx(2 * float(binom.sf(8, 22, 0.3)), rel=1e-8)


@pytest.mark.parametrize(
    ("prob", "cap", "records"),
    [
        (1e-10, 10, 9 * 10**14),  # more records than 32 bits hold: 90,000 are drawn, 10 stay
        (1e-12, 10, 10**10),
        (3.414078258199093e-08, 36, 1_185_330_789),
        (256 / 60_000, 300, 60_000),
        (0.4, 40_020_000, 10**8),
        (1e-8, 10**7, 10**9),
    ],
)
def test_chances_of_cuts_of_any_size_are_on_their_sides(prob: float, cap: int, records: int) -> None:
    """Against incomplete beta functions in balls; the sums are near them wherever fewer than 2^20 masses matter."""
    flint = pytest.importorskip("flint")
    sampler = TruncatedPoisson(prob, cap, records, 3)
    with flint.ctx.workprec(400):
        q = flint.arb(prob)
        above = q.beta_lower(flint.arb(cap + 1), flint.arb(records - cap), regularized=True)
        full = q.beta_lower(flint.arb(cap), flint.arb(records - cap), regularized=True)  # by the others alone
        kept = q * (1 - full) + above * cap / records
        assert 3 * full <= sampler.overflow or sampler.overflow == 1.0
        assert flint.arb(sampler.kept_rate) <= kept
        assert flint.arb(sampler.kept_rate) >= kept * (1 - flint.arb("1e-7"))
        assert sampler.overflow <= max(min(1.0, float(3 * full) * (1 + 1e-7)), 1e-190)


def test_batches_too_large_to_sum_still_keep_somebody() -> None:
    """Of 4.5e14 drawn records one is kept: each with probability 1 / 9e14."""
    sampler = TruncatedPoisson(0.5, 1, 9 * 10**14, 3)
    assert 0.5 / 9e14 <= sampler.kept_rate * (1 + 1e-9) <= 1 / 9e14
    assert sampler.overflow == 1.0


def test_the_least_rate_of_cut_batches_leaves_a_rate_of_what_is_kept() -> None:
    """At 1e-300, the least rate of other samplers, what is kept was refused as a rate of its own, in a traceback."""
    with pytest.raises(ValueError, match="prob=1e-300 in"):
        TruncatedPoisson(1e-300, 2, 5, 2)
    claim = Claim(1.0, 1e-5, [Phase(Gaussian(1.0), sampler=TruncatedPoisson(1e-299, 2, 5, 2))])
    assert check(claim).verdict == "certified"
