"""One test of two arms of scores against whole trade-off curves, at every threshold at once.

The claim under test is that no event has a TPR above g(FPR), for a known curve g. What is worst for the test under that
claim is known exactly, so that no rate has to be estimated and no threshold to be chosen on trials set aside.

Least favourable pair. Let u(s) = P(S > s) + V P(S = s), V uniform on (0, 1), be the randomised rank of a score s among
those without the record. Then u of a model without the record is uniform, and P(u of a model with it <= a) is the TPR
of a (randomised) event of FPR a, hence at most g(a) at every a. So the ranks X_i of the models with the record lie
above independent X*_i with the distribution function g, one by one (quantile coupling). A statistic that only falls
where an X_i rises is therefore at most as large as under (X* ~ g, Y uniform), where its law depends on g and the
numbers of models alone. A larger g makes it larger still.

Equal scores, of one arm or of both, are put in an order that the test's seed draws, whatever arm they are of: to each
score belongs a uniform number, independent of all scores and arms, and pairs of both are compared first by score.
That is post-processing of the score, so that no event of the pairs is above g either, and the pairs of each arm are
independent: all that follows holds for them as for scores, over the draw of the seed too, which is therefore chosen
before the scores are seen. Where no seed was (`seed=None`), equal scores count against the evidence: each N_j below is
then at most what it is in any order of them, so the test holds whatever is done with the scores. On few values that
costs `spread` most of its power, as few N_j are left: the one that shows most is what `peak` looks for.

The statistics are functions of the counts N_j of models with the record whose score is above the j-th largest
score without it, rising in each. Each is held against its own part of the error
probability, the same part for every g. Hence, if r is the true curve, {g rejected} is inside {r rejected} for every
g >= r, and that has probability at most alpha: all hypotheses that are tested on the same scores, one curve, a family
of curves, a claimed (epsilon, delta) and the bounds that follow by inversion, share ONE error probability alpha.

- `spread`: sum_j w_j N_j over up to 64 ranks j, without a seed 256, the weights w >= 0 those of the best linear test of
  a shifted normal score under the limiting covariance of the counts (Hsieh and Turnbull 1996, Theorem 2.2); any weights
  are valid. Its law under (X* ~ g, Y uniform) is sampled, the more often the smaller the level is, and what sampling
  leaves open counts as not rejected.
- `peak`, without a seed: the largest distance in normal scores, of the same ranks, from the FPR at a rank, at an upper
  quantile, to a lower end (Wilson 1927) of the TPR that N_j shows. Its law is sampled with that of `spread`.
- `above`, `below`: single counts for the few events far out, and their mirror images (models without the record whose
  score is below the j-th smallest with it; the mirror image of g is g). P(N_j >= k) is the mean of P(Bin(m, g(U)) >= k)
  for U ~ Beta(j, n + 1 - j), bounded from above cell by cell, because the tail rises with U.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.optimize import nnls
from scipy.special import bdtrc, betainc, betainccinv, betaincinv, ndtr, ndtri

from dpaudit.mechanisms.base import SEED, Array
from dpaudit.verify.bounds.rates import lower_at, upper_at, valid_confidence, valid_scores
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.guarantees import DELTA

Counts = NDArray[np.int_]
RANKS, PEAK_RANKS = 64, 256
SPREAD_SHARE = 0.75  # of the error probability; the rest is for the events far out
PEAK_QUANTILE = 2.2  # standard deviations to either end
EXTREME_RANKS = (1, 3, 10, 30, 100, 300)
CELLS = 256
# draws are doubled, by LARGEST_SAMPLE at most: few decide what is far from the level, and are more for a p-value
DRAWS, P_VALUE_DRAWS, LARGEST_SAMPLE, MOST_DRAWS = 128, 1024, 2**14, 2**16
INVERSION_DRAWS = 2**14
LOOKS = 11  # at 2^7, 2^8, ..., 2^14, 2^15, 3 2^14 and 2^16 draws, at most; and at each doubling of these
ENOUGH_AT = 0.006  # error probability for which so many draws are; for half of it there are twice as many
DOUBLINGS = 5  # at most: half a minute of drawing; to an error probability of 2e-4
UNDECIDED = 1e-6  # probability that any of these looks takes one sampled tail probability for less than it is
EVALUATIONS = 200  # of sampled tail probabilities in one audit, whose misses are paid from the same alpha
EPSILON_TOLERANCE, FACTOR_TOLERANCE = 1e-3, 5e-3  # of inversions: absolute, relative
LARGEST_FACTOR = 64.0  # beyond it, or below its reciprocal, nothing is inverted
TIES = 1  # stream of seeds
KEPT_PARTS = 512  # of sampled laws, 256 kB at most each: the simulated audits of a plan ask for the same ones


class _Sampled(NamedTuple):
    """What is sampled: at how many ranks at most, and the error probability's share of spread, and of peak if any."""

    ranks: int
    shares: tuple[float, ...]


