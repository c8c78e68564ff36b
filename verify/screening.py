"""Cheap certified screens of very many claims on Gaussian noise: most are decided in microseconds, the rest are left.

A claim is one phase of `steps` releases with a Gaussian shift of 1 / noise_multiplier standard deviations, Poisson
sampled at a rate q or not at all (q = 1), under add-remove or zero-out. Every screen is a theorem with its float error,
applied to whole columns; a claim that none decides is `left` to `check`, which is much sharper. Only the direction of
removal is witnessed, and for symmetric noise it has the larger moments (see `rdp`).

From above:

- "unsampled": sampling never costs, so delta(epsilon) is at most that of N(sqrt(steps)/s, 1) against N(0, 1).
- "renyi": moments of whole orders a, 1 + sum_{k >= 2} binom(a, k) q^k (1-q)^(a-k) (e^(k(k-1)/(2 s^2)) - 1), composed
  and converted as in `rdp.log_delta`, with chords below order 2. Up to a = TERMS the sum is whole. Beyond, a term is at
  most t_k = (a q)^k e^(k(k-1)/(2 s^2)) / k!, because binom(a, k) <= a^k / k! and (1-q)^(a-k) <= 1. The increments
  log t_{k+1} - log t_k = log(a q) + k/s^2 - log(k+1) are convex in k: once negative they change sign once more at most,
  so if they are not positive at k = TERMS + 1 the largest t_k of k in (TERMS, a] is that of an end, and the terms left
  out sum to at most (a - TERMS) max(t_{TERMS+1}, t_a). Where the increment is positive the order is not used.
- "centred": with L = dP/dQ of the whole history, h = e^epsilon - 1 and even p, (x - h)_+ <= c x^p / h^(p-1) for
  c = (p-1)^(p-1)/p^p (the line touches the power at x = h p/(p-1)), so removal has delta(epsilon) = E_Q[(L - 1 - h)_+]
  <= c E_Q[(L-1)^p] / h^(p-1), and addition e^epsilon E_Q[(1 - L - h e^-epsilon)_+], at most e^(p epsilon) times that.
  E_Q[(L-1)^p] = sum_{a >= 2} (-1)^(p-a) binom(p, a) (E_Q[L^a] - 1), as the alternating sum of binomials is 0 and
  E_Q[L] = 1. For small epsilon this is far below what any order of "renyi" gives.

From below, an event S with P(S) - e^epsilon Q(S) > delta refutes:

- "sum": {sum of releases / (s sqrt(steps)) > z}, s in clips. Under Q the sum is normal. Under P it is N(K/(s
  sqrt(steps)), 1) with K ~ Binomial(steps, q), and for any edges 0 = k_0 <= k_1 <= ..., as normal tails rise with K,
  P(S) >= sum_j Pr[k_j <= K < k_{j+1}] Phi(k_j/(s sqrt(steps)) - z).
- "count": {at least m of the releases exceed z standard deviations}. The count is binomial under both laws, with
  p_Q = Phi(-z) and p_P = (1-q) p_Q + q Phi(1/s - z).

Binomial tails are bounded as `binomial_tails` proves; where "count" looks for a claim to refute, incomplete beta
functions say where it is worth it, and prove nothing. Normal probabilities carry the error of `normal_tails`.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, binom, gammaln, log_ndtr, ndtr, ndtri_exp

from dpaudit.mechanisms.base import Array
from dpaudit.verify.binomial_tails import binomial_tails
from dpaudit.verify.claim_columns import ClaimColumns
from dpaudit.verify.claims import Claim
from dpaudit.verify.float_range import beyond_floats
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma
from dpaudit.verify.upper.shift_norms import sampling_is_known

CERTIFIED, REFUTED, LEFT = "certified", "refuted", "left"
TERMS = 32  # of a binomial sum
ORDERS = np.unique(np.concatenate([np.arange(2.0, 13.0), np.rint(14.0 * 1.15 ** np.arange(36))]))
CHORDS = (0.1, 0.2, 0.35, 0.5, 0.7)  # orders lam below the first whole one
LARGEST_RATE = 0.9  # of "renyi": above, sampling is next to none
MOST_STEPS = 100_000  # of the events: the window of a binomial law stays small
MARGIN, CHANCE = 1e-9, 1e-13  # relative, of sums of positive terms and of a normal probability up to 6 deviations out
POWERS = (2, 4, 6, 8, 10, 12)  # of "centred"
ROUNDING = 1e-12  # relative, of moments of orders up to 12: a thousand times a unit in the last place
EDGES = np.array([-9.0, -4.0, -3.0, -2.2, -1.5, -0.9, -0.3, 0.3, 0.9, 1.5, 2.2, 3.0, 4.0, 5.5])
SUM_LEVELS = (0.02, 0.1, 0.25, 0.5, 0.75, 0.9, 1.0, 1.05)  # Q(S) = e^-epsilon delta^level
COUNT_LEVELS = (0.05, 0.5, 0.97)
CUTS = (2.0, 2.7, 3.4, 4.2, 5.2)  # z of "count"
BLOCK = 16_384  # claims at a time: what one screen holds stays in the cache

_LAMBDAS = ORDERS - 1.0
_BINOMIALS = binom(ORDERS[None, :], np.arange(2.0, TERMS + 1.0)[:, None])  # (terms, orders), 0 above the order


@dataclass(frozen=True)
class Screening:
    """What the screens decided.

    Args:
        claims: What was screened.
        verdict: "certified", "refuted" or "left", shape (n,).
        bound: Name of the deciding screen, "" where left.
    """

    claims: ClaimColumns
    verdict: NDArray[np.str_]
    bound: NDArray[np.str_]

    def ids(self, verdict: str) -> list[str]:
        """Names of the claims with a verdict, in order."""
        return [str(name) for name in self.claims.ids[self.verdict == verdict]]

    def counts(self) -> dict[str, int]:
        """Number of claims by verdict."""
        return {name: int((self.verdict == name).sum()) for name in (CERTIFIED, REFUTED, LEFT)}

    def deciding(self) -> dict[str, int]:
        """Number of claims that each screen decided."""
        return {name: int((self.bound == name).sum()) for _, name, _ in SCREENS}


def screen(claims: ClaimColumns, *, advance: Callable[[int], None] = lambda done: None) -> Screening:
    """Decide what the cheap bounds decide.

    Args:
        claims: The claims.
        advance: Told how many more are done.

    >>> one = [np.array([value]) for value in (1.0, 0.01, 1000.0, 1e-5, 4.0)]
    >>> screen(ClaimColumns(np.array(["a"]), *one)).verdict.tolist()
    ['certified']
    """
    verdict, bound = np.full(len(claims), LEFT, "<U9"), np.full(len(claims), "", "<U9")
    for start in range(0, len(claims), BLOCK):
        open_rows = np.arange(start, min(start + BLOCK, len(claims)))
        for decision, name, decides in SCREENS:
            with np.errstate(all="ignore"):  # what overflows decides nothing
                done = decides(claims.take(open_rows)) if len(open_rows) else np.zeros(0, bool)
            verdict[open_rows[done]], bound[open_rows[done]] = decision, name
            open_rows = open_rows[~done]
        advance(min(BLOCK, len(claims) - start))
    return Screening(claims, verdict, bound)


def columns_of(claims: list[Claim]) -> tuple[ClaimColumns, list[str]]:
    """The claims that the screens cover, and the ids of all others."""
    rows, others = [], []
    for claim in claims:
        canonical = claim.canonical()
        phase = canonical.phases[0]
        mu = shift_over_sigma(phase, canonical.adjacency)
        covered = len(canonical.phases) == 1 and claim.guarantee is None and phase.correlation is None
        covered &= sampling_is_known(phase) and (phase.sampling_prob == 1 or canonical.adjacency == "add-remove")
        if mu is None or not covered or not 1e-100 < mu < 1e100 or beyond_floats(canonical):
            others.append(claim.id)
        else:
            rows.append((claim.id, 1.0 / mu, phase.sampling_prob, phase.steps, claim.delta, claim.epsilon))
    ids, *numbers = zip(*rows, strict=True) if rows else [()] * 6  # ids as objects: NumPy's text drops a last NUL
    return ClaimColumns(np.array(ids, dtype=object), *(np.array(column, dtype=float) for column in numbers)), others


def unsampled_certifies(claims: ClaimColumns) -> NDArray[np.bool_]:
    """Whether the curve without sampling, exact up to rounding, is at most delta."""
    mu = np.sqrt(claims.steps) / claims.noise_multiplier * (1 + 1e-14)
    return np.asarray(analytic_delta(mu, claims.epsilon) <= claims.delta)


def renyi_certifies(claims: ClaimColumns) -> NDArray[np.bool_]:
    """Whether some order's moment converts to at most delta. Balle et al. (2020), Theorem 21."""
    alpha = claims.steps[:, None] * np.log1p(one_release_moments(claims)) * (1 + MARGIN) + 1e-12
    fixed = _LAMBDAS * np.log(_LAMBDAS / ORDERS) - np.log(ORDERS)
    best = np.min(alpha + fixed - _LAMBDAS * claims.epsilon[:, None], axis=1)
    for lam in CHORDS:
        chord = lam * (alpha[:, 0] - claims.epsilon + math.log(lam / (lam + 1))) - math.log1p(lam)
        best = np.minimum(best, chord)
    slack = 1e-9 + 1e-15 * ORDERS[-1] * claims.epsilon  # of exponents of this size, rounded
    return np.asarray((claims.sampling_prob <= LARGEST_RATE) & (best + slack <= np.log(claims.delta)))


