"""Every theorem of UPPER_BOUNDS, on claims about every registered mechanism that it applies to, obeys the interface.

A theorem that is added to the table, and a mechanism that is added to the registry, are tested as they stand.
"""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from dpaudit.mechanisms import Gaussian, Laplace
from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.mechanisms.registry import MECHANISMS
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower import certified_lower
from dpaudit.verify.samplers import (
    BallsInBins,
    BufferedShuffle,
    Deterministic,
    RandomAllocation,
    Sampler,
    Shuffled,
    TruncatedPoisson,
    WithoutReplacement,
)
from dpaudit.verify.upper import UPPER_BOUNDS, UpperBound, upper_curve

EPSILONS = np.array([0.0, 0.03, 0.3, 1.0, 2.0, 4.0, 8.0, 20.0, 100.0])
DELTAS = np.array([0.0, 1e-12, 1e-9, 1e-6, 1e-4, 0.01, 0.3, 0.9])
# steps and Poisson rate, by dimension and clip_norm
RELEASES = {
    (1, 2.0): ((1, 1.0), (30, 0.1)),
    (3, 2.0): ((2, 1.0), (2, 0.2)),
    (3, math.inf): ((1, 1.0),),
}

# the others take seconds for twice the shift
REPLACED = ("gaussian", "laplace", "product", "generalized-gaussian")


def interior(name: str, **common: Any) -> Any:
    """A mechanism inside its typical ranges, where no parameter makes it another one."""
    kind = MECHANISMS[name]
    return kind(**{key: low**0.4 * high**0.6 for key, (low, high) in typical_ranges(kind)}, **common)


def typical_ranges(kind: Any) -> list[tuple[str, tuple[float, float]]]:
    return [(key, domain.typical) for key, domain in kind.domains.items()]


def tabulated() -> Iterator[Claim]:
    """Every mechanism: one and several coordinates and releases, sampled or not, both adjacencies, mixed histories."""
    for name in MECHANISMS:
        for (dimension, clip_norm), releases in RELEASES.items():
            try:
                mechanism = interior(name, dimension=dimension, clip_norm=clip_norm)
            except ValueError:  # a rule across fields, such as that a direction needs two coordinates
                continue
            for steps, rate in releases:
                yield Claim.single(mechanism, epsilon=1.0, delta=1e-6, steps=steps, sampling_prob=rate)
            if dimension == 1 and name in REPLACED:
                yield Claim.single(mechanism, epsilon=1.0, delta=1e-6, adjacency="replace-one")
            if clip_norm == 2 and dimension > 1:
                yield Claim(1.0, 1e-6, (Phase(mechanism, 2), Phase(Gaussian(2.0, dimension=dimension), 3)))
    normal = interior("gaussian", dimension=1, clip_norm=2)
    for sampler in (BallsInBins(5, 3), RandomAllocation(7, 3)):
        yield Claim(1.0, 1e-6, (Phase(normal, sampler=sampler),))
    yield Claim(1.0, 1e-6, (Phase(Gaussian(8.0, dimension=3), sampler=Shuffled(60, 3)),))
    yield Claim(1.0, 1e-6, (Phase(Gaussian(8.0, dimension=3), sampler=BufferedShuffle(60, 4, 20, releases=50)),))
    for noise in (normal, interior("laplace", dimension=1), interior("generalized-gaussian", dimension=1)):
        yield Claim.single(noise, epsilon=1.0, delta=1e-6, steps=30, sampling_prob=0.1, adjacency="replace-one")
        yield Claim(1.0, 1e-6, (Phase(noise, sampler=WithoutReplacement(0.2, 6)),))
        yield Claim(1.0, 1e-6, (Phase(noise, sampler=TruncatedPoisson(0.2, 3, 20, 6)),))
    for noise in (interior("laplace", dimension=20), interior("gamma-plrv", dimension=3)):
        yield Claim.single(noise, epsilon=1.0, delta=1e-6, steps=30, sampling_prob=0.1, adjacency="replace-one")


@cache
def lower_bound(claim: Claim) -> Curve | None:
    return certified_lower(claim)


@cache
def cases(theorem: UpperBound) -> list[tuple[Claim, Curve]]:
    applicable = [(claim, theorem.bound(claim)) for claim in tabulated() if theorem.applies(claim)]
    assert applicable, "no claim of the table meets the theorem's conditions"
    return applicable


def over_theorems(test: Any) -> Any:
    names = [theorem.__name__.split(".")[-1] for theorem in UPPER_BOUNDS]
    slow = {"never_sampled", "envelope", "radial_pld", "laplace_gaussian_domination", "gamma_plrv_shared", "mixed"}
    rows = [
        pytest.param(theorem, id=name, marks=[pytest.mark.slow] if name in slow else [])
        for theorem, name in zip(UPPER_BOUNDS, names, strict=True)
    ]
    return pytest.mark.parametrize("theorem", rows)(test)


