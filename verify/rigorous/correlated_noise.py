"""Correlated noise in balls: independent releases that C x + sigma Z costs at most, and at least, as much as.

The theorems are those of `verify.correlated`, the sums are done anew. Normal noise costs what one release of
sigma/|C u| does for the costliest contributions u, at most 1 each, to a pattern of steps. Of Toeplitz strategies
columns are moved copies, so that C u is a recurrence; trees are 0-1 matrices, and of a plain matrix |G|, G = C^T C, is
rounded up to whole numbers.
"""

from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from functools import lru_cache
from itertools import pairwise

import numpy as np
from flint import arb

from dpaudit.mechanisms.base import Mechanism, with_noise_factor
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.correlated import Correlation, Identity, Matrix, Side, Tree
from dpaudit.verify.correlated.rows import adds_up, enlarged
from dpaudit.verify.rigorous.balls import Unavailable, ball, float_above, float_below, total
from dpaudit.verify.rigorous.correlated_rows import moved_parts
from dpaudit.verify.rigorous.correlated_strategies import (
    MOST_SUMS,
    TOO_LARGE,
    Integers,
    Size,
    coefficients,
    column_squares,
    end_of,
    exact_balls,
    heaviest_sums,
    in_levels,
    moved_rows,
    size_of,
    tree_nodes,
    turned,
)
from dpaudit.verify.rigorous.domination import is_gaussian

MOST_STEPS, MOST_COLUMNS = 100_000, 2048  # of strategies whose columns are moved copies or whole numbers; of others
MOST_WORK = 2e9  # multiplications of balls in a product of matrices
RESOLUTION = 2**40  # of the largest entry of |G|
LEAST_PART = 1e-10  # of the largest square: smaller ones count as that, from below as nothing


def independent_claim(claim: Claim, side: Side) -> Claim | Unavailable:
    """The claim with releases of independent noise in place of correlated ones.

    Args:
        claim: In canonical form.
        side: Whether they cost at least ("upper") or at most ("lower") as much. What has no theorem is left out of the
            latter.

    Returns:
        `Unavailable` where that is missing, or nothing is left.
    """
    phases = list[Phase]()
    missing = Unavailable("no release is left")
    for phase in claim.phases:
        found = [phase] if phase.correlation is None else _independent(phase, phase.correlation, side)
        if not isinstance(found, Unavailable):
            phases += found
        elif side == "upper":
            return found
        else:
            missing = found
    return replace(claim, phases=phases) if phases else missing


def _independent(phase: Phase, correlation: Correlation, side: Side) -> list[Phase] | Unavailable:
    """The releases of one phase."""
    participation, steps = correlation.participation, phase.steps
    if steps > MOST_STEPS:
        return Unavailable("correlated noise of so many steps has no theorem in balls")
    if participation.sampled:
        if not (is_gaussian(phase.mechanism) or correlation.bandwidth(steps) == 1):
            return Unavailable("rounds of several releases have a theorem for normal noise alone")
        if isinstance(correlation.strategy, Matrix) and correlation.strategy.entries.size > MOST_WORK / 100:
            return TOO_LARGE
        squares = column_squares(correlation.strategy, steps)
        groups = int(participation.groups or 1)
        found = _of_any([squares[group::groups] for group in range(min(groups, steps))], side)
        return _released(phase.mechanism, in_levels(found, side), float(participation.prob or 1.0), side)
    if is_gaussian(phase.mechanism):
        square = sensitivity_square(correlation, steps)[side == "upper"]
        if isinstance(square, Unavailable):
            return square
        # as many releases of this noise cost the same, and nothing is rounded
        known = [(1, square)] if isinstance(square, int) else [(square, 1)]
        return _released(phase.mechanism, known, 1.0, side)
    parts = moved_parts(correlation, phase.mechanism, steps, side)
    if isinstance(parts, Unavailable):
        return parts
    return _moved(phase, parts, side)


