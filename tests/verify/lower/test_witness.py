"""Witness families, and a witness that went through JSON: it proves alone what the verdict said, or it is refused."""

import json
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from scipy.optimize import brentq
from scipy.stats import gennorm, norm

from dpaudit.mechanisms import GammaPLRV, GammaPLRVIID, Gaussian, GeneralizedGaussian, Laplace, Product
from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower import certified_lower, replayed_lower
from dpaudit.verify.lower.families import carried, equal, feasible, group_norm, majorization, scaled, two_level
from dpaudit.verify.lower.histories import ShiftedPhase, history_points, shifted_phase
from dpaudit.verify.lower.shifts import scores
from dpaudit.verify.lower.strongest import FIRST_SEEN
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import BallsInBins, WithoutReplacement

DELTA = np.array([1e-5])


def read_again(witness: Witness | None) -> Witness:
    assert witness is not None
    return Witness.from_dict(json.loads(json.dumps(witness.to_dict())))


def few_coordinates(dimension: int, epsilon: float) -> Claim:
    """Noise whose moments are neither concave nor convex in |v|^p: one large coordinate and small ones are worst."""
    mechanism = GeneralizedGaussian(3.0, 2.0, clip_norm=3.0, dimension=dimension)
    return Claim.single(mechanism, epsilon=epsilon, delta=1e-5, steps=1000, sampling_prob=0.01)


CLAIMS = [
    Claim.single(Gaussian(1.0, dimension=9), epsilon=1.7, delta=1e-5, steps=1000, sampling_prob=0.01),
    Claim.single(Laplace(2.0, dimension=40), epsilon=0.4, delta=1e-5, steps=10, sampling_prob=0.2),
    Claim.single(GammaPLRV(3.0, 0.1, dimension=60), epsilon=1.0, delta=1e-5),
    Claim.single(GammaPLRVIID(4.0, 0.1, dimension=50), epsilon=0.3, delta=1e-5, steps=3),
    Claim.single(Product(30.0, dimension=300), epsilon=0.5, delta=1e-5),
    few_coordinates(5, 4.2),
]


def name(claim: Claim) -> str:
    return claim.phases[0].mechanism.name


DEAR = ("product", "generalized-gaussian")
ROWS = [pytest.param(c, id=name(c), marks=[pytest.mark.slow] if name(c) in DEAR else []) for c in CLAIMS]


@pytest.mark.parametrize("claim", ROWS)
def test_a_witness_proves_alone_what_the_verdict_says(claim: Claim) -> None:
    found, at = certified_lower(claim), np.array([claim.epsilon])  # what a verdict shows
    witness = read_again(found.witness)
    alone = replayed_lower(claim, witness)
    assert alone.delta(at)[0] == found.delta(at)[0] > 0
    assert alone.witness == witness


def test_a_verdict_shows_the_certified_witness_and_what_it_proves() -> None:
    claim = CLAIMS[0]
    verdict, found = check(claim), certified_lower(claim)
    assert verdict.witness == found.witness
    assert verdict.delta_lower == found.delta(np.array([claim.epsilon]))[0] > 0


@pytest.mark.parametrize("direction", ["remove", "add"])
def test_the_direction_that_is_read_is_the_one_computed(direction: str) -> None:
    claim = CLAIMS[0]
    witness = replace(read_again(certified_lower(claim).witness), direction=direction)  # type: ignore[arg-type]
    points = history_points([shifted_phase(claim, claim.phases[0], equal(Gaussian(1.0), 1))], direction, claim)
    found = replayed_lower(claim, witness).epsilon(DELTA)[0]
    assert found == pytest.approx(points.epsilon(DELTA)[0], rel=1e-9)


@pytest.mark.parametrize("adjacency", ["add-remove", "replace-one"])
def test_other_phases_are_shifted_by_the_same_shape(adjacency: str) -> None:
    phases = [Phase(Laplace(1.0, dimension=20), 5, 0.2), Phase(Laplace(6.0, clip=3.0, dimension=30), 2, 0.5)]
    claim = Claim(0.3, 1e-5, phases, adjacency)  # type: ignore[arg-type]
    found = certified_lower(claim)
    alone = replayed_lower(claim, read_again(found.witness))
    assert alone.delta(np.array([0.3]))[0] == found.delta(np.array([0.3]))[0] > 0.01


@pytest.mark.slow
def test_replacing_by_nothing_is_part_of_a_swap() -> None:
    claim = Claim.single(
        Product(20.0, dimension=50), epsilon=0.4, delta=1e-5, sampling_prob=0.3, adjacency="replace-one"
    )
    found = certified_lower(claim)
    alone = replayed_lower(claim, read_again(found.witness))
    assert alone.delta(np.array([0.4]))[0] == found.delta(np.array([0.4]))[0] > 0.01