def centred_certifies(claims: ClaimColumns) -> NDArray[np.bool_]:
    """Whether an even centred moment of the likelihood ratio bounds delta, for both directions."""
    logarithm = claims.steps[:, None] * np.log1p(_head_moments(claims, POWERS[-1]))
    moments = np.expm1(logarithm)
    error = ROUNDING * (moments + (1 + moments) * logarithm) + 1e-300
    found = np.zeros(len(claims), bool)
    for p in POWERS:
        a = np.arange(2, p + 1)
        weights = (-1.0) ** (p - a) * binom(p, a)
        centred = moments[:, : p - 1] @ weights + error[:, : p - 1] @ np.abs(weights)
        scale = math.log(p - 1) * (p - 1) - math.log(p) * p + p * claims.epsilon
        log_delta = scale + np.log(centred) - (p - 1) * np.log(np.expm1(claims.epsilon))
        found |= log_delta + MARGIN * p <= np.log(claims.delta)
    usable = (claims.sampling_prob <= LARGEST_RATE) & (logarithm[:, -1] < 1.0) & (claims.epsilon < 1.0)
    return np.asarray(found & usable)


def _head_moments(claims: ClaimColumns, highest: int) -> Array:
    """E_Q[(dP/dQ)^a] - 1 of one release at a = 2, ..., highest <= TERMS, to ROUNDING: (n, highest - 1)."""
    q, precision = claims.sampling_prob[:, None], claims.noise_multiplier[:, None] ** -2.0
    k = np.arange(2.0, highest + 1.0)
    powers = (q / (1 - q)) ** k * np.expm1(k * (k - 1) / 2 * precision)
    return np.asarray(np.minimum(powers, 1e250) @ binom(k[None, :], k[:, None]) * (1 - q) ** k)


