"""Integrals over a Gamma law of a hidden scale u, between proven bounds: nodes in log u, and panels of u.

Let u have the density u^(k-1) e^(-u/theta) / (Gamma(k) theta^k), let N coordinates be Laplace(1/u) given u, each around
a centre of its own, and let E be any event of them. With r the sum of their distances from the centres and s = log u

    P(E) = integral over E of [integral of g(s) ds] dx,   g(s) = 2^-N e^(K s - b e^s) / (Gamma(k) theta^k),

K = k + N, b = 1/theta + r.

Theorem (nodes). Let psi be the density of s, and T(E) = h sum_j psi(s_j) P(E | u = e^s_j) over s_j = s_0 + j h, j all
whole numbers. Then |T(E) - P(E)| <= eps P(E) for EVERY E, with

    eps = 2 sum_{j >= 1} |Gamma(K + 2 pi i j/h)| / Gamma(K) <= 2 (cos a)^-K / (e^(2 pi a/h) - 1),  0 < a < pi/2.    (1)

Proof. By Poisson's summation formula h sum_j g(s_j) is the integral of g and, for every j != 0, one term of modulus
|G(2 pi j/h)|, G(w) = integral of g(s) e^(i w s) ds. As G(w)/G(0) = b^(-i w) Gamma(K + i w)/Gamma(K), these terms are
eps G(0) in all at most, at every x; g > 0, so integrate over E. Turning the path of Euler's integral by the angle a,
|Gamma(K + i w)| <= e^(-a w) (cos a)^-K Gamma(K): a geometric series. The first form of eps grows with K.

A coordinate counts in N only where it lies between edges and centres: of one beyond, the event knows the side at most,
whose mass given u is e^(-u d)/2, d the distance of the outer edge from the centre, without a factor u. If edges and
centres lie within D of each other, (1) holds with K = k + gauges + i on the part of E where i of m coordinates are
inside, and P(inside | u) <= 1 - e^(-u D), which grows with u. So the K of one number I serves all i <= I; where i > I,
of a probability that Chernoff's bound at the largest u gives, K = k + gauges + m.

psi rises up to log(k theta) and falls from there, so the nodes before the first one kept, s_0, weigh together between
F(e^(s_0 - h)) and F(e^s_0), F the distribution function of u, and those after the last one at most P(u > last). With
x = u/theta, F = (psi/k) (1 + x/(k+1) + x^2/((k+1)(k+2)) + ...) (DLMF 8.7.1); P(u' > u) <= psi/(x - max(k-1, 0)), as
t^(k-1) e^-t lies below x^(k-1) e^-x e^(-(1 - max(k-1, 0)/x) (t-x)) for t > x.

Theorem (panels). On a panel of half-width w about c let x_i, w_i be the n-point Gauss-Legendre rule, and let f be the
density of u. For every A >= 0

    integral of f(u) e^(A u^2) du <= sum_i w w_i f(c + w x_i) e^(A (c + w x_i)^2) + e e^(A b^2):                    (2)

the error is one more atom, at the right end b = c + w (rho + 1/rho)/2 of the ellipse with foci c - w, c + w and
semi-axes of sum rho w, and of mass e = (64/15) w rho^(-2n)/(1 - rho^-2) sup |f| over the ellipse, which is right of 0.

Proof. Trefethen (2013), Approximation Theory and Approximation Practice, Theorem 19.3, with M = sup |f(z) e^(A z^2)|;
Re z^2 <= (Re z)^2 <= b^2. At z = x + i y, |f(z)| = f(x) (1 + y^2/x^2)^((k-1)/2); f rises to (k-1) theta, then falls.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, GammaScale, LaplaceCoordinates
from dpaudit.mechanisms.numerics import UNIT

NODE_ERROR = 2.0**-40  # relative, by the theorem on nodes
NODE_TAIL = 56.0  # -log of the probability beyond which more coordinates inside are charged absolutely
CONSTANT_ERROR = 1e-12  # of the constant of the density: at most 30 roundings of numbers up to 100
RULE = 12  # nodes of a panel
RHO = 4.0  # of the ellipse around a panel
RULE_ERROR = 1e-13  # relative error granted to numpy's Gauss-Legendre weights; tests compare with ball arithmetic


def laplace_given_gamma(noise: object) -> GammaScale | None:
    """The noise if it is Laplace(1/u) given a Gamma law of u, what the theorems here are about; else None."""
    if not isinstance(noise, GammaScale):
        return None
    laws = noise.given(1.0), noise.given(2.0)
    laplace = [law.scale for law in laws if isinstance(law, LaplaceCoordinates)] == [1.0, 0.5]
    return noise if laplace else None


def log_constant(k: float) -> float:
    """log(k^k e^-k / Gamma(k)), the log-density of log u at its mode.

    log Gamma(z) is (z - 1/2) log z - z + log(2 pi)/2 + 1/(12 z) - 1/(360 z^3) + 1/(1260 z^5) - 1/(1680 z^7), with an
    error of at most the next term, 1/(1188 z^9) (DLMF 5.11.1, 5.11(ii)), 2e-15 where z is brought to 20 by recurrence.
    """
    more = max(0, math.ceil(20.0 - k))
    z = k + more
    series = (1 / 12 - (1 / 360 - (1 / 1260 - 1 / (1680 * z * z)) / (z * z)) / (z * z)) / z
    if not more:
        return 0.5 * math.log(k / (2 * math.pi)) - series
    log_gamma = (z - 0.5) * math.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    return k * math.log(k) - k - (log_gamma - sum(math.log(k + i) for i in range(more)))


def _density_of_log(k: float, t: Array, excess: Array) -> tuple[Array, Array]:
    """Density of log u at t = log r, r = u/(k theta), excess = r - 1, and its relative error.

    The exponent is k (t - excess); r, t and excess carry two roundings each, the difference and the product one.
    """
    error = 8.0 * UNIT * k * (np.abs(t) + np.abs(excess)) + CONSTANT_ERROR
    return np.exp(log_constant(k) + k * (t - excess)), error * (1.0 + error)


def _below(k: float, t: float) -> tuple[float, float]:
    """Bounds on P(log(u/(k theta)) < t), t <= 0."""
    density, error = (float(part) for part in _density_of_log(k, np.array(t), np.expm1(t)))
    share = k * math.exp(t) / (k + 1.0)
    # 1 - share is 1/(k+1) at least; roundings of t move the density by k (1 - e^t) times as much
    slack = error + (16.0 + 8.0 * k * (1.0 - t)) * UNIT
    return density / k * (1.0 + share) * (1.0 - slack), min(density / k / (1.0 - share) * (1.0 + slack), 1.0)


def _above(k: float, t: float) -> float:
    """Upper bound on P(log(u/(k theta)) > t), t > 0."""
    density, error = (float(part) for part in _density_of_log(k, np.array(t), np.expm1(t)))
    return density / (k * math.expm1(t) + min(1.0, k)) * (1.0 + error) * (1.0 + 1e-9)


def node_error(order: float, step: float) -> float:
    """The bound (1) at its best angle, for K = order."""
    tangent = 2.0 * math.pi / (step * order)  # the best angle's, but for a factor near 1
    angle = math.atan(tangent)
    log_power = 0.5 * order * math.log1p(tangent * tangent)  # -K log cos a
    waves = 2.0 * math.pi * angle / step
    log_error = math.log(2.0) + log_power - waves - math.log(-math.expm1(-waves))
    return math.exp(min(log_error, 700.0)) * (1.0 + 1e-9)


def node_step(order: float) -> float:
    """A step at which `node_error` is NODE_ERROR at most; ten significant bits, so that its multiples are exact."""
    low, high = 1e-3 / math.sqrt(order), 1.0
    for _ in range(60):
        middle = math.sqrt(low * high)
        low, high = (middle, high) if node_error(order, middle) <= NODE_ERROR else (low, middle)
    mantissa, exponent = math.frexp(low)
    return math.ldexp(math.floor(mantissa * 1024), exponent - 10)


def most_inside(count: int, probability: float) -> int:
    """A number that as many of `count` coordinates exceed with probability e^-NODE_TAIL at most (Chernoff)."""
    low, high = min(count, math.ceil(count * probability)), count
    while low < high:
        middle = (low + high) // 2
        if _divergence(count, middle, probability) >= NODE_TAIL + 1e-6:
            high = middle
        else:
            low = middle + 1
    return low


def _divergence(count: int, inside: int, p: float) -> float:
    """count times the Kullback-Leibler divergence of Bernoulli(inside/count) from Bernoulli(p)."""
    share = inside / count
    if share <= p:
        return 0.0
    return count * (
        share * math.log(share / p) + ((1.0 - share) * math.log((1.0 - share) / (1.0 - p)) if share < 1.0 else 0.0)
    )


@dataclass(frozen=True)
class Scales:
    """Nodes of the trapezoidal rule in log u: bounds on P(E) from bounds on P(E | u) at them.

    P(E) is at least sum_j weights_j (1 - relative_j) P(E | u_j) + below[0] inf - absolute, and at most
    sum_j weights_j (1 + relative_j) P(E | u_j) + below[1] sup + above; inf and sup are P(E | u)'s up to the first node.

    Args:
        nodes: Values of u, increasing.
        weights: Of the nodes.
        relative: Relative errors of the weights, roundings and the rule's own.
        below: Bounds on the weights of all nodes before the first.
        above: Bound on what is beyond the last one, `absolute` included.
        absolute: Bound on the rule's error by events of more coordinates than its step is for.
    """

    nodes: Array
    weights: Array
    relative: Array
    below: tuple[float, float]
    above: float
    absolute: float


def nodes_between(
    noise: GammaScale, bottom: float, top: float, gauges: int, count: int, reach: float, most: int = 10**6
) -> Scales:
    """Nodes from about `bottom` to about `top`, at the largest step that the theorem allows.

    Args:
        noise: Law of u.
        bottom, top: Values of u, of any accuracy.
        gauges: Untouched coordinates that E depends on.
        count: Moved coordinates that E depends on.
        reach: `count` times the largest distance D between edges and centres.
        most: Nodes; those at the bottom are left out.
    """
    k, mode = noise.shape, noise.shape * noise.scale
    probability = -math.expm1(-top * 1.05 * reach / count)
    inside = most_inside(count, probability)
    step = node_step(k + gauges + inside)
    first, last = (
        math.floor(min(math.log(bottom / mode), 0.0) / step),
        math.ceil(max(math.log(top / mode), step) / step),
    )
    t = np.asarray(step * np.arange(max(first, min(last - most, 0)), last + 1), dtype=np.float64)
    density, error = _density_of_log(k, t, np.asarray(np.expm1(t)))
    rule = node_error(k + gauges + inside, step)
    weights, relative = step * density, error + 2.0 * rule
    above = _above(k, float(t[-1]))
    absolute = 0.0
    if inside < count:
        top_inside = -math.expm1(-mode * math.exp(float(t[-1])) * (1 + 1e-12) * reach / count)
        more = math.exp(-_divergence(count, inside, top_inside)) * (1.0 + 1e-6) + above
        absolute = node_error(k + gauges + count, step) * more
    # all weights together are 1, but for the rule's error: what the nodes leave is below them or above
    rest, slack = 1.0 - float(weights.sum()), float((weights * relative).sum()) + 4.0 * rule + 4.0 * len(t) * UNIT
    below = (
        max(_below(k, float(t[0]) - step)[0] * (1.0 - 2.0 * rule), rest - above - slack),
        min(_below(k, float(t[0]))[1] * (1.0 + 2.0 * rule), rest + slack),
    )
    return Scales(
        nodes=mode * np.exp(t),
        weights=weights,
        relative=relative,
        below=below,
        above=(above + absolute) * (1.0 + 2.0 * rule),
        absolute=absolute,
    )


@dataclass(frozen=True)
class Panels:
    """Atoms that bound the law of u on consecutive panels by (2): rules of shape (panels, RULE), one error a panel.

    Args:
        nodes: Of the rules.
        masses: Of the nodes, rounded up.
        relative: By how much at most, per node.
        error: Mass of the atom for the rule's own error.
        reach: Where that atom lies.
    """

    nodes: Array
    masses: Array
    relative: Array
    error: Array
    reach: Array

    def total(self) -> Array:
        """Upper bounds on the panels' probabilities."""
        return np.asarray((self.masses.sum(axis=1) + self.error) * (1.0 + 2 * RULE * UNIT))

    def least(self) -> Array:
        """Lower bounds on the panels' probabilities."""
        sums = (self.masses * (1.0 - 2.0 * self.relative)).sum(axis=1) * (1.0 - 2 * RULE * UNIT)
        return np.asarray(np.maximum(sums - self.error, 0.0))


