"""Rows that several participations move, for noise other than normal: how far a record moves each of them.

Notation of `patterns`. Let the rows of the noise be independent, of any law. Given what came before, a record of
pattern pi moves row i by sum_{t in pi} C_it u_t, which is a_i = sum_{t in pi} |C_it| times something that its clip
allows, in any norm. So for every pattern, settled beforehand, the history costs at most what unsampled releases do that
compose adaptively, the noise divided by a_1, a_2, ... What costs as much as these for any pattern is an upper bound:

- r_1 >= r_2 >= ..., if of whichever pattern the i-th largest a_i is at most r_i. (`Rows.each`)
- Laplace noise, of one coordinate or clipped in the l1 or the l_inf norm: b_1 >= b_2 >= ..., if of whichever pattern
  the k largest a_i add up to at most b_1 + ... + b_k, for every k. (`Rows.together`) With S the most that all a_i of a
  pattern add up to (`Rows.total`), the b_i can end where they add up to S: no sum is more. Pure epsilons being sums,
  theirs is S times that of one release.

Proof of the second. Under these clips a row costs at most a release of coordinates that are moved by a_i clips: of one
(`upper.laplace_pure`), or of all (boundary lemma). For each coordinate one comes from the a_i to the b_i by raising
numbers, which costs more (boundary lemma), and by moving an amount from one to another that is not smaller (Marshall,
Olkin and Arnold 2011, 2.B.1 and 5.A.9). Two releases moved by s_1 <= s_2 scales, s in all, have for 0 <= e <= s

    delta(e) = 1 - e^((e - s)/2) (1 + min(s_1/2, (s - e)/4))                                  (`upper.laplace_pure`),

which grows as s_1 falls and s stays; mirror symmetry covers e < 0. Dominance is kept by composition (Zhu, Dong and Wang
2022, Theorem 10). So too from below: of Laplace noise some rows may all be moved by their mean.

S is the heaviest pattern for the weights sum_i |C_it|: exact. The r_i are

- of fixed orders the largest i-th largest of any; of Toeplitz strategies those of the order that starts first, of
  which the others are the beginning, moved down;
- of nodes of a tree with 2^l leaves min(k, ceil(2^l/b)), the most participations that fit, and of the i-th such node
  k/i, as no step is below two; all of them have k at most, and the b_i of a level are those that add up to it;
- of a plain matrix the heaviest pattern of each row;
- of a Toeplitz strategy with d_j = max_{i >= j} |c_i| those of the matrix of d, sum_{l <= i/b, l < k} d_lb of row i,
  and with D_j = sum_{l < k} d_{j + lb} also D_0 k times, D_1 k times, ...: a row j steps after the last participation
  before it has at most D_j, and there are no more than k such rows.

Toeplitz strategies, b_i: of d the pattern 0, b, 2b, ... of k steps is enough. Let a pattern's participations from some
on come a step earlier, which leaves them b apart. Write a_i = e_i + l_i with what those before and what they themselves
add, p for the row before their first: l_i = 0 up to p, from p on e_i falls as d does, and a_i becomes e_i + l_{i+1}. Of
any rows R of the old pattern as many of the new one have no less. If p is not in R, take the row before in place of
every one after p: e_{i-1} + l_i >= e_i + l_i. If it is, let q be the first row after p that is not in R: keep p, ...,
q - 1, where l_{p+1} + ... + l_q replaces l_p + ... + l_{q-1}, and of those after q take the row before. So comes 0, b,
2b, ..., and further participations only add. Where c is not negative and does not rise d is c, and equal contributions
to that pattern attain all of it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Any, cast

import numpy as np

from dpaudit.mechanisms.base import Array, LaplaceCoordinates, Mechanism
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.correlated.matrix import MAX_WORK, Matrix, moved_at_least
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.correlated.patterns import Steps, heaviest, heaviest_rows
from dpaudit.verify.correlated.toeplitz import Coefficients, moved_toeplitz, repeated
from dpaudit.verify.correlated.tree import Tree

Parts = Sequence[tuple[float, int]]  # (how far in multiples of the clip, how many rows)


@dataclass(frozen=True)
class Rows:
    """Upper bounds on how far a record moves the rows of a strategy, in multiples of the clip; see the module.

    Args:
        each: r_i, in any order.
        together: Numbers of which the k largest, k = 1, 2, ..., are at least those of any pattern, added up.
        total: S.
    """

    each: Array
    together: Array
    total: float


def _first_order(weights: Array, separation: int) -> tuple[float, Steps]:
    """The heaviest of the fixed orders, and its steps."""
    filled = np.concatenate([weights, np.zeros(-len(weights) % separation)]).reshape(-1, separation).sum(axis=0)
    start = int(np.argmax(filled))
    return float(filled[start]), np.arange(start, len(weights), separation, dtype=np.int64)


def heaviest_of(weights: Array, participation: Participation) -> tuple[float, Steps]:
    """The largest total weight of a pattern, and its steps.

    Args:
        weights: Of every step, w >= 0, shape (n,).
        participation: The schema, without sampling.
    """
    apart, times = participation.spacing(len(weights))
    if participation.kind == "fixed-order":
        return _first_order(weights, min(apart, len(weights)))
    return heaviest(weights, apart, times)


def matrix_rows(matrix: Matrix, participation: Participation) -> Rows:
    """Of a plain matrix."""
    sizes = np.abs(matrix.entries)
    if (sizes != np.floor(sizes)).any() or sizes.sum() >= 2.0**53:  # whole numbers add up exactly
        sizes = sizes * (1.0 + (matrix.steps + len(matrix.entries) + 16) * UNIT)
    apart, times = participation.spacing(matrix.steps)
    if participation.kind == "fixed-order":
        each = np.zeros(len(sizes))
        for start in range(min(apart, matrix.steps)):
            each = np.maximum(each, np.sort(sizes[:, start::apart].sum(axis=1)))
    else:  # with any number of participations, which only add, where so many take long
        each = heaviest_rows(sizes, apart, times if times * sizes.size <= MAX_WORK else -(-matrix.steps // apart))
    return Rows(each, each, heaviest_of(sizes.sum(axis=0), participation)[0])


def matrix_rows_lower(matrix: Matrix, participation: Participation) -> Array:
    """Of a plain matrix, equal contributions to one pattern, some of them turned round."""
    columns = np.abs(matrix.entries).sum(axis=0)
    patterns = heaviest_of(columns, participation)[1], np.array([np.argmax(columns)])
    return max((moved_at_least(matrix, pattern) for pattern in patterns), key=np.sum)


def tree_rows(tree: Tree, steps: int, participation: Participation) -> Rows:
    """Of a tree: whole numbers."""
    forest, (apart, times) = tree.over(steps), participation.spacing(steps)
    each, together = list[Array](), list[Array]()
    for level in range(forest.levels):
        nodes = int(forest.released(np.arange(steps), level).sum()) >> level
        most = min(times, -(-(1 << level) // apart))
        each.append(np.minimum(most, times // np.arange(1, min(nodes, times) + 1)))
        whole, rest = divmod(times, most)
        together.append(np.array([most] * whole + [rest] * (rest > 0))[:nodes])
    total = heaviest_of(forest.nodes_above, participation)[0]
    return Rows(np.concatenate(each).astype(np.float64), np.concatenate(together).astype(np.float64), total)


def tree_rows_lower(tree: Tree, steps: int, participation: Participation) -> Array:
    """Of a tree, equal contributions to the heaviest pattern: its participations below every node that has any."""
    forest = tree.over(steps)
    counts = forest.below(heaviest_of(forest.nodes_above, participation)[1])
    return np.concatenate(counts).astype(np.float64)


def toeplitz_rows(coefficients: Coefficients, steps: int, participation: Participation) -> Rows:
    """Of a Toeplitz strategy."""
    values, errors = coefficients
    apart, times = participation.spacing(steps)
    starts, ones = np.arange(times, dtype=np.int64) * apart, np.ones(times)
    largest = (np.abs(values) + errors) * (1.0 + (2 * times + steps + 16) * UNIT)
    first = repeated(largest, steps, starts, ones)
    total = float(first.sum())
    if participation.kind == "fixed-order":
        return Rows(first, first, total)
    falling = np.zeros(steps)
    falling[: len(values)] = np.maximum.accumulate(largest[::-1])[::-1]
    by_row = np.cumsum(falling[::apart])[np.minimum(np.arange(steps) // apart, times - 1)][::-1]
    by_distance = repeated(falling[::-1], steps, starts, ones)[::-1]
    each = np.minimum(by_row, np.repeat(by_distance[: -(-steps // times)], times)[:steps])
    return Rows(each, repeated(falling, steps, starts, ones), total)


def toeplitz_rows_lower(coefficients: Coefficients, steps: int, participation: Participation) -> Array:
    """Of a Toeplitz strategy, contributions to 0, b, 2b, ... or to the first of these alone."""
    apart, times = participation.spacing(steps)
    moved = [row for count in {1, times} for row in moved_toeplitz(coefficients, steps, apart, count)]
    return max(moved, key=np.sum)


def adds_up(mechanism: Mechanism) -> bool:
    """Whether `Rows.together` is enough: Laplace noise under a clip that bounds one coordinate, or each for itself."""
    coordinates = mechanism.dimension == 1 or mechanism.clip_norm in (1, math.inf)
    return isinstance(mechanism.structure, LaplaceCoordinates) and coordinates


def filled(parts: Parts, total: float) -> Parts:
    """The largest parts that add up to a total, the last one as far as is left for it.

    >>> filled([(2.0, 2), (1.0, 3)], 4.5)
    [(2.0, 2), (0.5, 1)]
    """
    found, left = list[tuple[float, int]](), Fraction(total)
    for part, count in parts:
        whole = min(count, int(left / Fraction(part)))
        found += [(part, whole)] if whole else []
        left -= whole * Fraction(part)
        if whole < count:
            rest = float(left)
            return [*found, (rest if rest >= left else math.nextafter(rest, math.inf), 1)] if left else found
    return found


def evened(parts: Parts, rows: Array) -> Parts:
    """The parts with the mean of the rows that each stands for in place of the least.

    Args:
        parts: The least of so many rows, falling.
        rows: All of them, the largest of which the parts are of.
    """
    falling, start, found = -np.sort(-rows), 0, list[tuple[float, int]]()
    for least, count in parts:
        mean = float(falling[start : start + count].mean()) * (1.0 - (count + 2) * UNIT)
        found.append((max(least, mean), count))
        start += count
    return found


def enlarged(mechanism: Mechanism, part: float) -> Mechanism | None:
    """The noise as it is, of contributions so many times as long, rounded up; None where noise follows the clip.

    A clip that is written as a decimal, times a whole number, is one again: nothing is rounded then.

    >>> from dpaudit.mechanisms import Laplace
    >>> enlarged(Laplace(2.0, clip=0.1), 3.0).clip
    0.3
    """
    exact = Fraction(repr(float(mechanism.clip))) * Fraction(part)
    try:
        nearest = float(exact)
        clip = nearest if Fraction(repr(nearest)) >= exact else math.nextafter(nearest, math.inf)
        found = cast(Mechanism, replace(cast(Any, mechanism), clip=clip))
    except (OverflowError, ValueError):
        return None
    before, after = mechanism.structure, found.structure
    if not (isinstance(before, LaplaceCoordinates) and isinstance(after, LaplaceCoordinates)):
        return None
    return found if before.scale == after.scale else None
