"""Neighbouring inputs: which shifts a record may cause, which of them are worth certifying, and in what direction."""

import math
from collections.abc import Sequence

import numpy as np
from scipy.special import gammaln

from dpaudit.mechanisms.base import Array, IIDCoordinates, Mechanism, ScaleMixture
from dpaudit.mechanisms.numerics import log_sum_exp
from dpaudit.verify.claims import Adjacency, Phase
from dpaudit.verify.lower.families import MAX_COORDINATES, Shift, equal
from dpaudit.verify.pld.cells import MixturePair, interval_masses, scan_points
from dpaudit.verify.pld.coordinate_cells import MANY
from dpaudit.verify.pld.scale_mixture_cells import gauge_count, resolved

DECISIVE_LOSS = 500.0  # nats one coordinate costs (masses end at 690), beyond which no other shift is worth its time
ORDERS = np.array([2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32, 48, 64, 96, 128])
NODES_PER_E = 8.0  # shifts at which a coordinate's moments are computed, per factor e


def candidate_counts(mechanism: Mechanism, limit: int = MANY) -> list[int]:
    """Numbers m of equal coordinates to try: 1..10, then doubling up to the dimension; only 1 where that is unknown.

    Args:
        mechanism: Its dimension.
        limit: Most that may be tried.

    Example:
        >>> from dpaudit.mechanisms import Laplace
        >>> candidate_counts(Laplace(1.0, dimension=50))
        [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 40, 50]
    """
    top = max(1, min(mechanism.dimension or 1, limit))
    ladder = [10 * 2**i for i in range(1, 40) if 10 * 2**i < top]
    return sorted({*range(1, min(top, 10) + 1), *ladder, top})


def longest_count(mechanism: Mechanism) -> int:
    """How many equal coordinates give the largest l2 norm within the clip: one for p <= 2, else all."""
    return 1 if mechanism.clip_norm <= 2.0 else max(mechanism.dimension or 1, 1)


def centre_multiples(phase: Phase, adjacency: Adjacency) -> tuple[float, ...]:
    """Centres of the noise, in multiples of the shift v, whose laws a neighbouring pair mixes.

    Add-remove: 0 (without the record) and v. Replace-one: -v, 0 and v (the two versions, and not sampled); without
    sampling only the distance 2v between the versions matters.
    """
    if adjacency == "add-remove":
        return 0.0, 1.0
    return (0.0, 2.0) if phase.sampling_prob == 1.0 else (-1.0, 0.0, 1.0)


def pair_of(phase: Phase, multiples: Sequence[float], direction: str) -> MixturePair:
    """Output laws of one Poisson-sampled step, as mixtures over the centres: the record is in with probability q.

    Args:
        phase: Its rate q.
        multiples: From `centre_multiples`, or (0, 1) for a record that replaces one contributing nothing.
        direction: "add" exchanges the two distributions of "remove"; "swap" is the first of a replacement's.
    """
    q = phase.sampling_prob
    if len(multiples) == 3:
        return MixturePair((0.0, 1.0 - q, q), (q, 1.0 - q, 0.0))
    pair = MixturePair((1.0 - q, q), (1.0, 0.0))
    return pair.swapped() if direction == "add" else pair


def ranked_counts(law: IIDCoordinates, phase: Phase, distance: float, counts: Sequence[int], delta: float) -> list[int]:
    """Numbers of equal coordinates, most promising first; see `scores`.

    Args:
        law: Law of one coordinate.
        phase: Steps, rate and clipping.
        distance: Distance of the two centres in multiples of the shift.
        counts: Candidate numbers of equal coordinates.
        delta: Where epsilon is compared.
    """
    if len(counts) == 1:
        return list(counts)
    epsilons = scores(law, phase, distance, [equal(phase.mechanism, count) for count in counts], delta)
    return [counts[i] for i in np.argsort(-epsilons, kind="stable")]


