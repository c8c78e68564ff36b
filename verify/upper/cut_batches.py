"""Poisson batches that are cut, any noise: the mean over how many batches of the history the others alone fill.

Such a batch is one of fixed size, and of another one nothing is cut (`full_batches`). Where the noise is normal
throughout, the two pairs of a release are mixed instead (`sampled_normal`).
"""

from collections.abc import Sequence

from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper import sampled_normal
from dpaudit.verify.upper.counted_releases import Blocks, blocks_of
from dpaudit.verify.upper.full_batches import THEOREM, read_cut


def parts(claim: Claim) -> list[Claim]:
    """The history for every block of numbers of full batches; empty where none is cut."""
    return [] if sampled_normal.applies(claim) else _blocks(claim).histories


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history with batches that are cut.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """
    return _blocks(claim).bound(claim, curves, THEOREM)


def _blocks(claim: Claim) -> Blocks:
    return blocks_of(*read_cut(claim))
