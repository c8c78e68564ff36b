"""Correlated noise: releases C x + sigma Z, and the independent releases that they cost as much as.

x_t is the sum of the clipped contributions of step t, and Z has independent normal coordinates. Later contributions may
depend on earlier releases. That costs nothing (Denisov et al. 2022, "Improved Differential Privacy for SGD via Optimal
Private Linear Operators on Adaptive Streams"): row by row, given what came before, the record moves a normal
law by a vector which is then known, and along every path the squares of these moves add up to |C u|^2 <= sens^2 C^2. So
the history costs at most as much as ONE release of normal noise sigma / sens, and the contributions that attain |C u|,
fixed beforehand, make it cost at least as much as one of sigma / |C u|.

No two participations in one release. If participations are so far apart that their columns meet in no row, the record
enters release i by one participation t alone: with c_it times its contribution, which is known before. For any noise
with independent rows that is one unsampled release, the noise divided by |c_it|, and all of them compose adaptively. Of
equal diagonals the pattern that starts first has the most of every other one's entries. Of a plain matrix each
participation counts as a column whose i-th largest entry is the largest of the columns' i-th largest ones; of Laplace
noise they end where the heaviest pattern does, as in `rows`. Equal contributions to one pattern bound the cost from
below, with signs that symmetric noise does not see. Entries of about one size count as the largest of them, from below
as the smallest.

Participations that meet. For noise other than normal `rows` has how far a record moves each release, and numbers that
are enough for all patterns together: Laplace noise clipped in the l1 norm has the pure epsilon of the heaviest pattern.

Cyclic Poisson sampling (Choquette-Choo et al. 2023, arXiv 2306.08153, Section 4). Let C be square and lower triangular
with at most b diagonals, and the records in b groups fixed beforehand. A record of group g is in at steps g, g + b, ...
by independent coins; the columns of these steps meet in no row, and all rows of one come before those of the next. So a
round is one Poisson-sampled release of noise sigma / |column|, its coins fresh, and adaptively composed. With one
diagonal a round is one row, and its noise of any law. The i-th longest column of a group counts as the longest i-th one
of all groups; from below the group of the largest sum of squares is looked at. What a record contributes to its step,
itself or another in its place, is known before the first row of the round, so that this holds of replaced records too.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, Literal

import numpy as np

from dpaudit.mechanisms.base import Array, LaplaceCoordinates, Mechanism, NormalCoordinates, with_noise_factor
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.correlated.matrix import Matrix, matrix_sensitivity
from dpaudit.verify.correlated.participation import Participation, participation_from_dict
from dpaudit.verify.correlated.patterns import Sensitivity, heaviest
from dpaudit.verify.correlated.rows import (
    Parts,
    Rows,
    adds_up,
    enlarged,
    evened,
    filled,
    matrix_rows,
    matrix_rows_lower,
    toeplitz_rows,
    toeplitz_rows_lower,
    tree_rows,
    tree_rows_lower,
)
from dpaudit.verify.correlated.toeplitz import (
    BLT,
    BandedToeplitz,
    Identity,
    SquareRootToeplitz,
    column_lengths,
    toeplitz_sensitivity,
)
from dpaudit.verify.correlated.tree import Tree, tree_sensitivity

Strategy = Identity | SquareRootToeplitz | BandedToeplitz | BLT | Tree | Matrix
STRATEGIES: dict[str, Callable[..., Strategy]] = {
    family.name: family for family in (Identity, SquareRootToeplitz, BandedToeplitz, BLT, Tree)
}
KEYS = {"banded-toeplitz": ("bands", "diagonals"), "blt": ("decays", "scales"), "tree": ("restart", "nodes")}
MAX_STEPS, MAX_ORDERED = 100_000, 10_000_000
LEVELS, CLASSES = 12, 400  # groups of a column's entries at most, each as dear as a history; sizes that are told apart
LEAST_PART = 1e-5  # of the largest entry: smaller ones count as that, from below as nothing
Side = Literal["lower", "upper"]
ADAPTIVE = "adaptivity costs nothing with normal noise: Denisov et al. (2022)"
SETTLED = "in which steps a record takes part is settled before the first release"
FACTOR = "the noise is that on C x, before any normalising of C"
ONE_RELEASE = (
    "correlated normal noise as one release of its sensitivity: Choquette-Choo et al. (2023, arXiv 2211.06530)"
)
ROUNDS = "cyclic Poisson sampling of a banded strategy as rounds: Choquette-Choo et al. (2023, arXiv 2306.08153)"
WHOLE = "no two participations in one release: adaptive composition of the releases that a record enters"
MEETING = "participations that meet: adaptive composition of the releases, each moved by all of their parts"
ADDED = "of Laplace noise none costs more than what moves as much and the most at once (majorization)"


@dataclass(frozen=True)
class Correlation:
    """How the noise of the steps of one training hangs together, and who takes part in which.

    Args:
        strategy: C.
        participation: In which steps a record may be.

    >>> Correlation(Tree(restart=8), Participation("fixed-order", separation=8)).sensitivity(80).square
    40
    """

    strategy: Strategy
    participation: Participation

    def check_steps(self, steps: int) -> None:
        """Refuse numbers of steps that the strategy does not have.

        Raises:
            ValueError: The message names the rule.
        """
        if isinstance(self.strategy, Matrix) and steps != self.strategy.steps:
            raise ValueError(
                f"Expected steps={steps} to be the columns of {self.strategy.file}, {self.strategy.steps}."
            )
        alone = isinstance(self.strategy, Tree) and self.participation.kind == "fixed-order"
        most = MAX_ORDERED if alone else MAX_STEPS
        if steps > most:
            raise ValueError(f"Expected steps={steps} to be at most {most} with correlated noise.")
        if self.participation.sampled:
            bands, groups = self.bandwidth(steps), int(self.participation.groups or 0)
            if bands is None or bands > groups:
                found = "is not square and lower triangular" if bands is None else f"has {bands} diagonals"
                raise ValueError(
                    f"Expected a strategy of at most participation.groups={groups} diagonals with kind "
                    f"'cyclic-poisson': {self.strategy.name!r} {found}."
                )

    def bandwidth(self, steps: int) -> int | None:
        """Diagonals of C, square and lower triangular; None where it is not."""
        match self.strategy:
            case Matrix() as matrix:
                return matrix.bandwidth()
            case Tree(nodes="all"):
                return None
            case Tree() as tree:
                return min(tree.restart or steps, steps)
            case strategy:
                return len(strategy.coefficients(steps)[0])

    def sensitivity(self, steps: int) -> Sensitivity:
        """Bounds on sens in so many steps, in multiples of the clip; not for sampled participations."""
        return _sensitivity(self.strategy, self.participation, steps)

    def entered(self, steps: int, side: Side) -> tuple[tuple[float, int], ...] | None:
        """The releases that a record enters, each by one participation: with how much of it, and how many such.

        Args:
            steps: n.
            side: Whether at least so much of so many, or at most.

        Returns:
            None where two participations may meet in a release, or coins decide.
        """
        return None if self.participation.sampled else _entered(self.strategy, self.participation, steps, side)

    def moved(self, mechanism: Mechanism, steps: int, side: Side, *, delta: float = 0.0) -> Parts | None:
        """The releases that a record moves, where participations may meet too: by how much of it, and how many such.

        Args:
            mechanism: The noise of one release, not normal.
            steps: n.
            side: Whether at least so much of so many, or at most; of Laplace noise, whether that costs as much.
            delta: Where that is to be tight, which says which pattern is looked at from below; it holds everywhere.

        Returns:
            None where coins decide, or nothing is left of what the record does.
        """
        if self.participation.sampled:
            return None
        entered = self.entered(steps, side)
        if side == "upper" and adds_up(mechanism):
            rows = _rows(self.strategy, self.participation, steps)
            return filled(entered or _levels(rows.together, side), rows.total)
        if side == "upper":
            return entered or _levels(_rows(self.strategy, self.participation, steps).each, side)
        structure = mechanism.structure
        if entered is not None and not isinstance(structure, LaplaceCoordinates):
            return entered
        least = _rows_lower(self.strategy, self.participation, steps)
        if not least.any():
            return entered
        parts = _levels(least, side)
        if not isinstance(structure, LaplaceCoordinates):
            return parts
        scale, even = structure.scale / mechanism.clip, evened(parts, least)
        choices = [even] if entered is None else [entered, even]
        return max(choices, key=lambda choice: _laplace_epsilon(choice, scale, delta))

    def rounds(self, steps: int, side: Side) -> tuple[tuple[float, int], ...]:
        """(column length, number) of the rounds that a record can be sampled in; see the module."""
        groups = int(self.participation.groups or 1)
        lengths = self._lengths(steps)[side == "upper"]
        return _levels(_of_any([lengths[group::groups] for group in range(min(groups, steps))], side), side)

    def _lengths(self, steps: int) -> tuple[Array, Array]:
        match self.strategy:
            case Matrix() as matrix:
                squares = np.sum(matrix.entries**2, axis=0)
            case Tree() as tree:
                squares = tree.over(steps).above[0]
            case strategy:
                return column_lengths(strategy.coefficients(steps), steps)
        error = (steps + 16) * UNIT
        return np.sqrt(squares) * (1 - error), np.sqrt(squares) * (1 + error)

    def independent(
        self, mechanism: Mechanism, steps: int, side: Side, *, delta: float = 0.0
    ) -> list[tuple[Mechanism, int, float]] | None:
        """Independent releases that cost at least as much ("upper"), or at most ("lower").

        Args:
            mechanism: The noise of one release.
            steps: n.
            side: Which.
            delta: Where that is to be tight; it holds everywhere.

        Returns:
            (mechanism, releases, sampling rate) of each kind; None where no theorem here gives any.
        """
        if self.participation.sampled:
            if not self._in_rounds(mechanism, steps):
                return None
            prob = float(self.participation.prob or 1.0)
            return [(_divided(mechanism, length, side), n, prob) for length, n in self.rounds(steps, side)]
        if not isinstance(mechanism.structure, NormalCoordinates):
            parts = self.moved(mechanism, steps, side, delta=delta)
            whole = side == "upper" and adds_up(mechanism)
            return [(_moved_by(mechanism, part, side, whole=whole), n, 1.0) for part, n in parts] if parts else None
        found = self.sensitivity(steps)
        if side == "upper" and found.square is not None:  # as many releases as that cost the same, without rounding
            return [(mechanism, found.square, 1.0)]
        length = found.upper if side == "upper" else found.lower
        return [(_divided(mechanism, length, side), 1, 1.0)] if length > 0 else None

    def theorem(self, mechanism: Mechanism, steps: int) -> str:
        """What proves `independent`, in one line."""
        if self.participation.sampled:
            return ROUNDS
        if isinstance(mechanism.structure, NormalCoordinates):
            return ONE_RELEASE
        entered = self.entered(steps, "upper")
        added = adds_up(mechanism) and self.moved(mechanism, steps, "upper") != entered
        return (MEETING if entered is None else WHOLE) + (f"; {ADDED}" if added else "")

    def _in_rounds(self, mechanism: Mechanism, steps: int) -> bool:
        """Whether a round is one release: normal noise, or noise of any law on one row."""
        return isinstance(mechanism.structure, NormalCoordinates) or self.bandwidth(steps) == 1

    def assumptions(self, mechanism: Mechanism, steps: int) -> tuple[str, ...]:
        """What the reader must accept for a verdict, and what sens is."""
        own = (f"participation: {self.participation.summary}; this is assumed, and the same for both neighbours",)
        if self.participation.sampled:
            return (*own, FACTOR, self._told(steps)) if self._in_rounds(mechanism, steps) else own
        if isinstance(mechanism.structure, NormalCoordinates):
            return (*own, ADAPTIVE, FACTOR, self._told(steps))
        parts = self.entered(steps, "upper")
        if parts is None:
            rows, name = _rows(self.strategy, self.participation, steps), self._name
            moved = f"a release by at most {rows.each.max():.6g} clips, and all together by {rows.total:.6g}"
            return (*own, SETTLED, FACTOR, f"{name}: in {steps} steps a record moves {moved}")
        part = "" if parts == ((1.0, parts[0][1]),) else " and with a part of its contribution"
        return (*own, f"a record enters at most {sum(n for _, n in parts)} of the releases, each once{part}")

    @property
    def _name(self) -> str:
        return self.strategy.file if isinstance(self.strategy, Matrix) else self.strategy.name

    def _told(self, steps: int) -> str:
        name = self._name
        if self.participation.sampled:
            lengths = [f"{length:.6g}" for length, _ in self.rounds(steps, "upper")]
            shown = lengths[0] if len(lengths) == 1 else f"{lengths[0]} to {lengths[-1]}"
            return f"{name}: each sampled round has the noise divided by {shown}"
        found = self.sensitivity(steps)
        size = f"{found.upper:.6g}" if found.exact else f"between {found.lower:.6g} and {found.upper:.6g}"
        told = f"{name}: sensitivity {size} clips in {steps} steps"
        if not found.pattern:
            return told
        shown = ", ".join(map(str, found.pattern[:4])) + (", ..." if len(found.pattern) > 4 else "")
        return f"{told}, met by taking part in steps {shown}, counted from 0"

    def to_dict(self) -> dict[str, Any]:
        """The keys of a `[claim.correlation]` table."""
        return {**_strategy_keys(self.strategy), "participation": self.participation.to_dict()}


@lru_cache(maxsize=64)
def _sensitivity(strategy: Strategy, participation: Participation, steps: int) -> Sensitivity:
    match strategy:
        case Matrix():
            return matrix_sensitivity(strategy, steps, participation)
        case Tree():
            return tree_sensitivity(strategy, steps, participation)
        case Identity():
            times = participation.spacing(steps)[1]
            return replace(toeplitz_sensitivity(strategy.coefficients(steps), steps, participation), square=times)
    return toeplitz_sensitivity(strategy.coefficients(steps), steps, participation)


@lru_cache(maxsize=64)
def _entered(
    strategy: Strategy, participation: Participation, steps: int, side: Side
) -> tuple[tuple[float, int], ...] | None:
    apart, times = participation.spacing(steps)
    match strategy:
        case Identity():
            return ((1.0, times),)
        case Tree() as tree:
            if min(tree.restart or steps, steps) > apart:
                return None
            return ((1.0, int(_sensitivity(strategy, participation, steps).square or 0)),)
        case Matrix() as matrix:
            bands = matrix.bandwidth()
            if times > 1 and (bands is None or bands > apart):
                return None
            sizes = np.abs(matrix.entries)
            if participation.kind == "fixed-order":
                return _levels(_of_any([sizes[:, start::apart] for start in range(min(apart, steps))], side), side)
            if side == "upper":
                return _levels(np.tile(np.sort(sizes, axis=0).max(axis=1), times), side)
            return _levels(sizes[:, heaviest(np.square(sizes).sum(axis=0), apart, times)[1]].ravel(), side)
    values, errors = strategy.coefficients(steps)
    if times > 1 and len(values) > apart:
        return None
    known = np.maximum(np.abs(values) + (errors if side == "upper" else -errors), 0.0)
    return _levels(np.concatenate([known[: steps - apart * t] for t in range(times)]), side)


@lru_cache(maxsize=64)
def _rows(strategy: Strategy, participation: Participation, steps: int) -> Rows:
    match strategy:
        case Matrix():
            return matrix_rows(strategy, participation)
        case Tree():
            return tree_rows(strategy, steps, participation)
    return toeplitz_rows(strategy.coefficients(steps), steps, participation)


@lru_cache(maxsize=64)
def _rows_lower(strategy: Strategy, participation: Participation, steps: int) -> Array:
    match strategy:
        case Matrix():
            return matrix_rows_lower(strategy, participation)
        case Tree():
            return tree_rows_lower(strategy, steps, participation)
    return toeplitz_rows_lower(strategy.coefficients(steps), steps, participation)


def _laplace_epsilon(parts: Parts, scale: float, delta: float) -> float:
    """About what Laplace releases cost together: their largest losses, or as normal ones of as many squares do."""
    sizes, counts = np.array(parts).T
    pure, square = float(counts @ sizes) / scale, float(counts @ np.square(sizes)) / scale**2
    return min(pure, 0.5 * square + math.sqrt(-2.0 * math.log(delta) * square)) if delta > 0 else pure


def _of_any(choices: Sequence[Array], side: Side) -> Array:
    """Sizes that cost at least as much as those of any choice ("upper"), or the choice that most likely costs most.

    With the i-th largest of every choice beside the i-th largest of the others the largest of them counts.
    """
    if side == "lower":
        return max(choices, key=lambda sizes: float(np.square(sizes).sum())).ravel()
    most = np.zeros(max(sizes.size for sizes in choices))
    for sizes in choices:
        most[: sizes.size] = np.maximum(most[: sizes.size], -np.sort(-sizes, axis=None))
    return most


def _levels(sizes: Array, side: Side) -> tuple[tuple[float, int], ...]:
    """(size, number) of sizes in LEVELS groups of neighbours, each counted as its largest ("upper") or smallest.

    Of all groupings that which changes sizes and their squares least, added up; before, sizes are put into CLASSES of
    equal ratio.
    """
    falling = -np.sort(-sizes[sizes > 0])
    least = LEAST_PART * falling[0]
    falling = np.maximum(falling, least) if side == "upper" else falling[falling >= least]
    ratio = max(1.0 + 1e-9, float(falling[0] / falling[-1]) ** (1.0 / CLASSES))
    label = np.floor(np.log(falling[0] / falling) / math.log(ratio))
    _, first, counts = np.unique(label, return_index=True, return_counts=True)
    known = falling[first if side == "upper" else first + counts - 1]
    ends = np.concatenate([[0], np.cumsum(counts)])
    worth = known / falling.sum() + known**2 / np.square(falling).sum()
    held = ends[None, 1:] - ends[:-1, None]  # [i, j]: in the classes i to j
    cost = np.where(held > 0, held * (worth[:, None] if side == "upper" else -worth[None, :]), np.inf)
    best, began = cost[0], [np.zeros(len(known), dtype=np.int64)]  # of the classes up to j, in one group, in two, ...
    for _ in range(min(LEVELS, len(known)) - 1):
        joined = np.concatenate([[np.inf], best[:-1]])[:, None] + cost
        joined[0] = cost[0]  # fewer groups are as good
        began.append(joined.argmin(axis=0))
        best = joined.min(axis=0)
    groups, end = list[tuple[float, int]](), len(known)
    for starts in reversed(began):
        start = int(starts[end - 1])
        shown = known[start] if side == "upper" else known[end - 1]
        groups.append((float(shown), int(ends[end] - ends[start])))
        end = start
        if not end:
            break
    return tuple(reversed(groups))


def _moved_by(mechanism: Mechanism, part: float, side: Side, *, whole: bool) -> Mechanism:
    """A release that a record moves by so many clips: the noise divided by them, or the clip enlarged where wanted."""
    if part == 1:
        return mechanism
    larger = enlarged(mechanism, part) if whole else None
    return _divided(mechanism, part, side) if larger is None else larger


def _divided(mechanism: Mechanism, length: float, side: Side) -> Mechanism:
    """The noise divided by a length, and rounded to the safe side."""
    return with_noise_factor(mechanism, (1.0 - 8 * UNIT if side == "upper" else 1.0 + 8 * UNIT) / length)


def _strategy_keys(strategy: Strategy) -> dict[str, Any]:
    match strategy:
        case Matrix():
            return {"strategy": strategy.file, "sha256": strategy.sha256}
        case strategy:
            given = {key: getattr(strategy, key) for key in KEYS.get(strategy.name, ())}
            shown = {key: list(v) if isinstance(v, tuple) else v for key, v in given.items() if v is not None}
            return {"strategy": strategy.name, **shown}


def correlation_from_dict(keys: Mapping[str, Any], matrix: Callable[[str], Matrix]) -> Correlation:
    """A correlation from its table.

    Args:
        keys: With `strategy`, the strategy's own keys, and `participation`.
        matrix: Reads an .npy file that the table names.

    Raises:
        TypeError, ValueError: A key is missing, unknown, or outside its domain.

    >>> keys = {"strategy": "tree", "restart": 8, "participation": {"kind": "fixed-order", "separation": 8}}
    >>> correlation_from_dict(keys, matrix=None).strategy
    Tree(restart=8, nodes='prefix')
    """
    given = dict(keys)
    name, participation = given.pop("strategy", None), given.pop("participation", None)
    if not isinstance(name, str) or not (name in STRATEGIES or name.endswith(".npy")):
        raise ValueError(f"Expected correlation.strategy={shown(name)} among {', '.join(STRATEGIES)}, or an .npy file.")
    if not isinstance(participation, Mapping):
        raise ValueError("Expected correlation.participation to be a table with a kind.")
    known = ("sha256",) if name.endswith(".npy") else KEYS.get(name, ())
    unknown = sorted(set(given) - set(known))
    if unknown:
        expected = ", ".join(("strategy", "participation", *known))
        raise ValueError(f"unknown key 'correlation.{unknown[0]}': expected {expected} with strategy {name!r}.")
    if name.endswith(".npy"):
        strategy: Strategy = matrix(name)
        if isinstance(strategy, Matrix) and given.get("sha256", strategy.sha256) != strategy.sha256:
            raise ValueError(f"Expected {name} with sha256 {given['sha256']}, but it has {strategy.sha256}.")
    else:
        if name == "blt" and set(known) - set(given):
            raise ValueError("Expected correlation.decays and correlation.scales with strategy 'blt'.")
        strategy = STRATEGIES[name](**{key: tuple(v) if isinstance(v, list) else v for key, v in given.items()})
    return Correlation(strategy, participation_from_dict(participation))
