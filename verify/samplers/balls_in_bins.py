"""Balls in bins: every record draws its own batch of each pass, independently of the others."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, get_args

import numpy as np

from dpaudit.mechanisms.base import keep_as_python_numbers
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, EPOCHS, Reshuffle, one_of

SILENT = "lower bound: the other records contribute nothing in the direction of the record"


def silent_game(releases: int, times: int, passes: int, stretch: float, *, replace_one: bool) -> tuple[PassGame, ...]:
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
    typical: ClassVar[dict[str, Any]] = {"batches": 4, "epochs": 3, "reshuffle": "once"}
    meets_twice: ClassVar[bool] = False
    batches: int
    epochs: int
    reshuffle: Reshuffle = "every-epoch"

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        BATCHES.validate("batches", self.batches)
        EPOCHS.validate("epochs", self.epochs)
        one_of("reshuffle", self.reshuffle, get_args(Reshuffle))

    @property
    def steps(self) -> int:
        """Releases of all passes."""
        return self.batches * self.epochs

    @property
    def rate(self) -> float:
        """An equal part of the records."""
        return 1.0 / self.batches

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
        return silent_game(self.batches, 1, passes, stretch, replace_one=replace_one)

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Bins of random sizes."""
        bins = rng.integers(0, self.batches, records)
        batches: Batches = []
        for epoch in range(self.epochs):
            if epoch and self.reshuffle == "every-epoch":
                bins = rng.integers(0, self.batches, records)
            batches += [np.flatnonzero(bins == i) for i in range(self.batches)]
        return batches
