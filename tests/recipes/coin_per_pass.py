"""A coin per pass: every record in the first or the second half of each pass, by a coin of its own."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import EPOCHS


@dataclass(frozen=True)
class CoinPerPass:
    """Two batches a pass, and a fair coin for each record and pass.

    Args:
        epochs: Passes, at least 1.

    Raises:
        ValueError: epochs is outside its domain.

    >>> CoinPerPass(3).steps
    6
    """

    kind: ClassVar[str] = "coin-per-pass"
    summary: ClassVar[str] = "each record in one half of every pass, by a coin"
    typical: ClassVar[dict[str, Any]] = {"epochs": 3}
    meets_twice: ClassVar[bool] = False
    epochs: int

    def __post_init__(self) -> None:
        EPOCHS.validate("epochs", self.epochs)

    @property
    def steps(self) -> int:
        """Two a pass."""
        return 2 * self.epochs

    @property
    def rate(self) -> float:
        """A half."""
        return 0.5

    @property
    def meetings(self) -> int:
        """One a pass."""
        return self.epochs

    @property
    def keeps_others(self) -> bool:
        """Yes: everybody draws alone."""
        return True

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """The others are silent."""
        if replace_one:
            return ()
        return (PassGame(((1.0, (1, 1, 0)),), ((1.0, (2, 0, 0)),), self.epochs, assumption="the others are silent"),)

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Halves of random sizes."""
        coins = [rng.integers(0, 2, records) for _ in range(self.epochs)]
        return [np.flatnonzero(coin == side) for coin in coins for side in (0, 1)]