def panels(noise: GammaScale, ends: Array) -> Panels:
    """Gauss-Legendre rules of the law of u on panels.

    Args:
        noise: Law of u.
        ends: Of the panels, increasing, the first > 0; each panel less than 1.7 times as wide as its left end.
    """
    k, mode = noise.shape, noise.shape * noise.scale
    x, w = np.polynomial.legendre.leggauss(RULE)
    half, centre = 0.5 * np.diff(ends), 0.5 * (ends[1:] + ends[:-1])
    nodes = centre[:, None] + half[:, None] * x
    density, error = _density(k, mode, nodes)
    # a node off by 6 roundings sees another density, whose logarithm has the slope k - 1 - u/theta in log u
    drift = error + 8.0 * UNIT * (k * np.abs(nodes / mode - 1.0) + 1.0) + RULE_ERROR
    wide, high = half * (RHO + 1.0 / RHO) / 2.0, half * (RHO - 1.0 / RHO) / 2.0
    left, right = (centre - wide) * (1.0 - 1e-12), (centre + wide) * (1.0 + 1e-12)
    if not (left > 0).all():
        raise ValueError("Expected panels less than 1.7 times as wide as their left ends.")
    peak, peak_error = _density(k, mode, np.clip(max(mode - noise.scale, 0.0), left, right))
    bulge = np.exp(max(k - 1.0, 0.0) * np.square(high / left) / 2.0)  # (1 + y^2/x^2)^((k-1)/2)
    rule = 64.0 / 15.0 * RHO ** (-2 * RULE) / (1.0 - RHO**-2)
    return Panels(
        nodes=nodes,
        masses=half[:, None] * w * density * (1.0 + drift),
        relative=drift,
        error=rule * half * peak * bulge * (1.0 + peak_error) * (1.0 + 1e-9),
        reach=right,
    )


