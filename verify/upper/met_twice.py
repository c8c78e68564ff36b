"""Batches that straddle two passes: how many of them hold a record twice, which is a release of half the noise.

With the order revealed (`met_releases`) a record is in E places, two of which may be in one batch; at most t batches
hold it twice (`Shuffled.worst_meetings`). If j do, the history is j releases that it moves by up to two clips, which
cost what a clip costs under half the noise, and E - 2 j that it moves by one. The order has one law for both
neighbours, so that delta, which is jointly convex, is at most the mean of that over j, whose law is known
(`Shuffled.twice_chances`): in large data there is hardly ever such a batch. Where the law is not known it is at most
the largest of any j. Of blocks of j (`counted_releases`) from a to b, b releases of half the noise and E - 2 a others
cost at least as much, and under normal noise, where two clips in one release cost as much as four releases of one,
E + 2 b of these. In a buffer of less than the data the law depends on where in the file the record is. It is known for
one that is in such batches at least as often as any, which is the worst one under normal noise.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from dpaudit.mechanisms.base import Array, NormalCoordinates, with_noise_factor
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.samplers import BufferedShuffle, Shuffled
from dpaudit.verify.samplers.seams import more_than
from dpaudit.verify.upper.counted_releases import Blocks, blocks_of

THEOREM = (
    "the order revealed, a record meets at most so many releases, some of them twice, which is half the noise: joint "
    "convexity of the hockey-stick divergence"
)
FEW = 3  # batches with the record twice, up to which each number is looked at by itself where no law is known
SHARES = (0.5, 0.75, 0.9)  # of more, at which blocks end: the last counts at most 1.05 times the squares of the most


def parts(claim: Claim) -> list[Claim]:
    """The history of every block of phases of such batches; of many phases, one that covers all; empty without any."""
    return _blocks(claim).histories


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history with batches that straddle two passes.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """
    return _blocks(claim).bound(claim, curves, THEOREM)


@dataclass(frozen=True)
class _Straddling:
    """A phase whose batches can hold a record twice.

    Args:
        phase: The phase.
        epochs: Its passes.
        most: The most such batches.
        law: Upper bounds on the probabilities of 0, 1, ..., `most` of them; None where they are not known.
    """

    phase: Phase
    epochs: int
    most: int
    law: Array | None

    @property
    def normal(self) -> bool:
        """Whether its noise is."""
        return isinstance(self.phase.mechanism.structure, NormalCoordinates)

    def releases(self, start: int, end: int) -> list[Phase]:
        """What costs at least as much as any number of such batches from `start` to `end`.

        Raises:
            ValueError: Half the noise is out of the range of floats, or is not known to be that.
        """
        noise, once = self.phase.mechanism, self.epochs - 2 * start
        if self.normal:
            return [Phase(noise, self.epochs + 2 * end, 1.0, "none")]
        half = with_noise_factor(noise, 0.5)
        return [Phase(one, count, 1.0, "none") for one, count in ((half, end), (noise, once)) if count]

    @property
    def most_blocks(self) -> int:
        """More of normal noise, whose bounds take less time."""
        return 16 if self.normal else 4

    def blocks(self, tail: float, most: int) -> tuple[list[tuple[int, int]], float]:
        """Numbers of such batches, from and to, and a probability of more.

        If that is known, a single block leaves out at most `tail` of it, and the last of several has as much.

        Args:
            tail: A small probability.
            most: Blocks, where the law is known.
        """
        if self.law is None:
            few = self.most <= FEW
            ends = range(self.most + 1) if few else [*(int(share * self.most) for share in SHARES), self.most]
            return [(0, self.most)] if most == 1 else _between(ends), 0.0
        more = more_than(self.law)
        half, usual = (int(np.argmax(more <= chance)) for chance in (0.5, tail))
        if most == 1:
            return [(0, usual)], float(more[usual])
        return _between({self.most, *map(int, np.ceil(np.linspace(half, usual, most - 1)))}), 0.0

    def block_chances(self, blocks: Sequence[tuple[int, int]]) -> Array | None:
        """Upper bounds on the probabilities of each; None where the law is not known."""
        if self.law is None:
            return None
        return np.array([self.law[start : end + 1].sum() for start, end in blocks]) * (1.0 + 1e-15 * len(self.law))


def _between(ends: Iterable[int]) -> list[tuple[int, int]]:
    """Blocks of numbers from 0 on that end there."""
    return [(one + 1, other) for one, other in pairwise([-1, *sorted(ends)])]


def _straddling(phase: Phase) -> _Straddling | None:
    """A phase with such batches; None without any, and of normal noise with no law: `met_releases` counts the most."""
    sampler, normal = phase.sampler, isinstance(phase.mechanism.structure, NormalCoordinates)
    if not isinstance(sampler, Shuffled | BufferedShuffle) or not sampler.meets_twice:
        return None
    passes = sampler.passes if isinstance(sampler, BufferedShuffle) else sampler
    law = sampler.twice_chances if normal or isinstance(sampler, Shuffled) else None
    if passes is None or (normal and law is None):
        return None
    return _Straddling(phase, passes.epochs, passes.most_twice, law)


def _blocks(claim: Claim) -> Blocks:
    return blocks_of(claim, [_straddling(phase) for phase in claim.phases])
