"""Histories of which a random number of releases cost more than the others: the mean over that number, in blocks.

Where the number has one law for both neighbours, delta, which is jointly convex, is at most its mean over the number.
Many numbers are looked at in blocks: of those from a to b, b dearer releases, and of the others as many as beside a,
cost at least as much. Where the law is not known, delta is at most the largest of any number.

Where a few phases have such releases and their bounds take little time, their blocks are multiplied. Else one block
covers usual numbers in all; that some phase has another has a small probability, which is added.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial, reduce
from itertools import product
from typing import Protocol

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve, assumptions_of, best_theorem, least_delta, mean_delta

MULTIPLIED = {2: 4, 3: 3}  # blocks of each of so many phases, where they are worth MANY at least
MANY = 8
TAIL = 1e-3  # of the claimed delta: the chance of numbers that no block covers


class Counted(Protocol):
    """A phase with a random number of dearer releases."""

    @property
    def most_blocks(self) -> int:
        """How many blocks of numbers of them are worth their time."""
        ...

    def blocks(self, tail: float, most: int) -> tuple[list[tuple[int, int]], float]:
        """Numbers of them, from and to, in so many blocks at most, and a probability of others of about `tail`."""
        ...

    def block_chances(self, blocks: Sequence[tuple[int, int]]) -> Array | None:
        """Upper bounds on the probabilities of each; None where they are not known."""
        ...

    def releases(self, start: int, end: int) -> list[Phase]:
        """What costs at least as much as any number of them from `start` to `end`.

        Raises:
            ValueError: Their noise is out of the range of floats, or is not known.
        """
        ...


@dataclass(frozen=True)
class Blocks:
    """Simpler claims, in one of which the history is.

    Args:
        histories: The claims.
        chances: Upper bounds on the probabilities of each; None where they are not known.
        lost: Upper bound on the probability of none.
    """

    histories: list[Claim]
    chances: Array | None = None
    lost: float = 0.0

    def bound(self, claim: Claim, curves: Sequence[Sequence[Curve]], theorem: str) -> Curve:
        """Upper bound on delta(epsilon) of the claim from those of each: their mean, or the largest without chances."""
        whole = f"{theorem}; {best_theorem(curves[0], claim.epsilon)}"
        return Curve.upper("pld", whole, partial(self._delta, curves), assumptions_of(curves))

    def _delta(self, curves: Sequence[Sequence[Curve]], epsilon: Array) -> Array:
        found = np.array([least_delta(block, epsilon) for block in curves])
        if self.chances is None:
            return np.asarray(np.max(found, axis=0))
        return mean_delta(found, self.chances, self.lost)


def blocks_of(claim: Claim, found: Sequence[Counted | None]) -> Blocks:
    """What a claim's phases with dearer releases make of it; no histories without any.

    Args:
        claim: The history.
        found: Its phases as such ones, None of others.
    """
    known, tail = [one for one in found if one is not None], TAIL * (claim.least_delta or 1e-10)
    if not known:
        return Blocks([])
    few = min(one.most_blocks for one in known)
    most = few if len(known) == 1 else MULTIPLIED.get(len(known), 1) if few >= MANY else 1
    apart = [one.blocks(tail / len(known), most) for one in known]
    try:
        histories = [_history(claim, found, blocks) for blocks in product(*(blocks for blocks, _ in apart))]
    except ValueError:  # half the noise is out of the range of floats, or is not known to be that
        return Blocks([])
    pairs = zip(known, apart, strict=True)
    shares = [np.ones(1) if len(blocks) == 1 else one.block_chances(blocks) for one, (blocks, _) in pairs]
    sure = [share for share in shares if share is not None]
    chances = reduce(np.outer, sure).ravel() * (1.0 + 1e-15 * len(sure)) if len(sure) == len(shares) else None
    return Blocks(histories, chances, sum(lost for _, lost in apart))


def _history(claim: Claim, found: Sequence[Counted | None], blocks: Sequence[tuple[int, int]]) -> Claim:
    """The claim with so many dearer releases in the phases that have any."""
    left = iter(blocks)
    phases = [
        part
        for phase, one in zip(claim.phases, found, strict=True)
        for part in ([phase] if one is None else one.releases(*next(left)))
    ]
    return replace(claim, phases=phases, guarantee=None)
