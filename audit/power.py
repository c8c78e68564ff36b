"""How many models an audit needs: the power estimate behind the default of --trials."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.special import betainccinv, betaincinv, ndtr, ndtri

from dpaudit.mechanisms.published.gaussian_baselines import analytic_gaussian_sigma

Array = NDArray[np.float64]
SELECTION = 0.2  # share of the trials that choose the threshold; the rest are counted
FEWEST, MOST = 100, 5000
GRID = np.unique(np.geomspace(FEWEST, 200_000, 40).astype(int))
SLACK = 1.645  # expected counts less this many standard deviations: the test succeeds about 19 times in 20


def models_needed(
    epsilon: float, delta: float, delta_upper: Callable[[Array], Array], *, share: float
) -> dict[str, int | None]:
    """Models per arm that refute a half-noise twin, through the headline and through the curve.

    Args:
        epsilon: Claimed.
        delta: Claimed.
        delta_upper: The mechanism's certified delta(epsilon).
        share: Error probability of each test.

    Returns:
        {"epsilon_lower": N, "curve": N}, selection included; None where 200,000 are not enough.
    """
    # the twin is the Gaussian mechanism of this claim with half its noise
    mu = 2.0 / analytic_gaussian_sigma(1.0, epsilon=epsilon, delta=max(delta, 1e-12))
    fpr = ndtr(-np.linspace(-1.0, 5.0, 121))
    tpr = ndtr(ndtri(fpr) + mu)
    grid = np.linspace(0.0, max(2.0 * epsilon, 1.0), 200)
    allowed = np.asarray(delta_upper(grid))
    need: dict[str, int | None] = {"epsilon_lower": None, "curve": None}
    for total in GRID:
        counted = (1.0 - SELECTION) * total
        tp = counted * tpr - SLACK * np.sqrt(counted * tpr * (1 - tpr))
        fp = counted * fpr + SLACK * np.sqrt(counted * fpr * (1 - fpr))
        tpr_lower = np.nan_to_num(betaincinv(np.maximum(tp, 1e-9), counted - tp + 1, share / 2))
        fpr_upper = np.nan_to_num(betainccinv(fp + 1, np.maximum(counted - fp, 1e-9), share / 2), nan=1.0)
        if need["epsilon_lower"] is None and (tpr_lower - delta > np.exp(epsilon) * fpr_upper).any():
            need["epsilon_lower"] = int(total)
        if need["curve"] is None and (tpr_lower[:, None] - np.exp(grid) * fpr_upper[:, None] > allowed).any():
            need["curve"] = int(total)
        if None not in need.values():
            break
    return need


def default_trials(need: dict[str, int | None]) -> int:
    """Models per arm: what the more powerful test needs with half as many again, within bounds of patience."""
    fewest = min((count for count in need.values() if count is not None), default=MOST)
    return int(np.clip(1.5 * fewest, FEWEST, MOST))