@over_theorems
def test_a_bound_is_a_falling_curve_above_every_certified_lower_bound(theorem: UpperBound) -> None:
    for claim, curve in cases(theorem):
        delta, epsilon = curve.delta(EPSILONS), curve.epsilon(DELTAS)
        assert curve.side == "upper"
        assert ((delta >= 0) & (delta <= 1)).all(), claim
        assert (np.diff(delta) <= 0).all(), claim
        assert (epsilon >= 0).all(), claim
        assert (epsilon[1:] <= epsilon[:-1]).all(), claim
        lower = lower_bound(claim)
        if lower is not None:
            assert (lower.delta(EPSILONS) <= delta).all(), claim
            assert (lower.epsilon(DELTAS) <= epsilon).all(), claim


@over_theorems
def test_releases_at_once_cost_what_they_cost_one_by_one(theorem: UpperBound) -> None:
    for claim, curve in cases(theorem):
        [phase, *others] = claim.phases
        if phase.steps == 1 or isinstance(phase.sampler, RandomAllocation | BufferedShuffle):  # no parts of one stream
            continue
        if isinstance(phase.sampler, BallsInBins | Shuffled | WithoutReplacement | TruncatedPoisson):
            most = "epochs" if isinstance(phase.sampler, BallsInBins | Shuffled) else "releases"
            parts = [1, getattr(phase.sampler, most) - 1]
            passes = [replace(phase, sampler=replace(phase.sampler, **{most: n}), steps=1) for n in parts]
            np.testing.assert_allclose(
                theorem.bound(replace(claim, phases=passes)).delta(EPSILONS),
                curve.delta(EPSILONS),
                rtol=1e-3,
                atol=1e-12,
            )
            continue
        split = replace(claim, phases=(replace(phase, steps=phase.steps - 1), replace(phase, steps=1), *others))
        assert theorem.applies(split)
        np.testing.assert_allclose(theorem.bound(split).delta(EPSILONS), curve.delta(EPSILONS), rtol=1e-4, atol=1e-12)


TRIED: list[Sampler] = [
    Shuffled(5, 2),
    BallsInBins(5, 2),
    RandomAllocation(6, 2),
    Deterministic(5, 2),
    WithoutReplacement(0.2, 3),
    TruncatedPoisson(0.1, 30, 100, 3),
]
# its passes are bounded by those of a known order, whatever the sampler: seconds each
DEAR: dict[str, list[Sampler]] = {
    "product": [
        Shuffled(3, 1), BallsInBins(3, 1), RandomAllocation(3, 1), WithoutReplacement(0.2, 1),
        TruncatedPoisson(0.1, 30, 100, 1),
    ]
}  # fmt: skip


@pytest.mark.parametrize(
    ("name", "sampler"),
    [
        pytest.param(name, sampler, id=f"{name}-{sampler.kind}", marks=[pytest.mark.slow] if name != "laplace" else [])
        for name in MECHANISMS
        if name != "gaussian"  # which test_sampler_conformance asks the same of
        for sampler in DEAR.get(name, TRIED)
    ],
)
def test_every_sampler_with_every_noise_is_bracketed(name: str, sampler: Sampler) -> None:
    """Lower bounds never above upper ones, and something is certified from below and from above."""
    joined = not isinstance(interior(name, dimension=2, clip_norm=2).structure, IIDCoordinates)
    mechanism = interior(name, dimension=1 + joined, clip_norm=2)
    claim = Claim(1.0, 1e-6, (Phase(mechanism, sampler=sampler),), "zero-out")
    lower, upper = certified_lower(claim).delta(EPSILONS), upper_curve(claim)(EPSILONS)
    assert (lower <= upper).all()
    assert upper[-1] < 1
    assert lower[0] > 0


def test_a_loss_that_is_bounded_costs_nothing_beyond_its_bound() -> None:
    """Laplace noise under l1 clipping: epsilon = steps clip / scale at delta = 0, and no theorem contradicts it."""
    for steps in (1, 4):
        claim = Claim.single(Laplace(2.0, clip_norm=1.0, dimension=3), epsilon=steps / 2, delta=0.0, steps=steps)
        curves = [theorem.bound(claim) for theorem in UPPER_BOUNDS if theorem.applies(claim)]
        assert min(float(curve.epsilon(np.array([0.0]))[0]) for curve in curves) == pytest.approx(steps / 2, rel=1e-12)
        assert min(float(curve.delta(np.array([steps / 2]))[0]) for curve in curves) == 0.0
