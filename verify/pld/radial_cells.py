"""Cells for noise with a random radius and a uniform direction: level sets of the privacy loss.

Q is centred at 0, P at v. Reflection at v/2 turns P into Q and the loss L = log dP/dQ into -L, hence
Q(L >= l) = P(L <= -l): both tails under P are all that is needed.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, Radial
from dpaudit.verify.pld.cells import SMALLEST_MASS, MassBounds
from dpaudit.verify.pld.radial_tails import TOLERANCE, tail_brackets

LEVELS = 300
NEXT_TO_NOTHING = 1e-2  # e^l Q(L >= l) over P(L > l)


@dataclass(frozen=True)
class LossTails:
    """P(L > l) and Q(L >= l) = P(L <= -l) at levels l > 0, with absolute errors."""

    levels: Array
    first: Array
    first_error: Array
    second: Array
    second_error: Array


def loss_tails(noise: Radial, dimension: int, length: float, levels: Array, tolerance: float = TOLERANCE) -> LossTails:
    """Both tails of the privacy loss at positive levels.

    Args:
        noise: Law of the radius; the density of the noise must fall with it.
        dimension: At least 2.
        length: l2 norm of the shift.
        levels: Positive, shape (levels,).
        tolerance: Relative error that is aimed at; for Q less, where e^l Q(L >= l) is next to nothing of P(L > l).
    """
    first = tail_brackets(noise, dimension, length, levels, tolerance)
    most = first.upper * np.exp(-levels) * (1 + 1e-12)  # dQ = e^-L dP
    second = tail_brackets(noise, dimension, length, -levels, tolerance, NEXT_TO_NOTHING * tolerance * most)
    columns = []
    for low, high in ((first.lower, first.upper), (second.lower, np.minimum(second.upper, most))):
        low = np.minimum(low, high)
        columns += [0.5 * (low + high), 0.5 * (high - low) * (1 + 1e-15) + SMALLEST_MASS]
    return LossTails(levels, *columns)


def join_tails(one: LossTails, other: LossTails) -> LossTails:
    """Tails of a privacy loss at the levels of two tables, each level once."""
    levels, index = np.unique(np.concatenate([one.levels, other.levels]), return_index=True)
    columns = (
        (one.first, other.first),
        (one.first_error, other.first_error),
        (one.second, other.second),
        (one.second_error, other.second_error),
    )
    return LossTails(levels, *(np.concatenate(pair)[index] for pair in columns))


def radial_cells(tails: LossTails, *, rising: bool) -> MassBounds:
    """Masses of two laws on the cells between consecutive levels, that lie on either side of the true one.

    Statistic: the loss, or its negative where it is not `rising`; cells ascend in it, centres are (Q, P). The first law
    has a smaller probability of exceeding any level than the true one, the second a larger one. Sums of independent
    steps, and mixtures over the centres, keep that order (Shaked and Shanthikumar 2007, Theorems 1.A.3 and 1.A.6), so
    that for labels that grow with the cell the first law bounds every P(sum of labels >= s) from below, the second one
    from above, and errors of the tails only move mass to the next cell.

    Args:
        tails: Both tails of the loss.
        rising: Whether events are of large losses.
    """
    first, second = (
        (
            np.maximum.accumulate((value - error)[::-1])[::-1].clip(0.0),
            np.minimum.accumulate(value + error).clip(0.0, 1.0),
        )
        for value, error in ((tails.first, tails.first_error), (tails.second, tails.second_error))
    )
    # under P the right tail is the first one and the left tail the second one; under Q the other way about
    ways = (first, second), (second, first)
    small = [_masses(left[1], right[0], small=True) for left, right in ways]
    large = [_masses(left[0], right[1], small=False) for left, right in ways]
    if rising:
        return MassBounds(np.stack(small), np.stack(large))
    return MassBounds(np.stack(large)[:, ::-1], np.stack(small)[:, ::-1])


def _masses(left: Array, right: Array, *, small: bool) -> Array:
    """Masses between -l_k, ..., -l_1, l_1, ..., l_k and outside, from P(L <= -l) and P(L > l); they sum to 1.

    The tail that is an upper bound, the left one of a small law, is at most what a lower bound of the other one leaves.
    """
    if small:
        left = np.minimum(left, 1.0 - right[0])
    else:
        right = np.minimum(right, 1.0 - left[0])
    outer = [np.append(-np.diff(tail), tail[-1]) for tail in (left, right)]
    return np.concatenate([outer[0][::-1], [max(0.0, 1.0 - left[0] - right[0])], outer[1]])


def log_second_upper(tails: LossTails) -> Array:
    """Upper bounds on log Q(L > l) of a privacy loss, far beyond the range of floating point.

    dQ = e^-L dP, so Q(L > l_j) is at most the sum over i >= j of e^-l_i P(l_i < L <= l_(i+1)).
    """
    high, low = tails.first + tails.first_error, np.maximum(tails.first - tails.first_error, 0.0)
    log_mass = np.log(high - np.append(low[1:], 0.0) + SMALLEST_MASS) - tails.levels
    summed = np.logaddexp.accumulate(log_mass[::-1])[::-1] + 1e-12
    return np.asarray(np.minimum(summed, np.log(tails.second + tails.second_error + SMALLEST_MASS)))


def level_ladder(noise: Radial, dimension: int, length: float, tail: float, count: int = LEVELS) -> Array:
    """Levels of the loss from far below its ordinary size up to where P(L > l) is about `tail`, geometric."""
    radii = noise.radius_ppf(np.array([0.5, tail]))
    ordinary, extreme = (
        abs(_loss(noise, dimension, length, radius, w))
        for radius, w in zip(map(float, radii), (1.0 / math.sqrt(dimension), 0.0), strict=True)
    )
    return np.geomspace(1e-3 * ordinary, max(2.0 * extreme, 10.0 * ordinary), count)


def _loss(noise: Radial, dimension: int, length: float, radius: float, w: float) -> float:
    """log dP/dQ where r_P = radius and the direction's coordinate along the shift is w."""
    moved = (length / radius) ** 2 + 2.0 * (length / radius) * w
    radii = radius * np.array([1.0, math.sqrt(max(1.0 + moved, 1e-300))])
    here, there = noise.radius_logpdf(radii)
    return float(here - there + 0.5 * (dimension - 1) * math.log1p(max(moved, -1.0 + 1e-16)))
