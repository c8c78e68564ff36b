"""Shuffles that see a buffer of the records at a time, as those of data pipelines do."""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import cycle, islice
from typing import Any, ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, keep_as_python_numbers
from dpaudit.verify.samplers import seams
from dpaudit.verify.samplers.base import Batches, PassGame, Slots
from dpaudit.verify.samplers.shuffled import BATCHES, OPPOSED, RECORDS, LastBatch, Shuffled

SURE = -1e4  # logarithm of a probability that counts as 0
MOST_PASSES = 10**5  # that an endless stream begins: their square is a number of releases


@dataclass(frozen=True)
class BufferedShuffle:
    """A buffer that is filled from the records in their order, and from which each draw takes a random one.

    The place of a record that is drawn is filled by the next one. With `epochs` a pass ends when the buffer is empty
    (`shuffle` before `repeat`), and every record is in it once. With `releases` the passes go through the buffer as one
    stream (`repeat` before `shuffle`): a record can stay while the next passes go by, and be in one batch twice.

    Args:
        records: Size of the data.
        batch: Records of a batch.
        buffer: Records that the buffer holds, at least 1; as many as there are make it a shuffle of the whole.
        epochs: Passes; None for a stream.
        last_batch: Of a pass: "kept", "dropped" or "straddling", as of `Shuffled`.
        releases: Of a stream; None for passes.

    Raises:
        ValueError: A field is outside its domain, or not one of epochs and releases is given.
    """

    kind: ClassVar[str] = "buffered-shuffle"
    summary: ClassVar[str] = "records in the order of a file, shuffled in a buffer, cut into batches"
    typical: ClassVar[dict[str, Any]] = {"records": 23, "batch": 5, "buffer": 12, "epochs": 3}
    records: int
    batch: int
    buffer: int
    epochs: int | None = None
    last_batch: LastBatch = "kept"
    releases: int | None = field(default=None, metadata={"key": "steps"})

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        RECORDS.validate("buffer", self.buffer)
        if (self.epochs is None) == (self.releases is None):
            raise ValueError("Expected epochs, of passes that empty the buffer, or steps, of one stream of all passes.")
        Shuffled.of(self.records, self.batch, self.epochs or 1, last_batch=self.last_batch)  # checks them
        if self.releases is None:
            return
        BATCHES.validate("steps", self.releases)
        if self.last_batch != "kept":
            raise ValueError(f"Expected last_batch={self.last_batch!r} with epochs alone: a stream has no last batch.")
        if self.begun > MOST_PASSES:
            raise ValueError(f"Expected steps={self.releases} to begin at most {MOST_PASSES:,} passes: {self.begun:,}.")

    @property
    def passes(self) -> Shuffled | None:
        """The same passes, shuffled as a whole; None for a stream."""
        if self.epochs is None:
            return None
        return Shuffled.of(self.records, self.batch, self.epochs, last_batch=self.last_batch)

    @property
    def begun(self) -> int:
        """Passes of a stream of which the buffer holds a record before the last draw."""
        return -(-((self.releases or 0) * self.batch + self.buffer - 1) // self.records)

    @property
    def steps(self) -> int:
        """All releases."""
        return self.releases or (self.passes.steps if self.passes else 0)

    @property
    def rate(self) -> float:
        """Share of the records that a full batch holds."""
        return self.batch / self.records

    @property
    def meets_twice(self) -> bool:
        """Whether a record can be in one batch twice."""
        return self.passes is None or self.passes.meets_twice

    @property
    def worst_meetings(self) -> list[tuple[int, int]]:
        """The costliest way for a record to be in releases, as of `Shuffled`; of a stream in the fewest batches."""
        if self.passes is not None:
            return self.passes.worst_meetings
        full, rest = divmod(min(self.begun, self.steps * self.batch), self.batch)
        return [(times, count) for times, count in ((self.batch, full), (rest, 1)) if times * count]

    @property
    def twice_chances(self) -> Array | None:
        """Upper bounds as of `Shuffled`, for a record that is twice in a batch at least as often as any is.

        None of too many passes, and where the chances of the two ends of a pass can add up to more than 1.

        The record of place e in the file, from 0, comes in before draw i = max(e - buffer + 1, 0) and is taken by each
        draw with probability 1/buffer, until no more follow. Of a batch that ends with the first s draws of a pass and
        begins with the last t of that before: if i >= s it does not hold the record twice. Else the record is likeliest
        to be in the first s draws for i = 0, and held until the last t for i = s - 1.
        """
        if self.passes is None or not self.passes.meets_twice or self.passes.epochs > seams.MOST_PASSES:
            return None
        begun, over = seams.ends(self.records, self.batch, self.passes.epochs)
        last_draw = float(self.records - self._held)  # before which a record comes in
        comes_in = np.minimum(np.maximum(self.batch - over - 1.0, 0.0), last_draw)  # and is met in the next pass
        first = -np.expm1(self._log_held(begun, 0.0)) * (1.0 + 1e-12)
        last = np.exp(self._log_held(self.records - over, comes_in)) * (over > 0) * (1.0 + 1e-12)
        if np.any(first + last > 1.0):
            return None
        return seams.chances(first, last, place=0, pair=1, most=self.passes.most_twice)

    @property
    def seam_chances(self) -> Array | None:
        """What batches that straddle cost, as of `seams.costs`, for a record that is in them as often as any is.

        The last of the file is as likely in each of the last draws that empty the buffer, none is likelier in one.
        """
        if self.passes is None or not self.passes.meets_twice or self.passes.epochs > seams.MOST_PASSES:
            return None
        begun, over = seams.ends(self.records, self.batch, self.passes.epochs)
        first, last = -np.expm1(self._log_held(begun, 0.0)) * (1.0 + 1e-12), over / self._held * (1.0 + 1e-12)
        return None if np.any(first + last > 1.0) else seams.costs(first, last)

    def _log_held(self, draws: Array, comes_in: Array | float) -> Array:
        """Logarithm of the probability that so many draws leave a record that comes in before draw `comes_in`."""
        full = np.minimum(draws, self.records - self._held)
        gone = (draws - full) / self._held
        one = math.log1p(-1.0 / self._held) if self._held > 1 else SURE
        with np.errstate(divide="ignore"):  # the last draw takes it
            left = np.where(gone < 0.5, np.log1p(-gone), np.log((self.records - draws) / self._held))
        return np.asarray(np.maximum(full - comes_in, 0.0) * one + left)

    @property
    def meetings(self) -> int:
        """Releases that a record costs at most: k times in one count as k^2."""
        return sum(times**2 * count for times, count in self.worst_meetings)

    @property
    def keeps_others(self) -> bool:
        """No: without the record all records behind it move up."""
        return False

    @property
    def hidden_batches(self) -> int:
        """Whole batches of a pass that the last record of the file can be in, in every pass at least so many."""
        if self.passes is not None and self.passes.straddles:
            return max((self._held - self.batch + 1) // self.batch, 0)
        return max(self.records // self.batch - self._first_hidden, 0)

    @property
    def _held(self) -> int:
        return min(self.buffer, self.records)

    @property
    def _first_hidden(self) -> int:
        return -(-(self.records - self._held) // self.batch)

    @property
    def whole_starts(self) -> list[int]:
        """The first release of each pass that the game is about."""
        if self.passes is None:
            return []
        if self.passes.straddles and not self.hidden_batches:
            return [epoch * self.records // self.batch for epoch in self._beginning]
        if self.passes.straddles:
            ends = (epoch * self.records for epoch in range(1, self.passes.epochs + 1))
            return [-(-(end - self._held) // self.batch) for end in ends]
        first = self._first_hidden if self.hidden_batches else 0
        return [epoch * self.passes.batches + first for epoch in range(self.passes.epochs)]

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """All others contribute -clip, the record +clip, as of shuffled batches; those of a stream overlap.

        The last record of the file enters the buffer when nothing follows, and is equally likely to be drawn in any of
        the last `buffer` draws. No other record is likelier to be in some batch: while the buffer is full each draw has
        it with probability 1/buffer. Where no whole batch lies in them the first record of the file is looked at, in
        the first batch of a pass or elsewhere; where batches straddle, of the passes that begin with a batch.
        """
        if self.passes is None:
            return ()
        if self.buffer >= self.records:
            return self.passes.games(replace_one=replace_one)
        count, passes = self.hidden_batches, self.passes.epochs
        inside = count * self.batch / self.buffer
        if not count:
            count, passes, inside = 1, len(self._beginning), self._in_the_first_batch()
        absent: Slots = ((1.0 - inside, (count, 0, 0)),) if inside < 1 else ()
        without = (count, 0, 0) if replace_one else (count - 1, 1, 0)
        first, second = ((inside, (count - 1, 0, 1)), *absent), ((inside, without), *absent)
        return (PassGame(first, second, passes, assumption=OPPOSED),)

    @property
    def _beginning(self) -> range:
        """The passes that begin with a batch."""
        epochs = self.passes.epochs if self.passes else 0
        straddles = self.passes is not None and self.passes.straddles
        return range(0, epochs, seams.passes_of_whole_batches(self.records, self.batch) if straddles else 1)

    def _in_the_first_batch(self) -> float:
        """Probability that the first record of the file is in the first batch."""
        return -math.expm1(float(self._log_held(np.array(self.batch, dtype=np.float64), 0.0)))

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """The batches, draw by draw."""
        if self.releases is not None:
            stream = _drawn(rng, cycle(range(records)), self.buffer)
            return [np.array(list(islice(stream, self.batch))) for _ in range(self.releases)]
        assert self.passes is not None
        orders = [np.array(list(_drawn(rng, range(records), self.buffer))) for _ in range(self.passes.epochs)]
        if self.last_batch == "straddling":
            orders = [np.concatenate(orders)]
        cuts = range(self.passes.batches if self.last_batch != "straddling" else len(orders[0]) // self.batch)
        return [order[i * self.batch : (i + 1) * self.batch] for order in orders for i in cuts]


def _drawn(rng: np.random.Generator, records: Iterable[int], size: int) -> Iterator[int]:
    """What a buffer of so many records gives out."""
    following = iter(records)
    held = list(islice(following, size))
    while held:
        place = int(rng.integers(len(held)))
        yield held[place]
        new = next(following, None)
        if new is None:
            held[place] = held[-1]
            held.pop()
        else:
            held[place] = new
