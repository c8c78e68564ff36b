"""Rows that several participations move, in balls: how far a record moves each, for noise other than normal.

The theorems are those of `verify.correlated.rows`, the sums are done anew: of Toeplitz strategies by a recurrence, of
trees in whole numbers, of a plain matrix with |C| rounded up to whole numbers. From below any pattern will do, and the
one that the first engine finds heaviest is taken.
"""

from collections.abc import Sequence
from fractions import Fraction

import numpy as np
from flint import arb

from dpaudit.mechanisms.base import LaplaceCoordinates, Mechanism
from dpaudit.verify.correlated import Correlation, Matrix, Participation, Side, Tree
from dpaudit.verify.correlated.rows import adds_up, heaviest_of
from dpaudit.verify.rigorous.balls import Unavailable, ball, float_above, total
from dpaudit.verify.rigorous.correlated_strategies import (
    TOO_LARGE,
    Integers,
    Size,
    coefficients,
    column_squares,
    heaviest_sums,
    in_levels,
    moved_rows,
    size_of,
    tree_nodes,
    turned,
)

MOST_ENTRIES = 4_000_000  # of a plain matrix
RESOLUTION = 2**40  # of the largest entry of |C|
LEAST_PART = 1e-10  # of the largest row: smaller ones count as twice that, from below as nothing
Parts = list[tuple[Size, int]]  # (how far in multiples of the clip, how many rows)


def moved_parts(correlation: Correlation, noise: Mechanism, steps: int, side: Side) -> Parts | Unavailable:
    """The releases that a record moves, and how far.

    Args:
        correlation: Without sampling.
        noise: Not normal; of Laplace noise the releases are such that cost as much.
        steps: At most 100,000.
        side: Whether at least so far, or at most.
    """
    if isinstance(correlation.strategy, Matrix) and correlation.strategy.entries.size > MOST_ENTRIES:
        return TOO_LARGE
    if side == "lower":
        rows = _moved_at_least(correlation, steps)
        largest = max(map(size_of, rows), default=0.0)
        rows = sorted((row for row in rows if size_of(row) > LEAST_PART * largest), key=size_of, reverse=True)
        if not rows:
            return Unavailable("no release is moved")
        parts = in_levels(rows, side)
        return _evened(parts, rows) if isinstance(noise.structure, LaplaceCoordinates) else parts
    each, together, whole = _moved_at_most(correlation, steps)
    if adds_up(noise):
        return _filled(in_levels(_largest_first(together), side), _above(whole))
    return in_levels(_largest_first(each), side)


def _largest_first(rows: Sequence[Size]) -> list[Size]:
    """Those that are not 0, next to nothing as a little more."""
    least = LEAST_PART * max(map(size_of, rows))
    kept = [row for row in rows if arb(row).upper() > 0]
    return sorted((row if size_of(row) > least else arb(2 * least) for row in kept), key=size_of, reverse=True)


def _above(size: Size) -> Fraction:
    return Fraction(size if isinstance(size, int) else float_above(size))


