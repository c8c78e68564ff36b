"""What a published accountant answers."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class PublishedValue:
    """The epsilon a paper's own formula gives, right or wrong.

    Args:
        epsilon: The formula's value, in [0, inf]; infinite where the formula gives no finite one.
        settings: Everything that went into it beyond the mechanism: the order at which a minimum was taken, the
            paper's free parameters, meshes, and the reason if the formula is undefined there.
        error: Bound on the distance between `epsilon` and the exact value of the formula (rounding, grouped
            coordinates, sampling), in [0, inf]. It says nothing about the formula being right.
    """

    epsilon: float
    settings: Mapping[str, float | str] = field(default_factory=dict)
    error: float = 0.0
