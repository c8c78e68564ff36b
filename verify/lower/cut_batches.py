"""Poisson batches that are cut, all others at the other end: how many of them are in says whether the record is.

The record contributes +clip and all others -clip. Of the n - 1 others X ~ Bin(n - 1, prob) are drawn, and the record
with probability prob; it is then kept with probability min(1, B / (X + 1)), B = max_batch, a uniformly random set of B.
Where it is in there are min(X, B - 1) others, and else min(X, B): a release is the noise around a random multiple of
the clip, whose law is known. Between neighbours that place holds the record, and else nobody (add-remove: it is then
min(X, B) others always), a ghost of no contribution, or another record at -clip.

Of X a window is kept that holds all but `lost` of its mass; that is left out of the first law, and may all be in any
event of the second. Its masses are proportional to running products of the ratios of neighbouring ones, each a handful
of roundings; the sum of those in the window, which is at most 1, is known through its complement.
"""

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import IIDCoordinates, NormalCoordinates
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.binomial_tails import binomial_tail
from dpaudit.verify.claims import Claim, Phase, lets_another_in
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.families import ONE_EVENT, Shift, equal
from dpaudit.verify.lower.histories import EVENT, SKIPPED, ShiftedPhase, history_points, tail_probability
from dpaudit.verify.lower.shifts import longest_count
from dpaudit.verify.lower.strongest import aim, event, strongest_curve
from dpaudit.verify.pld.cells import MixturePair
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import TruncatedPoisson
from dpaudit.verify.samplers.shuffled import OPPOSED

REACH, LEAST = 16.0, 40.0  # half of the window: standard deviations, and others besides
FEW_CENTRES, MOST_CENTRES = 60, 256  # that take hardly any time, and at most
WIDEST = 4096  # others of a window
ROUNDINGS = 8.0, 64.0  # of a mass: for each other of the window (5 of them, and a sum), and besides
UNDERFLOW = 1e-290  # of masses that are too small for floats
THEOREM = (
    f"{ONE_EVENT}; a release of batches that are cut mixes how many of the others are in (verify/lower/cut_batches.py)"
)
NEGLIGIBLE = 1e-3  # of the claimed delta: the chance of a cut below which silent others say as much


@dataclass(frozen=True)
class CutRelease:
    """Laws of one release, mixtures of the noise around multiples of the clip.

    Args:
        multiples: Ascending, of the clip.
        laws: Weights with the record from below, on the other side from above.
        turned: Weights on the other side from below, with the record from above.
        lost: Mass that is in neither.
    """

    multiples: tuple[float, ...]
    laws: MixturePair
    turned: MixturePair
    lost: float


