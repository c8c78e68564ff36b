"""Histories whose phases need different theorems.

Dominating pairs of different releases compose as well as equal ones (Zhu, Dong and Wang 2022, Theorem 10), and so do
moments (Mironov 2017, Proposition 1: the Renyi divergences of one order add up). So a history is covered by the pairs
if every phase has one, and by moments if every phase has them.
"""

from functools import partial

from dpaudit.mechanisms.base import LaplaceCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve
from dpaudit.verify.rdp import Moments, gaussian_moments, least_moments, rdp_curve
from dpaudit.verify.upper import (
    envelope,
    gaussian_pld,
    laplace_gaussian_domination,
    laplace_pure,
    one_dimensional,
    radial_pld,
    sampled_normal,
)
from dpaudit.verify.upper.gaussian_pld import shift_over_sigma
from dpaudit.verify.upper.shift_norms import moments_reach, sampling_is_known

PAIRS = "dominating pair of each phase, composed: Zhu, Dong and Wang (2022), Theorems 10 and 11"
MOMENTS = "moments of each phase, added: Mironov (2017), Proposition 1; Balle et al. (2020), Theorem 21"


def pair_phase(claim: Claim, phase: Phase) -> PairPhase | None:
    """Dominating pair of a phase by the first theorem that has one."""
    mu = shift_over_sigma(phase, claim.adjacency)
    if mu is not None and sampling_is_known(phase):
        return PairPhase(gaussian_pair(mu), phase.sampling_prob, phase.steps)
    pairs = laplace_pure.pair_phase(claim, phase), one_dimensional.pair_phase(claim, phase)
    return pairs[0] or pairs[1] or radial_pld.pair_phase(claim, phase)


def attained_pair(claim: Claim, phase: Phase) -> PairPhase | None:
    """A phase's pair where some contribution of the record attains it, so that no other theorem says more."""
    law, mechanism = phase.mechanism.structure, phase.mechanism
    if isinstance(law, LaplaceCoordinates) and mechanism.dimension != 1 and mechanism.clip_norm > 1:
        return None  # its pair is of the largest l1 norm, which is the worst shift under l1 clipping alone
    return pair_phase(claim, phase)


def moments_of(claim: Claim, phase: Phase, rate: float | None = None) -> Moments | None:
    """Log-moments of a phase: exact ones of normal noise, else the least of the theorems that have them.

    Args:
        claim: Its adjacency says how long a shift is.
        phase: The phase.
        rate: Probability of the shift, else none; if None, that of the phase where moments are known with it.
    """
    mu = shift_over_sigma(phase, claim.adjacency)
    if mu is not None:
        return partial(gaussian_moments, mu, phase.sampling_prob if rate is None else rate)
    return least_moments(laplace_gaussian_domination.moments(claim, phase, rate), envelope.moments(phase, claim, rate))


def _all_pairs(claim: Claim) -> list[PairPhase] | None:
    pairs = [pair_phase(claim, phase) for phase in claim.phases]
    known = [pair for pair in pairs if pair is not None]
    return known if len(known) == len(pairs) else None


def _all_moments(claim: Claim) -> list[tuple[Moments, int]] | None:
    parts = [(moments_of(claim, phase), phase.steps) for phase in claim.phases]
    known = [(moments, steps) for moments, steps in parts if moments is not None]
    return known if len(known) == len(parts) and moments_reach(claim) else None


def applies(claim: Claim) -> bool:
    """Several phases that no single theorem covers, each with a pair, or each with moments."""
    alone = (
        gaussian_pld,
        sampled_normal,
        laplace_pure,
        one_dimensional,
        radial_pld,
        laplace_gaussian_domination,
        envelope,
    )
    if len(claim.phases) < 2 or any(theorem.applies(claim) for theorem in alone):
        return False
    return _all_pairs(claim) is not None or _all_moments(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): by pairs where all phases have one, else by moments.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    pairs = _all_pairs(claim)
    if pairs is not None:
        return pair_curve(claim, pairs, PAIRS)
    moments = _all_moments(claim)
    if moments is None:
        raise ValueError(f"Expected every phase of claim {claim.id!r} to have a dominating pair, or every one moments.")
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    return rdp_curve(claim, moments, sampled=sampled, method="rdp", theorem=MOMENTS)
