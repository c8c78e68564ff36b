"""Buffered shuffles against every history that a small buffer can have, one random choice after the other."""

from collections import defaultdict
from fractions import Fraction
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from buffers import orders
from scipy.stats import chisquare

from dpaudit.mechanisms import Gaussian
from dpaudit.verify import check
from dpaudit.verify.claim_files import claim_from_dict, claim_to_dict
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import BufferedShuffle, Shuffled
from dpaudit.verify.samplers.shuffled import LastBatch


@pytest.mark.parametrize("last_batch", ["kept", "dropped", "straddling"])
@pytest.mark.parametrize(
    ("records", "batch", "buffer"), [(6, 2, 4), (7, 2, 5), (7, 3, 4), (6, 3, 2), (5, 3, 4), (6, 4, 2)]
)
def test_the_game_is_what_the_histories_of_one_record_are(
    records: int, batch: int, buffer: int, last_batch: LastBatch
) -> None:
    """Of every pass, where its first draw is in the batches: each of the game's batches has the record alike."""
    sampler = BufferedShuffle(records, batch, buffer, 2, last_batch)
    [game] = sampler.games(replace_one=False)
    count = sum(game.first[0][1])
    for epoch, start in enumerate(sampler.whole_starts):
        before = epoch * records if last_batch == "straddling" else epoch * -(-records // batch) * batch
        before = epoch * (records // batch) * batch if last_batch == "dropped" else before
        record = records - 1 if sampler.hidden_batches else 0
        chances: dict[int, Fraction] = defaultdict(Fraction)
        for chance, order in orders(records, buffer):
            chances[(before + order.index(record)) // batch] += chance
        seen = [chances[start + place] for place in range(count)]
        assert float(sum(seen)) == pytest.approx(game.first[0][0])
        assert len(set(seen)) == 1
        assert start >= 0
        assert start + count <= sampler.steps


def test_draws_are_those_of_a_buffer() -> None:
    law = {order: float(chance) for chance, order in orders(5, 3)}
    found: dict[tuple[int, ...], int] = dict.fromkeys(law, 0)
    rng, sampler = np.random.default_rng(5), BufferedShuffle(5, 2, 3, 1)
    runs = 20_000
    for _ in range(runs):
        found[tuple(int(record) for batch in sampler.draw(rng, 5) for record in batch)] += 1
    assert chisquare(list(found.values()), runs * np.array(list(law.values()))).pvalue > 1e-4


def test_a_stream_is_drawn_from_one_buffer() -> None:
    """Two records in a buffer of two: in place of the first one that is drawn comes record 0 again."""
    rng, sampler, runs = np.random.default_rng(6), BufferedShuffle(2, 2, 2, releases=1), 8000
    batches = [tuple(sampler.draw(rng, 2)[0].tolist()) for _ in range(runs)]
    found = [batches.count(batch) for batch in ((0, 1), (0, 0), (1, 0))]
    assert sum(found) == runs
    assert chisquare(found, runs * np.array([0.25, 0.25, 0.5])).pvalue > 1e-4


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"epochs": 2, "releases": 3}, "Expected epochs, of passes"),
        ({}, "Expected epochs, of passes"),
        ({"epochs": 2, "buffer": 0}, "buffer=0"),
        ({"epochs": 2, "batch": 9}, "batch=9 to be at most records=8"),
        ({"releases": 2, "last_batch": "dropped"}, "last_batch='dropped' with epochs alone"),
        ({"epochs": 2, "last_batch": "torn"}, "last_batch='torn'"),
        ({"releases": 10**6}, "at most 100,000 passes: 250,001"),
    ],
)
def test_keys_that_do_not_fit_are_refused(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        BufferedShuffle(**{"records": 8, "batch": 2, "buffer": 5, **keys})


def claim(**keys: Any) -> Claim:
    return Claim(1.0, 1e-5, (Phase(Gaussian(2.0), sampler=BufferedShuffle(**keys)),), "zero-out", "a")


def test_a_buffer_of_all_records_is_a_shuffle_and_one_of_one_is_none() -> None:
    whole = Claim(1.0, 1e-5, (Phase(Gaussian(2.0), sampler=Shuffled.of(23, 5, 3)),), "zero-out", "a")
    known = Claim(1.0, 1e-5, (Phase(Gaussian(2.0), 3, 1.0, "none"),), "zero-out", "a")
    assert claim(records=23, batch=5, buffer=23, epochs=3).canonical() == whole.canonical()
    assert claim(records=23, batch=5, buffer=1, epochs=3).canonical() == known.canonical()
    assert claim(records=23, batch=5, buffer=1, releases=13).canonical() == known.canonical()  # 65 draws


def test_fewer_places_to_hide_cost_more() -> None:
    lower = [
        check(claim(records=2000, batch=20, buffer=buffer, epochs=5)).epsilon_lower
        for buffer in (1, 10, 40, 200, 1000, 2000)
    ]
    assert all(a > b for a, b in pairwise(lower))


@pytest.mark.parametrize(
    "table",
    [
        {"records": 50_000, "batch": 500, "buffer": 5000, "epochs": 3, "last_batch": "dropped"},
        {"records": 50_000, "batch": 500, "buffer": 5000, "steps": 301},
    ],
)
def test_claims_files_have_either_of_the_two(table: dict[str, Any]) -> None:
    row = {"id": "a", "epsilon": 1.0, "delta": 1e-5, "mechanism": {"name": "gaussian", "noise_multiplier": 1.0}}
    read = claim_from_dict({**row, "sampling": {"kind": "buffered-shuffle", **table}})
    assert claim_from_dict(claim_to_dict(read)) == read
    apart = {key: value for key, value in table.items() if key != "steps"}
    beside = claim_from_dict({**row, "steps": read.phases[0].steps, "sampling": {"kind": "buffered-shuffle", **apart}})
    assert beside == read


def test_a_rate_alone_decides_nothing() -> None:
    row = {
        "id": "a",
        "epsilon": 1.0,
        "delta": 1e-5,
        "steps": 9,
        "mechanism": {"name": "gaussian", "noise_multiplier": 1},
    }
    verdict = check(claim_from_dict({**row, "sampling": {"kind": "buffered-shuffle", "prob": 0.1}}))
    assert verdict.verdict == "undecided"
    assert "give its keys" in verdict.reason


def test_batches_that_divide_the_records_do_not_straddle() -> None:
    """They are those that are dropped, or kept; so too in a single pass."""
    for records, batch, epochs in ((100, 10, 3), (103, 10, 1)):
        straddling = BufferedShuffle(records, batch, 40, epochs, "straddling")
        dropped = BufferedShuffle(records, batch, 40, epochs, "dropped")
        assert straddling.games(replace_one=False) == dropped.games(replace_one=False)
        assert straddling.whole_starts == dropped.whole_starts
    assert min(BufferedShuffle(23, 4, 30, 3, "straddling").whole_starts) >= 0
