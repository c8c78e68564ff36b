"""Balls in bins and random allocation under normal noise: the law of a mean of likelihood ratios, by exact cells.

Domination (Choquette-Choo, Ganesh, Haque, Steinke and Thakurta 2025, "Near-exact privacy amplification for matrix
mechanisms", section 3; derived again here). Of T releases the record enters one, uniformly, and the others' sums cancel
from both sides. Given the past the next shift may be rotated onto one axis, and its length raised to the clip: with Q
the law without the record, E_Q phi(A + B exp(g w - g^2/2)) does not fall in |g| for convex phi and B >= 0 (Jensen:
the exponential at g is a conditional mean of the one at a larger g). Backwards over the releases, P = mean_t N(e_t)
against Q = N(0), with noise sigma/clip, has the largest delta at every epsilon, so the pair dominates; passes compose.

delta(epsilon) = E_Q (X/T - e^epsilon)_+, X = sum_t r(w_t), r the likelihood ratio of one release, of mean 1 under Q. It
is convex in X. So each r may be replaced by a variable on a lattice that has the same mean in every cell ("connect the
dots"), which only spreads X: of a cell of r in [a, a + h] with mass m_0 under N(0) and m_1 under N(1), the mean of r is
m_1 / m_0 exactly; (m_1 - a m_0) / h goes to a + h, the rest to a. The rounding costs h^2/4 of variance a release. Where
some r or X is beyond the lattice the loss counts as infinite. Spread so, (P, Q) is a pair too, and dominates in both
directions; under P one of the releases has its lattice masses times r, the others as under Q. X has the mean T and a
deviation of sqrt(T (e^(mu^2) - 1)): where that is far less than T, the lattice resolves what is about the mean alone.

Without the record first, a lattice that holds all of a long tail is too coarse: X may be 0 on it. But that direction's
delta = E_Q (1 - e^epsilon G)_+, G = X/T of one pass or the product over independent ones, falls in each r:

- so r may end at 4T (P loses mass that matters to no loss of Q's), and the lattice is finer;
- and a mean is at least the geometric one, which is the likelihood ratio of a shorter shift, up to a constant:
  X/T >= e^(mu mean_t w_t - mu^2/2) = e^(s u - s^2/2 - c), s = mu/sqrt(T), c = (1 - 1/T) mu^2/2, with u standard normal.
  So delta(epsilon) <= H(epsilon - c), H the curve of N(s) against N(0), and over passes s^2 and c add up. Below 0 it is
  H(x) = 1 - e^x + e^x H(-x), since that pair is its own mirror image.

k of t releases: label the releases at random, cut them into k groups whose sizes sum to t; a uniformly random set of k
is as private as one that holds a label of each group, or better, since conditioning on the cut is a post-processing
that both sides share. (t mod k) groups of ceil(t/k) and the rest of floor(t/k).
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Protocol

import numpy as np

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import Array
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.cells import SMALLEST_MASS, interval_masses
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.fourier import Lattice, log_mgf, tilted_power
from dpaudit.verify.pld.loss_grid import SampledPair, cell_masses, deposit, sampled_pair
from dpaudit.verify.pld.pair_curve import FINENESS, SHORT_HISTORY
from dpaudit.verify.samplers import BallsInBins, RandomAllocation
from dpaudit.verify.upper.gaussian_pld import LEAST_SHIFT, analytic_delta, shift_over_sigma

THEOREM = (
    "mean of T likelihood ratios of normal releases, the worst law of a pass by convexity; connect the dots of "
    "Doroshenko et al. (2022), Theorem 4.3, for every release and for the loss"
)
SIZE, LARGEST_SIZE = 2**18, 2**21  # lattice points of X
MOST_MEAN = 4.0  # to which one likelihood ratio may lift X/T, where that is no matter
COARSEST = 0.5  # deviations of a likelihood ratio between them, unless they are as many as there may be
TAIL = 1e-4  # of the claimed delta: probability that some release of the history leaves the lattice
MOST_CELLS = 2**20  # of the loss of a pass, between its least and its largest
MOST_GROWTH = 50.0  # log of what errors make of all mass in T releases, beyond which there is no bound
LEVELS = 2001  # of the loss of a release in a first look
LONGEST = 1e6  # shifts and constants, beyond which nothing is left
MOST_LOSS = 600.0  # log likelihood ratios of a release beyond which none is represented


@dataclass(frozen=True)
class Pass:
    """A pass of T releases of which the record enters one, and how often it is repeated.

    Args:
        releases: T.
        shift: Over sigma.
        count: Independent passes.
    """

    releases: int
    shift: float
    count: int


@dataclass(frozen=True)
class PairPass:
    """A pass of T releases of which the record enters one, each dominated by a pair, and how often it is repeated.

    Args:
        releases: T.
        pair: Of one release.
        count: Independent passes.
        most: Loss of a release above which all count as infinite.
    """

    releases: int
    pair: DominatingPair
    count: int
    most: float = MOST_LOSS


@dataclass(frozen=True)
class PassLaw:
    """The loss of a pass on its lattice: masses under both laws, their errors, and what left it.

    Args:
        loss: log(x/T), rising, finite.
        first: With the record.
        second: Without it.
        first_error, second_error: Bounds on the largest of their errors and on the l2 norm of all.
        infinite: Mass of an infinite loss: with the record first ("remove"), and without it first ("add").
    """

    loss: Array
    first: Array
    second: Array
    first_error: tuple[float, float]
    second_error: tuple[float, float]
    infinite: tuple[float, float]


def passes(claim: Claim) -> list[Pass] | None:
    """The passes of a claim; None if a phase is no such sampler with normal noise, or under replace-one."""
    if claim.adjacency == "replace-one":
        return None
    found: list[Pass] = []
    for phase in claim.phases:
        own = passes_of(phase)
        if own is None:
            return None
        found += own
    return found


def passes_of(phase: Phase) -> list[Pass] | None:
    """The passes of a phase under add-remove; None if it is no such sampler with normal noise."""
    known, sampler = shift_over_sigma(phase, "add-remove"), phase.sampler
    if known is None:
        return None
    mu = max(known, LEAST_SHIFT)
    if isinstance(sampler, BallsInBins):
        once = sampler.reshuffle == "once"
        shift = mu * math.sqrt(sampler.epochs) * (1.0 + 1e-15) if once else mu
        return [Pass(sampler.batches, shift, 1 if once else sampler.epochs)]
    if isinstance(sampler, RandomAllocation):
        return [Pass(releases, mu, count) for releases, count in sampler.groups]
    return None


def applies(claim: Claim) -> bool:
    """Balls in bins or random allocation with normal noise in every phase, add-remove."""
    return passes(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), directed rounding throughout.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    parts = passes(claim)
    if parts is None:
        raise ValueError(f"Expected claim {claim.id!r} to draw bins or releases with Gaussian noise in every phase.")
    return passes_curve(claim, parts, THEOREM)


def passes_curve(
    claim: Claim, parts: Sequence[Pass | PairPass], theorem: str, assumptions: tuple[str, ...] = ()
) -> Curve:
    """Upper bound on delta(epsilon) of such passes.

    Args:
        claim: Where tightness matters.
        parts: All its passes.
        theorem: What proves it.
        assumptions: What the reader must accept.
    """
    count = sum(part.count for part in parts)
    tail = max(TAIL * (claim.delta or 1e-10) / count, 1e-100)
    laws = [(pass_law(part, tail), part.count) for part in parts]
    if any(law.infinite[0] >= 1.0 for law, _ in laws):
        return Curve.upper("pld", theorem, np.ones_like, assumptions)
    # one pass has its loss on as fine a grid as several would need for their sum
    fineness = FINENESS if count > SHORT_HISTORY else FINENESS / 16
    step = fineness * math.sqrt(sum(_variance(law) * n for law, n in laws) / count)
    step = max(step, max(float(np.ptp(law.loss)) for law, _ in laws) / MOST_CELLS)
    directed = [(0, laws), (1, laws)]
    if any(law.infinite[1] > 10.0 * tail for law, _ in laws):  # X may be 0 on a lattice that holds a long tail
        directed.append((1, [(pass_law(part, tail, MOST_MEAN * part.releases), part.count) for part in parts]))
    composed = []
    for direction, found in directed:
        grids = [(_on_loss_grid(law, step, direction), n) for law, n in found]
        infinite = sum(n * lost for (_, lost), n in grids)
        composed.append(Composed([(grid, n) for (grid, _), n in grids], step, infinite, 0.0))
    return Curve.upper("pld", theorem, partial(_worst_delta, composed, parts), assumptions)


def _worst_delta(composed: Sequence[Composed], parts: Sequence[Pass | PairPass], epsilon: Array) -> Array:
    """The larger delta(epsilon) of the record first and of the best that is known without it first."""
    removed, *added = (total.delta(epsilon) for total in composed)
    shifts = [part for part in parts if isinstance(part, Pass)]
    if len(shifts) == len(parts):
        added.append(geometric_delta(shifts, epsilon))
    return np.maximum(removed, np.minimum.reduce(added))


def geometric_delta(parts: Sequence[Pass], epsilon: Array) -> Array:
    """Upper bound on delta(epsilon) of passes without the record first, by the geometric mean of the ratios.

    Args:
        parts: All passes.
        epsilon: At least 0.
    """
    squares = [(part.count * part.shift * part.shift, 1.0 / part.releases) for part in parts]
    rounding = 1.0 + UNIT * (16.0 + 4.0 * len(parts))
    shift = math.sqrt(sum(square * share for square, share in squares)) * rounding
    constant = sum(square * (1.0 - share) for square, share in squares) / 2.0 * rounding
    if not max(shift, constant) < LONGEST:
        return np.ones(len(epsilon))
    x = epsilon - constant - 2.0 * UNIT * (epsilon + constant)
    curve, below = analytic_delta(shift, np.abs(x)), np.minimum(x, 0.0)
    return np.asarray(np.where(x < 0.0, np.minimum(np.exp(below) * curve - np.expm1(below) + 8.0 * UNIT, 1.0), curve))


class _Release(Protocol):
    """The likelihood ratio r of one release.

    Args:
        finest: Least distance of lattice points, of which errors of masses are a small part.
    """

    finest: ClassVar[float]

    def reach(self, tail: float) -> tuple[float, float, float]:
        """Least and largest r, less 1, but for a tail of the law with the record, and the deviation of r; guides."""

    def cells(self, logs: Array) -> tuple[Array, Array]:
        """Masses between values of log r, without the record and with it, and bounds on their errors: (2, cells)."""

    def slip(self, logs: Array) -> Array:
        """How far, relatively, r at an edge may be from its value for other reasons than the edge's own rounding."""