def mixture_counts(
    structure: ScaleMixture, mechanism: Mechanism, phase: Phase, distance: float, delta: float
) -> list[int]:
    """Numbers of equal coordinates to certify under a hidden scale, ranked as if it were known and rather large."""
    gauges = gauge_count(structure, mechanism.dimension or 1)
    limit = max(1, (mechanism.dimension or 1) - gauges)
    counts = candidate_counts(mechanism, min(limit, MAX_COORDINATES))
    counts = [m for m in counts if m <= 10 or resolved(structure, distance * equal(mechanism, m).groups[0][0], m)]
    law = structure.given(float(structure.scale_isf(np.array(1e-2))))
    if scores(law, phase, distance, [equal(mechanism, 1)], delta)[0] > DECISIVE_LOSS:
        return [1]
    return ranked_counts(law, phase, distance, counts, delta)[: 1 if gauges else 2]


def scores(law: IIDCoordinates, phase: Phase, distance: float, shifts: Sequence[Shift], delta: float) -> Array:
    """The Renyi epsilon of every shift: a guide to the search, never a bound.

    Args:
        law: Law of one coordinate.
        phase: Steps, rate and clipping.
        distance: Distance of the two centres in multiples of the shift.
        shifts: The candidates.
        delta: Where epsilon is compared.
    """
    values = np.array([value for shift in shifts for value, _ in shift.groups])
    counts = np.array([count for shift in shifts for _, count in shift.groups], dtype=np.float64)
    starts = np.cumsum([0] + [len(shift.groups) for shift in shifts[:-1]])
    moments = np.add.reduceat(counts[:, None] * _log_moments(law, distance * values), starts, axis=0)
    return _renyi_epsilon(moments, phase.sampling_prob, phase.steps, max(delta, 1e-12))


def _log_moments(law: IIDCoordinates, shifts: Array) -> Array:
    """log E_Q (P/Q)^eta of one coordinate for eta = 0..128, interpolated in the logarithm between few shifts."""
    low, high = float(shifts.min()), float(shifts.max())
    known = np.geomspace(low, high, 2 + math.ceil(NODES_PER_E * math.log(high / low)))
    eta = np.arange(ORDERS[-1] + 1)
    table = []
    for shift in known:
        centres = np.array([0.0, shift])
        cells = interval_masses(law, scan_points(law, centres, 1e-12)[::4], centres)
        log_q = np.log(cells.upper[0])
        table.append(log_sum_exp(log_q + np.outer(eta, np.log(cells.upper[1]) - log_q)))
    logs = np.log(np.maximum(np.array(table), 1e-300))
    at, grid = np.log(shifts), np.log(known)
    right = np.clip(np.searchsorted(grid, at), 1, len(grid) - 1)
    share = ((at - grid[right - 1]) / np.maximum(grid[right] - grid[right - 1], 1e-300))[:, None]
    moments = np.exp((1.0 - share) * logs[right - 1] + share * logs[right])
    moments[:, :2] = 0.0  # E_Q 1 = E_Q P/Q = 1
    return np.asarray(moments)


def _renyi_epsilon(moments: Array, q: float, steps: int, delta: float) -> Array:
    """Least epsilon over ORDERS of the subsampled, composed moments log E_Q (P/Q)^eta, row by row."""
    best = np.full(len(moments), math.inf)
    for order in ORDERS:
        eta = np.arange(order + 1)
        if q == 1.0:
            log_moment = moments[:, order]
        else:
            binomial = gammaln(order + 1) - gammaln(eta + 1) - gammaln(order - eta + 1)
            weights = binomial + (order - eta) * math.log1p(-q) + eta * math.log(q)
            log_moment = log_sum_exp(weights + moments[:, : order + 1])
        lam = order - 1.0
        value = steps * log_moment / lam + math.log(lam / order) - (math.log(delta) + math.log(order)) / lam
        best = np.minimum(best, value)
    return best
