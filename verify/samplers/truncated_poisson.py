"""Poisson batches that are cut where they come out too large."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar

import numpy as np

from dpaudit.mechanisms.base import keep_as_python_numbers
from dpaudit.verify.binomial_tails import binomial_tail
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, RECORDS
from dpaudit.verify.samplers.without_replacement import RATE

PROB = replace(RATE, low=1e-299)  # so that what is kept of it is a rate
ROUNDING = 1e-14  # relative, of a few products


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson batches, of which so many records at most are kept, a uniformly random set of them.

    Args:
        prob: Rate, in [1e-299, 1].
        max_batch: Most records of a batch.
        records: Size of the data with the record, the larger of two neighbours under add-remove; at least max_batch.
        releases: Of the whole history.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "truncated-poisson"
    summary: ClassVar[str] = "each record independently, batches that come out too large cut to a random part"
    typical: ClassVar[dict[str, Any]] = {"prob": 0.25, "max_batch": 20, "records": 23, "steps": 6}
    meets_twice: ClassVar[bool] = False
    prob: float
    max_batch: int
    records: int
    releases: int = field(metadata={"key": "steps"})

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        PROB.validate("prob", self.prob)
        RECORDS.validate("max_batch", self.max_batch)
        RECORDS.validate("records", self.records)
        BATCHES.validate("steps", self.releases)
        if self.max_batch > self.records:
            raise ValueError(f"Expected max_batch={self.max_batch} to be at most records={self.records}.")

    @property
    def steps(self) -> int:
        """All releases."""
        return self.releases

    @property
    def rate(self) -> float:
        """The part that is drawn before anything is cut."""
        return float(self.prob)

    @property
    def meetings(self) -> int:
        """A record can be in all of them."""
        return self.releases

    @property
    def keeps_others(self) -> bool:
        """No: a record can take the place of another in a batch that is cut."""
        return False

    @property
    def full_chance(self) -> tuple[float, float]:
        """Bounds on the probability that the others alone fill a batch: P(Bin(n - 1, prob) >= max_batch).

        Where they do not, nothing is cut, whether the record is in or not.
        """
        if self.max_batch >= self.records:
            return 0.0, 0.0
        if self.prob == 1:
            return 1.0, 1.0
        return binomial_tail(self.max_batch, self.records - 1, self.prob)

    @property
    def full_rate(self) -> float:
        """Upper bound on the probability that a record is in a batch that the others alone fill, given that they do.

        B / (1 + X) of prob for X = B, ..., n - 1 others drawn, B = max_batch, n = records: what `kept_rate` adds up for
        such X, over their probability.
        """
        n, cap, q = self.records, self.max_batch, float(self.prob)
        full = self.full_chance[0]
        most = q * cap / (cap + 1.0)
        if q == 1.0:
            most = cap / n
        elif full > 0.0:
            most = min(most, cap * binomial_tail(cap + 1, n, q)[1] / (n * full))
        return min(most * (1.0 + ROUNDING), q)

    @property
    def unfilled_chance(self) -> float:
        """Upper bound on the probability that the others alone do not fill a batch, precise where it is small."""
        return min(1.0 - self.full_chance[0], self.fewer(self.max_batch))

    @property
    def overflow(self) -> float:
        """Upper bound on the probability that the others alone fill some batch of the history."""
        return min(1.0, self.releases * self.full_chance[1] * (1.0 + ROUNDING))

    @property
    def kept_rate(self) -> float:
        """Lower bound on the probability that a record is in a release: prob E min(1, max_batch / (1 + X)).

        X ~ Bin(n - 1, prob), n = records, are the others drawn. With B = max_batch the minimum is 1 up to X = B - 1,
        and (n - 1 choose x) / (1 + x) = (n choose x + 1) / n makes the rest B P(Bin(n, prob) > B) / (n prob).
        """
        n, cap, q = self.records, self.max_batch, float(self.prob)
        if cap >= n:
            return q
        inside = 1.0 - self.full_chance[1]
        share = inside + cap * binomial_tail(cap + 1, n, q)[0] / (n * q)
        return q * min(1.0, max(share, cap / n)) * (1.0 - ROUNDING)  # 1 + X is at most n

    def fewer(self, others: int) -> float:
        """Upper bound on the probability that a release draws fewer of the others than so many."""
        n = self.records - 1
        if others > n:
            return 1.0
        if not others or self.prob == 1:
            return 0.0
        # fewer are drawn where more are not; tails grow with the rate
        return binomial_tail(n - others + 1, n, math.nextafter(1.0 - self.prob, 1.0))[1]

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """Where the others are silent it is a Poisson batch at `kept_rate`."""
        return ()

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Poisson batches, cut."""
        batches = []
        for _ in range(self.releases):
            batch = np.flatnonzero(rng.random(records) < self.prob)
            batches.append(rng.permutation(batch)[: self.max_batch])
        return batches


@dataclass(frozen=True)
class GhostPoisson(TruncatedPoisson):
    """Such batches under zero-out: a ghost is drawn as the record would be, and takes a place in a batch that is cut.

    Where a record is taken away instead, another one has the place.
    """