def _moved(phase: Phase, parts: Sequence[tuple[Size, int]], side: Side) -> list[Phase] | Unavailable:
    """Releases that a record moves so far; of Laplace noise whole numbers enlarge the clip, and nothing is rounded."""
    found = list[Phase]()
    for part, count in parts:
        whole = _enlarged(phase.mechanism, part, side) if isinstance(part, int) else None
        if whole is not None:
            found.append(Phase(whole, count, 1.0, "none"))
            continue
        one = _released(phase.mechanism, [(part * part, count)], 1.0, side)
        if isinstance(one, list):
            found += one
        elif side == "upper":
            return one
    return found or Unavailable("no release is moved")


def _enlarged(noise: Mechanism, part: int, side: Side) -> Mechanism | None:
    found = enlarged(noise, float(part)) if adds_up(noise) else None
    exact = found is not None and Fraction(repr(found.clip)) == Fraction(repr(float(noise.clip))) * part
    return found if exact or side == "upper" else None


def _released(
    noise: Mechanism, kinds: Sequence[tuple[Size, int]], prob: float, side: Side
) -> list[Phase] | Unavailable:
    """Releases whose noise is divided by the root of a square, rounded to the safe side."""
    found = list[Phase]()
    for square, count in kinds:
        divided, end = noise, arb(square).upper() if side == "upper" else arb(square).lower()
        if end == 0 or (side == "lower" and not end > 0):
            continue
        if not end > 0:
            return Unavailable("the columns of the strategy have no length in balls")
        if not (isinstance(square, int) and square == 1):
            rounding = 32.0 * UNIT  # of the parameters, of reading them as decimals, and of `size_of`
            exact = 1 / end.sqrt()
            factor = float_below(exact) * (1 - rounding) if side == "upper" else float_above(exact) * (1 + rounding)
            divided = with_noise_factor(noise, factor)
        found.append(Phase(divided, count, prob, "none" if prob == 1 else "poisson"))
    return found or Unavailable("no column of the strategy is longer than 0")


@lru_cache(maxsize=16)
def sensitivity_square(correlation: Correlation, steps: int) -> tuple[Size, Size | Unavailable]:
    """The largest |C u|^2, from below and from above.

    Args:
        correlation: Without sampling.
        steps: At most 100,000.

    >>> from dpaudit.verify.correlated import Participation
    >>> sensitivity_square(Correlation(Tree(restart=8), Participation("fixed-order", separation=8)), 80)
    (40, 40)
    """
    apart, times = correlation.participation.spacing(steps)
    match correlation.strategy:
        case Identity():
            return times, times
        case strategy if times == 1:
            squares = column_squares(strategy, steps)
            return max(squares, key=size_of), end_of(squares, "upper")
        case Tree() as tree:
            return _of_a_tree(tree, correlation, steps)
        case Matrix() as matrix:
            return _of_a_matrix(matrix, correlation)
    return _of_moved_columns(coefficients(correlation.strategy, steps), steps, apart, times)


def _of_moved_columns(c: list[arb], steps: int, apart: int, times: int) -> tuple[arb, arb]:
    """Toeplitz strategies: by the pattern 0, b, 2b, ..., of the least falling majorant from above."""
    if len(c) <= apart:  # columns meet in no row
        squares = [arb(0)]
        for value in c:
            squares.append(squares[-1] + value * value)
        whole = total([squares[min(steps - m * apart, len(c))] for m in range(times)])
        return whole, whole
    majorant, largest = list[arb](), arb(0)
    for value in reversed(c):
        largest = largest.max(abs(value))
        majorant.append(largest)
    upper = _length(majorant[::-1], steps, apart, times, 1)
    return max((_length(c, steps, apart, times, sign) for sign in (1, -1)), key=lambda x: float(x.lower())), upper


def _length(c: list[arb], steps: int, apart: int, times: int, sign: int) -> arb:
    """|C u|^2 of the contributions 1, sign, sign^2, ... to the steps 0, b, 2b, ..."""
    return total([value * value for value in moved_rows(c, steps, apart, times, sign)])


