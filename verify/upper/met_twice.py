"""Batches that straddle two passes, of any noise: a release that holds a record twice is one of half the noise.

With the order revealed (`met_releases`) a record is in E places, two of which may be in one batch; at most t batches
hold it twice (`Shuffled.worst_meetings`). If j do, the history is j releases that it moves by up to two clips, which
cost what a clip costs under half the noise, and E - 2 j that it moves by one. delta is at most the largest of any j.
Two releases can cost more than one of twice the shift, as where tails are heavy, so that all j count. Many are looked
at in blocks: of j from a to b, b releases of half the noise and E - 2 a others cost at least as much. So it is with
all j in one block where several phases have such batches, the blocks of which would be multiplied.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from dpaudit.mechanisms.base import Array, Mechanism, NormalCoordinates, with_noise_factor
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve, assumptions_of, best_theorem, least_delta
from dpaudit.verify.samplers import BufferedShuffle, Shuffled

THEOREM = (
    "the order revealed, a record meets at most so many releases, some of them twice, which is half the noise: joint "
    "convexity of the hockey-stick divergence"
)
FEW = 3  # batches with the record twice, up to which every number of them is looked at by itself
SHARES = (0.5, 0.75, 0.9)  # of them, at which blocks end: of a normal law the last has at most 1.05 times the cost


def parts(claim: Claim) -> list[Claim]:
    """The history of every block of a phase of such batches; with several, one that covers all; empty without any."""
    found = [_twice(phase) for phase in claim.phases]
    several = sum(sampler is not None for sampler in found) > 1  # else the blocks of all would be multiplied
    histories: list[list[Phase]] = [[]]
    for phase, sampler in zip(claim.phases, found, strict=True):
        ways = [[phase]]
        if sampler is not None:
            try:
                half = with_noise_factor(phase.mechanism, 0.5)
            except ValueError:  # out of the range of floats, or not known to be half
                return []
            most = dict(sampler.worst_meetings).get(2, 0)
            counts = [(most, sampler.epochs)] if several else blocks(most, sampler.epochs)
            ways = [_releases(half, twice, phase.mechanism, once) for twice, once in counts]
        histories = [[*before, *way] for before in histories for way in ways]
    return [replace(claim, phases=phases, guarantee=None) for phases in histories] if any(found) else []


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history with batches that straddle two passes.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.max([least_delta(part, epsilon) for part in curves], axis=0))

    return Curve.upper("pld", f"{THEOREM}; {best_theorem(curves[-1], claim.epsilon)}", delta, assumptions_of(curves))


def blocks(most: int, epochs: int) -> list[tuple[int, int]]:
    """(releases of half the noise, releases as they are) for each block.

    >>> blocks(2, 4), blocks(100, 200)
    ([(0, 4), (1, 2), (2, 0)], [(50, 200), (75, 98), (90, 48), (100, 18)])
    """
    ends = range(most + 1) if most <= FEW else [*(int(share * most) for share in SHARES), most]
    starts = [0, *(end + 1 for end in ends[:-1])]
    return [(end, epochs - 2 * start) for start, end in zip(starts, ends, strict=True)]


def _releases(half: Mechanism, twice: int, noise: Mechanism, once: int) -> list[Phase]:
    return [Phase(one, count, 1.0, "none") for one, count in ((half, twice), (noise, once)) if count]


def _twice(phase: Phase) -> Shuffled | None:
    """The passes of a phase with batches that can hold a record twice; None of other phases and of normal noise."""
    sampler = phase.sampler.passes if isinstance(phase.sampler, BufferedShuffle) else phase.sampler
    if not isinstance(sampler, Shuffled) or not sampler.meets_twice:
        return None
    return None if isinstance(phase.mechanism.structure, NormalCoordinates) else sampler
