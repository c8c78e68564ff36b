"""How many models an audit needs: the power estimate behind the default of --trials."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.stats import beta, norm

Array = NDArray[np.float64]
SELECTION = 0.2  # share of the trials that choose the threshold; the rest are counted
FEWEST, MOST = 100, 5000
GRID = np.unique(np.geomspace(FEWEST, 200_000, 40).astype(int))
SLACK = 1.645  # expected counts less this many standard deviations: the test succeeds about 19 times in 20


def gaussian_mu(epsilon: float, delta: float) -> float:
    """The mu of the Gaussian mechanism that costs exactly (epsilon, delta) (Balle and Wang 2018, Theorem 8)."""

    def excess(mu: float) -> float:
        return float(norm.cdf(mu / 2 - epsilon / mu) - np.exp(epsilon + norm.logcdf(-mu / 2 - epsilon / mu))) - delta

    return float(brentq(excess, 1e-6, 1e3))


def twin_rates(epsilon: float, delta: float) -> tuple[Array, Array]:
    """(FPR, TPR) over thresholds of the Gaussian twin of a claim that adds half the noise."""
    mu = 2.0 * gaussian_mu(epsilon, max(delta, 1e-12))
    fpr = norm.sf(np.linspace(-1.0, 5.0, 121))
    return fpr, norm.sf(norm.isf(fpr) - mu)


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
    fpr, tpr = twin_rates(epsilon, delta)
    grid = np.linspace(0.0, max(2.0 * epsilon, 1.0), 200)
    allowed = np.asarray(delta_upper(grid))
    need: dict[str, int | None] = {"epsilon_lower": None, "curve": None}
    for total in GRID:
        counted = (1.0 - SELECTION) * total
        tp = counted * tpr - SLACK * np.sqrt(counted * tpr * (1 - tpr))
        fp = counted * fpr + SLACK * np.sqrt(counted * fpr * (1 - fpr))
        tpr_lower = np.nan_to_num(beta.ppf(share / 2, np.maximum(tp, 1e-9), counted - tp + 1))
        fpr_upper = np.nan_to_num(beta.isf(share / 2, fp + 1, np.maximum(counted - fp, 1e-9)), nan=1.0)
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