def _of_a_tree(tree: Tree, correlation: Correlation, steps: int) -> tuple[int, int | Unavailable]:
    """Whole numbers: the sum over nodes of the squares of how many participations are below."""
    apart, times = correlation.participation.spacing(steps)
    ends = np.array(list(tree_nodes(tree, steps)), dtype=np.int64).T

    def square(pattern: Integers) -> int:
        below = np.searchsorted(pattern, ends)  # steps before each end
        return int(np.sum((below[1] - below[0]) ** 2))

    orders = [np.arange(start, steps, apart) for start in range(min(apart, steps))]
    if correlation.participation.kind == "fixed-order":
        if len(orders) * ends.size > MOST_SUMS:
            return square(orders[0]), Unavailable("a tree of so many orders has no theorem in balls")
        best = max(map(square, orders))
        return best, best
    shown = np.array(_pattern(correlation, steps), dtype=np.int64)
    lower = max(square(orders[0][:times]), square(shown))
    if steps > MOST_COLUMNS:
        return lower, Unavailable("a tree of so many steps and patterns has no theorem in balls")
    columns = np.arange(steps)
    rows = ((columns >= ends[0][:, None]) & (columns < ends[1][:, None])).astype(np.float64)
    gram = (rows.T @ rows).astype(np.int64)  # whole numbers below 2^53
    return lower, _heaviest_square(gram, apart, times)


def _of_a_matrix(matrix: Matrix, correlation: Correlation) -> tuple[Size, Size | Unavailable]:
    """A plain matrix: from below by the pattern and the signs that the first engine found."""
    steps, rows = matrix.steps, len(matrix.entries)
    apart, times = correlation.participation.spacing(steps)
    lower = total([value * value for value in turned(matrix, _pattern(correlation, steps))])
    if steps > MOST_COLUMNS or float(steps) ** 2 * rows > MOST_WORK:
        return lower, TOO_LARGE
    entries = exact_balls(matrix.entries)
    products = (entries.transpose() * entries).entries()
    gram = np.array([float_above(abs(value)) for value in products]).reshape(steps, steps)
    unit = Fraction(float(gram.max())) / RESOLUTION
    whole = np.ceil(gram / float(unit) * (1 + 4 * UNIT)).astype(np.int64)
    if correlation.participation.kind == "fixed-order":
        orders = [np.arange(start, steps, apart) for start in range(min(apart, steps))]
        upper = max(int(whole[np.ix_(order, order)].sum()) for order in orders)
    else:
        upper = _heaviest_square(whole, apart, times)
    return lower, ball(upper * unit)


def _pattern(correlation: Correlation, steps: int) -> list[int]:
    """Steps in which a record may be: those that the first engine found, if they are, else the first ones."""
    (apart, times), ordered = correlation.participation.spacing(steps), correlation.participation.kind == "fixed-order"
    found = list(correlation.sensitivity(steps).pattern)
    gaps = {b - a for a, b in pairwise(found)}
    allowed = gaps <= {apart} if ordered else all(gap >= apart for gap in gaps)
    known = found and found[0] >= 0 and found[-1] < steps and len(found) <= times and allowed
    return found if known else list(range(0, min(apart * times, steps), apart))


def _heaviest_square(gram: Integers, apart: int, times: int) -> int:
    """At least the sum of |G| over any pattern of two steps or more: by pairs where there are two, else row by row.

    Of a row that is in the pattern the others add at most the heaviest pattern apart from it.
    """
    own, away = np.diag(gram), np.abs(np.subtract.outer(*[np.arange(len(gram))] * 2)) >= apart
    if times == 2:
        return int(max(own.max(), (own[:, None] + own + 2 * gram)[away].max(initial=0)))
    weights = own + heaviest_sums(np.where(away, gram, 0), apart, times - 1)
    return int(heaviest_sums(weights[None], apart, times)[0])


def _of_any(choices: Sequence[Sequence[Size]], side: Side) -> list[Size]:
    """Squares that cost at least as much as any choice of them, or those of the costliest one; falling."""
    largest = max(size_of(square) for choice in choices for square in choice)
    falling = [
        sorted(
            (one for one in choice if side == "upper" or size_of(one) > LEAST_PART * largest), key=size_of, reverse=True
        )
        for choice in choices
    ]
    if side == "lower":
        return max(falling, key=lambda choice: sum(map(size_of, choice)))
    longest = max(map(len, falling))
    found = [max((choice[i] for choice in falling if i < len(choice)), key=size_of) for i in range(longest)]
    return [one if size_of(one) > LEAST_PART * largest else arb(2 * LEAST_PART * largest) for one in found]
