"""Log-moments of releases whose losses are those of half-lines of normal mixtures (`pld.half_lines`).

An f-divergence with f(1) = f'(1) = 0 is the integral of f''(t) times the profile at t, for t > 1, and times what the
profile exceeds 1 - t by, for t < 1 (Taylor's formula with the remainder as an integral, under the mean). With f = psi,
psi(r) = r^a - 1 - a (r - 1), a release whose profile is nowhere above that of `Halves` has

    E_Q[W^a] - 1 <= E_B[psi(r); r > 1] + E_A'[psi(1/r'); r' > 1],

r the ratio of the laws A and B of the one pair, `above`, and r' that of A' and B' of the other, `below`: below 1 the
profile is the mirror image of theirs. Both ratios rise on their half-lines, so psi(r) and psi(1/r') do: on a cell their
value at its right end times a bound of its mass is a bound. Beyond the last cell psi(1/r') is at most psi(0) = a - 1,
and psi(r) at most r^a, whose logarithm rises by at most a D a unit of x, D the distance of the first law's last centre
from the second's first one.
"""

import math

import numpy as np
from scipy.special import log_ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.pld.coordinate_moments import CHARGE, log_psi
from dpaudit.verify.pld.half_lines import Halves, NormalMixtures
from dpaudit.verify.rdp import log_peak, log_sum_upper

MOST_CELLS = 1 << 17
REACH = 12.0  # deviations that the cells go beyond the last centre
MOST_LOSS = 1e5  # of a times the distance of centres, beyond which the cells would be too coarse to say anything


def half_moments(halves: Halves, lams: Array) -> Array:
    """alpha(lam) = log E_Q[W^(lam + 1)] of one release in either order, the larger one, rounded up; inf out of reach.

    Args:
        halves: The release; how many there are does not matter.
        lams: lam > 0.
    """
    return np.array([max(_moment(way, float(lam) + 1.0) for way in (halves, halves.mirrored())) for lam in lams])


def _moment(halves: Halves, a: float) -> float:
    total = np.logaddexp(_above(halves.above, a, rising=True), _above(halves.below, a, rising=False))
    return float(np.logaddexp(0.0, total + 2.0 * CHARGE))


def _above(pair: NormalMixtures, a: float, *, rising: bool) -> float:
    """log of a bound on E[psi(r); r > 1] under the second law, or of E[psi(1/r); r > 1] under the first."""
    weights = np.array(pair.second if rising else pair.first)
    centres, last = pair.centres[weights > 0], float(pair.centres[np.array(pair.first) > 0].max())
    logs = np.log(weights[weights > 0])
    climb = a * (last - float(pair.centres[np.array(pair.second) > 0].min())) if rising else 0.0
    if not climb < MOST_LOSS:
        return math.inf
    begins, slack = pair.beginning(np.zeros(1))
    start = float(begins[0])
    end = max(last, start) + climb + REACH + math.sqrt(-4.0 * math.log(min(pair.first[2], 0.5)))
    count = int(min(MOST_CELLS, 2.0 + (end - start) * max(1e3, 500.0 * climb)))
    edges = np.linspace(start, end, count)
    # a logarithm of a sum of powers of e, of exponents up to |x| m + m^2
    rounding = 32.0 * UNIT * (1.0 + np.abs(edges) * pair.distance + pair.distance**2)
    loss = np.maximum(pair.loss(edges), 0.0) + slack + rounding
    peaks = np.array([w + log_peak(edges - c) for w, c in zip(logs, centres, strict=True)])
    mass = np.asarray(np.logaddexp.reduce(peaks, axis=0))
    parts = mass + log_psi(loss[1:] if rising else -loss[1:], a) + np.log(np.diff(edges))
    if rising:
        beyond = logs + climb * (centres - end + 0.5 * climb) + a * loss[-1] + log_ndtr(centres + climb - end)
    else:
        beyond = logs + math.log(a - 1.0) + log_ndtr(centres - end)
    # where the half-line begins the loss is below the slack
    return log_sum_upper(np.concatenate([parts, beyond, log_psi(np.array([slack if rising else -slack]), a)]))
