"""Poisson batches that are cut: the others alone fill one, which then is of fixed size, or nothing of it is cut.

Of n - 1 others X ~ Bin(n - 1, q) are drawn for a release, whether the record is in the data or not, and whatever was
released before. Reveal whether they fill the batch: X >= B, B = max_batch. If they do not, nothing is cut, and the
release is a Poisson batch of rate q. If they do, what is kept of them is a uniformly random set of B others whatever X
is. So given that they do, the batch has the law of one of fixed size: B others, of which the record, with probability
g = q E[B / (1 + X) | X >= B], or its ghost, or another record, takes the place of a random one. The number of such
batches is binomial and has one law for both neighbours.

If the record is taken away (add-remove) nobody takes the place: where the other in it contributes y and the record v,
that is (1 - g) R_y + g R_v against R_y, a Poisson batch of rate g and a record that moves the release by up to two
clips, which costs what a clip costs under half the noise. Where it is not known what half the noise is, it is at most
what two records at v and at y cost in batches of fixed size, and all phases read as replace-one.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from dpaudit.mechanisms.base import Array, Mechanism, NormalCoordinates, with_noise_factor
from dpaudit.verify.binomial_tails import binomial_tail
from dpaudit.verify.claims import Claim, Phase, lets_another_in
from dpaudit.verify.samplers import TruncatedPoisson, WithoutReplacement

THEOREM = (
    "each batch as one of fixed size where the others alone fill it, else as a Poisson batch "
    "(verify/upper/full_batches.py)"
)


@dataclass(frozen=True)
class CutPhase:
    """A phase of batches that are cut.

    Args:
        phase: The phase.
        sampler: Its batches.
        moved: Noise under which one clip costs what two do under the phase's, where the record's removal lets another
            one in; None where the record is beside its ghost or another record, or that noise is not known.
    """

    phase: Phase
    sampler: TruncatedPoisson
    moved: Mechanism | None

    @property
    def most_blocks(self) -> int:
        """Some, and one where a bound takes seconds: of noise that is not normal."""
        return 8 if isinstance(self.phase.mechanism.structure, NormalCoordinates) else 1

    @property
    def kinds(self) -> list[tuple[float, Phase]]:
        """Upper bounds on the probabilities of one batch that is not filled and of one that is, > 0, and these."""
        sampler = self.sampler
        both = (sampler.unfilled_chance, self.uncut(1)), (sampler.full_chance[1], self.full(1))
        return [(chance, kind) for chance, kind in both if chance > 0.0]

    def full(self, count: int) -> Phase:
        """So many batches which the others alone fill."""
        rate = self.sampler.full_rate
        if self.moved is not None:
            return Phase(self.moved, count, rate)
        return Phase(self.phase.mechanism, sampler=WithoutReplacement(rate, count))

    def uncut(self, count: int) -> Phase:
        """So many batches which they do not fill."""
        return Phase(self.phase.mechanism, count, self.sampler.prob)

    def releases(self, start: int, end: int) -> list[Phase]:
        """What costs at least as much as any number of full batches from `start` to `end`."""
        steps = self.sampler.steps
        return [make(count) for make, count in ((self.uncut, steps - start), (self.full, end)) if count]

    def blocks(self, tail: float, most: int) -> tuple[list[tuple[int, int]], float]:
        """Numbers of full batches, from and to, in so many blocks at most, and a probability of others.

        Args:
            tail: Of fewer and of more, at most.
            most: Blocks.
        """
        counts = range(self.sampler.steps + 1)
        start = bisect_right(counts, tail, key=self._fewer) - 1
        end = bisect_left(counts, -tail, key=lambda count: -self._at_least(count + 1)[1])
        ends = sorted(set(np.linspace(start - 1, end, min(most, end - start + 1) + 1).astype(int).tolist()))
        blocks = [(one + 1, other) for one, other in pairwise(ends)]
        return blocks, self._fewer(start) + self._at_least(end + 1)[1]

    def block_chances(self, blocks: Sequence[tuple[int, int]]) -> Array:
        """Upper bounds on the probabilities of each."""
        return np.array([self._chance(start, end) for start, end in blocks])

    def _chance(self, start: int, end: int) -> float:
        """Upper bound on the probability of so many full batches, from the ends of the law that say most."""
        below, above = self._fewer(end + 1), self._at_least(start)[1]
        return min(above - self._at_least(end + 1)[0], below, 1.0)

    def _at_least(self, count: int) -> tuple[float, float]:
        """Bounds on the probability of so many full batches: tails grow with the chance of one."""
        low, high = self.sampler.full_chance
        steps = self.sampler.steps
        return binomial_tail(count, steps, low)[0], binomial_tail(count, steps, high)[1]

    def _fewer(self, count: int) -> float:
        """Upper bound on the probability of fewer full batches, which is one of more that are not full."""
        steps = self.sampler.steps
        return binomial_tail(steps - count + 1, steps, self.sampler.unfilled_chance)[1] if count <= steps else 1.0


def read_cut(claim: Claim) -> tuple[Claim, list[CutPhase | None]]:
    """A claim, and its phases as those of batches that are cut, None of others.

    It reads as replace-one if a record's removal lets another one in and half the noise is out of the range of floats,
    or is not known.
    """
    try:
        return claim, [_cut_phase(claim, phase) for phase in claim.phases]
    except ValueError:
        swapped = replace(claim, adjacency="replace-one")
        return swapped, [_cut_phase(swapped, phase) for phase in claim.phases]


def kinds_of(claim: Claim, phase: Phase) -> list[tuple[float, Claim]]:
    """Upper bounds on the probabilities of the kinds of a release of batches that are cut, and claims of one release.

    Args:
        claim: Its adjacency is read.
        phase: Of such batches.
    """
    read, [cut] = read_cut(replace(claim, phases=[phase]))
    assert cut is not None
    return [(chance, replace(read, phases=[kind])) for chance, kind in cut.kinds]


def _cut_phase(claim: Claim, phase: Phase) -> CutPhase | None:
    if not isinstance(phase.sampler, TruncatedPoisson):
        return None
    moved = with_noise_factor(phase.mechanism, 0.5) if lets_another_in(claim, phase) else None
    return CutPhase(phase, phase.sampler, moved)
