"""Balls in bins and random allocation: every record draws its own releases, independently of the others."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Domain
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, EPOCHS, Reshuffle

TIMES = Domain(1, 10**9, (1, 100), "releases that a record enters", closed_low=True, integer=True)
SILENT = "lower bound: the other records contribute nothing in the direction of the record"


def _game(releases: int, times: int, passes: int, stretch: float, *, replace_one: bool) -> tuple[PassGame, ...]:
    """The record in `times` of the releases, uniformly; replaced, the same with the opposite contribution.

    Under replace-one a pair that is seen from one end is moved so that its lower centre is 0.
    """
    if replace_one:
        return ()
    return (
        PassGame(
            first=((1.0, (releases - times, times, 0)),),
            second=((1.0, (releases, 0, 0)),),
            passes=passes,
            stretch=stretch,
            assumption=SILENT,
        ),
    )


@dataclass(frozen=True)
class BallsInBins:
    """Every record in one of the batches of a pass, which it draws independently.

    Args:
        batches: Batches of one pass.
        epochs: Passes, at least 1.
        reshuffle: "every-epoch" or "once".

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "balls-in-bins"
    summary: ClassVar[str] = "each record independently in one batch of a pass"
    batches: int
    epochs: int
    reshuffle: Reshuffle = "every-epoch"

    def __post_init__(self) -> None:
        BATCHES.validate("batches", self.batches)
        EPOCHS.validate("epochs", self.epochs)

    @property
    def steps(self) -> int:
        """Releases of all passes."""
        return self.batches * self.epochs

    @property
    def meetings(self) -> int:
        """One a pass."""
        return self.epochs

    @property
    def keeps_others(self) -> bool:
        """Yes: everybody draws alone."""
        return True

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """The others are silent: one release of a pass around 1 with the record, none without it."""
        once = self.reshuffle == "once"
        passes, stretch = (1, float(np.sqrt(self.epochs))) if once else (self.epochs, 1.0)
        return _game(self.batches, 1, passes, stretch, replace_one=replace_one)

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Bins of random sizes."""
        bins = rng.integers(0, self.batches, records)
        batches: Batches = []
        for epoch in range(self.epochs):
            if epoch and self.reshuffle == "every-epoch":
                bins = rng.integers(0, self.batches, records)
            batches += [np.flatnonzero(bins == i) for i in range(self.batches)]
        return batches


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
    releases: int = field(metadata={"key": "steps"})
    times: int

    def __post_init__(self) -> None:
        BATCHES.validate("steps", self.releases)
        TIMES.validate("times", self.times)
        if self.times > self.releases:
            raise ValueError(f"Expected times={self.times} to be at most steps={self.releases}.")

    @property
    def steps(self) -> int:
        """All releases."""
        return self.releases

    @property
    def meetings(self) -> int:
        """As many as a record enters."""
        return self.times

    @property
    def keeps_others(self) -> bool:
        """Yes: everybody draws alone."""
        return True

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """The others are silent: `times` releases around 1 with the record, none without it."""
        return _game(self.releases, self.times, 1, 1.0, replace_one=replace_one)

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """A set of releases for every record."""
        chosen = np.argsort(rng.random((records, self.releases)), axis=1)[:, : self.times]
        return [np.flatnonzero((chosen == step).any(axis=1)) for step in range(self.releases)]
