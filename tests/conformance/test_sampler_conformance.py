"""Every sampler of SAMPLERS, at its typical keys, obeys the interface.

A sampler that is added to the table is tested as it stands: its keys, its draws, and bounds that do not cross.
"""

import json
from collections import Counter

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian
from dpaudit.verify.claim_files import claim_from_dict, claim_to_dict
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.monte_carlo import monte_carlo_lower
from dpaudit.verify.samplers import SAMPLERS, Sampler, sampler_from_dict, sampler_to_dict
from dpaudit.verify.upper import upper_curve

RECORDS = 23
EPSILONS = np.array([0.0, 0.1, 0.5, 1.0, 2.0, 4.0, 8.0, 100.0])


def typical(kind: str) -> Sampler:
    return sampler_from_dict(kind, SAMPLERS[kind].typical)


def claim(kind: str) -> Claim:
    return Claim(1.0, 1e-5, (Phase(Gaussian(1.5, dimension=2), sampler=typical(kind)),), "zero-out", id="a")


@pytest.mark.parametrize("kind", SAMPLERS)
def test_keys_go_to_a_file_and_back(kind: str) -> None:
    sampler = typical(kind)
    assert sampler.kind == kind
    assert sampler.summary
    assert sampler_from_dict(kind, sampler_to_dict(sampler)) == sampler
    assert claim_from_dict(json.loads(json.dumps(claim_to_dict(claim(kind))))) == claim(kind)
    with pytest.raises(ValueError, match=r"unknown key 'sampling\.nonsense'"):
        sampler_from_dict(kind, {**sampler.typical, "nonsense": 1})


@pytest.mark.parametrize("kind", SAMPLERS)
def test_draws_have_the_releases_and_no_more_meetings_than_accounted(kind: str) -> None:
    sampler, rng = typical(kind), np.random.default_rng(1)
    for _ in range(30):
        batches = sampler.draw(rng, RECORDS)
        assert len(batches) == sampler.steps
        squares: Counter[int] = Counter()
        for batch in batches:
            squares.update({int(record): count**2 for record, count in Counter(batch.tolist()).items()})
        assert max(squares.values()) <= sampler.meetings
        assert sampler.meets_twice or all(len(set(batch.tolist())) == len(batch) for batch in batches)
        assert set(squares) <= set(range(RECORDS))


@pytest.mark.parametrize("kind", SAMPLERS)
def test_batches_are_as_large_as_the_public_rate_says(kind: str) -> None:
    """Up to rounding to whole records, and to what is cut."""
    sampler, rng = typical(kind), np.random.default_rng(3)
    sizes = [len(batch) for _ in range(200) for batch in sampler.draw(rng, RECORDS)]
    assert 0 < sampler.rate <= 1
    assert abs(float(np.mean(sizes)) - sampler.rate * RECORDS) < 0.5


@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("replace_one", [False, True])
def test_laws_of_a_game_have_weights_and_releases_that_fit(kind: str, replace_one: bool) -> None:
    sampler = typical(kind)
    for game in sampler.games(replace_one=replace_one):
        sizes = {sum(counts) for _, counts in (*game.first, *game.second)}
        assert len(sizes) == 1
        assert 1 <= sizes.pop() * game.passes <= sampler.steps * (1 if game.stretch == 1.0 else game.passes)
        for law in (game.first, game.second):
            assert sum(weight for weight, _ in law) == pytest.approx(1.0)
            assert all(0 < weight <= 1 for weight, _ in law)
        assert game.assumption


@pytest.mark.parametrize("kind", SAMPLERS)
def test_lower_sampled_and_upper_bounds_are_in_order(kind: str) -> None:
    """The sampled bound holds at confidence 1 - 1e-6."""
    lower, upper = certified_lower(claim(kind)).delta(EPSILONS), upper_curve(claim(kind).canonical())(EPSILONS)
    assert (np.diff(lower) <= 0).all()
    assert (np.diff(upper) <= 0).all()
    assert (lower <= upper).all()
    assert lower[0] > 0
    assert upper[-1] < 1
    sampled = monte_carlo_lower(claim(kind), rng=np.random.default_rng(2), samples=5_000, confidence=1.0 - 1e-6)
    assert float(sampled.delta(np.array([0.1]))[0]) <= upper[1]


@pytest.mark.parametrize("sigma", [0.01, pytest.param(1e5, marks=pytest.mark.slow)])
@pytest.mark.parametrize("kind", SAMPLERS)
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_extreme_noise_has_ordered_bounds(kind: str, sigma: float, adjacency: Adjacency) -> None:
    """No overflow, no array of the size of the loss, and where noise is large a bound that certifies."""
    extreme = Claim(1.0, 1e-5, (Phase(Gaussian(sigma, dimension=2), sampler=typical(kind)),), adjacency)
    lower, upper = certified_lower(extreme).delta(EPSILONS), upper_curve(extreme.canonical())(EPSILONS)
    assert (lower <= upper).all()
    assert sigma > 1.0 or lower[4] > 1e-4
    assert sigma < 1.0 or kind == "truncated-poisson" or upper[3] < 1e-5  # else a cut may be likely
