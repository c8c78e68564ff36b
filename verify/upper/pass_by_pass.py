"""Balls in bins and random allocation of any noise: the law of a mean of likelihood ratios of a dominating pair.

Let (P*, Q*) dominate one release that the record enters against one that it does not, whatever came before, and r* be
its likelihood ratio under Q*. That is, E phi(r) <= E phi(r*) for every release's ratio r under the law without the
record, and every convex phi. In a pass of T releases of which the record enters one, uniformly, and with the same
release in each of E passes if the bins are drawn once, the ratio of the history is X/T, X = sum_t prod_e r_(t, e).
E phi(X/T) is convex in each ratio given the past, the others being at least 0: backwards over the releases each may be
replaced by an independent r*, so that the mean of T independent products of E of them against 1 dominates, in both
orders (`balls_in_bins`, of which this is the general case; Feldman and Shenfeld 2025, "Privacy amplification by random
allocation", section 3). The pair is a known one of the release, or that of the best bound on its delta(epsilon)
(`curve_pairs`).
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve, assumptions_of, end_of, least_delta
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


def parts(claim: Claim) -> list[Claim]:
    """One release of every phase as a claim; empty where some phase has another sampler, or all have normal noise."""
    drawn = all(isinstance(phase.sampler, BallsInBins | RandomAllocation) for phase in claim.phases)
    if not drawn or claim.adjacency == "replace-one" or passes(claim) is not None:
        return []
    return [
        one_release(claim, phase, phase.sampler.steps / phase.sampler.meetings, claim.adjacency)
        for phase in claim.phases
        if phase.sampler is not None
    ]


def one_release(claim: Claim, phase: Phase, bins: float, adjacency: Adjacency) -> Claim:
    """A claim on one release, where it matters: a pass's loss is that of a release with `bins` times the ratio."""
    epsilon = claim.epsilon + math.log(bins)
    return replace(claim, epsilon=epsilon, phases=(Phase(phase.mechanism, 1),), adjacency=adjacency, guarantee=None)


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history of passes.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """
    found = [part for phase, own in zip(claim.phases, curves, strict=True) for part in _passes(claim, phase, own)]
    return passes_curve(claim, found, THEOREM, assumptions_of(curves))


def _passes(claim: Claim, phase: Phase, curves: Sequence[Curve]) -> list[PairPass]:
    tail = infinite_mass(claim.least_delta) / sum(part.steps for part in claim.phases)
    match phase.sampler:
        case BallsInBins() as sampler if sampler.reshuffle == "once" and sampler.epochs > 1:
            most = most_loss(claim, sampler.batches)
            pair = _release_pair(claim, phase, curves, tail, most)
            whole = compose_pairs([PairPhase(pair, 1.0, sampler.epochs)], ("remove",), claim.delta)
            curve = Curve.upper("pld", THEOREM, partial(worst_delta, whole))
            return [PairPass(sampler.batches, _curve_pair([curve], claim, tail, most), 1, most)]
        case BallsInBins() as sampler:
            groups = [(sampler.batches, sampler.epochs)]
        case RandomAllocation() as sampler:
            groups = sampler.groups
        case _:
            raise ValueError(f"Expected sampling_kind={phase.sampling_kind!r} to draw bins or releases.")
    most = most_loss(claim, groups[0][0])
    pair = _release_pair(claim, phase, curves, tail, most)
    return [PairPass(bins, pair, count, most) for bins, count in groups]


def most_loss(claim: Claim, bins: float) -> float:
    """Loss of a release above which that of its pass is so far above the claimed epsilon that it may be infinite."""
    return min(claim.epsilon + FAR_ABOVE + math.log(bins), MOST_LOSS)


def _release_pair(claim: Claim, phase: Phase, curves: Sequence[Curve], tail: float, most: float) -> DominatingPair:
    known = attained_pair(claim, Phase(phase.mechanism, 1))
    # tails of a heavy pair are dear
    return _curve_pair(curves, claim, tail, most) if known is None or known.pair.heavy else known.pair


def _curve_pair(curves: Sequence[Curve], claim: Claim, tail: float, most: float) -> DominatingPair:
    return bounded_pair(partial(least_delta, curves), asked_losses(curves, claim, tail, most))


def asked_losses(curves: Sequence[Curve], claim: Claim, tail: float, most: float) -> Array:
    """Losses up to `most` at which bounds on one release are asked: from 0 to where next to nothing is left."""
    end = max(min(end_of(curves, claim.delta, tail, most), most), LEAST_END)
    return np.linspace(0.0, end, POINTS + 1)
