"""Moments of the loss of a pass of which the record enters one release, normal noise (`balls_in_bins` has the pair).

Q is N(0) in T coordinates and P the mean of the N(mu e_t), so dP/dQ = M, the mean of T independent ratios W of mean 1
under Q. The pair dominates in both directions, and so do its moments, E_Q[M^s] at s = a and at s = 1 - a.

With the record first, whole order a: `mean_moments`. Between the whole orders n and n + 1 they are bounded

- from above by the chord, as log E_Q[M^a] is convex in a (Hoelder's inequality);
- from above by the cubic through n - 2, n - 1, n and n + 1, and from below by that through n - 1, n, n + 1 and n + 2.
  By Newton's series the cubic in r through the powers x^0 to x^3 is the Taylor polynomial of x^r about x = 1 that ends
  with binom(r, 3) (x - 1)^3. For r in (2, 3) the third derivative of x^r is positive and falls: beyond 1 it is at most
  that at 1, and below 1 at least, where the remainder has a minus; so x^r is at most the cubic. For r in (1, 2) that
  derivative is negative and rises, and x^r is at least the cubic. Times x^(n-2), r = a - n + 2, or x^(n-1), r = a - n +
  1. At n = 1 the first node of the one above is -1, which the other direction has.

Without it first, c = a - 1 > 0: x^-c = int s^(c-1) e^(-s x) ds/Gamma(c), and E_Q e^(-s M) = phi(s/T)^T, phi(theta) =
E e^(-theta W). The gamma density g(s) = s^(c-1) e^-s/Gamma(c) integrates to 1, so that all that is added is positive:

    E_Q[M^-c] - 1 = int g(s) (e^(T K(s/T)) - 1) ds,   e^K(theta) = E e^(-theta (W-1)) = 1 + E h(-theta (W-1)),

h(y) = e^y - 1 - y, since E W = 1. Both integrals are sums over equal steps (trapezoidal rule; Trefethen and Weideman
2014, Theorem 5.1: with I the integral of a bound on the modulus over any line of the strip |Im| <= d, what is lost is
at most 2 I/(e^(2 pi d/step) - 1)), in z with W = e^z, which is normal, and in u = log s:

- |e^(-theta W)| at w + iv, z = mu w - mu^2/2, is e^(-theta W cos(mu v)), and log phi is convex with slopes of at least
  -E W = -1, so that phi(theta cos) <= phi(theta) e^(theta (mu v)^2/2) for mu v <= pi/2. So I is at most e^(d^2/2)
  (e^(theta (mu d)^2/2) + 1 + 2 theta) times e^K. To the left of -X, h(y) <= y^2 e^y/2 with y <= theta, or h <= e^y
  with y <= theta (mu |w| + mu^2/2), which is an exponential tilt; to the right h(y) <= -y <= theta W. All fall.
- at u + iv, |phi(s/T)| <= phi(s cos v/T), so I is (cos v)^-c times the integral, E_Q[M^-c] + 1 for both parts.
  K is convex and 0 at 0, and so is e^(T K) - 1; and s_0 - s <= s_0 (u_0 - u): to the left of s_0 the terms fall at
  least as e^((c + 1 - s_0) u). To the right the first part, e^(c u) phi(e^u/T)^T, is log-concave in u (phi(e^u) is the
  integral of a log-concave function of u and w over w: Prekopa), so it falls at least geometrically.

And as a mean is at least the geometric one, E_Q[M^-c] <= e^(c (c/T + 1) mu^2/2), enough where mu or c is large.

Of k of t releases, at most what passes cost (`balls_in_bins`). With the record first the mean over all sets of k is the
worst law itself: given the other ratios M = A + B W in each, B >= 0, as there. Its E_Q[M^2] is that of two sets that
share J releases, E e^(J mu^2), and below order 2 chords from 1 are above.
"""

import math
from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from scipy.special import gammaln, log_ndtr, logsumexp

from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Phase
from dpaudit.verify.samplers import RandomAllocation
from dpaudit.verify.upper.balls_in_bins import Pass, passes_of

