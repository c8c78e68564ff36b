"""Batches that are cut, all others at the other end: laws by enumeration, bounds by what they tend to."""

import math
from collections import Counter
from itertools import combinations, product

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.verify import Claim, check
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.lower.cut_batches import cut_curve, cut_release
from dpaudit.verify.samplers import TruncatedPoisson
from dpaudit.verify.upper import upper_curve


def laws(records: int, cap: int, prob: float, contributes: int | None) -> list[Counter[int]]:
    """Sum over a batch of +1 for the record and -1 for others; on the other side it is another one, or not there."""
    sides = [Counter[int](), Counter[int]()]
    for side, first in ((sides[0], 1), (sides[1], contributes)):
        for drawn in product((0, 1), repeat=records - (first is None)):
            chance = math.prod(prob if coin else 1.0 - prob for coin in drawn)
            who = [i for i, coin in enumerate(drawn) if coin]
            batches = list(combinations(who, min(cap, len(who))))
            for batch in batches:
                total = sum(first if i == 0 and first is not None else -1 for i in batch)
                side[total] += chance / len(batches)  # type: ignore[assignment]
    return sides


@pytest.mark.parametrize("contributes", [None, 0, -1])
@pytest.mark.parametrize(
    ("records", "cap", "prob"), [(3, 2, 0.4), (4, 1, 0.7), (5, 3, 0.2), (4, 4, 0.3), (6, 2, 0.95), (2, 1, 0.999)]
)
def test_the_laws_of_a_release_are_those_of_all_batches(
    records: int, cap: int, prob: float, contributes: int | None
) -> None:
    sampler = TruncatedPoisson(prob, cap, records, 2)
    found = cut_release(sampler, absent=contributes is None, replaced=contributes == -1)
    assert found is not None
    exact = laws(records, cap, prob, contributes)
    assert set(found.multiples) >= {*exact[0], *exact[1]}
    for pair, sides in ((found.laws, exact), (found.turned, exact[::-1])):
        for centre, first, second in zip(found.multiples, pair.first, pair.second, strict=True):
            a, b = sides[0][int(centre)], sides[1][int(centre)]
            assert a * (1.0 - 1e-9) - 1e-15 <= first <= a * (1.0 - 1e-15)
            assert b * (1.0 + 1e-15) <= second <= b * (1.0 + 1e-9) + 1e-15


def test_roundings_of_millions_of_releases_add_up_to_the_safe_side() -> None:
    """Batches that nobody else can be in, beside one that is cut: next to normal, mu = 2 q sqrt(T)/sigma."""
    steps, rate, noise = 10**8, 0.0222482, Gaussian(28185.0, dimension=1)
    never, once = TruncatedPoisson(rate, 1, 1, steps), TruncatedPoisson(6.75e-5, 1, 31, 1)
    phases = [Phase(noise, one.steps, one.kept_rate, "truncated-poisson", one) for one in (never, once)]
    curve = cut_curve(Claim(0.1, 6e-10, phases, "replace-one"))
    assert curve is not None
    mu = 2.0 * rate * math.sqrt(steps) / 28185.0
    found, true = float(curve.delta(np.zeros(1))[0]), math.erf(mu / 2.0 / math.sqrt(2.0))
    assert 0.9 * true <= found <= true * 1.001


def test_too_many_centres_are_refused() -> None:
    assert cut_release(TruncatedPoisson(0.5, 5000, 10_000, 1), absent=True, replaced=False) is None


@pytest.mark.parametrize("tail", [1e-6, 1e-12, 1e-20])
@pytest.mark.parametrize(("records", "cap", "prob"), [(1000, 80, 0.1), (60_000, 256, 256 / 60_000), (200, 190, 0.95)])
def test_few_others_are_left_out_only_where_they_are_as_rare_as_that(
    records: int, cap: int, prob: float, tail: float
) -> None:
    sampler = TruncatedPoisson(prob, cap, records, 1)
    found = cut_release(sampler, absent=True, replaced=False, tail=tail)
    assert found is not None
    for weights in (found.laws.first, found.turned.first):
        assert 1.0 - tail * 1.01 - 1e-9 <= sum(weights) <= 1.0
    assert found.lost <= tail * 1.01 + 1e-280


