"""Any sampler from theorems for Poisson sampling or none: the order revealed, fixed sizes, batches that are cut.

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

Batches that are cut. Reveal who else is drawn, which has one law for both neighbours. Unless max_batch of the others
are drawn for one release, with probability at most beta = steps P(Bin(records - 1, prob) >= max_batch), nothing is cut
whether the record is in or not, and the history is one of Poisson batches. Reveal also in which order the others would
be cut. The record is kept with a known probability g <= prob, then in place of the last of the others or, where nothing
is cut, of nobody: what the theorems for batches of fixed size at rate g allow. They grow with the rate: a coin of g is
one of prob and another one, revealed, and where that fails neighbours are alike. If everybody is drawn, g = max_batch /
records. So by joint convexity delta is at most (1 - beta) times that of Poisson batches and beta times that of batches
of fixed size, or the latter alone. All this is between the record and a ghost or another record, who are drawn as it
is. Where m >= max_batch others at least are drawn in every release, but for a small probability, the rate is at most
prob max_batch / (m + 1); given that a batch is filled that probability is no larger, as what makes more likely that one
is makes less likely that few are drawn (Harris' inequality). If the record is taken away (add-remove), the last of the
others is in whenever it is not: (1 - g) R_y + g R_v against R_y, or against R_0 where nothing is cut. The one is what
two records at v and at y have in batches of fixed size, so that what holds of records that are replaced there holds
here; the other is a Poisson batch.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase, lets_another_in
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import Sampler, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper.shift_norms import moments_reach, sampling_is_known

REVEALED = "the order revealed, a record meets at most so many releases: joint convexity of the hockey-stick divergence"
DRAWN = "who is drawn revealed, the record is in at most every release: joint convexity of the hockey-stick divergence"
FIXED_SIZE = "batches of fixed size: advanced joint convexity, Balle, Barthe and Gaboardi (2018), Theorems 2 and 9"
CUT_AS_FIXED = "batches that are cut hold the record at a known rate, in place of another: as batches of fixed size"
FEW = 1e-4  # of the claimed delta: the chance that few others are drawn
WORTH = 0.9  # of the rate: what many others must make less of it
MUCH = 1e-3  # of the claimed delta: the chance of a cut from which on what a cut costs is looked at
CUT = "Poisson batches unless the others alone fill one, which has a small probability"


def met_phase(phase: Phase, *, kept: bool, fixed: bool = False, rare: float = 0.0) -> Phase | None:
    """A phase that costs at least as much and has theorems: itself where it has no sampler, None without one.

    Args:
        phase: The phase.
        kept: Whether batches of fixed size stay as they are, for theorems that have pairs of theirs.
        fixed: Whether batches that are cut are read as such, not as Poisson ones.
        rare: Probability that such batches may draw fewer of the others than is assumed.
    """
    match phase.sampler:
        case None:
            return phase
        case WithoutReplacement() if kept:
            return phase
        case WithoutReplacement() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case TruncatedPoisson() as sampler if fixed:
            rate = sampler.crowded(rare)[0]
            return met_phase(replace(phase, sampler=WithoutReplacement(rate, sampler.steps)), kept=kept)
        case TruncatedPoisson() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case sampler if sampler.meets_twice and not _normal(phase):
            return None
        case sampler:
            return Phase(phase.mechanism, sampler.meetings, 1.0, "none")


def _normal(phase: Phase) -> bool:
    return isinstance(phase.mechanism.structure, NormalCoordinates)


def met_claim(claim: Claim, *, fixed: bool = False, kept: bool = False, rare: float = 0.0) -> Claim | None:
    """The claim of such phases; None if no phase has a sampler that is read as another, or one has no bound."""
    kept = kept or all(map(_normal, claim.phases))
    phases = [met_phase(phase, kept=kept, fixed=fixed, rare=rare) for phase in claim.phases]
    known = [phase for phase in phases if phase is not None]
    if len(known) < len(phases) or all(a is b for a, b in zip(known, claim.phases, strict=True)):
        return None
    refilled = fixed and any(lets_another_in(claim, phase) for phase in claim.phases)
    swaps = refilled or (not kept and takes_places(claim, fixed=fixed))
    return Claim(claim.epsilon, claim.delta, known, "replace-one" if swaps else claim.adjacency, claim.id)


def takes_places(claim: Claim, *, fixed: bool) -> bool:
    """Whether another record takes the place of one that is not drawn: batches of fixed size, or cut and read as such.

    Where it does, what the others contribute depends on the record's coin.
    """
    drawn = WithoutReplacement | TruncatedPoisson if fixed else WithoutReplacement
    return any(isinstance(phase.sampler, drawn) for phase in claim.phases)


def revealed_claim(claim: Claim) -> Claim | None:
    """The claim with it known who is drawn, where moments need that; None where they do not.

    Poisson coins have one law for both neighbours, whoever the record is: given them the history is one of at most as
    many releases without sampling, and delta is jointly convex.
    """
    if claim.adjacency != "replace-one" or moments_reach(claim) or not all(map(sampling_is_known, claim.phases)):
        return None
    phases = [phase.unsampled for phase in claim.phases]
    return replace(claim, phases=tuple(phases))


def often_cut(claim: Claim) -> bool:
    """Whether cuts are so likely that they are to be read as batches of fixed size."""
    return _cut(claim) > MUCH * claim.delta


def _cut(claim: Claim) -> float:
    """Upper bound on the probability that the others alone fill some batch that is cut."""
    chances = [phase.sampler.overflow for phase in claim.phases if isinstance(phase.sampler, TruncatedPoisson)]
    return min(1.0, sum(chances) * (1.0 + 1e-15))


def carried_over(
    claim: Claim, met: Claim, curve: Curve, *, fixed: bool = False, rare: float = 0.0, when_cut: Sequence[Curve] = ()
) -> Curve:
    """An upper bound of `met_claim(claim)` as one of the claim with its samplers.

    Args:
        claim: The claim.
        met: What it was read as.
        curve: The bound.
        fixed: Whether batches that are cut were read as batches of fixed size.
        rare: Probability with which they may draw fewer of the others than is assumed.
        when_cut: Where they were not: bounds of the same history with `fixed`, for where the others fill a batch.
    """
    pairs = zip(claim.phases, met.phases, strict=True)
    theorems = [_theorem(a.sampler, fixed=fixed) for a, b in pairs if a.sampler is not None and a.sampler != b.sampler]
    theorem = "; ".join(dict.fromkeys([*theorems, curve.theorem]))
    cut = 0.0 if fixed else _cut(claim)
    if not cut:
        drawn = [phase.sampler for phase in claim.phases if isinstance(phase.sampler, TruncatedPoisson)]
        few = sum(sampler.crowded(rare)[1] for sampler in drawn) if fixed else 0.0
        if not few:
            return replace(curve, theorem=theorem)
        return Curve.upper(curve.method, theorem, partial(_with_few, curve, few), curve.assumptions)
    return Curve.upper(curve.method, theorem, partial(_with_cuts, curve, cut, tuple(when_cut)), curve.assumptions)


def _with_few(curve: Curve, few: float, epsilon: Array) -> Array:
    """delta where few others are drawn with a small probability, and then all is lost."""
    return np.asarray(np.minimum(curve.delta(epsilon) + few, 1.0))


def crowd(claim: Claim) -> float:
    """Probability with which few others may be drawn, where batches that many share have a lower rate; else 0."""
    rare = FEW * claim.least_delta
    drawn = [phase.sampler for phase in claim.phases if isinstance(phase.sampler, TruncatedPoisson)]
    return rare if any(s.crowded(rare)[0] < WORTH * s.crowded(0.0)[0] for s in drawn) else 0.0


def _theorem(sampler: Sampler, *, fixed: bool) -> str:
    match sampler:
        case WithoutReplacement():
            return FIXED_SIZE
        case TruncatedPoisson():
            return CUT_AS_FIXED if fixed else CUT
        case _:
            return REVEALED


def _with_cuts(curve: Curve, cut: float, when_cut: Sequence[Curve], epsilon: Array) -> Array:
    """delta where the others fill a batch with probability `cut`, and otherwise nothing is cut."""
    uncut = np.minimum(curve.delta(epsilon), 1.0)
    full = np.minimum.reduce([np.ones_like(epsilon), *(bound.delta(epsilon) for bound in when_cut)])
    return np.asarray(np.minimum(uncut + cut * np.maximum(full - uncut, 0.0), 1.0 - 1e-15) * (1.0 + 1e-15))