SEEDED, UNSEEDED = _Sampled(RANKS, (SPREAD_SHARE,)), _Sampled(PEAK_RANKS, (0.5, 0.4))


@dataclass(frozen=True)
class JointTest:
    """Scores of the two arms of a game, to be held against any number of trade-off curves.

    Args:
        in_scores: Scores of models with the record, higher = with it, independent, shape (m,); infinities allowed.
            Their order is of no account, nor is anything but which is higher.
        out_scores: Scores of models without it, shape (n,).
        claimed: The curve that the test is made powerful against, chosen before the scores were seen.
        confidence: 1 - alpha: whatever true curves are tested, none is rejected with this probability.
        seed: Of the sampled law, and of the order of equal scores; chosen before the scores were seen. None where none
            was: equal scores count against the evidence.

    Raises:
        TypeError: The level or the seed is not a number.
        ValueError: Empty scores, NaN, a level out of range, or a seed that is no integer of at least 0.
    """

    in_scores: Array
    out_scores: Array
    claimed: Tradeoff
    confidence: float
    seed: int | None

    def __post_init__(self) -> None:
        for name in ("in_scores", "out_scores"):
            object.__setattr__(self, name, valid_scores(name, getattr(self, name)))
        object.__setattr__(self, "confidence", valid_confidence(self.confidence))
        if self.seed is not None:
            SEED.validate("seed", self.seed)

    def rejects(self, curve: Tradeoff, *, draws: int = MOST_DRAWS) -> bool:
        """Whether the scores contradict the claim that no event is above this curve.

        Args:
            curve: g.
            draws: Samples at most, more at a small level; where they leave it open it is not rejected.
        """
        if self._all_equal:
            return False
        if self._extreme_p_value(curve) <= self.alpha:
            return True
        return self._sampled_p_value(curve, DRAWS, draws) <= self.alpha

    def p_value(self, curve: Tradeoff) -> float:
        """An upper bound on the probability of evidence as strong where the claim holds, as sharp as deciding needs.

        Drawing ends where it tells the probability from the error probability, so what is far from that is bounded by
        few draws. The probability itself falls with the evidence and this bound need not: of two of them the smaller
        is not the stronger evidence, and `rejects` is what counts.

        Args:
            curve: g.

        Returns:
            In (0, 1].
        """
        if self._all_equal:
            return 1.0
        return min(self._extreme_p_value(curve), self._sampled_p_value(curve, P_VALUE_DRAWS, MOST_DRAWS), 1.0)

    def epsilon_lower(self, delta: float) -> float:
        """The largest epsilon >= 0 at which (epsilon, delta) is rejected, 0 if none is.

        It assumes nothing of the mechanism. With `rejects` of other curves it shares one error probability.

        Args:
            delta: In [0, 1).
        """
        DELTA.validate("delta", delta)
        return _last_rejected(lambda epsilon: self._inverted(Tradeoff.of_points([epsilon], [delta])), 1.0)

    def factor_upper(self, curve: Callable[[float], Tradeoff]) -> float:
        """The smallest factor whose curve is rejected, and all larger ones with it; inf where none up to 64 is.

        Args:
            curve: From a positive factor, on the noise say, to an upper bound on what it allows, falling in the factor.
        """
        low = high = 1.0
        if self.rejects(curve(1.0)):  # as sharp as the verdict, so that the two agree
            while self._inverted(curve(low / 2.0)):
                low = high = low / 2.0
                if low < 1.0 / LARGEST_FACTOR:
                    return high
            low = high / 2.0
        else:
            while not self._inverted(curve(high * 2.0)):
                low = high = high * 2.0
                if high >= LARGEST_FACTOR:
                    return math.inf
            high = low * 2.0
        while high > low * (1.0 + FACTOR_TOLERANCE):
            middle = math.sqrt(low * high)
            low, high = (low, middle) if self._inverted(curve(middle)) else (middle, high)
        return high

    def strongest_event(self, curve: Tradeoff) -> tuple[float, int, int]:
        """(threshold, tp, fp) of the event {score > threshold} that lies above the curve by most standard deviations.

        For a reader, after the test: that this event was picked is not accounted for in it.
        """
        thresholds = np.sort(np.asarray(self.out_scores, np.float64))[::-1][self._ranks - 1]
        m, n = len(self.in_scores), len(self.out_scores)
        tp, fp = _count_above(self.in_scores, thresholds), (self.out_scores[None, :] > thresholds[:, None]).sum(axis=1)
        x, y = tp / m, fp / n
        variance = (tp + 1) * (m - tp + 1) / m**3 + curve.slope(y) ** 2 * (fp + 1) * (n - fp + 1) / n**3
        at = int(np.argmax((x - curve(y)) / np.sqrt(variance)))
        return float(thresholds[at]), int(tp[at]), int(fp[at])

    def _inverted(self, curve: Tradeoff) -> bool:
        return self.rejects(curve, draws=INVERSION_DRAWS)

    @property
    def alpha(self) -> float:
        """The error probability, what sampled tails may miss taken off."""
        return (1.0 - self.confidence) - EVALUATIONS * self._undecided

    @property
    def _undecided(self) -> float:
        """Probability that one sampled tail is taken for less than it is: less where the error probability is."""
        return UNDECIDED * min(1.0, (1.0 - self.confidence) / 0.05)

    @cached_property
    def _all_equal(self) -> bool:
        """Whether one number is all there is: the order that a seed puts equal scores in is no evidence then."""
        first = self.in_scores[0]
        return bool((self.in_scores == first).all() and (self.out_scores == first).all())

    @cached_property
    def _places(self) -> tuple[Array, Array]:
        """Places of both arms among all scores, rising; the uniform numbers of equal ones decide between them.

        These belong to the sorted scores of each arm, so that the order in which scores are given does not matter.
        Without a seed those with the record come first among equal ones, which favours no statistic.
        """
        m = len(self.in_scores)
        values = np.concatenate([np.sort(np.asarray(s, np.float64)) for s in (self.in_scores, self.out_scores)])
        if self.seed is None:
            order = np.repeat([0.0, 1.0], [m, len(values) - m])
        else:
            order = np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=(TIES,))).random(len(values))
        places = np.empty(len(values))
        places[np.lexsort((order, values))] = np.arange(len(values))
        return places[:m], places[m:]

    @cached_property
    def _ranks(self) -> Counts:
        return spread_ranks(len(self.out_scores), self._sampled.ranks)

    @cached_property
    def _counts(self) -> Counts:
        """N_j at each of the ranks."""
        inside, outside = self._places
        return _count_above(inside, np.sort(outside)[::-1][self._ranks - 1])

    @cached_property
    def _extremes(self) -> list[tuple[int, int, int, int]]:
        """(k, j, m, n) of each event far out: k of m models are beyond the j-th of the n others."""
        found, (inside, outside) = [], self._places
        for models, others in ((inside, outside), (-outside, -inside)):
            m, n = len(models), len(others)
            ranks = np.array([j for j in EXTREME_RANKS if j == 1 or 2 * j <= n])
            counts = _count_above(models, np.sort(others)[::-1][ranks - 1])
            found += [(int(k), int(j), m, n) for k, j in zip(counts, ranks, strict=True)]
        return found

    def _extreme_p_value(self, curve: Tradeoff) -> float:
        """Of the events far out together, in units of the whole error probability."""
        tail = min(_tail(*extreme, curve) for extreme in self._extremes)
        return tail * len(self._extremes) / (1.0 - sum(self._sampled.shares))

    def _sampled_p_value(self, curve: Tradeoff, least: int, most: int) -> float:
        """Upper bound on P(spread >= the one observed) under the least favourable pair, or peak, in the same units.

        Drawing ends, after `least` draws, at the first look that tells the probability from the level. The upper ends
        of all looks that there may be hold together; a lower end that misses costs a rejection, and makes none. How
        many there may be follows from the level alone: p-values of 0 hits in D draws are -log(tail)/D at least, so the
        most draws are doubled until they can fall far below the level, where DOUBLINGS are enough for that.
        """
        shares, observed = np.array(self._sampled.shares), self._values(self._counts[None])[0]
        # the same counts may be summed in another order, and must count as equal
        slack = 1e-9 * np.maximum(np.abs(observed), 1.0)
        limits = self.alpha * shares
        doublings = min(max(math.ceil(math.log2(ENOUGH_AT / self.alpha)), 0), DOUBLINGS)
        tail = self._undecided / (LOOKS + doublings) / len(shares)
        if upper_at(0, most << doublings, tail) <= limits.min():
            most <<= doublings
        draws, part, hits, upper = 0, 0, np.zeros(len(shares), np.int64), np.ones(len(shares))
        while draws < most:
            sampled = _sampled_law(0 if self.seed is None else self.seed, *self._game, curve, part)[0]
            hits += (sampled >= observed - slack).sum(axis=0)
            draws, part = draws + len(sampled), part + 1
            if draws > MOST_DRAWS and draws & (draws - 1):  # no power of 2
                continue
            upper = np.minimum(upper, upper_at(hits, draws, tail))
            above = lower_at(hits, draws, tail) > limits
            if draws >= least and ((upper < limits).any() or above.all()):
                break
        return float((upper / shares).min())

    @property
    def _sampled(self) -> _Sampled:
        return UNSEEDED if self.seed is None else SEEDED

    @property
    def _game(self) -> tuple[int, int, Tradeoff, _Sampled]:
        return len(self.in_scores), len(self.out_scores), self.claimed, self._sampled

    def _values(self, counts: Counts) -> Array:
        """Spread, and without a seed peak, of counts at the ranks, shape (size, ranks); shape (size, 1 or 2)."""
        return _statistics(*self._game)(counts)


