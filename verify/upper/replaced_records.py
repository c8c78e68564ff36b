"""Poisson-sampled records that are replaced: both versions against nothing, at their worst, for noise with a pair.

The pair of `pld.replaced_pairs` from that of the record against nothing, which other theorems have for noise of one
coordinate, for Laplace noise under an l1 bound and for coordinates that are clipped each. It needs that the others
contribute the same whether the record is drawn, as `replaced_coins` does. Normal noise has `sampled_normal`.
"""

from dataclasses import replace

from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve, release_tail
from dpaudit.verify.pld.replaced_pairs import replaced_pair
from dpaudit.verify.upper import coordinate_products, mixed, sampled_normal

THEOREM = (
    "a record's own coin: largest mass of a set around one version, least around the other, by Neyman-Pearson "
    "(verify/pld/replaced_pairs.py); composition by Zhu, Dong and Wang (2022), Theorem 10; rounded up by Doroshenko et "
    "al. (2022), Theorem 4.3"
)


def pair_against(adjacency: Adjacency, phase: Phase) -> PairPhase | None:
    """The pair of one release, with the number of coordinates that it is of for its steps; None where there is none.

    Args:
        adjacency: A record against nothing ("add-remove") or against another one ("replace-one").
        phase: Its noise.
    """
    alone = Claim(0.0, 0.0, [replace(phase, steps=1)], adjacency)
    found = coordinate_products.one_coordinate(alone, phase)
    if found is None:
        found = mixed.pair_phase(alone, alone.phases[0])
    return None if found is None or found.pair.heavy else found


def covered(claim: Claim, phase: Phase) -> bool:
    """Whether a phase has such a pair, or one of its own."""
    if phase.sampling_prob == 1:
        return coordinate_products.covered(claim, phase)
    return pair_against("add-remove", phase) is not None


def phase_pair(claim: Claim, phase: Phase, tail: float) -> PairPhase | None:
    """The pair of a phase that is covered; None where a loss is beyond floats."""
    if phase.sampling_prob == 1:
        return coordinate_products.phase_pair(claim, phase, tail)
    one = pair_against("add-remove", phase)
    pair = None if one is None else replaced_pair(one.pair, one.steps, phase.sampling_prob, tail)
    return None if pair is None else PairPhase(pair, 1.0, phase.steps)


def applies(claim: Claim) -> bool:
    """A record that is replaced and sampled by its own coin, noise with a pair that is not all normal."""
    return (
        claim.adjacency == "replace-one"
        and any(phase.sampling_prob < 1 for phase in claim.phases)
        and not sampled_normal.applies(claim)
        and all(covered(claim, phase) for phase in claim.phases)
    )


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed pairs; 1 where a loss is beyond floats.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to replace a sampled record, with noise that has a pair.")
    tail = release_tail(claim)
    return pair_curve(claim, [phase_pair(claim, phase, tail) for phase in claim.phases], THEOREM, wanted=("remove",))
