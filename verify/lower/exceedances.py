"""How many releases exceed a threshold: a lower bound where losses are too large for any grid that holds them all.

Let a record move one coordinate of every release of a phase, none depending on another. A release exceeds a threshold
with probability P_1 under the one neighbour and Q_1 under the other, coins included, and how many of T releases do is
Binomial(T, P_1) or Binomial(T, Q_1). Binomial tails rise with the chance: with p <= P_1 and q >= Q_1 the event that j
releases or more exceed it has

    P >= Pr[Binomial(T, p) >= j],    log Q <= -T KL(j/T, q) for j > T q  (Hoeffding 1963, Theorem 1),

and Q <= T q for j = 1 (union bound). Every threshold and every j is an event of its own.
"""

import math
from collections.abc import Iterable

import numpy as np
from scipy.special import log_ndtr, logsumexp, ndtr

from dpaudit.mechanisms.base import Array, IIDCoordinates, NormalCoordinates
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.binomial_tails import binomial_tails
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.families import equal
from dpaudit.verify.lower.histories import ShiftedPhase, shifted_phase
from dpaudit.verify.lower.shifts import longest_count
from dpaudit.verify.lower.strongest import aim, event, strongest_curve
from dpaudit.verify.pld.cells import MixturePair, interval_masses, mix
from dpaudit.verify.pld.normal_tails import tail_error
from dpaudit.verify.pld.operating_points import Points, merge
from dpaudit.verify.results import Witness

THEOREM = (
    "how many releases exceed a threshold: binomial, its tails summed, and bounded by Hoeffding (1963), Theorem 1, "
    "under the other neighbour"
)
ALONE = "lower bound: by how many releases of one phase exceed a threshold; all else is left out, which only lowers it"
THRESHOLDS = (0.25, 0.5, 0.75, 0.9, 1.0)  # in multiples of how far the record moves the coordinate
DEVIATIONS = np.arange(-8.0, 8.5, 0.5)  # from the mean of the count under P, where events are tried
FEW = np.array([1.0, 2.0, 3.0, 4.0])
WIDEST = 2**20


def exceedance_curves(claim: Claim, phases: Iterable[Phase]) -> list[Curve]:
    """Lower bounds by the exceedances of each phase whose noise has independent coordinates; none for other noise.

    Args:
        claim: In its canonical form.
        phases: Those of it that Poisson sampling or none describes, without correlation.
    """
    return [_curve(claim, phase) for phase in phases if isinstance(phase.mechanism.structure, IIDCoordinates)]


def _curve(claim: Claim, phase: Phase) -> Curve:
    normal = isinstance(phase.mechanism.structure, NormalCoordinates)
    shift = equal(phase.mechanism, longest_count(phase.mechanism) if normal else 1)
    release = shifted_phase(claim, phase, shift)
    assert release.line is not None  # independent coordinates, of which one is moved, or normal ones
    direction = "swap" if claim.adjacency == "replace-one" else "remove"
    thresholds = release.line[1].max() * np.array(THRESHOLDS)
    found = [exceedances(release, float(threshold), direction) for threshold in thresholds]

    def witness(index: int) -> Witness:
        what = f"number of the {phase.steps:,} releases whose output along the shift exceeds {thresholds[index]:.6g}"
        return shift.witness(claim, direction, event(found[index], aim(found[index], claim), what))

    return strongest_curve(found, claim, THEOREM, (ALONE,), witness)


def exceedances(release: ShiftedPhase, threshold: float, direction: str) -> Points:
    """Events that at least j releases exceed a threshold, for some j; `threshold` of the points is j.

    Args:
        release: One coordinate on a line, of so many steps.
        threshold: On that line.
        direction: "remove" or "swap".
    """
    p, log_q = _one_release(release, threshold, direction)
    steps = float(release.phase.steps)
    around = steps * p + DEVIATIONS * math.sqrt(steps * p * (1.0 - p))
    few = FEW if around[0] < FEW[-1] else FEW[:0]  # a count far below its mean is surpassed by others as surely
    counts = np.unique(np.clip(np.floor(np.concatenate([few, around])), 1.0, steps))
    low = binomial_tails(counts[None], np.array([steps]), np.array([p]), widest=WIDEST)[0][0]
    counts, low = np.append(counts, steps), np.append(low, _all_of_them(p, steps))
    return merge([Points(low, log_upper_tails(counts, steps, log_q), counts)])


def _all_of_them(chance: float, trials: float) -> float:
    """Lower bound of chance^trials, without a window that reaches up to all of them."""
    if chance <= 0.0:
        return 0.0
    exponent = trials * math.log(min(chance, 1.0))
    return math.exp(exponent * (1.0 + 8.0 * UNIT)) * (1.0 - 8.0 * UNIT)


def _one_release(release: ShiftedPhase, threshold: float, direction: str) -> tuple[float, float]:
    """Lower bound of P_1, and upper bound of log Q_1."""
    assert release.line is not None
    law, centres = release.line
    pair = release.pair(direction)
    if isinstance(law, NormalCoordinates):  # whose tails are known where they are too small for floats
        return _one_normal(centres / law.sigma * (1.0 - 4.0 * UNIT), threshold / law.sigma, pair)
    first, second = mix(interval_masses(law, np.array([threshold]), centres), pair)
    return float(first[1]), math.log(min(float(second[1]), 1.0)) + 2.0 * UNIT * 700.0


def _one_normal(centres: Array, threshold: float, pair: MixturePair) -> tuple[float, float]:
    """The same of unit normal noise, as in `pld.normal_points`."""
    x = centres - threshold
    tails = ndtr(x) * (1.0 - np.where(x < 0, tail_error(x), tail_error(np.zeros(1))))
    with np.errstate(divide="ignore"):
        log_second = float(logsumexp(np.log(pair.second) + log_ndtr(x) + tail_error(np.minimum(x, 0.0))))
    p = float(np.array(pair.first) @ tails) * (1.0 - 8.0 * UNIT)
    return p, min(log_second + 8.0 * UNIT * (2.0 + abs(log_second)), 0.0)


def log_upper_tails(counts: Array, trials: float, log_chance: float) -> Array:
    """Upper bounds of log Pr[Binomial(trials, e^log_chance) >= count], by the theorem above.

    With a = count/trials, -T KL(a, q) is count (log q - log a) + (T - count) (log(1 - q) - log(1 - a)), of which
    (T - count) log(1 - q), at most 0, is left out; each of the other terms carries some roundings.

    Args:
        counts: Whole numbers in [1, trials].
        trials: At least 1.
        log_chance: At most 0.
    """
    rest, share = trials - counts, counts / trials
    with np.errstate(divide="ignore", invalid="ignore"):
        others = np.where(rest > 0, rest * -np.log1p(-np.minimum(share, 1.0)), 0.0)  # their chance is at most 1
    exponent = counts * (log_chance - np.log(share)) + others
    size = counts * (abs(log_chance) + np.abs(np.log(share)) + 1.0) + others
    above = share > math.exp(log_chance) * (1.0 + 1e-12)
    values = np.where(above, exponent + 16.0 * UNIT * size, 0.0)
    union = math.log(trials) + log_chance + 16.0 * UNIT * (math.log(trials) - log_chance + 1.0)
    return np.minimum(np.where(counts == 1, np.minimum(values, union), values), 0.0)
