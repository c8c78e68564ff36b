"""Importance sampling of passes in a random order: releases drawn around displaced centres, weights that are bounded.

F is the law that histories are drawn from, and G the same with every contribution `stretch` times as long and all
centres moved by `offset` contributions. With R = SHARE F + (1 - SHARE) G, a mixture of whole histories (Hesterberg
(1995), "Weighted average importance sampling and defensive mixture distributions"),

    dF/dR = 1/(SHARE + (1 - SHARE) dG/dF) <= 1/SHARE,

whatever G is: so a poor choice of G costs sharpness and never validity. Both densities are exact, the mean over all
orders included. Many releases that each learn little make a large loss all together (offset), few that learn much by
the record's own release (stretch); so G is sought on four rays from F, where its mean loss is the wanted epsilon.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq

from dpaudit.mechanisms.base import Array
from dpaudit.verify.results import Direction
from dpaudit.verify.sampling.chunks import FLOATS, chunk_sizes
from dpaudit.verify.sampling.histories import ShiftedPhase
from dpaudit.verify.sampling.passes import Displacement, displaced_passes

SHARE = 0.1  # of histories that are drawn from F
RAYS = ((1.0, 0.0), (0.0, 1.0), (1.0, 3.0), (1.0, 1.0))  # of the stretch, and of the offset times sqrt(releases)
PASSES, RELEASES = 400, 2**21  # whose mean loss says how far G is along a ray, and what they may show at most
DISTANCES = 4.0 ** np.arange(-3, 4)  # in contributions; the zero is sought below the first that is too far


@dataclass(frozen=True)
class DisplacedHistories:
    """Histories of passes alone, drawn from R.

    Args:
        parts: The phases, each a game.
        direction: Which two distributions are compared.
        displacements: G, for each phase.
        log_cut: Of the value at which dF/dR (1 - e^(epsilon - L))_+ is cut off, which lowers its mean; as it stands it
            never is.
    """

    parts: tuple[ShiftedPhase, ...]
    direction: Direction
    displacements: tuple[Displacement, ...]
    log_cut: float = -math.log(SHARE)

    @property
    def work(self) -> float:
        """Floats that one history takes in all."""
        return 2.0 * sum(part.floats * part.steps for part in self.parts)

    @property
    def floats(self) -> float:
        """Floats that one history holds in memory; passes are summed in blocks."""
        return min(self.work, float(FLOATS))

    @property
    def rounding(self) -> float:
        """Of a history's loss and log-weight."""
        return sum(2e-11 * part.steps for part in self.parts)

    def __call__(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """(L, log dF/dR) of `size` histories."""
        loss, towards, plain = np.zeros(size), np.zeros(size), rng.random(size) < SHARE
        for part, displacement in zip(self.parts, self.displacements, strict=True):
            block = max(1, int(FLOATS / (2.0 * part.floats * size)))
            for start in range(0, part.steps, block):
                count = min(block, part.steps - start)
                drawn = _passes(part, self.direction, displacement, rng, np.repeat(plain, count))
                loss += drawn[0].reshape(size, count).sum(axis=1)
                towards += drawn[1].reshape(size, count).sum(axis=1)
        return loss, -np.logaddexp(math.log(SHARE), math.log1p(-SHARE) + towards)


def displaced_histories(
    parts: tuple[ShiftedPhase, ...], direction: Direction, epsilon: float, rng: np.random.Generator
) -> list[DisplacedHistories]:
    """Proposals whose mean loss is about `epsilon`, one on each ray; none where F's own is no smaller.

    Args:
        parts: The phases, each a game.
        direction: Which two distributions are compared.
        epsilon: Losses about this large are wanted.
        rng: Source of the pilot passes.
    """
    seed, found = int(rng.integers(2**63)), []
    if mean_loss(_along(parts, direction, RAYS[0], 0.0), np.random.default_rng(seed)) >= epsilon:  # F's own
        return []
    for ray in RAYS:

        @cache
        def excess(distance: float, ray: tuple[float, float] = ray) -> float:
            """Of the mean loss over epsilon; with the same noise at every distance, so that it has a zero."""
            return mean_loss(_along(parts, direction, ray, distance), np.random.default_rng(seed)) - epsilon

        far = next((distance for distance in DISTANCES if excess(distance) > 0.0), None)
        if far is not None:
            found.append(_along(parts, direction, ray, float(brentq(excess, 0.0, far, rtol=0.02))))
    return found


def mean_loss(draw: DisplacedHistories, rng: np.random.Generator) -> float:
    """The mean loss of histories drawn from G, from a few hundred passes of each phase."""
    total = 0.0
    for part, displacement in zip(draw.parts, draw.displacements, strict=True):
        losses, count = 0.0, max(4, min(PASSES, RELEASES // _releases(part)))
        for size in chunk_sizes(count, 2.0 * part.floats):
            drawn = _passes(part, draw.direction, displacement, rng, np.zeros(size, dtype=np.bool_))
            losses += float(drawn[0].sum())
        total += part.steps * losses / count
    return total


def _along(
    parts: tuple[ShiftedPhase, ...], direction: Direction, ray: tuple[float, float], distance: float
) -> DisplacedHistories:
    """G at a distance on a ray: towards what the record adds, or away from it in direction "add"."""
    sign = -1.0 if direction == "add" else 1.0
    moved = (
        Displacement(1.0 + sign * ray[0] * distance, sign * ray[1] * distance / math.sqrt(_releases(part)))
        for part in parts
    )
    return DisplacedHistories(parts, direction, tuple(moved))


def _releases(part: ShiftedPhase) -> int:
    """Of one pass."""
    assert part.game is not None
    return sum(part.game.first[0][1])


def _passes(
    part: ShiftedPhase,
    direction: Direction,
    displacement: Displacement,
    rng: np.random.Generator,
    plain: NDArray[np.bool_],
) -> tuple[Array, Array]:
    assert part.game is not None
    return displaced_passes(part.mechanism, part.length, part.game, displacement, rng, plain, add=direction == "add")
