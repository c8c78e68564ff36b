"""Shuffled batches of any noise: those of `shuffled_batches`, with what one and two contributions cost a release.

Of the noise that proof uses that a release is moved by a sum of contributions: all that counts are the largest masses
that laws one and two contributions apart leave each other. Bounds on delta(epsilon) of one release say so of any noise:
of a record that is there or not, and of a record that is replaced.
"""

from collections.abc import Sequence
from functools import partial

from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve, assumptions_of, least_delta
from dpaudit.verify.pld.pair_curve import infinite_mass
from dpaudit.verify.pld.shuffled_pass import CurvePass, Tradeoff
from dpaudit.verify.upper.pass_by_pass import asked_losses, most_loss, one_release
from dpaudit.verify.upper.shuffled_batches import THEOREM, gained, hiding_batches, normal_pass, passes_curve


def parts(claim: Claim) -> list[Claim]:
    """One release of every phase, of a record that is there or not, then of one that is replaced.

    Empty where some phase is no pass over whole shuffled batches, or all have normal noise.
    """
    hiding = [hiding_batches(phase) for phase in claim.phases]
    if None in hiding or all(normal_pass(phase, claim) is not None for phase in claim.phases):
        return []
    kinds: tuple[Adjacency, Adjacency] = "add-remove", "replace-one"
    known = [(phase, passes[0]) for phase, passes in zip(claim.phases, hiding, strict=True) if passes is not None]
    return [one_release(claim, phase, batches, kind) for phase, batches in known for kind in kinds]


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve | None:
    """Upper bound on delta(epsilon) of a history of passes; None where so many batches hide nothing.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """
    found = [_pass(claim, phase, *curves[2 * i : 2 * i + 2]) for i, phase in enumerate(claim.phases)]
    return passes_curve(claim, found, THEOREM, assumptions_of(curves)) if gained(claim, found) else None


def _pass(claim: Claim, phase: Phase, once: Sequence[Curve], twice: Sequence[Curve]) -> CurvePass:
    batches, epochs = hiding_batches(phase) or (1.0, 1)
    tail = infinite_mass(claim.least_delta) / sum(part.steps for part in claim.phases)
    most = most_loss(claim, batches)
    near, far = (
        Tradeoff.of_bound(partial(least_delta, own), asked_losses(own, claim, tail, most)) for own in (once, twice)
    )
    return CurvePass(batches, epochs, near, far, most)