@dataclass(frozen=True)
class _NormalRelease:
    """r(w) = exp(mu w - mu^2/2) for standard normal w."""

    finest: ClassVar[float] = 0.0
    mu: float

    def reach(self, tail: float) -> tuple[float, float, float]:
        mu = self.mu
        far = -float(Gaussian(1.0).structure.ppf(np.array([tail]))[0])
        largest = math.expm1(min(mu * (far + mu) - mu * mu / 2.0, MOST_LOSS))
        return math.expm1(-mu * far - mu * mu / 2.0), largest, math.sqrt(math.expm1(min(mu * mu, MOST_LOSS)))

    def cells(self, logs: Array) -> tuple[Array, Array]:
        edges = (logs + self.mu * self.mu / 2.0) / self.mu
        found = interval_masses(Gaussian(1.0).structure, edges, np.array([0.0, self.mu]))
        return found.upper, found.upper - found.lower

    def slip(self, logs: Array) -> Array:
        return np.asarray(8.0 * UNIT * (np.abs(logs) + self.mu * self.mu))


@dataclass(frozen=True)
class _PairRelease:
    """r of a dominating pair, whose loss is log r; an infinite one lies above all edges, and what is beyond `most`."""

    finest: ClassVar[float] = 1e-7
    pair: DominatingPair
    most: float

    def reach(self, tail: float) -> tuple[float, float, float]:
        whole = sampled_pair(self.pair, 1.0, tail, self.most)
        levels = whole.cutoff * np.linspace(-1.0, 1.0, LEVELS)
        ends = np.concatenate([levels[:1], 0.5 * (levels[1:] + levels[:-1]), levels[-1:]])
        square = float(cell_masses(whole, levels)[1] @ np.expm1(np.minimum(ends, 0.5 * MOST_LOSS)) ** 2)
        end = whole.cutoff * (1.0 + 1e-6) + 2.0 * self.pair.slack  # an atom there lies within
        return math.expm1(-end), math.expm1(end), math.sqrt(max(square, 1e-300))

    def cells(self, logs: Array) -> tuple[Array, Array]:
        first, second, first_error, second_error = cell_masses(SampledPair(self.pair, 1.0, math.inf), logs)
        masses, errors = np.array([second, first]), np.array([second_error, first_error])
        masses[1, -1] += self.pair.lost
        return masses + errors, 2.0 * errors

    def slip(self, logs: Array) -> Array:
        return np.asarray(8.0 * UNIT * np.abs(logs) + self.pair.slack * (1.0 + np.abs(logs)))


