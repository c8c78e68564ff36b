"""Poisson batches that are cut, any noise: the mean over how many batches of the history the others alone fill.

Such a batch is one of fixed size, and of another one nothing is cut (`full_batches`). Where the noise has pairs, those
of a release are mixed instead (`sampled_normal`, `cut_pairs`); in several coordinates moments may say more.
"""

from collections.abc import Sequence

from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper import cut_pairs, sampled_normal
from dpaudit.verify.upper.counted_releases import Blocks, blocks_of
from dpaudit.verify.upper.full_batches import THEOREM, read_cut


def parts(claim: Claim) -> list[Claim]:
    """The history for every block of numbers of full batches; empty where none is cut, or pairs say more."""
    lines = all(phase.mechanism.dimension == 1 for phase in claim.phases)
    if sampled_normal.applies(claim) or (lines and cut_pairs.applies(claim)):
        return []
    return _blocks(claim).histories


def bound(claim: Claim, curves: Sequence[Sequence[Curve]]) -> Curve:
    """Upper bound on delta(epsilon) of a history with batches that are cut.

    Args:
        claim: Whose `parts` are bounded.
        curves: Upper bounds of each of them.
    """
    return _blocks(claim).bound(claim, curves, THEOREM)


def _blocks(claim: Claim) -> Blocks:
    return blocks_of(*read_cut(claim))
