"""Tails of very many binomial laws between proven bounds, by summing their masses: no special function is used.

K is Binomial(n, p), b_k = Pr[K = k], and the window start..end holds all but a little of it. The ratios

    b_k / b_{k-1} = (n - k + 1)/k * p/(1 - p)

fall in k. With weights w_start = 1, w_k = w_{k-1} b_k/b_{k-1} and W the sum of the window's weights:

- b_k/W is at least Pr[K = k | K in window], and Pr[K in window] is unknown but for what lies beside the window: below
  start the ratios of each weight to the next one up are at most r = b_{start-1}/b_start, so that the weights there sum
  to at most r/(1 - r); above end, with s = b_{end+1}/b_end, to at most w_end s/(1 - s). Both are geometric sums, of
  ratios below 1 where the window reaches beyond the mode on that side.
- So sum_{k >= m} w_k / (W + below + above) <= Pr[K >= m] <= (sum_{k >= m} w_k + above) / W, sums over the window. A
  side whose ratio is not below 1 is bounded by 0, and by 1.

Rounding, with u = 2^-53: n - k + 1 and k are whole numbers below 2^53 and exact; 1 - p, two quotients and their product
round four times, and the product with w_{k-1} once, so w_k is off by at most 5 (k - start) u and a little of second
order, and a sum over the window by at most as many u as it has terms. With at most WIDEST terms both bounds are off by
less than 2 (5 + 1) WIDEST u + 20 u < 6e-12, and ROUNDING covers that; it grows with the terms that are allowed.
"""

import math
from functools import cache

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array

WIDEST = 4096  # terms of a window where many are asked at once
ROUNDING = 1e-11  # relative
TINY = 1e-200  # below it bounds are 0, or this: weights that fall out of the range of floats round more
REACH, LEAST = 7.0, 10.0  # a window's half-width: standard deviations, and whole numbers besides
CELLS = 2**17  # of the windows held at a time: they stay in the cache


@cache
def binomial_tail(count: int, trials: int, chance: float) -> tuple[float, float]:
    """Lower and upper bounds of Pr[Binomial(trials, chance) >= count], of a window of up to 2^20 terms.

    Where more matter, or the count is far out, Pr[Binomial >= c] <= e^(-n KL(c/n, p)) for c > n p (Hoeffding 1963,
    Theorem 1).

    Args:
        count: At least 0.
        trials: In [1, 2^52].
        chance: In [0, 1].

    >>> low, high = binomial_tail(2, 3, 0.5)
    >>> bool(low < 0.5 < high < 0.5 + 1e-8)
    True
    """
    c, n, p = float(count), float(trials), float(chance)
    tails = binomial_tails(np.array([[c]]), np.array([n]), np.array([p]), widest=2**20)
    low, high = (float(side[0, 0]) for side in tails)
    if not 0.0 < n * p < c < n:
        return low, high
    ratio = math.log(c), -math.log(n), -math.log(p)
    rest = math.log1p(-c / n), -math.log1p(-p)
    slack = 1e-14 * (c * sum(map(abs, ratio)) + (n - c) * sum(map(abs, rest)))
    far = min(slack - c * sum(ratio) - (n - c) * sum(rest), 0.0)
    return low, min(high, max(math.exp(far), 1e-300))


def binomial_tails(counts: Array, trials: Array, chance: Array, *, widest: int = WIDEST) -> tuple[Array, Array]:
    """Lower and upper bounds of Pr[Binomial(trials, chance) >= count], both of the shape of `counts`.

    Args:
        counts: Whole numbers, at least 0, shape (rows, m).
        trials: Whole numbers in [1, 2^52], shape (rows,).
        chance: In [0, 1], shape (rows,).
        widest: Terms of a window, at most 2^20; where it would need more the bounds are 0 and 1.

    >>> low, high = binomial_tails(np.array([[2.0]]), np.array([3.0]), np.array([0.5]))
    >>> bool(low[0, 0] < 0.5 < high[0, 0] < 0.5 + 1e-10)
    True
    """
    sure = (chance >= 1.0)[:, None]
    chance = np.minimum(chance, 1.0 - 2.0**-53)  # tails rise with it, so that lower bounds stay valid
    reach = np.ceil(REACH * np.sqrt(trials * chance * (1.0 - chance)) + LEAST)
    mode = np.floor((trials + 1.0) * chance)
    start = np.maximum(mode - reach, 0.0)
    end = np.minimum(np.maximum(mode + reach, counts.max(axis=1, initial=0.0) + LEAST), trials)
    width = end - start + 1.0
    low, high = np.zeros(counts.shape), np.ones(counts.shape)
    order = np.argsort(width, kind="stable")
    order = order[width[order] <= widest]
    while len(order):
        some = order[: _rows_at_once(width[order])]
        low[some], high[some] = _window_tails(counts[some], trials[some], chance[some], start[some], width[some])
        order = order[len(some) :]
    rounding = ROUNDING * max(1.0, widest / WIDEST)
    low = np.where(low > TINY, low * (1.0 - rounding), 0.0)
    high = np.where(sure, 1.0, np.clip(high * (1.0 + rounding), TINY, 1.0))
    out = counts > trials[:, None]
    return np.where(counts <= 0, 1.0, np.where(out, 0.0, low)), np.where(out, 0.0, high)


def _rows_at_once(width: Array) -> int:
    """How many of the first rows, whose widths ascend, fit in CELLS together; at least one."""
    return max(1, int(np.searchsorted(width * np.arange(1.0, len(width) + 1.0), CELLS, side="right")))


def _window_tails(counts: Array, trials: Array, chance: Array, start: Array, width: Array) -> tuple[Array, Array]:
    """Both bounds from windows of one width, the largest of these rows; weights beyond the trials are 0."""
    size = int(width.max())
    n, first, odds = trials[:, None], start[:, None], (chance / (1.0 - chance))[:, None]
    weights = np.empty((len(trials), size + 1))
    weights[:, 0] = 1.0
    k = first + np.arange(1.0, size + 1.0)
    weights[:, 1:] = np.maximum(n - k + 1.0, 0.0) / k * odds
    np.cumprod(weights, axis=1, out=weights)
    last, beyond = weights[:, size - 1], weights[:, size].copy()
    weights[:, size] = 0.0
    sums = np.cumsum(weights[:, ::-1], axis=1)[:, ::-1]  # of all from here on; 0 at the end
    with np.errstate(divide="ignore", invalid="ignore"):
        down = start / (trials - start + 1.0) / odds[:, 0]
        below = np.where(down < 1.0, down / (1.0 - down), np.inf)
        up = np.where(last > 0.0, beyond / last, 0.0)
        above = np.where(up < 1.0, beyond / (1.0 - up), np.inf)
    within = np.take_along_axis(sums, _columns(counts, first, size), axis=1)
    low = within / (sums[:, :1] + below[:, None] + above[:, None])
    high = np.where(counts <= first, 1.0, (within + above[:, None]) / sums[:, :1])
    return low, high


def _columns(counts: Array, start: Array, size: int) -> NDArray[np.intp]:
    return np.clip(counts - start, 0, size).astype(np.intp)
