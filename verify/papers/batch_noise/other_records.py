"""How many other records are in a batch: K ~ Binomial(N, q), which the release does not tell."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.stats import binom

from dpaudit.mechanisms.base import Array

PMF_ERROR = 1e-11  # relative, with room: tests compare with mpmath
STRATUM = 0.33  # width of a stratum in standard deviations of K


@dataclass(frozen=True)
class Others:
    """Likely values of K.

    Args:
        sizes: Consecutive values of K, ascending.
        weights: Their probabilities, relative error at most PMF_ERROR.
        outside: Bound on the probability of all other values.
    """

    sizes: NDArray[np.int64]
    weights: Array
    outside: float


def likely_range(records: int, sampling_prob: float, tail: float) -> tuple[int, int]:
    """(a, b) with P(K < a) <= tail and P(K > b) <= tail, by bisection of the tails themselves.

    Args:
        records: N.
        sampling_prob: q.
        tail: Probability, > 0.

    >>> likely_range(60_000, 0.01, 1e-25)
    (364, 871)
    """
    law = binom(records, sampling_prob)
    below, above = 0, records  # P(K < below) <= tail, P(K > above) <= tail
    step = 1 << records.bit_length()
    while step:
        if below + step <= records and law.cdf(below + step - 1) <= tail:
            below += step
        if above - step >= 0 and law.sf(above - step) <= tail:
            above -= step
        step //= 2
    return below, above


def other_records(records: int, sampling_prob: float, tail: float, smallest: int = 0) -> Others:
    """The values of K, all but `tail` of them on each side.

    Args:
        records: N, at least 1.
        sampling_prob: q in (0, 1].
        tail: Probability that may be left out below, and again above.
        smallest: Values below it are left out whatever their probability.

    >>> other_records(10, 1.0, 1e-9).sizes
    array([10])
    """
    if sampling_prob == 1:
        return Others(np.array([records]), np.ones(1), 0.0)
    law = binom(records, sampling_prob)
    low, high = (max(end, smallest) for end in likely_range(records, sampling_prob, tail))
    outside = float(law.cdf(low - 1) if low > 0 else 0.0) + float(law.sf(high))
    sizes = np.arange(low, high + 1)
    return Others(sizes, np.asarray(law.pmf(sizes)), outside * (1 + 1e-9))


def strata(others: Others) -> list[tuple[int, int, float]]:
    """(smallest K, largest K, probability) of groups of neighbouring values, probabilities scaled to sum to 1."""
    mean = float(others.weights @ others.sizes / others.weights.sum())
    deviation = float(np.sqrt(others.weights @ np.square(others.sizes - mean) / others.weights.sum()))
    parts = np.split(
        np.arange(len(others.sizes)), np.arange(0, len(others.sizes), max(1, int(STRATUM * deviation)))[1:]
    )
    total = float(others.weights.sum())
    return [
        (int(others.sizes[part[0]]), int(others.sizes[part[-1]]), float(others.weights[part].sum()) / total)
        for part in parts
    ]
