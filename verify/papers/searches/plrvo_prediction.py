"""plrvo, Appendix D: theta predicted by gradient boosting from configurations that were solved.

The paper names the inputs (k, epsilon, C, T, zeta) and the method, and no settings. Here the solved configurations are
drawn log-uniformly from declared ranges, everything is learned in logarithms, and the error is reported on
configurations that were not learned from. A prediction is a first guess: only `calibrate` meets a target.
"""

import math
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.noise import calibrate
from dpaudit.verify.calibration.search import InfeasibleError

FEATURES = ("k", "epsilon", "clip", "steps", "sampling_prob")
RANGES: Mapping[str, tuple[float, float]] = {
    "k": (30.0, 5e4), "epsilon": (0.1, 4.0), "clip": (0.1, 2.0), "steps": (100.0, 5000.0), "sampling_prob": (2e-3, 0.1),
}  # fmt: skip
HELD_OUT = 0.25


@dataclass(frozen=True)
class Solved:
    """Solved configurations.

    Args:
        inputs: Shape (configurations, 5), columns as FEATURES.
        theta: The largest theta that meets epsilon, shape (configurations,).
        refused: How many of the draws no theta meets.
    """

    inputs: Array
    theta: Array
    refused: int


@dataclass(frozen=True)
class Predictor:
    """A fitted predictor of theta.

    Args:
        model: scikit-learn's GradientBoostingRegressor, from logs of the inputs to log theta.
        held_out: The configurations that were not learned from.
        importance: Share of every input in the trees' splits, which see what F_0 leaves; they sum to 1.
    """

    model: Any
    held_out: Solved
    importance: dict[str, float]

    @property
    def held_out_ratios(self) -> Array:
        """theta predicted over theta solved: above 1 a prediction costs more than its target epsilon."""
        return self._predicted(self.held_out.inputs) / self.held_out.theta

    def held_out_error(self, quantile: float = 0.5) -> float:
        """Quantile of |theta predicted / theta solved - 1| over the held-out configurations, their median by default.

        Args:
            quantile: In [0, 1].
        """
        return float(np.quantile(np.abs(self.held_out_ratios - 1), quantile))

    def theta(self, *, k: float, epsilon: float, clip: float, steps: float, sampling_prob: float) -> float:
        """theta predicted for one configuration.

        Raises:
            ValueError: An input is outside the range of what was learned from.
        """
        row = {"k": k, "epsilon": epsilon, "clip": clip, "steps": steps, "sampling_prob": sampling_prob}
        for name, (low, high) in RANGES.items():
            if not low <= row[name] <= high:
                raise ValueError(f"Expected {name}={row[name]!r} in [{low:g}, {high:g}].")
        return float(self._predicted(np.array([[row[name] for name in FEATURES]]))[0])

    def _predicted(self, inputs: Array) -> Array:
        with _unheeded_flags():
            found: Array = np.exp(self.model.predict(np.log(inputs)))
        assert np.isfinite(found).all()
        return found


def solve_configurations(
    count: int,
    *,
    dimension: int,
    delta: float,
    rng: np.random.Generator,
    accountant: Accountant | None = None,
    progress: Callable[[int], None] | None = None,
) -> Solved:
    """Draw configurations and solve each for theta.

    Args:
        count: Solved configurations wanted, at least 1.
        dimension: Coordinates of the noise.
        delta: In (0, 1).
        rng: Draws the configurations.
        accountant: Such as `Published("plrvo-theorem-4.9", {"max_order": 80})`; None for the valid bound.
        progress: Called with 1 after every draw that was solved.
    """
    rows: list[Array] = []
    thetas: list[float] = []
    refused = 0
    while len(rows) < count:
        low, high = np.log(np.array([RANGES[name] for name in FEATURES])).T
        row = np.exp(rng.uniform(low, high))
        row[3] = round(row[3])
        k, epsilon, clip, steps, sampling_prob = (float(value) for value in row)
        table = {"name": "gamma-plrv", "k": k, "clip": clip, "dimension": dimension}
        try:
            calibration = calibrate(
                table, epsilon=epsilon, delta=delta, steps=int(steps), sampling_prob=sampling_prob,
                accountant=accountant,
            )  # fmt: skip
        except InfeasibleError:
            refused += 1
            continue
        rows.append(row)
        thetas.append(calibration.value)
        if progress is not None:
            progress(1)
    return Solved(np.array(rows), np.array(thetas), refused)


def _unheeded_flags() -> AbstractContextManager[Any]:
    """Matrix products of BLAS can leave the flag of an invalid operation over lanes that they do not use."""
    return np.errstate(invalid="ignore")


def fit(solved: Solved, *, rng: np.random.Generator, line: bool = True) -> Predictor:
    """Gradient boosting on three quarters of the configurations, its error on the rest (plrvo, Appendix D).

    Args:
        solved: At least 20 configurations.
        rng: Splits them, and seeds the trees.
        line: Boost from the least-squares line, as theta is nearly a product of powers of the inputs; False to start
            from a constant. The paper does not say what F_0 is.

    Raises:
        ValueError: Too few configurations.
    """
    from sklearn.ensemble import GradientBoostingRegressor  # costs a second
    from sklearn.linear_model import LinearRegression

    total = len(solved.theta)
    if total < 20:
        raise ValueError(f"Expected {total} solved configurations to be at least 20.")
    order = rng.permutation(total)
    held = math.ceil(HELD_OUT * total)
    model = GradientBoostingRegressor(
        n_estimators=400, learning_rate=0.05, max_depth=3, subsample=0.8, random_state=int(rng.integers(2**31)),
        init=LinearRegression() if line else None,
    )  # fmt: skip
    unseen, seen = order[:held], order[held:]
    with _unheeded_flags():
        model.fit(np.log(solved.inputs[seen]), np.log(solved.theta[seen]))
    importance = dict(zip(FEATURES, map(float, model.feature_importances_), strict=True))
    return Predictor(model, Solved(solved.inputs[unseen], solved.theta[unseen], 0), importance)
