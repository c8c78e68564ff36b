"""One coordinate of an exponential power law or one of log-convex tails: the pair of the longest shift dominates.

For symmetric unimodal noise delta grows with the shift (boundary lemma, `shift_norms`), so the shift of length clip is
the worst and the pair f(x - clip), f(x) dominates (Zhu, Dong and Wang 2022, Definition 7). For a log-concave law its
loss is monotone in the output, for log-convex tails it exceeds a level between two outputs: the cells are its level
sets.

One unsampled release needs no cells: with L the loss,

    delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon).
"""

from functools import partial

import numpy as np

from dpaudit.mechanisms.base import (
    Array,
    IIDCoordinates,
    LaplaceCoordinates,
    LomaxCoordinates,
    NormalCoordinates,
    PowerCoordinates,
)
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import SMALLEST_DELTA, Curve
from dpaudit.verify.pld.dominating_pairs import DominatingPair, logconcave_pair, lomax_pair, peaked_pair
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve
from dpaudit.verify.upper.shift_norms import radius, sampling_is_known

THEOREM = (
    "one dimension: the longest shift dominates (boundary lemma); sampling and composition by Zhu, Dong and Wang "
    "(2022), Theorems 10 and 11; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)
EXACT_THEOREM = "one dimension: the longest shift dominates (boundary lemma); delta of its one event, loss > epsilon"


def pair_phase(claim: Claim, phase: Phase) -> PairPhase | None:
    """Dominating pair of a phase in one dimension; None for Gaussian and Laplace noise, with theorems of their own."""
    structure = phase.mechanism.structure
    if not isinstance(structure, IIDCoordinates) or phase.mechanism.dimension != 1:
        return None
    if not (structure.log_convex or isinstance(structure, PowerCoordinates)):
        return None
    if isinstance(structure, NormalCoordinates | LaplaceCoordinates) or not sampling_is_known(phase):
        return None
    length = radius(phase.mechanism, 2.0, claim.adjacency)
    assert length is not None  # one dimension: every norm is the same
    return PairPhase(_pair(structure, length), phase.sampling_prob, phase.steps)


def _pair(law: IIDCoordinates, shift: float) -> DominatingPair:
    if isinstance(law, LomaxCoordinates):
        return lomax_pair(law, shift)
    return logconcave_pair(law, shift) if isinstance(law, PowerCoordinates) else peaked_pair(law, shift)


def applies(claim: Claim) -> bool:
    """exp(-|x|^beta) noise or log-convex tails in one dimension in every phase, Poisson sampling or none."""
    return all(pair_phase(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed pairs.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    pairs = [pair_phase(claim, phase) for phase in claim.phases]
    phases = [phase for phase in pairs if phase is not None]
    if len(phases) < len(pairs):
        raise ValueError(f"Expected claim {claim.id!r} to have noise of such a law in one dimension in every phase.")
    if len(phases) == 1 and phases[0].steps == 1 and phases[0].sampling_prob == 1:
        return Curve.upper("exact-integral", EXACT_THEOREM, partial(_single_delta, phases[0].pair))
    return pair_curve(claim, phases, THEOREM)


def _single_delta(pair: DominatingPair, epsilon: Array) -> Array:
    """P(L > l) - e^epsilon Q(L > l), rounded up.

    The tails are taken at a loss l within the pair's slack of epsilon. Moving the event's border that far changes the
    difference by at most (e^slack - 1) P(L > epsilon - slack). Where the noise is wide that exceeds P(L > l) by far.
    """
    tails = pair.tails(epsilon)
    with np.errstate(over="ignore"):
        difference = tails.p_sf - np.exp(np.minimum(epsilon, 700.0)) * tails.q_sf
    width = 4 * (pair.slack + 4e-16) * (1 + epsilon)
    below = pair.tails(epsilon - 2 * width)
    moved = np.expm1(np.minimum(width, 700.0)) * np.maximum(below.p_sf * (1 + 2 * below.p_error), tails.p_sf)
    error = (2 * tails.p_error + 2 * tails.q_error) * tails.p_sf + moved
    return np.asarray(np.clip(difference + error, SMALLEST_DELTA, 1.0))
