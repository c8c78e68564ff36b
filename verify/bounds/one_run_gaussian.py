"""Gaussian mu from one training run, by the trade-off curve itself (Mahloujifar, Melis and Chaudhuri 2024)."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from dpaudit.mechanisms.base import Array

GRID = 33  # values of mu tried at once; each pass narrows the bracket 32 times
PASSES = 4
ROUNDING = 1e-9  # far above the float error of the recursion, far below any error probability


def mu_one_run(canaries: int, guesses: int, correct: int, *, tail: float) -> float:
    """The largest mu at which `correct` or more right guesses have probability below `tail` for any mu-GDP mechanism.

    Args:
        canaries: m, at least 1.
        guesses: r in [0, m], fixed in advance.
        correct: v in [0, r].
        tail: Error probability in (0, 1).

    Returns:
        A mu that is refuted at that level, 0 if none is.

    Source: Mahloujifar, Melis and Chaudhuri (2024).
    """

    def refuted(mu: Array) -> NDArray[np.bool_]:
        return least_mass(mu, canaries, guesses, correct, tail) > 1.0 + ROUNDING

    if correct == 0 or not refuted(np.zeros(1))[0]:
        return 0.0
    low, high = 0.0, 1.0
    while refuted(np.array([high]))[0]:
        low, high = high, 2.0 * high
    for _ in range(PASSES):
        grid = np.linspace(low, high, GRID)
        first_open = max(1, int(np.argmin(refuted(grid))))
        low, high = float(grid[first_open - 1]), float(grid[first_open])
    return low


def least_mass(mu: Array, canaries: int, guesses: int, correct: int, tail: float) -> Array:
    """The least total probability that P(C >= v) >= tail forces on a mu-GDP mechanism; above 1 it is impossible.

    Write t_i = P(C >= i), a_i = sum_{j >= i} j p_j and u_i = sum_{j >= i} (r - j) p_j. The exchange inequality (*) of
    `one_run`, for the tail sets I = {i, ..., r} and the Gaussian curve g(y) = Phi(Phi^-1(y) + mu), reads
    u_{i-1} >= m Phi(Phi^-1(a_i/m) - mu). Starting from t_v = tail, all of it at C = v, take at each i = v, ..., 1 the
    least p_{i-1} = (u_{i-1} - u_i)/(r - i + 1) >= 0 that satisfies it. The sum t_0 so reached is a lower bound on the
    total mass of every admissible p' with t'_v >= tail.

    Proof, by induction on i downwards: D_k = t'_k - t_k >= 0 for all k >= i. At i = v: t_k = 0 beyond v. Step: by
    Abel summation a'_i - a_i = i D_i + sum_{k > i} D_k >= 0, so the required u is no smaller for p'. If the greedy
    p_{i-1} is 0, or p'_{i-1} >= p_{i-1}, then D_{i-1} >= D_i >= 0. Otherwise the greedy constraint binds, so
    u'_{i-1} >= u_{i-1}, that is u'_i - u_i >= (r - i + 1)(p_{i-1} - p'_{i-1}); and u'_i - u_i = (r - i) D_i -
    sum_{k > i} D_k <= (r - i) D_i; hence D_i >= p_{i-1} - p'_{i-1} and D_{i-1} >= 0.

    Args:
        mu: At least 0, shape (k,).
        canaries: m.
        guesses: r.
        correct: v, at least 1.
        tail: P(C >= v), in (0, 1].

    Returns:
        t_0 for each mu, shape (k,); where it exceeds 1 the recursion may stop early.
    """
    return exchange_mass(
        lambda share: ndtr(ndtri(share) - mu),
        np.full(mu.shape, tail),
        canaries=canaries,
        guesses=guesses,
        correct=correct,
    )


def exchange_mass(
    inverse: Callable[[Array], Array], tail: Array, *, canaries: int, guesses: int, correct: int
) -> Array:
    """`least_mass` for any trade-off curve g, given the inverse of g, and for many tails at once.

    The proof there uses nothing of the Gaussian curve but that g^-1 does not fall.

    Args:
        inverse: From TPR in [0, 1] to the smallest FPR that g allows it, elementwise.
        tail: P(C >= v), each in (0, 1]; with a family of curves the same shape as what `inverse` returns.
        canaries: m.
        guesses: r.
        correct: v, at least 1.

    Returns:
        t_0, of the shape of `tail`; where all exceed 1 the recursion may stop early.
    """
    m, r, v = canaries, guesses, correct
    right, wrong, total = v * tail, (r - v) * tail, tail.copy()
    for i in range(v, 0, -1):
        needed = m * inverse(np.minimum(right / m, 1.0))
        step = np.maximum(needed - wrong, 0.0) / (r - i + 1)
        wrong += step * (r - i + 1)
        right += step * (i - 1)
        total += step
        if total.min() > 1.0 + 2.0 * ROUNDING:
            break
    return total
