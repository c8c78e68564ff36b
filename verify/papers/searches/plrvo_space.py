"""plrvo: where Algorithm 1 searches (c0 to c4, Theorem D.1), and what to change where nothing is left.

Everything is easiest at the largest k and the smallest C. With x = C theta hold the mean k x of C u: then Gamma(k)/k
falls with k in convex order, and G is the mean of a function convex in u. So a larger k has smaller moments (the
papers' accountants and Theorem D.1; the valid bound is seen to do the same), a smaller x (theta lam_max C < 1), a
larger J = (1 - 1/k) k x (Theorem D.1's distortion, c4), and a scale u that is rarely small (c1). c1 and c4 ask for a
large theta = x/C, that is C = C_min. A space is empty if and only if it is empty at k_max and C_min: an interval of x.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np
from scipy.optimize import brentq
from scipy.special import gammaincinv

from dpaudit.mechanisms.base import Domain, Mechanism, keep_as_python_numbers
from dpaudit.mechanisms.published import plrvo
from dpaudit.mechanisms.registry import from_dict
from dpaudit.verify.calibration.search import InfeasibleError

K_LOW = 1.01  # the least k_max
INSIDE = 1 - 1e-6  # the open constraint theta lam_max C < 1 is kept by this much
_ROUNDING = 1e-12  # what a nearest value is moved inside, so that it is feasible when it is asked for
_TINY = 1e-12  # an x within every upper bound
_FAR = 50.0  # stands for an infinite slack
_BASELINES = np.geomspace(1e-2, 10.0, 2000)  # where a feasible Gaussian baseline is looked for
POSITIVE = Domain(0.0, math.inf, (0.1, 10.0), "norm of one record's contribution")
_K_MAX = Domain(1.0, math.inf, (1e3, 1e5), "shape")
_ORDER = Domain(1, math.inf, (80, 1000), "order", closed_low=True, integer=True)
_CDF = Domain(0.0, 1.0, (1e-6, 0.1), "probability")


@dataclass(frozen=True)
class Space:
    """Where Algorithm 1 searches.

    Args:
        dimension: Coordinates.
        clip_min: C_min > 0 of c0.
        clip_max: C_max, at least C_min; the paper takes 2 C_min.
        k_max: Largest k, at least 1.01. J grows with k towards that of Laplace noise, so this end is reached.
        max_order: lam_max: theta lam_max C < 1.
        cdf_at_tenth: c1: GammaCDF(0.1; k, theta) at most this.
        name: "gamma-plrv" or "gamma-plrv-iid".
        gaussian_baseline: sigma in units of clip, to stay inside the search space of Theorem D.1 as well; None without.

    Raises:
        ValueError: A value outside its domain.
        InfeasibleError: c0, clip_max below clip_min; c3, k_max below 1.01.
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
        keep_as_python_numbers(self)
        if isinstance(self.k_max, (int, float)) and self.k_max < K_LOW:
            raise InfeasibleError(f"Expected c3: k > 1, so that k_max={self.k_max:g} must be at least {K_LOW}.", K_LOW)
        for name, domain in (
            ("clip_min", POSITIVE), ("clip_max", POSITIVE), ("k_max", _K_MAX), ("max_order", _ORDER),
            ("cdf_at_tenth", _CDF),
        ):  # fmt: skip
            domain.validate(name, getattr(self, name))
        if self.gaussian_baseline is not None:
            POSITIVE.validate("gaussian_baseline", self.gaussian_baseline)
        if self.clip_max < self.clip_min:
            raise InfeasibleError(
                f"Expected c0: clip_max={self.clip_max!r} to be at least clip_min={self.clip_min!r}.",
                float(self.clip_min),
            )

    def mechanism(self, k: float, theta: float, clip: float) -> Mechanism:
        """The noise of one configuration."""
        return from_dict({"name": self.name, "k": k, "theta": theta, "clip": clip, "dimension": self.dimension})

    def largest_clip(self, k: float, x: float) -> float:
        """The largest C that c1 and c4 allow at x = C theta: theta is at least 0.1/(k-1) and 0.1 over a quantile."""
        return x * min(k - 1, float(gammaincinv(k, self.cdf_at_tenth))) / 0.1

    def least_x(self, k: float) -> float:
        """The least x by c0, c1, c4 and the distortion of Theorem D.1, C (k-1) theta >= sqrt(pi/2)/sigma."""
        reach = self.clip_min / self.largest_clip(k, 1.0)
        return reach if self.gaussian_baseline is None else max(reach, _least_signal(self.gaussian_baseline) / (k - 1))

    def moments(self, k: float, x: float) -> float:
        """Slack of the moments of Theorem D.1, falling in x; of a space that has a Gaussian baseline."""
        assert self.gaussian_baseline is not None
        slacks = plrvo.search_space_slacks(
            self.mechanism(k, x, 1.0), noise_multiplier=self.gaussian_baseline, max_order=self.max_order
        )
        return max(slacks["moments"], -_FAR)

    def most_x(self, k: float) -> float:
        """The largest x by theta lam_max C < 1 and by the moments of Theorem D.1."""
        most = INSIDE / self.max_order
        if self.gaussian_baseline is None or self.moments(k, most) >= 0:
            return most
        root = brentq(lambda z: self.moments(k, math.exp(z)), math.log(_TINY), math.log(most), xtol=_ROUNDING)
        inside = math.exp(float(root) - 2 * _ROUNDING)
        return inside if self.moments(k, inside) >= 0 else inside * (1 - 1e-9)