GOOD = Witness("two-level", 3, 1.0, [[0.9, 1], [0.3, 2]], "remove", "none")
REFUSED = [
    ({"shift": [[0.9, 1], [0.4, 2]]}, r"shift norm=1\.06\S+ to be at most clip=1\.0"),
    ({"shift": [[1.0000000000000002, 1]]}, "to be at most clip=1.0"),
    ({"shift": [[0.1, 5]]}, r"coordinates=5 in \[1, 4\]"),
    ({"shift": [[-0.1, 1]]}, "shift value=-0.1"),
    ({"shift": [[math.nan, 1]]}, "shift value=nan"),
    ({"shift": [[0.1, 1.5]]}, "shift count=1.5"),
    ({"shift": []}, "at least one group"),
    ({"direction": "swap"}, "direction='swap' to fit adjacency='add-remove'"),
]


@pytest.mark.parametrize(("change", "message"), REFUSED)
def test_a_tampered_witness_is_refused_by_name(change: dict[str, object], message: str) -> None:
    claim = Claim.single(Laplace(1.0, dimension=4), epsilon=0.5, delta=1e-5)
    assert replayed_lower(claim, GOOD).delta(np.array([0.5]))[0] > 0.1
    with pytest.raises(ValueError, match=message):
        replayed_lower(claim, replace(GOOD, **change))  # type: ignore[arg-type]


def test_a_hidden_scale_takes_equal_coordinates_only() -> None:
    claim = Claim.single(GammaPLRV(3.0, 0.1, dimension=20), epsilon=0.5, delta=1e-5)
    with pytest.raises(ValueError, match="groups=2 of the shift to be 1"):
        replayed_lower(claim, GOOD)


@pytest.mark.parametrize("p", [1.0, 1.5, 2.0, 2.33, 4.0, math.inf])
@pytest.mark.parametrize("dimension", [2, 7, 3000])
def test_every_family_fills_the_ball_and_stays_inside(p: float, dimension: int) -> None:
    mechanism = Laplace(1.0, clip=0.7, clip_norm=p, dimension=dimension)
    shifts = [equal(mechanism, m) for m in (1, 2, dimension)]
    shifts += [*two_level(mechanism, dimension), *majorization(mechanism, dimension)]
    assert {shift.family for shift in shifts} >= {"equal"} | ({"majorization"} if dimension > 2 else set())
    for shift in shifts:
        assert 1 <= shift.coordinates <= dimension
        assert 0.7 * (1 - 1e-14) < shift.norm <= 0.7
        exact = max(v for v, _ in shift.groups) if math.isinf(p) else None
        if exact is None and dimension < 10:
            exact = float(sum(count * np.longdouble(v) ** np.longdouble(p) for v, count in shift.groups)) ** (1 / p)
        if exact is not None:
            assert exact <= shift.norm * (1 + 4e-16)


def test_majorization_has_the_shape_of_the_papers() -> None:
    """Up to GROUPS coordinates it is sqrt(i) - sqrt(i-1) itself, rescaled; the counts always add up to n."""
    mechanism = Laplace(1.0, dimension=12)
    [shift] = majorization(mechanism, 5)
    values = np.array([value for value, _ in shift.groups])
    shape = np.sqrt(np.arange(1, 6)) - np.sqrt(np.arange(5))
    np.testing.assert_allclose(values / values[0], shape, rtol=1e-12)
    [many] = majorization(Laplace(1.0, dimension=26_000), 26_000)
    assert many.coordinates == 26_000
    assert len(many.groups) <= 16


def test_a_shape_is_carried_to_another_ball() -> None:
    owner, other = Laplace(1.0, dimension=9), Laplace(1.0, clip=5.0, clip_norm=1.0, dimension=9)
    shift = scaled(owner, [(2.0, 1), (1.0, 5)], "two-level", 0.5)
    moved = carried(shift, owner, other)
    assert moved.norm == pytest.approx(2.5, rel=1e-12)
    assert moved.groups[0][0] / moved.groups[1][0] == pytest.approx(2.0, rel=1e-12)
    assert group_norm(moved.groups, 1.0) == moved.norm
    with pytest.raises(ValueError, match="coordinates=6"):
        carried(shift, owner, Laplace(1.0, dimension=5))


@pytest.mark.slow
def test_two_levels_beat_equal_coordinates_where_moments_bend_both_ways() -> None:
    """beta 3, scale 2, n = 5: 4.28 from equal coordinates, 4.46 from one large and four small ones."""
    claim = few_coordinates(5, 4.4)
    phase = claim.phases[0]
    curve = certified_lower(claim)
    assert curve.witness is not None
    assert curve.witness.family == "two-level"
    best = max(
        float(
            history_points([shifted_phase(claim, phase, equal(phase.mechanism, m))], "remove", claim).epsilon(DELTA)[0]
        )
        for m in range(1, 6)
    )
    assert curve.epsilon(DELTA)[0] > 1.03 * best


