"""Moments of ONE coordinate's likelihood ratio, h_eta(s) = log E_Q[(dP/dQ)^eta], for a shift s of the coordinate.

With phi = -log f, x = y + s and L = phi(x) - phi(x - s), the integrand of e^h - 1 = E_Q[W^eta - 1 - eta (W - 1)],
W = e^L, is nonnegative: nothing cancels, however small s is. Gauss-Legendre panels shrink geometrically towards the two
kinks (x = 0 and x = s) and linearly about the peak beyond s that a light tail has.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates

NODES = 8
FINEST = 1e-7  # first panel, in quartiles of the law
WIDTHS = np.array([0.5, 1.0, 1.5, 2.0, 3.0, 4.5, 7.0])  # panel ends around a peak, in its half-widths
QUADRATURE = 1e-6  # relative error charged to e^h - 1; the tests measure below 1e-7


@dataclass(frozen=True)
class Coordinate:
    """One coordinate of iid noise, as the coordinate envelope sees it.

    Args:
        law: Its law, symmetric and unimodal.
        convex: phi is convex (a log-concave law); else phi is concave on (0, inf), as for heavy tails.
        fisher: Fisher information of the location family, E[phi'^2]; inf where it does not exist.
        quartile: Upper quartile, the unit of lengths.
    """

    law: IIDCoordinates
    convex: bool
    fisher: float
    quartile: float

    def phi(self, x: Array) -> Array:
        """-log f(x) + log f(0)."""
        return np.asarray(self.law.logpdf(np.zeros(1))[0] - self.law.logpdf(x))

    def score(self, x: Array) -> Array:
        """phi'(x) for x > 0, by a central difference at relative distance 1e-5."""
        return np.asarray((self.phi(x * (1 + 1e-5)) - self.phi(x * (1 - 1e-5))) / (2e-5 * x))


def coordinate(law: IIDCoordinates) -> Coordinate | None:
    """What the envelope needs to know of a law; None where neither convex nor concave phi is recognised.

    A concave phi must leave 1/f convex: then e^((eta-1) phi) is convex for eta >= 2, and so is e^h in s.
    """
    quartile = float(law.ppf(np.array([0.75]))[0])
    found = Coordinate(law, law.power is not None, math.inf, quartile)
    if law.power is None:
        x = quartile * np.geomspace(1e-3, 1e6, 1000)
        phi = found.phi(x)
        inverse = np.exp(np.minimum(phi, 600.0))
        if not (_turns(x, phi) <= 1e-7).all() or not (_turns(x, inverse)[phi[2:] < 600.0] >= -1e-7).all():
            return None
    nodes, weights = _panels(np.append(0.0, quartile * np.geomspace(FINEST, 1e9, 130))[None, :])
    density = 2.0 * weights * np.exp(law.logpdf(nodes))
    used = density > 0
    fisher = float((density[used] * found.score(nodes[used]) ** 2).sum()) * (1 + QUADRATURE)
    return Coordinate(law, found.convex, fisher, quartile)


def _turns(x: Array, values: Array) -> Array:
    """Relative change of slope at every inner point."""
    slopes = np.diff(values) / np.diff(x)
    return np.asarray(np.diff(slopes) / np.maximum(np.maximum(np.abs(slopes[1:]), np.abs(slopes[:-1])), 1e-300))


def _panels(ends: Array) -> tuple[Array, Array]:
    """Gauss-Legendre nodes and weights on the panels between consecutive columns of `ends`, row by row."""
    x, w = np.polynomial.legendre.leggauss(NODES)
    low, width = ends[:, :-1, None], np.diff(ends, axis=1)[:, :, None]
    nodes = low + 0.5 * width * (x + 1.0)
    return nodes.reshape(len(ends), -1), (0.5 * width * w).reshape(len(ends), -1)


def log_moment(one: Coordinate, shifts: Array, eta: float) -> Array:
    """h_eta(s) = log E_Q[(dP/dQ)^eta], never below the truth by more than the quadrature error charged.

    Args:
        one: The coordinate.
        shifts: s > 0, 1-d.
        eta: Order, > 1.
    """
    s = shifts[:, None]
    near = np.append(0.0, np.geomspace(FINEST, 1.0, 12))[None, :]
    ladder = np.append(0.0, one.quartile * np.geomspace(FINEST, 1.0, 10))
    outer = np.append(ladder, one.quartile * np.geomspace(1.0, 1e6, 46)[1:])[None, :]
    count = math.ceil(float(shifts.max()) / one.quartile)
    half = np.unique(np.append(near[0], np.linspace(0.0, 1.0, min(count, 400) + 1)))[None, :] * 0.5 * s
    right = np.sort(
        np.concatenate([np.broadcast_to(outer, (len(s), outer.shape[1])), _peak(one, s, eta)], axis=1), axis=1
    )
    regions = ((-1.0, outer, 0.0 * s), (1.0, half, 0.0 * s), (-1.0, half, s), (1.0, right, s))
    exponents = []
    for sign, ends, origin in regions:
        distance, weight = _panels(np.broadcast_to(ends, (len(s), ends.shape[1])))
        with np.errstate(divide="ignore"):
            exponents.append(_log_excess(one, origin + sign * distance, s, eta) + np.log(weight))
    stacked = np.concatenate(exponents, axis=1)
    top = stacked.max(axis=1)
    log_excess = top + np.log(np.exp(stacked - top[:, None]).sum(axis=1)) + QUADRATURE
    return np.asarray(np.logaddexp(0.0, log_excess))


def _log_excess(one: Coordinate, x: Array, s: Array, eta: float) -> Array:
    """log of f(x) (W^eta - 1 - eta (W - 1)), with W = f(x - s)/f(x)."""
    here = one.phi(x)
    loss = here - one.phi(x - s)
    power = np.clip(eta * loss, -700.0, 40.0)
    ordinary = np.expm1(power) - eta * np.expm1(np.clip(loss, -700.0, 40.0))
    series = 0.5 * eta * (eta - 1) * loss**2 * (1 + (eta + 1) * loss / 3)
    small = np.maximum(np.where(np.abs(eta * loss) < 1e-5, series, ordinary), 0.0)
    with np.errstate(divide="ignore"):
        # beyond 40 the subtrahends are below rounding only for large eta: leaving them out is an upper bound
        value = np.where(eta * loss > 40.0, eta * loss, np.log(small))
    return np.asarray(value - here + one.law.logpdf(np.zeros(1))[0])


def _peak(one: Coordinate, s: Array, eta: float) -> Array:
    """Panel ends about the largest value of the integrand beyond s, one row per shift."""
    if not one.convex:
        return np.zeros((len(s), 1))
    distance = one.quartile * np.geomspace(1e-3, 1e6, 700)[None, :]

    def height(d: Array) -> Array:
        return np.asarray((eta - 1) * one.phi(s + d) - eta * one.phi(d))

    heights = height(distance)
    best = np.argmax(heights, axis=1)
    centre = distance[0, best][:, None]
    # half-width of the peak: where the exponent has fallen by one half, from its curvature
    step = 0.05 * centre
    curvature = (2 * height(centre) - height(centre - step) - height(centre + step)) / step**2
    width = 1.0 / np.sqrt(np.maximum(curvature, 1.0 / centre**2))
    return np.asarray(np.maximum(centre + width * np.concatenate([-WIDTHS[::-1], [0.0], WIDTHS]), 0.0))


def small_shift_bound(one: Coordinate, shift: float, eta: float) -> float:
    """A bound B(s) >= h_eta(s), with B(s)/s^2 nondecreasing in s.

    Concave phi: |L| <= kappa = phi(s). With the symmetric measure dM = e^(-l/2) dP_L, of total mass B(s) and
    1 = int cosh(l/2) dM, e^h - 1 = int cosh((eta - 1/2) l) - cosh(l/2) dM; (cosh(a l) - 1)/(cosh(l/2) - 1) grows with
    |l| for a > 1/2, and int cosh(l/2) - 1 dM = 1 - B(s) = H^2 <= s^2 J/8 (Hellinger distance against Fisher's J):
    e^h - 1 <= (s^2 J/8) [(cosh((eta - 1/2) kappa) - 1)/(cosh(kappa/2) - 1) - 1].

    Convex phi: with g = e^h, g'(s) = eta E_P[(W^(eta-1) - 1) phi'(y)] up to sign, |L| <= s phi'(|y| + s), so
    g - 1 <= (s^2/2) eta (eta-1) E[phi'(|y|+s)^2 e^((eta-1) s phi'(|y|+s))].

    Args:
        one: The coordinate.
        shift: s > 0.
        eta: Order, > 1.
    """
    if not one.convex:
        kappa = float(one.phi(np.array([shift]))[0])
        if (eta - 0.5) * kappa > 600.0:
            return math.inf
        rise = (math.sinh((eta - 0.5) * kappa / 2) / math.sinh(kappa / 4)) ** 2 - 1.0
        return shift**2 * one.fisher / 8 * rise
    ends = np.append(0.0, one.quartile * np.geomspace(FINEST, 1e4, 160))[None, :]
    y, weight = _panels(ends)
    score = one.score(y + shift)
    with np.errstate(divide="ignore"):
        exponent = one.law.logpdf(y) + np.log(2.0 * weight) + 2.0 * np.log(score) + (eta - 1) * shift * score
    top = float(exponent.max())
    if top > 600.0:
        return math.inf
    spread = float(np.exp(exponent - top).sum()) * math.exp(top) * (1 + QUADRATURE)
    return 0.5 * shift**2 * eta * (eta - 1) * spread
