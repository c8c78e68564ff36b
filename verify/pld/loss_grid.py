"""One release's privacy loss on a grid, rounded so that the history's delta can only grow.

The output is partitioned into cells by the loss. A cell with masses A (of the first law) and B (of the second) and
losses in [lo, hi] is dominated by two atoms, at lo and at hi, of the same two masses ("connect the dots": Doroshenko,
Ghazi, Kamath, Kumar and Manurangsi 2022, Theorem 4.3): the atom at hi has first mass

    up = (A - B e^lo) / (1 - e^-(hi - lo)),

the other one A - up. Sampling acts on both masses of a cell BEFORE that. Errors of the masses enlarge A and up.
"""

import math
from bisect import bisect_left
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.fourier import Lattice
from dpaudit.verify.results import Direction

LADDER_LEVELS = 300  # levels on each side of zero in the first look, which only guides the choice of the grid
LADDER_GROWTH = 12.0  # their spacing grows by e^(LADDER_GROWTH/LADDER_LEVELS) from one to the next
FARTHEST = 1 << 10  # cells below all others, from where a tail goes up whole: between there is nothing but memory
CUTS = 1 << 12  # places where the losses of a release may be cut off
MOST_ABOVE = 1 << 20  # cells above all others, beyond which a tail counts as infinite


@dataclass(frozen=True)
class SampledPair:
    """A dominating pair under Poisson sampling: the privacy loss of one release.

    Args:
        pair: The dominating pair.
        sampling_prob: q in (0, 1].
        cutoff: Largest base loss on the grid; what is beyond has P-mass below the tail that was asked for.
    """

    pair: DominatingPair
    sampling_prob: float
    cutoff: float

    def outer(self, losses: Array) -> Array:
        """Loss of the sampled release, log(1 - q + q e^l), at base losses l."""
        q = self.sampling_prob
        if q == 1:
            return losses
        positive = losses > 0
        small = np.log1p(q * np.expm1(np.where(positive, 0.0, losses)))
        ahead = np.where(positive, losses, 0.0)
        less = (1 - q) * np.expm1(-ahead)  # near -1 what is left of a small rate is rounding
        large = losses + np.where(less > -0.5, np.log1p(np.maximum(less, -0.5)), np.log(q + (1 - q) * np.exp(-ahead)))
        return np.asarray(np.where(positive, large, small))

    def inner(self, losses: Array) -> Array:
        """Base loss at which the sampled release has these losses; -inf below log(1 - q)."""
        q = self.sampling_prob
        if q == 1:
            return losses
        share = -(1 - q) / q * np.expm1(-losses)
        return np.asarray(losses + np.log1p(np.maximum(share, -1.0 + 1e-16)))


@dataclass(frozen=True)
class GridMasses:
    """Masses of a sampled loss between consecutive grid losses, with absolute errors; outermost cells are unbounded.

    Args:
        edges: Integers k: losses k h, ascending, 0 among them.
        first, second: Masses with the record and without it, len(edges) + 1 each.
        first_error, second_error: Bounds on their errors.
    """

    edges: NDArray[np.int64]
    first: Array
    second: Array
    first_error: Array
    second_error: Array


def sampled_pair(pair: DominatingPair, sampling_prob: float, tail: float, cap: float) -> SampledPair:
    """A dominating pair sampled with probability q, its losses cut off where at most `tail` lies beyond.

    That is of P, and where nothing is sampled of Q at losses as far below 0, which the other order has above it.

    Args:
        pair: The dominating pair.
        sampling_prob: q.
        tail: Mass that may go to an infinite loss.
        cap: Base losses above this go to infinity whatever their mass.
    """
    candidates: Array = np.geomspace(1e-3, 1e9, 124)
    candidates = np.append(candidates[candidates < min(pair.largest, cap)], min(pair.largest, cap, 1e9))
    # the tail falls: a search by halves asks for a few of them, and tails of a heavy pair are dear
    enough = bisect_left(
        candidates,
        -max(tail, pair.lost),
        hi=len(candidates) - 1,
        key=lambda loss: -_beyond(pair, loss, both=sampling_prob == 1),
    )
    return SampledPair(pair, sampling_prob, float(candidates[enough]))


def _beyond(pair: DominatingPair, loss: float, *, both: bool) -> float:
    """P-mass above a loss, and with `both` no less than the Q-mass below its opposite."""
    tails = pair.tails(np.array([-loss, loss] if both else [loss]))
    return float(max(tails.p_sf[-1], tails.q_cdf[0])) if both else float(tails.p_sf[0])


