"""One coordinate of a log-concave law: the pair of the longest shift dominates.

For symmetric unimodal noise delta grows with the shift (boundary lemma), so the shift of length clip is the worst and
the pair f(x - clip), f(x) dominates (Zhu, Dong and Wang 2022, Definition 7). For a log-concave law its loss is monotone
in the output, and the cells are level sets of it.
"""

from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper.numerics.pair_curve import PairPhase, pair_curve
from dpaudit.verify.upper.numerics.pairs import logconcave_pair
from dpaudit.verify.upper.numerics.radii import radius, sampling_is_known

THEOREM = (
    "one dimension: the longest shift dominates (boundary lemma); sampling and composition by Zhu, Dong and Wang "
    "(2022), Theorems 10 and 11; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)


def pair_phase(claim: Claim, phase: Phase) -> PairPhase | None:
    """The pair of one phase, None where it has none: Gaussian and Laplace noise have theorems of their own."""
    structure = phase.mechanism.structure
    if not isinstance(structure, IIDCoordinates) or structure.power is None or phase.mechanism.dimension != 1:
        return None
    if structure.gaussian_sigma is not None or structure.laplace_scale is not None or not sampling_is_known(phase):
        return None
    length = radius(phase.mechanism, 2.0, claim.adjacency)
    assert length is not None  # one dimension: every norm is the same
    return PairPhase(logconcave_pair(structure, length), phase.sampling_prob, phase.steps)


def applies(claim: Claim) -> bool:
    """exp(-|x|^beta) noise in one dimension in every phase, Poisson sampling or none."""
    return all(pair_phase(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed pairs.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    found = [pair_phase(claim, phase) for phase in claim.phases]
    phases = [phase for phase in found if phase is not None]
    if len(phases) < len(found):
        raise ValueError(f"Expected claim {claim.id!r} to have log-concave noise in one dimension in every phase.")
    return pair_curve(claim, phases, THEOREM)
