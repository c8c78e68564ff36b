"""Many draws in bounded memory: chunks, each with a generator of its own."""

from collections.abc import Callable
from typing import TypeVar

import numpy as np

Result = TypeVar("Result")

FLOATS = 2**20  # that one chunk may hold in one array: 8 MB


def chunk_sizes(total: int, floats_each: float) -> list[int]:
    """`total` draws in chunks of nearly equal size, none of which needs more than FLOATS floats unless one draw does.

    >>> chunk_sizes(10, 2**18)
    [4, 3, 3]
    """
    largest = max(1, int(FLOATS / max(floats_each, 1.0)))
    count = -(-total // largest)
    return [total // count + (i < total % count) for i in range(count)]


def in_chunks(
    work: Callable[[np.random.Generator, int], Result], total: int, *, floats_each: float, rng: np.random.Generator
) -> list[Result]:
    """The results of `work(chunk_rng, chunk_size)` for every chunk, in order.

    Every chunk has its own generator, seeded by its number and by 128 bits of `rng`.

    Args:
        work: What is done with each chunk.
        total: Draws in all, at least 1.
        floats_each: Floats that one draw holds in memory at a time.
        rng: Source of the seeds; advanced by the same amount whatever the total.
    """
    sizes = chunk_sizes(total, floats_each)
    seeds = np.random.SeedSequence([int(word) for word in rng.integers(2**32, size=4)]).spawn(len(sizes))
    return [work(np.random.default_rng(seed), size) for seed, size in zip(seeds, sizes, strict=True)]
