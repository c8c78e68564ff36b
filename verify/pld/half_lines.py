"""Pairs of normal mixtures on the line whose loss exceeds a level l >= 0 on a half-line, and histories of such pairs.

Both laws are mixtures of N(c, 1) over the same three centres at distance m. With weights p_k and q_k, and u = e^(m x),
the loss at x is at least l where

    (p_2 - e^l q_2) e^(-c_2^2/2) u^2 - (e^l q_1 - p_1) e^(-c_1^2/2) u - (e^l q_0 - p_0) e^(-c_0^2/2) >= 0.

Where both brackets that are subtracted are at least 0 for l >= 0, that is a half-line (none, if the first bracket is
not positive), which begins at a root of a quadratic equation, a sum of terms of one sign.

A history may take the losses above 0 from one such pair and those below 0 from the mirror image of another: that is the
pair whose profile H is that of the one for epsilon >= 0, and below it follows from the other's by the mirror rule
H(a) = 1 - a + a H'(1/a), a = e^epsilon < 1 (Zhu, Dong and Wang 2022, Lemma 8 and Proposition 30); what is left is at 0.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import numpy as np

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.cells import interval_masses
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.pld.loss_grid import deposit
from dpaudit.verify.pld.pair_curve import FINENESS, MAX_CELLS, MAX_TOTAL, SHORT_HISTORY, infinite_mass
from dpaudit.verify.pld.rare_losses import (
    BEYOND,
    NONE,
    TWICE,
    WORTH,
    RareLosses,
    WithRareLosses,
    rare_edges,
    rare_losses,
    with_rare_losses,
)

LAW = Gaussian(1.0).structure
LOOK = 3000  # points of a first look, which only guides the grid
CUTS = 1 << 12  # places where the losses of a release may be cut off
MOST_LOSS = 1e6  # losses beyond it count as infinite
Weights = tuple[float, float, float]


@dataclass(frozen=True)
class NormalMixtures:
    """Two mixtures of N(c, 1) over the centres m (k - 1), k = 0, 1, 2.

    Args:
        distance: m, between neighbouring centres, > 0.
        first: Weights p of the law whose loss is told, p_k <= q_k but for k = 2.
        second: Weights q of the other one.
    """

    distance: float
    first: Weights
    second: Weights

    @property
    def centres(self) -> Array:
        """The three of them."""
        return self.distance * np.array([-1.0, 0.0, 1.0])

    @property
    def largest(self) -> float:
        """Supremum of the loss."""
        return math.log(self.first[2] / self.second[2]) if self.second[2] > 0 else math.inf

    def loss(self, x: Array) -> Array:
        """Log-ratio of the densities."""
        with np.errstate(divide="ignore"):
            exponents = x[:, None] * self.centres - self.centres**2 / 2
            sides = [np.logaddexp.reduce(exponents + np.log(weights), axis=1) for weights in (self.first, self.second)]
        return np.asarray(sides[0] - sides[1])

    def beginning(self, losses: Array) -> tuple[Array, float]:
        """Where the half-lines of these losses begin, and by how much the loss there may differ from them.

        Logarithms of at most `size` are added up, each with a few roundings: log u is off by at most 16 (1 + size)
        units, a bracket by two of its terms, that is of e^loss, and no loss grows faster than 2 log u.

        Args:
            losses: In [0, largest).
        """
        growth = np.expm1(np.minimum(losses, 709.0))  # of larger ones, q outweighs p by far
        with np.errstate(divide="ignore", invalid="ignore"):
            p, q = self.first, self.second
            low, middle = (
                np.where(losses > 709.0, np.log(q[k]) + losses, np.log(q[k] - p[k] + growth * q[k])) for k in (0, 1)
            )
            top = np.log(p[2] - q[2] - growth * q[2])
            half = 0.5 * (math.log(4.0) + low + top - self.distance**2)  # log of sqrt(4 a c), a c the outer terms
            root = np.logaddexp(middle, np.logaddexp(2.0 * middle, 2.0 * half) / 2.0)
        log_u = root - math.log(2.0) - top + 0.5 * self.distance**2
        terms = np.concatenate([column[np.isfinite(column)] for column in (low, middle, top, half, log_u, losses)])
        size = float(np.abs(terms).max()) + self.distance**2
        return np.asarray(log_u / self.distance), 64.0 * UNIT * (1.0 + size)


@dataclass(frozen=True)
class Halves:
    """A release whose losses above 0 are those of one pair, and below 0 of the mirror image of another."""

    above: NormalMixtures
    below: NormalMixtures

    def mirrored(self) -> "Halves":
        """The same two laws in the other order."""
        return Halves(self.below, self.above)


@dataclass(frozen=True)
class HalfLineReleases:
    """Releases each of which is of one of several kinds, which is told and has one law for both neighbours.

    Args:
        kinds: Upper bounds on the probabilities of the kinds, > 0, and these.
        steps: How many releases.
    """

    kinds: Sequence[tuple[float, Halves]]
    steps: int

    def mirrored(self) -> "HalfLineReleases":
        """The same laws in the other order."""
        return HalfLineReleases([(chance, kind.mirrored()) for chance, kind in self.kinds], self.steps)


@dataclass(frozen=True)
class _Side:
    """Masses of (j h, (j + 1) h], j = 0, 1, ..., under both laws with their errors; the last cell is unbounded."""

    first: Array
    second: Array
    first_error: Array
    second_error: Array
    top: float
    slack: float


def _side(pair: NormalMixtures, step: float, cutoff: float) -> _Side:
    last = max(1, math.ceil(cutoff / step))
    top = math.inf
    if math.isfinite(pair.largest):
        last = max(0, min(last, math.ceil(pair.largest * (1.0 - 1e-12) / step) - 1))
        top = float(math.ceil(pair.largest * (1.0 + 1e-12) / step))
    first, second, first_error, second_error, slack = _beyond(pair, np.asarray(np.arange(last + 1) * step))
    return _Side(first, second, first_error, second_error, top, slack)


def _beyond(pair: NormalMixtures, losses: Array) -> tuple[Array, Array, Array, Array, float]:
    """Masses between losses, and beyond the last, under both laws, bounds on their errors, and the slack."""
    edges, slack = pair.beginning(losses)
    cells = interval_masses(LAW, np.maximum.accumulate(edges), pair.centres)
    lower, spread = cells.lower[:, 1:], (cells.upper - cells.lower)[:, 1:]
    (first, first_error), (second, second_error) = (
        (np.array(w) @ lower, np.array(w) @ spread * (1.0 + 8 * UNIT) + 4 * UNIT * (np.array(w) @ lower))
        for w in (pair.first, pair.second)
    )
    return first, second, first_error, second_error, slack


def _farthest(pair: NormalMixtures, tail: float) -> float:
    return float(pair.centres[2] - LAW.ppf(np.array([tail]))[0])


def _farthest_loss(pair: NormalMixtures, tail: float) -> float:
    return min(float(pair.loss(np.array([_farthest(pair, tail)]))[0]), MOST_LOSS)


def _cut(pair: NormalMixtures, mass: float) -> float:
    """The loss beyond which there is at most so much of the first law."""
    places = np.linspace(0.0, _farthest(pair, mass), CUTS)
    beyond = np.array(pair.first) @ LAW.cdf(pair.centres[:, None] - places)
    enough = min(int(np.searchsorted(-beyond, -mass)), CUTS - 1)  # beyond the last place is that much, but for rounding
    return min(float(pair.loss(places[[enough]])[0]), MOST_LOSS)


def compose_halves(releases: Sequence[HalfLineReleases], delta: float) -> Composed | WithRareLosses:
    """The total privacy loss of a history, on a grid that is fine against an average release's loss.

    Where no one grid is, rare losses are counted apart (`rare_losses`). Cells of a release are those of all its kinds,
    but for kinds that are as rare as losses that are taken for infinite, and count as such.

    Rounding. Edges are where the loss is within s, the slack, of a multiple of the step h. In a cell with losses in
    [lo - s, hi + s] let l' = min(l + s, hi): it lies in [lo, hi], and l <= l' + s. Given the cell's first mass, that of
    e^-l' has at least e^-s times the second mass, and delta falls with it. So the dots are connected for l' with the
    second mass lowered by that, and all losses are taken to lie s higher.

    Args:
        releases: The history.
        delta: Where the bound is to be tight; it holds everywhere.
    """
    steps = sum(part.steps for part in releases)
    tail = infinite_mass(delta) / steps
    never = sum(part.steps * chance for part in releases for chance, _ in part.kinds if chance <= tail)
    releases = [replace(part, kinds=[kind for kind in part.kinds if kind[0] > tail]) for part in releases]
    whole = [_cutoffs(part, _farthest_loss, tail) for part in releases]
    wanted, possible = _grid_steps(releases, tail, whole)
    seldom = math.sqrt(2.0 * TWICE * delta) / steps  # 0 of the smallest floats, too
    if seldom > 0 and steps > 1 and wanted < _widest(whole) / MAX_CELLS:
        cut = [_cutoffs(part, _cut, seldom) for part in releases]
        if _widest(cut) < WORTH * _widest(whole):
            step, last = max(_grid_steps(releases, tail, cut)), BEYOND * delta / steps
            together = partial(_compose, releases, whole, max(wanted, possible), never)
            return _compose_cut(releases, cut, step, last, delta, never, together)
    return _compose(releases, whole, max(wanted, possible), never)


def _cutoffs(
    part: HalfLineReleases, cut: Callable[[NormalMixtures, float], float], mass: float
) -> list[tuple[float, float]]:
    """Losses of each kind above and below 0 beyond which a release has so much mass."""
    shares = [(min(mass / chance / len(part.kinds), 0.5), kind) for chance, kind in part.kinds]
    return [(cut(kind.above, share), cut(kind.below, share)) for share, kind in shares]


def _compose(
    releases: Sequence[HalfLineReleases], cutoffs: Sequence[Sequence[tuple[float, float]]], step: float, infinite: float
) -> Composed:
    parts, slack = list[tuple[Lattice, int]](), 0.0
    for part, ends in zip(releases, cutoffs, strict=True):
        sides = [
            (chance, _side(kind.above, step, high), _side(kind.below, step, low))
            for (chance, kind), (high, low) in zip(part.kinds, ends, strict=True)
        ]
        grid, lost, off = _lattice(sides, step)
        parts.append((grid, part.steps))
        infinite += part.steps * lost
        slack += part.steps * off
    return Composed(parts, step, infinite, slack * (1.0 + 1e-12))


def _compose_cut(
    releases: Sequence[HalfLineReleases],
    cutoffs: Sequence[Sequence[tuple[float, float]]],
    step: float,
    tail: float,
    delta: float,
    infinite: float,
    together: Callable[[], Composed],
) -> WithRareLosses | Composed:
    """The total privacy loss where losses beyond a cut are rare and large."""
    parts, slack = list[tuple[Lattice, int, RareLosses]](), 0.0
    for part, ends in zip(releases, cutoffs, strict=True):
        sides, rare, most = list[tuple[float, _Side, _Side]](), NONE, 0.0
        for (chance, kind), (high, low) in zip(part.kinds, ends, strict=True):
            above = _side(kind.above, step, high)
            sides.append((chance, above, _side(kind.below, step, low)))
            if len(above.first) < above.top:  # else the grid has a cell for all there is
                last = _cut(kind.above, min(tail / chance / len(part.kinds), 0.5))
                edges = rare_edges((len(above.first) - 1) * step, last)
                first, second, first_error, second_error, off = _beyond(kind.above, edges)
                own = rare_losses(first, second, first_error, second_error + 1.01 * off * second, edges)
                rare, most = rare.beside(own, chance), max(most, off)
                for column in (above.first, above.second, above.first_error, above.second_error):
                    column[-1] = 0.0
        grid, lost, off = _lattice(sides, step)
        parts.append((grid, part.steps, rare))
        infinite += part.steps * lost
        slack += part.steps * max(most, off)
    return with_rare_losses(parts, step, infinite, slack * (1.0 + 1e-12), delta, cache(together))


def _widest(cutoffs: Sequence[Sequence[tuple[float, float]]]) -> float:
    return max(high + low for ends in cutoffs for high, low in ends)


def _grid_steps(
    releases: Sequence[HalfLineReleases], tail: float, cutoffs: Sequence[Sequence[tuple[float, float]]]
) -> tuple[float, float]:
    """The grid step that an average release's loss asks for, and the least one within MAX_CELLS and MAX_TOTAL."""
    steps, variance, high, spread = sum(part.steps for part in releases), 0.0, 0.0, 0.0
    for part in releases:
        losses, first, second = (np.concatenate(column) for column in zip(*_looks(part, tail), strict=True))
        mean = float(first @ losses)
        spreads = [float(w @ (losses - w @ losses) ** 2) for w in (first, second)]
        variance += part.steps * min(spreads)
        high += part.steps * mean
        spread += part.steps * spreads[0]
    fineness = FINENESS if steps > SHORT_HISTORY else FINENESS / 4
    wanted = fineness * math.sqrt(max(variance, 1e-300) / steps)
    return wanted, max(_widest(cutoffs) / MAX_CELLS, (high + 15.0 * math.sqrt(spread)) / MAX_TOTAL)


