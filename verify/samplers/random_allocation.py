"""Random allocation: every record in a random set of releases of fixed size, independently of the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpaudit.mechanisms.base import Domain, keep_as_python_numbers
from dpaudit.verify.samplers.balls_in_bins import silent_game
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES

TIMES = Domain(1, 10**9, (1, 100), "releases that a record enters", closed_low=True, integer=True)


@dataclass(frozen=True)
class RandomAllocation:
    """Every record in so many of all releases, a uniformly random set that it draws independently.

    Args:
        releases: Of the whole history.
        times: How many of them a record enters, at most `releases`.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "random-allocation"
    summary: ClassVar[str] = "each record independently in a random set of releases of fixed size"
    typical: ClassVar[dict[str, Any]] = {"steps": 12, "times": 5}
    meets_twice: ClassVar[bool] = False
    releases: int = field(metadata={"key": "steps"})
    times: int

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        BATCHES.validate("steps", self.releases)
        TIMES.validate("times", self.times)
        if self.times > self.releases:
            raise ValueError(f"Expected times={self.times} to be at most steps={self.releases}.")

    @property
    def steps(self) -> int:
        """All releases."""
        return self.releases

    @property
    def rate(self) -> float:
        """The part of the records that a release expects."""
        return self.times / self.releases

    @property
    def meetings(self) -> int:
        """As many as a record enters."""
        return self.times

    @property
    def keeps_others(self) -> bool:
        """Yes: everybody draws alone."""
        return True

    @property
    def groups(self) -> list[tuple[int, int]]:
        """(size, how many) of groups of the releases that would hold one of the record's each: no harder to tell."""
        size, larger = divmod(self.releases, self.times)
        return [(size + 1, larger), (size, self.times - larger)] if larger else [(size, self.times)]

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """The others are silent: `times` releases around 1 with the record, none without it."""
        return silent_game(self.releases, self.times, 1, 1.0, replace_one=replace_one)

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """A set of releases for every record."""
        chosen = np.argsort(rng.random((records, self.releases)), axis=1)[:, : self.times]
        return [np.flatnonzero((chosen == step).any(axis=1)) for step in range(self.releases)]
