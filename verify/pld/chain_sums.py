"""Laws of a sum of integers over steps each of which draws some of what is held.

The state is how many are held. A step takes j of them and lets others in, with a probability for each move, and adds an
integer whose law depends on the step's kind and on j. With M_t[x, y] the probability of the move from x to y times the
tilted transform of the law it adds from, the sum has the transform start M_1 ... M_T 1. Runs of equal steps are powers
of a matrix, and only those frequencies are looked at where the product over all steps of the largest transform has not
vanished: no entry of the product of matrices exceeds it times what it is at frequency 0.

Errors are relative to the product at frequency 0, whose terms are all nonnegative (componentwise: Higham 2002, section
3.5): each transform is off by the depth of its butterflies, each product of matrices of S states by 4 (S + 4) units,
and there is at most one for every step. What underflows is missing from that total, which is therefore compared with
one in logarithms. Against underflow a factor e^-g is given to each that is drawn and e^g to each that is let in.
"""

import math
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.fourier import BUTTERFLY, Lattice, Power, Tilted, inverse, log_mgf

LOG_VANISHING = -42.0  # log of products of the transforms that are taken for zero: below what rounding leaves of them
REPEATED = 3  # times that a run follows itself, from which on a power of it is taken
WORK = 3e9  # complex multiplications of a tilt, beyond which it is not looked at
MEMORY = 2**28  # bytes of the matrices that are kept at once
Run = tuple[tuple[int, int], ...]  # links that follow each other: which, and how often


@dataclass(frozen=True)
class Link:
    """A step.

    Args:
        moves: Probability of each move or a bound on it, shape (states, states).
        drawn: How many each move draws, of the same shape; 0 where there is no such move.
        kind: Which laws it adds from.
        entered: How many are let in.
    """

    moves: Array
    drawn: NDArray[np.int64]
    kind: int
    entered: int


class _Matrix(Protocol):
    def __matmul__(self, other: Self) -> Self: ...


M = TypeVar("M", bound=_Matrix)


@dataclass(frozen=True)
class _Logs:
    """Logarithms of nonnegative matrices, shape (tilts, rows, columns)."""

    values: Array

    def __matmul__(self, other: Self) -> "_Logs":
        terms = self.values[:, :, :, None] + other.values[:, None, :, :]
        return _Logs(_log_sum(terms, axis=2))


@dataclass(frozen=True)
class _Scaled:
    """Matrices over e^log, shape (frequencies, rows, columns), frequency 0 first."""

    values: NDArray[np.complex128]
    log: float

    def __matmul__(self, other: Self) -> "_Scaled":
        product = self.values @ other.values
        top = max(float(product[0].real.max()), 1e-300)
        return _Scaled(product / top, self.log + other.log + math.log(top))


@dataclass(frozen=True)
class History:
    """Runs in their order, and how often it uses what.

    Args:
        groups: Runs that follow each other, with how often each is repeated.
        steps: Of each link.
        parts: Links and how often they follow each other: in how many runs.
        tails: What is left of a run after its first part: in how many runs.
    """

    groups: list[tuple[Run, int]]
    steps: NDArray[np.int64]
    parts: Counter[tuple[int, int]]
    tails: Counter[Run]

    @classmethod
    def of(cls, runs: Sequence[Run]) -> Self:
        groups = [(run, sum(1 for _ in group)) for run, group in groupby(runs)]
        whole: Counter[Run] = Counter()
        often: Counter[Run] = Counter()
        for run, repeats in groups:
            whole[run] += repeats
            often[run] += min(repeats, REPEATED)
        parts: Counter[tuple[int, int]] = Counter()
        tails: Counter[Run] = Counter()
        steps = np.zeros(1 + max(link for run in whole for link, _ in run), dtype=np.int64)
        for run, times in often.items():
            tails[run[1:]] += times
            for link, count in run:
                parts[link, count] += times
                steps[link] += whole[run] * count
        return cls(groups, steps, parts, tails)

    def kept(self, states: int) -> int:
        """Matrices that are kept, about."""
        return sum(uses > 1 for uses in self.parts.values()) + sum(uses > states for uses in self.tails.values())

    def work(self, states: int) -> float:
        """Products of a row and a matrix that a history takes, about; one of two matrices counts by its rows."""
        rows = 0.0
        for run, repeats in self.groups:
            rest = run[1:]
            if repeats >= REPEATED:
                rows += states * (len(run) + 2.0 * math.log2(repeats))
            elif self.tails[rest] > states:
                rows += 2.0 * repeats
            else:
                rows += repeats * (1.0 + sum(min(count, states) for _, count in rest))
        kept = sum(1.0 + 2.0 * math.log2(count) for (_, count), uses in self.parts.items() if uses > 1)
        return rows + states * (kept + sum(len(run) for run, uses in self.tails.items() if uses > states))

    def products(self, states: int) -> int:
        """Products that follow each other, at most; a power counts by its squarings."""
        return sum(min(repeats, REPEATED) * len(run) * max(states, 64) for run, repeats in self.groups)


