"""Batches of fixed size under zero-out, noise with a pair that is not all normal: both orders at their worst.

The pair of `pld.fixed_size_pairs` from those of a record against nothing and against another record, which other
theorems have for noise of one coordinate, for Laplace noise under an l1 bound and for coordinates that are clipped
each. Other phases keep their own pairs. Normal noise has `sampled_normal`; records that are replaced have the pair of
advanced joint convexity (`met_releases`).
"""

from collections.abc import Sequence

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.fixed_size_pairs import fixed_size_pair
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve, release_tail
from dpaudit.verify.pld.product_pairs import product_curve
from dpaudit.verify.samplers import WithoutReplacement
from dpaudit.verify.upper import coordinate_products, sampled_normal
from dpaudit.verify.upper.replaced_records import pair_against

THEOREM = (
    "batches of fixed size, the record first or its ghost: least masses of a set around the others by Neyman-Pearson "
    "(verify/pld/fixed_size_pairs.py); composition by Zhu, Dong and Wang (2022), Theorem 10; rounded up by Doroshenko "
    "et al. (2022), Theorem 4.3"
)


def _drawn(phase: Phase, sampler: WithoutReplacement) -> Sequence[PairPhase] | None:
    """Pairs of the record against its ghost and against another record; None where there are none."""
    alone = Phase(phase.mechanism, sampler.steps)
    found = [pair_against(adjacency, alone) for adjacency in ("add-remove", "replace-one")]
    known = [pair for pair in found if pair is not None]
    return known if len(known) == len(found) else None


def covered(claim: Claim, phase: Phase) -> bool:
    """Whether a phase has such a pair, or one of its own."""
    if isinstance(phase.sampler, WithoutReplacement):
        return _drawn(phase, phase.sampler) is not None
    return coordinate_products.covered(claim, phase)


def applies(claim: Claim) -> bool:
    """Batches of fixed size in a phase, no record that is replaced, noise with a pair that is not all normal."""
    return (
        claim.adjacency == "add-remove"
        and any(isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases)
        and not sampled_normal.applies(claim)
        and all(covered(claim, phase) for phase in claim.phases)
    )


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed pairs; 1 where a loss is beyond floats.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have batches of fixed size, with noise that has a pair.")
    tail = release_tail(claim)
    return pair_curve(
        claim, [phase_pair(claim, phase, tail) for phase in claim.phases], THEOREM, wanted=("remove", "add")
    )


def phase_pair(claim: Claim, phase: Phase, tail: float) -> PairPhase | None:
    """The pair of a phase that is covered; None where a loss is beyond floats."""
    sampler = phase.sampler
    pairs = _drawn(phase, sampler) if isinstance(sampler, WithoutReplacement) else None
    if not isinstance(sampler, WithoutReplacement) or pairs is None:
        return coordinate_products.phase_pair(claim, phase, tail)
    near, far = (product_curve(one.pair, one.steps, tail) for one in pairs)
    pair = fixed_size_pair(near, far, sampler.prob)
    return None if pair is None else PairPhase(pair, 1.0, phase.steps)
