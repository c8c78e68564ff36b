"""Any sampler from theorems for Poisson sampling or none: the order revealed, fixed sizes.

Orders revealed. Reveal the order of everybody, or the bins: its law is the same for both neighbours, since it does not
depend on what records contribute. Given the order, the history is an adaptive one in which the two data sets differ in
at most `meetings` releases, known to the adversary, and all others are post-processing of what came before.
delta(epsilon) is a hockey-stick divergence, jointly convex, so that of the mixture over orders is at most the largest
of a given order (Balle, Barthe and Gaboardi 2018, section 2). Under zero-out and replace-one the batches of both data
sets are the same; under add-remove too where everybody is sampled alone. Where batches straddle two passes a record can
be in one batch twice: for normal noise that is one release of twice the shift, which costs as much as four; for other
noise it is one of half the noise (`met_twice`). In a stream of passes through a buffer as many copies as a batch has
places might meet in one.

Without replacement at rate g. With the record in, a release is moved from that of the other neighbour by at most a
clip, and from that of a batch which has another record in its place by two. By advanced joint convexity (Balle, Barthe
and Gaboardi 2018, Theorems 2 and 9) delta(log(1 + g (e^epsilon - 1))) <= g delta_2C(epsilon) in both directions and
under both adjacencies: the profile of `pair_curve.directions`, which composes. Normal noise has sharper ones of its own
(`sampled_normal`) and keeps its sampler; under zero-out some other noise has, too (`fixed_size_batches`).
"""

from dataclasses import replace

from dpaudit.mechanisms.base import NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper.shift_norms import moments_reach, sampling_is_known

REVEALED = "the order revealed, a record meets at most so many releases: joint convexity of the hockey-stick divergence"
DRAWN = "who is drawn revealed, the record is in at most every release: joint convexity of the hockey-stick divergence"
FIXED_SIZE = "batches of fixed size: advanced joint convexity, Balle, Barthe and Gaboardi (2018), Theorems 2 and 9"


def met_phase(phase: Phase, *, kept: bool) -> Phase | None:
    """A phase that costs at least as much and has theorems: itself where it has no sampler, None without one.

    Batches that are cut have none: `cut_batches` reads them as others.

    Args:
        phase: The phase.
        kept: Whether batches of fixed size stay as they are, for theorems that have pairs of theirs.
    """
    match phase.sampler:
        case None:
            return phase
        case WithoutReplacement() if kept:
            return phase
        case WithoutReplacement() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case TruncatedPoisson():
            return None
        case sampler if sampler.meets_twice and not _normal(phase):
            return None
        case sampler:
            return Phase(phase.mechanism, sampler.meetings, 1.0, "none")


def _normal(phase: Phase) -> bool:
    return isinstance(phase.mechanism.structure, NormalCoordinates)


def met_claim(claim: Claim, *, kept: bool = False) -> Claim | None:
    """The claim of such phases; None if no phase has a sampler that is read as another, or one has no bound."""
    kept = kept or all(map(_normal, claim.phases))
    phases = [met_phase(phase, kept=kept) for phase in claim.phases]
    known = [phase for phase in phases if phase is not None]
    if len(known) < len(phases) or all(a is b for a, b in zip(known, claim.phases, strict=True)):
        return None
    swaps = not kept and takes_places(claim)
    return Claim(claim.epsilon, claim.delta, known, "replace-one" if swaps else claim.adjacency, claim.id)


def takes_places(claim: Claim) -> bool:
    """Whether another record takes the place of one that is not drawn: batches of fixed size.

    Where it does, what the others contribute depends on the record's coin.
    """
    return any(isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases)


def revealed_claim(claim: Claim) -> Claim | None:
    """The claim with it known who is drawn, where moments need that; None where they do not.

    Poisson coins have one law for both neighbours, whoever the record is: given them the history is one of at most as
    many releases without sampling, and delta is jointly convex.
    """
    if claim.adjacency != "replace-one" or moments_reach(claim) or not all(map(sampling_is_known, claim.phases)):
        return None
    phases = [phase.unsampled for phase in claim.phases]
    return replace(claim, phases=tuple(phases))


def carried_over(claim: Claim, met: Claim, curve: Curve) -> Curve:
    """An upper bound of `met_claim(claim)` as one of the claim with its samplers.

    Args:
        claim: The claim.
        met: What it was read as.
        curve: The bound.
    """
    pairs = zip(claim.phases, met.phases, strict=True)
    samplers = [a.sampler for a, b in pairs if a.sampler is not None and a.sampler != b.sampler]
    theorems = [FIXED_SIZE if isinstance(sampler, WithoutReplacement) else REVEALED for sampler in samplers]
    return replace(curve, theorem="; ".join(dict.fromkeys([*theorems, curve.theorem])))