def cut_pair(sampled: SampledPair, mass: float) -> SampledPair:
    """The same release with its losses cut off where at most `mass` of its first law lies beyond, in either order."""
    candidates, q = np.geomspace(1e-9 * sampled.cutoff, sampled.cutoff, CUTS), sampled.sampling_prob

    def beyond(loss: float) -> float:
        if q == 1:
            return _beyond(sampled.pair, loss, both=True)
        tails = sampled.pair.tails(np.array([loss]))
        return float(q * tails.p_sf[0] + (1 - q) * tails.q_sf[0])

    enough = bisect_left(candidates, -mass, hi=CUTS - 1, key=lambda loss: -beyond(loss))
    return replace(sampled, cutoff=float(candidates[enough]))


def loss_moments(sampled: SampledPair) -> tuple[float, float, float]:
    """Guides to the grid, never part of a bound: moments of the sampled release's loss log P/Q.

    Returns:
        The variance, the smaller of the two directions; mean and variance under P. For a heavy pair, those of a normal
        law with the same middle 90% under P.
    """
    # tails of a heavy pair are dear, and its quantiles need few
    count = LADDER_LEVELS // 6 if sampled.pair.heavy else LADDER_LEVELS
    ladder = sampled.cutoff * np.sinh(LADDER_GROWTH * np.arange(1, count + 1) / count) / math.sinh(LADDER_GROWTH)
    levels = np.concatenate([-ladder[::-1], [0.0], ladder])
    p, q, _, _ = cell_masses(sampled, levels)
    middle = 0.5 * (levels[1:] + levels[:-1])
    losses = sampled.outer(np.concatenate([levels[:1], middle, levels[-1:]]))
    if sampled.pair.heavy:
        low, high = np.interp([0.05, 0.95], np.cumsum(p) / p.sum(), losses)
        variance = float(((high - low) / 3.29) ** 2)
        return variance, float(0.5 * (low + high)), variance
    whole = [max(float(w.sum()), 1e-300) for w in (p, q)]  # all of it may lie beyond
    means = [float(w @ losses) / mass for w, mass in zip((p, q), whole, strict=True)]
    variances = [float(w @ (losses - m) ** 2) / mass for w, m, mass in zip((p, q), means, whole, strict=True)]
    return min(variances), means[0], variances[0]


def cell_masses(sampled: SampledPair, levels: Array) -> tuple[Array, Array, Array, Array]:
    """Masses of the cells between base losses with and without the record, and bounds on their errors."""
    tails = sampled.pair.tails(levels)
    q = sampled.sampling_prob
    with_record, with_error = _differences(tails.p_cdf, tails.p_sf, tails.p_error)
    without, error = _differences(tails.q_cdf, tails.q_sf, tails.q_error)
    return q * with_record + (1 - q) * without, without, q * with_error + (1 - q) * error, error


def _differences(cdf: Array, sf: Array, relative: Array) -> tuple[Array, Array]:
    """Cell masses from whichever tail is smaller, and bounds on their errors."""
    cdf, sf = np.concatenate([[0.0], cdf, [1.0]]), np.concatenate([[1.0], sf, [0.0]])
    left = cdf[1:] <= sf[:-1]
    mass = np.maximum(np.where(left, cdf[1:] - cdf[:-1], sf[:-1] - sf[1:]), 0.0)
    # the complement of an erroneous tail has its absolute error
    error = np.concatenate([[0.0], relative * np.maximum(np.minimum(cdf, sf)[1:-1], 1e-300), [0.0]])
    rounding = 1e-15 * np.where(left, cdf[1:] + cdf[:-1], sf[:-1] + sf[1:])
    return mass, 4.0 * (error[1:] + error[:-1]) + rounding


def grid_masses(sampled: SampledPair, step: float) -> GridMasses:
    """Masses of a sampled loss between multiples of `step`, with and without the record.

    Args:
        sampled: The release.
        step: Grid step h of the loss.
    """
    low, high = sampled.outer(np.array([-sampled.cutoff, sampled.cutoff])) / step
    # a loss between the last edge and the cutoff would count as infinite, however coarse the grid; so would one below
    # the first where nothing is sampled, in the other order
    first, last = min(math.floor(low), -1) + (sampled.sampling_prob < 1), max(math.ceil(high), 1)
    edges = _thinned(min(first, 0), max(last, 0), sampled.pair.levels)
    return GridMasses(edges, *cell_masses(sampled, sampled.inner(np.asarray(edges * step, dtype=np.float64))))


