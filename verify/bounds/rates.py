"""Exact confidence bounds on a success probability (Clopper and Pearson 1934), and the checks all bounds share."""

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainccinv, betaincinv

from dpaudit.mechanisms.base import CONFIDENCE, Array, Domain

SMALLEST_LEVEL = 1e-9  # that a user may ask for: of shares of less, 1 - confidence keeps no digits
COUNT = Domain(0, math.inf, (0, 20_000), "trials", closed_low=True, integer=True)
FPR = Domain(0.0, 1.0, (1e-3, 0.1), "probability", closed_low=True, closed_high=True)
THRESHOLD = Domain(-math.inf, math.inf, (-3.0, 3.0), "units of the scores", closed_low=True, closed_high=True)
TRIALS = Domain(1, math.inf, (10, 20_000), "trials", closed_low=True, integer=True)


def clopper_pearson(successes: ArrayLike, trials: ArrayLike, *, confidence: float) -> tuple[Array, Array]:
    """Two-sided exact interval for a success probability, (1 - confidence)/2 on each side.

    lower = Beta^-1((1 - confidence)/2; k, n - k + 1), upper = Beta^-1((1 + confidence)/2; k + 1, n - k);
    exactly 0 below at k = 0 and exactly 1 above at k = n. Clopper and Pearson (1934).

    Args:
        successes: k, integers in [0, trials]; any shape that broadcasts with `trials`.
        trials: n, integers at least 1.
        confidence: Level in (0, 1).

    Returns:
        (lower, upper), arrays of the broadcast shape.

    Raises:
        ValueError: A count is not an integer in its range, or the level is not in (0, 1).

    >>> lower, upper = clopper_pearson(90, 100, confidence=0.95)
    >>> print(f"{lower:.4f} {upper:.4f}")
    0.8238 0.9510
    """
    alpha = 1.0 - valid_confidence(confidence)
    k, n = _counts(successes, trials)
    from statsmodels.stats.proportion import proportion_confint  # a second that one-sided bounds need not take

    lower, upper = proportion_confint(k.copy(), n.copy(), alpha=alpha, method="beta")
    return np.asarray(lower), np.asarray(upper)


def rate_lower(successes: ArrayLike, trials: ArrayLike, *, confidence: float) -> Array:
    """One-sided exact lower bound for a success probability: P(bound <= p) >= confidence.

    Args:
        successes: k, integers in [0, trials]; any shape that broadcasts with `trials`.
        trials: n, integers at least 1.
        confidence: Level in (0, 1).

    Raises:
        ValueError: A count is not an integer in its range, or the level is not in (0, 1).

    >>> print(f"{rate_lower(10, 10, confidence=0.95):.4f}")  # 0.05^(1/10)
    0.7411
    """
    return lower_at(*_counts(successes, trials), 1.0 - valid_confidence(confidence))


def rate_upper(successes: ArrayLike, trials: ArrayLike, *, confidence: float) -> Array:
    """One-sided exact upper bound for a success probability: P(bound >= p) >= confidence.

    Args:
        successes: k, integers in [0, trials]; any shape that broadcasts with `trials`.
        trials: n, integers at least 1.
        confidence: Level in (0, 1).

    Raises:
        ValueError: A count is not an integer in its range, or the level is not in (0, 1).

    >>> print(f"{rate_upper(0, 10, confidence=0.95):.4f}")  # 1 - 0.05^(1/10)
    0.2589
    """
    return upper_at(*_counts(successes, trials), 1.0 - valid_confidence(confidence))


def lower_at(successes: ArrayLike, trials: ArrayLike, tail: float) -> Array:
    """`rate_lower` at error probability `tail`, unchecked; `successes` may be an expectation, so not an integer."""
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    inside = k > 0
    return np.asarray(np.where(inside, betaincinv(np.where(inside, k, 1.0), n - k + 1.0, tail), 0.0))


def upper_at(successes: ArrayLike, trials: ArrayLike, tail: float) -> Array:
    """`rate_upper` at error probability `tail`, unchecked; `successes` may be an expectation, so not an integer."""
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    inside = k < n
    return np.asarray(np.where(inside, betainccinv(k + 1.0, np.where(inside, n - k, 1.0), tail), 1.0))


def valid_confidence(confidence: float) -> float:
    """The level, or an error."""
    CONFIDENCE.validate("confidence", confidence)
    return float(confidence)


def valid_count(name: str, value: Any, domain: Domain = COUNT) -> int:
    """The count as an int, or an error that names it; a sum of floats may be one."""
    if isinstance(value, (float, np.floating)) and float(value).is_integer():
        value = int(value)
    domain.validate(name, value)
    return int(value)


def valid_scores(name: str, scores: ArrayLike) -> Array:
    """The scores as a non-empty vector without NaN; infinities are allowed.

    Raises:
        ValueError: Not real numbers, not one-dimensional, empty, with a NaN, or with some of them masked.
    """
    try:
        given = np.asanyarray(scores)
    except (TypeError, RuntimeError) as error:  # such as of tensors with a gradient, on a GPU, or of bfloat16
        raise ValueError(f"Expected {name} to be an array of real numbers: {error}") from error
    if given.dtype.kind not in "biufO" or np.ma.is_masked(given):
        what = "masked values" if np.ma.is_masked(given) else f"values of type {given.dtype}"
        raise ValueError(f"Expected {name} to be real numbers, not {what}.")
    values = np.asarray(given, dtype=np.float64)
    if values.ndim != 1 or values.size == 0:
        raise ValueError(f"Expected {name} of shape {values.shape} to be a non-empty vector.")
    if np.isnan(values).any():
        raise ValueError(f"Expected {name} without NaN: {int(np.isnan(values).sum())} of {values.size} are.")
    return values


def _counts(successes: ArrayLike, trials: ArrayLike) -> tuple[Array, Array]:
    for name, given in (("successes", successes), ("trials", trials)):
        if np.asarray(given).dtype.kind not in "iufO":
            raise ValueError(f"Expected {name}={given!r} to be integers.")
    k, n = np.broadcast_arrays(np.asarray(successes, np.float64), np.asarray(trials, np.float64))
    wrong = ~((k >= 0) & (k <= n) & (n >= 1) & np.isfinite(n) & (k == np.floor(k)) & (n == np.floor(n)))
    if wrong.any():
        raise ValueError(
            f"Expected successes={k[wrong][0]:g} of trials={n[wrong][0]:g} to be integers with "
            f"0 <= successes <= trials and trials >= 1."
        )
    return k, n
