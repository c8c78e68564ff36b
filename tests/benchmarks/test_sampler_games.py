"""Games of every sampler, as it draws batches, against its certified bounds: the benchmark's, with fewer histories."""

import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.samplers import Shuffled
from dpaudit.verify.sampling.games import history_games

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"
RUNS = 10_000


@pytest.fixture(scope="module")
def benchmark() -> Iterator[ModuleType]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(str(BENCHMARKS))
        yield import_module("sampler_games")
    sys.modules.pop("sampler_games", None)


def row(benchmark: ModuleType, name: str, adjacency: str, noise: int, runs: int = RUNS) -> Any:
    [setting] = [setting for setting in benchmark.SETTINGS if setting.name == name]
    rng = np.random.default_rng(5)
    mechanism = setting.mechanisms()[noise]
    return benchmark.play(setting, mechanism, adjacency, benchmark.draws(setting, runs, rng), rng, 10)


@pytest.mark.parametrize(
    ("name", "adjacency", "noise"),
    [
        ("poisson", "replace-one", 0),
        ("shuffled, straddling", "zero-out", 0),
        pytest.param("shuffled once, straddling", "zero-out", 0, marks=pytest.mark.slow),
        pytest.param("without-replacement", "replace-one", 1, marks=pytest.mark.slow),
        pytest.param("truncated-poisson, often", "zero-out", 0, marks=pytest.mark.slow),
    ],
)
def test_batches_as_drawn_contradict_no_bound_and_reach_the_lower_one(
    benchmark: ModuleType, name: str, adjacency: str, noise: int
) -> None:
    """A contradiction of true bounds has probability 1e-6; 60% of the log-odds are asked of a tenth of the runs."""
    played = row(benchmark, name, adjacency, noise)
    assert played.contradictions == ()
    assert played.reached > 0.6 * played.lower > 0


def test_a_contradiction_is_seen(benchmark: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """Bounds of more noise than is played lie below what is seen, and those of less noise above it."""
    true_curve, true_lower = benchmark.upper_curve, benchmark.certified_lower

    def with_noise(claim: Claim, noise: float) -> Claim:
        return Claim(1.0, benchmark.DELTA, (Phase(Gaussian(noise, dimension=1), claim.phases[0].steps, 1.0, "none"),))

    monkeypatch.setattr(benchmark, "upper_curve", lambda claim: true_curve(with_noise(claim, 2.0)))
    assert any("certified <=" in wrong for wrong in row(benchmark, "none", "zero-out", 0).contradictions)
    monkeypatch.setattr(benchmark, "upper_curve", true_curve)
    monkeypatch.setattr(benchmark, "certified_lower", lambda claim: true_lower(with_noise(claim, 1.2)))
    assert any("is certified, and" in wrong for wrong in row(benchmark, "none", "zero-out", 0).contradictions)


def test_one_order_that_is_cut_in_another_place_in_every_pass_adds_up_where_it_is_cut_alike() -> None:
    """50 records in straddling batches of 4: the first and third pass begin with a batch, the others do not.

    Adding up all four passes, as if their batches held the same records, gave lower bounds that the likelihood ratio of
    this pair of data sets, taken over all 50 places, does not reach.
    """
    sampler = Shuffled.of(50, 4, 4, last_batch="straddling", reshuffle="once")
    (game,) = sampler.games(replace_one=False)
    assert (game.passes, game.stretch) == (1, np.sqrt(2.0))
    (played,) = history_games(Phase(Gaussian(1.0, dimension=1), sampler=sampler), replace_one=False)
    assert played.releases.tolist() == [[list(range(12)), list(range(25, 37))]]
    for seed in range(20):
        batches = sampler.draw(np.random.default_rng(seed), 50)
        first, third = ([set(batches[t]) for t in row] for row in played.releases[0])
        assert first == third