LARGEST_SERIES = 1024  # order up to which the moments of a mean over bins are
ACCURACY = 65.0  # nats that the sums over equal steps are off less than what they add up to
NEGLIGIBLE = 12.0  # nats of the integral that its far end is less
REACH = 14.0  # deviations
FARTHEST = 600.0  # theta, whose power of e is a float
BLOCK = 16  # values of s at a time
MOST_BLOCKS = 200
LARGEST_LOG = 600.0  # of a moment that is added as a float
MOST_NODES = 1 << 14  # of z
MOST_SHARED = 10**6  # releases of two sets, over whose number in common a sum is taken


def pass_moments(phase: Phase, lams: Array) -> Array | None:
    """Upper bounds on lam D_(lam + 1) of all passes of a phase in either order, the larger one; None for other phases.

    Args:
        phase: Balls in bins or random allocation with normal noise, under add-remove.
        lams: lam > 0; inf from `LARGEST_SERIES` on.
    """
    parts = passes_of(phase)
    if parts is None:
        return None
    shifts = [replace(part, shift=part.shift * (1.0 + 8.0 * UNIT)) for part in parts]
    return np.array([_either(shifts, phase, float(lam)) for lam in lams])


def _either(parts: Sequence[Pass], phase: Phase, lam: float) -> float:
    if lam + 1.0 > LARGEST_SERIES:
        return math.inf
    removed = sum(part.count * with_record_first(part.shift, part.releases, lam + 1.0)[1] for part in parts)
    if isinstance(phase.sampler, RandomAllocation) and lam <= 1.0:
        removed = min(removed, lam * overlap_moment(parts[0].shift, phase.sampler.releases, phase.sampler.times)[1])
    geometric = [lam * (lam / part.releases + 1.0) * part.shift**2 / 2.0 * (1.0 + 16.0 * UNIT) for part in parts]
    added = sum(part.count * bound for part, bound in zip(parts, geometric, strict=True))
    if added > removed:
        apart = [without_record_first(part.shift, part.releases, lam) for part in parts]
        added = sum(p.count * min(one, bound) for p, one, bound in zip(parts, apart, geometric, strict=True))
    return max(removed, added) * (1.0 + 8.0 * UNIT)


def with_record_first(mu: float, bins: int, order: float) -> tuple[float, float]:
    """log E_Q[M^order], order in (1, 1024]: at least, and at most.

    Args:
        mu: Shift over sigma.
        bins: T.
        order: a.
    """
    n = math.floor(order)
    least, most = mean_moments(mu, bins, n if n == order else n + 2)
    if n == order:
        return float(least[n]), float(most[n])
    part = order - n
    low = float(least[n]) * (order - 1.0) / max(n - 1.0, 1.0) * (1.0 - 8.0 * UNIT)  # D_a rises with a
    high = float(most[n] + part * (most[n + 1] - most[n]) * (1.0 + 8.0 * UNIT))
    if most[n + 2] < LARGEST_LOG:
        low = max(low, _cubic(part + 1.0, least[n - 1 :], most[n - 1 :])[0])
        before = without_record_first(mu, bins, 1.0) if n == 1 else 0.0
        if before < LARGEST_LOG:
            most, least = (most[n - 2 :], least[n - 2 :]) if n > 1 else (np.append(before, most), np.append(0.0, least))
            high = min(high, _cubic(part + 2.0, least, most)[1])
    return low, high


def _cubic(r: float, least: Array, most: Array) -> tuple[float, float]:
    """log of the cubic at r that goes through e^least or e^most at 0 to 3: at least, and at most."""
    weights = np.array(
        [(r - 1) * (3 - r) * (r - 2), -3 * r * (r - 2) * (3 - r), 3 * r * (r - 1) * (3 - r), r * (r - 1) * (r - 2)]
    )
    found = []
    for sign, values in ((-1.0, (most, least)), (1.0, (least, most))):
        terms = weights / 6.0 * np.expm1(np.where(weights < 0, values[0][:4], values[1][:4]))
        total = float(terms.sum() + sign * 64.0 * UNIT * np.abs(terms).sum())
        found.append(math.log1p(max(total, 0.0)) * (1.0 + sign * 8.0 * UNIT))
    return found[0], found[1]


