"""Pure epsilons that histories of rare events reach: enumerated batches, closed forms and ratios of densities."""

import itertools
import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Laplace
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.guarantees import PureDP
from dpaudit.verify.implied import claim_stating
from dpaudit.verify.lower.passes import silent_others
from dpaudit.verify.lower.pure_limits import pure_limit
from dpaudit.verify.renyi import pure_upper
from dpaudit.verify.samplers import (
    BallsInBins,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)

Placement = list[list[int]]  # the records in each release


def limit(*phases: Phase, adjacency: Adjacency = "zero-out") -> float:
    return pure_limit(silent_others(Claim(1.0, 0.0, phases, adjacency).canonical("lower"))).epsilon


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
@pytest.mark.parametrize(
    ("scale", "sampler", "meetings"),
    [
        (0.7, BallsInBins(100, 3), 3),
        (0.7, BallsInBins(4, 3, "once"), 3),
        (1.0, BallsInBins(10**6, 10), 10),
        (2.0, Shuffled(100, 3), 3),
        (2.0, Shuffled.of(23, 5, 3, reshuffle="once"), 3),
        (0.5, RandomAllocation(20, 5), 5),
    ],
)
def test_laplace_noise_in_batches_of_a_random_order_costs_what_known_releases_do(
    scale: float, sampler: Sampler, meetings: int, adjacency: Adjacency
) -> None:
    """Beyond all shifts each release that holds the record has the ratio e^(clip/scale), or its square."""
    true = meetings / scale * (2 if adjacency == "replace-one" else 1)
    phase = Phase(Laplace(scale, clip_norm=1.0), sampler=sampler)
    assert true * (1 - 1e-12) <= limit(phase, adjacency=adjacency) <= true
    assert pure_upper(Claim(1.0, 0.0, [phase], adjacency).canonical("upper")) == pytest.approx(true, rel=1e-15)


def test_such_claims_are_decided_around_it() -> None:
    phase = Phase(Laplace(2.0, clip_norm=1.0), sampler=Shuffled(100, 3))
    stated = [check(claim_stating(PureDP(epsilon), [phase], "zero-out")) for epsilon in (1.5 - 1e-9, 1.5)]
    assert [verdict.verdict for verdict in stated] == ["refuted", "certified"]
    plain = check(Claim(1.5 - 1e-9, 0.0, [phase], "zero-out"))
    assert plain.verdict == "refuted"
    assert "epsilon is at least 1.5 at delta=0" in plain.reason


@pytest.mark.parametrize(("clip_norm", "true"), [(math.inf, 250.0), (2.0, 25.0), (1.0, 2.5)])
def test_every_coordinate_of_laplace_noise_can_be_beyond_its_shift(clip_norm: float, true: float) -> None:
    phase = Phase(Laplace(12.0, clip=3.0, clip_norm=clip_norm, dimension=100), 10)
    for factor, wanted in ((1.0 - 1e-9, "refuted"), (1.0, "certified")):
        assert check(claim_stating(PureDP(true * factor), [phase])).verdict == wanted


def orders(records: int, batch: int) -> list[Placement]:
    """Batches of all orders, what is left over dropped."""
    whole = records // batch * batch
    found = itertools.permutations(range(records))
    return [[list(order[i : i + batch]) for i in range(0, whole, batch)] for order in found]


def subsets(records: int, batch: int) -> list[Placement]:
    return [[list(chosen)] for chosen in itertools.combinations(range(records), batch)]


def bins(records: int, batches: int) -> list[Placement]:
    """Everybody's choices of a bin, all of them."""
    choices = itertools.product(range(batches), repeat=records)
    return [[[r for r in range(records) if chosen[r] == b] for b in range(batches)] for chosen in choices]


CASES: list[tuple[Callable[[], list[Placement]], Sampler, float, float]] = [  # others, and who is there without
    (lambda: orders(5, 2), Shuffled.of(5, 2, 1, last_batch="dropped"), -1.0, 0.0),
    (lambda: orders(5, 2), Shuffled.of(5, 2, 1, last_batch="dropped"), -1.0, -1.0),
    (lambda: orders(4, 2), Shuffled.of(4, 2, 1), -1.0, 0.0),
    (lambda: orders(4, 2), Shuffled.of(4, 2, 1), -1.0, -1.0),
    (lambda: subsets(7, 2), WithoutReplacement(2 / 7, 1), -1.0, 0.0),
    (lambda: subsets(7, 2), WithoutReplacement(2 / 7, 1), -1.0, -1.0),
    (lambda: bins(3, 3), BallsInBins(3, 1), 0.0, 0.0),
    (lambda: bins(3, 3), BallsInBins(3, 1), 0.0, -1.0),
]