def _thinned(first: int, last: int, most: int) -> NDArray[np.int64]:
    """Integers from first to last with 0 among them: all, or those near 0 and a geometric ladder outside."""
    if last - first + 1 <= most:
        return np.arange(first, last + 1)
    core = most // 4
    sides = []
    for end in (-first, last):
        ladder = np.geomspace(core, end, core) if end > core else np.empty(0)
        sides.append(np.unique(np.concatenate([np.arange(1, min(core, end) + 1), np.rint(ladder).astype(np.int64)])))
    return np.concatenate([-sides[0][::-1], [0], sides[1]]).astype(np.int64)


def lattice(sampled: SampledPair, parts: GridMasses, step: float, direction: Direction) -> tuple[Lattice, float]:
    """The rounded-up loss of one release as masses on multiples of `step`, and the mass at infinity.

    remove: law with the record against law without; add: the reverse; swap: the pair whose profile is
    q delta(log(1 + (e^epsilon - 1)/q)) for every epsilon >= 0 and its mirror image below (see `pair_curve`).

    Args:
        sampled: The release.
        parts: Its cells on this grid.
        step: Grid step.
        direction: Which of the two laws comes first.
    """
    bounded = math.isfinite(sampled.pair.largest)
    lowest, highest = sampled.outer(np.array([-1.0, 1.0]) * sampled.pair.largest) if bounded else (-math.inf, math.inf)
    if not bounded and sampled.sampling_prob < 1:
        lowest = np.log1p(-sampled.sampling_prob)
    lowest = math.floor(lowest / step) if math.isfinite(lowest) else -math.inf
    if int(parts.edges[0]) - lowest > FARTHEST:
        lowest = -math.inf
    top = max(math.ceil(highest / step), int(parts.edges[-1])) if math.isfinite(highest) else math.inf
    if top - int(parts.edges[-1]) > MOST_ABOVE:
        top = math.inf
    ends = np.concatenate([[min(lowest, parts.edges[0])], parts.edges.astype(float), [top]])
    lo, hi = ends[:-1], ends[1:]
    # what the second law has at a loss of -inf lies below the lowest cell, which must not be lowered for it
    without_lost = parts.second_error + np.where(np.arange(len(lo)) == 0, sampled.pair.lost, 0.0)
    remove = (parts.first, parts.second, parts.first_error, without_lost, lo, hi)
    add = (parts.second, parts.first, parts.second_error, parts.first_error, -hi, -lo)
    lost = sampled.pair.lost * (sampled.sampling_prob if direction == "remove" else 1.0)
    if direction == "remove":
        return deposit(*remove, step, lost)
    if direction == "add":
        return deposit(*add, step, lost)
    above = lo >= 0
    sides = [tuple(column[above] for column in side) for side in (remove, add)]
    a, b, a_error, b_error, low, high = (np.concatenate(pair) for pair in zip(*sides, strict=True))
    middle = max(0.0, 1.0 - float((a - a_error).sum())) + 1e-14
    columns = (np.append(a, middle), np.append(b, middle), np.append(a_error, 0.0), np.append(b_error, 0.0))
    return deposit(*columns, np.append(low, 0.0), np.append(high, 0.0), step, lost)


def dots(
    first: Array, second: Array, first_error: Array, second_error: Array, lo: Array, width: Array
) -> tuple[Array, Array]:
    """First masses of the atoms at the upper and at the lower ends of cells with losses from lo to lo + width."""
    total = first + first_error
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        base = np.exp(np.log(np.maximum(second - second_error, 0.0)) + lo)
        up = (total - base) / -np.expm1(-width)
    # a cell of one loss, or one from minus to plus infinity, goes up whole
    up = np.where(np.isfinite(up), np.clip(up, 0.0, total), total)
    return up, total - up


def deposit(
    first: Array, second: Array, first_error: Array, second_error: Array, lo: Array, hi: Array, step: float, lost: float
) -> tuple[Lattice, float]:
    """Connect the dots on every cell and add the atoms up."""
    up, down = dots(first, second, first_error, second_error, lo * step, (hi - lo) * step)
    infinite = float(up[np.isposinf(hi)].sum()) + lost
    finite_up, finite_down = np.isfinite(hi), np.isfinite(lo) & (down > 0)
    places = np.concatenate([hi[finite_up], lo[finite_down]]).astype(np.int64)
    weights = np.concatenate([up[finite_up], down[finite_down]])
    base_place = int(places.min())
    # a place collects the atoms of its neighbouring cells only: a handful of roundings
    masses: Array = np.asarray(np.bincount(places - base_place, weights=weights) * (1.0 + 1e-14), dtype=np.float64)
    return Lattice(masses, base_place), infinite * (1.0 + 1e-12)
