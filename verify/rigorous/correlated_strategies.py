"""Strategies of correlated noise in balls and whole numbers: entries, columns, and the sums over patterns."""

from collections.abc import Iterator, Sequence
from math import ceil

import numpy as np
from flint import arb, arb_mat
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.correlated import BLT, BandedToeplitz, Identity, Matrix, Side, SquareRootToeplitz, Tree
from dpaudit.verify.correlated.matrix import improved_signs
from dpaudit.verify.rigorous.balls import Unavailable, ball, total

Integers = NDArray[np.int64]
Toeplitz = Identity | SquareRootToeplitz | BandedToeplitz | BLT
Size = int | arb  # exact or a ball: of a length, or of its square
MOST_SUMS = 3e8  # steps of loops over numbers
LEVELS = 12  # kinds of releases that are told apart
TOO_LARGE = Unavailable("a matrix of this size has no theorem in balls")


def coefficients(strategy: Toeplitz, steps: int) -> list[arb]:
    """The diagonals of C, at most one for every step."""
    match strategy:
        case Identity():
            return [arb(1)]
        case BandedToeplitz(diagonals=tuple() as given):
            return [ball(value) for value in given[:steps]]
        case SquareRootToeplitz() | BandedToeplitz():
            count = steps if isinstance(strategy, SquareRootToeplitz) else min(int(strategy.bands or 1), steps)
            found = [arb(1)]
            for j in range(1, count):
                found.append(found[-1] * (2 * j - 1) / (2 * j))
            return found
    parts = [(ball(scale), ball(decay)) for scale, decay in zip(strategy.scales, strategy.decays, strict=True)]
    found, powers = [arb(1)], [arb(1) for _ in parts]
    for _ in range(1, steps):
        found.append(total([scale * power for (scale, _), power in zip(parts, powers, strict=True)]))
        powers = [power * decay for (_, decay), power in zip(parts, powers, strict=True)]
    return found


def moved_rows(c: list[arb], steps: int, apart: int, times: int, sign: int) -> list[arb]:
    """C u of the contributions 1, sign, sign^2, ... to the steps 0, b, 2b, ..."""
    moved = list[arb]()
    for row in range(steps):
        value = c[row] if row < len(c) else arb(0)
        if row >= apart:
            value += sign * moved[row - apart]
        gone = row - times * apart
        if 0 <= gone < len(c):
            value -= sign**times * c[gone]
        moved.append(value)
    return moved


def tree_nodes(tree: Tree, steps: int) -> Iterator[tuple[int, int]]:
    """First step and end of what is released: complete blocks of 2^l steps, of prefix sums those of even number."""
    leaves = min(tree.restart or steps, steps)
    for first in range(0, steps, leaves):
        inside, size = min(leaves, steps - first), 1
        while size <= inside:
            for place in range(0, inside - size + 1, size if tree.nodes == "all" else 2 * size):
                yield first + place, first + place + size
            size *= 2


def exact_balls(entries: Array) -> arb_mat:
    """A matrix of floats, exactly."""
    rows, columns = entries.shape
    return arb_mat(rows, columns, [arb(float(value)) for value in entries.ravel()])


def turned(matrix: Matrix, pattern: Sequence[int] | Integers) -> list[arb]:
    """C u of equal contributions to a pattern, turned round as the first engine finds it best."""
    columns = matrix.entries[:, pattern]
    return (exact_balls(columns) * exact_balls(improved_signs(columns)[:, None])).entries()


def heaviest_sums(weights: Integers, apart: int, times: int) -> Integers:
    """Of every row the largest sum of at most so many steps that are so far apart; of any number where that is dear."""
    rows, steps = weights.shape
    best = np.zeros((rows, steps), dtype=np.int64)
    if times < -(-steps // apart) and float(times) * rows * steps <= MOST_SUMS:
        for _ in range(times):
            taken = weights.copy()
            taken[:, apart:] += best[:, : max(steps - apart, 0)]
            best = np.maximum.accumulate(taken, axis=1)
        return np.asarray(best[:, -1])
    for step in range(steps):
        taken = weights[:, step] + (best[:, step - apart] if step >= apart else 0)
        best[:, step] = np.maximum(best[:, step - 1], taken) if step else taken
    return np.asarray(best[:, -1])


def column_squares(strategy: Toeplitz | Tree | Matrix, steps: int) -> list[Size]:
    """The square of every column's length."""
    match strategy:
        case Tree() as tree:
            above = np.zeros(steps + 1, dtype=np.int64)
            for first, end in tree_nodes(tree, steps):
                above[first] += 1
                above[end] -= 1
            return [int(count) for count in np.cumsum(above)[:steps]]
        case Matrix() as matrix:
            return [total([arb(float(value)) ** 2 for value in column]) for column in matrix.entries.T]
        case toeplitz:
            sums = [arb(0)]
            for value in coefficients(toeplitz, steps):
                sums.append(sums[-1] + value * value)
            return [sums[min(steps - t, len(sums) - 1)] for t in range(steps)]


def in_levels(falling: Sequence[Size], side: Side) -> list[tuple[Size, int]]:
    """(square, number) of a few kinds: neighbours count as the largest of them, or the smallest."""
    ends, group = list[int](), ceil(len(falling) / LEVELS)
    kinds = [i for i in range(1, len(falling)) if size_of(falling[i]) < size_of(falling[i - 1])]
    ends = [*kinds, len(falling)] if len(kinds) < LEVELS else [*range(group, len(falling), group), len(falling)]
    starts = [0, *ends[:-1]]
    return [(end_of(falling[start:end], side), end - start) for start, end in zip(starts, ends, strict=True)]


def end_of(squares: Sequence[Size], side: Side) -> Size:
    """At least, or at most, all of them."""
    whole = [square for square in squares if isinstance(square, int)]
    if len(whole) == len(squares):
        return max(whole) if side == "upper" else min(whole)
    ends = [arb(square).upper() if side == "upper" else arb(square).lower() for square in squares]
    return max(ends) if side == "upper" else min(ends)


def size_of(square: Size) -> float:
    return float(square) if isinstance(square, int) else float(square.mid())
