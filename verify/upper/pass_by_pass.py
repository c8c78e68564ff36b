"""Balls in bins and random allocation of any noise: the law of a mean of likelihood ratios of a dominating pair.

Let (P*, Q*) dominate one release that the record enters against one that it does not, whatever came before, and r* be
its likelihood ratio under Q*. That is, E phi(r) <= E phi(r*) for every release's ratio r under the law without the
record, and every convex phi. In a pass of T releases of which the record enters one, uniformly, and with the
same release in each of E passes if the bins are drawn once, the ratio of the history is X/T, X = sum_t prod_e r_(t, e).
E phi(X/T) is convex in each ratio given the past, the others being at least 0: backwards over the releases each may be
replaced by an independent r*, so that the mean of T independent products of E of them against 1 dominates, in both
orders (`balls_in_bins`, of which this is the general case; Feldman and Shenfeld 2025, "Privacy amplification by random
allocation", section 3). The pair is a known one of the release, or that of the best bound
on its delta(epsilon) (`curve_pairs`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve, end_of, least_delta
from dpaudit.verify.pld.curve_pairs import bounded_pair
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs, infinite_mass, worst_delta
from dpaudit.verify.samplers import BallsInBins, RandomAllocation
from dpaudit.verify.upper.balls_in_bins import MOST_LOSS, PairPass, passes, passes_curve
from dpaudit.verify.upper.mixed import attained_pair

THEOREM = (
    "mean of T likelihood ratios of a pair that dominates a release, the worst law of a pass by convexity; connect the "
    "dots of Doroshenko et al. (2022), Theorem 4.3, for every release and for the loss"
)
POINTS, LEAST_END = 256, 1e-6  # of a release's curve, which may be below all tails at 0
FAR_ABOVE = 7.0  # nats above the claimed epsilon, of which e^-7 is left out


def releases(claim: Claim) -> list[Claim]:
    """One release of every phase as a claim; empty where some phase has another sampler, or all have normal noise."""
    drawn = all(isinstance(phase.sampler, BallsInBins | RandomAllocation) for phase in claim.phases)
    if not drawn or claim.adjacency == "replace-one" or passes(claim) is not None:
        return []
    return [_release(claim, phase) for phase in claim.phases]


def _release(claim: Claim, phase: Phase) -> Claim:
    """Where a release matters: with T of them, at T times the likelihood ratio."""
    bins = max(1.0, phase.sampler.steps / phase.sampler.meetings) if phase.sampler is not None else 1.0
    epsilon = claim.epsilon + math.log(bins)
    return replace(claim, epsilon=epsilon, phases=(Phase(phase.mechanism, 1),), guarantee=None)


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history of passes.

    Args:
        claim: Whose `releases` are bounded.
        curves: Upper bounds of one release of every phase.
    """
    parts = [part for phase, own in zip(claim.phases, curves, strict=True) for part in _passes(claim, phase, own)]
    assumptions = dict.fromkeys(text for own in curves for curve in own for text in curve.assumptions)
    return passes_curve(claim, parts, THEOREM, tuple(assumptions))


def _passes(claim: Claim, phase: Phase, curves: Sequence[Curve]) -> list[PairPass]:
    tail = infinite_mass(claim.least_delta) / sum(part.steps for part in claim.phases)
    match phase.sampler:
        case BallsInBins() as sampler if sampler.reshuffle == "once" and sampler.epochs > 1:
            most = _most(claim, sampler.batches)
            pair = _release_pair(claim, phase, curves, tail, most)
            whole = compose_pairs([PairPhase(pair, 1.0, sampler.epochs)], ("remove",), claim.delta)
            curve = Curve.upper("pld", THEOREM, partial(worst_delta, whole))
            return [PairPass(sampler.batches, _curve_pair([curve], claim, tail, most), 1, most)]
        case BallsInBins() as sampler:
            groups = [(sampler.batches, sampler.epochs)]
        case RandomAllocation() as sampler:
            size, larger = divmod(sampler.releases, sampler.times)
            groups = [(size + 1, larger), (size, sampler.times - larger)]
        case _:
            raise ValueError(f"Expected sampling_kind={phase.sampling_kind!r} to draw bins or releases.")
    most = _most(claim, groups[0][0])
    pair = _release_pair(claim, phase, curves, tail, most)
    return [PairPass(bins, pair, count, most) for bins, count in groups if count]


def _most(claim: Claim, bins: int) -> float:
    """Loss of a release above which that of its pass is so far above the claimed epsilon that it may be infinite."""
    return min(claim.epsilon + FAR_ABOVE + math.log(bins), MOST_LOSS)


def _release_pair(claim: Claim, phase: Phase, curves: Sequence[Curve], tail: float, most: float) -> DominatingPair:
    known = attained_pair(claim, Phase(phase.mechanism, 1))
    # tails of a heavy pair are dear
    return _curve_pair(curves, claim, tail, most) if known is None or known.pair.heavy else known.pair


def _curve_pair(curves: Sequence[Curve], claim: Claim, tail: float, most: float) -> DominatingPair:
    end = max(min(end_of(curves, claim.delta, tail, most), most), LEAST_END)
    return bounded_pair(partial(least_delta, curves), np.linspace(0.0, end, POINTS + 1))
