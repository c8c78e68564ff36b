"""plrvo: Algorithm 1, the (k, theta, C) of largest signal-to-noise ratio, by its own accountant or by the valid bound.

Noise scaled together with the contributions costs the same, so privacy and the objective J = C (k-1) theta depend on k
and x = C theta alone. For every k there is a largest x within the privacy target. That frontier is computed at a few
k, from the largest down for as long as J is near its best, and joined smoothly; scipy's constrained solvers get it as
constraint c2. The optimum they return is moved onto the true frontier, so that it meets the target by its own
accountant.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import Bounds, NonlinearConstraint, minimize
from scipy.special import gammaincinv

from dpaudit.mechanisms.base import Array, Mechanism, usual_errors
from dpaudit.mechanisms.published import plrvo
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.costs import AccountantCost, Cost, Target, ValidCost, require_noise
from dpaudit.verify.calibration.first_guess import spread, wanted_spread
from dpaudit.verify.calibration.search import InfeasibleError, NoiseBracket, least_noise
from dpaudit.verify.checking import check
from dpaudit.verify.papers.searches.plrvo_space import INSIDE, K_LOW, POSITIVE, Space, require_feasible, require_room
from dpaudit.verify.results import Verdict

__all__ = ["Optimum", "Solver", "Space", "optimum", "require_feasible"]

Solver = Literal["SLSQP", "trust-constr"]
_NODES = 5
_WORTH = 0.9  # of the best J: below it no smaller k is looked at
_FAR = 50.0  # stands for an infinite slack, which solvers do not take
_START_INSIDE = 0.1  # how far below the frontier, in log x, the solvers start
_AT_END = 0.99  # a k this near to k_max is k_max: J is flat there, and solvers stop just short of a bound
_TOLERANCE = 1e-4  # of the frontier at the optimum
_NODE_TOLERANCE = 5e-3  # interpolated within, a node is right to about the square of this


@dataclass(frozen=True)
class Optimum:
    """The best configuration by one accountant, and what it really costs.

    Args:
        mechanism: With k, theta and clip.
        objective: J = C (k-1) theta.
        epsilon: By the accountant of the search.
        slacks: Of every constraint, at least 0 but for rounding.
        solver: "SLSQP" or "trust-constr".
        iterations: Of the solver.
        evaluations: How often the accountant was asked by the search.
        verdict: The check of the target with this mechanism.
    """

    mechanism: Mechanism
    objective: float
    epsilon: float
    slacks: Mapping[str, float]
    solver: Solver
    iterations: int
    evaluations: int
    verdict: Verdict


@usual_errors()
def optimum(target: Target, space: Space, *, solver: Solver = "SLSQP", accountant: Accountant | None = None) -> Optimum:
    """The (k, theta, C) that maximises J = C (k-1) theta under c0 to c4 (plrvo, Algorithm 1).

    Args:
        target: What is to be met; epsilon and delta > 0.
        space: Where to look.
        solver: Method of scipy.optimize.minimize.
        accountant: `Published("plrvo-theorem-4.9", {"max_order": space.max_order})` for the paper's, None for the valid
            bound.

    Raises:
        ValueError: A value outside its domain.
        InfeasibleError: A constraint cannot be met; the message names it. `nearest` is the least feasible epsilon (c2),
            the largest clip_min (c1, c4) or the nearest gaussian_baseline (Theorem D.1; NaN where there is none).
    """
    POSITIVE.validate("epsilon", target.epsilon)
    require_noise(target)
    frontier = _Frontier(target, space, ValidCost() if accountant is None else AccountantCost(accountant))
    require_room(space, frontier.largest(space.k_max))
    solution = _solve(space, frontier.joined(), solver)
    k, clip = (float(value) for value in np.exp(solution.x[[0, 2]]))
    if k > _AT_END * space.k_max or frontier.top(k) < space.least_x(k):
        k = space.k_max  # the largest k leaves the most room
    x = frontier.top(k)
    clip = min(max(min(clip, space.largest_clip(k, x)), space.clip_min), space.clip_max)
    best = space.mechanism(k, x / clip, clip)
    epsilon = frontier.cost.epsilon(best, target)
    slacks = plrvo.constraint_slacks(
        best, clip_min=space.clip_min, clip_max=space.clip_max, epsilon=epsilon, epsilon_target=target.epsilon,
        max_order=space.max_order, cdf_at_tenth=space.cdf_at_tenth,
    )  # fmt: skip
    verdict = check(target.claim(best, id="plrvo"))
    return Optimum(
        best, plrvo.objective(best), epsilon, slacks, solver, int(solution.nit), frontier.evaluations, verdict
    )  # fmt: skip


class _Frontier:
    """The largest x = C theta within the privacy target, for any k."""

    def __init__(self, target: Target, space: Space, cost: Cost) -> None:
        self.cost, self._target, self._space = cost, target, space
        self.evaluations = 0
        self._known: dict[float, float] = {}  # k -> noise k, the reciprocal of x, times k: flat in k
        self._largest: dict[float, float] = {}

    def _excess(self, k: float, x: float) -> float:
        self.evaluations += 1
        return self.cost.excess(self._space.mechanism(k, x, 1.0), self._target)

    def _guess(self, k: float) -> float:
        """1/x at k: noise per k is nearly a straight line in 1/k."""
        unit = self._space.mechanism(k, 1.0, 1.0)
        if not self._known:
            return wanted_spread(unit, self._target) / spread(unit)
        (a, low), (b, high) = (list(self._known.items())[-2:] * 2)[-2:]
        line = high + (low - high) / (1 / a - 1 / b) * (1 / k - 1 / b) if a != b else high
        return k * max(line, 0.5 * high)

    def _bracket(self, k: float, tolerance: float) -> NoiseBracket:
        """Noise 1/x tried at k until the frontier is known to a relative tolerance.

        Raises:
            InfeasibleError: No x is small enough.
        """
        bracket = least_noise(lambda noise: self._excess(k, 1 / noise), self._guess(k), tolerance)
        if math.isinf(bracket.enough):
            self._refuse(k)
        if bracket.short == 0:
            raise InfeasibleError(
                f"Expected c2: epsilon={self._target.epsilon:g} at delta={self._target.delta:g} to need noise: at "
                f"k={k:g} it holds with as little as C theta={1 / bracket.enough:.3g}.",
                math.nan,
            )
        low, high = math.log(bracket.short), math.log(bracket.enough)
        above, below = bracket(bracket.short), bracket(bracket.enough)
        self._known[k] = math.exp(low + (high - low) * above / (above - below)) / k
        return bracket

    def _refuse(self, k: float) -> None:
        """No theta is private enough: the least epsilon is that of the least x that the other constraints leave."""
        space = self._space
        x = min(space.least_x(k), space.most_x(k))
        least = self.cost.epsilon(space.mechanism(k, x, 1.0), self._target) * (1 + 1e-9)
        raise InfeasibleError(
            f"Expected c2: epsilon={self._target.epsilon:g} to be at least {least:.4g} at "
            f"delta={self._target.delta:g}: no theta reaches it, and what clip_min, c1 and c4 leave gives no less.",
            least,
        )

    def largest(self, k: float) -> float:
        """The largest x to a relative tolerance, on the private side; the least that is of use, where it is as good."""
        if k not in self._largest:
            x, least = 1 / self._bracket(k, _TOLERANCE).enough, self._space.least_x(k)
            near = x < least <= x * (1 + 2 * _TOLERANCE)
            self._largest[k] = least if near and self._excess(k, least) <= 0 else x
        return self._largest[k]

    def top(self, k: float) -> float:
        """The largest x within all constraints."""
        return min(self.largest(k), self._space.most_x(k))

    def joined(self) -> PchipInterpolator:
        """log(x k) over log k, from k_max down to where J is no longer near its best; without overshooting."""
        most = INSIDE / self._space.max_order
        best = (self._space.k_max - 1) * min(self.largest(self._space.k_max), most)
        for k in np.geomspace(self._space.k_max, min(K_LOW, 0.5 + 0.5 * self._space.k_max), _NODES)[1:]:
            self._bracket(float(k), _NODE_TOLERANCE)
            if (k - 1) * min(1 / (k * self._known[float(k)]), most) < _WORTH * best:
                break
        k, noise = np.array(sorted(self._known.items())).T
        return PchipInterpolator(np.log(k), -np.log(noise))


def _solve(space: Space, joined: PchipInterpolator, solver: Solver) -> Any:
    """minimize over (log k, log x, log C), from the middle of the frontier."""

    def slacks(z: Array) -> Array:
        """c1, c2, c4 and Theorem D.1 in logarithms, each at least 0."""
        k, log_theta = math.exp(z[0]), z[1] - z[2]
        rows = [
            math.log(float(gammaincinv(k, space.cdf_at_tenth)) / 0.1) + log_theta,
            float(joined(z[0])) - z[0] - z[1],
            math.log((k - 1) / 0.1) + log_theta,
        ]
        if space.gaussian_baseline is not None:
            there = plrvo.search_space_slacks(
                space.mechanism(k, math.exp(z[1]), 1.0),
                noise_multiplier=space.gaussian_baseline,
                max_order=space.max_order,
            )
            rows += [there["moments"], there["distortion"]]
        return np.asarray(np.clip(rows, -_FAR, _FAR))

    # in logarithms the constraints are nearly straight; quasi-Newton curvature warns where they are straight indeed
    constraints: Any = {"type": "ineq", "fun": slacks}
    if solver == "trust-constr":
        constraints = NonlinearConstraint(slacks, 0.0, math.inf, jac="2-point", hess=lambda z, v: np.zeros((3, 3)))
    first, last = float(joined.x[0]), float(joined.x[-1])
    low = np.array([first, math.log(1e-12), math.log(space.clip_min)])
    high = np.array([last, math.log(INSIDE / space.max_order), math.log(space.clip_max)])
    middle = 0.5 * (first + last)
    inside = min(float(joined(middle)) - middle, high[1]) - _START_INSIDE
    start = np.array([middle, inside, 0.9 * low[2] + 0.1 * high[2]])
    return minimize(
        lambda z: -math.log(math.expm1(z[0])) - z[1],
        np.clip(start, low, high),
        jac=lambda z: np.array([1 / math.expm1(-z[0]), -1.0, 0.0]),
        method=solver,
        hess=(lambda z: np.diag([0.25 / math.sinh(0.5 * z[0]) ** 2, 0.0, 0.0])) if solver == "trust-constr" else None,
        bounds=Bounds(low, high, keep_feasible=True),
        constraints=constraints,
        options={"maxiter": 1000, "gtol": 1e-9} if solver == "trust-constr" else {"maxiter": 400, "ftol": 1e-12},
    )
