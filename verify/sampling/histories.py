"""Total privacy losses of whole histories, drawn plainly: noise from the mechanism, loss from its density.

A step under a shift v: the output is noise around v where the record is in, around 0 where not. First is the
distribution whose events are likelier, from which is drawn, Second the one it is compared with; the loss of a history
is log dFirst/dSecond, summed over its steps. Directions: "remove" compares with-record to without, "add" the reverse,
and "swap" compares v with -v. Poisson sampling puts the record in with probability `rate`, independently in every step.
"""

from collections.abc import Hashable
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import (
    Array,
    IIDCoordinates,
    LaplaceCoordinates,
    Mechanism,
    NormalCoordinates,
    Radial,
    ScaleMixture,
    require_dimension,
    with_dimension,
)
from dpaudit.mechanisms.numerics import log_ratio
from dpaudit.verify.claims import PLAIN_KINDS, Claim, Phase
from dpaudit.verify.lower.families import Shift, equal
from dpaudit.verify.results import Direction
from dpaudit.verify.samplers import PassGame
from dpaudit.verify.sampling.chunks import FLOATS
from dpaudit.verify.sampling.passes import pass_losses
from dpaudit.verify.sampling.sums import LaplaceSum, laplace_counts, subsampled

WHOLE_VECTORS = 64  # vectors up to this length are drawn whole, though a shorter way exists
NODES = 96  # Chebyshev nodes for the density along one axis
AXIS_RANGE = 18.0  # range of log |o|_1 over which they give it to 1e-14: its singularities are at distance pi
NORM_DISTANCE = 0.2  # difference of two log |o|_1 up to which a derivative is integrated
_GAUSS = np.polynomial.legendre.leggauss(4)


@dataclass(frozen=True)
class ShiftedPhase:
    """`steps` releases under one shift.

    Args:
        mechanism: The noise, its dimension set.
        shift: m equal coordinates; what the record moves.
        rate: Poisson sampling probability; 1 for none.
        steps: Number of releases, or of passes of a game.
        game: Both laws of a pass in a random order; None for single releases.
    """

    mechanism: Mechanism
    shift: Shift
    rate: float
    steps: int
    game: PassGame | None = None

    @property
    def value(self) -> float:
        """Movement of each coordinate."""
        return self.shift.groups[0][0]

    @property
    def length(self) -> float:
        """l2 norm of the shift."""
        return float(self.value * self.shift.coordinates**0.5)

    @property
    def floats(self) -> float:
        """Floats that drawing one step holds in memory, about."""
        m, structure = self.shift.coordinates, self.mechanism.structure
        if self.game is not None:
            laws = (*self.game.first, *self.game.second)
            moved = max(once + twice for _, (_, once, twice) in laws)  # of several, a sum over all sets of releases
            return (6.0 + (moved if moved > 1 else 0.0)) * sum(laws[0][1])
        if isinstance(structure, IIDCoordinates):
            if isinstance(structure, NormalCoordinates):
                return 2.0
            if isinstance(structure, LaplaceCoordinates) and m > WHOLE_VECTORS:
                return LaplaceSum(self.value / structure.scale, m).floats
            return 3.0 * m
        n = require_dimension(self.mechanism)
        if n <= WHOLE_VECTORS:
            return 3.0 * n
        if isinstance(structure, Radial):
            return 32.0  # in time; 8 in memory
        if not _by_counts(self, structure):
            return 3.0 * n
        middle = structure.given(float(structure.scale_isf(np.array(0.1))))
        assert isinstance(middle, LaplaceCoordinates)
        return 8.0 + 4.0 * m * -float(np.expm1(-self.value / middle.scale))


def shifted_phases(claim: Claim, coordinates: int, direction: Direction) -> tuple[ShiftedPhase, ...]:
    """The claim's phases, each under m equal coordinates at its own clip.

    Args:
        claim: Its adjacency decides which directions there are. Without any sampling a replacement by the opposite
            contribution is a shift by twice the clip, and "swap" is the same as "remove".
        coordinates: m, at most the smallest dimension; an unknown dimension counts as 1.
        direction: "remove" or "add" for add-remove claims, "swap" for replace-one.

    Raises:
        ValueError: The direction is not one of the adjacency, a shift is not feasible, a sampling kind has no
            theorem, or a law that depends on its dimension has none.
    """
    swaps = claim.adjacency == "replace-one"
    if swaps != (direction == "swap") or direction not in ("remove", "add", "swap"):
        raise ValueError(f"Expected direction={direction!r} to fit adjacency={claim.adjacency!r}.")
    return tuple(_shifted_phase(phase, coordinates, swaps) for phase in claim.phases)


