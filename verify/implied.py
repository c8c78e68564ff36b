"""What a guarantee of any kind says about delta(epsilon), and what a curve says about mu and about true positives.

Each kind implies an upper bound on delta(epsilon) of every mechanism that keeps it, here rounded up:

- pure e0: (e^e0 - e^e)_+/(1 + e^e0), that of randomised response (Kairouz, Oh and Viswanath 2015).
- approximate (e0, d): d from e0 on, below it d + (1-d) (e^e0 - e^e)_+/(1 + e^e0) (the same, Theorem 3.1).
- Gaussian mu: that of N(mu, 1) against N(0, 1). Several points: the least of theirs.
- zero-concentrated rho, Renyi epsilon at one order: the conversion of `rdp.log_delta` at all orders, or at this one.
"""

import math
from collections.abc import Sequence
from functools import partial

import numpy as np
from scipy.special import log_ndtr

from dpaudit.mechanisms.base import Array, Function
from dpaudit.verify.bounds.gdp import gaussian_epsilon
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.claims import Adjacency, Claim, Phase, Unit
from dpaudit.verify.guarantees import (
    ApproximateDP,
    GaussianDP,
    Guarantee,
    PrivacyCurve,
    PureDP,
    RenyiDP,
    ZeroConcentratedDP,
    check_guarantee,
)
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.rdp import moments_delta
from dpaudit.verify.results import OperatingPoints
from dpaudit.verify.upper.gaussian_pld import analytic_delta

HEADLINE_DELTA = 1e-5  # where the epsilon of a guarantee without a delta is told
LEAST_DELTA = 1e-12  # down to which a curve is compared with a Gaussian one
RATES = (0.001, 0.01, 0.1)  # false-positive rates at which the largest true-positive rate is told
ROUNDING = 1e-13
LARGEST_MU = 60.0  # mu beyond which nothing is promised any more
ORDERS = 4000  # of which the best converts a rho
LARGEST_EPSILON = 700.0  # whose e^epsilon is a float
LARGEST_LAM = 1e100  # of an order, whose square is a float too
LARGEST_ALPHA = 1e300  # of an order times a divergence
TINY = 1e-300  # a rho whose quotients are floats
SMALLEST = 1e-280  # delta whose multiples are floats
PANELS = 2000  # of an integral over a curve
GRID = 192  # epsilons at which a curve is compared with a Gaussian one
BISECTIONS = 52


def implied_delta(guarantee: Guarantee) -> Function:
    """The largest delta(epsilon) that a guarantee allows, rounded up, as a function of epsilon >= 0.

    >>> implied_delta(PureDP(1.0))(np.array([0.0, 1.0])).round(3).tolist()
    [0.462, 0.0]
    """
    match guarantee:
        case PureDP(epsilon):
            return partial(_approximate, epsilon, 0.0)
        case ApproximateDP(epsilon, delta):
            return partial(_approximate, epsilon, delta)
        case GaussianDP(mu):
            return partial(analytic_delta, mu) if mu > 0 else np.zeros_like
        case ZeroConcentratedDP(rho):
            if rho == 0:
                return np.zeros_like
            most = min(LARGEST_EPSILON / max(rho, TINY), LARGEST_LAM)  # the best is at most epsilon / (2 rho)
            lam = np.geomspace(1e-4, max(10.0, most), ORDERS)
            return partial(moments_delta, lam, lam * (lam + 1.0) * rho)
        case RenyiDP(order, epsilon):
            # a divergence grows with its order, and the moment must be a float
            largest = min(order - 1.0, LARGEST_LAM, max(1.0, LARGEST_ALPHA / max(epsilon, 1.0)))
            return partial(moments_delta, np.array([largest]), np.array([largest * epsilon]))
        case PrivacyCurve(points):
            parts = [partial(_approximate, epsilon, delta) for epsilon, delta in points]
            return lambda at: np.asarray(np.min([part(at) for part in parts], axis=0))


def _approximate(epsilon: float, delta: float, at: Array) -> Array:
    """The curve of an (epsilon, delta) at smaller and larger epsilons."""
    # (e^e0 - e^e)/(1 + e^e0) = (1 - e^(e - e0))/(1 + e^-e0), and no power overflows
    excess = -np.expm1(np.minimum(at - epsilon, 0.0)) / (1.0 + math.exp(-epsilon))
    return np.minimum(delta + (1.0 - delta) * excess * (1.0 + ROUNDING), 1.0)


