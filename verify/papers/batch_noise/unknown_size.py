"""Lower bounds under the other two readings: nobody is told how many others are in the batch.

Any pair of neighbouring data sets and any statistic of the release give a valid bound: the statistic's cells have exact
masses, mixtures over K ~ Binomial(N, q) of masses given K, and composing them is composing a post-processing.

    per-example   P_k = S_k + v + z_1 + ... + z_(k+1),   Q_k = S_k + z_1 + ... + z_k    (up to a public divisor)
    realised      P_k = (S_k + v + z)/(k + 1),           Q_k = (S_k + z)/k.

Families of data sets: "apart", where the others contribute nothing and the record v; "against", where each other
record contributes C e and the one in question -C e. Under "realised" the latter moves the release's distance from C e
from z/k to (z - 2 C e)/(k+1): the sum reading's z and z - 2 C e, seen at a scale that changes a little with k.

Statistics: for Gaussian noise the coordinate along e and the squared length of (up to 200,000) others. For
noise with independent coordinates under "realised", e spread over many of them: how many lie below C e, whose law does
not depend on k; and for Laplace noise the sum of magnitudes of the others. For Laplace noise under "per-example": one
coordinate and how many of the others are large. An empty batch (k = 0, record out) is a cell of its own: it releases
the sum of nothing, or nothing at all.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import (
    Array,
    GammaScale,
    IIDCoordinates,
    LaplaceCoordinates,
    Mechanism,
    NormalCoordinates,
)
from dpaudit.verify.claims import Claim
from dpaudit.verify.papers.batch_noise import statistics
from dpaudit.verify.papers.batch_noise.known_others import Reading
from dpaudit.verify.papers.batch_noise.other_records import PMF_ERROR, Others, other_records
from dpaudit.verify.papers.batch_noise.statistics import ConditionalMasses
from dpaudit.verify.pld.cells import SMALLEST_MASS, MassBounds, MixturePair, mix
from dpaudit.verify.pld.operating_points import (
    MAX_LABEL,
    Events,
    grid_step,
    largest_loss,
    loss_variance,
    on_grid,
    operating_points,
    single_points,
)

LEFT_OUT = 1e-25  # probability of the values of K that are left out, on each side
RESOLVED_MASS = 1e-9  # probability of a value of K worth resolving
GAUGES = 16  # coordinates per expected record that measure the noise's size: more would not tell K better
LARGE_DEVIATION = 1.5  # standard deviations beyond which a coordinate counts as large
MAX_DRAWS = 3000  # values of K up to which sums of Laplace draws are worth their time


@dataclass(frozen=True)
class FamilyStatistics:
    """One family's release through its statistics.

    Args:
        family: Of data sets.
        shift: [[value, count], ...] of the record's contribution.
        parts: Independent statistics given K.
        one_way: Whether only the direction "remove" has bounds.
    """

    family: str
    shift: list[list[float]]
    parts: tuple[ConditionalMasses, ...]
    one_way: bool = False


@dataclass(frozen=True)
class Finding:
    """Certified operating points of the history for one family and direction."""

    seen: FamilyStatistics
    direction: str
    points: Events


def findings(claim: Claim, *, reading: Reading, records: int) -> list[Finding]:
    """The history of a claim of one phase, for every family, statistic and direction known for its noise.

    Args:
        claim: Add-remove, Poisson sampling or none, l2 clipping.
        reading: Which.
        records: N, other records.
    """
    phase = claim.phases[0]
    others = other_records(records, phase.sampling_prob, LEFT_OUT)
    certified = []
    for seen in _family_statistics(phase.mechanism, reading, others):
        cells = joined(others, seen.parts)
        for direction in ("remove",) if seen.one_way else ("remove", "add"):
            q = phase.sampling_prob
            pair = MixturePair((1 - q, q), (1.0, 0.0))
            look = mix(cells, pair if direction == "remove" else pair.swapped())
            certified.append(Finding(seen, direction, _points(look, claim)))
    return certified


def joined(others: Others, parts: Sequence[ConditionalMasses]) -> MassBounds:
    """Masses of the product cells, averaged over K, and last the cell of an empty batch; centres without, with."""
    empty = others.sizes == 0
    low, high = others.weights * (1 - PMF_ERROR), others.weights * (1 + PMF_ERROR)
    sides = []
    for bound, weight, factor in ((0, low, 1 - 1e-11), (1, high, 1 + 1e-11)):
        columns = [part.upper if bound else part.lower for part in parts]
        rows = []
        for record in (0, 1):
            present = np.where(empty & (record == 0), 0.0, weight)
            rows.append(np.append(_product(present, [column[record] for column in columns]) * factor, 0.0))
        rows[0][-1] = float(weight[empty].sum())
        sides.append(np.stack(rows))
    return MassBounds(sides[0], sides[1] + others.outside + SMALLEST_MASS)


def _product(weight: Array, columns: Sequence[Array]) -> Array:
    """sum over K of weight times the outer product of the columns' rows, flat."""
    full = [np.broadcast_to(column, (len(weight), column.shape[1])) for column in columns]
    if len(full) == 1:
        return np.asarray(weight @ full[0])
    return np.asarray(((weight[:, None] * full[0]).T @ full[1]).ravel())


