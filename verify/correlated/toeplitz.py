"""Toeplitz strategies: C_ts = c_{t-s} for t >= s, one coefficient per diagonal.

Let d_j = max_{i >= j} |c_i|, the least nonincreasing majorant, and D its Toeplitz matrix. For s < t

    |G_st| = |sum_{r < n - t} c_{r + t - s} c_r| <= sum_{r < n - t} d_{r + t - s} d_r = (D^T D)_st,

which falls as t - s grows, and as t grows with t - s fixed. The m-th step of a pattern of separation b is at least
(m - 1) b, and its distance from the l-th at least (m - l) b: term by term the pattern 0, b, 2b, ... of k steps has the
largest sum. So sens <= |D u| with u the indicator of that pattern, which is O(n k) to compute. Where c is nonnegative
and nonincreasing D is C, and the bound is attained (as in Kalinin and Lampert 2024, "Banded Square Root Matrix
Factorization for Differentially Private Model Training"). Where C has at most b diagonals columns b apart meet in no
row, G_tt falls as t grows, and sens^2 = sum_m G_mb,mb exactly, whatever the signs of c.

Coefficients carry a bound on their absolute error, charged in both directions. Sums of k nonnegative terms and their
squares over n rows are off by at most a factor (1 + 2^-53)^(2k + n + 4).
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from dpaudit.mechanisms.base import Array, Domain, keep_as_python_numbers
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.mechanisms.quoting import shown
from dpaudit.verify.correlated.participation import Participation
from dpaudit.verify.correlated.patterns import Sensitivity, Steps, between

BANDS = Domain(1, 10**6, (1, 1000), "diagonals", closed_low=True, integer=True)
ENTRY = Domain(-1e9, 1e9, (-1.0, 1.0), "entry of the strategy", closed_low=True, closed_high=True)
SMALLEST = 1e-9  # size of the largest entry, so that squares which underflow are no part of it
DECAY = Domain(0.0, 1.0, (0.1, 0.999), "factor a step", closed_low=True, closed_high=True)
Coefficients = tuple[Array, Array]  # values, and bounds on their absolute errors


def _numbers(name: str, values: object, domain: Domain) -> tuple[float, ...]:
    if not isinstance(values, tuple | list) or not len(values):
        raise ValueError(f"Expected {name}={shown(values)} to be a list of numbers in {domain}.")
    for value in values:
        domain.validate(name, value)
    return tuple(float(value) for value in values)


def square_root_coefficients(steps: int) -> Coefficients:
    """c_j = binom(2j, j)/4^j, those of (1 - x)^(-1/2): C^2 is the matrix of prefix sums.

    Each factor (2j - 1)/(2j) is rounded once, and so is each product.

    >>> square_root_coefficients(4)[0]
    array([1.    , 0.5   , 0.375 , 0.3125])
    """
    order = np.arange(1.0, steps)
    values = np.cumprod(np.concatenate([[1.0], (2 * order - 1) / (2 * order)]))
    return np.asarray(values), np.asarray(values * np.arange(steps) * (2.0 * UNIT * (1 + 1e-9)))


@dataclass(frozen=True)
class Identity:
    """Independent noise, C = I: DP-SGD without sampling."""

    name: ClassVar[str] = "identity"

    def coefficients(self, steps: int) -> Coefficients:
        """A single diagonal."""
        return np.ones(1), np.zeros(1)


@dataclass(frozen=True)
class SquareRootToeplitz:
    """The square root of the matrix of prefix sums (Fichtenberger, Henzinger and Upadhyay 2023); its bound is exact."""

    name: ClassVar[str] = "square-root-toeplitz"

    def coefficients(self, steps: int) -> Coefficients:
        """All diagonals."""
        return square_root_coefficients(steps)


@dataclass(frozen=True)
class BandedToeplitz:
    """A few diagonals: the first ones of the square root, or those given.

    Args:
        bands: How many of the square root's diagonals are kept (Kalinin and Lampert 2024).
        diagonals: Instead of `bands`: the coefficients, from the main diagonal on, such as optimised ones.

    Raises:
        TypeError, ValueError: Both or neither is given, or one is outside its domain.
    """

    name: ClassVar[str] = "banded-toeplitz"
    bands: int | None = None
    diagonals: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)
        if (self.bands is None) == (self.diagonals is None):
            raise ValueError("Expected exactly one of bands and diagonals with strategy 'banded-toeplitz'.")
        if self.diagonals is not None:
            found = _numbers("diagonals", self.diagonals, ENTRY)
            object.__setattr__(self, "diagonals", found)
            if abs(found[0]) < SMALLEST:
                raise ValueError(f"Expected the first of diagonals, {found[0]!r}, to be at least {SMALLEST:g} in size.")
        else:
            BANDS.validate("bands", self.bands)

    def coefficients(self, steps: int) -> Coefficients:
        """The diagonals that fit."""
        if self.diagonals is not None:
            values = np.array(self.diagonals[:steps])
            return values, np.zeros(len(values))
        return square_root_coefficients(min(int(self.bands or 1), steps))


@dataclass(frozen=True)
class BLT:
    """A buffered linear Toeplitz matrix: c_0 = 1, c_j = sum_i scales_i decays_i^(j - 1).

    The bound is exact where scales are not negative and add up to at most 1.

    Dvijotham, McMahan, Pillutla, Steinke and Thakurta (2024), "Efficient and Near-Optimal Noise Generation for
    Streaming Differential Privacy" (arXiv 2404.16706).

    Args:
        decays: theta, each in [0, 1].
        scales: omega, as many.

    Raises:
        TypeError, ValueError: A number is outside its domain, or the lists differ in length.
    """

    name: ClassVar[str] = "blt"
    decays: tuple[float, ...]
    scales: tuple[float, ...]

    def __post_init__(self) -> None:
        object.__setattr__(self, "decays", _numbers("decays", self.decays, DECAY))
        object.__setattr__(self, "scales", _numbers("scales", self.scales, ENTRY))
        if len(self.decays) != len(self.scales):
            raise ValueError(f"Expected as many decays ({len(self.decays)}) as scales ({len(self.scales)}).")

    def coefficients(self, steps: int) -> Coefficients:
        """All diagonals; powers are products, so that each factor is rounded once."""
        values, sizes = np.zeros(steps), np.zeros(steps)
        values[0] = sizes[0] = 1.0
        for decay, scale in zip(self.decays, self.scales, strict=True):
            powers = np.cumprod(np.concatenate([[1.0], np.full(max(steps - 2, 0), decay)]))[: steps - 1]
            values[1:] += scale * powers
            sizes[1:] += abs(scale) * powers
        # below the smallest normal float a product has an absolute error, and no relative one
        error = sizes * (np.arange(steps) + len(self.decays) + 2.0) * (UNIT * (1 + 1e-9)) + 1e-300
        error[0] = 0.0
        return values, error


def repeated(values: Array, steps: int, starts: Steps, signs: Array) -> Array:
    """C u for u with these signs at these steps: the diagonals, moved and added."""
    moved = np.zeros(steps)
    for start, sign in zip(starts, signs, strict=True):
        part = values[: steps - start]
        moved[start : start + len(part)] += sign * part
    return moved


def moved_toeplitz(coefficients: Coefficients, steps: int, apart: int, times: int) -> list[Array]:
    """|C u| row by row, from below, of contributions 1, 1, ... and 1, -1, 1, ... to the steps 0, b, 2b, ...

    Args:
        coefficients: At most one per step.
        steps: n.
        apart: b.
        times: Contributions.
    """
    values, errors = coefficients
    starts, ones = np.arange(times, dtype=np.int64) * apart, np.ones(times)
    doubt = repeated(errors, steps, starts, ones) * (1.0 + 1e-9)
    rounding = (times + 1) * UNIT * repeated(np.abs(values), steps, starts, ones)
    moved = [np.abs(repeated(values, steps, starts, signs)) for signs in (ones, ones * (-1.0) ** np.arange(times))]
    return [np.maximum(row - doubt - rounding, 0.0) for row in moved]


def toeplitz_sensitivity(coefficients: Coefficients, steps: int, participation: Participation) -> Sensitivity:
    """sens of a Toeplitz strategy; see the module for when the bounds meet.

    Args:
        coefficients: At most one per step.
        steps: n.
        participation: The schema, without sampling.
    """
    values, errors = coefficients
    apart, times = participation.spacing(steps)
    pattern = np.arange(times, dtype=np.int64) * apart
    ones = np.ones(times)
    largest = np.abs(values) + errors
    if len(values) <= apart:
        squares = np.cumsum(largest**2)
        upper = math.fsum(squares[np.minimum(steps - pattern, len(values)) - 1])
    else:
        majorant = np.maximum.accumulate(largest[::-1])[::-1]
        upper = float(np.sum(repeated(majorant, steps, pattern, ones) ** 2))
    lower = max(float(np.sum(moved**2)) for moved in moved_toeplitz(coefficients, steps, apart, times))
    return between(lower, upper, pattern, (2 * times + steps + 16) * UNIT)


def column_lengths(coefficients: Coefficients, steps: int) -> tuple[Array, Array]:
    """Bounds on the columns' l2 lengths, from below and above: column t has the diagonals that fit under it."""
    values, errors = coefficients
    fits = np.minimum(steps - np.arange(steps), len(values)) - 1
    error = (steps + 8) * UNIT
    low = np.cumsum(np.maximum(np.abs(values) - errors, 0.0) ** 2)[fits]
    high = np.cumsum((np.abs(values) + errors) ** 2)[fits]
    return np.sqrt(low * (1.0 - error)) * (1.0 - 4 * UNIT), np.sqrt(high * (1.0 + error)) * (1.0 + 4 * UNIT)
