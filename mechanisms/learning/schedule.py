"""Noise and clipping that change from step to step, fixed before training: a mechanism for every step.

The privacy of a step depends on the ratio of its noise to its clip alone (lap2, Section V, "Adaptive Clipping"), so
clips and noise may follow any two curves; the history that is accounted lists every pair that occurred, with how often.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, cast

import numpy as np

from dpaudit.mechanisms.base import Domain, Mechanism, at_clip

_LEVELS = Domain(1, 1e6, (2, 10), "different values", closed_low=True, integer=True)
FIXED_FIELDS = ("clip_norm", "dimension")  # of all steps: one geometry, one model


@dataclass(frozen=True)
class Decay:
    """A rule: `levels` values from start to end in equal ratios, each for an equal stretch of the steps.

    value_j = start (end / start)^(j / (levels - 1)), j = floor(step levels / steps).

    Args:
        start: First value, > 0.
        end: Last value, > 0.
        levels: How many different values, at least 1; every one is a phase of its own in the accounting.

    Raises:
        ValueError: A value is outside its domain.

    >>> Decay(4.0, 1.0, 3).values(6).tolist()
    [4.0, 4.0, 2.0, 2.0, 1.0, 1.0]
    """

    start: float
    end: float
    levels: int

    def __post_init__(self) -> None:
        for name in ("start", "end"):
            Domain(0.0, np.inf, (0.1, 10.0), "value").validate(name, getattr(self, name))
        _LEVELS.validate("levels", self.levels)

    def values(self, steps: int) -> np.ndarray[Any, np.dtype[np.float64]]:
        """One value per step, shape (steps,)."""
        levels = np.geomspace(self.start, self.end, self.levels) if self.levels > 1 else np.array([self.start])
        return levels[np.arange(steps) * self.levels // steps]


Curve = Sequence[float] | Decay


def step_mechanisms(mechanism: Mechanism, steps: int, curves: Mapping[str, Curve]) -> tuple[Mechanism, ...]:
    """The mechanism of every step.

    Args:
        mechanism: What does not change.
        steps: T, at least 1.
        curves: By the name of a parameter (`clip`, or one of the noise): T numbers, or a rule.

    Returns:
        T mechanisms, equal ones identical in every field.

    Raises:
        ValueError: A parameter that the mechanism has not or that is fixed, another count of numbers than T, or a
            value outside the parameter's domain; the message names it.

    >>> from dpaudit.mechanisms import Laplace
    >>> [m.scale / m.clip for m in step_mechanisms(Laplace(4.0), 2, {"clip": [1.0, 0.5], "scale": [4.0, 2.0]})]
    [4.0, 4.0]
    """
    known = [field.name for field in fields(cast(Any, mechanism)) if field.name not in FIXED_FIELDS]
    columns: dict[str, list[float]] = {}
    for name, curve in curves.items():
        if name not in known:
            raise ValueError(f"Expected schedule.{name} to be one of {', '.join(known)}, which {mechanism.name} has.")
        column = curve.values(steps).tolist() if isinstance(curve, Decay) else list(curve)
        if len(column) != steps:
            raise ValueError(
                f"Expected schedule.{name} of {len(column)} numbers to have one for each of {steps} steps."
            )
        columns[name] = column
    rows = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    mechanisms: list[Mechanism] = []
    for step, row in enumerate(rows or [{}] * steps):
        try:
            mechanisms.append(cast(Mechanism, replace(cast(Any, mechanism), **row)))
        except (TypeError, ValueError) as error:
            raise ValueError(f"schedule, step {step}: {error}") from error
    return tuple(mechanisms)


def occurrences(mechanisms: Sequence[Mechanism]) -> dict[Mechanism, int]:
    """How often each mechanism occurred, in the order of first occurrence: the history's phases.

    Their order does not matter to what they cost together: composition commutes. Nor does the unit of length: clip and
    noise multiplied by one number multiply the release by it. So mechanisms whose noise is the same in units of their
    clip, to fourteen digits, count as one; the one with the least noise is kept.

    >>> from dpaudit.mechanisms import Laplace
    >>> list(occurrences([Laplace(1.0), Laplace(2.0), Laplace(1.0)]).values())
    [2, 1]
    >>> occurrences([Laplace(4.0, clip=1.0), Laplace(2.0, clip=0.5)])
    {Laplace(scale=4.0, clip=1.0, clip_norm=2.0, dimension=None): 2}
    """
    counts: dict[Mechanism, int] = {}
    for mechanism in mechanisms:
        counts[mechanism] = counts.get(mechanism, 0) + 1
    groups: dict[Any, list[Mechanism]] = {}
    for mechanism in counts:
        groups.setdefault(_in_clips(mechanism), []).append(mechanism)
    return {min(group, key=_noise_in_clips): sum(map(counts.__getitem__, group)) for group in groups.values()}


def _in_clips(mechanism: Mechanism) -> Any:
    """What the mechanism is in units of its clip; itself where those are beyond the range of floats."""
    try:
        unit = at_clip(mechanism, 1.0)
    except (ValueError, OverflowError):
        return mechanism
    noise = tuple(f"{float(getattr(unit, name)):.14g}" for name in mechanism.domains)
    return type(mechanism), noise, unit.clip_norm, unit.dimension


def _noise_in_clips(mechanism: Mechanism) -> float:
    """A number that grows with the noise per clip, among mechanisms that are alike in all else."""
    return math.prod(
        (float(getattr(mechanism, name)) / float(mechanism.clip) ** domain.length_power) ** domain.length_power
        for name, domain in mechanism.domains.items()
    )
