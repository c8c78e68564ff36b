"""Shuffled batches of any noise: those of `shuffled_batches`, with what one and two contributions cost a release.

Of the noise that proof uses that a release is moved by a sum of contributions: all that counts are the largest masses
that laws one and two contributions apart leave each other. Bounds on delta(epsilon) of one release say so of any noise:
of a record that is there or not, and of a record that is replaced.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import HEADROOM, Curve, end_of, least_delta
from dpaudit.verify.pld.pair_curve import infinite_mass
from dpaudit.verify.pld.shuffled_pass import LARGEST_LOG, CurvePass, Tradeoff
from dpaudit.verify.upper.pass_by_pass import FAR_ABOVE, LEAST_END, POINTS
from dpaudit.verify.upper.shuffled_batches import THEOREM, gained, hiding_batches, passes_curve, shuffled_passes


def releases(claim: Claim) -> list[Claim]:
    """One release of every phase, of a record that is there or not, then of one that is replaced.

    Empty where some phase is no pass over whole shuffled batches, or all have normal noise.
    """
    if any(hiding_batches(phase) is None for phase in claim.phases) or shuffled_passes(claim) is not None:
        return []
    return [_release(claim, phase, swaps) for phase in claim.phases for swaps in (False, True)]


def _release(claim: Claim, phase: Phase, swaps: bool) -> Claim:
    batches, _ = hiding_batches(phase) or (1.0, 1)
    epsilon = claim.epsilon + math.log(batches)  # a pass's loss is that of a release with so many times the ratio
    adjacency: Adjacency = "replace-one" if swaps else "add-remove"
    return replace(claim, epsilon=epsilon, phases=(Phase(phase.mechanism, 1),), adjacency=adjacency, guarantee=None)


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve | None:
    """Upper bound on delta(epsilon) of a history of passes; None where so many batches hide nothing.

    Args:
        claim: Whose `releases` are bounded.
        curves: Their upper bounds.
    """
    parts = [_pass(claim, phase, *curves[2 * i : 2 * i + 2]) for i, phase in enumerate(claim.phases)]
    if not gained(claim, parts):
        return None
    assumptions = dict.fromkeys(text for own in curves for curve in own for text in curve.assumptions)
    return passes_curve(claim, parts, THEOREM, tuple(assumptions))


def _pass(claim: Claim, phase: Phase, once: Sequence[Curve], twice: Sequence[Curve]) -> CurvePass:
    batches, epochs = hiding_batches(phase) or (1.0, 1)
    tail = infinite_mass(claim.least_delta) / sum(part.steps for part in claim.phases)
    most = min(claim.epsilon + FAR_ABOVE + math.log(batches), LARGEST_LOG)
    near, far = (_tradeoff(own, claim, tail, most) for own in (once, twice))
    return CurvePass(batches, epochs, near, far, most)


def _tradeoff(curves: Sequence[Curve], claim: Claim, tail: float, most: float) -> Tradeoff:
    end = max(min(end_of(curves, claim.delta, tail, claim.epsilon + HEADROOM), most), LEAST_END)
    return Tradeoff.of_bound(partial(least_delta, curves), np.linspace(0.0, end, POINTS + 1))