def _filled(parts: Parts, whole: Fraction) -> Parts:
    """The largest parts until they add up to the whole, the last one as far as is left."""
    found: Parts = []
    for part, count in parts:
        each = _above(part)
        times = min(count, int(whole // each)) if each else count
        whole -= times * each
        if times:
            found.append((part, times))
        if times < count:
            return [*found, (int(whole) if whole.denominator == 1 else ball(whole), 1)] if whole else found
    return found


def _evened(parts: Parts, rows: Sequence[Size]) -> Parts:
    """The mean of the rows that each part stands for."""
    found, start = [], 0
    for part, count in parts:
        mean = total([arb(row) for row in rows[start : start + count]]) / count
        found.append((part if isinstance(part, int) and mean == part else mean.lower(), count))
        start += count
    return found


def _moved_at_most(correlation: Correlation, steps: int) -> tuple[Sequence[Size], Sequence[Size], Size]:
    """r_i, b_i and S."""
    participation = correlation.participation
    apart, times = participation.spacing(steps)
    ordered = participation.kind == "fixed-order"
    match correlation.strategy:
        case Tree() as tree:
            sizes = [end - first for first, end in tree_nodes(tree, steps)]
            each, together = list[int](), list[int]()
            for leaves in sorted(set(sizes)):
                most, nodes = min(times, -(-leaves // apart)), sizes.count(leaves)
                each += [min(most, times // i) for i in range(1, min(nodes, times) + 1)]
                together += [most] * min(times // most, nodes)
                together += [times % most] if times % most and times // most < nodes else []
            above = np.array(column_squares(tree, steps), dtype=np.int64)
            return each, together, _heaviest_step_sum(above, participation)
        case Matrix() as matrix:
            unit = Fraction(float(np.abs(matrix.entries).max())) / RESOLUTION
            whole = np.ceil(np.abs(matrix.entries) / float(unit)).astype(np.int64)
            whole += (whole > 0).astype(np.int64)  # the division rounds
            if ordered:
                orders = [np.sort(whole[:, start::apart].sum(axis=1)) for start in range(min(apart, steps))]
                rows = np.maximum.reduce(orders)
            else:
                rows = heaviest_sums(whole, apart, times)
            sizes_ = [ball(int(row) * unit) for row in rows]
            return sizes_, sizes_, ball(_heaviest_step_sum(whole.sum(axis=0), participation) * unit)
        case toeplitz:
            c = [abs(value) for value in coefficients(toeplitz, steps)]
    first = moved_rows(c, steps, apart, times, 1)
    if ordered:
        return first, first, total(first)
    falling, largest = list[arb](), arb(0)
    for value in reversed(c):
        largest = largest.max(value)
        falling.append(largest)
    falling = [*falling[::-1], *[arb(0)] * (steps - len(c))]
    by_distance = moved_rows(falling[::-1], steps, apart, times, 1)[::-1]
    by_row = [arb(0)]
    for value in falling[::apart][:times]:
        by_row.append(by_row[-1] + value)
    rows_ = [by_row[min(i // apart, times - 1) + 1] for i in reversed(range(steps))]
    each_ = [row.min(by_distance[i // times]) for i, row in enumerate(rows_)]
    return each_, moved_rows(falling, steps, apart, times, 1), total(first)


def _heaviest_step_sum(weights: Integers, participation: Participation) -> int:
    """S, of the sum of every column."""
    apart, times = participation.spacing(len(weights))
    if participation.kind == "fixed-order":
        return max(int(weights[start::apart].sum()) for start in range(min(apart, len(weights))))
    return int(heaviest_sums(weights[None], apart, times)[0])


def _moved_at_least(correlation: Correlation, steps: int) -> list[Size]:
    """Rows as equal contributions to one pattern move them, some of these turned round."""
    participation = correlation.participation
    apart, times = participation.spacing(steps)
    match correlation.strategy:
        case Tree() as tree:
            above = np.array(column_squares(tree, steps), dtype=np.float64)
            pattern, ends = heaviest_of(above, participation)[1], np.array(list(tree_nodes(tree, steps))).T
            below = np.searchsorted(pattern, ends)  # steps before each end
            return [int(count) for count in below[1] - below[0]]
        case Matrix() as matrix:
            columns = np.abs(matrix.entries).sum(axis=0)
            patterns = heaviest_of(columns, participation)[1], np.array([np.argmax(columns)])
            tried = [turned(matrix, pattern) for pattern in patterns]
        case toeplitz:
            c = coefficients(toeplitz, steps)
            tried = [moved_rows(c, steps, apart, count, sign) for count in {1, times} for sign in (1, -1)]
    best = max(tried, key=lambda moved: sum(float(abs(row).lower()) for row in moved))
    return [abs(row) for row in best]
