"""Weights of the batches of a shuffled pass, cut into layers: delta(epsilon) of one pass where some count more.

Notation and proof are those of `verify/upper/shuffled_batches.py`, section 4.
"""

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.shift_allocation import concave_majorant_at
from dpaudit.verify.pld.shuffled_pass import CurvePass, ShuffledPass
from dpaudit.verify.pld.term_sums import POINTS, term_sums
from dpaudit.verify.results import Direction
from dpaudit.verify.upper.gaussian_pld import analytic_delta

CLOSEST, RATIO = 1e-3, 1.35  # of gamma - 1, the least and of neighbours
COUNTS = 1.3  # ratio of neighbouring numbers of terms
DISTANCES, VARIANCES = 64, 32  # cells of the mean over distances
CUTS = np.geomspace(1e-4, 1e4, 33)  # g that are tried
ROUGHLY = 2.5  # lattice points of the sums that are compared
LEAST = 1e-3  # of the cost at the epsilon before, for what is not told apart
FARTHEST = 1e3  # deviations of Y by which its mean is below 0, beyond which a pass counts as known
FARTHER = 8  # times the best number of terms of the last epsilon: no larger sums are looked at


@dataclass(frozen=True, eq=False)
class Weights:
    """How much of the weights is above each level.

    Args:
        levels: gamma, of a weight over the mean of all: 0, and from 1 to the number of batches.
        excess: Upper bounds on E_M sum_J (w_J - tau)_+ there, convex, from 1 to 0.
        counts: Numbers of terms whose sums are looked at, ascending from 1 to the number of batches.
    """

    levels: Array
    excess: Array
    counts: Array


@dataclass(frozen=True)
class PassCost:
    """Upper bounds on delta of one pass.

    Args:
        delta: At the epsilon that was asked for.
        hidden, revealed: There and at every larger one, the first and so many times that of a known release.
        terms: About how many terms the best bound is a mean of.
    """

    delta: float
    hidden: float
    revealed: float
    terms: int


@lru_cache(64)
def weights_of(part: ShuffledPass | CurvePass) -> Weights:
    """Of the batches in which the record is not before the swap."""
    others = float(int(part.batches) - 1)
    steps = 2 + math.ceil(math.log(max(others - 1.0, CLOSEST) / CLOSEST) / math.log(RATIO))
    levels = np.concatenate([[1.0], 1.0 + np.geomspace(CLOSEST, max(others - 1.0, CLOSEST), steps)])
    x, y = np.append(0.0, levels), np.concatenate([[1.0], large_weights(part, levels[:-1]), [0.0]])
    kept = lower_hull(x, y)
    excess = np.interp(x, x[kept], y[kept]) * (1.0 + 8.0 * UNIT)
    counts = np.unique(np.floor(np.geomspace(1.0, others, 2 + math.ceil(math.log(others) / math.log(COUNTS)))))
    return Weights(x, excess, np.append(counts[counts < others], others))


def large_weights(part: ShuffledPass | CurvePass, levels: Array) -> Array:
    """Upper bounds on E_M sum_J (w_J - tau)_+ at levels gamma >= 1."""
    logs = np.log(levels) * (1.0 - 8.0 * UNIT) - 8.0 * UNIT
    if isinstance(part, CurvePass):
        return np.minimum(part.twice.delta(np.maximum(logs, 0.0)) + np.maximum(-logs, 0.0), 1.0)
    mu = part.shift
    variances = np.linspace(0.0, mu**2, VARIANCES + 1) * (1.0 + 4.0 * UNIT)
    farthest = mu + np.sqrt(np.maximum(mu**2 - variances[:-1], 0.0)) + 1e-9 * mu
    ends = np.append(0.0, np.geomspace(mu / 16.0, 2.0 * mu * (1.0 + 1e-9), DISTANCES))
    squares, found = ends[:-1] ** 2, _delta(2.0 * mu, logs)
    for i, log in enumerate(logs):
        at = log - variances[1:] / 2.0 * (1.0 + 8.0 * UNIT)
        cells = np.where(ends[:-1] <= farthest[:, None], _delta(ends[1:], at[:, None]), 0.0)
        most = np.maximum.accumulate(cells, axis=1)  # a mean square of at most so much is enough
        heights = [concave_majorant_at(squares, *one) for one in zip(most, variances[1:], strict=True)]
        found[i] = min(found[i], max(heights))
    return found * (1.0 + 1e-12)


def _delta(shift: float | Array, epsilon: Array) -> Array:
    """delta(epsilon) of normal laws so far apart, also below 0."""
    above, growth = analytic_delta(shift, np.abs(epsilon)), np.exp(np.minimum(epsilon, 0.0))
    return np.where(epsilon < 0.0, np.minimum((1.0 - growth * (1.0 - above)) * (1.0 + 8.0 * UNIT), 1.0), above)