@dataclass(frozen=True)
class _Ratios:
    """A lattice for the likelihood ratio of a release, 1 + least + k unit, and the window of X that is told apart.

    Args:
        least: At k = 0, less 1; -1 where the lattice begins at a ratio of 0.
        unit: Between its points.
        top: The largest k.
        start: First sum of the T values of k that is told apart; it and `size` - 1 more are.
        size: A power of 2.
    """

    least: float
    unit: float
    top: int
    start: int
    size: int


def _ratios(releases: int, release: _Release, tail: float, most: float) -> _Ratios:
    """X is about its mean T: of deviations from it, Bernstein's inequality leaves out less than e^-80 here."""
    smallest, largest, deviation = release.reach(tail / (2.0 * releases))
    largest, deviation = min(largest, most), min(deviation, math.sqrt(most))
    spread = 15.0 * math.sqrt(releases) * deviation
    above = spread + min(1.05 * (largest + 1.0) + 0.2 * releases, 55.0 * largest)
    below = spread - 55.0 * smallest
    size, finest = SIZE, COARSEST * deviation
    while size < LARGEST_SIZE and above + below > finest * size:
        size *= 2
    # a coarser lattice would itself spread X further than the window about the mean
    whole = 2.0 * below > releases or above + below > finest * size
    if whole:
        size, below, smallest = SIZE, float(releases), -1.0
    unit = max((above + below) / size, release.finest)
    start = 0 if whole else math.floor((-releases * smallest - below) / unit)
    return _Ratios(smallest, unit, max(1, math.ceil((largest - smallest) / unit)), start, size)


