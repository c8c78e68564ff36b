"""Histories whose phases are bounded by different theorems: the phases' own curves, composed.

A bound on delta(epsilon) of a phase, whatever was released before it, is at least the profile of a dominating pair
(`pld.curve_pairs`), and pairs compose adaptively (Zhu, Dong and Wang 2022, Theorem 10). Phases that have pairs of their
own are one group, composed release by release; of the others those with noise and sampling of one kind are.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve, assumptions_of, end_of, least_delta
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.curve_pairs import bounded_pair
from dpaudit.verify.pld.loss_grid import SampledPair, grid_masses, lattice
from dpaudit.verify.pld.pair_curve import LEAST_STEP, LOSS_HEADROOM, infinite_mass
from dpaudit.verify.upper.mixed import PAIRS, attained_pair

THEOREM = "every phase by the theorem that is best for it, their curves composed: Zhu, Dong and Wang (2022), Theorem 10"
POINTS, FINENESS, MOST_PLACES = 512, 512, 1 << 16  # of a group's curve; steps of the shortest and of the longest one
SHARE = 0.1  # of delta, beyond which a part's losses may count as infinite
COARSER = 0.25  # of the longest loss: a cap above that share of it would gain no grid worth its time


def parts(claim: Claim) -> list[Claim]:
    """The groups of a history's phases as claims of their own; empty where it is one group."""
    groups: dict[object, list[Phase]] = {}
    for phase in claim.phases:
        groups.setdefault(_kind(claim, phase), []).append(phase)
    return [replace(claim, phases=tuple(group), guarantee=None) for group in groups.values() if len(groups) > 1]


def _kind(claim: Claim, phase: Phase) -> object:
    """What phases of one group have in common: a pair that is attained, or noise and sampling of one kind."""
    if attained_pair(claim, phase) is not None:
        return PAIRS
    return type(phase.mechanism.structure), type(phase.sampler), phase.correlation is None


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history from upper bounds of its parts.

    Args:
        claim: Where tightness matters.
        curves: Those of every part.
    """

    @cache
    def composed() -> list[Composed]:
        return _composed(claim, curves)

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.min([total.delta(epsilon) for total in composed()], axis=0))

    return Curve.upper("pld", THEOREM, delta, assumptions_of(curves))


def _composed(claim: Claim, curves: Sequence[Sequence[Curve]]) -> list[Composed]:
    """The total loss, and again with losses far above where it matters as infinite ones, on finer grids."""
    tail = infinite_mass(claim.least_delta) / len(curves)
    far, less = claim.epsilon + LOSS_HEADROOM, max(SHARE * claim.delta / len(curves), tail)
    ends = np.array([end_of(part, claim.delta, tail, far) for part in curves])
    apart = sum(end_of(part, claim.delta, less, far) for part in curves)
    caps = [cap for cap in {far, apart + LOSS_HEADROOM} if cap < COARSER * ends.max()]
    return [_capped(curves, ends), *(_capped(curves, np.minimum(ends, cap)) for cap in caps)]


def _capped(curves: Sequence[Sequence[Curve]], ends: Array) -> Composed:
    """The total loss of parts, each of whose losses are infinite beyond its end."""
    step = max(float(ends.min()) / FINENESS, float(ends.max()) / MOST_PLACES, LEAST_STEP)
    grids, infinite, slack = [], 0.0, 0.0
    for part, end in zip(curves, np.maximum(ends, step), strict=True):
        pair = bounded_pair(partial(least_delta, part), np.linspace(0.0, end, POINTS + 1))
        sampled = SampledPair(pair, 1.0, float(end))
        masses, lost = lattice(sampled, grid_masses(sampled, step), step, "remove")
        grids.append((masses, 1))
        infinite, slack = infinite + lost, slack + pair.slack * (1.0 + float(end))
    return Composed(grids, step, infinite * (1.0 + 1e-15), slack)