def pass_cost(
    part: ShuffledPass | CurvePass, direction: Direction, epsilon: float, known: float, last: PassCost | None = None
) -> PassCost:
    """Upper bound on delta(epsilon) of one pass.

    Args:
        part: The pass; its count does not matter.
        direction: "remove", "add", or "swap" for both directions under replace-one.
        epsilon: At least 0.
        known: delta(epsilon) of a known release.
        last: At a somewhat smaller epsilon.
    """
    weights, batches = weights_of(part), float(int(part.batches))
    growth = max(1.0, math.exp(epsilon) * (1.0 - (8.0 + epsilon) * UNIT))
    if growth - 1.0 > FARTHEST * part.spread(direction):
        return PassCost(known, 0.0, 1.0, 1)
    counts = weights.counts
    if last is not None:
        counts = counts[counts <= max(2.0 * FARTHER, FARTHER * last.terms)]
    least = LEAST * (known if last is None else min(known, last.delta))
    sums = term_sums(part, growth, [int(n) for n in counts], direction, ROUGHLY, least)
    totals = np.array([one.excess() for one in sums])
    means, rising = totals / counts, _rising(counts, totals, batches, growth - 1.0)
    caps = weights.levels / batches  # of the chances of batches
    above = _layers(weights, batches, rising)
    with np.errstate(divide="ignore"):
        bottoms = np.minimum(caps * np.interp(1.0 / caps, *rising), known)  # of what is below a level
    room = 1.0 - counts * caps[:, None] * (1.0 + 8.0 * UNIT)
    rho = np.minimum(np.where(room > 0.0, weights.excess[:, None] / np.maximum(room, UNIT), 1.0), 1.0)
    firsts = _first_release(part, growth, direction, rho, known)
    few = means + np.minimum(rho * bottoms[:, None] + above[:, None], rho * known) + firsts
    centred = np.array([one.excess(n * (growth - 1.0)) for one, n in zip(sums, counts, strict=True)])
    place = np.searchsorted(counts, (1.0 - 8.0 * UNIT) / caps[1:], side="right") - 1
    filled = means[place] + _layers(weights, batches, _rising(counts, centred, batches, 0.0))[1:]
    layers = known / batches + float(above[0])
    # the best of them again, on a finer lattice, and with all terms that fit
    rest = few - means
    level, best = divmod(int(np.argmin(few)), len(counts))
    terms, other = int(counts[best]), float(rest[level, best])
    if filled.min() < few.min():
        level = int(np.argmin(filled))
        terms, other = max(int((1.0 - 8.0 * UNIT) / caps[1 + level]), 1), float(filled[level] - means[place[level]])
    found = other + term_sums(part, growth, [terms], direction, POINTS, least)[0].excess() / terms
    revealed = rho.min(axis=0) + 1.0 / batches
    simple = int(np.argmin(means + revealed * known))
    return PassCost(
        min(found, layers, known) * (1.0 + 64.0 * UNIT),
        float(means[simple]) * (1.0 + 4.0 * UNIT),
        float(revealed[simple]),
        terms if found < layers else int(batches),
    )


def _first_release(
    part: ShuffledPass | CurvePass, growth: float, direction: Direction, rho: Array, known: float
) -> Array:
    """What is left of the first release, where a chance of rho counts as known: `firsts` of the proof."""
    prices = np.sum(part.excess(CUTS, growth, direction), axis=0)
    told = np.min(prices + CUTS * rho[..., None], axis=-1)
    return np.asarray(np.minimum(told, known) / float(int(part.batches)))


def _rising(counts: Array, totals: Array, batches: float, drift: float) -> tuple[Array, Array]:
    """Corners of a nondecreasing concave function above E (sum of n)_+ for all n between these.

    It is at most n times what a mean of fewer has, and at most E (...)_+ of a longer sum and the drift that this has
    more, by Jensen's inequality.
    """
    following, longer = np.append(counts[1:], batches), np.append(totals[1:], math.inf)
    with np.errstate(invalid="ignore"):
        crossing = (longer + following * drift) / (totals / counts + drift) * (1.0 + 8.0 * UNIT)
    crossing = np.clip(np.nan_to_num(crossing, nan=math.inf), counts, following)
    x = np.append(0.0, np.column_stack([counts, crossing]).ravel())
    y = np.append(0.0, np.column_stack([totals, totals * (crossing / counts)]).ravel())
    kept = lower_hull(x, -y)
    return x[kept], np.maximum.accumulate(y[kept])


def _layers(weights: Weights, batches: float, rising: tuple[Array, Array]) -> Array:
    """What the weights above each level cost in the best layers."""
    widths = (weights.levels - weights.levels[:, None]) / batches
    with np.errstate(divide="ignore", invalid="ignore"):
        counts = np.where(widths > 0.0, (weights.excess[:, None] - weights.excess) / widths, 0.0)
    counts *= (1.0 - 1.0 / batches) * (1.0 + 16.0 * UNIT)  # the weights and p_1 are 1 together
    costs = widths * np.interp(counts, *rising) * (1.0 + 8.0 * UNIT)
    found = np.zeros(len(widths))
    for i in range(len(found) - 2, -1, -1):
        found[i] = float((costs[i, i + 1 :] + found[i + 1 :]).min())
    return found


def lower_hull(x: Array, y: Array) -> Array:
    """Indices of the corners of the largest convex function below the points."""
    kept: list[int] = []
    for i in range(len(x)):
        while len(kept) > 1 and _above(x, y, kept[-2], kept[-1], i):
            kept.pop()
        kept.append(i)
    return np.array(kept)


def _above(x: Array, y: Array, first: int, middle: int, last: int) -> bool:
    return bool((y[middle] - y[first]) * (x[last] - x[first]) >= (y[last] - y[first]) * (x[middle] - x[first]))
