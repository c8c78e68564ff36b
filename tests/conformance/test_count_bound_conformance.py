"""Every bound of BOUNDS, which is computed from the counts of one event in the two arms, obeys the interface.

False alarms are summed over all counts, not simulated: the probability is exact.
"""

import math
from collections.abc import Callable

import numpy as np
import pytest
from scipy.stats import binom, norm

from dpaudit.verify.bounds import BOUNDS
from dpaudit.verify.results import LowerBound

TRIALS_IN, TRIALS_OUT = 30, 24
# TPR and FPR of an event of a mechanism that is exactly (epsilon, delta) private, and these two
TRUTHS = [
    *((1 / (1 + math.exp(-e)), 1 / (1 + math.exp(e)), e, 0.0) for e in (0.0, 0.5, 1.0, 3.0)),
    (0.1 + 0.9 / (1 + math.exp(-1)), 0.9 / (1 + math.exp(1)), 1.0, 0.1),  # everything revealed one time in ten
    (float(norm.sf(-0.5)), float(norm.sf(0.5)), 1.0, float(norm.sf(0.5) - math.e * norm.sf(1.5))),  # mu = 1
    (0.5, 0.5, 0.0, 0.0),
    (0.02, 0.02, 0.0, 0.0),
]

over_bounds = pytest.mark.parametrize("bound", BOUNDS.values(), ids=BOUNDS)
Bound = Callable[..., LowerBound]


def epsilons(bound: Bound, *, delta: float, confidence: float) -> np.ndarray:
    """epsilon_lower at every tp (rows) and fp (columns)."""
    return np.array([
        [
            bound(tp=tp, fp=fp, tn=TRIALS_OUT - fp, fn=TRIALS_IN - tp, delta=delta, confidence=confidence).epsilon_lower
            for fp in range(TRIALS_OUT + 1)
        ]
        for tp in range(TRIALS_IN + 1)
    ])  # fmt: skip


@over_bounds
@pytest.mark.parametrize("confidence", [0.5, 0.9, 0.99])
def test_false_alarms_are_no_more_than_the_level_allows(bound: Bound, confidence: float) -> None:
    for tpr, fpr, epsilon, delta in TRUTHS:
        weights = binom.pmf(np.arange(TRIALS_IN + 1), TRIALS_IN, tpr)[:, None]
        weights = weights * binom.pmf(np.arange(TRIALS_OUT + 1), TRIALS_OUT, fpr)
        false_alarms = weights[epsilons(bound, delta=delta, confidence=confidence) > epsilon].sum()
        assert false_alarms <= 1 - confidence, (tpr, fpr, epsilon, delta)


@over_bounds
def test_a_rate_that_tells_the_arms_apart_better_proves_more(bound: Bound) -> None:
    """Above the diagonal, where more tp and fewer fp are better; the swapped event counts alike below it."""
    values = epsilons(bound, delta=0.01, confidence=0.9)
    assert (values >= 0).all()
    assert values.max() == values[-1, 0] > 0
    tp, fp = np.indices(values.shape)
    better = (tp / TRIALS_IN > fp / TRIALS_OUT) & (values > 0)
    assert (np.diff(values, axis=0)[better[:-1]] >= 0).all()
    assert (np.diff(values, axis=1)[better[:, 1:]] <= 0).all()
    assert (epsilons(bound, delta=0.1, confidence=0.9) <= values).all()
    assert (epsilons(bound, delta=0.01, confidence=0.99) <= values).all()


@over_bounds
def test_the_result_keeps_what_went_into_it(bound: Bound) -> None:
    counts = {"tp": 90, "fp": 10, "tn": 85, "fn": 7}
    result = bound(**counts, delta=1e-5, confidence=0.95)
    assert {name: result.inputs[name] for name in counts} == counts
    assert (result.delta, result.confidence) == (1e-5, 0.95)
    assert result.method
    assert result.source


@over_bounds
@pytest.mark.parametrize(
    "wrong",
    [
        {"tp": -1}, {"fp": 2.5}, {"tp": 0, "fn": 0}, {"fp": 0, "tn": 0}, {"delta": 1.0}, {"delta": -0.1},
        {"confidence": 1.0}, {"confidence": 0.0}, {"delta": math.nan},
    ],
)  # fmt: skip
def test_what_is_no_count_or_level_is_refused(bound: Bound, wrong: dict[str, float]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        bound(**{"tp": 9, "fp": 1, "tn": 9, "fn": 1, "delta": 0.0, "confidence": 0.95, **wrong})