def spread_ranks(n: int, most: int = RANKS) -> Counts:
    """Up to `most` ranks out of 1..n, dense at both ends.

    >>> spread_ranks(5).tolist()
    [1, 2, 3, 4, 5]
    """
    if n <= most:
        return np.arange(1, n + 1)
    # equally spaced normal scores: as dense in the tails as counts allow
    levels = np.linspace(ndtri(0.5 / n), -ndtri(0.5 / n), most)
    return np.unique(np.clip(np.ceil(n * 0.5 * (1.0 + np.vectorize(math.erf)(levels / math.sqrt(2.0)))), 1, n)).astype(
        int
    )


def spread_weights(m: int, n: int, claimed: Tradeoff, ranks: Counts) -> Array:
    """Weights w >= 0 of the counts at these ranks: those of most power against a shift of the normal score.

    With u_j = j/(n + 1) the counts N_j/m are about normal around g(u_j), with covariance
    min(g_i, g_j)(1 - max(g_i, g_j))/m + g'_i g'_j min(u_i, u_j)(1 - max(u_i, u_j))/n; a shift of the normal scores of
    the models with the record moves them along phi(Phi^-1(g_j)). The best linear statistic solves a nonnegative
    least-squares problem.

    Args:
        m: Models with the record.
        n: Models without it.
        claimed: g.
        ranks: j, rising, in 1..n.

    Returns:
        Shape (ranks,), of largest value 1.
    """
    u = ranks / (n + 1.0)
    g = np.clip(claimed(u), 1e-12, 1.0 - 1e-12)
    slope = claimed.slope(u)
    covariance = _bridge(g) / m + np.outer(slope, slope) * _bridge(u) / n
    direction = np.exp(-(ndtri(g) ** 2) / 2.0)
    scale = np.sqrt(np.diag(covariance))
    correlation = covariance / np.outer(scale, scale) + 1e-9 * np.eye(len(u))
    factor = np.linalg.cholesky(correlation)
    solution, _ = nnls(factor.T, np.linalg.solve(factor, direction / scale))
    weights = solution / scale
    return weights / weights.max() if weights.max() > 0 else np.ones(len(u))


