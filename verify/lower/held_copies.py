"""How many copies of one record a buffer holds, and how many each batch of a stream draws: a Markov chain.

The stream repeats n records; the buffer holds the first B elements, and each draw takes one of the B at random, whose
place the next element takes. The copies of the first record of the file are elements 0, n, 2n, ...; copy c can be
drawn from draw max(0, c n - B + 1) on. With N of them held, a draw takes one with probability N/B, whatever happened
before, so that the number held before each batch is a Markov chain, and a move of it says how many copies the batch
has: those that were held and came in, less those that are held after it.

Histories in which more than a few are held at once, or are in one batch, are lost: what they have in probability is
added up by its own, as a state that is never left. A product of nonnegative matrices of s states is off by 2 (s + 2)
units of each entry, a power of m of them by m times as much.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.chain_sums import ChainSum, History, Link, chained
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.samplers import BufferedShuffle

AGES = 0.3  # of batches that are taken to be alike, in the time that a copy stays
LEVELS = 0.3  # of the logarithms of how many copies are expected in them, and of the probability of none
LEAST = 1e-8  # of both, what is told from less

Level = tuple[int, int]  # both logarithms


@dataclass(frozen=True)
class _Batch:
    """A batch: before which of its draws a copy comes in, if one does, and about how many are in it."""

    entering: int | None
    level: Level


@dataclass(frozen=True)
class HeldCopies:
    """The chain of a stream, of at most so many copies held.

    Args:
        sampler: The stream.
        most: Copies held at most, in the histories that are not lost.
    """

    sampler: BufferedShuffle
    most: int

    @cached_property
    def _usual_laws(self) -> dict[Level, Array]:
        return {}

    @cached_property
    def _batches(self) -> tuple[list[_Batch], History]:
        """Different batches, and in which order they come: one more copy in at most, as no batch is above the data."""
        n, b, size = self.sampler.records, self.sampler.batch, self.sampler.buffer
        entering: dict[int, int | None] = {0: None}
        for copy in range(-(-size // n), self.sampler.begun):
            batch, draw = divmod(copy * n - size + 1, b)
            entering[batch] = draw
        firsts = sorted(entering)
        lengths = np.diff(firsts, append=self.sampler.steps).tolist()
        windows = [(entering[first], length) for first, length in zip(firsts, lengths, strict=True)]
        known: dict[_Batch, int] = {}
        runs = {
            window: tuple((known.setdefault(batch, len(known)), count) for batch, count in self._window(*window))
            for window in dict.fromkeys(windows)
        }
        return list(known), History.of([runs[window] for window in windows])

    def _window(self, entering: int | None, length: int) -> Iterator[tuple[_Batch, int]]:
        """Batches from one on in which a copy comes in, or the first one, until the next such; alike ones together."""
        n, b, age, unseen = self.sampler.records, self.sampler.batch, 0, round(math.log(LEAST) / LEVELS)
        if entering is not None:
            yield self._batch(entering, n - entering), 1
            age, length = b - entering, length - 1
        while length:
            count = min(length, max(1, round(AGES * self.sampler.buffer / b)))
            batch = self._batch(None, age + (count - 1) * b / 2)
            if batch.level[0] == unseen:  # and so are all that follow
                count = length
            yield batch, count
            length, age = length - count, age + count * b

    def _batch(self, entering: int | None, age: float) -> _Batch:
        """A batch, the last copy before which has been there for so many draws."""
        law = self._usual(entering, age)
        expected, none = float(law @ np.arange(len(law))), float(law[0])
        level = round(math.log(max(expected, LEAST)) / LEVELS), round(math.log(max(none, LEAST)) / LEVELS)
        self._usual_laws.setdefault(level, law)
        return _Batch(entering, level)

    def _usual(self, entering: int | None, age: float) -> Array:
        """Of how many copies are in such a batch, about: as if each was taken by itself, after as many passes before.

        It only decides what scores are like.
        """
        n, b, size = self.sampler.records, self.sampler.batch, self.sampler.buffer
        chances = list(np.exp(-(age + n * np.arange(self.most + 1)) / size) * -math.expm1(-b / size))
        chances += [] if entering is None else [-math.expm1(-(b - entering) / size)]
        law = np.ones(1)
        for chance in chances:
            law = np.convolve(law, [1.0 - chance, chance])[: self.most + 1]
        return law

    @property
    def history(self) -> History:
        """Batches, as links, and how many of each follow each other."""
        return self._batches[1]

    @cached_property
    def levels(self) -> list[Level]:
        """Of the different batches."""
        return sorted({batch.level for batch in self._batches[0]})

    def level_of(self, link: int) -> int:
        """Of a batch that is told from others, the place of its level among all."""
        return self.levels.index(self._batches[0][link].level)

    @property
    def usual(self) -> list[Array]:
        """How many copies are in a batch of each level, about: the probability of none, one, ..."""
        return [self._usual_laws[level] for level in self.levels]

    @property
    def counts(self) -> NDArray[np.int64]:
        """Batches of each level."""
        found = np.zeros(len(self.levels), dtype=np.int64)
        steps = self.history.steps
        np.add.at(found, [self.level_of(batch) for batch in range(len(steps))], steps)
        return found

    @cached_property
    def _moves(self) -> list[Array]:
        """Of each different batch, with a last state for what is lost."""
        return [self._matrix(batch.entering) for batch in self._batches[0]]

    def _matrix(self, entering: int | None) -> Array:
        if entering is None:
            return self._draws(self.sampler.batch)
        return self._draws(entering) @ self._enters @ self._draws(self.sampler.batch - entering)

    @cached_property
    def _one_draw(self) -> Array:
        size, held = self.sampler.buffer, np.arange(self.most + 1)
        one = np.diag(np.append(np.maximum(size - held, 0) / size, 1.0))
        one[held[1:], held[:-1]] = np.minimum(held[1:], size) / size
        return one

    def _draws(self, count: int) -> Array:
        return np.linalg.matrix_power(self._one_draw, count)

    @property
    def _enters(self) -> Array:
        """A copy comes in: one too many is lost."""
        moved = np.eye(self.most + 2, k=1)
        moved[-1, -1] = 1.0
        return moved

    @property
    def _start(self) -> Array:
        """All elements that the buffer is filled with."""
        start = np.zeros(self.most + 2)
        start[min(-(-self.sampler.buffer // self.sampler.records), self.most + 1)] = 1.0
        return start

    def _entering(self, batch: int) -> int:
        return int(self._batches[0][batch].entering is not None)

    @property
    def _rounding(self) -> Array:
        """Relative error of the moves of each batch."""
        products = self.sampler.batch + 2.0 * np.array([self._entering(batch) + 1 for batch in range(len(self._moves))])
        return 2.0 * (self.most + 4.0) * UNIT * products

    def _drawn(self, batch: int) -> NDArray[np.int64]:
        """How many copies a move draws; negative where there is no such move."""
        held = np.arange(self.most + 1)
        return held[:, None] + self._entering(batch) - held[None, :]

    def sum(self, laws: Sequence[Sequence[Lattice]], *, upper: bool) -> ChainSum:
        """The sum of what batches add, in histories that are not lost.

        Args:
            laws: Of each level, what a batch of no copy adds, of one, and so on; with more of them a history is lost.
            upper: Whether the laws are bounds from above.
        """
        sign, links = 1.0 if upper else -1.0, []
        for batch, (moves, error) in enumerate(zip(self._moves, self._rounding, strict=True)):
            drawn = self._drawn(batch)
            told = (drawn >= 0) & (drawn < len(laws[0]))
            bounds = np.where(told, moves[:-1, :-1], 0.0) * (1.0 + sign * error)
            links.append(Link(bounds, np.where(told, drawn, 0), self.level_of(batch), self._entering(batch)))
        return ChainSum(self._start[:-1], links, self.history, laws)

    def lost(self, together: int) -> float:
        """Probability, from above, of histories that have more copies at once, or more than so many in one batch."""
        matrices = []
        for batch, moves in enumerate(self._moves):
            kept = moves.copy()
            over = self._drawn(batch) > together
            kept[:-1, -1] += np.where(over, moves[:-1, :-1], 0.0).sum(axis=1)
            kept[:-1, :-1][over] = 0.0
            matrices.append(kept)
        steps = float(self.counts.sum())
        rounding = steps * (float(self._rounding.max()) + 4.0 * (self.most + 4.0) * UNIT)
        start = self._start[None, :]
        end = chained(start, matrices.__getitem__, self.history, start.shape[1])
        return float(end[0, -1]) * math.exp(min(2.0 * rounding, 700.0)) + 1e-300

    @property
    def exact(self) -> bool:
        """Whether the rounding of the moves is small: it grows with the draws of a batch."""
        return float(self._rounding @ self.history.steps) < 1e-2