def one_release_moments(claims: ClaimColumns) -> Array:
    """E_Q[(dP/dQ)^a] - 1 of one release at every order of ORDERS, rounded up, inf where not bounded: (n, orders)."""
    q, precision = claims.sampling_prob[:, None], claims.noise_multiplier[:, None] ** -2.0
    k = np.arange(2.0, TERMS + 1.0)
    powers = (q / (1 - q)) ** k * np.expm1(k * (k - 1) / 2 * precision)
    head = np.minimum(powers, 1e250) @ _BINOMIALS * (1 - q) ** ORDERS
    long = ORDERS > TERMS
    a, next_term = ORDERS[long], TERMS + 1.0
    last = a * np.log(a * q) + a * (a - 1) / 2 * precision - gammaln(a + 1)
    first = next_term * np.log(a * q) + next_term * (next_term - 1) / 2 * precision - gammaln(next_term + 1)
    falling = np.log(a * q) + next_term * precision - math.log(next_term + 1) <= -1e-9
    tail = np.where(falling, (a - TERMS) * np.exp(np.maximum(first, last)), np.inf)
    total = head * (1 + MARGIN)
    total[:, long] += tail * (1 + MARGIN)
    return np.where(total < 1e200, total, np.inf)  # a clipped power makes more than that


def sum_refutes(claims: ClaimColumns) -> NDArray[np.bool_]:
    """Whether a threshold for the sum of all releases does."""
    q, steps = claims.sampling_prob, np.minimum(claims.steps, MOST_STEPS)
    unit = 1.0 / (claims.noise_multiplier * np.sqrt(steps))
    spread = np.sqrt(steps * q * (1 - q))
    edges = np.maximum(np.arange(len(EDGES))[:, None], np.floor(steps * q + EDGES[:, None] * spread))
    edges[0] = 0.0
    reached = binomial_tails(edges[1:].T, steps, q)[0].T
    middle = q * steps * unit
    thresholds = [claims.epsilon / middle + middle / 2]
    thresholds += [-ndtri_exp(log_level) for log_level in _log_levels(claims, SUM_LEVELS)]
    found = np.zeros(len(claims), bool)
    for z in thresholds:
        passed = ndtr(edges * unit - z)
        power = passed[0] + (reached * np.diff(passed, axis=0)).sum(axis=0)
        # a threshold below 1e3 leaves an ulp of 1e-13 in its distance to an edge, 1e-11 where a tail is worth counting
        found |= _refutes(claims, power * (1 - MARGIN), log_ndtr(-z) + MARGIN) & (np.abs(z) < 1e3)
    return found & (claims.steps <= MOST_STEPS)