def headline(guarantee: Guarantee) -> tuple[float, float]:
    """An (epsilon, delta) that the guarantee implies: its own where it has one, else epsilon at delta 1e-5.

    Bounds are the sharpest there. Of several points the one of the least delta above 0 is it, whatever their order.

    >>> epsilon, delta = headline(GaussianDP(1.0))
    >>> print(f"{epsilon:.4f} {delta}")
    4.3772 1e-05
    """
    check_guarantee(guarantee)
    match guarantee:
        case PureDP(epsilon):
            return epsilon, 0.0
        case ApproximateDP(epsilon, delta):
            return epsilon, delta
        case PrivacyCurve(points):
            return min(points, key=lambda point: (point[1] == 0, point[1], point[0]))
        case GaussianDP(mu):
            return gaussian_epsilon(mu, HEADLINE_DELTA), HEADLINE_DELTA
        case ZeroConcentratedDP(rho):
            far = rho + 2.0 * math.sqrt(rho * -math.log(HEADLINE_DELTA))
        case RenyiDP(order, epsilon):
            far = epsilon - math.log(HEADLINE_DELTA) / (order - 1.0)
    found = float(epsilon_at(implied_delta(guarantee), np.array([HEADLINE_DELTA]))[0])
    return (found if math.isfinite(found) else far), HEADLINE_DELTA  # no search goes as far as orders close to 1 reach


def claim_stating(
    guarantee: Guarantee,
    phases: Sequence[Phase],
    adjacency: Adjacency = "add-remove",
    id: str = "",
    accountant: str | None = None,
    source: str = "",
    unit: Unit = "record",
) -> Claim:
    """The claim of a guarantee of any kind, told at an (epsilon, delta) that it implies.

    Args:
        guarantee: What is promised.
        phases: The history, in order.
        adjacency, id, accountant, source, unit: As those of `Claim`.

    Raises:
        TypeError: The guarantee is none, or the phases are no sequence of them.
        ValueError: As `Claim`.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim = claim_stating(PureDP(1.0), [Phase(Gaussian(1.0))])
    >>> claim.epsilon, claim.delta
    (1.0, 0.0)
    """
    return Claim(*headline(guarantee), phases, adjacency, id, accountant, source, unit, guarantee)


def operating_points(delta_upper: Function, epsilon_upper: Function | None = None) -> OperatingPoints:
    """What an upper bound on delta(epsilon) leaves to an attack: mu, and true-positive rates at `RATES`.

    Both bounds on the rate, TPR <= e^epsilon FPR + delta and its mirror image, hold at every epsilon of a grid.

    Args:
        delta_upper: Upper bound on delta, at each epsilon >= 0.
        epsilon_upper: Its inverse, at each delta; found from it where absent.
    """
    last = float(
        (partial(epsilon_at, delta_upper) if epsilon_upper is None else epsilon_upper)(np.array([LEAST_DELTA]))[0]
    )
    epsilons = (
        min(last, LARGEST_EPSILON) * np.linspace(0.0, 1.0, GRID) ** 1.5
    )  # closer where the curve bends most, at 0
    deltas = np.asarray(delta_upper(epsilons))
    limits = Tradeoff.of_points(epsilons, deltas)(RATES)
    mu = _least_mu(epsilons, deltas) if last < LARGEST_EPSILON else math.inf
    rates = {f"{rate:g}": float(limit) for rate, limit in zip(RATES, limits, strict=True)}
    return OperatingPoints(mu, rates, gdp_regret(mu, epsilons, deltas))


def gdp_regret(mu: float, epsilons: Array, deltas: Array) -> float:
    """The least kappa with f(alpha + kappa) - kappa <= f_mu(alpha) at every alpha: what is lost by telling mu alone.

    f is the trade-off that the points (epsilon, delta) prove, f_mu that of N(mu, 1) against N(0, 1): Gomez et al.
    (2025, arXiv 2503.10945), after the Delta-divergence of Kaissis et al. (2024). f is a maximum of lines 1 - delta -
    t alpha, t = e^epsilon, and their mirror images; shifted so, a line has delta + kappa (1 + t), and is below f_mu
    where that is at least delta_mu. So kappa is the largest (delta_mu - delta)/(1 + t). Between two lines of f, delta
    is linear in t and delta_mu convex: a convex function over a positive linear one has its largest value at an end. A
    line that f does not need has a smaller value than f there, and the mirror rule gives its image the same.

    Args:
        mu: Of f_mu; inf for no privacy at all.
        epsilons: At least 0, rising.
        deltas: Upper bounds on delta there, at most those of mu but for 1e-12.
    """
    told = analytic_delta(mu, epsilons) if math.isfinite(mu) else np.ones(len(epsilons))
    return max(0.0, float(np.max((told - deltas) / (1.0 + np.exp(epsilons)))) * (1.0 + 1e-12))