def drawable(phase: Phase, *, swaps: bool) -> str:
    """Why histories of a phase cannot be drawn, what would be expected of it; "" where they can.

    Args:
        phase: The phase.
        swaps: Whether the record is replaced by another.
    """
    mechanism, games = phase.mechanism, phase.games(replace_one=swaps)
    if phase.sampling_kind not in PLAIN_KINDS and not games:
        what = "histories with a record replaced" if swaps and phase.sampler is not None else "histories"
        return f"sampling_kind={phase.sampling_kind!r} to be one whose {what} can be drawn"
    if games and not isinstance(mechanism.structure, IIDCoordinates):
        return f"noise={mechanism.name!r} on independent coordinates where batches are shuffled"
    if mechanism.dimension is None and isinstance(mechanism.structure, Radial):
        return f"the dimension of {mechanism.name!r} noise to be set"
    return ""


def _shifted_phase(phase: Phase, coordinates: int, swaps: bool) -> ShiftedPhase:
    missing = drawable(phase, swaps=swaps)
    if missing:
        raise ValueError(f"Expected {missing}.")
    mechanism, games = phase.mechanism, phase.games(replace_one=swaps)
    if mechanism.dimension is None:
        mechanism = with_dimension(mechanism, 1)
    shift = equal(mechanism, coordinates)
    if games:
        return ShiftedPhase(mechanism, shift, 1.0, games[0].passes, games[0])
    rate = 1.0 if phase.sampling_kind == "none" else phase.sampling_prob
    if swaps and rate == 1.0:
        shift = replace(shift, groups=((2.0 * shift.groups[0][0], coordinates),), norm=2.0 * shift.norm)
    return ShiftedPhase(mechanism, shift, rate, phase.steps)


@dataclass(frozen=True)
class PlainHistories:
    """Losses of whole histories drawn from First.

    Args:
        parts: The phases.
        direction: Which two distributions are compared.
    """

    parts: tuple[ShiftedPhase, ...]
    direction: Direction

    @property
    def work(self) -> float:
        """Floats that one history takes in all."""
        return sum(self._floats(part) * part.steps for part in self.parts)

    @property
    def floats(self) -> float:
        """Floats that one history holds in memory; steps are summed in blocks, so one block at least."""
        return min(self.work, float(FLOATS))

    @property
    def rounding(self) -> float:
        """Of a history's loss."""
        return sum(1e-11 * part.steps for part in self.parts)

    def __call__(self, rng: np.random.Generator, size: int) -> Array:
        """`size` independent total losses, shape (size,)."""
        total = np.zeros(size)
        for part in self.parts:
            block = max(1, int(FLOATS / (self._floats(part) * size)))
            for start in range(0, part.steps, block):
                count = min(block, part.steps - start)
                total += self._steps(part, rng, size * count).reshape(size, count).sum(axis=1)
        return total

    def _floats(self, part: ShiftedPhase) -> float:
        """Floats of one step; a sampled record that is replaced is seen in whole vectors (`_swapped_losses`)."""
        laplace = isinstance(part.mechanism.structure, LaplaceCoordinates) and part.game is None
        whole = laplace and self.direction == "swap" and part.rate < 1.0
        return 3.0 * part.shift.coordinates if whole else part.floats

    def _steps(self, part: ShiftedPhase, rng: np.random.Generator, size: int) -> Array:
        if part.game is not None:
            return pass_losses(part.mechanism, part.length, part.game, rng, size, add=self.direction == "add")
        if self.direction == "swap" and part.rate < 1.0:
            return _swapped_losses(part, rng, size)
        inside = rng.random(size) < part.rate if self.direction != "add" else np.zeros(size, dtype=np.bool_)
        loss = subsampled(raw_losses(part, rng, inside), part.rate)
        return -loss if self.direction == "add" else loss