def mean_moments(mu: float, bins: int, order: int) -> tuple[Array, Array]:
    """log E_Q[M^a] at every whole a up to the order, M the mean of the ratios of so many bins: at least, and at most.

    M^a is a sum over how often each bin is a factor, and E_Q W^k = e^(k(k-1) mu^2/2): a! times the coefficient of z^a
    in f^bins, f = sum_k E_Q[W^k] (z/bins)^k/k!. From n bins to 2n and to n + 1 by products; from as many bins as the
    order on by n r_n = sum_k (k (bins + 1) - n) f_k r_(n-k), whose terms are positive.

    Returns:
        Each of shape (order + 1,).
    """
    k = np.arange(order + 1.0)
    with np.errstate(over="ignore"):
        factor = k * (k - 1.0) * mu * mu / 2.0 - gammaln(k + 1.0) - k * math.log(bins)
    if not math.isfinite(factor[-1]):
        return np.zeros(order + 1), np.where(k < 2.0, 0.0, math.inf)
    power = np.zeros(order + 1)
    if bins >= order:
        for n in range(1, order + 1):
            terms = np.log(k[1 : n + 1] * (bins + 1.0) - n) + factor[1 : n + 1] + power[n - 1 :: -1]
            power[n] = logsumexp(terms) - math.log(n)
    else:
        power = factor
        for digit in f"{bins:b}"[1:]:
            power = _series_product(power, power)
            power = _series_product(power, factor) if digit == "1" else power
    total = power + gammaln(k + 1.0)
    margin = np.where(
        k < 2.0, 0.0, 1e-15 * (k + 1.0) * (np.maximum.accumulate(np.abs(factor)) + gammaln(k + 1.0) + 8.0)
    )
    total[:2] = 0.0
    return np.maximum(total - margin, 0.0), np.maximum(total + margin, 0.0)


def overlap_moment(mu: float, releases: int, times: int) -> tuple[float, float]:
    """log E_Q[M^2], M the mean of the ratios of all sets of `times` releases: E e^(J mu^2), two such sets sharing J.

    At least, and at most. Of more than are summed over, by J's mean (Jensen's inequality) and its largest value.
    """
    if times > MOST_SHARED:
        most = times * mu * mu
        return most * (times / releases) * (1.0 - 8.0 * UNIT), most * (1.0 + 8.0 * UNIT)
    j = np.arange(1.0, times + 1.0)
    j = j[2 * times - j <= releases]
    exponent = j * mu * mu
    excess = np.where(exponent > 30.0, exponent - 1e-12, np.log(np.expm1(np.minimum(exponent, 30.0))))
    chosen = _log_binomial(times, j) + _log_binomial(releases - times, times - j) - _log_binomial(releases, times)
    total = float(logsumexp(chosen + excess))
    margin = 1e-14 * (float(gammaln(releases + 2.0)) + abs(total))
    return max(0.0, float(np.logaddexp(0.0, total - margin))), float(np.logaddexp(0.0, total + margin + 2e-12))


def _log_binomial(n: float, k: Array | float) -> Array:
    return np.asarray(gammaln(n + 1.0) - gammaln(k + 1.0) - gammaln(n - k + 1.0))


def _series_product(first: Array, second: Array) -> Array:
    """Logarithms of the coefficients of a product of power series, from those of both, finite."""
    n = np.arange(len(first))
    other = n[:, None] - n
    terms = np.where(other >= 0, first + second[np.maximum(other, 0)], -np.inf)
    return np.asarray(logsumexp(terms, axis=1))


