"""Poisson batches that are cut, noise with a pair: the mean of the curves of both kinds of releases.

Whether the others alone fill a batch has one law for both neighbours (`full_batches`), so that a release's profile is
at most the mean of those of a Poisson batch and of a batch of fixed size. Of a replaced record in the latter it is that
of advanced joint convexity (`met_releases`). Where the noise is normal throughout the two are known without curves
(`sampled_normal`).
"""

from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.curve_pairs import Curves, mean_pair, sampled_curves
from dpaudit.verify.pld.fixed_size_pairs import fixed_size_curves
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve, release_tail
from dpaudit.verify.pld.product_pairs import product_curve
from dpaudit.verify.pld.replaced_pairs import LARGEST, replaced_curve
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper import fixed_size_batches, full_batches, replaced_records, sampled_normal
from dpaudit.verify.upper.full_batches import CutPhase, read_cut
from dpaudit.verify.upper.replaced_records import pair_against
from dpaudit.verify.upper.shift_norms import sampling_is_known

THEOREM = (
    f"{full_batches.THEOREM}; composition by Zhu, Dong and Wang (2022), Theorem 10; rounded up by Doroshenko et al. "
    "(2022), Theorem 4.3"
)


def applies(claim: Claim) -> bool:
    """Batches that are cut in a phase, noise with a pair in all of them, not all of it normal."""
    return _pairs(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) from the composed pairs.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    pairs = _pairs(claim)
    if pairs is None:
        raise ValueError(f"Expected claim {claim.id!r} to have batches that are cut, with noise that has a pair.")
    return pair_curve(claim, pairs, THEOREM, wanted=("remove",) if _swaps(read_cut(claim)[0]) else ("remove", "add"))


def _pairs(claim: Claim) -> list[PairPhase] | None:
    """One of every phase; None where nothing is cut, all noise is normal, a phase has none, or losses beyond floats."""
    if not any(isinstance(phase.sampler, TruncatedPoisson) for phase in claim.phases) or sampled_normal.applies(claim):
        return None
    read, cuts = read_cut(claim)
    phases, tail = list(zip(read.phases, cuts, strict=True)), release_tail(read)
    if not all(_covered(read, phase, cut) for phase, cut in phases):
        return None
    found = [_pair(read, phase, cut, tail) for phase, cut in phases]
    known = [pair for pair in found if pair is not None]
    return known if len(known) == len(found) else None


def _swaps(claim: Claim) -> bool:
    return claim.adjacency == "replace-one"


def _covered(claim: Claim, phase: Phase, cut: CutPhase | None) -> bool:
    if cut is not None:
        return all(pair_against(way, Phase(kind.mechanism, 1)) for _, kind in cut.kinds for way in _ways(claim, kind))
    if phase.sampler is not None or not sampling_is_known(phase):
        return isinstance(phase.sampler, WithoutReplacement) and not _swaps(claim) and _beside(claim, phase)
    return _beside(claim, phase)


def _beside(claim: Claim, phase: Phase) -> bool:
    return replaced_records.covered(claim, phase) if _swaps(claim) else fixed_size_batches.covered(claim, phase)


def _pair(claim: Claim, phase: Phase, cut: CutPhase | None, tail: float) -> PairPhase | None:
    if cut is None:
        beside = replaced_records.phase_pair if _swaps(claim) else fixed_size_batches.phase_pair
        return beside(claim, phase, tail)
    found = [(chance, _curves(claim, kind, tail)) for chance, kind in cut.kinds]
    known = [(chance, curves) for chance, curves in found if curves is not None]
    return PairPhase(mean_pair(known), 1.0, phase.steps) if len(known) == len(found) else None


def _ways(claim: Claim, kind: Phase) -> list[Adjacency]:
    """Whether a kind's curves are those of a record against nothing, against another one, or of both."""
    if not isinstance(kind.sampler, WithoutReplacement):
        return ["add-remove"]
    return ["replace-one"] if _swaps(claim) else ["add-remove", "replace-one"]


def _curves(claim: Claim, kind: Phase, tail: float) -> tuple[Curves, Curves] | None:
    """Of one release of a kind, in both orders; None for losses beyond floats."""
    known = [_known(kind, way, tail) for way in _ways(claim, kind)]
    if max(losses[-1] for losses, _ in known) > LARGEST:
        return None
    near, far = known[0], known[-1]
    fixed = kind.sampler.prob if isinstance(kind.sampler, WithoutReplacement) else None
    if not _swaps(claim):
        return sampled_curves(near, kind.sampling_prob) if fixed is None else fixed_size_curves(near, far, fixed)
    curve = replaced_curve(near, kind.sampling_prob) if fixed is None else sampled_curves(far, fixed)[0]
    return None if curve is None else (curve, curve)


def _known(kind: Phase, way: Adjacency, tail: float) -> Curves:
    """Of the record against nothing or another one, where it is in the batch."""
    found = pair_against(way, Phase(kind.mechanism, 1))
    assert found is not None  # `applies` has asked
    return product_curve(found.pair, found.steps, tail)
