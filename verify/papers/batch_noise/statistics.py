"""Statistics of one release whose laws are known given K, the number of other records in the batch.

Each is cut into cells, with bounds on every cell's probability for every K, with the record and without it. Tails are
subtracted from tails, and every tail is granted a relative error of TAIL_ERROR (1 + |log tail|).
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainc, betaincc, gammainc, gammaincc, gammaln, ndtr

from dpaudit.mechanisms.base import Array, GammaScale
from dpaudit.verify.pld.gamma_scale import least_between

TAIL_ERROR = 1e-10  # tests compare with mpmath
LARGEST_SHAPE = 100_000  # of a Gamma variable: from 500,000 on scipy's lower tails lose up to half of their digits
TINY = 1e-300
REACH = 9.0  # standard deviations beyond which a statistic is one cell
FINENESS = 0.2  # cells in standard deviations given K: 0.3% of the information about a shift is lost
MOST_CELLS = 1200  # cells
SCALE_TAIL = 1e-12  # probability of a hidden scale on either side that is left out
SMALLEST_SCALE = 1e-12  # the smallest one over the largest
SCALES = 400


@dataclass(frozen=True)
class ConditionalMasses:
    """Bounds on the probabilities of a statistic's cells: arrays of shape (2, values of K or 1, cells).

    Args:
        lower, upper: [0] without the record, [1] with it.
    """

    lower: Array
    upper: Array


def from_tails(below: Array, above: Array) -> ConditionalMasses:
    """Cells between consecutive edges, and the two beyond, from both tails at every edge (last axis)."""
    shape = (*below.shape[:-1], 1)
    cdf = np.concatenate([np.zeros(shape), below, np.ones(shape)], axis=-1)
    survival = np.concatenate([np.ones(shape), above, np.zeros(shape)], axis=-1)
    tail = np.minimum(cdf, survival)
    error = TAIL_ERROR * tail * (1 - np.log(np.maximum(tail, TINY))) + TINY
    left = cdf[..., 1:] <= survival[..., :-1]
    mass = np.maximum(np.where(left, np.diff(cdf, axis=-1), -np.diff(survival, axis=-1)), 0.0)
    slack = error[..., 1:] + error[..., :-1]
    return ConditionalMasses(np.maximum(mass - slack, 0.0), mass + slack)


def _edges(low: float, high: float, width: float) -> Array:
    return np.linspace(low, high, int(np.clip((high - low) / width, 2, MOST_CELLS)) + 1)


def normal(mean: Array, deviation: Array, likely: NDArray[np.int64]) -> ConditionalMasses:
    """A normal variable.

    Args:
        mean, deviation: Given K, shape (2, values of K); deviation 0 where the record is out and K = 0.
        likely: Values of K, as indices, that the cells should resolve.
    """
    m, s = mean[:, likely], deviation[:, likely]
    s = np.where(s > 0, s, s.max())
    edges = _edges(float((m - REACH * s).min()), float((m + REACH * s).max()), FINENESS * float(s.min()))
    z = (edges - mean[..., None]) / np.maximum(deviation, TINY**0.5)[..., None]
    return from_tails(ndtr(z), ndtr(-z))


def gamma(shape: float, scale: Array, likely: NDArray[np.int64]) -> ConditionalMasses:
    """A Gamma variable: a sum of squares of normal, or of magnitudes of Laplace variables.

    Args:
        shape: a, > 0 and at most LARGEST_SHAPE.
        scale: Given K, shape (2, values of K); 0 where the record is out and K = 0.
        likely: As in `normal`.
    """
    s = scale[:, likely]
    s = s[s > 0]
    relative = 1 / np.sqrt(shape)
    reach = REACH * relative if shape > 100 else 12.0
    logs = _edges(float(np.log(s.min() * shape) - reach), float(np.log(s.max() * shape) + reach), FINENESS * relative)
    x = np.exp(logs) / np.maximum(scale, TINY**0.5)[..., None]
    return from_tails(gammainc(shape, x), gammaincc(shape, x))


def count(trials: int, prob: Array, likely: NDArray[np.int64]) -> ConditionalMasses:
    """How many of independent coordinates meet a condition.

    Args:
        trials: Coordinates, at least 1.
        prob: Probability given K, shape (2, values of K or 1).
        likely: As in `normal`.
    """
    p = prob[:, likely] if prob.shape[1] > 1 else prob
    spread = np.sqrt(trials * p * (1 - p)) + 1.0
    low, high = float((trials * p - REACH * spread).min()), float((trials * p + REACH * spread).max())
    cuts = np.unique(np.ceil(_edges(max(low, 0.0), min(high, float(trials)), max(1.0, FINENESS * float(spread.min())))))
    cuts = cuts[(cuts >= 1) & (cuts <= trials)]
    # P(count >= j) is the regularised incomplete beta function at (j, trials - j + 1)
    above = betainc(cuts, trials - cuts + 1, prob[..., None])
    return from_tails(betaincc(cuts, trials - cuts + 1, prob[..., None]), above)


def hidden_scale_count(trials: int, mixture: GammaScale, shift: float) -> ConditionalMasses:
    """How many of the coordinates Lap(1/u) - shift, u hidden and one for all, are negative; half of Lap(1/u) are.

    Given u the probability of a cell is unimodal in p = P(Lap(1/u) < shift), and p grows with u: over u between two
    quantiles it is at least its smaller end value. No upper bounds with the record are given (1 stands for them).
    """
    levels = np.linspace(0.0, 1.0, SCALES + 1)
    levels[0], levels[-1] = SCALE_TAIL, 1 - SCALE_TAIL
    scales = np.asarray(mixture.scale_ppf(levels))
    scales = np.unique(np.maximum(scales, SMALLEST_SCALE * scales[-1]))
    weights = least_between(mixture, scales)
    prob = np.array([mixture.given(float(u)).cdf(np.array([shift]))[0] for u in scales])
    masses = count(trials, np.stack([np.full(len(prob), 0.5), prob]), np.arange(len(prob)))
    ends = np.minimum(masses.lower[1, :-1], masses.lower[1, 1:])
    with_record = weights @ ends * (1 - 1e-12)
    lower = np.stack([masses.lower[0, 0], with_record])[:, None]
    return ConditionalMasses(lower, np.stack([masses.upper[0, 0], np.ones(len(with_record))])[:, None])


def laplace_sum(draws: Array, scale: float, centre: Array, edges: Array) -> tuple[Array, Array]:
    """P(X <= e) and P(X > e) for X = centre plus a sum of Laplace draws, shape (len(draws), len(edges)).

    A sum of k Laplace draws is the difference of two sums of k exponentials. Let both run down at once: each next
    exponential to end is one of either with probability 1/2, and when one sum has ended, j of the other's remain, so

        P(X > x) = sum_{j=1..k} binom(2k-j-1, k-1) 2^-(2k-j) P(Gamma(j) > x/scale),   x >= 0.

    Args:
        draws: k, at least 1 each; 0 gives the law of centre alone where no edge is at it.
        scale: Of one draw.
        centre: Scalar array.
        edges: 1-d.
    """
    away = (edges - centre) / scale
    k = draws[:, None].astype(np.float64)
    j = np.arange(1.0, float(draws.max()) + 1)[None, :]
    use = j <= k
    n = np.where(use, 2 * k - j, 1.0)
    log_weight = gammaln(n) - gammaln(np.maximum(k, 1.0)) - gammaln(np.where(use, k - j, 0.0) + 1) - n * np.log(2.0)
    weight = np.where(use, np.exp(log_weight), 0.0)
    tail = weight @ gammaincc(j.T, np.abs(away)[None, :])
    above = np.where(away >= 0, tail, 1 - tail)
    below = np.where(away >= 0, 1 - tail, tail)
    return below, above
