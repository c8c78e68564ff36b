"""Large losses that few releases of a history have, counted apart from the sum of all others.

A record that is hardly ever drawn has losses near 0, and once in millions of releases a large one: no grid suits both,
and no tilt of their sum. With s the losses of a release up to a cut and b those above, measures under convolution, a
history of T releases has

    (s + b)^T <= s^T + T b s^(T-1) + binom(T, 2) b^2 (s + b)^(T-2),

as binom(T, k) <= binom(T, 2) binom(T-2, k-2) for k >= 2; releases that differ likewise. The last term has a mass of
(T |b|)^2 / 2 at most, which is taken for infinite. The middle one's delta is T sum_l b(l) D_(T-1)(epsilon - l), where
D_n(x) is that of s^n at x, positive or not. With A = sum_l s(l) and B = sum_l s(l) e^(-l), and as D_n is convex in e^x,

    D_T(x) = sum_l s(l) D_(T-1)(x - l) >= A D_(T-1)(x + log(B/A)),

so that one transform serves both: D_(T-1)(x) <= D_T(x + log(A/B)) / A, and chords between values bound the rest.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import logsumexp

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.curve_pairs import chords
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.loss_grid import GridMasses, SampledPair, cell_masses, dots
from dpaudit.verify.results import Direction

ATOMS = 512  # of a release's large losses
TWICE = 1e-4  # mass of two large losses in one history, over delta
BEYOND = 1e-5  # mass over the whole history that may go to an infinite loss, over delta
LARGE = 1e-3  # error of the masses of a history, relative
WORTH = 0.2  # of the width of all losses: where those that are not rare have more, one grid serves all
OWN = 100.0  # times both: what is less is looked at with one grid for all losses
BLOCK = 512  # epsilons that are looked at together
MANY = 128  # epsilons of one question, from which on delta is known at places, whatever is asked next
BULK, FAR = 8.0, 12.0  # deviations of the usual losses below and above 0 whose delta is known at places of its own
FARTHEST = 1e4  # times as far: beyond, delta is taken for that there
FINE = 0.004  # between these places, in deviations and then relative


@dataclass(frozen=True)
class RareLosses:
    """Losses of one release above all those of its grid, as atoms.

    Args:
        losses: Ascending.
        masses: Under the first law, rounded up.
        infinite: Mass that is taken for an infinite loss.
    """

    losses: Array
    masses: Array
    infinite: float

    def beside(self, other: "RareLosses", chance: float) -> "RareLosses":
        """These, and others that a release has with a probability."""
        losses = np.concatenate([self.losses, other.losses])
        order = np.argsort(losses, kind="stable")
        masses = np.concatenate([self.masses, chance * other.masses])
        return RareLosses(losses[order], masses[order], self.infinite + chance * other.infinite)


NONE = RareLosses(np.zeros(0), np.zeros(0), 0.0)


@dataclass(frozen=True)
class WithRareLosses:
    """The total privacy loss of a history whose releases have rare losses besides those of their grids.

    Args:
        usual: Of the losses on the grids, with all that is taken for infinite.
        losses: Rare losses, less log(A/B) of their release where that is negative.
        expected: How many of each a history has, over A.
        delta_claimed: Where the bound is to be tight.
        together: The history on one grid for all losses, made when a query needs it.
    """

    usual: Composed
    losses: Array
    expected: Array
    delta_claimed: float
    together: Callable[[], Composed]

    def delta(self, epsilon: Array) -> Array:
        """Upper bound on delta at each epsilon.

        Args:
            epsilon: Any 1-d array.
        """
        found = self._apart(epsilon) if len(epsilon) <= MANY else chords(self._values[0], self._all_values, epsilon)
        small = found < OWN * (TWICE + BEYOND) * self.delta_claimed
        if small.any():
            found[small] = np.minimum(found[small], self.together().delta(epsilon[small]))
        return np.minimum(found, 1.0)

    def _apart(self, epsilon: Array) -> Array:
        """Of the usual losses, with or without one of the rare ones."""
        found = self.usual.delta(epsilon)
        for block in np.array_split(np.arange(len(epsilon)), -(-len(epsilon) // BLOCK)) if len(epsilon) else ():
            apart = epsilon[block][:, None] - self.losses
            found[block] += chords(*self._values, apart) @ self.expected * (1.0 + 1e-12)
        return found

    @cached_property
    def _all_values(self) -> Array:
        """Of `_apart` at the places of `_values`."""
        return self._apart(self._values[0])

    @cached_property
    def _values(self) -> tuple[Array, Array]:
        """Places x, ascending, and the delta of the usual losses there."""
        unit = self.usual.deviation * self.usual.step
        near = unit * np.arange(-BULK, FAR, FINE)
        x = np.concatenate([near, near[-1] * np.exp(FINE * np.arange(1.0, math.log(FARTHEST) / FINE))])
        return x, self.usual.delta(x)


def rare_losses(first: Array, second: Array, first_error: Array, second_error: Array, edges: Array) -> RareLosses:
    """Connect the dots on cells of large losses, the last of which is unbounded.

    Args:
        first, second: Masses of the cells under both laws, with their errors, shape (n,).
        first_error, second_error: Bounds on these.
        edges: Losses at the lower ends of the cells, ascending, shape (n,).
    """
    up, down = dots(first, second, first_error, second_error, edges, np.append(np.diff(edges), np.inf))
    return RareLosses(edges, (down + np.append(0.0, up[:-1])) * (1.0 + 4 * UNIT), float(up[-1]))


def rare_edges(first: float, last: float) -> Array:
    """Losses from where the grid ends to one beyond which all are taken for infinite."""
    if last <= first:
        return np.array([first])
    edges = np.geomspace(first, last, ATOMS)
    edges[0] = first  # the very loss where the grid ends
    return np.asarray(edges)


def without_rare(
    sampled: SampledPair, cells: GridMasses, whole: SampledPair, step: float, direction: Direction
) -> tuple[GridMasses, RareLosses]:
    """A release's cells without the one of its rare losses, and these.

    Args:
        sampled: The release, cut off below them.
        cells: Of that on a grid.
        whole: The release, cut off where what is beyond is taken for infinite.
        step: Of the grid.
        direction: "add", where the record is always drawn, has them at the other end; else they are no larger there
            than others.
    """
    if direction == "add" and sampled.sampling_prob < 1:
        return cells, NONE
    sign, place = (-1.0, 0) if direction == "add" else (1.0, -1)
    first = float(sign * cells.edges[place] * step)
    last = abs(float(whole.outer(np.array([sign * whole.cutoff]))[0]))
    edges = rare_edges(first, last)
    masses = cell_masses(whole, whole.inner(edges if sign > 0 else -edges[::-1]))
    laws = [column[1:] if sign > 0 else column[:-1][::-1] for column in masses]
    p, q, p_error, q_error = laws if sign > 0 else (laws[1], laws[0], laws[3], laws[2])
    emptied = {name: getattr(cells, name).copy() for name in ("first", "second", "first_error", "second_error")}
    for column in emptied.values():
        column[place] = 0.0
    return replace(cells, **emptied), rare_losses(p, q, p_error, q_error, edges)


def with_rare_losses(
    parts: list[tuple[Lattice, int, RareLosses]],
    step: float,
    infinite: float,
    slack: float,
    delta: float,
    together: Callable[[], Composed],
) -> WithRareLosses | Composed:
    """The total privacy loss of releases with their rare losses; on one grid where errors of their masses are large.

    Args:
        parts: Grids of one release each without its rare losses, the number of such releases, and these.
        step: Grid step.
        infinite: Mass of an infinite loss besides theirs, over the whole history.
        slack: How far the total loss may lie above its place.
        delta: Where the bound is to be tight.
        together: The history on one grid for all losses.
    """
    often, excess, least = 0.0, 0.0, 0.0
    losses, expected = list[Array](), list[Array]()
    for grid, count, rare in parts:
        places = np.arange(grid.first, grid.first + len(grid.masses)) * step
        first, held = float(grid.masses.sum()), grid.masses > 0
        # in logarithms: e^-place overflows where large losses have masses, or none
        apart = math.log(first) - float(logsumexp(np.log(grid.masses[held]) - places[held])) - 1e-12
        least = min(least, apart if len(rare.losses) else 0.0)
        losses.append(rare.losses - min(apart, 0.0))
        expected.append(count / first * rare.masses)
        often += count * float(rare.masses.sum())
        infinite += count * rare.infinite
        excess += count * max(math.log(first) + 1e-14, 0.0)
    if excess > LARGE or least < -LARGE:  # the grid is finer, or reaches further, than the masses are known
        return together()
    # errors of the masses may leave a measure a little more than one: e^excess in all
    infinite = (infinite + 0.5 * often * often) * math.exp(excess) * (1.0 + 1e-12)
    usual = Composed([(grid, count) for grid, count, _ in parts], step, infinite, slack)
    return WithRareLosses(usual, np.concatenate(losses), np.concatenate(expected) * math.exp(excess), delta, together)
