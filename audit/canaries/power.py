"""What a planting can show at all, and what it would have shown of a training with less noise."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import brentq

from dpaudit.audit.score_deciders import guess_bounds
from dpaudit.verify.bounds import (
    Tradeoff,
    correct_guesses,
    epsilon_one_run,
    gaussian_delta,
    steinke_p_value,
)
from dpaudit.verify.bounds.one_run_curve import impossible_tails
from dpaudit.verify.results import LowerBound

SIMULATED = 4_000_000  # scores at most, so that it takes seconds
MOST_DRAWS, FEWEST_DRAWS = 400, 40
MOST_GUESSES = 1 << 15
Refuted = Callable[[int, int, int], bool]  # (canaries, guesses, right ones) -> whether so many right ones refute


@dataclass(frozen=True)
class IdealPower:
    """How often canaries that nothing disturbs would refute a claim under a training with less noise.

    Every canary's score is normal and shifted by mu where it was in, the mu of the claim over the noise factor: what
    independent normal noise and canaries in directions of their own give. Real canaries show less.

    Args:
        noise_factor: Of the noise that the claim needs.
        power: Share of simulated audits that refute.
        draws: Simulated audits.
        epsilon_median: The bound of the median audit.
        needed: Right guesses from which on the claim is refuted; None where all of them are too few.
        mu: Of the claim.
    """

    noise_factor: float
    power: float
    draws: int
    epsilon_median: float
    needed: int | None
    mu: float


def one_run_bound(
    canaries: int, guesses: int, correct: int, *, delta: float, confidence: float, promised: float | None = None
) -> LowerBound:
    """The better of the two bounds on epsilon that assume nothing.

    Args:
        canaries, guesses, correct: As `epsilon_one_run`.
        delta: In [0, 1).
        confidence: Level in (0, 1).
        promised: An epsilon that is asked about for itself: the bound is above it where either test rejects it.
    """
    steinke = epsilon_one_run(canaries=canaries, guesses=guesses, correct=correct, delta=delta, confidence=confidence)
    return max(guess_bounds(steinke, promised), key=lambda bound: bound.epsilon_lower)


def refutes(
    canaries: int, guesses: int, correct: int, *, epsilon: float, delta: float, confidence: float,
    curves: Sequence[Tradeoff] = (),
) -> bool:  # fmt: skip
    """Whether so many right guesses refute (epsilon, delta), by the better of the two bounds that assume nothing.

    All tests reject for many right guesses alone, and share one error probability (`one_run_p_value`).

    Args:
        canaries, guesses, correct: As `epsilon_one_run`.
        epsilon, delta: Claimed.
        confidence: Level in (0, 1).
        curves: What the claim allows, in place of the curve of (epsilon, delta) alone.
    """
    level = 1.0 - confidence
    if not correct:
        return False
    with np.errstate(over="ignore"):  # the logarithm of a probability that is 0
        if steinke_p_value(canaries, guesses, correct, epsilon=epsilon, delta=delta) <= level:
            return True
    tail = np.array([level])
    return any(
        impossible_tails(canaries, guesses, correct, curve, tail)[0]
        for curve in curves or [Tradeoff.of_points([epsilon], [delta])]
    )


def needed_correct(canaries: int, guesses: int, refuted: Refuted) -> int | None:
    """The least number of right guesses that refutes a claim; None where all of them do not."""
    if not refuted(canaries, guesses, guesses):
        return None
    low, high = 0, guesses
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if refuted(canaries, guesses, middle) else (middle, high)
    return high


def needed_canaries(refuted: Refuted) -> int | None:
    """A number of canaries of which half, all guessed right, refute a claim, at most 2 too large; None where none does.

    delta costs more the more canaries there are, so that large epsilons at large delta are out of reach.

    >>> from functools import partial
    >>> [needed_canaries(partial(refutes, epsilon=x, delta=1e-5, confidence=0.95)) for x in (1.0, 3.0)]
    [20, 124]
    """

    def enough(guesses: int) -> bool:
        return refuted(2 * guesses, guesses, guesses)

    high = 2
    while not enough(high):
        high *= 2
        if high > MOST_GUESSES:
            return None
    low = high // 2
    while high - low > 2:  # as many are guessed in as out
        middle = 2 * ((low + high) // 4)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return 2 * high


def ideal_power(
    units: int, guesses: int, runs: int, epsilon: float, delta: float, *, refuted: Refuted,
    bound: Callable[[int, int, int], LowerBound], noise_factor: float = 0.5, seed: int,
) -> IdealPower | None:  # fmt: skip
    """Power at less noise, simulated; None where delta is 0, at which no normal noise meets a claim.

    Args:
        units: Canaries of a run.
        guesses: In each run, half of them in.
        runs: Independent trainings.
        epsilon, delta: Claimed.
        refuted: The audit's decision, which more right guesses never take back.
        bound: Its lower bound, from the same counts.
        noise_factor: In (0, 1].
        seed: Of the simulation.
    """
    if not 0.0 < delta < 1.0:
        return None
    high = 1.0
    while gaussian_delta(high, epsilon) < delta:
        high *= 2.0
    mu = float(brentq(lambda mu: gaussian_delta(mu, epsilon) - delta, 0.0, high))
    rng = np.random.default_rng(seed)
    draws = int(np.clip(SIMULATED // (units * runs), FEWEST_DRAWS, MOST_DRAWS))
    counts = []
    for _ in range(draws):
        coins = rng.random((runs, units)) < 0.5
        scores = rng.standard_normal((runs, units)) + coins * (mu / noise_factor)
        counts.append(sum(correct_guesses(s, c, guesses // 2) for s, c in zip(scores, coins, strict=True)))
    needed = needed_correct(runs * units, runs * guesses, refuted)
    power = 0.0 if needed is None else float(np.mean(np.array(counts) >= needed))
    median = bound(runs * units, runs * guesses, int(np.median(counts))).epsilon_lower
    return IdealPower(noise_factor, power, draws, median, needed, mu)


def epsilon_possible(canaries: int, guesses: int, *, delta: float, confidence: float) -> float:
    """The bound of guesses that are all right, as `one_run_bound`.

    >>> print(f"{epsilon_possible(1000, 500, delta=1e-5, confidence=0.95):.2f}")
    5.11
    """
    return one_run_bound(canaries, guesses, guesses, delta=delta, confidence=confidence).epsilon_lower