def raw_losses(part: ShiftedPhase, rng: np.random.Generator, inside: NDArray[np.bool_]) -> Array:
    """l = log p(o - v)/p(o) of fresh outputs o, centred at v where `inside` and at 0 elsewhere.

    Drawn through whatever the loss depends on: one coordinate along v for normal noise, the shifted coordinates for
    iid noise, their counts for Laplace noise in many coordinates, radius and angle for a random radius in many
    dimensions, counts and |o|_1 for a hidden Laplace scale; whole vectors otherwise. Noise being symmetric, l at
    noise around v has the law of -l at noise around 0.
    """
    structure, m = part.mechanism.structure, part.shift.coordinates
    if isinstance(structure, LaplaceCoordinates) and m > WHOLE_VECTORS:
        return LaplaceSum(part.value / structure.scale, m).draw(rng, inside.astype(np.float64))[0]
    if isinstance(structure, Radial) and (n := require_dimension(part.mechanism)) > WHOLE_VECTORS:
        return np.where(inside, -1.0, 1.0) * _radial_loss(
            structure, n, part.length, *_radial_draws(structure, n, rng, len(inside))
        )
    if isinstance(structure, ScaleMixture) and _by_counts(part, structure):
        n = require_dimension(part.mechanism)
        return np.where(inside, -1.0, 1.0) * _mixture_losses(part, structure, n, rng, len(inside))
    mechanism, shift = _shortest(part)
    return mechanism.privacy_loss(mechanism.sample(rng, len(inside)) + np.where(inside[:, None], shift, 0.0), shift)


def _by_counts(part: ShiftedPhase, structure: ScaleMixture) -> bool:
    """Whether a hidden scale is Laplace's, in many coordinates, and G smooth enough for one polynomial."""
    if require_dimension(part.mechanism) <= WHOLE_VECTORS or not isinstance(structure.given(1.0), LaplaceCoordinates):
        return False
    low, high = _axis_range(part.mechanism, part.shift.coordinates * part.value)
    return high - low < AXIS_RANGE


def _shortest(part: ShiftedPhase) -> tuple[Mechanism, Array]:
    """Noise and shift of the shortest vectors that the loss depends on: one coordinate along v for normal noise."""
    structure, m = part.mechanism.structure, part.shift.coordinates
    if isinstance(structure, NormalCoordinates):
        return with_dimension(part.mechanism, 1), np.array([part.length])
    n = m if isinstance(structure, IIDCoordinates) else require_dimension(part.mechanism)
    return with_dimension(part.mechanism, n), np.where(np.arange(n) < m, part.value, 0.0)


def _swapped_losses(part: ShiftedPhase, rng: np.random.Generator, size: int) -> Array:
    """Replace-one under Poisson sampling: the record is v in First and -v in Second, when it is in."""
    inside, structure = rng.random(size) < part.rate, part.mechanism.structure
    if isinstance(structure, Radial) and (n := require_dimension(part.mechanism)) > WHOLE_VECTORS:
        along, across = _radial_draws(structure, n, rng, size)
        along = along + np.where(inside, part.length, 0.0)
        losses = [_radial_loss(structure, n, sign * part.length, along, across) for sign in (1.0, -1.0)]
    else:
        mechanism, shift = _shortest(part)
        outputs = mechanism.sample(rng, size) + inside[:, None] * shift
        losses = [mechanism.privacy_loss(outputs, sign * shift) for sign in (1.0, -1.0)]
    toward, away = (subsampled(loss, part.rate) for loss in losses)
    return np.asarray(toward - away)