def test_batches_of_hundreds_have_the_others_at_the_other_end() -> None:
    """Of more than 64 centres they were silent: 1.38 where 3.115 is proved, 2.0 where 6.67 is."""
    often = Phase(Gaussian(4.0), sampler=TruncatedPoisson(0.1, 80, 1000, 300))
    assert check(Claim(3.11, 1e-5, [often])).verdict == "refuted"
    many = Phase(Gaussian(1.1), sampler=TruncatedPoisson(256 / 60_000, 220, 60_000, 14_000))
    assert check(Claim(6.67, 1e-5, [many])).verdict == "refuted"


def of_batches(sampler: TruncatedPoisson, adjacency: Adjacency = "add-remove", epsilon: float = 8.0) -> Claim:
    return Claim(epsilon, 1e-5, [Phase(Gaussian(1.0), sampler=sampler)], adjacency)


@pytest.mark.parametrize("prob", [0.5, 0.9999999])
def test_batches_that_are_full_of_others_refute_what_poisson_batches_of_half_the_noise_do(prob: float) -> None:
    """With 5 of 100 records in and the others at -clip, the record moves a release by two clips at a rate of .05."""
    verdict = check(of_batches(TruncatedPoisson(prob, 5, 100, 10)))
    alike = Claim(8.0, 1e-5, [Phase(Gaussian(0.5), 10, 0.05)])
    assert verdict.verdict == "refuted"
    assert verdict.epsilon_lower == pytest.approx(check(alike).epsilon_lower, rel=1e-6)
    assert verdict.witness is not None
    assert verdict.witness.direction == "remove"


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
def test_almost_everybody_is_as_everybody(adjacency: Adjacency) -> None:
    almost, everybody = (check(of_batches(TruncatedPoisson(p, 5, 100, 10), adjacency)) for p in (0.9999999, 1.0))
    assert almost.epsilon_lower == pytest.approx(everybody.epsilon_lower, rel=1e-3)
    assert everybody.epsilon_upper * (1.0 - 1e-9) <= almost.epsilon_upper <= 1.02 * everybody.epsilon_upper


@pytest.mark.parametrize("adjacency", ["add-remove", "zero-out", "replace-one"])
@pytest.mark.parametrize(("records", "cap", "prob", "steps"), [(10, 2, 0.2, 10), (100, 20, 0.2, 3), (1000, 4, 0.01, 5)])
def test_the_bounds_meet_nowhere(records: int, cap: int, prob: float, steps: int, adjacency: Adjacency) -> None:
    at = np.linspace(0.0, 10.0, 41)
    for noise in (Gaussian(1.0), Laplace(1.5, dimension=1)):
        claim = Claim(2.0, 1e-5, [Phase(noise, sampler=TruncatedPoisson(prob, cap, records, steps))], adjacency)
        assert (certified_lower(claim).delta(at) <= upper_curve(claim)(at) * (1.0 + 1e-9)).all()


def test_a_smaller_delta_needs_no_smaller_epsilon() -> None:
    """It rose from 73.0 to 80.6 between deltas of 1e-30 and 1e-22: events were chosen without what is lost."""
    phase = Phase(
        Gaussian(0.522813), sampler=TruncatedPoisson(prob=0.27981, max_batch=9540, records=48986, releases=16)
    )
    curve = cut_curve(Claim(25.0, 8e-12, [phase], "zero-out"))
    assert curve is not None
    found = curve.epsilon(np.geomspace(1e-6, 1e-60, 40))
    assert (np.diff(found) >= 0.0).all()
    assert 81.0 < found[-1] < 81.5
