"""Sets of steps that are at least b apart, at most k of them: the heaviest one, and the sensitivity between bounds.

Notation. C is the strategy, G = C^T C, pi a pattern (the steps of one record), u_t its contribution to step t in
multiples of the clip, |u_t| <= 1. The record moves C x by C u, and

    |C u|^2 = sum_{s, t in pi} G_st <u_s, u_t> <= sum_{s, t in pi} |G_st|,                                          (1)

with equality for equal u_t of length 1 where no G_st of the pattern is negative. sens is the largest |C u|.

Rows (Choquette-Choo et al. 2023, arXiv 2306.08153, Algorithms 3 and 4). For i in pi let v_i be the largest
sum_{j in pi'} |G_ij| over patterns pi' that contain i. Then (1) is at most sum_{i in pi} v_i, and the heaviest pattern
for the weights v bounds sens^2 from above. It is exact where G_ij = 0 whenever |i - j| >= b: then v_i = G_ii, both
sides of (1) are sum_{i in pi} G_ii, and the signs of the contributions do not matter.

The heaviest pattern for weights w >= 0. F_m(j), the largest weight of at most m steps among 0..j, is
max(F_m(j - 1), w_j + F_{m-1}(j - b)): a running maximum over j, O(n k) in all. Its sums have at most k terms that are
not negative, so floats are off by a factor of at most (1 + 2^-53)^k. Where k is no limit, F(j) = max(F(j - 1),
w_j + F(j - b)) is one pass, and needs memory for n numbers in place of n k.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT

Steps = NDArray[np.int64]
PASSES = 100  # over whole arrays, which take about as long as one step by step


@dataclass(frozen=True)
class Sensitivity:
    """Bounds on sens, in multiples of the clip.

    Args:
        lower: |C u| of some pattern, float error subtracted.
        upper: Float error added.
        pattern: Steps that give the lower bound, in order; () where it is known to be met, and not by which.
        square: An integer that sens^2 does not exceed, where C has entries 0 and 1; None for other strategies.
    """

    lower: float
    upper: float
    pattern: tuple[int, ...]
    square: int | None = None

    @property
    def exact(self) -> bool:
        """Whether the bounds differ by rounding alone."""
        return self.upper <= self.lower * (1.0 + 1e-9)


def between(
    lower_squared: float, upper_squared: float, pattern: Steps, error: float, *, whole: bool = False
) -> Sensitivity:
    """Bounds on sens from computed squares.

    Args:
        lower_squared: Its computed value.
        upper_squared: Its computed value.
        pattern: What gives the lower one.
        error: Largest relative error of both computed squares.
        whole: Whether they are integers, computed without error.
    """
    low = math.sqrt(max(lower_squared, 0.0) * max(1.0 - error, 0.0)) * (1.0 - 4 * UNIT)
    high = math.sqrt(upper_squared * (1.0 + error)) * (1.0 + 4 * UNIT)
    return Sensitivity(low, high, tuple(int(step) for step in pattern), int(upper_squared) if whole else None)


def heaviest(weights: Array, separation: int, times: int) -> tuple[float, Steps]:
    """The largest total weight of at most `times` steps at least `separation` apart, and such steps.

    Args:
        weights: w >= 0, shape (n,).
        separation: b.
        times: k.

    >>> heaviest(np.array([1.0, 6.0, 1.0, 4.0]), 3, 2)
    (6.0, array([1]))
    >>> heaviest(np.array([2.0, 3.0, 1.0, 4.0]), 2, 2)
    (7.0, array([1, 3]))
    """
    n = len(weights)
    most = -(-n // separation)
    if times >= most > PASSES:
        return _heaviest_of_any(weights, separation)
    times = min(times, most)
    best = np.zeros(n)
    taken = np.zeros((times, n), dtype=bool)
    for m in range(times):
        with_last = weights.copy()
        with_last[separation:] += best[: max(n - separation, 0)]
        best = np.maximum.accumulate(with_last)
        taken[m] = with_last == best
    steps, last = [], n - 1
    for m in reversed(range(times)):
        ends = np.flatnonzero(taken[m, : last + 1])
        steps.append(int(ends[-1]))
        last = steps[-1] - separation
        if last < 0:
            break
    return float(best[-1]), np.array(steps[::-1], dtype=np.int64)


def _heaviest_of_any(weights: Array, separation: int) -> tuple[float, Steps]:
    """`heaviest` of however many steps, in one pass."""
    w, best = weights.tolist(), [0.0]  # of the first j steps
    for j, weight in enumerate(w, start=1):
        best.append(max(best[-1], weight + best[max(j - separation, 0)]))
    steps, j = [], len(w)
    while j > 0:
        before = max(j - separation, 0)
        if w[j - 1] + best[before] == best[j]:
            steps.append(j - 1)
            j = before
        else:
            j -= 1
    return best[-1], np.array(steps[::-1], dtype=np.int64)


def heaviest_pair(magnitudes: Array, separation: int) -> tuple[float, Steps]:
    """The largest |G_ii| + |G_jj| + 2 |G_ij| of two steps at least `separation` apart, or |G_ii| of one; and the steps.

    That is |C u|^2 of the pair, contributions of length 1 pointing alike or apart as the sign of G_ij wants.

    Args:
        magnitudes: |G|, shape (n, n).
        separation: b.

    >>> heaviest_pair(np.array([[1.0, 5.0, 2.0], [5.0, 1.0, 0.0], [2.0, 0.0, 1.0]]), 2)
    (6.0, array([0, 2]))
    """
    own = np.diag(magnitudes)
    alone = int(np.argmax(own))
    pairs = np.triu(own[:, None] + own + 2.0 * magnitudes, k=separation)
    first, second = np.unravel_index(int(np.argmax(pairs)), pairs.shape)
    if pairs[first, second] <= own[alone]:
        return float(own[alone]), np.array([alone])
    return float(pairs[first, second]), np.array([first, second])


def row_weights(magnitudes: Array, separation: int, times: int) -> Array:
    """v_i of every row: its diagonal and the heaviest pattern of the entries at least `separation` away.

    Args:
        magnitudes: |G|, shape (n, n).
        separation: b.
        times: k.
    """
    n = len(magnitudes)
    far = np.abs(np.arange(n)[:, None] - np.arange(n)) >= separation
    others = np.where(far, magnitudes, 0.0)
    return np.asarray(np.diag(magnitudes) + heaviest_rows(others, separation, times - 1))


def heaviest_rows(weights: Array, separation: int, times: int) -> Array:
    """Of every row the largest total weight of at most `times` steps at least `separation` apart.

    Args:
        weights: w >= 0, shape (rows, n).
        separation: b.
        times: k, at least 0.

    >>> heaviest_rows(np.array([[1.0, 6.0, 1.0, 4.0], [2.0, 3.0, 1.0, 4.0]]), 2, 2)
    array([10.,  7.])
    """
    n = weights.shape[1]
    if times >= -(-n // separation):  # no limit: one pass over the steps
        return _unlimited(weights, separation)
    best = np.zeros_like(weights)
    for _ in range(times):
        with_last = weights.copy()
        with_last[:, separation:] += best[:, : max(n - separation, 0)]
        best = np.maximum.accumulate(with_last, axis=1)
    return np.asarray(best[:, -1])


def _unlimited(weights: Array, separation: int) -> Array:
    """The heaviest pattern of every row, however many steps it has."""
    best = np.zeros((weights.shape[1] + 1, len(weights)))  # of the first j steps
    for j in range(weights.shape[1]):
        best[j + 1] = np.maximum(best[j], weights[:, j] + best[max(j + 1 - separation, 0)])
    return np.asarray(best[-1])