def _radial_draws(law: Radial, n: int, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """Noise around 0: its part along v, and the square of the rest; the squared cosine is Beta(1/2, (n-1)/2)."""
    radius = np.asarray(law.radius_ppf(rng.random(size)))
    square = rng.beta(0.5, 0.5 * (n - 1), size)
    along = radius * np.sqrt(square) * np.where(rng.random(size) < 0.5, -1.0, 1.0)
    return along, np.square(radius) * (1.0 - square)


def _radial_loss(law: Radial, n: int, length: float, along: Array, across: Array) -> Array:
    """l from |o|^2 and |o - v|^2; the density in R^n is the radius's over r^(n-1)."""
    here, away = np.square(along) + across, np.square(along - length) + across
    towards = length * (2.0 * along - length)  # |o|^2 - |o - v|^2
    density = np.asarray(law.radius_logpdf(np.sqrt(away)) - law.radius_logpdf(np.sqrt(here)))
    return np.asarray(density + 0.5 * (n - 1) * log_ratio(towards, here, away))


def _mixture_losses(part: ShiftedPhase, structure: ScaleMixture, n: int, rng: np.random.Generator, size: int) -> Array:
    """l at noise around 0, for a hidden Laplace scale: the density depends on |o|_1 alone.

    Given the scale, the shifted coordinates enter through their counts; all coordinates not between the centres lie
    exponentially far outside them, so |o|_1 is a Gamma variable plus what the counts say.
    """
    m, value = part.shift.coordinates, part.value
    scale = np.asarray(structure.scale_ppf(rng.random(size)))
    ends, middle, between, high = laplace_counts(rng, np.zeros(size), scale * value, m)
    drop = value * ends + middle / scale  # |o|_1 - |o - v|_1
    inner = 0.5 * (middle / scale + between * value)
    norm = rng.standard_gamma(n - between) / scale + high * value + inner
    return _axis_losses(part.mechanism, norm, drop, m * value)


def _axis_losses(mechanism: Mechanism, norm: Array, drop: Array, reach: float) -> Array:
    """G(|o|_1) - G(|o - v|_1) with G(r) = log p(0)/p(r e_1), from the mechanism's own loss along one axis.

    G is interpolated in log r. Where the two norms are close its derivative is integrated between them: a difference
    of two G would lose the digits that the sum of many steps needs.
    """
    density, slope = _along_axis(cast(Hashable, mechanism), reach)
    low, high = density.domain
    with np.errstate(divide="ignore"):
        ends = np.log(norm), np.log(np.maximum(norm - drop, 0.0))
    covered = (np.minimum(*ends) >= low) & (np.maximum(*ends) <= high)
    here, there = (np.clip(end, low, high) for end in ends)
    width = np.where(np.abs(here - there) < NORM_DISTANCE, -np.log1p(-np.minimum(drop / norm, 0.5)), 0.0)
    total = sum(w * slope(here - 0.5 * width * (1.0 - x)) for x, w in zip(*_GAUSS, strict=True))
    result = np.where(width != 0.0, 0.5 * width * np.asarray(total), density(here) - density(there))
    for i in np.flatnonzero(~covered):
        result[i] = np.subtract(*_axis_density(mechanism, np.array([norm[i], max(norm[i] - drop[i], 0.0)])))
    return np.asarray(result)


def _axis_density(mechanism: Mechanism, radii: Array) -> Array:
    """G at each radius."""
    axis, values = np.zeros(require_dimension(mechanism)), []
    for radius in radii:
        axis[0] = radius
        values.append(float(mechanism.privacy_loss(axis, axis)))
    return np.array(values)


@lru_cache(maxsize=8)
def _along_axis(mechanism: Any, reach: float) -> tuple[np.polynomial.Chebyshev, np.polynomial.Chebyshev]:
    """G and its derivative as polynomials in log r, over all but 1e-12 of the laws of |o|_1 and |o - v|_1."""
    density = np.polynomial.Chebyshev.interpolate(
        lambda points: _axis_density(mechanism, np.exp(points)), NODES, domain=list(_axis_range(mechanism, reach))
    )
    density = density.trim(1e-16 * float(np.abs(density.coef).max()))
    return density, density.deriv()


def _axis_range(mechanism: Mechanism, reach: float) -> tuple[float, float]:
    """log of |o|_1, and of that plus `reach`, at the ends of all but 1e-12 of its law."""
    structure, n = cast(ScaleMixture, mechanism.structure), require_dimension(mechanism)
    fast, slow = (float(f(np.array(1e-13))) for f in (structure.scale_isf, structure.scale_ppf))
    spread = 8.0 / float(np.sqrt(n + 64.0))
    with np.errstate(divide="ignore"):
        low, high = np.log([n / fast * (1.0 - spread), n / slow * (1.0 + spread) + reach])
    return float(low), float(high)
