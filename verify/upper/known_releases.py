"""Normal releases that a record is known to be in, beside passes that hide it; how many they are can be random."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.samplers.seams import more_than

BLOCKS = 12  # of what they cost


@dataclass(frozen=True)
class KnownReleases:
    """Normal releases that a record is known to be in, beside passes that hide it; what they cost may be random.

    Args:
        shifts: Over sigma, of all such releases as one; 0 for none.
        chances: Upper bounds on the probabilities of each.
        lost: Upper bound on the probability of none of them.
    """

    shifts: Array
    chances: Array
    lost: float = 0.0


NONE_KNOWN = KnownReleases(np.zeros(1), np.ones(1))


def known_releases(square: float, seams: Sequence[tuple[float, Array]], tail: float) -> KnownReleases:
    """Releases that are known anyway, and others whose number is random.

    Args:
        square: Squared shift over sigma of the former, all as one.
        seams: Squared shift of one of the latter, and the law of how many of them there are, for each phase.
        tail: A probability of more that may be left out for each.
    """
    squares, chances, lost = np.array([square]), np.ones(1), 0.0
    for one, law in seams:  # the last of which is of all larger numbers
        counts = np.arange(len(law) - 1.0)
        squares, chances, more = _blocks(np.add.outer(squares, one * counts), np.outer(chances, law[:-1]), tail)
        lost += float(law[-1]) + more
    rounding = (8.0 + len(seams)) * UNIT  # every sum may round down by a unit
    return KnownReleases(np.sqrt(squares) * (1.0 + rounding), chances, lost * (1.0 + 1e-12))


def _blocks(values: Array, chances: Array, tail: float) -> tuple[Array, Array, float]:
    """Few of the values for all below them, and what is above the last, at most `tail`."""
    order = np.argsort(values, axis=None)
    found, law = values.ravel()[order], chances.ravel()[order]
    more = more_than(law)
    middle, last = np.argmax(more <= 0.5), np.argmax(more <= tail)
    ends = np.unique([*np.searchsorted(found, np.linspace(found[middle], found[last], BLOCKS)[:-1]), last])
    sums = np.add.reduceat(law[: ends[-1] + 1], [0, *(ends[:-1] + 1)]) * (1.0 + 2.0 * UNIT * len(law))
    return found[ends], sums, float(more[ends[-1]])
