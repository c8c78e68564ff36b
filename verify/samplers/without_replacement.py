"""Batches of fixed size, drawn anew in every release."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from dpaudit.mechanisms.base import Domain, keep_as_python_numbers
from dpaudit.verify.samplers.balls_in_bins import SILENT
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, OPPOSED

RATE = Domain(1e-300, 1.0, (1e-3, 0.5), "probability", closed_low=True, closed_high=True)


@dataclass(frozen=True)
class WithoutReplacement:
    """Every release draws its own batch of the same size, all sets of that size being equally likely.

    Args:
        prob: Size of a batch over that of the data, in [1e-300, 1].
        releases: Of the whole history.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "without-replacement"
    summary: ClassVar[str] = "each release a random batch of fixed size, drawn anew"
    typical: ClassVar[dict[str, Any]] = {"prob": 0.25, "steps": 6}
    meets_twice: ClassVar[bool] = False
    prob: float
    releases: int = field(metadata={"key": "steps"})

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        RATE.validate("prob", self.prob)
        BATCHES.validate("steps", self.releases)

    @property
    def steps(self) -> int:
        """All releases."""
        return self.releases

    @property
    def rate(self) -> float:
        """A batch."""
        return float(self.prob)

    @property
    def meetings(self) -> int:
        """A record can be in all of them."""
        return self.releases

    @property
    def keeps_others(self) -> bool:
        """No: without the record one more of the others is in."""
        return False

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """The others opposed: one more of them is in where the record is not. Or silent, which is a Poisson batch."""
        g = float(self.prob)
        absent = ((1.0 - g, (1, 0, 0)),) if g < 1 else ()
        first = (*absent, (g, (0, 0, 1)))
        if replace_one:
            return (PassGame(first, ((1.0, (1, 0, 0)),), self.releases, assumption=OPPOSED),)
        return (
            PassGame(first, (*absent, (g, (0, 1, 0))), self.releases, assumption=OPPOSED),
            PassGame((*absent, (g, (0, 1, 0))), ((1.0, (1, 0, 0)),), self.releases, assumption=SILENT),
        )

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Batches of the nearest whole size."""
        size = max(1, round(self.prob * records))
        return [rng.choice(records, size, replace=False) for _ in range(self.releases)]


@dataclass(frozen=True)
class Refilled(WithoutReplacement):
    """Such batches of a record that is taken away, so that another one is in for good: as between two records.

    The rate is that of the record.
    """

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """Between two records, whatever is asked for."""
        return super().games(replace_one=True)
