"""Any sampler in which a record enters a bounded number of releases: as private as that many releases without sampling.

Reveal the order of everybody, or the bins: its law is the same for both neighbours, since it does not depend on what
records contribute. Given the order, the history is an adaptive one in which the two data sets differ in at most
`meetings` releases, known to the adversary, and all others are post-processing of what came before. delta(epsilon) is a
hockey-stick divergence, jointly convex, so that of the mixture over orders is at most the largest of a given order
(Balle, Barthe and Gaboardi 2018, section 2). Under zero-out and replace-one the batches of both data sets are the same;
under add-remove too where everybody is sampled alone.

Where batches straddle two passes a record can be in one batch twice: for normal noise that is one release of twice the
shift, which costs as much as four; other noise has no theorem there.
"""

from dataclasses import replace

from dpaudit.mechanisms.base import NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import Shuffled

THEOREM = "the order revealed, a record meets at most so many releases: joint convexity of the hockey-stick divergence"


def met_phase(phase: Phase) -> Phase | None:
    """A phase without sampling that costs at least as much: itself where it has no sampler, None without a bound."""
    sampler = phase.sampler
    if sampler is None:
        return phase
    straddling = isinstance(sampler, Shuffled) and sampler.last_batch == "straddling"
    if straddling and not isinstance(phase.mechanism.structure, NormalCoordinates):
        return None
    return Phase(phase.mechanism, sampler.meetings, 1.0, "none")


def met_claim(claim: Claim) -> Claim | None:
    """The claim of the releases that a record meets; None if no phase has a sampler, or one has no bound."""
    phases = [met_phase(phase) for phase in claim.phases]
    if all(phase.sampler is None for phase in claim.phases) or any(phase is None for phase in phases):
        return None
    return Claim(claim.epsilon, claim.delta, [p for p in phases if p is not None], claim.adjacency, claim.id)


def revealed(curve: Curve) -> Curve:
    """An upper bound of the met claim as one of the claim with its samplers."""
    return replace(curve, theorem=f"{THEOREM}; {curve.theorem}")