def peak(counts: Counts, m: int, ranks: Counts, n: int) -> Array:
    """How far apart the arms are at the rank that shows most, in normal scores and from low; rising in each count.

    Args:
        counts: N_j of m models with the record, shape (..., ranks).
        m: Models with the record.
        ranks: j.
        n: Models without it.

    Returns:
        Shape (...).
    """
    z, share = PEAK_QUANTILE, counts / m
    fpr = betaincinv(ranks, n + 1.0 - ranks, float(ndtr(z)))
    centre, half = share + z * z / (2.0 * m), z * np.sqrt(share * (1.0 - share) / m + (z / (2.0 * m)) ** 2)
    return np.asarray(np.max(ndtri(np.maximum(centre - half, 0.0) / (1.0 + z * z / m)) - ndtri(fpr), axis=-1))


def spread_samples(rng: np.random.Generator, size: int, m: int, ranks: Counts, n: int, curve: Tradeoff) -> Counts:
    """Counts of models with the record above chosen order statistics of the others, under the least favourable pair.

    Args:
        rng: Source of randomness.
        size: Samples.
        m: Models with the record, their ranks X* with the distribution function `curve`.
        ranks: j of the order statistics Y_(j), rising, in 1..n.
        n: Models without it, their ranks Y uniform.
        curve: g.

    Returns:
        #{X* <= Y_(j)} for each j, shape (size, ranks).
    """
    gaps = rng.standard_gamma(np.diff(ranks, prepend=0, append=n + 1).astype(np.float64), (size, len(ranks) + 1))
    levels = np.cumsum(gaps, axis=1)
    shares = np.diff(curve(levels[:, :-1] / levels[:, -1:]), axis=1, prepend=0.0, append=1.0)
    shares = np.maximum(shares, 0.0)
    counts = rng.multinomial(m, shares / shares.sum(axis=1, keepdims=True))
    return np.cumsum(counts[:, :-1], axis=1)


