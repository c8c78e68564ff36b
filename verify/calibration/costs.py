"""What a mechanism costs, by a valid bound or by anyone's accountant, as an excess over a target."""

import math
import sys
from dataclasses import dataclass

import numpy as np
from scipy.special import ndtri

from dpaudit.mechanisms.base import Mechanism, keep_as_python_numbers
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.search import InfeasibleError
from dpaudit.verify.checking import curve_by_rho
from dpaudit.verify.claims import Adjacency, Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.float_range import beyond_floats
from dpaudit.verify.results import down
from dpaudit.verify.upper import obstacle, upper_curves

_ROUNDS = 3  # the bound's grid is fit for the epsilon of the round before


@dataclass(frozen=True)
class Target:
    """What a history is to meet.

    Args:
        epsilon: At least 0.
        delta: In [0, 1).
        steps: Releases, at least 1.
        sampling_prob: Poisson rate in (0, 1]; 1.0 without sampling.
        adjacency: "add-remove" or "replace-one".
    """

    epsilon: float
    delta: float
    steps: int = 1
    sampling_prob: float = 1.0
    adjacency: Adjacency = "add-remove"

    def __post_init__(self) -> None:
        keep_as_python_numbers(self)

    def claim(self, mechanism: Mechanism, epsilon: float | None = None, id: str = "") -> Claim:
        """The claim that a mechanism meets it.

        Raises:
            TypeError, ValueError: A value outside its domain.
        """
        return Claim.single(
            mechanism,
            epsilon=self.epsilon if epsilon is None else epsilon,
            delta=self.delta,
            steps=self.steps,
            sampling_prob=self.sampling_prob,
            adjacency=self.adjacency,
            id=id,
        )


def require_noise(target: Target) -> None:
    """Refuse what holds without noise: a record is never in any sample with probability (1-q)^T.

    Raises:
        InfeasibleError: delta is at least the probability that it is in one.
    """
    seen = 1.0 if target.sampling_prob == 1 else -math.expm1(target.steps * math.log1p(-target.sampling_prob))
    if seen <= target.delta:
        raise InfeasibleError(
            f"Expected delta={target.delta:g} in [0, {down(seen, 4)}): a record is in no sample with probability 1 "
            "minus that, and no noise is needed.",
            seen,
        )


def met_by_rho(target: Target, mechanism: Mechanism) -> bool:
    """Whether what rho proves meets a target by itself."""
    claim = target.claim(mechanism)
    curve = None if beyond_floats(claim.canonical()) else curve_by_rho(claim)
    return curve is not None and float(curve.delta(np.array([target.epsilon]))[0]) <= target.delta


def _curves(claim: Claim, *, by_rho: bool) -> list[Curve]:
    """The valid upper bounds, as `check` has them; [] where it leaves a claim open for its lengths.

    Raises:
        ValueError: No theorem covers the claim.
    """
    if beyond_floats(claim.canonical()):
        return []
    curves = upper_curves(claim)
    if (curve := curve_by_rho(claim) if by_rho or not curves else None) is not None:
        curves = [*curves, curve]
    if not curves:
        raise ValueError(f"Expected a mechanism and a history with a valid upper bound: {obstacle(claim)}.")
    return curves


class ValidCost:
    """The least valid upper bound; `theorem` is what proved the last one asked for.

    Args:
        by_rho: Whether what rho proves counts, which takes seconds for some, and is more than the others for few.
    """

    def __init__(self, *, by_rho: bool = False) -> None:
        self._by_rho, self.theorem = by_rho, ""

    def excess(self, mechanism: Mechanism, target: Target) -> float:
        """Difference of normal quantiles of delta, nearly linear in log noise; at delta = 0 the ratio of epsilons.

        At most 0 where the target is met, and falling with the noise.
        """
        curves = _curves(target.claim(mechanism), by_rho=self._by_rho)
        if not curves:
            return math.inf
        if target.delta == 0:
            return _log_ratio(self._least([float(c.epsilon(np.zeros(1))[0]) for c in curves], curves), target.epsilon)
        delta = self._least([float(c.delta(np.array([target.epsilon]))[0]) for c in curves], curves)
        # the sign is decided without the quantiles, which round
        size = abs(float(ndtri(min(delta, 1 - 1e-16)) - ndtri(target.delta))) if delta > 0 else math.inf
        return max(size, sys.float_info.min) if delta > target.delta else -size

    def _least(self, values: list[float], curves: list[Curve]) -> float:
        best = values.index(min(values))
        self.theorem = curves[best].theorem
        return values[best]

    def epsilon(self, mechanism: Mechanism, target: Target) -> float:
        """The bound's epsilon, its grid fit for it."""
        near = target.epsilon
        for _ in range(_ROUNDS):
            curves = _curves(target.claim(mechanism, near), by_rho=self._by_rho)
            least = min((float(curve.epsilon(np.array([target.delta]))[0]) for curve in curves), default=math.inf)
            if not math.isfinite(least) or abs(least - near) <= 1e-3 * near:
                break
            near = least
        return least


@dataclass(frozen=True)
class AccountantCost:
    """Whatever an accountant says, right or wrong.

    Args:
        accountant: Called as (mechanism, sampling_prob, steps, delta).
    """

    accountant: Accountant

    def excess(self, mechanism: Mechanism, target: Target) -> float:
        """log of its epsilon over the target's."""
        return _log_ratio(self.epsilon(mechanism, target), target.epsilon)

    def epsilon(self, mechanism: Mechanism, target: Target) -> float:
        """Its epsilon, inf for NaN."""
        value = float(self.accountant(mechanism, target.sampling_prob, target.steps, target.delta))
        return math.inf if math.isnan(value) else value


Cost = ValidCost | AccountantCost  # how far a mechanism is from a target


def _log_ratio(epsilon: float, wanted: float) -> float:
    if epsilon <= 0 or math.isinf(epsilon):
        return math.inf if epsilon > 0 else -math.inf
    # found > wanted must not be lost in rounding
    return math.log(epsilon / wanted) or (epsilon - wanted) if wanted > 0 else math.inf
