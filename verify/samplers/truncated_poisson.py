"""Poisson batches that are cut where they come out too large."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from typing import Any, ClassVar

import numpy as np

from dpaudit.verify.binomial_tails import binomial_tails
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, RECORDS
from dpaudit.verify.samplers.without_replacement import RATE

WIDEST = 2**20  # masses of a binomial law that are summed
ROUNDING = 1e-14  # relative, of a few products


@cache
def _above(count: int, trials: int, prob: float) -> tuple[float, float]:
    """Lower and upper bounds of P(Bin(trials, prob) > count), 0 <= count < trials.

    Sums of masses, and where they are too many or too far out P(Bin >= c) <= e^(-n KL(c/n, prob)) for c > n prob
    (Hoeffding 1963, Theorem 1).
    """
    c, n = count + 1.0, float(trials)
    low, high = binomial_tails(np.array([[c]]), np.array([n]), np.array([float(prob)]), widest=WIDEST)
    if not n * prob < c < n:
        return float(low[0, 0]), float(high[0, 0])
    ratio = math.log(c), -math.log(n), -math.log(prob)
    rest = math.log1p(-c / n), -math.log1p(-prob)
    slack = 1e-14 * (c * sum(map(abs, ratio)) + (n - c) * sum(map(abs, rest)))
    far = min(slack - c * sum(ratio) - (n - c) * sum(rest), 0.0)
    return float(low[0, 0]), min(float(high[0, 0]), max(math.exp(far), 1e-300))


@dataclass(frozen=True)
class TruncatedPoisson:
    """Poisson batches, of which so many records at most are kept, a uniformly random set of them.

    Args:
        prob: Rate, in (0, 1].
        max_batch: Most records of a batch.
        records: Size of the data, at least max_batch.
        releases: Of the whole history.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "truncated-poisson"
    summary: ClassVar[str] = "each record independently, batches that come out too large cut to a random part"
    typical: ClassVar[dict[str, Any]] = {"prob": 0.25, "max_batch": 20, "records": 23, "steps": 6}
    prob: float
    max_batch: int
    records: int
    releases: int = field(metadata={"key": "steps"})

    def __post_init__(self) -> None:
        RATE.validate("prob", self.prob)
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
    def overflow(self) -> float:
        """Upper bound on the probability that some batch is cut: steps P(Bin(records, prob) > max_batch)."""
        if self.max_batch >= self.records:
            return 0.0
        return min(1.0, self.releases * _above(self.max_batch, self.records, self.prob)[1] * (1.0 + ROUNDING))

    @property
    def kept_rate(self) -> float:
        """Lower bound on the probability that a record is in a release: prob E min(1, max_batch / (1 + X)).

        X ~ Bin(n - 1, prob), n = records, are the others drawn. With B = max_batch the minimum is 1 up to X = B - 1,
        and (n - 1 choose x) / (1 + x) = (n choose x + 1) / n makes the rest B P(Bin(n, prob) > B) / (n prob).
        """
        n, cap, q = self.records, self.max_batch, float(self.prob)
        if cap >= n:
            return q
        inside = 1.0 - _above(cap - 1, n - 1, q)[1]
        share = inside + cap * _above(cap, n, q)[0] / (n * q)
        return q * min(1.0, max(share, cap / n)) * (1.0 - ROUNDING)  # 1 + X is at most n

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
