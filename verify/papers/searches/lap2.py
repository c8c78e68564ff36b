"""lap2: Algorithm 1, the largest clip whose Laplace scale is allowed, by its own accountant or by the valid bound."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from dpaudit.mechanisms.base import Domain, usual_errors
from dpaudit.mechanisms.laplace import Laplace
from dpaudit.mechanisms.published.lap2 import initial_scale
from dpaudit.verify.accountants.base import Accountant
from dpaudit.verify.calibration.costs import AccountantCost, Cost, Target, ValidCost, require_noise
from dpaudit.verify.calibration.noise import Calibration, calibrate
from dpaudit.verify.calibration.search import InfeasibleError, least_noise

_POSITIVE = Domain(0.0, math.inf, (0.1, 10.0), "norm or scale")


@dataclass(frozen=True)
class ClipSearch:
    """What Algorithm 1 finds with one accountant.

    Args:
        scales: (C, least b) for every clip of the grid, ascending.
        start: b* of Section IV-B at the smallest clip, where the search began.
        best: The largest clip whose b is allowed, with its b and what that really costs.
    """

    scales: tuple[tuple[float, float], ...]
    start: float
    best: Calibration


@usual_errors()
def largest_clip(
    target: Target, *, clips: Sequence[float], scale_max: float, dimension: int,
    accountant: Accountant | None = None, tolerance: float = 1e-3,
) -> ClipSearch:  # fmt: skip
    """The least b for every C of a grid, and the largest C whose b is allowed (lap2, Algorithm 1).

    Privacy depends on C/b alone. So the signal-to-noise ratio C/b that the algorithm is to maximise is the same for
    every clip, and scale_max alone decides.

    Args:
        target: What is to be met; epsilon and delta > 0.
        clips: The grid, > 0.
        scale_max: b_max > 0.
        dimension: Coordinates.
        accountant: `Published("lap2-theorem-iii.7")` for the paper's, None for the valid bound.
        tolerance: Relative, of every b.

    Raises:
        TypeError, ValueError: A value outside its domain.
        InfeasibleError: No clip of the grid has an allowed b; `nearest` is the least scale_max that would do.
    """
    grid = sorted(clips)
    for name, value in (("scale_max", scale_max), *(("clip", clip) for clip in grid), ("epsilon", target.epsilon)):
        _POSITIVE.validate(name, value)
    if not grid or not 0 < target.delta < 1:
        raise ValueError(f"Expected clips={grid!r} not to be empty, and delta={target.delta!r} in (0, 1).")
    cost: Cost = ValidCost() if accountant is None else AccountantCost(accountant)
    grid = [float(clip) for clip in grid]
    target.claim(Laplace(scale=1.0, clip=grid[0], dimension=dimension))  # refuses steps and the like
    require_noise(target)
    start = initial_scale(
        grid[0], sampling_prob=target.sampling_prob, steps=target.steps, epsilon=target.epsilon, delta=target.delta
    )
    scales: list[tuple[float, float]] = []
    for clip in grid:
        ratio = start / grid[0] if not scales else scales[-1][1] / scales[-1][0]

        def excess(scale: float, at: float = clip) -> float:
            return cost.excess(Laplace(scale=scale, clip=at, dimension=dimension), target)

        scales.append((clip, least_noise(excess, ratio * clip, tolerance).enough))
    allowed = [clip for clip, scale in scales if scale <= scale_max]
    if not allowed:
        raise InfeasibleError(
            f"Expected scale_max={scale_max:g} to be at least {scales[0][1]:.6g}, the least b of the smallest clip "
            f"{grid[0]:g} at epsilon={target.epsilon:g}, delta={target.delta:g}.",
            scales[0][1],
        )
    best = calibrate(
        {"name": "laplace", "clip": allowed[-1], "clip_norm": 2.0, "dimension": dimension},
        epsilon=target.epsilon, delta=target.delta, steps=target.steps, sampling_prob=target.sampling_prob,
        adjacency=target.adjacency, accountant=accountant, tolerance=tolerance,
    )  # fmt: skip
    return ClipSearch(tuple(scales), start, best)
