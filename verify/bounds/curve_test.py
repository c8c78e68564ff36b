"""Observed rates against a mechanism's whole certified curve delta(epsilon), not against one point of it."""

from collections.abc import Callable

import numpy as np
from numpy.typing import ArrayLike

from dpaudit.mechanisms.base import Array
from dpaudit.verify.bounds.rates import lower_at, upper_at, valid_confidence, valid_scores
from dpaudit.verify.results import CurveViolation

DeltaUpper = Callable[[Array], Array]
GRID = 400  # epsilons per pass; three passes, each around the best point of the one before


def curve_violation(
    in_scores: ArrayLike, out_scores: ArrayLike, *, threshold: float, delta_upper: DeltaUpper, confidence: float
) -> CurveViolation:
    """Test "trained with this mechanism": is TPR - e^epsilon FPR above delta_upper(epsilon) at any epsilon >= 0?

    Reports the epsilon at which max(TPR_lower - e^epsilon FPR_upper, TNR_lower - e^epsilon FNR_upper) exceeds
    delta_upper(epsilon) by most. TPR_lower and FPR_upper are one-sided Clopper-Pearson bounds at (1 - confidence)/2
    each for the event {score > threshold}; TNR_lower = 1 - FPR_upper, FNR_upper = 1 - TPR_lower.

    A correct mechanism is called violated with probability at most 1 - confidence, though every epsilon and both
    directions are tried. Proof: outside an event G of probability at most 1 - confidence, TPR >= TPR_lower and
    FPR <= FPR_upper (union bound). Outside G, for EVERY epsilon >= 0 at once,
    TPR_lower - e^epsilon FPR_upper <= TPR - e^epsilon FPR <= delta_(P,Q)(epsilon) <= delta_upper(epsilon), the middle
    step by the definition of delta(epsilon) as the supremum over events; and the same for the complement event in the
    direction (Q,P), whose rates are 1 minus these. So outside G no epsilon shows an excess. G depends on two rates
    only, not on epsilon: the grid costs nothing, may be as fine as one likes, and may follow the data.

    Args:
        in_scores: Scores of trials with the record, independent, shape (n,); infinities allowed.
        out_scores: Scores of trials without it, shape (m,).
        threshold: Fixed before these scores were seen, such as by `choose_curve_threshold` on other trials.
        delta_upper: Array of epsilons >= 0 to an upper bound on the mechanism's delta, valid in BOTH directions.
        confidence: Level in (0, 1).

    Raises:
        ValueError: Empty scores, NaN, or a level out of range.

    Source: Clopper and Pearson (1934) for the rates; the curve is the one of Balle, Barthe and Gaboardi (2018).
    """
    scores_in, scores_out = valid_scores("in_scores", in_scores), valid_scores("out_scores", out_scores)
    if np.isnan(threshold):
        raise ValueError("Expected threshold=nan to be a number.")
    tail = (1.0 - valid_confidence(confidence)) / 2.0
    tp, fp = int((scores_in > threshold).sum()), int((scores_out > threshold).sum())
    tpr_lower = float(lower_at(tp, scores_in.size, tail))
    fpr_upper = float(upper_at(fp, scores_out.size, tail))
    epsilon, observed, allowed = _largest_excess(tpr_lower, fpr_upper, delta_upper)
    event = tpr_lower - np.exp(epsilon) * fpr_upper
    return CurveViolation(
        violated=observed > allowed,
        epsilon=epsilon,
        delta_observed_lower=observed,
        delta_upper=allowed,
        confidence=confidence,
        threshold=float(threshold),
        inputs={
            "tp": tp,
            "fp": fp,
            "tn": scores_out.size - fp,
            "fn": scores_in.size - tp,
            "tpr_lower": tpr_lower,
            "fpr_upper": fpr_upper,
            "event": "score > threshold, in over out" if observed == event else "score <= threshold, out over in",
        },
    )


def advantage(tpr_lower: ArrayLike, fpr_upper: ArrayLike, epsilon: ArrayLike) -> tuple[Array, Array]:
    """(TPR_lower - e^epsilon FPR_upper, TNR_lower - e^epsilon FNR_upper), broadcast."""
    x, y, factor = np.asarray(tpr_lower), np.asarray(fpr_upper), np.exp(np.asarray(epsilon, np.float64))
    return x - factor * y, (1.0 - y) - factor * (1.0 - x)


def _largest_excess(tpr_lower: float, fpr_upper: float, delta_upper: DeltaUpper) -> tuple[float, float, float]:
    """(epsilon, observed, allowed) where observed - allowed is largest; refined around the best point of a grid."""
    # beyond this epsilon neither difference of `advantage` is positive
    last = max(0.0, float(np.log(max(tpr_lower / fpr_upper, (1.0 - fpr_upper) / (1.0 - tpr_lower)))))
    low, high = 0.0, last
    best = (0.0, -np.inf, 0.0)
    for _ in range(3):
        grid = np.linspace(low, high, GRID) if high > low else np.array([low])
        observed = np.maximum(*advantage(tpr_lower, fpr_upper, grid))
        allowed = np.asarray(delta_upper(grid), np.float64)
        at = int(np.argmax(observed - allowed))
        if observed[at] - allowed[at] > best[1] - best[2]:
            best = (float(grid[at]), float(observed[at]), float(allowed[at]))
        low, high = float(grid[max(at - 1, 0)]), float(grid[min(at + 1, grid.size - 1)])
    return best