def cut_release(sampler: TruncatedPoisson, *, absent: bool, replaced: bool, tail: float = 0.0) -> CutRelease | None:
    """Laws of one release of batches that are cut, all others at -clip; None where there are too many centres.

    Args:
        sampler: The batches.
        absent: Whether the record is taken away on the other side, so that another one may be in.
        replaced: Whether another record at -clip is in its place there, else a ghost of no contribution.
        tail: Probability of few others that may be left out where they make many centres.
    """
    n, cap, prob = sampler.records - 1, sampler.max_batch, float(sampler.prob)
    half = math.ceil(REACH * math.sqrt(n * prob * (1.0 - prob)) + LEAST)
    first, last = max(0, math.floor(n * prob) - half), min(n, math.ceil(n * prob) + half)
    if tail > 0 and cap - first > FEW_CENTRES:  # P(X <= n p - t) <= e^(-t^2 / (2 n p))
        down = math.ceil(math.sqrt(-2.0 * math.log(tail) * n * prob)) + 1
        first = max(first, min(math.floor(n * prob) - down, cap - FEW_CENTRES))
    if last - first > WIDEST or cap - min(first, cap) + 3 > MOST_CENTRES:
        return None
    drawn = np.arange(first, last + 1)
    ratios = (n - drawn[:-1]) / drawn[1:] * (prob / (1.0 - prob))
    mode = int(np.searchsorted(-ratios, -1.0))  # they fall
    weights = np.concatenate([np.cumprod(1.0 / ratios[:mode][::-1])[::-1], [1.0], np.cumprod(ratios[mode:])])
    weights /= weights.sum()
    rounding = UNIT * (ROUNDINGS[0] * len(drawn) + ROUNDINGS[1])
    lost = (binomial_tail(last + 1, n, prob)[1] if last < n else 0.0) + sampler.fewer(first)
    kept = prob * np.minimum(1.0, cap / (drawn + 1.0))
    with_others, without = -np.minimum(drawn, cap - 1), -np.minimum(drawn, cap)
    other = without if absent else with_others - 1 if replaced else with_others

    def law(place: NDArray[np.int64], way: float) -> dict[float, float]:
        """Weights of the centres from below (-1) or from above (1)."""
        found: dict[float, float] = defaultdict(float)
        chances = kept, np.maximum(1.0 - kept + way * 4.0 * UNIT, 0.0)
        for centres, chance in zip((place, without), chances, strict=True):
            for centre, mass in zip(centres, weights * chance, strict=True):
                found[float(centre)] += float(mass) * (1.0 + way * rounding) * (1.0 if way > 0 else 1.0 - lost)
        return found

    below, above = ([law(place, way) for place in (with_others + 1, other)] for way in (-1.0, 1.0))
    multiples = tuple(sorted({centre for found in above for centre in found}))
    low, high = ([tuple(found.get(m, 0.0) for m in multiples) for found in laws] for laws in (below, above))
    return CutRelease(multiples, MixturePair(low[0], high[1]), MixturePair(low[1], high[0]), lost + UNDERFLOW)


def cut_curve(claim: Claim, beside: Sequence[ShiftedPhase] = ()) -> Curve | None:
    """The lower bound of batches that are cut with all others at -clip; None where that says no more than silent ones.

    Phases that are neither cut nor beside them are left out of the history (post-processing).

    Args:
        claim: The history.
        beside: Phases without sampling or with Poisson batches that compose with them.
    """
    cuts, lost, swaps = list[tuple[Phase, Shift, CutRelease]](), 0.0, claim.adjacency == "replace-one"
    for phase in claim.phases:
        noise, sampler = phase.mechanism, phase.sampler
        if isinstance(noise.structure, IIDCoordinates) and isinstance(sampler, TruncatedPoisson) and sampler.prob < 1:
            shift = equal(noise, longest_count(noise) if isinstance(noise.structure, NormalCoordinates) else 1)
            another, tail = lets_another_in(claim, phase), tail_probability(claim)
            release = cut_release(sampler, absent=another, replaced=swaps, tail=tail)
            if release is not None:
                lost += sampler.steps * release.lost
                cuts.append((Phase(noise, sampler.steps, sampler.kept_rate), shift, release))
    overflow = [phase.sampler.overflow for phase in claim.phases if isinstance(phase.sampler, TruncatedPoisson)]
    if not cuts or sum(overflow) < NEGLIGIBLE * claim.least_delta:
        return None
    found, ways, shift = [], ("remove", "add"), cuts[0][1]
    for way in ways:
        releases = [*(_shifted(*cut, turned=way == "add") for cut in cuts), *beside]
        found.append(history_points(releases, "swap" if swaps else way, claim).charged(lost))
    notes = (OPPOSED, SKIPPED) if len(cuts) + len(beside) < len(claim.phases) else (OPPOSED,)

    def witness(index: int) -> Witness:
        points = found[index]
        return shift.witness(claim, ways[index], event(points, aim(points, claim), EVENT))

    return strongest_curve(found, claim, THEOREM, notes, witness)


def _shifted(phase: Phase, shift: Shift, release: CutRelease, *, turned: bool) -> ShiftedPhase:
    """A phase of such releases along the line of the shift."""
    middle = release.multiples[len(release.multiples) // 2]  # all centres may be moved: a bijection of the outputs
    multiples = tuple(m - middle for m in release.multiples)
    assert isinstance(phase.mechanism.structure, IIDCoordinates)
    line = phase.mechanism.structure, np.array(multiples) * shift.length
    return ShiftedPhase(phase, shift, multiples, line=line, laws=release.turned if turned else release.laws)
