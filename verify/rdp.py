"""From moments of the privacy loss (Renyi differential privacy) to delta(epsilon) and epsilon(delta), and back.

alpha(lam) = log E_P[e^(lam L)] of the whole history, lam > 0, is lam times the Renyi divergence of order lam + 1. It is
convex in lam with alpha(0) = 0, so a chord between two bounds is a bound. For noise that is symmetric about 0 the
direction "remove" has the larger moments (Mironov, Talwar and Zhang 2019, Theorem 5), so one set serves both.
"""

import math
from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
from scipy.special import gammaln, log_ndtr

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import SMALLEST_DELTA, Curve

Moments = Callable[[Array], Array]  # orders lam (ascending, > 0) -> alpha(lam) of one release, inf where not finite

LARGEST_ORDER = {False: 1e7, True: 2.0**14}  # without and with sampling: there every order needs all below it
MAX_NODES = 2**20  # of one quadrature, beyond which a moment of a huge loss is bounded instead
MOST_CELLS = 2**17  # of a sum in place of an integral
LARGEST_POWER = 700.0  # e to it is a float
CELLS_PER_POWER = 200.0  # of a times a loss, where the sum is e^(a loss): chords then add (1/200)^2/8 of it
MARGIN = 1e-12  # relative, for the rounding of a few additions
NEGLIGIBLE_GAIN = 1e-3  # relative, of epsilon, that larger orders are not looked through for


def order_block(low: float, high: float) -> Array:
    """Orders in (low, high]: a twentieth apart, by quarters up to 16, whole ones beyond.

    Near the best order, epsilon is flat: the conversion loses about (1/40)^2/2 of it at most.
    """
    whole = np.rint(16.0 * 1.05 ** np.arange(math.ceil(math.log(high / 16.0) / math.log(1.05)) + 1))
    orders = np.unique(np.concatenate([np.geomspace(0.02, 1.0, 60), np.arange(1.25, 16.0, 0.25), whole]))
    return orders[(orders > low) & (orders <= high)]


def log_delta(orders: Array, alpha: Array, epsilon: Array) -> Array:
    """log delta at each epsilon, best order: alpha - lam epsilon + lam log(lam/(lam+1)) - log(lam+1).

    Balle, Barthe, Gaboardi, Hsu and Sato (2020), Theorem 21.
    """
    at_zero = _log_delta_at_zero(orders, alpha)
    with np.errstate(over="ignore"):  # an infinite loss leaves no delta
        return np.asarray(np.min(at_zero[None, :] - orders[None, :] * epsilon[:, None], axis=1))


def _log_delta_at_zero(orders: Array, alpha: Array) -> Array:
    """log delta at epsilon 0 by each order."""
    return np.asarray(alpha + orders * np.log(orders / (orders + 1)) - np.log1p(orders))


def rdp_curve(
    claim: Claim,
    parts: Sequence[tuple[Moments, int]],
    *,
    sampled: bool,
    method: str,
    theorem: str,
) -> Curve:
    """Upper bound on delta(epsilon) from moments, over orders extended until both claimed targets have their best.

    Args:
        claim: Its epsilon and delta say where the orders matter.
        parts: Moments of one release with the number of such releases.
        sampled: Whether any moment is a binomial sum over all lower orders.
        method: Name for the verdict.
        theorem: What proves the moments.
    """
    return Curve.upper(method, theorem, partial(moments_delta, *composed_moments(claim, parts, sampled)))


def composed_moments(claim: Claim, parts: Sequence[tuple[Moments, int]], sampled: bool) -> tuple[Array, Array]:
    """Orders and alpha of the whole history; blocks of orders are added while the best order lies in the last one."""
    orders, alpha = np.empty(0), np.empty(0)
    reach = 64.0
    while True:
        block = order_block(float(orders[-1]) if len(orders) else 0.0, reach)
        value = np.sum([steps * moments(block) for moments, steps in parts], axis=0) * (1 + MARGIN) + MARGIN
        finite = np.isfinite(value)
        orders, alpha = np.append(orders, block[finite]), np.append(alpha, value[finite])
        if not finite.all() or reach >= LARGEST_ORDER[sampled] or not _still_falling(claim, orders, alpha):
            break
        reach *= 4.0
    return orders, alpha


