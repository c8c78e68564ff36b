"""Steps of Laplace noise with a hidden Gamma scale, drawn through counts, with weights that know the scale.

Write u for the inverse scale, k and theta for its shape and scale, s for the shift of each of the first m of n
coordinates, A for how many of these land above s, B below 0, M between, D = A - B, and E for the sum of what is left
of all coordinates outside: |o_i| below 0 and beyond m, o_i - s above s. An observer keeps (A, B, M, E), a function of
the output. Given u, they have density proportional to u^(n-M) e^(-uE) (1 - e^(-us))^M e^(-usA) without the shift,
with B for A under it. So their loss, u being hidden, is

    S = log phi(B)/phi(A),   phi(t) = E_u[u^(n-M) e^(-uE) (1 - e^(-us))^M e^(-ust)].

A lower bound on S. -phi'/phi at t is the mean of a = us under the law of density ~ a^(k+n-M-1) e^(-ra) (1-e^(-a))^M,
r = 1/(theta s) + E/s + t. Integrating the derivative of a times that density gives r E[a] = k + n - M + M E[a/(e^a-1)],
and 1 - a/2 <= a/(e^a - 1) <= 1; hence (k+n)/(r + M/2) <= E[a] <= (k+n)/r. The integral of that from B to A, or from A
to B, bounds S from below:

    D >= 0:  S >= (k+n) log(1 + D/(r_B + M/2)),     D < 0:  S >= -(k+n) log(1 - D/r_A),   r_t as above.

Weights. The draws see u. Given u, S_u = us D is the loss of the counts, and e^(j S_u)/W_j(u) their tilt by j, with
W_j(u) = (e^(-ja)/2 + e^((j-1)a)/2 + (1-e^(-a))/2)^m. A draw takes j with probability pi_j, u from the Gamma law of
shape k and scale c_j theta, whose density to the scale's own is rho_j(u) = c_j^-k e^((1 - 1/c_j) u/theta), and the
counts from the tilt by j. So the density of the whole to First, u included, is known:

    dF/dR = (1 - q + q e^(S_u)) / sum_j pi_j rho_j(u) e^(j S_u)/W_j(u).

A nonnegative function h of the counts and E has E_R[dF/dR h] = E_F[h], whatever R knew besides; h = (1 - e^(epsilon -
L))_+ with L a lower bound on the true loss has E_F[h] <= delta(epsilon). So the product is a nonnegative variable with
mean at most delta, as the bounds of the module betting need; it has no known bound, and needs none. pi_j and c_j are
any numbers: here the larger of the weights of (1 - q + q e^S)^(theta'+1), times E W_j(u), and the mean of u under
W_j(u).
"""

from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, GammaScale
from dpaudit.verify.sampling.sums import binomial_tilts, subsampled

STEEPEST = 600.0  # exponents of tilts beyond which a scale's draws are given no weight
FAINTEST = 25.0  # log of the ratio of the largest weight of a tilt to one that is left out
NODES, RAREST = 200, 1e-6  # scales that choose the tilts, and the probability of larger ones


@dataclass(frozen=True)
class HiddenScaleStep:
    """The tilted laws of one phase's steps.

    Args:
        law: Of the scale.
        dimension: n.
        coordinates: m.
        value: s.
        rate: q.
        steps: Number of steps.
    """

    law: GammaScale
    dimension: int
    coordinates: int
    value: float
    rate: float
    steps: int
    mixes: bool = True
    bounded: bool = False

    @property
    def floats(self) -> float:
        """The moments of a few tilts and the counts."""
        return 16.0

    @property
    def rounding(self) -> float:
        """Of m and of k times a logarithm."""
        return 1e-11 + 4e-15 * (self.coordinates + self.law.shape)

    def log_z(self, theta: float) -> float:
        """log of what stands for the normaliser of one step: a guide."""
        return float(np.logaddexp.reduce(self._mixture(theta)[1]))

    def _mixture(self, theta: float) -> tuple[Array, Array, Array]:
        """Tilts j, logs of their weights before normalisation, and the factors c_j."""
        orders, logs = binomial_tilts(theta, self.rate)
        scales, chances = _nodes(self.law)
        moments = np.log(chances) + self._log_moments(orders, np.minimum(scales * self.value, STEEPEST / (theta + 1.0)))
        top = moments.max(axis=1)
        terms = np.exp(moments - top[:, None])
        total = terms.sum(axis=1)
        logs = logs + top + np.log(total)
        kept = (logs > logs.max() - FAINTEST) | (orders <= 1.0)
        return orders[kept], logs[kept], ((terms @ scales) / total / (chances @ scales))[kept]

    def draw(self, rng: np.random.Generator, theta: float, size: int) -> tuple[Array, Array]:
        """(a lower bound on L, log dF/dR - log_z) of `size` steps."""
        shape, n, m = self.law.shape, self.dimension, self.coordinates
        orders, logs, factors = self._mixture(theta)
        table = np.cumsum(np.exp(logs - logs.max()))
        index = np.minimum(np.searchsorted(table, rng.random(size) * table[-1], side="right"), len(table) - 1)
        units = rng.standard_gamma(shape, size) * factors[index]
        scale = units * self.law.scale
        ratio = np.minimum(scale * self.value, STEEPEST / (theta + 1.0))
        below, above = 0.5 * np.exp(-orders[index] * ratio), 0.5 * np.exp((orders[index] - 1.0) * ratio)
        between = -0.5 * np.expm1(-ratio)
        middle = rng.binomial(m, between / (between + above + below))
        high = rng.binomial(m - middle, above / (above + below))
        rest = rng.standard_gamma(n - middle) / scale
        drop = 2.0 * high - (m - middle)
        loss = subsampled(hidden_loss_lower(self.law, n, self.value, high, m - middle - high, middle, rest), self.rate)
        known = ratio * drop
        tilted = logs[:, None] - self._log_moments(orders, ratio) + orders[:, None] * known
        tilted += (1.0 - 1.0 / factors)[:, None] * units - shape * np.log(factors)[:, None]
        top = tilted.max(axis=0)
        weight = subsampled(known, self.rate) - top - np.log(np.exp(tilted - top).sum(axis=0))
        return loss, np.where(ratio == scale * self.value, weight, -np.inf)

    def _log_moments(self, orders: Array, ratio: Array) -> Array:
        """log W_j, orders first; the three weights' sum is 1 but for these small terms."""
        j = orders[:, None]
        excess = np.expm1(-j * ratio) + np.expm1((j - 1.0) * ratio) - np.expm1(-ratio)
        return np.asarray(self.coordinates * np.log1p(0.5 * excess))


def hidden_loss_lower(
    law: GammaScale, dimension: int, value: float, high: Array, low: Array, middle: Array, rest: Array
) -> Array:
    """The module's lower bound on S.

    Args:
        law: Of the scale.
        dimension: n.
        value: s.
        high: A.
        low: B.
        middle: M.
        rest: E.
    """
    start, drop = (1.0 / law.scale + rest) / value, np.asarray(high, dtype=np.float64) - low
    rising = np.log1p(np.maximum(drop, 0.0) / (start + low + 0.5 * middle))
    falling = np.log1p(np.maximum(-drop, 0.0) / (start + high))
    return np.asarray((law.shape + dimension) * (rising - falling))


def _nodes(law: GammaScale) -> tuple[Array, Array]:
    """Scales and their probabilities, which stand for the law; large scales, which cost most, are told apart."""
    tails = np.geomspace(RAREST, 1.0, NODES + 1)
    return np.asarray(law.scale_isf(np.sqrt(tails[1:] * tails[:-1]))), np.diff(tails)
