"""Poisson batches drawn by their gaps: the law is that of independent coins, a generator alone decides on its batch."""

import math

import numpy as np
import pytest
import torch
from reference import DEVICE, poisson_batch
from scipy import stats

from dpaudit.mechanisms.learning import poisson
from dpaudit.mechanisms.learning.noise import Streams


def generators(count: int) -> list[torch.Generator]:
    return [Streams(seed, DEVICE).sampling for seed in range(count)]


@pytest.mark.parametrize("q", [0.07, 0.5, 0.95])
def test_every_subset_has_the_probability_that_coins_give_it(q: float) -> None:
    records, count, several = 5, 100_000, generators(1000)
    places = torch.cat([poisson.places(several, q, records)[:, : records + 1].cpu() for _ in range(100)])
    member = torch.zeros(count, records + 1, dtype=torch.int64).scatter_(1, places, 1)[:, :records]
    subsets = np.arange(2**records)
    sizes = np.array([subset.bit_count() for subset in subsets])
    observed = np.bincount((member @ (2 ** torch.arange(records))).numpy(), minlength=len(subsets))

    def pvalue(rate: float) -> float:
        expected = count * rate**sizes * (1 - rate) ** (records - sizes)
        common = expected > 20
        rare = [] if common.all() else [~common]
        pooled = [[*values[common], *(values[part].sum() for part in rare)] for values in (observed, expected)]
        return float(stats.chisquare(*pooled).pvalue)

    assert pvalue(q) > 1e-6
    assert pvalue(q + 0.01) < 1e-6


def test_a_rate_below_the_resolution_of_float32_is_kept() -> None:
    q, records, count = 1e-9, 10**8, 10_000  # a coin in float32 would fall 1 with probability 6e-8, 60 times as often
    total = int((poisson.places(generators(count), q, records) < records).sum())
    assert abs(total - count * records * q) < 5 * math.sqrt(count * records * q)  # P < 6e-7


def test_batches_equal_those_of_a_plain_loop_one_after_another() -> None:
    several, streams = generators(4), [Streams(seed, DEVICE) for seed in range(4)]
    for _ in range(3):
        places = poisson.places(several, 0.2, 50)
        assert [row[row < 50].tolist() for row in places] == [poisson_batch(stream, 50, 0.2) for stream in streams]
        assert bool((places[:, -1] == 50).all())


@pytest.mark.skipif(DEVICE.type != "cpu", reason="a GPU's generator draws in blocks, however few numbers are asked for")
def test_a_batch_that_needs_more_draws_than_expected_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = poisson.places(generators(6), 0.3, 40)
    monkeypatch.setattr(poisson, "draws", lambda q, records: 1)
    one_by_one = poisson.places(generators(6), 0.3, 40)
    assert [row[row < 40].tolist() for row in one_by_one] == [row[row < 40].tolist() for row in at_once]
