"""Fixed batches in a fixed order."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from dpaudit.mechanisms.base import keep_as_python_numbers
from dpaudit.verify.samplers.base import Batches, PassGame
from dpaudit.verify.samplers.shuffled import BATCHES, EPOCHS


@dataclass(frozen=True)
class Deterministic:
    """Every record in one known batch of every pass.

    Args:
        batches: Batches of one pass.
        epochs: Passes, at least 1.

    Raises:
        ValueError: A field is outside its domain.
    """

    kind: ClassVar[str] = "deterministic"
    summary: ClassVar[str] = "fixed batches in a fixed order, each record once a pass"
    typical: ClassVar[dict[str, Any]] = {"batches": 4, "epochs": 3}
    meets_twice: ClassVar[bool] = False
    batches: int
    epochs: int

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        BATCHES.validate("batches", self.batches)
        EPOCHS.validate("epochs", self.epochs)

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
        """No: without the record all records behind it move up."""
        return False

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """One release a pass, known: as many releases without sampling are exactly as private."""
        return ()

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """The same in every pass; nothing is drawn."""
        return np.array_split(np.arange(records), self.batches) * self.epochs