def _density(k: float, mode: float, u: Array) -> tuple[Array, Array]:
    """Density of u, and its relative error."""
    ratio = u / mode
    density, error = _density_of_log(k, np.log(ratio), ratio - 1.0)
    return density / u, error + 4.0 * UNIT


def ladder(noise: GammaScale, bottom: float, top: float, widest: float = math.inf) -> Array:
    """Ends of panels from bottom to top, one deviation of u wide or less, and narrower towards 0.

    Args:
        noise: Law of u.
        bottom, top: First and last end.
        widest: Of a panel.

    Raises:
        ValueError: The bottom is 0.
    """
    if not bottom > 0:
        raise ValueError(f"Expected a scale of {bottom!r} to be positive: its law reaches below what floats hold.")
    root = math.sqrt(max(noise.shape, 1.0))
    ends = [bottom]
    while ends[-1] < top:
        ends.append(min(ends[-1] + min(ends[-1] / root, noise.scale * root, widest), top))
    return np.array(ends)


def least_between(noise: GammaScale, ends: Array) -> Array:
    """Lower bounds on the probabilities of u between consecutive ends, which are positive and increase."""
    finer = np.unique(np.concatenate([ends, ladder(noise, float(ends[0]), float(ends[-1]))]))
    sums = np.add.reduceat(panels(noise, finer).least(), np.searchsorted(finer, ends[:-1]))
    return np.asarray(sums * (1.0 - 2 * len(finer) * UNIT))


def beyond(noise: GammaScale, u: float) -> float:
    """Upper bound on P(hidden scale > u)."""
    mode = noise.shape * noise.scale
    far = max(u, mode) + 25.0 * noise.scale * math.sqrt(max(noise.shape, 1.0))
    inside = float(panels(noise, ladder(noise, u, far)).total().sum())
    return min((inside + _above(noise.shape, math.log(far / mode))) * (1.0 + 1e-13), 1.0)


def up_to(noise: GammaScale, u: float) -> float:
    """Upper bound on P(hidden scale <= u), u at most the mean."""
    return _below(noise.shape, math.log(u / (noise.shape * noise.scale)))[1]
