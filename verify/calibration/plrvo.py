"""plrvo: Algorithm 1, the (k, theta, C) of largest signal-to-noise ratio, by its own accountant or by the valid bound.

Noise scaled together with the contributions costs the same, so privacy and the objective J = C (k-1) theta depend on k
and x = C theta alone. For every k there is a largest x within the privacy target; that frontier is computed at a few k
and joined smoothly, and scipy's constrained solvers get it as constraint c2. The optimum they return is moved onto the
true frontier, so that it meets the target by its own accountant.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from scipy.interpolate import PchipInterpolator
from scipy.optimize import Bounds, NonlinearConstraint, minimize
from scipy.special import gammaincinv

from dpaudit.mechanisms.base import Array, Domain, Mechanism
from dpaudit.mechanisms.published import plrvo
from dpaudit.mechanisms.registry import from_dict
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.costs import AccountantCost, Cost, Target, ValidCost
from dpaudit.verify.calibration.first_guess import spread, wanted_spread
from dpaudit.verify.calibration.search import InfeasibleError, least_noise
from dpaudit.verify.checking import check
from dpaudit.verify.results import Verdict

Solver = Literal["SLSQP", "trust-constr"]
_INSIDE = 1 - 1e-6  # the open constraints are kept by this much
_NODES = 7
_FAR = 50.0  # stands for an infinite slack, which solvers do not take
_START_INSIDE = 0.1  # how far below the frontier, in log x, the solvers start
_K_LOW = 1.01
_TOLERANCE = 1e-4  # of the frontier at the optimum
_NODE_TOLERANCE = 3e-4
_POSITIVE = Domain(0.0, math.inf, (0.1, 10.0), "norm of one record's contribution")
_K_MAX = Domain(_K_LOW, math.inf, (1e3, 1e5), "shape")
_ORDER = Domain(1, math.inf, (80, 1000), "order", closed_low=True, integer=True)
_CDF = Domain(0.0, 1.0, (1e-6, 0.1), "probability")


@dataclass(frozen=True)
class Theorem49:
    """Theorem 4.9 with orders up to lam_max, as an accountant.

    Args:
        max_order: lam_max.
    """

    max_order: int
    name: str = "plrvo-theorem-4.9"

    def __call__(self, mechanism: Mechanism, sampling_prob: float, steps: int, delta: float, /) -> float:
        """Its epsilon, with the numerical error added."""
        value = plrvo.theorem_4_9(
            mechanism, sampling_prob=sampling_prob, steps=steps, delta=delta, max_order=self.max_order
        )
        return value.epsilon + value.error


@dataclass(frozen=True)
class Space:
    """Where Algorithm 1 searches.

    Args:
        dimension: Coordinates.
        clip_min: C_min > 0 of c0.
        clip_max: C_max, at least C_min; the paper takes 2 C_min.
        k_max: Largest k. J grows with k towards that of Laplace noise, so this end is reached.
        max_order: lam_max: theta lam_max C < 1.
        cdf_at_tenth: c1: GammaCDF(0.1; k, theta) at most this.
        name: "gamma-plrv" or "gamma-plrv-iid".
        gaussian_baseline: sigma in units of clip, to stay inside the search space of Theorem D.1 as well; None without.
    """

    dimension: int
    clip_min: float
    clip_max: float
    k_max: float = 50_000.0
    max_order: int = 80
    cdf_at_tenth: float = 1e-3
    name: Literal["gamma-plrv", "gamma-plrv-iid"] = "gamma-plrv"
    gaussian_baseline: float | None = None

    def __post_init__(self) -> None:
        for name, domain in (
            ("clip_min", _POSITIVE), ("clip_max", _POSITIVE), ("k_max", _K_MAX), ("max_order", _ORDER),
            ("cdf_at_tenth", _CDF),
        ):  # fmt: skip
            domain.validate(name, getattr(self, name))
        if self.gaussian_baseline is not None:
            _POSITIVE.validate("gaussian_baseline", self.gaussian_baseline)
        if self.clip_max < self.clip_min:
            raise ValueError(f"Expected clip_max={self.clip_max!r} to be at least clip_min={self.clip_min!r}.")

    def mechanism(self, k: float, theta: float, clip: float) -> Mechanism:
        """The noise of one configuration."""
        return from_dict({"name": self.name, "k": k, "theta": theta, "clip": clip, "dimension": self.dimension})


@dataclass(frozen=True)
class Optimum:
    """The best configuration by one accountant, and what it really costs.

    Args:
        mechanism: With k, theta and clip.
        objective: J = C (k-1) theta.
        epsilon: By the accountant of the search.
        slacks: Of every constraint, at least 0.
        solver: "SLSQP" or "trust-constr".
        iterations: Of the solver.
        verdict: The check of the target with this mechanism.
    """

    mechanism: Mechanism
    objective: float
    epsilon: float
    slacks: Mapping[str, float]
    solver: Solver
    iterations: int
    verdict: Verdict


def optimum(target: Target, space: Space, *, solver: Solver = "SLSQP", accountant: Accountant | None = None) -> Optimum:
    """The (k, theta, C) that maximises J = C (k-1) theta under c0 to c4 (plrvo, Algorithm 1).

    Args:
        target: What is to be met; epsilon and delta > 0.
        space: Where to look.
        solver: Method of scipy.optimize.minimize.
        accountant: `Theorem49(space.max_order)` for the paper's, None for the valid bound.

    Raises:
        ValueError: A value outside its domain.
        InfeasibleError: A constraint cannot be met; the message names it. `nearest` is the least epsilon (c2), the
            largest clip_min (c1, c4), or by how much the constraints miss each other (Theorem D.1).
    """
    _POSITIVE.validate("epsilon", target.epsilon)
    frontier = _Frontier(target, space, ValidCost() if accountant is None else AccountantCost(accountant))
    k = np.geomspace(_K_LOW, space.k_max, _NODES)
    log_x = np.log([frontier.largest(float(value)) for value in k])
    _require_reach(space, float(log_x[-1]))
    # log J is flat towards large k, and joined without overshooting: it rises with k where its nodes do
    joined = PchipInterpolator(np.log(k), log_x + np.log(k - 1))
    found = _solve(space, joined, solver)
    k_best, clip = (float(value) for value in np.exp(found.x[[0, 2]]))
    x = min(frontier.largest(k_best, near=math.exp(found.x[1]), tolerance=_TOLERANCE), _INSIDE / space.max_order)
    x = min(x, math.exp(found.x[1])) if space.gaussian_baseline is not None else x
    best = space.mechanism(k_best, x / clip, clip)
    epsilon = frontier.cost.epsilon(best, target)
    slacks = plrvo.constraint_slacks(
        best, clip_min=space.clip_min, clip_max=space.clip_max, epsilon=epsilon, epsilon_target=target.epsilon,
        max_order=space.max_order, cdf_at_tenth=space.cdf_at_tenth,
    )  # fmt: skip
    return Optimum(
        best, plrvo.objective(best), epsilon, slacks, solver, int(found.nit), check(target.claim(best, id="plrvo"))
    )


class _Frontier:
    """The largest x = C theta within the privacy target, for any k."""

    def __init__(self, target: Target, space: Space, cost: Cost) -> None:
        self.cost, self._target, self._space = cost, target, space
        self._near: float | None = None  # x k of the last answer, a good guess for the next

    def largest(self, k: float, *, near: float | None = None, tolerance: float = _NODE_TOLERANCE) -> float:
        """The largest x to a relative tolerance, on the private side.

        Raises:
            InfeasibleError: No x is small enough.
        """
        unit = self._space.mechanism(k, 1.0, 1.0)
        if near is None:
            near = spread(unit) / wanted_spread(unit, self._target) if self._near is None else self._near / k
        trials = least_noise(
            lambda noise: self.cost.excess(self._space.mechanism(k, 1 / noise, 1.0), self._target), 1 / near, tolerance
        )
        if math.isinf(trials.enough):
            least = self.cost.epsilon(self._space.mechanism(k, 1 / trials.short, 1.0), self._target)
            raise InfeasibleError(
                f"Expected c2: epsilon={self._target.epsilon:g} to be at least {least:.4g} at "
                f"delta={self._target.delta:g}: no theta gives less.",
                least,
            )
        self._near = k / trials.enough
        return 1 / trials.enough


def _require_reach(space: Space, log_x: float) -> None:
    """Refuse clips too large for c1 and c4 even at k_max and C_min, where both are easiest.

    Both are lower bounds on theta = x/C: 0.1/(k-1), and 0.1 over a quantile of Gamma(k, 1).
    """
    x = min(math.exp(log_x), _INSIDE / space.max_order)
    reach = {
        "c4: (k-1) theta >= 0.1": x * (space.k_max - 1) / 0.1,
        "c1: GammaCDF(0.1; k, theta) small": x * float(gammaincinv(space.k_max, space.cdf_at_tenth)) / 0.1,
    }
    name, largest = min(reach.items(), key=lambda item: item[1])
    if largest < space.clip_min:
        raise InfeasibleError(
            f"Expected {name} to be within reach: clip_min={space.clip_min:g} must be at most {largest:.6g}.", largest
        )


def _solve(space: Space, joined: PchipInterpolator, solver: Solver) -> Any:
    """minimize over (log k, log x, log C), from the middle of the frontier."""

    def slacks(z: Array) -> Array:
        """c1, c2, c4 and Theorem D.1 in logarithms, each at least 0."""
        k, log_theta = math.exp(z[0]), z[1] - z[2]
        rows = [
            math.log(float(gammaincinv(k, space.cdf_at_tenth)) / 0.1) + log_theta,
            float(joined(z[0])) - math.log(math.expm1(z[0])) - z[1],
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

    low = np.log([_K_LOW, 1e-12, space.clip_min])
    high = np.log([space.k_max, _INSIDE / space.max_order, space.clip_max])
    start_k = float(np.clip(math.sqrt(space.k_max), _K_LOW, space.k_max))
    inside = min(float(joined(math.log(start_k))) - math.log(start_k - 1), high[1]) - _START_INSIDE
    start = np.array([math.log(start_k), inside, 0.9 * low[2] + 0.1 * high[2]])
    found = minimize(
        lambda z: -math.log(math.expm1(z[0])) - z[1],
        np.clip(start, low, high),
        jac=lambda z: np.array([1 / math.expm1(-z[0]), -1.0, 0.0]),
        method=solver,
        hess=(lambda z: np.diag([0.25 / math.sinh(0.5 * z[0]) ** 2, 0.0, 0.0])) if solver == "trust-constr" else None,
        bounds=Bounds(low, high, keep_feasible=True),
        constraints=_constraints(slacks, solver),
        options={"maxiter": 1000, "gtol": 1e-9} if solver == "trust-constr" else {"maxiter": 400, "ftol": 1e-12},
    )
    worst = float(slacks(found.x).min())
    if worst < -1e-4:
        names = ("c1", "c2", "c4", "Theorem D.1 (moments)", "Theorem D.1 (distortion)")
        name = names[int(np.argmin(slacks(found.x)))]
        raise InfeasibleError(
            f"Expected {name} to be met together with the other constraints: the least violation found is "
            f"{-worst:.3g}.",
            -worst,
        )
    return found


def _constraints(slacks: Callable[[Array], Array], solver: Solver) -> Any:
    if solver == "SLSQP":
        return {"type": "ineq", "fun": slacks}
    # in logarithms the constraints are nearly straight; quasi-Newton curvature warns where they are straight indeed
    return NonlinearConstraint(slacks, 0.0, math.inf, jac="2-point", hess=lambda z, v: np.zeros((3, 3)))


def require_feasible(mechanism: Mechanism, *, max_order: int) -> None:
    """Refuse Gamma-PLRV noise that the paper's accountant says nothing about (plrvo, Section 5.1).

    Args:
        mechanism: Gamma-PLRV noise of either kind.
        max_order: lam_max.

    Raises:
        TypeError: Another mechanism.
        InfeasibleError: k <= 1 (c3), or theta lam_max C >= 1; `nearest` is the end of what is allowed.
    """
    slacks = plrvo.constraint_slacks(
        mechanism, clip_min=mechanism.clip, clip_max=mechanism.clip, epsilon=0.0, epsilon_target=0.0,
        max_order=max_order,
    )  # fmt: skip
    if slacks["c3"] <= 0:
        raise InfeasibleError(f"Expected c3: k > 1, found k={1 + slacks['c3']:g}.", 1.0)
    if slacks["mgf"] <= 0:
        nearest = 1 / (max_order * float(mechanism.clip))
        raise InfeasibleError(f"Expected theta lam_max C < 1: theta must be below {nearest:.6g}.", nearest)