def _least_mu(epsilons: Array, deltas: Array) -> float:
    """The least mu with delta(epsilon) <= max(delta_mu(epsilon), 1e-12) at every epsilon >= 0; inf if above 60.

    In t = e^epsilon, delta is convex (a supremum of linear functions), so between two points it lies below the chord of
    upper bounds there. delta_mu is convex too and lies above its tangents. So mu will do in an interval whose two upper
    bounds lie below one tangent of delta_mu, here that in its middle. Beyond the last point, where the bound has fallen
    to 1e-12, it stays there.

    Args:
        epsilons: Rising from 0 to where the bound is 1e-12.
        deltas: Upper bounds on delta there.
    """
    low, high = np.full(len(epsilons) - 1, 1e-6), np.full(len(epsilons) - 1, LARGEST_MU)
    if not _below(high, epsilons, deltas).all():
        return math.inf
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        enough = _below(middle, epsilons, deltas)
        low, high = np.where(enough, low, middle), np.where(enough, middle, high)
    return float(high.max())


def _below(mu: Array, epsilons: Array, deltas: Array) -> Array:
    """Whether the bounds at both ends of each interval lie below the tangent of delta_mu in its middle, or 1e-12."""
    left, right = epsilons[:-1], epsilons[1:]
    middle = (left + right) / 2.0
    value = analytic_delta(mu, middle) * (1.0 - 1e3 * ROUNDING)
    slope = np.exp(np.minimum(middle + log_ndtr(-middle / mu - mu / 2.0), 0.0))  # times -e^middle, in t
    small, large = slope * (1.0 - 1e3 * ROUNDING), slope * (1.0 + 1e3 * ROUNDING)
    reached = deltas[:-1] <= value - small * np.expm1(left - middle)
    reached &= deltas[1:] <= value - large * np.expm1(right - middle)
    return np.asarray(reached | (deltas[:-1] <= LEAST_DELTA))


def most_mu(delta_lower: Function) -> float:
    """The largest mu that a lower bound on delta(epsilon) contradicts by a delta of at least 1e-12; 0 if there is none.

    >>> print(f"{most_mu(partial(analytic_delta, 1.0)):.3f}")
    1.000
    """
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, 100.0, GRID)])
    deltas = np.asarray(delta_lower(epsilons))
    epsilons, deltas = epsilons[deltas >= LEAST_DELTA], deltas[deltas >= LEAST_DELTA]
    if not len(epsilons):
        return 0.0
    low, high = np.full(len(epsilons), 1e-9), np.full(len(epsilons), LARGEST_MU)
    for _ in range(BISECTIONS):
        middle = np.sqrt(low * high)
        contradicted = analytic_delta(middle, epsilons) < deltas
        low, high = np.where(contradicted, middle, low), np.where(contradicted, high, middle)
    return float(low.max()) if low.max() > 1e-9 else 0.0


def divergence_at_least(delta_lower: Function, orders: Array) -> Array:
    """The largest Renyi divergences that a lower bound on delta(epsilon) proves of one of the two neighbours' orders.

    Some event has p >= delta + e^epsilon q. By data processing the divergence is at least that of (p, 1-p) from
    (q, 1-q), which grows with p >= q, so it is at least the least of it over q at p = delta + e^epsilon q. There

        g(q) = e^((a-1) D_a) = p^a q^(1-a) + (1-p)^a (1-q)^(1-a)

    is convex, a jointly convex function on a line, and lies above its tangents. In u = e^epsilon q it falls up to
    (a-1) delta: in its derivative a/p - (a-1)/u is negative there, and (a-1) e^-epsilon/(1-q) - a/(1-p) always. From
    there on a bisection on the sign of the slope brackets the least value, of which the tangent at the left end tells
    at most as much.

    Args:
        delta_lower: At most delta(epsilon), as a function of epsilon >= 0.
        orders: Above 1, shape (orders,).

    Returns:
        Shape (orders,); 0 where nothing is proven.

    >>> print(divergence_at_least(partial(analytic_delta, 1.0), np.array([2.0])).round(3))
    [0.662]
    """
    epsilons = np.concatenate([[0.0], np.geomspace(1e-3, LARGEST_EPSILON, 2 * GRID)])
    deltas = np.asarray(delta_lower(epsilons))
    usable = deltas > SMALLEST
    epsilons, deltas = epsilons[usable], np.minimum(deltas[usable], 1.0 - ROUNDING)
    if not len(epsilons):
        return np.zeros(len(orders))
    a = orders[:, None]
    last = np.broadcast_to((1.0 - deltas) * (1.0 - ROUNDING), (len(orders), len(deltas)))
    low, high = np.minimum((a - 1.0) * deltas, last / 2.0), last
    for _ in range(BISECTIONS):
        middle = np.sqrt(low) * np.sqrt(high)
        falling = _binary_moment(middle, a, epsilons, deltas)[1] < 0
        low, high = np.where(falling, middle, low), np.where(falling, high, middle)
    value, slope, error = _binary_moment(low, a, epsilons, deltas)
    lost = np.minimum(np.abs(slope) * (np.where(high < last, high, 1.0 - deltas) - low), 1.0 - ROUNDING)
    return np.asarray(np.maximum((value - error + np.log1p(-lost)).max(axis=1) / (orders - 1.0), 0.0))


