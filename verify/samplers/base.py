"""What a sampler is: who is in which release, as data, with what its privacy analysis needs."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

Batches = list[NDArray[np.int_]]
Slots = tuple[tuple[float, tuple[int, int, int]], ...]


@dataclass(frozen=True)
class PassGame:
    """A pair of laws of the releases of one pass, along the direction of the record's contribution.

    A law is a mixture: with each weight, so many releases have their noise around 0, 1 and 2 contributions, in an order
    that is uniformly random. What is told apart is then the histogram of the releases, whatever their order.

    Args:
        first: The law with the record, ((weight, (releases around 0, around 1, around 2)), ...).
        second: The law without it, or with another value of it.
        passes: How many independent passes there are.
        stretch: Factor on all contributions: the same order in E passes is one pass with sqrt(E), for normal noise; of
            other noise as many releases as its square are told together.
        assumption: How the other records contribute.
    """

    first: Slots
    second: Slots
    passes: int
    stretch: float = 1.0
    assumption: str = ""


class Sampler(Protocol):
    """One way of choosing who is in which release.

    Args:
        kind: Its name in claims files.
        summary: What it does, in a few words.
        typical: Keys of a small one, which conformance tests run.
    """

    kind: ClassVar[str]
    summary: ClassVar[str]
    typical: ClassVar[dict[str, Any]]

    @property
    def steps(self) -> int:
        """Releases of a whole history."""

    @property
    def rate(self) -> float:
        """Public size of a batch over that of the data: what a release is divided by, whatever its batch was."""

    @property
    def meetings(self) -> int:
        """The most releases that one record costs: of normal noise, k times in one batch are as many as k^2 batches.

        Of other noise that holds where no record is in one batch twice, and of no other is it asked.
        """

    @property
    def meets_twice(self) -> bool:
        """Whether a record can be in one batch twice."""

    @property
    def keeps_others(self) -> bool:
        """Whether the batches of the others do not depend on the record, so that add-remove has a meaning."""

    def games(self, *, replace_one: bool) -> Sequence[PassGame]:
        """Pairs of laws that neighbours can have, for lower bounds; () where other theorems give them."""

    def draw(self, rng: np.random.Generator, records: int) -> Batches:
        """Who is in each release of one history: indices in 0..records-1, an array per release."""