def _points(look: tuple[Array, Array], claim: Claim) -> Events:
    """Compose the cells."""
    steps = claim.phases[0].steps
    if steps == 1:
        return single_points(*look)
    tail = max(min(claim.delta or 1e-10, 1e-6) * 1e-6 / steps, 1e-60)
    step, deviation = grid_step([(loss_variance(*look), steps)])
    step = max(step, largest_loss(*look, tail) / MAX_LABEL)
    return operating_points([on_grid(*look, step, steps, tail)], step, deviation)


def _family_statistics(mechanism: Mechanism, reading: Reading, others: Others) -> list[FamilyStatistics]:
    """The families and statistics for a mechanism."""
    law, n, clip = mechanism.structure, int(mechanism.dimension or 1), float(mechanism.clip)
    likely = np.flatnonzero((others.weights >= RESOLVED_MASS * others.weights.max()) & (others.sizes > 0))
    if isinstance(law, NormalCoordinates):
        return _gaussian(mechanism, law.sigma, n, reading, others.sizes, likely)
    if reading == "realised" and isinstance(law, IIDCoordinates | GammaScale):
        return _signs(mechanism, law, n, others, likely)
    if isinstance(law, LaplaceCoordinates) and others.sizes[-1] <= MAX_DRAWS:
        return _laplace_draws(law.scale, clip, n, others, likely)
    return []


def _gaussian(
    mechanism: Mechanism, sigma: float, n: int, reading: Reading, sizes: NDArray[np.int64], likely: NDArray[np.int64]
) -> list[FamilyStatistics]:
    """The component along e, and the squared length of the rest: all directions look the same, so e is the longest."""
    k = sizes.astype(np.float64)
    moved = 1 if mechanism.clip_norm <= 2 else n
    each = float(mechanism.clip) * moved ** (-1.0 / mechanism.clip_norm) * (1 - 1e-14)
    clip = each * math.sqrt(moved)
    families = []
    for family in ("against",) if reading == "realised" else ("apart", "against"):
        if reading == "realised":
            mean = np.stack([0 * k, -2 * clip / (k + 1)])
            deviation = sigma / np.stack([np.maximum(k, 1), k + 1])
        else:
            mean = clip * (np.stack([0 * k, 1 + 0 * k]) if family == "apart" else np.stack([k, k - 1]))
            deviation = sigma * np.sqrt(np.stack([k, k + 1]))
        parts = [statistics.normal(mean, deviation, likely)]
        if n > 1:
            rest = min(n - 1, 2 * statistics.LARGEST_SHAPE)
            parts.append(statistics.gamma(rest / 2, 2 * deviation**2, likely))
        value = each if family == "apart" else -each
        families.append(FamilyStatistics(family, [[value, moved]], tuple(parts)))
    return families


def _signs(
    mechanism: Mechanism, law: IIDCoordinates | GammaScale, n: int, others: Others, likely: NDArray[np.int64]
) -> list[FamilyStatistics]:
    """How many of m coordinates lie below that of C e: half of them, or P(z <= twice that) of them, at any k."""
    laplace = law.scale if isinstance(law, LaplaceCoordinates) else None
    most = min(n // 4, statistics.LARGEST_SHAPE)
    gauges = min(most, GAUGES * int(others.sizes[likely].mean() + 1)) if laplace is not None else 0
    m = n - gauges
    each = float(mechanism.clip) * m ** (-1.0 / mechanism.clip_norm) * (1 - 1e-14)
    if isinstance(law, GammaScale):
        return [
            FamilyStatistics("against", [[-each, m]], (statistics.hidden_scale_count(m, law, 2 * each),), one_way=True)
        ]
    prob = float(law.cdf(np.array([2 * each]))[0])
    parts = [statistics.count(m, np.array([[0.5], [prob]]), likely)]
    if gauges and laplace is not None:
        k = others.sizes.astype(np.float64)
        parts.append(statistics.gamma(gauges, laplace / np.stack([np.maximum(k, 1), k + 1]), likely))
    return [FamilyStatistics("against", [[-each, m]], tuple(parts))]


def _laplace_draws(
    scale: float, clip: float, n: int, others: Others, likely: NDArray[np.int64]
) -> list[FamilyStatistics]:
    """One coordinate, and how many of the others are large."""
    draws = np.arange(others.sizes[0], others.sizes[-1] + 2)  # K, and K + 1 with the record
    sizes = others.sizes[likely].astype(np.float64)
    least, most = (scale * math.sqrt(2 * side) for side in (float(sizes.min()), float(sizes.max())))
    reach = statistics.REACH * most
    edges = np.linspace(-reach, clip + reach, int(np.clip(2 * reach / (statistics.FINENESS * least), 50, 500)))
    without, with_record = (statistics.laplace_sum(draws, scale, np.array(c), edges) for c in (0.0, clip))
    tails = [np.stack([a[:-1], b[1:]]) for a, b in zip(without, with_record, strict=True)]
    parts = [statistics.from_tails(tails[0], tails[1])]
    if n > 1:
        typical = LARGE_DEVIATION * scale * math.sqrt(2 * float(sizes.mean()))
        large = 2 * statistics.laplace_sum(draws, scale, np.array(0.0), np.array([typical]))[1][:, 0]
        parts.append(statistics.count(n - 1, np.stack([large[:-1], large[1:]]), likely))
    return [FamilyStatistics("apart", [[clip, 1]], tuple(parts))]