def _still_falling(claim: Claim, orders: Array, alpha: Array) -> bool:
    """Whether the best order for the claimed epsilon or delta is among the last tenth of those tried, and can matter.

    The Renyi divergence alpha/order grows with the order, so no larger order's epsilon is below the last one's.
    """
    at_zero = _log_delta_at_zero(orders, alpha)
    late = int(0.9 * len(orders))
    with np.errstate(over="ignore"):
        at_epsilon = at_zero - orders * claim.epsilon
    by_epsilon = int(np.argmin(at_epsilon))
    # below 1e-40 nobody asks, and a pure bound (delta = 0) has no best order
    at_delta = (at_zero - math.log(max(claim.delta, 1e-40))) / orders
    by_delta = int(np.argmin(at_delta))
    reached = at_delta[by_delta] <= (1.0 + NEGLIGIBLE_GAIN) * alpha[-1] / orders[-1]
    settled = at_epsilon[by_epsilon] < math.log(max(claim.delta, 1e-40)) - 20.0
    return (by_epsilon >= late and not settled) or (by_delta >= late and not reached)


def moments_delta(orders: Array, alpha: Array, epsilon: Array) -> Array:
    """delta at each epsilon by `log_delta`, with a floor in place of an underflow; 1 without any order."""
    if not len(orders):
        return np.ones(len(epsilon))
    exponent = np.concatenate(
        [log_delta(orders, alpha, part) for part in np.array_split(epsilon, len(epsilon) // 512 + 1)]
    )
    return np.asarray(np.clip(np.exp(np.minimum(exponent, 0.0)) * (1 + 1e-9), SMALLEST_DELTA, 1.0))


def sampled_moments(
    log_ratio_moments: Array,
    sampling_prob: float,
    orders: Array,
    between: Callable[[Array], Array] | None = None,
) -> Array:
    """alpha(lam) of a Poisson-sampled release from h_eta = log E_Q[(dP/dQ)^eta] at every whole eta up to lam + 1.

    alpha(lam) = log sum_eta binom(lam+1, eta) (1-q)^(lam+1-eta) q^eta e^(h_eta), at whole lam; in between by chords.
    As the weights sum to 1 and h_0 = h_1 = 0, the sum is 1 + sum_{eta >= 2} w_eta (e^(h_eta) - 1).

    In low noise chords are far off between whole orders. With a = lam + 1 and m the largest integer below a, Taylor's
    formula for (x + y)^a about y = 0 has the remainder (m+1) binom(a, m+1) int_0^y (y-s)^m (x+s)^(a-m-1) ds <= y^a
    (leave x out under the integral), so (x + y)^a <= sum_{j <= m} binom(a, j) x^(a-j) y^j + y^a and, at x = 1-q,
    y = q W,

        alpha(lam) <= log [sum_{j <= m} binom(a, j) (1-q)^(a-j) q^j e^(h_j) + q^a e^(h_a)].

    For 1 < a < 2 let f(u) = (1 + u)^a - 1 - a u, so that alpha(lam) = log [1 + E f(q w)], w = W - 1 of mean 0. Twice
    differentiated, f(q w) is at most q^a f(w): the ratio q^(2-a) ((1 + w)/(1 + q w))^(2-a) rises with w to 1. And
    f(u)/u^2, the integral of a (a-1) (1-t) (1 + t u)^(a-2) over t in [0, 1], falls with u >= -q. So

        alpha(lam) <= log [1 + q^a (e^(h_a) - 1)]  and  alpha(lam) <= log [1 + f(-q) (e^(h_2) - 1)].

    Args:
        log_ratio_moments: h_0, h_1, ..., at least up to ceil(max order) + 1.
        sampling_prob: q in (0, 1).
        orders: lam > 0.
        between: h at real eta >= 1, where known.
    """
    q = sampling_prob
    eta = np.arange(2, len(log_ratio_moments), dtype=float)
    h = log_ratio_moments[2:]
    excess = log_excess(h)
    # log binom is a difference of numbers of this size; each carries an ulp of error
    margin = 8e-16 * gammaln(len(h) + 3.0) + 1e-13
    whole = np.unique(np.concatenate([np.floor(orders), np.ceil(orders)]))
    values = {0.0: 0.0}
    for lam in whole[whole > 0]:
        k = eta[: int(lam)]
        weight = (
            gammaln(lam + 2) - gammaln(k + 1) - gammaln(lam + 2 - k) + k * math.log(q) + (lam + 1 - k) * math.log1p(-q)
        )
        exponent = weight + excess[: int(lam)]
        top = float(exponent.max())
        total = top + math.log(float(np.exp(exponent - top).sum())) + margin if math.isfinite(top) else top
        values[float(lam)] = float(np.logaddexp(0.0, total)) if np.isfinite(total) or total < 0 else math.inf
    low = np.array([values[float(lam)] for lam in np.floor(orders)])
    high = np.array([values[float(lam)] for lam in np.ceil(orders)])
    share = orders - np.floor(orders)
    with np.errstate(invalid="ignore"):
        chords = np.where(share == 0, low, np.where(np.isinf(high), np.inf, low + share * (high - low)))
    small = orders < 1.0
    chords[small] = np.minimum(chords[small], np.logaddexp(0.0, _log_fall(q, orders[small] + 1.0) + excess[0] + margin))
    if between is not None:
        for i in np.flatnonzero(share):
            chords[i] = min(chords[i], _fractional(log_ratio_moments, between, q, float(orders[i]) + 1.0))
    return chords


def _log_fall(q: float, a: Array) -> Array:
    """log of (1 - q)^a - 1 + a q for 1 < a < 2, rounded up; or of q^2/2 times its largest second derivative.

    Both terms of the difference are of size a q, and off by some roundings of that: too many for a small q.
    """
    with np.errstate(divide="ignore"):
        difference = np.log(np.maximum(np.expm1(a * math.log1p(-q)) + a * q, 0.0) + 1e-15 * a * q)
    return np.minimum(difference, np.log(a * (a - 1.0) / 2.0) + (a - 2.0) * math.log1p(-q) + 2.0 * math.log(q))


def _fractional(whole: Array, between: Callable[[Array], Array], q: float, a: float) -> float:
    """The bound from the moment of order a > 1 itself, not a whole number."""
    own = float(between(np.array([a]))[0])
    if a < 2.0:
        log = a * math.log(q) + float(log_excess(np.array(own)))
        return float(np.logaddexp(0.0, log + 1e-13 * (1.0 + abs(log)))) if own > 0.0 else 0.0
    j = np.arange(math.floor(a) + 1.0)
    weight = gammaln(a + 1) - gammaln(j + 1) - gammaln(a + 1 - j) + (a - j) * math.log1p(-q) + j * math.log(q)
    terms = np.append(weight + whole[: len(j)], a * math.log(q) + own)
    top = float(terms.max())
    return top + math.log(float(np.exp(terms - top).sum())) + 1e-13 * (1.0 + abs(top)) if top < math.inf else math.inf


def least_moments(*found: Moments | None) -> Moments | None:
    """Order by order the least of the moments that theorems have, None where none has them."""
    known = [moments for moments in found if moments is not None]
    return (lambda orders: np.asarray(np.min([moments(orders) for moments in known], axis=0))) if known else None


def gaussian_moments(mu: float, sampling_prob: float, orders: Array) -> Array:
    """alpha(lam) of N(mu, 1) against N(0, 1), Poisson-sampled, at real lam > 0.

    Without sampling lam (lam+1) mu^2/2. With it, A = E_Q[(1-q+q W)^a], a = lam + 1, by the trapezoidal rule: in the
    strip |Im x| <= d, d < pi/mu, the integrand is analytic and at most e^(d^2/2) times its value on the real line, so
    the relative error is at most 2 e^(d^2/2) / (e^(2 pi d/h) - 1) (Trefethen and Weideman 2014, Theorem 5.1). What lies
    beyond the last node is bounded by (q + (1-q) e^(-l))^a e^(a(a-1)mu^2/2) Phi(a mu - x), l the loss there.

    Args:
        mu: Shift over sigma, > 0.
        sampling_prob: q in (0, 1].
        orders: lam.
    """
    if sampling_prob == 1:
        with np.errstate(over="ignore"):
            return np.asarray(orders * (orders + 1) * mu * mu / 2)
    return np.array([_gaussian_moment(mu, sampling_prob, float(lam) + 1.0) for lam in orders])


def _gaussian_moment(mu: float, q: float, a: float) -> float:
    d = min(0.99 * math.pi / mu, 7.5)
    accuracy = 34.0  # -log of the discretization error, relative
    h = 2 * math.pi * d / (d * d / 2 + math.log(2.0) + accuracy)
    reach = 15.0
    if (a * mu + 2 * reach) / h > MAX_NODES:  # r^a is convex: (1-q+qW)^a <= 1-q + q W^a
        return float(np.logaddexp(math.log1p(-q), math.log(q) + a * (a - 1) * mu * mu / 2)) * (1 + 1e-12)
    x = np.arange(-reach, a * mu + reach + h, h)
    loss = mu * x - mu * mu / 2
    base = _log_mixed(q, loss)
    exponent = a * base - x * x / 2
    top = float(exponent.max())
    bulk = top + math.log(float(np.exp(exponent - top).sum()) * h / math.sqrt(2 * math.pi))
    last = float(loss[-1])
    beyond = a * math.log(q + (1 - q) * math.exp(-min(last, 700.0))) + a * (a - 1) * mu * mu / 2 - reach * reach / 2
    # rounding: the exponents are of size a |base| and x^2/2, the sum has len(x) terms
    margin = 4e-16 * (float(np.abs(exponent).max()) + len(x) + 16.0) + 2 * math.exp(-accuracy)
    return max(0.0, float(np.logaddexp(bulk, beyond)) + math.exp(-reach * reach / 2) + margin)


def laplace_moments(shift: float, sampling_prob: float, orders: Array) -> Array:
    """alpha(lam) of a Laplace law moved by `shift` scales against itself, Poisson-sampled, at lam > 0, rounded up.

    Without sampling e^alpha = (a e^((a-1)s) + (a-1) e^(-as))/(2a - 1), a = lam + 1 (Mironov 2017, Proposition 6). With
    it e^alpha - 1 = E_Q[g(1 - q + q W)] for the convex g(r) = r^a - 1 - a (r - 1), as W has mean 1. Under Q the loss
    y = log W is -s with probability 1/2, s with e^(-s)/2, and has the density e^(-(y+s)/2)/4 between. On a cell of
    width h g lies below its chord in W, whose integral is tanh(h/4) e^(-s/2)/2 times the sum of g e^(-y/2) at its ends.

    Args:
        shift: s > 0.
        sampling_prob: q in (0, 1].
        orders: lam.
    """
    if sampling_prob == 1.0:
        a = orders + 1.0
        toward = np.log(a / (a + orders)) + orders * shift
        away = np.log(orders / (a + orders)) - a * shift
        return np.asarray(np.logaddexp(toward, away) + 1e-15 * (1.0 + a * shift + np.abs(away)))
    return np.array([_laplace_moment(shift, sampling_prob, float(lam) + 1.0) for lam in orders])


def _laplace_moment(shift: float, q: float, a: float) -> float:
    y = np.linspace(-shift, shift, int(min(MOST_CELLS, 4096.0 + CELLS_PER_POWER * a * shift)) + 1)
    base = _log_mixed(q, y)
    g = _log_convex(base, a, 1e-15 * a * np.abs(base))
    ends = np.array([g[0] - math.log(2.0), g[-1] - math.log(2.0) - shift])
    inside = g - y / 2.0 + math.log(math.tanh(shift / (2.0 * (len(y) - 1)))) - shift / 2.0
    inside[[0, -1]] -= math.log(2.0)
    return float(np.logaddexp(0.0, log_sum_upper(np.append(ends, inside))))


def _log_convex(log_ratio: Array, a: float, rounding: Array) -> Array:
    """log of r^a - 1 - a (r - 1), rounded up.

    Args:
        log_ratio: log r.
        a: Order, > 1.
        rounding: Of a log r.
    """
    power = a * log_ratio
    with np.errstate(over="ignore"):
        first, second = np.expm1(np.minimum(power, 30.0)), a * np.expm1(np.minimum(log_ratio, 30.0))
    size = np.abs(first) + np.abs(second)
    small = np.log(np.maximum(first - second, 0.0) + 1e-15 * size + 2.0 * rounding * (1.0 + size) + 1e-300)
    return np.asarray(np.where(power > 30.0, power + rounding, small))  # at most r^a from r = 1 on


def between_versions(first: Moments, second: Moments, sampling_prob: float) -> Moments:
    """Moments of two mixtures, a record's one version and another, from those of each against what both are mixed with.

    P = (1-q) R + q P', Q = (1-q) R + q Q', p = dP/dR, w = dQ/dR, a = lam + 1, c = lam; the less of two bounds.

    Hoelder's inequality at x = a/(2a - 1) (Mironov 2017, Proposition 11; no loss for normal laws that are not sampled):

        E_Q[(P/Q)^a] = int [P^a R^(x - a)] [R^(a - x) Q^(1-a)] <= E_R[p^(2a-1)]^x E_Q[(R/Q)^(2a)]^(1-x).

    For noise that is symmetric about 0 the second mean is at most E_R[w^(2a)] (module docstring).

    Or from p^a = 1 + a (p - 1) + s, where s >= 0 and E_R s = E_R[p^a] - 1, and w^-c = 1 - c (w - 1) + u, where u >= 0:

        E_R[p^a w^-c] = 1 + E_R u + a E_R[(p - 1)(w^-c - 1)] + E_R[s w^-c].

    As p, w >= 1 - q, and w^-c is convex and falls, it is at most (1-q)^-c, and |w^-c - 1| <= k |w - 1| with
    q k = (1-q)^-c - 1. So the last term is at most (1-q)^-c (E_R[p^a] - 1). Let q^2 v be the variance of p, q^2 t that
    of w. The term before is at most a k q^2 times sqrt(v t) (Cauchy and Schwarz), and times min(1, sqrt(v)/2) +
    min(1, sqrt(t)/2): where the product is positive one of p and w is below 1, by q at most, and E_R (p - 1)_+ is q
    times a total variation. The ratio of u to w^b - 1 - b (w - 1), b > 1, falls in w, as that of the second derivatives
    does, so that E_R u is at most its value at w = 1 - q times E_R[w^b] - 1; b = 2 and b = a. For losses that vanish
    and v = t the sum is 1 + 2 a (a - 1) q^2 v, and the truth can be; and no order is above a or 2.

    Args:
        first: alpha of P against R, at all lam > 0.
        second: alpha of Q against R.
        sampling_prob: q in (0, 1).
    """
    q = sampling_prob
    log_q, log_out = math.log(q), math.log1p(-q)

    def moments(orders: Array) -> Array:
        share, a = (orders + 1.0) / (2.0 * orders + 1.0), orders + 1.0
        hoelder = share * first(2.0 * orders) + (1.0 - share) * second(2.0 * orders + 1.0)
        lost = -orders * log_out  # -c log(1 - q)
        with np.errstate(over="ignore", invalid="ignore", divide="ignore"):
            own = log_excess(first(orders))
            other = own if second is first else log_excess(second(orders))
            log_v, log_t = (float(log_excess(law(np.ones(1)))[0]) - 2.0 * log_q for law in (first, second))
            slope = np.expm1(lost) * (1.0 + MARGIN)  # q k
            half = np.log(0.5 * orders * a) + 2.0 * log_q
            log_u = np.log(np.maximum(slope - orders * q, 0.0) + 1e-15 * slope)  # at w = 1 - q
            log_u = np.minimum(log_u, half + lost - 2.0 * log_out)  # Taylor's remainder there
            curved = np.minimum(log_u + log_t, log_u + other - half - np.maximum(a - 2.0, 0.0) * log_out)
            variations = [min(0.0, 0.5 * log_w - math.log(2.0)) for log_w in (log_v, log_t)]
            cross = (
                np.log(a * slope)
                + log_q
                + min(0.5 * (log_v + log_t), float(np.logaddexp(variations[0], variations[1])))
            )
            taylor = np.logaddexp(0.0, np.logaddexp(np.logaddexp(curved, cross), lost + own))
        return np.asarray(np.fmin(hoelder, taylor) * (1.0 + MARGIN))

    return moments


def log_excess(alpha: Array) -> Array:
    """log(e^alpha - 1) of a moment alpha >= 0."""
    with np.errstate(divide="ignore"):
        return np.asarray(np.where(alpha > 30.0, alpha, np.log(np.expm1(np.minimum(alpha, 30.0)))))


def replaced_moment(unsampled: float, sampling_prob: float) -> float:
    """alpha of one release in which the record is sampled at rate q and replaced, from that of unsampled noise.

    E_Q[(dP/dQ)^a], a > 1, is jointly convex in (P, Q). With probability 1 - q the record is out and both laws are one;
    with probability q it is in, and the laws are those of two contributions. So it is at most 1 - q + q e^alpha,
    adaptively and for any noise.

    Args:
        unsampled: alpha of the noise between two contributions, for shifts up to 2 clip.
        sampling_prob: q in (0, 1].
    """
    if unsampled < 30.0:
        return math.log1p(sampling_prob * math.expm1(unsampled)) * (1.0 + MARGIN) + 1e-16
    return float(np.logaddexp(math.log1p(-sampling_prob), math.log(sampling_prob) + unsampled)) * (1.0 + MARGIN)


def replaced_normal_moment(mu: float, sampling_prob: float, lam: float) -> float:
    """alpha of one release of normal noise in which a sampled record is replaced, rounded up.

    P = (1-q) N(0, 1) + q N(mu, 1) against Q = (1-q) N(0, 1) + q N(-mu, 1) dominates (`upper.sampled_normal`). With
    a = lam + 1 and r = dP/dQ, which rises in x and has mean 1 under Q, E_Q[r^a] - 1 = E_Q[g(r)] for the convex
    g(r) = r^a - 1 - a (r - 1) >= 0, least at r = 1. So g at the larger end of a cell times a bound
    of its mass under Q sums to a bound. Left of all cells g <= g(0) = a - 1, and right of X > 0, l = mu X - mu^2/2,

        P^a Q^(1-a) <= (1-q)^(1-a) (q + (1-q) e^(-l))^a e^(a (mu x - mu^2/2)) phi(x).

    Args:
        mu: clip over sigma, > 0.
        sampling_prob: q in (0, 1).
        lam: Order, > 0.

    Returns:
        The bound, inf where the cells would be too coarse to say anything.
    """
    q, a = sampling_prob, lam + 1.0
    if a * mu > MOST_CELLS:
        return math.inf
    reach = 12.0 + math.sqrt(-2.0 * lam * math.log1p(-q))
    edges = np.linspace(
        -reach - mu, a * mu + reach, int(min(MOST_CELLS, 2.0 + (a * mu + 2 * reach) * 1e3 * max(mu, 1.0)))
    )
    up, down = _log_mixed(q, mu * edges - mu * mu / 2.0), _log_mixed(q, -mu * edges - mu * mu / 2.0)
    convex = _log_convex(up - down, a, 1e-15 * a * (np.abs(up) + np.abs(down)))
    mass = np.logaddexp(math.log1p(-q) + log_peak(edges), math.log(q) + log_peak(edges + mu))
    exponent = mass + np.maximum(convex[:-1], convex[1:]) + np.log(np.diff(edges))
    loss = mu * float(edges[-1]) - mu * mu / 2.0
    beyond = (
        -lam * math.log1p(-q)
        + a * float(np.logaddexp(math.log(q), math.log1p(-q) - loss))
        + a * lam * mu * mu / 2.0
        + float(log_ndtr(a * mu - edges[-1]))
    )
    parts = np.append(exponent, [math.log(lam) + float(log_ndtr(-reach)), beyond])
    return float(np.logaddexp(0.0, log_sum_upper(parts)))


def _log_mixed(q: float, loss: Array) -> Array:
    """log(1 - q + q e^loss)."""
    return np.asarray(
        np.where(
            loss > LARGEST_POWER,
            loss + np.log(q + (1 - q) * np.exp(-np.maximum(loss, 0.0))),
            np.log1p(q * np.expm1(np.minimum(loss, LARGEST_POWER))),
        )
    )


def log_sum_upper(parts: Array) -> float:
    """log sum e^parts, rounded up.

    Proof. Let M be the largest |part|, n their number, u = 2^-53. A difference to the largest part is at most 2 M and
    rounded by 2 M u; its exponential is off by another 8 u (4 units in the last place), and the sum of positive terms,
    of which one is 1, by n u. What underflows is below n 1e-307. So the logarithm, which is at most log n, is off by
    (2 M + n + 8) u, its own rounding by 2 u log n, that of each of the two last sums by (M + log n + 1) u. All of that
    is less than (4 M + 5 n + 10) u; 1e-15 is more than 9 u. What is left of 9 (M + n + 16) u, (5 M + 4 n + 134) u,
    is for squares of these and for the roundings of the parts themselves.

    Args:
        parts: Shape (n,), at least one finite, none +inf.
    """
    top = float(parts.max())
    margin = 1e-15 * (float(np.abs(parts[np.isfinite(parts)]).max()) + len(parts) + 16.0)
    return top + math.log(float(np.exp(parts - top).sum())) + margin


def log_peak(edges: Array) -> Array:
    """log of the largest standard normal density of each cell."""
    low, high = edges[:-1], edges[1:]
    nearest = np.where(low * high <= 0, 0.0, np.minimum(np.abs(low), np.abs(high)))
    return np.asarray(-nearest * nearest / 2.0 - math.log(2.0 * math.pi) / 2.0)


def replace_one_release(curve: Curve, sampling_prob: float) -> Curve:
    """One Poisson-sampled release under replace-one from the unsampled curve at shifts up to 2 clip.

    delta(epsilon) <= q delta_2C(log(1 + (e^epsilon - 1)/q)): Balle, Barthe and Gaboardi (2018), Theorem 2, with the
    boundary lemma of `upper.shift_norms` (a shift of norm at most C loses no more than one of 2 C).

    Args:
        curve: Unsampled, at the doubled radius.
        sampling_prob: q in (0, 1].
    """
    q = sampling_prob

    def delta(epsilon: Array) -> Array:
        base = epsilon + np.log1p((1 - q) / q * -np.expm1(-epsilon))
        return np.asarray(np.maximum(q * curve.delta(base * (1 - MARGIN)), SMALLEST_DELTA))

    theorem = f"{curve.theorem}; Balle, Barthe and Gaboardi (2018), Theorem 2 (amplification by sampling)"
    return Curve.upper(curve.method, theorem, delta, curve.assumptions)
