"""Many draws in bounded memory, on any number of processes, with the same result on each number of them."""

from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from typing import TypeVar

import numpy as np

Progress = Callable[[int], None]
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
    work: Callable[[np.random.Generator, int], Result],
    total: int,
    *,
    floats_each: float,
    rng: np.random.Generator,
    workers: int = 1,
    progress: Progress | None = None,
) -> list[Result]:
    """The results of `work(chunk_rng, chunk_size)` for every chunk, in order.

    Every chunk has its own generator, seeded by its number and by 128 bits of `rng`; the chunks do not depend on the
    number of processes, so neither does the result.

    Args:
        work: Picklable where there is more than one worker.
        total: Draws in all, at least 1.
        floats_each: Floats that one draw holds in memory at a time.
        rng: Source of the seeds; advanced by the same amount whatever the total.
        workers: Processes; 1 for none but this one.
        progress: Told after each chunk how many draws it had.

    Raises:
        ValueError: total or workers is below 1.
    """
    if total < 1 or workers < 1:
        raise ValueError(f"Expected total={total} and workers={workers} to be at least 1.")
    sizes = chunk_sizes(total, floats_each)
    seeds = np.random.SeedSequence([int(word) for word in rng.integers(2**32, size=4)]).spawn(len(sizes))
    results = []
    for size, result in zip(sizes, _ordered(work, seeds, sizes, workers), strict=True):
        results.append(result)
        if progress:
            progress(size)
    return results


def _ordered(
    work: Callable[[np.random.Generator, int], Result],
    seeds: list[np.random.SeedSequence],
    sizes: list[int],
    workers: int,
) -> Iterator[Result]:
    if workers == 1 or len(sizes) == 1:
        yield from map(partial(_seeded, work), seeds, sizes)
        return
    # spawned, not forked: a fork copies locks that other threads of the caller may hold
    with ProcessPoolExecutor(min(workers, len(sizes)), mp_context=get_context("spawn")) as pool:
        yield from pool.map(partial(_seeded, work), seeds, sizes)


def _seeded(work: Callable[[np.random.Generator, int], Result], seed: np.random.SeedSequence, size: int) -> Result:
    return work(np.random.default_rng(seed), size)