def pass_law(part: Pass | PairPass, tail: float, most: float = math.inf) -> PassLaw:
    """The law of X = sum_t r(w_t) on a lattice, spread so that it is convexly larger.

    Args:
        part: T and the law of a likelihood ratio.
        tail: Probability with the record that some r may lie beyond the lattice.
        most: What larger r count as where the law without the record comes first; inf for both directions.
    """
    releases = part.releases
    release = _NormalRelease(part.shift) if isinstance(part, Pass) else _PairRelease(part.pair, part.most)
    lattice = _ratios(releases, release, tail, most)
    unit, whole = lattice.unit, lattice.least == -1.0
    steps = np.arange(lattice.top + 1) * unit
    excess = lattice.least + steps  # the ratio less 1
    points, logs = (steps, np.log(steps[1:])) if whole else (1.0 + excess, np.log1p(excess))
    upper, spread = release.cells(logs)  # nothing lies below a ratio of 0
    inside = slice(0 if whole else 1, -1)
    zero, one = upper[0][inside], upper[1][inside]
    error = spread[:, inside]
    values = points[:-1]  # r at the left ends of the cells that are bounded on the right
    # edges are rounded: r at an edge is its value up to a few units in the last place of what its logarithm is made of
    rounded = 1.0 if whole else (abs(lattice.least) + np.abs(excess[:-1]) + unit) / values
    slip = (8.0 * UNIT * rounded + release.slip(logs[: len(values)])) * (values + unit)
    up = np.clip((one - values * zero) / unit + error[0] * values / unit + slip * zero / unit, 0.0, None)
    down = np.maximum(zero - np.maximum((one - error[1] - values * zero) / unit - slip * zero / unit, 0.0), 0.0)
    masses = np.zeros(lattice.top + 1)
    masses[1:] += np.minimum(up, zero)
    masses[:-1] += np.minimum(down, zero)
    below = np.zeros(2) if whole else upper[:, 0]
    if math.isfinite(most):
        masses[-1] += upper[0, -1]
    beyond = below if math.isfinite(most) else upper[:, -1] + below
    masses *= 1.0 + 1e-15
    tilted = masses * points * (1.0 + 1e-15)
    sums = lattice.start + np.arange(lattice.size, dtype=np.float64)
    second, noise, wrapped = _sum_law([(masses, releases)], lattice)
    first, first_noise, first_wrapped = _sum_law([(masses, releases - 1), (tilted, 1)], lattice)
    lost = float(beyond[1] + (releases - 1) * beyond[0]) + first_wrapped, float(releases * beyond[0]) + wrapped
    if not whole:
        return PassLaw(np.log1p(lattice.least + sums * unit / releases), first, second, first_noise, noise, lost)
    lost = lost[0], lost[1] + float(second[0]) + noise[0]  # a ratio of 0
    return PassLaw(np.log(sums[1:] * unit / releases), first[1:], second[1:], first_noise, noise, lost)


