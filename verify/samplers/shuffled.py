"""Shuffled batches: a uniformly random order of the records, cut into batches."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, ClassVar, Literal, get_args

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, keep_as_python_numbers
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.seams import MOST_PASSES, costs_in_order, passes_of_whole_batches, twice_in_order

BATCHES = Domain(1, 10**9, (2, 1000), "batches of one pass", closed_low=True, integer=True)
EPOCHS = Domain(1, 10**9, (1, 100), "passes", closed_low=True, integer=True)
RECORDS = Domain(1, 10**15, (100, 10**6), "records", closed_low=True, integer=True)
MOST_COUNTED = 10**6  # passes that are looked at one by one
LastBatch = Literal["kept", "dropped", "straddling"]
Reshuffle = Literal["every-epoch", "once"]
OPPOSED = (
    "lower bound: the loss is linear along one direction, where the record contributes +clip and all others -clip, "
    "which some data and model do"
)


def one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse a word that is none of the allowed ones."""
    if value not in allowed:
        raise ValueError(f"Expected {name}={shown(value)} among {', '.join(map(repr, allowed))}.")


@dataclass(frozen=True)
class Shuffled:
    """Batches of a random order, drawn anew in every pass or once.

    Args:
        batches: Batches of one pass; equal ones unless `records` and `batch` say otherwise.
        epochs: Passes, at least 1.
        records: Size of the data; None for equal batches.
        batch: Records of a batch; None for equal batches.
        last_batch: What becomes of the records / batch that are left over: "kept" as a smaller batch, "dropped", or
            "straddling": the batch goes on in the next pass (`repeat` before `batch`).
        reshuffle: "every-epoch" or "once".

    Raises:
        ValueError: A field is outside its domain, or batches, records and batch do not fit each other.
    """

    kind: ClassVar[str] = "shuffled"
    summary: ClassVar[str] = "a uniformly random order of the records, cut into batches"
    typical: ClassVar[dict[str, Any]] = {"records": 23, "batch": 5, "epochs": 3, "last_batch": "straddling"}
    batches: int
    epochs: int
    records: int | None = None
    batch: int | None = None
    last_batch: LastBatch = "kept"
    reshuffle: Reshuffle = "every-epoch"

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        BATCHES.validate("batches", self.batches)
        EPOCHS.validate("epochs", self.epochs)
        one_of("last_batch", self.last_batch, get_args(LastBatch))
        one_of("reshuffle", self.reshuffle, get_args(Reshuffle))
        if (self.records is None) != (self.batch is None):
            raise ValueError("Expected records and batch to be given together, or batches alone.")
        if self.records is None or self.batch is None:
            if self.last_batch != "kept":
                raise ValueError(f"Expected records and batch to be given with last_batch={self.last_batch!r}.")
            return
        RECORDS.validate("records", self.records)
        RECORDS.validate("batch", self.batch)
        if self.batch > self.records:
            raise ValueError(f"Expected batch={self.batch} to be at most records={self.records}.")
        if self.batches != passes_batches(self.records, self.batch, self.last_batch):
            raise ValueError(
                f"Expected batches={self.batches} to be that of records={self.records} in batches of {self.batch}, "
                f"last_batch={self.last_batch!r}: {passes_batches(self.records, self.batch, self.last_batch)}."
            )

    @classmethod
    def from_keys(
        cls,
        *,
        batches: int | None = None,
        epochs: int,
        records: int | None = None,
        batch: int | None = None,
        last_batch: LastBatch = "kept",
        reshuffle: Reshuffle = "every-epoch",
    ) -> "Shuffled":
        """From the keys of a claims file: batches, or records and batch."""
        if batches is None and records is not None and batch is not None:
            return cls.of(records, batch, epochs, last_batch=last_batch, reshuffle=reshuffle)
        if batches is None:
            raise ValueError("expected sampling.batches, or sampling.records and sampling.batch, to be given.")
        return cls(batches, epochs, records, batch, last_batch, reshuffle)

    @classmethod
    def of(
        cls,
        records: int,
        batch: int,
        epochs: int,
        *,
        last_batch: LastBatch = "kept",
        reshuffle: Reshuffle = "every-epoch",
    ) -> "Shuffled":
        """From the size of the data and of a batch.

        >>> Shuffled.of(60_000, 256, 60).batches, Shuffled.of(60_000, 256, 60, last_batch="dropped").steps
        (235, 14040)
        """
        one_of("last_batch", last_batch, get_args(LastBatch))
        RECORDS.validate("records", records)
        RECORDS.validate("batch", batch)
        records, batch = int(records), int(batch)
        return cls(passes_batches(records, batch, last_batch), epochs, records, batch, last_batch, reshuffle)

    @property
    def steps(self) -> int:
        """Releases of all passes; straddling batches fill those of all passes together."""
        if self.last_batch == "straddling" and self.records is not None and self.batch is not None:
            return self.records * self.epochs // self.batch
        return self.batches * self.epochs

    @property
    def rate(self) -> float:
        """A full batch, or an equal part of the records."""
        return 1.0 / self.batches if self.batch is None or self.records is None else self.batch / self.records

    @property
    def straddles(self) -> bool:
        """Whether a batch holds records of two passes: not where batches divide the records, nor in a single pass."""
        divided = self.records is None or self.batch is None or self.records % self.batch == 0
        return self.last_batch == "straddling" and not divided and self.epochs > 1

    @property
    def meets_twice(self) -> bool:
        """Whether a record can be in one batch twice; in passes of one order its places are a whole pass apart."""
        return self.straddles and self.reshuffle == "every-epoch"

    @property
    def worst_meetings(self) -> list[tuple[int, int]]:
        """The costliest way for a record to be in releases: (how often in one, how many such).

        After every run of `passes_of_whole_batches` one ends with a batch. No batch is longer than a pass, so a record
        is in one twice by its places in two neighbouring passes of such a run, and either place is in that batch alone:
        a run of k passes has k // 2 such pairs at most.
        """
        if not self.meets_twice or self.records is None or self.batch is None:
            return [(1, self.epochs)]
        run = passes_of_whole_batches(self.records, self.batch)
        twice = self.epochs // run * (run // 2) + self.epochs % run // 2
        return [(times, count) for times, count in ((2, twice), (1, self.epochs - 2 * twice)) if count]

    @property
    def most_twice(self) -> int:
        """The most batches that hold a record twice."""
        return dict(self.worst_meetings).get(2, 0)

    @property
    def twice_chances(self) -> Array | None:
        """Upper bounds on the chances that 0, ..., `most_twice` batches hold a record twice; None of many passes."""
        if not self.meets_twice or self.records is None or self.batch is None or self.epochs > MOST_PASSES:
            return None
        return twice_in_order(self.records, self.batch, self.epochs, self.most_twice)

    @property
    def seam_chances(self) -> Array | None:
        """What batches that straddle cost, as of `seams.costs`; None as of `twice_chances`."""
        if not self.meets_twice or self.records is None or self.batch is None or self.epochs > MOST_PASSES:
            return None
        return costs_in_order(self.records, self.batch, self.epochs)

    @property
    def meetings(self) -> int:
        """One release a pass; a straddling batch can hold a record twice, which counts as four releases, not two."""
        return sum(times**2 * count for times, count in self.worst_meetings)

    @property
    def keeps_others(self) -> bool:
        """No: without the record all records behind it move up."""
        return False

    @property
    def whole_batches(self) -> int:
        """Batches that lie wholly inside one pass, in every one of `whole_passes` at least so many."""
        if self.records is None or self.batch is None or not self.straddles:
            return self.batches
        if self.reshuffle == "once":
            return self.records // self.batch
        return max((self.records - self.batch + 1) // self.batch, 1)

    @property
    def has_passes_without_a_batch(self) -> bool:
        """Whether passes that are drawn anew can lie in two batches that straddle: those of more than half of them."""
        return self.meets_twice and 2 * (self.batch or 0) > (self.records or 0) + 1

    @property
    def whole_passes(self) -> Sequence[int]:
        """The passes that lower bounds look at.

        Straddling batches cut one order in another place in every pass: a record in batch j of one pass need not be in
        batch j of the next, and contributions do not add up. They do in passes that begin with a batch. Of orders that
        are drawn anew, all passes are looked at that hold a whole batch, among the first million where others do not.
        """
        if self.records is None or self.batch is None or not self.straddles:
            return range(self.epochs)
        if self.reshuffle == "once":
            return range(0, self.epochs, passes_of_whole_batches(self.records, self.batch))
        if self.has_passes_without_a_batch:
            return _with_a_whole_batch(self.records, self.batch, min(self.epochs, MOST_COUNTED))
        return range(self.epochs)

    @property
    def whole_starts(self) -> list[int]:
        """The first release of each pass that lower bounds look at."""
        if self.records is None or self.batch is None or not self.straddles:
            return [epoch * self.batches for epoch in self.whole_passes]
        return [-(-epoch * self.records // self.batch) for epoch in self.whole_passes]

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """All others contribute -clip, the record +clip: slots around 2 with it, 1 (a ghost) or 0 (replaced) without.

        A last batch that is kept and smaller is at least as bad as T equal ones with T = ceil(records / batch). Of a
        record in none of the counted batches, which has probability 1 - T batch / records, the pass shows nothing.
        Where one order serves all passes, those that are cut alike add up.
        """
        count = self.whole_batches
        out = 0.0
        if self.records is not None and self.batch is not None and self.last_batch != "kept":
            out = 1.0 - count * self.batch / self.records
        ghost = (count, 0, 0) if replace_one else (count - 1, 1, 0)
        absent = ((out, (count, 0, 0)),) if out > 0 else ()
        once = self.reshuffle == "once"
        return (
            PassGame(
                first=((1.0 - out, (count - 1, 0, 1)), *absent),
                second=((1.0 - out, ghost), *absent),
                passes=1 if once else len(self.whole_passes),
                stretch=math.sqrt(len(self.whole_passes)) if once else 1.0,
                assumption=OPPOSED,
            ),
        )

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Batches of as equal sizes as possible where only their number is known."""
        orders = [rng.permutation(records)]
        for _ in range(self.epochs - 1):
            orders.append(orders[0] if self.reshuffle == "once" else rng.permutation(records))
        if self.last_batch == "straddling" and self.batch is not None:
            stream = np.concatenate(orders)
            return [stream[i * self.batch : (i + 1) * self.batch] for i in range(len(stream) // self.batch)]
        batches: Batches = []
        for order in orders:
            if self.batch is None:
                batches += np.array_split(order, self.batches)
            else:
                batches += [order[i * self.batch : (i + 1) * self.batch] for i in range(self.batches)]
        return batches


@lru_cache(8)
def _with_a_whole_batch(records: int, batch: int, epochs: int) -> list[int]:
    return [epoch for epoch in range(epochs) if -epoch * records % batch + batch <= records]


def passes_batches(records: int, batch: int, last_batch: LastBatch) -> int:
    """Batches of one pass: the last one counts where it is kept; of straddling ones those that fit into a pass."""
    return -(-records // batch) if last_batch == "kept" else records // batch
