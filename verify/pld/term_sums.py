"""Sums of independent worst terms of a pass over shuffled batches, on a lattice, from above.

E (Y - k)_+ of a term Y is known at every k (`verify/pld/shuffled_pass.py`). Y is replaced by a variable on the
multiples of a step h whose excess is the same at some of them, L = first to K = last, and linear between: convex
functions lie below chords, so it is convexly larger, and so is a sum. Below L it is moved up to L. What is above K
costs E (Y - K)_+ for every term, and an excess that came out too small by d costs d for every term.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Self

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.fourier import Lattice, Tilted, log_mgf, mixed_power
from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass
from dpaudit.verify.results import Direction

POINTS = 8.0  # of the lattice, in a deviation of Y: rounding adds 0.3% to its variance
WIDTH, MOST_POINTS = 24.0, 2.0**18  # deviations of the sum that are represented, and by how many points
LONGEST = 2.0**19  # places of a sum: beyond, Chernoff's bound stands for it
CORE, GROWTH = 400, 0.01  # multiples around the mean, all of them, and a ladder outside
FARTHEST, MOST_PLACES = 2.0**15, 2.0**14  # deviations of Y, and multiples of the step, at most
GENTLE, ENDS = 5e-3, 20.0  # deviation of Y below which K and L are so many of them from its mean
TRIED_ENDS = 48  # K that are tried
TILTS = 10  # that are tried


def _knots(mean: float, low: float, high: float, step: float) -> Array:
    """Multiples of the step from low to high: all near the mean, then a ladder."""
    centre = round(mean / step)
    sides = []
    for end in (centre - math.floor(low / step), math.ceil(high / step) - centre):
        last = max(end, 2)
        ladder = np.geomspace(CORE, last, 2 + int(math.log(last / CORE) / GROWTH)) if last > CORE else np.empty(0)
        sides.append(np.unique(np.concatenate([np.arange(1.0, min(CORE, last) + 1.0), np.rint(ladder)])))
    return np.concatenate([centre - sides[0][::-1], [float(centre)], centre + sides[1]])


@dataclass(frozen=True, eq=False)
class Term:
    """Y on the multiples of a step.

    Args:
        lattice: Masses there.
        step: Between neighbouring places.
        added: To a mean's E (...)_+.
        sizes: What `of_size` found.
    """

    lattice: Lattice
    step: float
    added: float
    sizes: dict[int, tuple[NDArray[np.complex128], Array, Array]] = field(default_factory=dict)

    @cached_property
    def masses(self) -> Tilted:
        """Masses for sums of draws."""
        return Tilted.of(self.lattice, 0.0)

    def of_size(self, size: int) -> tuple[NDArray[np.complex128], Array, Array]:
        """(transform, tilts, log E e^(tilt Y)) for windows of that size."""
        if size not in self.sizes:
            tilts = np.geomspace(0.5, 3000.0, TILTS) / size
            self.sizes[size] = self.masses.transform(size), tilts, log_mgf(self.lattice, tilts)
        return self.sizes[size]


def _ends(part: ShuffledPass | CurvePass, growth: float, direction: Direction, least: float) -> tuple[float, float]:
    """The least and the largest Y that are told apart."""
    spread = part.spread(direction)
    low, high = part.ends(growth, direction)
    low = min(1.0 - growth - 6.0 * spread, low)
    far = (ENDS if spread < GENTLE else FARTHEST) * spread  # gentle ones are nearly normal
    low, high = max(low, 1.0 - growth - far), min(high, 1.0 - growth + far)
    if least > 0.0 and high > spread:
        ends = np.geomspace(spread, high, TRIED_ENDS)
        enough = part.excess(ends, growth, direction)[0] <= least
        high = float(ends[int(np.argmax(enough))]) if enough.any() else high
    return low, high


def _term(
    part: ShuffledPass | CurvePass, growth: float, direction: Direction, ends: tuple[float, float], step: float
) -> Term:
    """Y on a lattice."""
    places = _knots(1.0 - growth, *ends, step)
    levels = places * step
    values, error = part.excess(levels, growth, direction)
    beyond = float(values[-1] + error[-1])
    slopes = np.diff(values - values[-1]) / np.diff(levels)
    masses = np.maximum(np.concatenate([[0.0], np.diff(slopes), [-slopes[-1]]]), 0.0)
    masses[0] = max(0.0, 1.0 - float(masses.sum()))
    masses *= 1.0 + 2.0 * UNIT * len(masses)  # at least 1 in all
    # the excess that these masses have, from above: sums of terms of one sign
    tails = np.cumsum(masses[:0:-1])
    reached = np.append(np.cumsum(tails * np.diff(levels)[::-1])[::-1], 0.0)
    short = float(np.max(values + error - beyond - reached * (1.0 - 4.0 * UNIT * len(masses))))
    grid = np.zeros(int(places[-1] - places[0]) + 1)
    grid[(places - places[0]).astype(np.int64)] = masses
    return Term(Lattice(grid, int(places[0])), step, beyond + max(short, 0.0))


@dataclass(frozen=True, eq=False)
class TermSum:
    """A sum of independent Y, on the multiples of a step.

    Args:
        terms: How many.
        step: Between neighbouring places.
        places, masses: Whole numbers that are told apart, and upper bounds on the masses there but for the noise. Empty
            where the sum usually lies so far below 0 that they are too many.
        noise: Of the masses, in the mean square.
        tilts, exponents: Some tilts, and log E e^(tilt (sum - end)), end the first place beyond.
        added: To E (...)_+ for every term.
    """

    terms: int
    step: float
    places: Array
    masses: Array
    noise: float
    tilts: Array
    exponents: Array
    added: float

    @classmethod
    def of(cls, term: Term, terms: int) -> Self:
        """Of so many terms."""
        one, places = term.lattice, term.lattice.first + np.arange(len(term.lattice.masses), dtype=np.float64)
        mean = float(one.masses @ places)
        deviation = math.sqrt(terms * max(float(one.masses @ (places - mean) ** 2), 1e-12))
        start = math.floor(min(terms * mean - WIDTH / 2.0 * deviation, 0.0) + 1.2 * min(places[0], 0.0)) - 1
        reach = max(terms * mean + WIDTH / 2.0 * deviation, 0.0) + 1.2 * places[-1] + 2.0
        if reach - start > LONGEST:
            tilts = np.geomspace(1e-2, 1e2, 60) / deviation
            exponents = terms * log_mgf(one, tilts)
            return cls(terms, term.step, np.empty(0), np.empty(0), 0.0, tilts, exponents, term.added)
        size = 1 << math.ceil(math.log2(reach - start))
        transform, tilts, moments = term.of_size(size)
        power = mixed_power([(term.masses, transform)], [(1.0, [terms])], size)
        end, scale = start + size, math.exp(power.log_scale) * (1.0 + power.relative + UNIT * size)
        return cls(
            terms,
            term.step,
            np.arange(start, end, dtype=np.float64),
            np.maximum(np.roll(power.values, -(start % size)), 0.0) * scale,
            power.error_l2 * scale,
            tilts,
            terms * moments - tilts * end,
            term.added,
        )

    def excess(self, more: float = 0.0) -> float:
        """Upper bound on E (more + sum)_+, more >= 0."""
        further = more / self.step * (1.0 + 2.0 * UNIT)
        gains = np.maximum(self.places + further, 0.0)
        inside, noise = float(self.masses @ gains), self.noise * math.sqrt(float(gains @ gains))
        # what wraps around from below only adds; u <= e^(tilt u)/(e tilt) of what lies above the window
        end = float(gains[-1]) + 1.0 if len(gains) else 0.0
        exponents = self.exponents + (0.0 if len(gains) else self.tilts * further)
        slack = 64.0 * UNIT * (np.abs(self.exponents) + self.tilts * further) + 1e-9
        beyond = float(np.min((end + 1.0 / (math.e * self.tilts)) * np.exp(np.minimum(exponents + slack, 600.0))))
        return ((inside + noise + beyond) * self.step * (1.0 + 1e-13) + self.terms * self.added) * (1.0 + 4.0 * UNIT)


def term_sums(
    part: ShuffledPass | CurvePass,
    growth: float,
    counts: Sequence[int],
    direction: Direction,
    points: float = POINTS,
    least: float = 0.0,
) -> list[TermSum]:
    """Sums of so many independent Y.

    Args:
        part: The pass.
        growth: e^epsilon, at least 1.
        counts: How many, ascending.
        direction: Which law comes first.
        points: Of the lattice, in a deviation of Y.
        least: Of E (Y - k)_+, what may be added to a mean's instead of telling larger Y apart.
    """
    spread, ends = part.spread(direction), _ends(part, growth, direction, least)
    found, term = list[TermSum](), None
    for count in counts:
        finest = max(spread / points, (ends[1] - ends[0]) / MOST_PLACES)
        step = max(finest, spread * WIDTH * math.sqrt(count) / MOST_POINTS)
        if term is None or term.step != step:
            term = _term(part, growth, direction, ends, step)
        found.append(TermSum.of(term, count))
    return found