def _sum_law(parts: Sequence[tuple[Array, int]], window: _Ratios) -> tuple[Array, tuple[float, float], float]:
    """Upper bounds on the masses of a sum of independent draws, their error, and the mass that wraps at most."""
    lattices = [(Lattice(masses, 0), count) for masses, count in parts if count]
    power = tilted_power(lattices, 0.0, window.start, window.size)
    if power.log_scale > MOST_GROWTH:
        return np.zeros(window.size), (0.0, 0.0), 1.0
    scale = math.exp(power.log_scale) * (1.0 + power.relative + 1e-15)
    wrapped = 0.0
    for sign, end in ((1.0, window.start + window.size), (-1.0, window.start)):
        if end:
            thetas = sign * np.geomspace(1.0, 3000.0, 40) / window.size
            exponents = sum((count * log_mgf(lattice, thetas) for lattice, count in lattices), -thetas * end)
            wrapped += math.exp(min(float(exponents.min()), 0.0)) * 1.01  # sums of 10^9 logarithms are rounded
    return (
        np.maximum(power.values, 0.0) * scale,
        (power.error_sup * scale, power.error_l2 * scale),
        wrapped,
    )


def _variance(law: PassLaw) -> float:
    """Of the loss with the record; a guide to the grid."""
    weight = law.first / max(float(law.first.sum()), SMALLEST_MASS)  # all of it may be infinite
    return max(float(weight @ (law.loss - weight @ law.loss) ** 2), 1e-300)


def _on_loss_grid(law: PassLaw, step: float, direction: int) -> tuple[Lattice, float]:
    """The loss of one pass rounded up to multiples of step: direction 0 with the record first, 1 without it first."""
    place = np.floor(law.loss / step).astype(np.int64)
    base = int(place[0])
    sizes = np.bincount(place - base)
    first, second = (
        np.asarray(np.bincount(place - base, weights=column), np.float64) * (1.0 + 1e-12)
        for column in (law.first, law.second)
    )
    low = (base + np.arange(len(sizes), dtype=np.float64))[sizes > 0]
    first, second, sizes = first[sizes > 0], second[sizes > 0], sizes[sizes > 0]
    first_error, second_error = (  # Cauchy-Schwarz in every cell
        np.minimum(sizes * largest, np.sqrt(sizes) * l2) for largest, l2 in (law.first_error, law.second_error)
    )
    if direction == 0:
        return deposit(first, second, first_error, second_error, low, low + 1.0, step, law.infinite[0])
    return deposit(second, first, second_error, first_error, -low - 1.0, -low, step, law.infinite[1])
