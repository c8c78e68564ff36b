"""The papers' own formulas, as printed (mechanisms/published)."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.published import ACCOUNTANTS


@dataclass(frozen=True)
class Published:
    """A published formula, by the name a claim's `accountant` may have; its numerical error is taken in its favour.

    Args:
        name: Such as "lap2-theorem-iii.7".
        settings: Of the formula, such as {"max_order": 80}, where its own are not wanted.

    Raises:
        ValueError: An unknown name.
    """

    name: str
    settings: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if self.name not in ACCOUNTANTS:
            raise ValueError(f"Expected accountant={self.name!r} to be one of {', '.join(ACCOUNTANTS)}.")

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float:
        """epsilon at delta of `steps` releases.

        Raises:
            TypeError, ValueError: The theorem does not speak about the mechanism.
        """
        value = ACCOUNTANTS[self.name](
            mechanism, sampling_prob=sampling_prob, steps=steps, delta=delta, **self.settings
        )
        return value.epsilon + value.error
