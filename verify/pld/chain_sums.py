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
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import Protocol, Self, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.fourier import BUTTERFLY, Lattice, Power, Tilted, inverse, log_mgf

LOG_VANISHING = -42.0  # log of products of the transforms that are taken for zero: below what rounding leaves of them
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
class ChainSum:
    """The law of such a sum, a `Sum` of `operating_points`.

    Args:
        start: Probability of each state at the beginning, or a bound on it.
        links: Different steps.
        runs: The history: runs of links in their order.
        laws: Of the integers that are added: for each kind, by how many are drawn.
    """

    start: Array
    links: Sequence[Link]
    runs: Sequence[Run]
    laws: Sequence[Sequence[Lattice]]

    @cached_property
    def _counts(self) -> NDArray[np.int64]:
        """Steps of each link."""
        found = np.zeros(len(self.links), dtype=np.int64)
        for run, times in Counter(self.runs).items():
            for link, count in run:
                found[link] += times * count
        return found

    @property
    def _rounding(self) -> float:
        return float(self._counts.sum()) * 4.0 * (len(self.start) + 4.0) * UNIT

    def log_mgf(self, thetas: Array) -> Array:
        """log of the sum over s of the mass at s times e^(theta s), for each theta."""
        known = [np.array([log_mgf(law, thetas) for law in laws]) for laws in self.laws]
        with np.errstate(divide="ignore"):
            links = [_Logs(np.moveaxis(known[link.kind][link.drawn], 2, 0) + np.log(link.moves)) for link in self.links]
            start = np.broadcast_to(np.log(self.start), (len(thetas), 1, len(self.start)))
        found = chained(_Logs(np.asarray(start)), links, self.runs)
        return _log_sum(found.values[:, 0, :], axis=1)

    def tilted(self, theta: float, start: int, size: int) -> Power:
        """Its tilted masses on a window of a power of two integers."""
        ones = [[Tilted.of(law, theta) for law in laws] for laws in self.laws]
        alive, transforms, vanished = self._transforms(ones, size)
        logs = [np.array([one.log_total for one in laws]) for laws in ones]
        gauge = max(
            (float(((log[1:] - log[0]) / np.arange(1, len(log))).max()) for log in logs if len(log) > 1), default=0.0
        )
        links = [
            _scaled(link, transforms[link.kind], logs[link.kind] - gauge * np.arange(len(logs[link.kind])), gauge)
            for link in self.links
        ]
        held = np.arange(len(self.start))
        most = float((gauge * held)[self.start > 0].max())
        row = np.broadcast_to(self.start * np.exp(np.minimum(gauge * held - most, 0.0)), (len(alive), 1, len(held)))
        found = chained(_Scaled(row.astype(np.complex128), most), links, self.runs)
        left = found.values[:, 0, :]
        most = float((-gauge * held)[left[0].real > 0].max(initial=-1e300))
        spectrum = (left * np.exp(np.minimum(-gauge * held - most, 0.0))).sum(axis=1)
        total = max(float(spectrum[0].real), 1e-300)
        log_scale = found.log + most + math.log(total)
        steps = float(self._counts.sum())
        missing = abs(math.expm1(min(float(self.log_mgf(np.array([theta]))[0]) - log_scale, 700.0)))
        error = math.expm1(steps * BUTTERFLY * math.log2(size) + 2.0 * self._rounding) + missing
        relative = steps * max(one.relative for laws in ones for one in laws) + self._rounding
        scales = theta, log_scale, relative + 4.0 * UNIT * (steps + abs(log_scale))
        return inverse(alive, spectrum / total, np.full(len(alive), error), vanished + missing, start, size, scales)

    def _transforms(
        self, ones: Sequence[Sequence[Tilted]], size: int
    ) -> tuple[NDArray[np.int64], dict[int, NDArray[np.complex128]], float]:
        """Of the laws of each kind, at the frequencies that do not vanish, and a bound on what does.

        Shapes (frequencies,), and (laws, frequencies) for each kind.
        """
        counts = np.zeros(len(self.laws), dtype=np.int64)
        np.add.at(counts, [link.kind for link in self.links], self._counts)
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


def _scaled(link: Link, transforms: NDArray[np.complex128], logs: Array, gauge: float) -> _Scaled:
    top = float(logs[link.drawn[link.moves > 0]].max())
    weights = np.exp(np.minimum(logs - top, 0.0))[link.drawn] * link.moves
    return _Scaled(np.moveaxis(transforms[link.drawn], 2, 0) * weights, top + gauge * link.entered)


def chained(start: M, links: Sequence[M], runs: Sequence[Run]) -> M:
    """The product of a row vector with the matrices of all runs.

    Powers are taken once, as are products of what is left of a run after its first link.
    """
    powers: dict[tuple[int, int], M] = {}
    tails: dict[Run, M] = {}

    def power(part: tuple[int, int]) -> M:
        if part not in powers:
            powers[part] = _power(links[part[0]], part[1])
        return powers[part]

    def tail(run: Run) -> M:
        if run not in tails:
            product = power(run[0])
            for part in run[1:]:
                product = product @ power(part)
            tails[run] = product
        return tails[run]

    for run, group in groupby(runs):
        repeats = sum(1 for _ in group)
        if repeats > 2:
            whole = power(run[0])
            start = start @ _power(whole @ tail(run[1:]) if run[1:] else whole, repeats)
            continue
        for _ in range(repeats):
            start = start @ power(run[0])
            start = start @ tail(run[1:]) if run[1:] else start
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
