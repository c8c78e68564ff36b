"""Certified operating points of a whole history of releases, all under one neighbouring pair."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from dpaudit.mechanisms import Gaussian
from dpaudit.mechanisms.base import (
    Array,
    HalfNormalRadius,
    IIDCoordinates,
    Mechanism,
    NormalCoordinates,
    PowerCoordinates,
    Radial,
    ScaleMixture,
)
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import FARTHEST_EPSILON
from dpaudit.verify.lower.families import Shift
from dpaudit.verify.lower.shifts import centre_multiples, pair_of
from dpaudit.verify.lower.strongest import of_first_releases
from dpaudit.verify.pld.cells import MassBounds, MixturePair, interval_masses, mix, scan_points
from dpaudit.verify.pld.coordinate_cells import one_coordinate, shifted_coordinates
from dpaudit.verify.pld.gamma_scale import laplace_given_gamma
from dpaudit.verify.pld.normal_points import normal_points
from dpaudit.verify.pld.operating_points import (
    MAX_LABEL,
    Events,
    Points,
    Several,
    TiltedPoints,
    grid_step,
    largest_loss,
    loss_variance,
    merge,
    on_grid,
    operating_points,
    rare_loss,
    single_points,
)
from dpaudit.verify.pld.pair_curve import SHORT_HISTORY
from dpaudit.verify.pld.radial_cells import (
    LossTails,
    join_tails,
    level_ladder,
    log_second_upper,
    loss_tails,
    radial_cells,
)
from dpaudit.verify.pld.radial_tails import FINE
from dpaudit.verify.pld.scale_mixture_cells import mixture_cells
from dpaudit.verify.results import down

SINGLE_TAIL = 1e-45  # a single release needs no transform, so its curve may as well reach any delta
LARGEST_MERGED = 6.0  # distance of the centres, in deviations, up to which cells hold every probability that matters
LONGEST_MERGED = 1e4  # beside other releases: an epsilon of 10^7, and counts whose roundings add up to little
LOSS_HEADROOM = 25.0  # losses this far above the claimed epsilon are one cell of the fine grid for heavy tails
HEAVY_LABEL = 2**14  # of the grid for a heavy tail: of a finer one, the windows' rounding costs more than it gains
LEAST_MASS = 1e-290  # of a cell whose ratio is taken alone: smaller ones are near the end of the floats
FAR = 8.0  # deviations of the total loss, beyond which a release's is no part of its bulk
RARE = 2.0  # releases of a loss that is rare, over delta
WORTH = 0.7  # of the largest loss: where those that are not rare reach further, one grid serves all
WIDE = 4.0  # variance of the loss over that without those above which the tail is heavy
EVENT = "privacy loss of the whole history (each step's to the nearest grid point)"
SKIPPED = "lower bound: releases whose sampling or dimension has no theorem here are left out, which only lowers it"
LIGHTER = "far out, the density of such noise falls faster than any normal one"
POLE = "a ball of radius r around its centre has a probability like r, and like r^n elsewhere"


@dataclass(frozen=True)
class ShiftedPhase:
    """A phase of a claim whose output one record moves by one shift.

    Args:
        phase: The phase.
        shift: Movement of the output by the record.
        multiples: Centres, in multiples of the shift.
        cells: Bounds on the masses under each centre; None for one iid coordinate, whose cells follow the grid.
        line: The law and the centres along the line of that one coordinate.
        tails: Both tails of the loss, for a random radius.
        laws: Weights of the centres, where the record is not sampled by a coin of its own.
    """

    phase: Phase
    shift: Shift
    multiples: tuple[float, ...]
    cells: MassBounds | None = None
    line: tuple[IIDCoordinates, Array] | None = None
    tails: LossTails | None = None
    laws: MixturePair | None = None

    def masses(self, direction: str, reach: float) -> tuple[Array, Array]:
        """Cell masses, from below under the first law and from above under the second; a first look at one coordinate.

        Args:
            direction: "remove", "add" or "swap".
            reach: Tail probability out to which the first look resolves its law.
        """
        if self.tails is not None:
            return mix(radial_cells(self.tails, rising=direction != "add"), self.pair(direction))
        if self.line is not None:  # coarse cells, to choose a grid by
            law, centres = self.line
            return mix(interval_masses(law, scan_points(law, centres, reach), centres), self.pair(direction))
        assert self.cells is not None
        return mix(self.cells, self.pair(direction))

    def at(self, phase: Phase, adjacency: Adjacency) -> "ShiftedPhase | None":
        """Another phase of the same noise moved by the same shift, None where its cells are others than these."""
        alike = phase.mechanism == self.phase.mechanism and centre_multiples(phase, adjacency) == self.multiples
        return replace(self, phase=phase) if alike and self.cells is not None else None

    def pair(self, direction: str) -> MixturePair:
        """Output laws with and without the record, as mixtures over the centres of the noise."""
        if self.laws is not None:
            return self.laws
        return pair_of(self.phase, self.multiples, direction)


def has_cells(mechanism: Mechanism) -> bool:
    """Whether outputs have certified cells: known directions of radial noise, and a hidden scale of a known law."""
    structure = mechanism.structure
    if isinstance(structure, ScaleMixture):
        return laplace_given_gamma(structure) is not None
    return not isinstance(structure, Radial) or (mechanism.dimension or 1) >= 2


def tail_probability(claim: Claim) -> float:
    """Probability below which tails of a law are not resolved: a millionth of the claimed delta per step."""
    steps = sum(phase.steps for phase in claim.phases)
    return max(min(claim.least_delta or 1e-10, 1e-6) * 1e-6 / steps, 1e-300)


def shifted_phase(claim: Claim, phase: Phase, shift: Shift) -> ShiftedPhase:
    """Certified masses of a phase's output without the record and moved by a shift of it.

    Args:
        claim: Adjacency, and the (epsilon, delta) at which tightness matters.
        phase: The mechanism and its sampling.
        shift: Feasible for the mechanism.

    Raises:
        ValueError: Unequal coordinates under noise with a hidden scale.
    """
    structure, tail = phase.mechanism.structure, tail_probability(claim)
    multiples = centre_multiples(phase, claim.adjacency)
    if isinstance(structure, Radial):
        multiples = multiples if len(multiples) == 2 else (0.0, 1.0)
        return _radial_release(claim, phase, shift, multiples, structure, float(np.ptp(multiples)) * shift.length)
    groups = [(np.array(multiples) * value, count) for value, count in shift.groups]
    if isinstance(structure, ScaleMixture):
        if len(groups) > 1:
            raise ValueError(f"Expected groups={len(groups)} of the shift to be 1 for noise with a hidden scale.")
        cells = mixture_cells(structure, *groups[0], phase.mechanism.dimension or 1, tail)
        return ShiftedPhase(phase, shift, multiples, cells=cells)
    if shift.coordinates == 1 or isinstance(structure, NormalCoordinates):
        # Gaussian noise looks the same along every line: the l2 norm of the shift is all that counts
        return ShiftedPhase(phase, shift, multiples, line=(structure, np.array(multiples) * shift.length))
    return ShiftedPhase(phase, shift, multiples, cells=shifted_coordinates(structure, groups, tail))


def _radial_release(
    claim: Claim, phase: Phase, shift: Shift, multiples: tuple[float, ...], noise: Radial, length: float
) -> ShiftedPhase:
    """Radial noise: tails of the loss, resolved near the claimed epsilon and near the level that delta leaves."""
    dimension, tail = phase.mechanism.dimension or 2, 1e-3 * max(min(claim.least_delta or 1e-10, 1e-6), 1e-12)
    tails = loss_tails(noise, dimension, length, level_ladder(noise, dimension, length, tail))
    if sum(part.steps for part in claim.phases) > SHORT_HISTORY:  # no single release decides
        return ShiftedPhase(phase, shift, multiples, tails=tails)
    goal = claim.delta / phase.sampling_prob
    for _ in range(2):  # where P(L > l) falls to delta decides epsilon at delta
        crossing = int(np.clip(np.searchsorted(-tails.first, -goal), 1, len(tails.levels) - 1))
        between = np.linspace(tails.levels[crossing - 1], tails.levels[crossing], 30)
        near = loss_tails(noise, dimension, length, between, FINE)
        tails = join_tails(tails, near)
    crossing = int(np.clip(np.searchsorted(-tails.first, -goal), 1, len(tails.levels) - 1))
    extra = tails.levels[crossing] + np.arange(-30.0, 10.0, 0.25)
    extra = np.append(extra, min(claim.epsilon, FARTHEST_EPSILON))
    near = loss_tails(noise, dimension, length, np.unique(extra[extra > tails.levels[0]]), FINE)
    tails = join_tails(tails, near)
    return ShiftedPhase(phase, shift, multiples, tails=tails)


def history_points(releases: Sequence[ShiftedPhase], direction: str, claim: Claim) -> Events:
    """Certified (P(S), Q(S)) of events S of the whole history, P and Q in one direction.

    Args:
        releases: Every phase under its shift.
        direction: "remove", "add" or "swap".
        claim: Where tightness matters.
    """
    releases = gathered(releases)
    longest = max(item.phase.steps for item in releases)

    def points(most: float) -> Events:
        return _points_of_all([_at_most(item, most) for item in releases], direction, claim)

    return of_first_releases(points, longest, claim)


def _at_most(item: ShiftedPhase, most: float) -> ShiftedPhase:
    """The first releases of a phase; all of one with a sampler."""
    phase = item.phase
    few = phase.sampler is None and phase.steps > most
    return replace(item, phase=replace(phase, steps=int(most))) if few else item


def _points_of_all(releases: Sequence[ShiftedPhase], direction: str, claim: Claim) -> Events:
    """The same of these releases, whatever is seen in them."""
    only = releases[0]
    if len(releases) == 1 and only.phase.steps == 1:
        if only.tails is not None:
            return _single_radial(only.tails, only.pair(direction))
        if only.laws is None and only.line is not None and isinstance(only.line[0], NormalCoordinates):
            return normal_points(only.line[1] / only.line[0].sigma * (1.0 - 4.0 * UNIT), only.pair(direction))
    cap = claim.epsilon + LOSS_HEADROOM
    if not any(_heavy(item, direction, tail_probability(claim), cap) for item in releases):
        rare = _rare(releases, direction, claim)
        all_losses = _composed(releases, direction, claim)
        if rare is None:
            return all_losses
        return Several([_composed(releases, direction, claim, rare, heavy=True), all_losses])
    return Several([_composed(releases, direction, claim, most, heavy=True) for most in (cap, np.inf)])


def pure_at_least(releases: Sequence[ShiftedPhase], direction: str, claim: Claim) -> float:
    """Lower bound on epsilon at delta = 0: in some histories every release has its largest loss.

    They have probabilities p^steps > 0 and q^steps, too small for floats; the logarithm of their ratio is a sum.

    Args:
        releases: Every phase under its shift.
        direction: "remove", "add" or "swap".
        claim: Where tightness matters.
    """
    tail, total = tail_probability(claim), 0.0
    for item in releases:
        first, second = item.masses(direction, tail)
        keep = (first > LEAST_MASS) & (second > LEAST_MASS)
        logs = np.log(first[keep]), np.log(second[keep])
        losses = logs[0] - logs[1] - 4.0 * UNIT * (np.abs(logs[0]) + np.abs(logs[1]) + 1.0)
        total += item.phase.steps * float(losses.max(initial=0.0))
    return total * (1.0 - 1e-13)


def never_pure(claim: Claim) -> bool:
    """Whether the claim's noise meets no (epsilon, 0): of density exp(-|x|^beta), beta > 1, or product noise.

    Let the others contribute nothing, and the record v > 0 to one coordinate of one release, which it enters with
    probability g > 0, of any sampler. At x > 0 that coordinate then has a density of at least g f(x - v); without the
    record, or with -v in its place, of at most f(x). Their ratio is at least g exp(x^beta - |x - v|^beta), in units of
    the scale, which has no bound. With correlated noise some row gets a part of v. The density of product noise has a
    pole at its centre or, in one dimension, is normal.
    """
    laws = [phase.mechanism.structure for phase in claim.phases]
    powers = [law.beta for law in laws if isinstance(law, PowerCoordinates)]
    return any(beta > 1 for beta in powers) or any(isinstance(law, HalfNormalRadius) for law in laws)


def never_gaussian(claim: Claim) -> str:
    """Why the claim's noise meets no mu and no rho, "" if nothing says so; the histories are those of `never_pure`.

    Of density exp(-|x|^beta), beta > 2, in some phase: with S the outputs beyond x of that coordinate and in units of
    the scale, log P(S) is -(x - v)^beta and log Q(S) at most -x^beta, but for terms in log x. A mu asks that the normal
    quantiles of the two are no further apart than itself, and sqrt(2 x^beta) - sqrt(2 (x - v)^beta) grows as
    x^(beta/2 - 1). A rho asks that a log P(S) - (a-1) log Q(S) <= a (a-1) rho at every order a, and at a - 1 =
    2 x/(beta v) the left side grows as x^beta, the right one as x^2.

    Of product noise in n >= 2 dimensions: a ball of radius r around the record has P at least g c r and Q at most
    C r^n, for Q's centres are elsewhere. As r falls, the quantiles come apart as (sqrt(n) - 1) sqrt(2 log 1/r), and the
    left side grows as (a n - a - n) log 1/r at every order a > n/(n - 1).
    """
    laws = [(phase.mechanism.structure, phase.mechanism.dimension) for phase in claim.phases]
    if any(isinstance(law, PowerCoordinates) and law.beta > 2 for law, _ in laws):
        return LIGHTER
    return POLE if any(isinstance(law, HalfNormalRadius) and dimension != 1 for law, dimension in laws) else ""


def never_moments(claim: Claim, order: float) -> bool:
    """Whether the Renyi divergence of one order is infinite: of product noise in n dimensions from n/(n - 1) on.

    By `never_gaussian`, and at that order the integral of r^(-(n-1)a) over the ball, of element r^(n-1) dr, is one of
    1/r.
    """
    dimensions = [
        2 if phase.mechanism.dimension is None else phase.mechanism.dimension
        for phase in claim.phases
        if isinstance(phase.mechanism.structure, HalfNormalRadius)
    ]
    return any(Fraction(order) * (n - 1) >= n for n in dimensions)


def pure_reason(epsilon: float) -> str:
    """What `pure_at_least` proves, in a sentence.

    >>> pure_reason(10.0)
    'Every release can have its largest loss at once, if rarely: epsilon is at least 10 at delta=0.'
    """
    if math.isinf(epsilon):
        return "With delta=0 no epsilon is enough: the loss of such noise has no bound."
    least = f"epsilon is at least {down(epsilon, 4)} at delta=0."
    return f"Every release can have its largest loss at once, if rarely: {least}"


def _heavy(release: ShiftedPhase, direction: str, tail: float, cap: float) -> bool:
    """Whether losses beyond the cap decide the grid: of radial noise, and of densities that fall like a wall."""
    if release.line is None or isinstance(release.line[0], NormalCoordinates):
        return release.tails is not None
    look = release.masses(direction, tail)
    return loss_variance(*look) > WIDE * loss_variance(*look, cap)


def _rare(releases: Sequence[ShiftedPhase], direction: str, claim: Claim) -> float | None:
    """The loss that a history exceeds as rarely as delta allows; None where a grid for all losses is fine enough.

    Larger ones may count as that: a release that has one is in the best event by itself.
    """
    counts, tail = [item.phase.steps for item in releases], tail_probability(claim)
    if sum(counts) == 1:
        return None
    looks = [item.masses(direction, tail) for item in releases]
    variance = sum(count * loss_variance(*look) for look, count in zip(looks, counts, strict=True))
    largest = rare_loss(looks, counts, tail * sum(counts))
    if largest <= FAR * math.sqrt(variance):
        return None
    rare = rare_loss(looks, counts, RARE * (claim.least_delta or 1e-10))
    return rare if rare < WORTH * largest else None


def gathered(releases: Sequence[ShiftedPhase]) -> Sequence[ShiftedPhase]:
    """Unsampled normal releases as one; as several alike of moderate size where they compose with others.

    Releases N(mu_t, 1) against N(0, 1) have the sum of mu_t x_t over |mu| as a sufficient statistic, N(|mu|, 1) against
    N(0, 1), which any releases of the same |mu| have as well (Dong, Roth and Su 2022, Corollary 3.3).
    """
    rest, squares, owner = [], 0.0, None
    for item in releases:
        if item.line is None or item.phase.sampling_prob < 1 or not isinstance(item.line[0], NormalCoordinates):
            rest.append(item)
            continue
        owner = owner or item
        squares += item.phase.steps * (float(np.ptp(item.line[1])) / item.line[0].sigma) ** 2
    if owner is None or (not rest and sum(item.phase.steps for item in releases) == 1):
        return releases
    mu = math.sqrt(squares) * (1.0 - 8.0 * UNIT * len(releases))  # a shorter shift loses less (boundary lemma)
    mu = min(mu, LONGEST_MERGED) if rest else mu
    count = math.ceil((mu / LARGEST_MERGED) ** 2) if rest else 1
    line = (Gaussian(1.0).structure, np.array([0.0, mu / math.sqrt(count)]))
    return [*rest, ShiftedPhase(replace(owner.phase, steps=count), owner.shift, (0.0, 1.0), line=line)]


def _composed(
    releases: Sequence[ShiftedPhase], direction: str, claim: Claim, cap: float = np.inf, *, heavy: bool = False
) -> Points | TiltedPoints:
    """Operating points of composed releases, losses rounded to one grid that is fit for losses up to the cap."""
    tail = tail_probability(claim)
    alone = len(releases) == 1 and releases[0].phase.steps == 1
    reach = min(tail, SINGLE_TAIL) if alone else tail
    looks = [item.masses(direction, reach) for item in releases]
    moments = [(loss_variance(*look, cap), item.phase.steps) for look, item in zip(looks, releases, strict=True)]
    step, deviation = grid_step(moments)
    # labels are bounded: rather a coarser grid than large losses cut off
    largest = min(cap, max(largest_loss(*look, tail) for look in looks))
    step = max(step, largest / (HEAVY_LABEL if heavy else MAX_LABEL))
    steps = []
    for item, look in zip(releases, looks, strict=True):
        if item.line is not None:
            law, centres = item.line
            pair = item.pair(direction)
            look = mix(one_coordinate(law, centres, pair, step, reach, cap), pair)
        if alone:
            return single_points(*look)
        steps.append(on_grid(*look, step, item.phase.steps, tail, cap, ordered=item.tails is not None))
    return operating_points(steps, step, deviation, largest if heavy else 0.0)


def _single_radial(tails: LossTails, pair: MixturePair) -> Points:
    """Operating points of one radial release: {L > l} (remove) or {L <= -l} (add), the rarer side in the log domain."""
    # under the centre towards which the event points its mass is `first`, under the other `second`
    toward, away = (1, 0) if pair.first[1] >= pair.second[1] else (0, 1)
    first_lower = pair.first[toward] * np.maximum(tails.first - tails.first_error, 0.0)
    first_lower = first_lower + pair.first[away] * np.maximum(tails.second - tails.second_error, 0.0)
    log_high, log_low = np.log(tails.first + tails.first_error), log_second_upper(tails)
    with np.errstate(divide="ignore"):
        weights = [np.log(pair.second[i]) for i in (toward, away)]
        ahead = [np.log(pair.first[i]) for i in (toward, away)]
    log_second = np.logaddexp(weights[0] + log_high, weights[1] + log_low)
    log_second += 1e-12 * (1.0 + np.abs(log_second))
    loss = np.logaddexp(ahead[0] + tails.levels, ahead[1]) - np.logaddexp(weights[0] + tails.levels, weights[1])
    keep = first_lower > 0
    return merge([Points(first_lower[keep] * (1.0 - 1e-15), log_second[keep], loss[keep])])
