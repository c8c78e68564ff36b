"""How many models an audit needs to find half the noise, and how often it would have."""

from collections.abc import Callable, Sequence

import numpy as np

from dpaudit.audit.trials.engine import Scores

Refutes = Callable[[Scores, Scores], bool]  # from the scores without and with the canary: the audit's own verdict
MODELS = (100, 150, 200, 300, 450, 650, 1000, 1400, 2000)  # per arm, that a plan may choose from
DRAWS = 50  # audits simulated for a plan
REPEATS = 20  # samples of a control's scores
_FURTHEST = 50.0  # standard deviations; more are told apart no better


def models_needed(
    refutes: Refutes, separation: float, choices: Sequence[int] = MODELS, *, rng: np.random.Generator
) -> tuple[int, int]:
    """Models per arm with which tests refute normal scores that lie so far apart in every one of DRAWS draws.

    A test that refutes with probability 0.99 does so in all 50 draws with probability 0.6, one that refutes with
    probability 0.95 with probability 0.08.

    Args:
        refutes: The tests.
        separation: Distance of the arms' means in standard deviations of one arm; NaN, as of arms whose means are both
            infinite, is none.
        choices: Models per arm to choose from, ascending.
        rng: Draws the scores.

    Returns:
        The models, the most there are if none do, and in how many of DRAWS draws they refute.
    """
    without = rng.normal(size=(DRAWS, choices[-1]))
    with_canary = rng.normal(size=without.shape) + float(np.clip(np.nan_to_num(separation), 0.0, _FURTHEST))

    def found(models: int) -> int:
        return sum(refutes(a[:models], b[:models]) for a, b in zip(without, with_canary, strict=True))

    low, high = 0, len(choices) - 1
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if found(choices[middle]) == DRAWS else (middle + 1, high)
    return choices[low], found(choices[low])


def resampled(
    refutes: Refutes, without: Scores, with_canary: Scores, models: tuple[int, int], *, rng: np.random.Generator
) -> int:
    """In how many of REPEATS bootstrap samples of two arms' scores the tests refute.

    Args:
        refutes: The tests.
        without: Scores of one arm, shape (models,).
        with_canary: Of the other.
        models: Size of a sample of each.
        rng: Draws the samples.
    """
    return sum(refutes(rng.choice(without, models[0]), rng.choice(with_canary, models[1])) for _ in range(REPEATS))
