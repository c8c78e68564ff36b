"""Batches that straddle two passes: where passes begin in them, and how many of them hold one record twice."""

import math
from functools import lru_cache

import numpy as np

from dpaudit.mechanisms.base import Array

MOST_PASSES = 10_000  # that are gone through one by one
ROUNDING = 4e-16  # of a difference of probabilities
LEAST = 1e-290  # above all that underflows
FAR = 16.0  # deviations from the mean up to which costs are counted


def passes_of_whole_batches(records: int, batch: int) -> int:
    """Passes after which one begins with a batch again.

    >>> passes_of_whole_batches(10, 4), passes_of_whole_batches(9, 4)
    (2, 4)
    """
    return batch // math.gcd(records, batch)


def ends(records: int, batch: int, epochs: int) -> tuple[Array, Array]:
    """How many places at the beginning of every pass are in a batch of the pass before, at its end in one of the next.

    What the last pass leaves over is in no batch.

    >>> ends(10, 4, 3)
    (array([0., 2., 0.]), array([2., 0., 0.]))
    """
    over = np.array([passed * records % batch for passed in range(epochs)], dtype=np.float64)
    begun = np.where(over > 0, batch - over, 0.0)
    return begun, np.append(over[1:], 0.0)


def chances(first: Array, last: Array, *, place: int, pair: int, most: int) -> Array:
    """Upper bounds on the probabilities of sums over batches that straddle, by how often they hold one record.

    Its places in the passes are independent. No batch is longer than a pass, so that a place is in one batch, and a
    batch has the record twice if and only if the record is at the end of a pass and at the beginning of the next.

    Args:
        first: Of being in the batch that the pass before began, for each of at most `MOST_PASSES` passes.
        last: Of being in the batch that the next pass ends, for each pass; with `first` at most 1.
        place: What every place of the record in such a batch counts, at least 0.
        pair: What a batch with the record twice counts beside, at least 0.
        most: Larger sums count as that.

    Returns:
        Of sums of 0, ..., `most`: larger than the probabilities by at most 1e-10 of them and 1e-11.
    """

    def with_more(sums: Array, more: int) -> Array:
        kept, moved = max(most + 1 - more, 0), np.zeros(most + 1)
        moved[most + 1 - kept :] = sums[:kept]
        moved[most] += sums[kept:].sum()
        return moved

    at_end, elsewhere = np.zeros((2, most + 1))
    elsewhere[0] = 1.0
    for start, end in zip(first, last, strict=True):
        either, between = at_end + elsewhere, max(1.0 - start - end, 0.0) + ROUNDING
        begun = with_more(elsewhere, place) + with_more(at_end, place + pair)
        at_end, elsewhere = with_more(either, place) * end, begun * start + either * between
    return np.asarray((at_end + elsewhere) * (1.0 + 3e-15 * (len(first) + 1)) + LEAST)


def costs(first: Array, last: Array) -> Array:
    """Upper bounds on the probabilities that batches that straddle cost 0, 1, 2, ... releases; the last is of more.

    One that holds the record twice costs four.

    Args:
        first: As of `chances`.
        last: As of `chances`.
    """
    mean = float((first + last).sum())
    most = min(2 * len(first) + 1, math.ceil(mean + FAR * (math.sqrt(mean) + 3.0)))
    return chances(first, last, place=1, pair=2, most=most)


@lru_cache(8)
def twice_in_order(records: int, batch: int, epochs: int, most: int) -> Array:
    """`chances` of how many batches hold a record twice, passes being in uniformly random orders."""
    first, last = ends(records, batch, epochs)
    return chances(first / records, last / records, place=0, pair=1, most=most)


@lru_cache(8)
def costs_in_order(records: int, batch: int, epochs: int) -> Array:
    """`costs` of passes in uniformly random orders."""
    first, last = ends(records, batch, epochs)
    return costs(first / records, last / records)


def more_than(law: Array) -> Array:
    """Upper bounds on the probabilities of more than 0, 1, 2, ... from those of 0, 1, 2, ...; the last is 0."""
    return np.append(np.cumsum(law[:0:-1])[::-1] * (1.0 + 1e-15 * len(law)), 0.0)