def _least_signal(baseline: float) -> float:
    """Least J by the distortion of Theorem D.1."""
    return math.sqrt(math.pi / 2) / baseline


def require_room(space: Space, private: float) -> None:
    """Refuse a space that is empty at k_max and clip_min, where it is empty last.

    Args:
        space: The space.
        private: The largest x = C theta that c2 allows at k_max.

    Raises:
        InfeasibleError: c1 or c4 (`nearest` is the largest feasible clip_min), or Theorem D.1 (`nearest` is the nearest
            feasible gaussian_baseline, NaN where none is).
    """
    plain = replace(space, gaussian_baseline=None)
    top = min(private, plain.most_x(space.k_max))
    if plain.least_x(space.k_max) > top:
        largest = space.largest_clip(space.k_max, top) * (1 - _ROUNDING)
        quantile = float(gammaincinv(space.k_max, space.cdf_at_tenth))
        name = "c1: GammaCDF(0.1; k, theta) small" if quantile < space.k_max - 1 else "c4: (k-1) theta >= 0.1"
        raise InfeasibleError(
            f"Expected {name} to be within reach: clip_min={space.clip_min:g} must be at most {largest:.6g}.", largest
        )
    if space.gaussian_baseline is None or _has_room(space, space.gaussian_baseline, top):
        return
    nearest = _nearest_baseline(space, space.gaussian_baseline, top)
    what = "lower moments and a lower distortion than the Gaussian's"
    hint = f"the nearest that leaves room is {nearest:.6g}" if nearest == nearest else "none leaves room"
    raise InfeasibleError(
        f"Expected Theorem D.1: {what} at gaussian_baseline={space.gaussian_baseline:g}, within the other constraints "
        f"and k_max={space.k_max:g}: {hint}.",
        nearest,
    )


def _has_room(space: Space, baseline: float, top: float) -> bool:
    """Whether some x at k_max is within Theorem D.1 for a baseline, and at most `top`."""
    around = replace(space, gaussian_baseline=baseline)
    least = around.least_x(space.k_max)
    return least <= top and around.moments(space.k_max, least) >= 0


def _nearest_baseline(space: Space, baseline: float, top: float) -> float:
    """The feasible Gaussian baseline nearest in ratio, NaN where none is found."""
    # the least one that c2 leaves to the distortion is an end of what is feasible
    least = _least_signal(1.0) / ((space.k_max - 1) * top) * (1 + _ROUNDING)
    feasible = [
        sigma
        for sigma in (least, *_BASELINES[np.searchsorted(_BASELINES, least) :])
        if _has_room(space, float(sigma), top)
    ]
    if not feasible:
        return math.nan
    inside = float(min(feasible, key=lambda sigma: abs(math.log(sigma / baseline))))
    outside = baseline
    while abs(math.log(outside / inside)) > _ROUNDING:
        middle = math.sqrt(inside * outside)
        inside, outside = (middle, outside) if _has_room(space, middle, top) else (inside, middle)
    return inside


def require_feasible(mechanism: Mechanism, *, max_order: int) -> None:
    """Refuse Gamma-PLRV noise that the paper's accountant says nothing about (plrvo, Section 5.1).

    Args:
        mechanism: Gamma-PLRV noise of either kind.
        max_order: lam_max.

    Raises:
        TypeError: Another mechanism.
        InfeasibleError: k <= 1 (c3), or theta lam_max C >= 1; `nearest` is the nearest k or theta that is allowed.
    """
    slacks = plrvo.constraint_slacks(
        mechanism, clip_min=mechanism.clip, clip_max=mechanism.clip, epsilon=0.0, epsilon_target=0.0,
        max_order=max_order,
    )  # fmt: skip
    if slacks["c3"] <= 0:
        raise InfeasibleError(f"Expected c3: k > 1, found k={1 + slacks['c3']:g}.", math.nextafter(1.0, 2.0))
    if slacks["mgf"] <= 0:
        nearest = (1 - _ROUNDING) / (max_order * float(mechanism.clip))
        raise InfeasibleError(f"Expected theta lam_max C < 1: theta must be at most {nearest:.6g}.", nearest)