@dataclass(frozen=True)
class ChainSum:
    """The law of such a sum, a `Sum` of `operating_points`.

    Args:
        start: Probability of each state at the beginning, or a bound on it.
        links: Different steps.
        history: Runs of links.
        laws: Of the integers that are added: for each kind, by how many are drawn.
    """

    start: Array
    links: Sequence[Link]
    history: History
    laws: Sequence[Sequence[Lattice]]

    @property
    def _rounding(self) -> float:
        return float(self.history.steps.sum()) * 4.0 * (len(self.start) + 4.0) * UNIT

    def log_mgf(self, thetas: Array) -> Array:
        """log of the sum over s of the mass at s times e^(theta s), for each theta."""
        known = [np.array([log_mgf(law, thetas) for law in laws]) for laws in self.laws]

        def matrix(index: int) -> _Logs:
            link = self.links[index]
            with np.errstate(divide="ignore"):
                return _Logs(np.moveaxis(known[link.kind][link.drawn], 2, 0) + np.log(link.moves))

        with np.errstate(divide="ignore"):
            start = np.broadcast_to(np.log(self.start), (len(thetas), 1, len(self.start)))
        found = chained(_Logs(np.asarray(start)), matrix, self.history, len(self.start))
        return _log_sum(found.values[:, 0, :], axis=1)

    def tilted(self, theta: float, start: int, size: int) -> Power | None:
        """Its tilted masses on a window of a power of two integers; None where that takes too long."""
        ones = [[Tilted.of(law, theta) for law in laws] for laws in self.laws]
        alive, transforms, vanished = self._transforms(ones, size)
        if len(alive) * len(self.start) ** 2 * self.history.work(len(self.start)) > WORK:
            return None
        logs = [np.array([one.log_total for one in laws]) for laws in ones]
        gauge = max(
            (float(((log[1:] - log[0]) / np.arange(1, len(log))).max()) for log in logs if len(log) > 1), default=0.0
        )
        logs = [log - gauge * np.arange(len(log)) for log in logs]
        at_once = max(2, MEMORY // (16 * len(self.start) ** 2 * (self.history.kept(len(self.start)) + 4)))
        spectrum, log_scale = np.zeros(len(alive), dtype=np.complex128), 0.0
        for part in np.array_split(np.arange(1, len(alive)), -(-len(alive) // at_once)):
            some = np.append(0, part)  # with the frequency that all are relative to
            spectrum[some], log_scale = self._spectrum(
                {kind: t[:, some] for kind, t in transforms.items()}, logs, gauge
            )
        steps = float(self.history.steps.sum())
        missing = min(abs(math.expm1(min(float(self.log_mgf(np.array([theta]))[0]) - log_scale, 200.0))), 1e80)
        error = math.expm1((steps + 2.0) * BUTTERFLY * math.log2(size) + 2.0 * self._rounding) + missing
        relative = steps * (max(one.relative for laws in ones for one in laws) + 4.0 * UNIT) + self._rounding
        # every product adds two logarithms, of which those of single links are sums of two
        added = float(self.history.steps @ np.array([abs(_top(link, logs, gauge)) for link in self.links])) + abs(
            log_scale
        )
        relative += 4.0 * UNIT * (self.history.products(len(self.start)) + 4.0) * (added + abs(gauge) * len(self.start))
        scales = theta, log_scale, relative
        return inverse(alive, spectrum, np.full(len(alive), error), vanished + missing, start, size, scales)

    def _spectrum(
        self, transforms: dict[int, NDArray[np.complex128]], logs: Sequence[Array], gauge: float
    ) -> tuple[NDArray[np.complex128], float]:
        """The transform of the sum over its value at frequency 0, which comes first; the logarithm of that."""

        def matrix(index: int) -> _Scaled:
            return _scaled(self.links[index], transforms[self.links[index].kind], logs, gauge)

        held, count = np.arange(len(self.start)), next(iter(transforms.values())).shape[1]
        most = float((gauge * held)[self.start > 0].max())
        row = np.broadcast_to(self.start * np.exp(np.minimum(gauge * held - most, 0.0)), (count, 1, len(held)))
        found = chained(_Scaled(row.astype(np.complex128), most), matrix, self.history, len(held))
        left = found.values[:, 0, :]
        most = float((-gauge * held)[left[0].real > 0].max(initial=-1e300))
        spectrum = (left * np.exp(np.minimum(-gauge * held - most, 0.0))).sum(axis=1)
        total = max(float(spectrum[0].real), 1e-300)
        return spectrum / total, found.log + most + math.log(total)

    def _transforms(
        self, ones: Sequence[Sequence[Tilted]], size: int
    ) -> tuple[NDArray[np.int64], dict[int, NDArray[np.complex128]], float]:
        """Of the laws of each kind, at the frequencies that do not vanish, and a bound on what does.

        Shapes (frequencies,), and (laws, frequencies) for each kind.
        """
        counts = np.zeros(len(self.laws), dtype=np.int64)
        np.add.at(counts, [link.kind for link in self.links], self.history.steps)
        alive, log_most, found = np.arange(size // 2 + 1), np.zeros(size // 2 + 1), {}
        depth = BUTTERFLY * math.log2(size)
        for kind in map(int, np.argsort(-counts, kind="stable")):
            if not counts[kind]:
                continue
            found[kind] = np.array([one.transform(size)[alive] for one in ones[kind]])
            log_most += counts[kind] * np.log(np.minimum(np.abs(found[kind]).max(axis=0) + depth, 1.0))
            kept = log_most > LOG_VANISHING
            alive, log_most = alive[kept], log_most[kept]
            found = {known: values[:, kept] for known, values in found.items()}
        return alive, found, 2.0 * math.exp(LOG_VANISHING)


def _top(link: Link, logs: Sequence[Array], gauge: float) -> float:
    """Logarithm of what the matrix of a link is divided by."""
    return float(logs[link.kind][link.drawn[link.moves > 0]].max()) + gauge * link.entered


def _scaled(link: Link, transforms: NDArray[np.complex128], logs: Sequence[Array], gauge: float) -> _Scaled:
    top = _top(link, logs, gauge)
    weights = np.exp(np.minimum(logs[link.kind] + gauge * link.entered - top, 0.0))[link.drawn] * link.moves
    return _Scaled(np.moveaxis(transforms[link.drawn], 2, 0) * weights, top)


def chained(start: M, matrix: Callable[[int], M], history: History, states: int) -> M:
    """The product of a row vector with the matrices of all runs.

    A power, or what follows the first part of a run, is taken as a matrix where it is used often enough for that.

    Args:
        start: The row.
        matrix: Of a link.
        history: Of the runs.
        states: Rows of a matrix.
    """
    powers: dict[tuple[int, int], M] = {}
    tails: dict[Run, M] = {}

    def power(part: tuple[int, int]) -> M:
        if part in powers:
            return powers[part]
        found = _power(matrix(part[0]), part[1])
        if history.parts[part] > 1:
            powers[part] = found
        return found

    def product(run: Run) -> M:
        found = power(run[0])
        for part in run[1:]:
            found = found @ power(part)
        return found

    def after(row: M, run: Run) -> M:
        for part in run:
            if part[1] * history.parts[part] > states or part in powers:
                row = row @ power(part)
            else:
                one = matrix(part[0])
                for _ in range(part[1]):
                    row = row @ one
        return row

    for run, repeats in history.groups:
        if repeats >= REPEATED:
            start = start @ _power(product(run), repeats)
            continue
        rest = run[1:]
        for _ in range(repeats):
            start = after(start, run[:1])
            if rest and history.tails[rest] > states:
                if rest not in tails:
                    tails[rest] = product(rest)
                start = start @ tails[rest]
            else:
                start = after(start, rest)
    return start


def _power(matrix: M, count: int) -> M:
    """By repeated squaring."""
    result, square = None, matrix
    while True:
        if count & 1:
            result = square if result is None else result @ square
        count >>= 1
        if not count:
            break
        square = square @ square
    assert result is not None
    return result


def _log_sum(terms: Array, axis: int) -> Array:
    """Logarithm of the sum of exponentials, minus infinity where all terms are."""
    top = np.maximum(terms.max(axis=axis, keepdims=True), -1e300)
    with np.errstate(divide="ignore"):
        return np.asarray(np.squeeze(top, axis) + np.log(np.exp(terms - top).sum(axis=axis)))
