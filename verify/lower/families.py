"""Families of shifts a record may cause, as groups of equal coordinates; every one is checked against the clip norm.

Moments of iid noise say which shape to expect: sum h(|v_i|) over |v|_p <= C is largest for equal coordinates where h is
concave in |v_i|^p, for one coordinate where it is convex, and for two levels where it is neither, as for exp(-|x|^beta)
noise with beta = p > 2 in a few dozen coordinates: one large coordinate and all others small. Noise with a hidden
scale is searched with equal coordinates only: its cells are an average over the scale of convolutions, each as dear as
one of independent coordinates.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Mechanism
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Witness

Group = tuple[float, int]

ONE_EVENT = "definition of delta: P(S) - e^epsilon Q(S) of one event S for one feasible pair of neighbours"
SHRINK = 1.0 - 16.0 * UNIT  # so that rounding cannot leave the ball
NORM_ERROR = 6.0 * UNIT  # a division, two powers and two products; the power's amplification is undone by the root
MAX_COORDINATES = 2**31  # beyond it the rounding of their masses adds up to percents
GROUPS = 16  # of the majorization shift
HIGH_COUNTS, LOW_COUNTS = (1, 2, 4, 8), (1, 3, 10, 100, 1000)  # coordinates at the higher and at the lower level
HIGH_SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # of clip^p at the higher level


@dataclass(frozen=True)
class Shift:
    """A shift v of the output in groups of equal coordinates; coordinates in no group are not moved.

    Args:
        family: "equal", "two-level" or "majorization"; free text for a shift that was read.
        groups: (value, count) each.
        norm: The l_p norm, rounded up, at most the clip.
    """

    family: str
    groups: tuple[Group, ...]
    norm: float

    @property
    def coordinates(self) -> int:
        """How many coordinates are moved."""
        return sum(count for _, count in self.groups)

    @property
    def length(self) -> float:
        """The l2 norm, rounded down; exact for one coordinate."""
        if self.coordinates == 1:
            return self.groups[0][0]
        top = max(value for value, _ in self.groups)
        squares = math.fsum(count * (value / top) ** 2 for value, count in self.groups)
        return top * math.sqrt(squares) * (1.0 - NORM_ERROR)

    def witness(self, claim: Claim, way: str, event: str) -> Witness:
        """The neighbours that it sets apart, "remove" or "add" by `way`; both are "swap" where records are replaced."""
        return Witness(
            family=self.family,
            coordinates=self.coordinates,
            norm=self.norm,
            shift=[[value, count] for value, count in self.groups],
            direction="swap" if claim.adjacency == "replace-one" else way,  # type: ignore[arg-type]
            event=event,
        )


def group_norm(groups: Sequence[Group], p: float) -> float:
    """l_p norm of a shift in groups, (sum count value^p)^(1/p), rounded up; the largest value for p = inf.

    Example:
        >>> round(group_norm([(3.0, 1), (1.0, 16)], 2.0), 12)
        5.0
    """
    top = max(value for value, _ in groups)
    if math.isinf(p):
        return top
    powers = math.fsum(count * (value / top) ** p for value, count in groups)
    return top * math.pow(powers, 1.0 / p) * (1.0 + NORM_ERROR)


def feasible(mechanism: Mechanism, groups: Sequence[Sequence[float]], family: str) -> Shift:
    """A shift of given values and counts, checked: a clipped record can cause it.

    Args:
        mechanism: Its clip, clip_norm and dimension.
        groups: [value, count] each.
        family: Its name.

    Raises:
        ValueError: A value or count is not positive, there are more coordinates than the mechanism is known to have,
            or the norm exceeds the clip.

    Example:
        >>> from dpaudit.mechanisms import Laplace
        >>> feasible(Laplace(2.0, dimension=3), [[0.9, 1], [0.3, 2]], "two-level").coordinates
        3
        >>> feasible(Laplace(2.0, dimension=3), [[0.9, 1], [0.5, 2]], "two-level")  # doctest: +ELLIPSIS
        Traceback (most recent call last):
            ...
        ValueError: Expected shift norm=1.144552... to be at most clip=1.0.
    """
    if not groups:
        raise ValueError("Expected a shift of at least one group.")
    for value, count in groups:
        if not 0 < value < math.inf:
            raise ValueError(f"Expected shift value={value!r} in (0, inf).")
        if count < 1 or count != math.floor(count):
            raise ValueError(f"Expected shift count={count!r} in the integers of [1, inf).")
    kept = tuple((float(value), int(count)) for value, count in groups)
    limit, coordinates = max(mechanism.dimension or 1, 1), sum(count for _, count in kept)
    if coordinates > limit:
        raise ValueError(f"Expected coordinates={coordinates} in [1, {limit}].")
    norm = group_norm(kept, mechanism.clip_norm)
    if not norm <= mechanism.clip:
        raise ValueError(f"Expected shift norm={norm!r} to be at most clip={mechanism.clip!r}.")
    return Shift(family, kept, norm)


def scaled(mechanism: Mechanism, shape: Sequence[Group], family: str, share: float = 1.0) -> Shift:
    """A shift of given proportions, scaled to `share` times the clip.

    Args:
        mechanism: Its clip, clip_norm and dimension.
        shape: (value, count) each, in any unit.
        family: Its name.
        share: In (0, 1].
    """
    unit = mechanism.clip * share / group_norm(shape, mechanism.clip_norm) * SHRINK
    return feasible(mechanism, [(value * unit, count) for value, count in shape], family)


def equal(mechanism: Mechanism, coordinates: int) -> Shift:
    """The longest shift of equal coordinates: clip / coordinates^(1/p) each."""
    return scaled(mechanism, [(1.0, coordinates)], "equal")


def carried(shift: Shift, owner: Mechanism, mechanism: Mechanism) -> Shift:
    """A phase's shift in its proportions for another phase, as far out in that one's ball as in its own.

    Args:
        shift: Feasible for `owner`.
        owner: The first phase's mechanism.
        mechanism: Another phase's.
    """
    if (owner.clip, owner.clip_norm) == (mechanism.clip, mechanism.clip_norm):
        return feasible(mechanism, shift.groups, shift.family)
    return scaled(mechanism, shift.groups, shift.family, min(shift.norm / owner.clip, 1.0))


def two_level(mechanism: Mechanism, most: int) -> list[Shift]:
    """Shifts of a few large coordinates and more small ones; none under p = inf, where all at the clip are worst.

    Args:
        mechanism: Its clip and clip_norm.
        most: Coordinates that may be moved.

    Example:
        >>> from dpaudit.mechanisms import Laplace
        >>> found = two_level(Laplace(1.0, dimension=2), 2)
        >>> [(round(high, 2), round(low, 2)) for (high, _), (low, _) in (shift.groups for shift in found)]
        [(0.84, 0.55), (0.95, 0.32)]
    """
    p = mechanism.clip_norm
    if math.isinf(p):
        return []
    shifts = []
    for first in HIGH_COUNTS:
        for second in sorted({*LOW_COUNTS, most - first}):
            if not 1 <= second <= most - first:
                continue
            for share in HIGH_SHARES:
                high, low = (share / first) ** (1.0 / p), ((1.0 - share) / second) ** (1.0 / p)
                if high > 1.1 * low:
                    shifts.append(scaled(mechanism, [(high, first), (low, second)], "two-level"))
    return shifts


def majorization(mechanism: Mechanism, most: int) -> list[Shift]:
    """The shift x_i = sqrt(i) - sqrt(i-1) scaled to the clip; in a group values are rounded down to its smallest.

    The set {v: sorted |v| is weakly majorized by C x} contains the l2 ball, but x itself is longer than C (1.88 C in
    26,000 coordinates), so that as a witness it must be rescaled.

    Args:
        mechanism: Its clip and clip_norm.
        most: Coordinates that may be moved.

    Example:
        >>> from dpaudit.mechanisms import Laplace
        >>> [(round(v, 3), m) for v, m in majorization(Laplace(1.0, dimension=3), 3)[0].groups]
        [(0.886, 1), (0.367, 1), (0.282, 1)]
    """
    if most < 3:
        return []
    whole = np.arange(1, most + 1) if most <= GROUPS else np.rint(np.geomspace(1, most, GROUPS))
    ends = np.unique(whole.astype(np.int64))
    counts = np.diff(ends, prepend=0)
    values = 1.0 / (np.sqrt(ends) + np.sqrt(ends - 1.0))
    shape = [(float(value), int(count)) for value, count in zip(values, counts, strict=True)]
    return [scaled(mechanism, shape, "majorization")]