def _looks(part: HalfLineReleases, tail: float) -> list[tuple[Array, Array, Array]]:
    """Losses above and below 0 with their masses under the first and the second law, roughly."""
    found = []
    sides = [(chance, kind.above, 1.0) for chance, kind in part.kinds]
    for chance, pair, sign in [*sides, *((chance, kind.below, -1.0) for chance, kind in part.kinds)]:
        start = float(pair.beginning(np.zeros(1))[0][0])
        edges = np.linspace(start, max(_farthest(pair, tail), start + 1.0), LOOK)
        masses = chance * interval_masses(LAW, edges, pair.centres).lower[:, 1:-1]
        own = np.array(pair.first) @ masses, np.array(pair.second) @ masses
        losses = sign * np.clip(pair.loss((edges[1:] + edges[:-1]) / 2), 0.0, MOST_LOSS)
        found.append((losses, *own) if sign > 0 else (losses, *own[::-1]))
    return found


def _lattice(sides: Sequence[tuple[float, _Side, _Side]], step: float) -> tuple[Lattice, float, float]:
    """The rounded-up loss of one release as masses on multiples of step, the mass at infinity, and the slack.

    Args:
        sides: Of each kind: its probability, losses above 0, and losses below it.
        step: Of the grid.
    """
    slack = max(max(above.slack, below.slack) for _, above, below in sides)
    cells = list[tuple[Array, ...]]()  # masses under both laws, their errors, where losses begin and end
    for chance, above, below in sides:
        up, down = np.arange(len(above.first), dtype=float), np.arange(len(below.first), dtype=float)
        ups, downs = np.append(up[1:], above.top), np.append(down[1:], below.top)
        higher = above.first, above.second, above.first_error, above.second_error
        lower = below.second, below.first, below.second_error, below.first_error
        for masses, ends in ((higher, (up, ups)), (lower, (-downs, -down))):
            first, second, first_error, second_error = (chance * column for column in masses)
            cells.append((first, second, first_error, second_error + 1.01 * slack * second, *ends))
    first, second, first_error, second_error, lo, hi = (
        np.append(np.concatenate(column), 0.0) for column in zip(*cells, strict=True)
    )
    first[-1] = second[-1] = max(0.0, sum(chance for chance, _, _ in sides) - float(first.sum())) + 1e-13
    lattice, infinite = deposit(first, second, first_error, second_error, lo, hi, step, 0.0)
    return lattice, infinite, slack