@pytest.mark.parametrize("scale", [0.05, 0.8, 30.0])
@pytest.mark.parametrize(("placements", "sampler", "others", "out"), CASES)
def test_the_bound_is_the_ratio_of_enumerated_laws_far_out(
    placements: Callable[[], list[Placement]], sampler: Sampler, others: float, out: float, scale: float
) -> None:
    """Record 0 contributes 1 or `out`, all others alike, at outputs beyond every centre."""

    def density(own: float) -> mpmath.mpf:
        total = mpmath.mpf(0)
        for batches in placements():
            centres = (sum(own if r == 0 else others for r in batch) for batch in batches)
            total += mpmath.exp(-sum(50 - mpmath.mpf(centre) for centre in centres) / mpmath.mpf(scale))
        return total

    adjacency: Adjacency = "replace-one" if out == -1.0 else "zero-out"
    with mpmath.workdps(60):
        true = float(mpmath.log(density(1.0) / density(out)))
    found = limit(Phase(Laplace(scale, clip_norm=1.0), sampler=sampler), adjacency=adjacency)
    assert true * (1 - 1e-11) <= found <= true


@pytest.mark.parametrize("rate", [1.0, 0.999, 0.3, 1e-9, 1e-300])
@pytest.mark.parametrize("scale", [1e-3, 0.3, 500.0])
def test_poisson_batches_have_the_ratio_far_out(scale: float, rate: float) -> None:
    with mpmath.workdps(900):
        up, down = (1 + mpmath.mpf(rate) * mpmath.expm1(way / mpmath.mpf(scale)) for way in (1, -1))
        alone, swapped = (float(9 * mpmath.log(ratio)) for ratio in (up, up / down))
    noise = Laplace(scale, clip_norm=1.0)
    assert alone * (1 - 1e-12) <= limit(Phase(noise, 9, rate)) <= alone
    assert swapped * (1 - 1e-12) <= limit(Phase(noise, 9, rate), adjacency="replace-one") <= swapped


def test_batches_that_are_cut_keep_a_record_as_often_as_with_silent_others() -> None:
    """Of three records, places for one: kept with probability (1/4 + 1/4 + 1/12)/2."""
    phase = Phase(Laplace(0.5, clip_norm=1.0), sampler=TruncatedPoisson(0.5, 1, 3, 2))
    true = 2 * math.log1p(7 / 24 * math.expm1(2.0))
    assert true * (1 - 1e-8) <= limit(phase) <= true  # the rate is itself a bound


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
@pytest.mark.parametrize(
    "noise", [GammaPLRVIID(2.5, 0.4, clip_norm=2.0, dimension=9), GammaPLRV(3.0, 0.2, dimension=4)]
)
def test_heavy_tails_have_the_ratio_of_their_densities_at_the_centre(noise: Mechanism, adjacency: Adjacency) -> None:
    """By the mechanism's own privacy loss; the upper bound is met."""
    n, far = noise.dimension or 1, 2 if adjacency == "replace-one" else 1
    shift = np.full(n, far / math.sqrt(n))
    true = 4 * float(noise.privacy_loss(shift, shift))
    for phase in (
        Phase(noise, 4),
        Phase(noise, sampler=BallsInBins(7, 4)),
        Phase(noise, sampler=RandomAllocation(9, 4)),
    ):
        assert limit(phase, adjacency=adjacency) == pytest.approx(true, rel=1e-11)
        assert limit(phase, adjacency=adjacency) <= pure_upper(Claim(1.0, 0.0, [phase], adjacency).canonical("upper"))


def test_phases_add_up_in_one_direction() -> None:
    bins_, poisson = Phase(Laplace(2.0, clip_norm=1.0), sampler=BallsInBins(8, 3)), Phase(Laplace(1.0), 5, 0.25)
    true = 3 / 2 + 5 * math.log1p(0.25 * math.expm1(1.0))
    assert limit(bins_, poisson) == pytest.approx(true, rel=1e-12)


def test_the_verdict_says_how_the_others_contribute() -> None:
    phase = Phase(Laplace(1.0, clip_norm=1.0), sampler=BallsInBins(10**4, 2))
    verdict = check(Claim(1.9, 0.0, [phase]))
    assert verdict.verdict == "refuted"
    assert any("other records contribute nothing" in note for note in verdict.assumptions)