ALONE: list[Any] = [
    pytest.param(noise, marks=pytest.mark.slow)
    for noise in (Laplace(1.5, dimension=3), GeneralizedGaussian(3.0, 1.5, clip_norm=3.0, dimension=3))
]


@pytest.mark.parametrize("mechanism", ALONE, ids=lambda m: m.name)
def test_unequal_coordinates_agree_with_a_sum_over_all_outputs(mechanism: Mechanism) -> None:
    """delta = sum over a grid of R^2 of (p - e^eps q)_+, for a shift of two different coordinates."""
    groups = [(0.8, 1), (0.45, 1)]
    claim = Claim.single(mechanism, epsilon=0.3, delta=1e-5)
    points = history_points(
        [shifted_phase(claim, claim.phases[0], feasible(mechanism, groups, "two-level"))], "remove", claim
    )
    law = mechanism.structure
    x = np.linspace(-22.0, 23.0, 3001)
    with_first, with_second = (np.exp(law.logpdf(x - value)) for value, _ in groups)  # type: ignore[union-attr]
    without = np.exp(law.logpdf(x))  # type: ignore[union-attr]
    ahead, behind = np.outer(with_first, with_second), np.outer(without, without)
    for epsilon in (0.0, 0.6):
        excess = ahead - math.exp(epsilon) * behind
        exact = float(np.maximum(excess, 0.0, out=excess).sum()) * (x[1] - x[0]) ** 2
        found = points.delta(np.array([epsilon]))[0]
        assert found == pytest.approx(exact, rel=3e-3)
        assert found <= exact * (1 + 1e-4)  # the sum itself is off by the square of its spacing


def test_the_ranking_is_the_renyi_epsilon_of_gaussian_noise() -> None:
    """Unsampled normal noise: alpha(order) = order (order-1) |v|^2 / (2 sigma^2), however the shift is divided."""
    mechanism = Gaussian(2.0, dimension=100)
    shifts = [equal(mechanism, 1), equal(mechanism, 100), *two_level(mechanism, 100)[:3]]
    found = scores(mechanism.structure, Phase(mechanism, 9), 1.0, shifts, 1e-5)
    orders = np.array([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128])
    lam = orders - 1.0
    rdp = 9 * orders / 8.0 + np.log(lam / orders) - (math.log(1e-5) + np.log(orders)) / lam
    np.testing.assert_allclose(found, rdp.min(), rtol=2e-3)
    mu = 1.5  # sqrt(9) / 2; the conversion is an upper bound on the exact value
    assert norm.sf(found[0] / mu - mu / 2) - math.exp(found[0]) * norm.sf(found[0] / mu + mu / 2) < 1e-5


@pytest.mark.parametrize(("beta", "scale"), [(16.0, 0.9), (40.0, 0.9), (62.9, 2.0)])
@pytest.mark.parametrize("epsilon", [0.5, 11.0])
def test_losses_near_the_claim_are_told_apart_whatever_lies_far_beyond(
    beta: float, scale: float, epsilon: float
) -> None:
    """Noise that ends like a wall: a tenth of the outputs has losses of thousands and more."""
    edge = brentq(lambda x: (abs(x) / scale) ** beta - (abs(x - 1) / scale) ** beta - epsilon, 0.5, 1 + 2 * scale)
    noise = gennorm(beta, scale=scale)
    truth = noise.sf(edge - 1) - math.exp(epsilon) * noise.sf(edge)
    claim = Claim.single(GeneralizedGaussian(beta, scale, dimension=1), epsilon=epsilon, delta=0.1)
    assert 0.9999 * truth <= certified_lower(claim).delta(np.array([epsilon]))[0] <= truth * (1 + 1e-12)


@pytest.mark.parametrize(
    "phase",
    [
        Phase(Laplace(1.0), 10**8),
        Phase(Gaussian(1.1), 10**11, 0.1),
        Phase(Gaussian(1.1), sampler=BallsInBins(10, 10**8)),
        Phase(Laplace(1.0), sampler=WithoutReplacement(0.1, 10**8)),
    ],
)
def test_the_first_releases_of_a_history_too_long_to_be_seen_whole_refute_it(phase: Phase) -> None:
    claim = Claim(3.0, 1e-5, [phase], "zero-out")
    bound = certified_lower(claim)
    assert bound.delta(np.array([3.0]))[0] > 0.99
    assert FIRST_SEEN in bound.assumptions
    assert FIRST_SEEN not in certified_lower(CLAIMS[0]).assumptions


