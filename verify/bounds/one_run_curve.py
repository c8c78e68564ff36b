"""One training run against any trade-off curve (Mahloujifar, Melis and Chaudhuri 2024)."""

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.one_run import GAME, largest_refuted, valid_game
from dpaudit.verify.bounds.one_run_gaussian import GRID, PASSES, ROUNDING, exchange_mass
from dpaudit.verify.bounds.rates import valid_confidence
from dpaudit.verify.bounds.tradeoff import Tradeoff
from dpaudit.verify.guarantees import DELTA
from dpaudit.verify.results import LowerBound

LEAST = 1e-12  # of the p-values that are told apart


def one_run_p_value(canaries: int, guesses: int, correct: int, curve: Tradeoff) -> float:
    """Upper bound on P(C >= v) for r guesses on m canaries where no event is above a trade-off curve.

    The game is that of `epsilon_one_run`: each canary is put in by its own fair coin, the number of guesses is fixed in
    advance, and flipping one coin moves the output by no more than the curve g allows. A tail P(C >= v) = t forces a
    least total probability (`exchange_mass`) that grows with t; where it exceeds 1 no such mechanism exists, so the
    smallest t of that kind is the bound. It holds for g itself and for every curve below g.

    Every test of this game that rejects for large C alone shares ONE error probability alpha with every other one,
    whatever curves they test: each true hypothesis is rejected on {C >= v_h} with probability at most alpha, and the
    union of these sets over all true hypotheses is one of them.

    Args:
        canaries: m, at least 1.
        guesses: r in [0, m], fixed in advance.
        correct: v in [0, r].
        curve: g.

    Returns:
        In [1e-12, 1].

    Raises:
        ValueError: Not 0 <= correct <= guesses <= canaries.

    Source: Mahloujifar, Melis and Chaudhuri (2024).

    >>> print(f"{one_run_p_value(100, 50, 40, Tradeoff.of_points([1.0], [1e-5])):.3f}")
    0.217
    """
    m, r, v = valid_game(canaries, guesses, correct)
    if v == 0:
        return 1.0

    if not impossible_tails(m, r, v, curve, np.ones(1))[0]:
        return 1.0
    grid = np.geomspace(LEAST, 1.0, GRID)
    for _ in range(PASSES):
        first = int(np.argmax(impossible_tails(m, r, v, curve, grid)))
        if first == 0:
            return float(grid[0])
        grid = np.geomspace(grid[first - 1], grid[first], GRID)
    return float(grid[-1])


def impossible_tails(canaries: int, guesses: int, correct: int, curve: Tradeoff, tail: Array) -> NDArray[np.bool_]:
    """Whether P(C >= v) cannot be as large as each tail in (0, 1] under a trade-off curve; v at least 1."""
    mass = exchange_mass(curve.inverse, tail, canaries=canaries, guesses=guesses, correct=correct)
    return np.asarray(mass > 1.0 + ROUNDING)


def epsilon_one_run_curve(*, canaries: int, guesses: int, correct: int, delta: float, confidence: float) -> LowerBound:
    """Lower confidence bound on epsilon in one run by `one_run_p_value`, with the curve of (epsilon, delta) itself.

    It assumes as little as Steinke et al. (2023), Theorem 5.2, and charges delta less: where delta times the number of
    canaries is not small it proves more, elsewhere a little less. Both reject for large C alone, so the better of the
    two holds with the confidence of one.

    Args:
        canaries, guesses, correct: As `one_run_p_value`.
        delta: In [0, 1).
        confidence: Level in (0, 1).

    Raises:
        ValueError: Not 0 <= correct <= guesses <= canaries, or a parameter out of range.

    >>> from dpaudit.verify.bounds import epsilon_one_run
    >>> settings = dict(canaries=1000, guesses=500, correct=400, delta=1e-3, confidence=0.95)
    >>> print(f"{epsilon_one_run_curve(**settings).epsilon_lower:.3f} {epsilon_one_run(**settings).epsilon_lower:.3f}")
    1.176 1.082
    """
    m, r, v = valid_game(canaries, guesses, correct)
    DELTA.validate("delta", delta)
    tail = np.array([1.0 - valid_confidence(confidence)])

    def refuted(epsilon: float) -> bool:
        return bool(impossible_tails(m, r, v, Tradeoff.of_points([epsilon], [delta]), tail)[0])

    return LowerBound(
        epsilon_lower=largest_refuted(refuted) if v else 0.0,
        delta=delta,
        confidence=confidence,
        method="one-run-curve",
        inputs={"canaries": m, "guesses": r, "correct": v, "game": GAME},
        source="Mahloujifar, Melis and Chaudhuri (2024), the curve of (epsilon, delta)",
    )
