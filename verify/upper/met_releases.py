"""Any sampler from theorems for Poisson sampling or none: the order revealed, fixed sizes, batches that are cut.

Orders revealed. Reveal the order of everybody, or the bins: its law is the same for both neighbours, since it does not
depend on what records contribute. Given the order, the history is an adaptive one in which the two data sets differ in
at most `meetings` releases, known to the adversary, and all others are post-processing of what came before.
delta(epsilon) is a hockey-stick divergence, jointly convex, so that of the mixture over orders is at most the largest
of a given order (Balle, Barthe and Gaboardi 2018, section 2). Under zero-out and replace-one the batches of both data
sets are the same; under add-remove too where everybody is sampled alone. Where batches straddle two passes a record can
be in one batch twice: for normal noise that is one release of twice the shift, which costs as much as four; other noise
has no theorem there.

Without replacement at rate g. With the record in, a release is moved from that of the other neighbour by at most a
clip, and from that of a batch which has another record in its place by two. By advanced joint convexity (Balle, Barthe
and Gaboardi 2018, Theorems 2 and 9) delta(log(1 + g (e^epsilon - 1))) <= g delta_2C(epsilon) in both directions and
under both adjacencies: the profile of `pair_curve.directions`, which composes. Normal noise has sharper ones of its own
(`sampled_normal`), and keeps its sampler.

Batches that are cut. Reveal who else is drawn, which has one law for both neighbours. Unless max_batch of the others
are drawn for one release, with probability at most beta = steps P(Bin(records - 1, prob) >= max_batch), nothing is cut
whether the record is in or not, and the history is one of Poisson batches. By joint convexity delta is at most beta +
(1 - beta) times that of Poisson batches.
"""

from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import Shuffled, TruncatedPoisson, WithoutReplacement

REVEALED = "the order revealed, a record meets at most so many releases: joint convexity of the hockey-stick divergence"
FIXED_SIZE = "batches of fixed size: advanced joint convexity, Balle, Barthe and Gaboardi (2018), Theorems 2 and 9"
CUT = "Poisson batches unless the others alone fill one, which has a small probability"


def met_phase(phase: Phase, *, normal: bool) -> Phase | None:
    """A phase that costs at least as much and has theorems: itself where it has no sampler, None without one.

    Args:
        phase: The phase.
        normal: The noise of the whole history is normal, for which batches of fixed size have pairs of their own.
    """
    match phase.sampler:
        case None:
            return phase
        case WithoutReplacement() if normal:
            return phase
        case WithoutReplacement() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case TruncatedPoisson() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case Shuffled(meets_twice=True) if not isinstance(phase.mechanism.structure, NormalCoordinates):
            return None
        case sampler:
            return Phase(phase.mechanism, sampler.meetings, 1.0, "none")


def met_claim(claim: Claim) -> Claim | None:
    """The claim of such phases; None if no phase has a sampler, or one has no bound."""
    normal = all(isinstance(phase.mechanism.structure, NormalCoordinates) for phase in claim.phases)
    phases = [met_phase(phase, normal=normal) for phase in claim.phases]
    known = [phase for phase in phases if phase is not None]
    if len(known) < len(phases) or all(a is b for a, b in zip(known, claim.phases, strict=True)):
        return None
    fixed = any(isinstance(phase.sampler, WithoutReplacement) for phase in claim.phases)
    adjacency = "replace-one" if fixed and not normal else claim.adjacency
    return Claim(claim.epsilon, claim.delta, known, adjacency, claim.id)


def carried_over(claim: Claim, curve: Curve) -> Curve:
    """An upper bound of `met_claim(claim)` as one of the claim with its samplers."""
    samplers = [phase.sampler for phase in claim.phases if phase.sampler is not None]
    theorems = [
        FIXED_SIZE if isinstance(s, WithoutReplacement) else CUT if isinstance(s, TruncatedPoisson) else REVEALED
        for s in samplers
    ]
    theorem = "; ".join(dict.fromkeys([*theorems, curve.theorem]))
    cut = min(
        1.0, sum(sampler.overflow for sampler in samplers if isinstance(sampler, TruncatedPoisson)) * (1.0 + 1e-15)
    )
    if not cut:
        return replace(curve, theorem=theorem)
    return Curve.upper(curve.method, theorem, partial(_with_cuts, curve, cut), curve.assumptions)


def _with_cuts(curve: Curve, cut: float, epsilon: Array) -> Array:
    """delta where the others fill a batch with probability `cut`, and otherwise nothing is cut."""
    return np.minimum(cut + (1.0 - cut) * np.minimum(curve.delta(epsilon), 1.0), 1.0 - 1e-15) * (1.0 + 1e-15)