def _binary_moment(u: Array, a: Array, epsilons: Array, deltas: Array) -> tuple[Array, Array, Array]:
    """log of g, its slope in u and an upper bound on its rounding, at p = delta + u and q = u e^-epsilon."""
    p, rest, q = deltas + u, 1.0 - deltas - u, u * np.exp(-epsilons)
    log_q = np.log(u) - epsilons
    hit = a * np.log(p) - (a - 1.0) * log_q
    miss = a * np.log(rest) - (a - 1.0) * np.log1p(-q)
    value = np.logaddexp(hit, miss)
    weight = np.exp(miss - value)
    slope = (1.0 - weight) * (a / p - (a - 1.0) / u)
    slope += weight * ((a - 1.0) * np.exp(-epsilons) / (1.0 - q) - a / rest)
    error = (1.0 - weight) * (a * (2.0 - np.log(p)) - (a - 1.0) * log_q)
    error += weight * a * (2.0 - np.log(rest) + 1.0 / rest)
    return value, slope, 1e-15 * (1.0 + error)


def divergence_at_most(delta_upper: Function, order: float, others: Sequence[tuple[float, float]]) -> float:
    """A Renyi divergence that an upper bound on delta(epsilon) of both neighbours' orders proves; inf for none.

    With t = e^epsilon and delta(t) = E_Q (P/Q - t)_+ Taylor's formula for x^a about 1 gives

        e^((a-1) D_a) = 1 + a (a-1) times the integral from 1 of t^(a-2) delta(t) + t^(-a-1) delta'(t),

    delta' being that of Q against P (Liese and Vajda 2006, Theorem 6). Upper bounds on a convex delta lie above it
    along their chords too, and the powers are largest at an end of each panel. From a last T on (x - t)_+ <= C x^b
    t^(1-b), C = (b-1)^(b-1)/b^b, with a larger order b: that part is at most C e^((b-1) D_b) T^(a-b)/(b-a), and the
    other is at most as much.

    Args:
        delta_upper: At least delta(epsilon), as a function of epsilon >= 0.
        order: a, above 1.
        others: (b, upper bound on D_b), b above a.

    >>> print(f"{divergence_at_most(partial(analytic_delta, 1.0), 2.0, [(4.0, 2.0)]):.4f}")  # 1
    1.0004
    """
    epsilons = np.concatenate([[0.0], np.geomspace(1e-4, LARGEST_EPSILON, PANELS)])
    deltas = np.minimum(np.asarray(delta_upper(epsilons)), 1.0)
    left, right = epsilons[:-1], epsilons[1:]
    powers = np.logaddexp(np.maximum((order - 2.0) * left, (order - 2.0) * right), -(order + 1.0) * left)
    with np.errstate(divide="ignore"):
        panels = np.log((deltas[:-1] + deltas[1:]) / 2.0) + powers + right + np.log(-np.expm1(left - right))
    within = np.concatenate([[-np.inf], np.logaddexp.accumulate(panels)])
    least = math.inf
    for b, divergence in others:
        beyond = (b - 1.0) * math.log1p(-1.0 / b) - math.log(b) + (b - 1.0) * divergence - math.log(b - order)
        totals = np.logaddexp(within, beyond + (order - b) * epsilons + math.log(2.0))
        least = min(least, float(totals.min()))
    excess = least + math.log(order) + math.log(order - 1.0)
    return float(np.logaddexp(0.0, excess) / (order - 1.0)) * (1.0 + 1e3 * ROUNDING)