@lru_cache(maxsize=32)
def _statistics(m: int, n: int, claimed: Tradeoff, sampled: _Sampled) -> Callable[[Counts], Array]:
    """From counts at the ranks, shape (size, ranks), to what rises in each of them, shape (size, 1 or 2)."""
    ranks = spread_ranks(n, sampled.ranks)
    weights = spread_weights(m, n, claimed, ranks)
    if len(sampled.shares) > 1:
        return lambda counts: np.stack([counts @ weights, peak(counts, m, ranks, n)], axis=1)
    return lambda counts: (counts @ weights)[:, None]


@lru_cache(maxsize=KEPT_PARTS)
def _sampled_law(
    seed: int, m: int, n: int, claimed: Tradeoff, sampled: _Sampled, curve: Tradeoff, part: int
) -> tuple[Array, Mapping[str, Any]]:
    """Values of the statistics, a part of them, from 0 on, and the generator's state after it.

    They depend on the scores in no way, only on their numbers.
    """
    rng = np.random.default_rng(seed)
    if part:
        rng.bit_generator.state = _sampled_law(seed, m, n, claimed, sampled, curve, part - 1)[1]
    size = min(DRAWS << max(part - 1, 0), LARGEST_SAMPLE)
    counts = spread_samples(rng, size, m, spread_ranks(n, sampled.ranks), n, curve)
    return _statistics(m, n, claimed, sampled)(counts), rng.bit_generator.state


@lru_cache(maxsize=256)
def _order_statistic(j: int, n: int) -> tuple[Array, Array]:
    """Cells of U ~ Beta(j, n + 1 - j): their right ends, and the probability of each."""
    a, b = float(j), float(n + 1 - j)
    ends = np.geomspace(1e-13, 0.5, CELLS // 2)
    edges = np.unique(np.concatenate([[0.0], betaincinv(a, b, ends), betainccinv(a, b, ends), [1.0]]))
    return edges[1:], np.diff(betainc(a, b, edges))


def _tail(k: int, j: int, m: int, n: int, curve: Tradeoff) -> float:
    """Upper bound on P(N_j >= k): cells of U ~ Beta(j, n + 1 - j), the binomial tail taken at each cell's right end."""
    if k == 0:
        return 1.0
    ends, mass = _order_statistic(j, n)
    return float(min(1.0, (mass * bdtrc(k - 1, m, curve(ends))).sum() * (1.0 + 1e-9)))


def _count_above(scores: ArrayLike, thresholds: Array) -> Counts:
    """How many scores are above each threshold."""
    ordered = np.sort(np.asarray(scores, np.float64))
    return len(ordered) - np.searchsorted(ordered, thresholds, side="right")


def _bridge(levels: Array) -> Array:
    """Covariance of a Brownian bridge at rising levels in (0, 1)."""
    return np.minimum.outer(levels, levels) * (1.0 - np.maximum.outer(levels, levels))


def _last_rejected(rejects: Callable[[float], bool], step: float) -> float:
    """The largest value that a falling test rejects, 0 if none: doubling, then bisection."""
    if not rejects(0.0):
        return 0.0
    low, high = 0.0, step
    while rejects(high):
        low, high = high, 2.0 * high
    while high - low > EPSILON_TOLERANCE:
        middle = (low + high) / 2.0
        low, high = (middle, high) if rejects(middle) else (low, middle)
    return low