def test_a_long_history_is_bounded_by_its_first_million_releases_at_most() -> None:
    """Where the whole says nothing, the bound is that of 10^6 releases, which the whole is at least as good as."""
    long, short = (Claim(3.0, 1e-5, [Phase(Laplace(1.0), steps)]) for steps in (10**8, 10**6))
    found, first = (certified_lower(claim).epsilon(DELTA)[0] for claim in (long, short))
    assert found == pytest.approx(first, rel=1e-6)
    assert found < 10**8


APART = [
    Claim(
        2.0,
        1e-9,
        [
            Phase(Gaussian(0.25, clip_norm=1.0, dimension=21), 1, 1e-6),
            Phase(Laplace(160.0, clip=240.0, dimension=24), 1, 0.003),
            Phase(GeneralizedGaussian(4.0, 569.0, clip_norm=math.inf, dimension=7)),
        ],
        "replace-one",
    ),
    Claim(
        4.0,
        1e-9,
        [
            Phase(GammaPLRVIID(30.0, 0.02, clip_norm=38.0, dimension=3), 1, 2e-5),
            Phase(Gaussian(1000.0, clip_norm=math.inf, dimension=10**7), 1, 5e-6),
        ],
    ),
]


@pytest.mark.parametrize("claim", APART, ids=["few", "many"])
def test_phases_in_other_coordinates_are_moved_each_by_what_is_worst_for_it(claim: Claim) -> None:
    """One shape for all was at .25 where a phase alone is at 10.4."""
    found, at = certified_lower(claim), np.array([claim.delta])
    alone = [certified_lower(replace(claim, phases=[phase])).epsilon(at)[0] for phase in claim.phases]
    assert found.epsilon(at)[0] >= max(alone) * (1 - 1e-4) > 2.0
    assert found.witness is not None
    assert found.witness.family == "apart"
    again = replayed_lower(claim, read_again(found.witness))
    assert again.epsilon(at)[0] == found.epsilon(at)[0]


def test_shifts_of_a_shape_of_their_own_against_a_sum_over_all_outputs() -> None:
    """Laplace noise under l1 clipping: one coordinate is worst; exp(-x^4) noise that is clipped each: all are."""
    mechanisms = Laplace(1.0, clip_norm=1.0, dimension=2), GeneralizedGaussian(4.0, 2.0, 1.0, math.inf, 2)
    claim = Claim(0.7, 1e-5, [Phase(mechanism) for mechanism in mechanisms])
    x = np.linspace(-25.0, 26.0, 3001)
    width = x[1] - x[0]
    logs = [(m.structure.logpdf(x - 1.0), m.structure.logpdf(x)) for m in mechanisms]
    (p, losses), (one, loss) = ((np.exp(moved) * width, moved - still) for moved, still in logs)
    pair, pair_losses = np.outer(one, one).ravel(), np.add.outer(loss, loss).ravel()
    keep = pair > 1e-14
    order = np.argsort(pair_losses[keep])
    pair, pair_losses = pair[keep][order], pair_losses[keep][order]
    tails = [np.append(np.cumsum(part[::-1])[::-1], 0.0) for part in (pair, pair * np.exp(-pair_losses))]
    found = certified_lower(claim)
    assert found.witness is not None
    assert found.witness.family == "apart"
    for epsilon in (0.7, 1.5, 2.5):
        at = np.searchsorted(pair_losses, epsilon - losses)
        exact = float(p @ (tails[0][at] - np.exp(epsilon - losses) * tails[1][at]))
        value = found.delta(np.array([epsilon]))[0]
        assert value <= exact * (1 + 1e-3)  # the sum itself is off by the square of its spacing
        assert value >= exact * 0.99


@pytest.mark.parametrize(
    ("noise", "adjacency", "share"),
    [
        (GammaPLRV(3.0, 0.1, dimension=60), "add-remove", 0.75),
        (GammaPLRVIID(4.0, 0.1, 1.0, 2.0, 50), "replace-one", 0.9),
    ],
)
def test_phases_of_one_noise_share_their_cells(
    monkeypatch: pytest.MonkeyPatch, noise: Mechanism, adjacency: Adjacency, share: float
) -> None:
    """Each phase's were computed for it, most of 26 s of a verdict on three. A sampled swap has a centre more."""
    others = Phase(replace(noise, clip=1.5)), Phase(noise, 2, 0.3, "poisson")
    claim, counts = Claim(1.0, 1e-5, [Phase(noise, 3, 0.1, "poisson"), Phase(noise), *others], adjacency), [0]

    def counted(*args: Any) -> ShiftedPhase:
        counts[-1] += 1
        return shifted_phase(*args)

    monkeypatch.setattr("dpaudit.verify.lower.search.shifted_phase", counted)
    shared = certified_lower(claim).delta(np.array([0.5, 1.0]))
    counts.append(0)
    monkeypatch.setattr(ShiftedPhase, "at", lambda *_: None)
    assert (certified_lower(claim).delta(np.array([0.5, 1.0])) == shared).all()
    assert counts[0] <= share * counts[1]