def count_refutes(claims: ClaimColumns) -> NDArray[np.bool_]:
    """Whether a number of releases beyond a cut does."""
    found = np.zeros(len(claims), bool)
    covered = claims.steps <= MOST_STEPS
    for cut in CUTS:
        for log_level in _log_levels(claims, COUNT_LEVELS):
            rows = np.flatnonzero(covered & ~found)
            found[rows] = _count_refutes(claims.take(rows), cut, -ndtri_exp(log_level[rows]))
    return found


def _count_refutes(claims: ClaimColumns, cut: float, z: Array) -> NDArray[np.bool_]:
    q, steps, chance = claims.sampling_prob, claims.steps, np.full(len(claims), float(ndtr(-cut)) * (1 + CHANCE))
    power = ((1 - q) * chance + q * ndtr(1 / claims.noise_multiplier - cut)) * (1 - 4 * CHANCE)
    mean = steps * chance  # the count that noise exceeds with about the wanted level: Cornish and Fisher's
    wanted = np.clip(np.ceil(mean + z * np.sqrt(mean * (1 - chance)) + (z * z - 1) / 6), 1.0, steps)
    level, reached = (betainc(wanted, steps - wanted + 1.0, probability) for probability in (chance, power))
    found = _refutes(claims, reached, np.log(level))  # so it seems
    rows = np.flatnonzero(found)
    few, count = claims.take(rows), wanted[rows, None]
    level = binomial_tails(count, few.steps, chance[rows])[1][:, 0]
    reached = binomial_tails(count, few.steps, power[rows])[0][:, 0]
    found[rows] = _refutes(few, reached, np.log(level) + 1e-12)
    return found


def _log_levels(claims: ClaimColumns, levels: tuple[float, ...]) -> list[Array]:
    """log Q(S) of events that could refute: at e^-epsilon delta^level, P(S) has to exceed delta + delta^level."""
    log_delta = np.log(np.maximum(claims.delta, 1e-300))
    return [-claims.epsilon + level * log_delta - 1e-3 for level in levels]


def _refutes(claims: ClaimColumns, power: Array, log_level: Array) -> NDArray[np.bool_]:
    """P(S) - e^epsilon Q(S) > delta from a lower bound of P(S) and an upper bound of log Q(S)."""
    cost = np.exp(claims.epsilon + log_level + 4e-16 * (claims.epsilon - log_level))
    return np.asarray(power - cost * (1 + 1e-12) > claims.delta * (1 + 1e-12))


SCREENS: tuple[tuple[str, str, Callable[[ClaimColumns], NDArray[np.bool_]]], ...] = (
    (CERTIFIED, "unsampled", unsampled_certifies),
    (CERTIFIED, "renyi", renyi_certifies),
    (CERTIFIED, "centred", centred_certifies),
    (REFUTED, "sum", sum_refutes),
    (REFUTED, "count", count_refutes),
)