def without_record_first(mu: float, bins: int, c: float) -> float:
    """log E_Q[M^-c], c > 0, rounded up; inf where the sums would be too long."""
    strips = np.linspace(0.02, 1.55, 200)
    losses = ACCURACY - c * np.log(np.cos(strips))
    best = int(np.argmax(strips / losses))
    step = _short(2.0 * math.pi * float(strips[best] / losses[best]))
    left = 50.0 / (c + 2.0)
    start = math.floor((math.log(c + 2.0) - left - math.sqrt(2.0 * left)) / step)
    parts: list[Array] = []
    for block in range(MOST_BLOCKS):
        u = (start + block * BLOCK + np.arange(BLOCK)) * step
        u = u[u < math.log(FARTHEST) + math.log(bins)]
        theta = np.exp(u) / bins
        inner = _log_excess(mu, theta) if len(u) > 1 else None
        if inner is None:
            return math.inf
        tilt = bins * np.log1p(np.exp(np.minimum(inner, 700.0)))  # T K
        size = np.abs(c * u) + bins * theta + abs(math.lgamma(c)) + 1.0
        charge = UNIT * (8.0 * size + (1.0 + tilt) * (8.0 * theta + 64.0))
        density = c * u - bins * theta - math.lgamma(c) + charge
        parts.append(density + tilt + np.log(-np.expm1(-tilt)))
        first = density[-2:] + tilt[-2:]
        ratio = math.exp(min(float(first[1] - first[0] + 4.0 * charge[-1]), 700.0))
        above = float(first[1]) + math.log(ratio / (1.0 - ratio)) + 1e-9 if ratio < 1.0 else math.inf
        if above < float(logsumexp(np.concatenate(parts))) - NEGLIGIBLE:
            break
    else:
        return math.inf
    s = math.exp(start * step)
    below = float(parts[0][0]) - math.log(math.expm1((c + 1.0 - s) * step)) + 1e-9
    total = float(logsumexp(np.concatenate([*parts, [below, above]]))) + math.log(step)
    if total > LARGEST_LOG:
        return math.inf
    lost = 2.0 * math.exp(-c * math.log(math.cos(strips[best]))) / math.expm1(2.0 * math.pi * strips[best] / step)
    return math.log1p((math.exp(total + 64.0 * UNIT * (1.0 + abs(total))) + 2.0 * lost) / (1.0 - lost)) * (1.0 + 1e-15)


def _log_excess(mu: float, theta: Array) -> Array | None:
    """log of E h(-theta (W - 1)), rounded up, at rising theta; None where the sum would be too long."""
    last = float(theta[-1])
    widest = 1.0 + last * mu * mu
    d = min(math.pi / (2.0 * mu), math.sqrt(2.0 * ACCURACY / widest))
    loss = ACCURACY + d * d * widest / 2.0 + math.log(2.0 * (2.0 + 2.0 * last) + 1.0)
    step = _short(2.0 * math.pi * d * mu / loss)
    left, right = min(last * mu, math.sqrt(2.0 * last)) + REACH, mu + REACH
    below, beyond = math.ceil((mu * left + mu * mu / 2.0) / step), math.ceil((mu * right - mu * mu / 2.0) / step)
    if below + beyond > MOST_NODES:
        return None
    z = np.arange(-below, beyond + 1) * step  # exact
    w = z / mu + mu / 2.0
    density = np.exp(-w * w / 2.0) * (step / mu / math.sqrt(2.0 * math.pi)) * (1.0 + UNIT * (8.0 * w * w + 32.0))
    total = _excess(-theta[:, None] * np.expm1(z)) @ density
    # a relative error of y counts as often as h rises with it, at most theta + 2 times
    total *= 1.0 + UNIT * (8.0 * (theta + 2.0) + len(z) + 64.0)
    near = 2.0 * np.log(theta) + theta - math.log(2.0) + log_ndtr(-left)
    tilted = theta * (theta + 1.0) * mu * mu / 2.0 + log_ndtr(theta * mu - left)
    tails = np.exp(np.minimum(np.minimum(near, tilted), 700.0) + 1e-9) + theta * math.exp(log_ndtr(mu - right) + 1e-9)
    lost = 2.0 * math.exp(-ACCURACY)  # twice: 1 of e^(2 pi d/step) - 1
    return np.asarray(np.log((total + tails + lost) / (1.0 - lost)))


def _excess(y: Array) -> Array:
    """e^y - 1 - y."""
    small = np.clip(y, -1.0, 1.0)
    series = np.ones_like(y)
    for k in range(20, 2, -1):
        series = 1.0 + small / k * series
    return np.where(np.abs(y) <= 1.0, small * small / 2.0 * series, np.expm1(y) - y)


def _short(step: float) -> float:
    """At most the step, and multiples of it are exact."""
    mantissa, exponent = math.frexp(step)
    return math.ldexp(math.floor(mantissa * 2**20), exponent - 20)
