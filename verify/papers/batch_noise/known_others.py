"""Upper bounds for Gaussian noise under the other two readings: the batch is told how many other records are in it.

Let K ~ Binomial(N, q) be the number of OTHER records in the batch. Its law is the same with and without the record in
question, so telling it can only help the adversary, and the release is dominated by the pair (K, output) with

    per-example   P_k = N(v, (k+1) sigma^2 I),   Q_k = N(0, k sigma^2 I),   |v| <= C
    realised      P_k = N(u, r^2 sigma^2 I),     Q_k = N(0, sigma^2 I),     r = k/(k+1), |u| <= 2 C r

(moved by the others' sum and scaled, both known given K; realised: S/k - (S + v)/(k+1) = (S/k - v)/(k+1), where S/k and
v lie in the ball of radius C, and everything is scaled by k). Poisson sampling of the record acts on each as usual.

1. The longest shift is the worst. For P_c = N(c e, s^2 I) and Q = N(0, t^2 I) let f(c) = sup_S P_c(S) - a Q(S), any
a > 0. The best S at c is {|x|^2/t^2 - |x - c e|^2/s^2 > const}: with kappa = t^2/(t^2 - s^2) it is, for s < t, a ball
around kappa c e, kappa > 1; for s > t the outside of a ball around kappa c e, kappa < 0. Keep this S and let the centre
of P move from c e to c' e. For s < t and c <= c' <= kappa c it approaches the centre of the ball, so P(S) grows
(Anderson 1955, Theorem 1); for s > t and c' >= c it leaves the ball, so P(S) grows. Hence f(c') >= f(c), by repetition
for all c' >= c > 0, and by continuity from c = 0. For s = t S is a half-space. As this holds for EVERY a > 0, it holds
in both directions, and the longer shift's pair dominates (Blackwell 1953; Dong, Roth and Su 2022, Theorem 2.10).

2. Few others are the worst. per-example: adding (k - k0) further noises takes (P_k0, Q_k0) to (P_k, Q_k), for noise of
any law. realised: x -> a x + sqrt(1 - a^2) sigma z with a^2 = (1 - r^2)/(1 - r0^2) takes Q_k0 to Q_k and
N(u0, r0^2 sigma^2) to N(a u0, r^2 sigma^2). So the pair of k0, with a shift r/a times 2 C, dominates that of k >= k0.

K is therefore cut into narrow groups, each replaced by the pair of its smallest member; the loss of the mixture, group
told, has the mixture of the groups' exact tails. Values of K left out (K = 0 among them) add their probability, once a
step: P(S) - a Q(S) <= P(all K kept) (P~ - a Q~)(S) + P(some K left out).

The loss of one pair is L = A - B |x - kappa u|^2 with B = (s^-2 - t^-2)/2 and A = n log(t/s) + |u|^2/(2 (t^2 - s^2)),
and |x - kappa u|^2 is s^2 or t^2 times a noncentral chi-square of n degrees of freedom.
"""

import math
import warnings
from dataclasses import dataclass
from functools import partial
from typing import Literal

import numpy as np
from scipy.stats import ncx2

from dpaudit.mechanisms.base import Array, Function
from dpaudit.verify.claims import Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.papers.batch_noise.other_records import STRATUM, Others, other_records, strata
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails
from dpaudit.verify.pld.loss_grid import SampledPair
from dpaudit.verify.pld.pair_curve import compose_sampled, worst_delta
from dpaudit.verify.upper.gaussian_pld import shift_over_sigma

Reading = Literal["per-example", "realised"]

