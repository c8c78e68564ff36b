"""Sampled releases of independent coordinates that are clipped each, or are few: their product of pairs, sampled.

No coordinate is moved by more than the clip, and all by it is the worst (boundary lemma, `shift_norms`), so that the
product of one coordinate's pair dominates a release (Zhu, Dong and Wang 2022, Theorem 10), and it sampled a sampled one
(their Theorem 11; under replace-one see `pair_curve.directions`).
"""

from dataclasses import replace

from dpaudit.verify.claims import FEW_COORDINATES, Claim, Phase, coordinate_by_coordinate
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve, release_tail
from dpaudit.verify.pld.product_pairs import product_pair
from dpaudit.verify.upper import laplace_pure, mixed, one_dimensional
from dpaudit.verify.upper.shift_norms import sampling_is_known

THEOREM = (
    "no coordinate is moved by more than the clip: the product of one coordinate's pair dominates (boundary lemma); "
    "sampling and composition by Zhu, Dong and Wang (2022), Theorems 10 and 11; rounded up by Doroshenko et al. "
    "(2022), Theorem 4.3"
)


def one_coordinate(claim: Claim, phase: Phase) -> PairPhase | None:
    """The pair of one coordinate, with the number of coordinates for its steps; None where there is none.

    Args:
        claim: Its adjacency says how far a coordinate is moved.
        phase: Its noise; how it is sampled is left to the caller.
    """
    if not sampling_is_known(phase):
        return None
    one = coordinate_by_coordinate(Phase(phase.mechanism, 1), FEW_COORDINATES)
    if one.mechanism.dimension != 1:
        return None
    return laplace_pure.pair_phase(claim, one) or one_dimensional.pair_phase(claim, one)


def applies(claim: Claim) -> bool:
    """Independent coordinates of one law that is not normal in every phase, clipped each or few; some are sampled."""
    many = any(phase.sampling_prob < 1 and (phase.mechanism.dimension or 1) > 1 for phase in claim.phases)
    return many and all(one_coordinate(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed products.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    known = [(one_coordinate(claim, phase), phase) for phase in claim.phases]
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have sampled coordinates, each with a pair of its own.")
    tail = release_tail(claim)
    return pair_curve(claim, [_product(one, phase, tail) for one, phase in known if one is not None], THEOREM)


def covered(claim: Claim, phase: Phase) -> bool:
    """Whether a phase with Poisson sampling or none has a pair, of its coordinates or as a whole."""
    return one_coordinate(claim, phase) is not None or mixed.pair_phase(claim, phase) is not None


def phase_pair(claim: Claim, phase: Phase, tail: float) -> PairPhase | None:
    """The pair of such a phase: that of its coordinates where they have one.

    Args:
        claim: Its adjacency says how far a coordinate is moved.
        phase: The phase.
        tail: Mass that may go to an infinite loss.
    """
    one = one_coordinate(claim, phase)
    return mixed.pair_phase(claim, phase) if one is None else _product(one, phase, tail)


def _product(one: PairPhase, phase: Phase, tail: float) -> PairPhase:
    if phase.sampling_prob == 1:
        return replace(one, steps=one.steps * phase.steps)
    pair = one.pair if one.steps == 1 else product_pair(one.pair, one.steps, tail)
    return PairPhase(pair, phase.sampling_prob, phase.steps)