THEOREM = (
    "number of other records in the batch revealed; longest shift and fewest others dominate (Anderson 1955, Theorem "
    "1; Blackwell 1953); loss law by noncentral chi-squares; sampling and composition by Zhu, Dong and Wang (2022), "
    "Theorems 10 and 11; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)
NCX2_ERROR = 1e-9  # relative error granted to a tail of scipy's noncentral chi-square; tests compare with mpmath
LARGEST_DIMENSION = 1_000_000  # beyond these the noncentral chi-square has not been compared
LARGEST_NONCENTRALITY = 1e6
LEVELS = 1500
TAIL = 1e-27  # P-mass over the whole history that may go to an infinite loss
SHARE = 1e-4  # share of the claimed delta that values of K left out may take


class UnresolvedError(ArithmeticError):
    """The noncentral chi-square could not be computed, so there is no bound."""


@dataclass(frozen=True)
class Scaled:
    """N(shift e, first^2 I) against N(0, second^2 I) in R^n, first and second different.

    Args:
        shift: At least 0.
        first: s, > 0.
        second: t, > 0.
        gap: t^2 - s^2, given apart because it would cancel.
        dimension: n.
    """

    shift: float
    first: float
    second: float
    gap: float
    dimension: int

    @property
    def constant(self) -> float:
        """A of the loss L = A - B |x - kappa u|^2."""
        log_ratio = 0.5 * math.log1p(self.gap / self.first**2)
        return self.dimension * log_ratio + self.shift**2 / (2 * self.gap)

    def tails(self, losses: Array) -> tuple[Array, Array, Array, Array]:
        """P(L <= l), P(L > l), Q(L <= l), Q(L > l) at losses l."""
        b = self.gap / (2 * self.first**2 * self.second**2)
        square = np.maximum((self.constant - losses) / b, 0.0)
        sides = []
        for scale in (self.first, self.second):
            below, above = _chi_square(square / scale**2, self.dimension, (scale * self.shift / self.gap) ** 2)
            # the loss falls with the distance where s < t
            sides += [above, below] if self.gap > 0 else [below, above]
        return sides[0], sides[1], sides[2], sides[3]


def _chi_square(x: Array, dimension: int, noncentrality: float) -> tuple[Array, Array]:
    """Distribution and survival function; the larger one is the other's complement."""
    if noncentrality > LARGEST_NONCENTRALITY:
        raise UnresolvedError(f"Expected noncentrality={noncentrality:g} to be at most {LARGEST_NONCENTRALITY:g}.")
    left = x < dimension + noncentrality
    below, above = np.empty_like(x), np.empty_like(x)
    with warnings.catch_warnings(record=True) as caught:  # a series that did not converge is told by a warning alone
        warnings.simplefilter("always")
        below[left] = ncx2.cdf(x[left], dimension, noncentrality)
        above[~left] = ncx2.sf(x[~left], dimension, noncentrality)
    if caught:
        raise UnresolvedError(f"Expected noncentrality={noncentrality:g} to be within reach: {caught[0].message}")
    below[~left], above[left] = 1.0 - above[~left], 1.0 - below[left]
    if not (np.isfinite(below).all() and np.isfinite(above).all()):
        raise UnresolvedError(f"Expected the noncentral chi-square of {dimension} degrees of freedom to be finite.")
    return below, above


def scaled_pair(reading: Reading, mu: float, dimension: int, low: int, high: int) -> Scaled:
    """The pair that dominates all K in [low, high] (module docstring, 2).

    Args:
        reading: Which.
        mu: C / sigma.
        dimension: n.
        low: At least 1.
        high: At least low.
    """
    if reading == "per-example":
        return Scaled(mu, math.sqrt(low + 1), math.sqrt(low), -1.0, dimension)
    gap_low, gap_high = ((2 * k + 1) / (k + 1) ** 2 for k in (low, high))
    stretched = high / (high + 1) * math.sqrt(gap_low / gap_high)
    return Scaled(2 * mu * stretched * (1 + 1e-12), low / (low + 1), 1.0, gap_low, dimension)


def known_others_pair(reading: Reading, mu: float, dimension: int, others: Others) -> DominatingPair:
    """The pair (K, output), K in groups."""
    groups = [(scaled_pair(reading, mu, dimension, low, high), weight) for low, high, weight in strata(others)]

    def tails(losses: Array) -> Tails:
        total = np.zeros((4, len(losses)))
        for pair, weight in groups:
            total += weight * np.stack(pair.tails(losses))
        error = np.full(len(losses), NCX2_ERROR)
        return Tails(total[0], total[1], total[2], total[3], error, error)

    slack = 1e-12 + 1e-14 * max(abs(pair.constant) + pair.dimension for pair, _ in groups)
    return DominatingPair(tails, slack=slack, levels=LEVELS)


def _cutoff(pair: DominatingPair, tail: float) -> float:
    """A loss beyond which either sign is rarer than `tail` under the law that it points to."""
    candidates = np.geomspace(1e-3, 1e9, 124)
    upper, lower = pair.tails(candidates).p_sf, pair.tails(-candidates[::-1]).q_cdf[::-1]
    enough = np.flatnonzero(np.maximum(upper, lower) <= tail)
    return float(candidates[enough[0] if len(enough) else -1])


def composed_pair(pair: DominatingPair, sampling_prob: float, steps: int) -> list[Composed]:
    """The total loss in both directions; this pair is not its own mirror image, sampled or not."""
    return compose_sampled([(SampledPair(pair, sampling_prob, _cutoff(pair, TAIL / steps)), steps)], ("remove", "add"))


def _helps(reading: Reading, mu: float, dimension: int, records: int, q: float) -> bool:
    """Whether telling K beats telling the batch's size, by the information that either gives away; always at q = 1.

    In units of 1/(N q): shifts of C or 2 C, n draws whose scale changes by 1/(N q), and what cutting K into groups adds
    to a shift of 2 C, against shifts of 2 C and 1/(1-q) for the size.
    """
    mean = records * q
    size = 1 / (1 - q) if q < 1 else math.inf
    if reading == "per-example":
        return dimension / (2 * mean) < 3 * mu**2 + size
    return 2 * dimension / mean + 4 * STRATUM * mu**2 * math.sqrt(mean) < size


def upper_curve(phase: Phase, *, reading: Reading, records: int, delta: float) -> Curve | None:
    """Upper bound on delta(epsilon) of a phase under a reading; None without one or with a better one in `known_size`.

    Args:
        phase: Under add-remove, Poisson sampling or none.
        reading: Which.
        records: N, other records.
        delta: Where tightness matters.
    """
    mu, dimension = shift_over_sigma(phase, "add-remove"), phase.mechanism.dimension
    if mu is None or dimension is None or dimension > LARGEST_DIMENSION:
        return None
    if not _helps(reading, mu, dimension, records, phase.sampling_prob):
        return None
    tail = SHARE * (delta or 1e-12) / phase.steps
    others = other_records(records, phase.sampling_prob, tail, smallest=1)
    if not others.weights.sum() > 0:
        return None
    try:
        composed = composed_pair(known_others_pair(reading, mu, dimension, others), phase.sampling_prob, phase.steps)
    except UnresolvedError:
        return None
    return charged("pld", THEOREM, partial(worst_delta, composed), phase.steps * others.outside)


def charged(method: str, theorem: str, delta: Function, left_out: float) -> Curve:
    """The upper bound `delta` with the probability of what was left out added."""

    def bound(epsilon: Array) -> Array:
        return np.asarray(np.minimum(delta(epsilon) + left_out, 1.0))

    return Curve.upper(method, theorem, bound)
