"""Upper bound on delta(epsilon) of a history whose releases have dominating pairs."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.composition import Composed
from dpaudit.verify.pld.dominating_pairs import DominatingPair
from dpaudit.verify.pld.loss_grid import SampledPair, cut_pair, grid_masses, lattice, loss_moments, sampled_pair
from dpaudit.verify.pld.rare_losses import BEYOND, TWICE, WORTH, WithRareLosses, with_rare_losses, without_rare
from dpaudit.verify.results import Direction

TAIL, TAIL_SHARE = 1e-27, 1e-7  # P-mass over the whole history that may go to an infinite loss; that over delta
LEAST_TAIL = 1e-300
FINENESS = 0.04  # grid step in standard deviations of one release's loss: the rounding then adds h^2/6 to its
# variance at most, 0.03% of it, hence about 0.015% to epsilon
SHORT_HISTORY = 64  # histories this short afford a grid four times as fine
MAX_CELLS, MAX_TOTAL = 1 << 18, 1 << 20
# of a heavy pair, a single loss this far above the claimed epsilon counts as infinite: the price is a factor
# 1 + e^-30 on the mass it adds to delta there
LOSS_HEADROOM = 30.0
LEAST_STEP = 1e-200  # of a grid, rounded up to: losses of rates near 1e-300 underflow


@dataclass(frozen=True)
class PairPhase:
    """A phase of `steps` releases of one dominating pair under Poisson sampling at rate `sampling_prob`."""

    pair: DominatingPair
    sampling_prob: float
    steps: int


def directions(claim: Claim) -> tuple[Direction, ...]:
    """The ordered pairs of laws that a curve must cover under the claim's adjacency.

    Without sampling a pair is its own mirror image, so one direction stands for both. Under replace-one with
    Poisson sampling the releases P = (1-q) R + q P_v, Q = (1-q) R + q P_w satisfy, in both orders and for every
    epsilon >= 0, delta(epsilon) <= q delta_2C(log(1 + (e^epsilon - 1)/q)) =: H (Balle, Barthe and Gaboardi 2018,
    Theorem 2 with the boundary lemma of `upper.shift_norms`). H, continued to epsilon < 0 by the mirror rule
    H(a) = 1 - a + a H(1/a) for a = e^epsilon < 1, is convex and decreasing with H(0) = 1, hence the profile of a pair
    (Zhu, Dong and Wang 2022, Lemma 8), and that pair composes (their Theorem 10). For epsilon > 0 its losses are those
    of "remove", below 0 those of "add", and what is left sits at 0.

    Convexity at a = 1: the slopes there are H'(1-) = -1 + H(1) - H'(1+) and H'(1+) = -Q(L > 0), and with
    H(1) = q TV and TV <= 1 - 2 Q(L > 0) the first is at most the second.
    """
    if all(phase.sampling_prob == 1 for phase in claim.phases):
        return ("remove",)
    return ("remove", "add") if claim.adjacency == "add-remove" else ("swap",)


def grid_step(pairs: Sequence[tuple[SampledPair, int]], coarse: float = 1.0) -> float:
    """Grid step of the privacy loss for a whole history, fine against the average release's loss.

    Within MAX_CELLS a release, and MAX_TOTAL from 0 to well above the total's mean.

    Args:
        pairs: The releases, each with its number.
        coarse: How many times less than MAX_TOTAL.
    """
    fine, least = grid_steps(pairs)
    return max(fine, coarse * least, LEAST_STEP)


def grid_steps(pairs: Sequence[tuple[SampledPair, int]]) -> tuple[float, float]:
    """The grid step that the average release's loss asks for, and the least one within MAX_CELLS and MAX_TOTAL."""
    steps = sum(count for _, count in pairs)
    moments = [(loss_moments(sampled), count) for sampled, count in pairs]
    variance = sum(count * least for (least, _, _), count in moments) / steps
    high = sum(count * mean for (_, mean, _), count in moments)
    high += 15.0 * math.sqrt(sum(count * square for (_, _, square), count in moments))
    fineness = FINENESS if steps > SHORT_HISTORY else FINENESS / 4
    return fineness * math.sqrt(variance), max(_widest(pairs) / MAX_CELLS, high / MAX_TOTAL)


def _widest(pairs: Sequence[tuple[SampledPair, int]]) -> float:
    return max(float(np.ptp(sampled.outer(np.array([-sampled.cutoff, sampled.cutoff])))) for sampled, _ in pairs)


def infinite_mass(delta: float) -> float:
    """P-mass over the whole history that may go to an infinite loss, where a claim is on this delta."""
    return max(min(TAIL, TAIL_SHARE * delta), LEAST_TAIL) if delta > 0 else TAIL


def release_tail(claim: Claim) -> float:
    """P-mass of one release that may go to an infinite loss."""
    return infinite_mass(claim.least_delta) / sum(phase.steps for phase in claim.phases)


def compose_pairs(
    phases: Sequence[PairPhase],
    wanted: Sequence[Direction],
    delta: float,
    cap: float = math.inf,
    coarse: float = 1.0,
) -> Sequence[Composed | WithRareLosses]:
    """The total privacy loss of a history of dominating pairs, in each wanted direction.

    Args:
        phases: The releases.
        wanted: From `directions`.
        delta: Where the bound is to be tight; it holds everywhere.
        cap: Single losses above this (before sampling) count as infinite.
        coarse: Of `grid_step`.
    """
    steps = sum(phase.steps for phase in phases)
    tail = infinite_mass(delta) / steps
    pairs = [(sampled_pair(phase.pair, phase.sampling_prob, tail, cap), phase.steps) for phase in phases]
    if math.isinf(cap) and delta > 0 and steps > 1:
        cut = [(cut_pair(sampled, math.sqrt(2.0 * TWICE * delta) / steps), count) for sampled, count in pairs]
        # it is the width of the losses that forbids a fine grid, and most of it is rare
        if grid_steps(pairs)[0] < _widest(pairs) / MAX_CELLS and _widest(cut) < WORTH * _widest(pairs):
            return _compose_cut(pairs, cut, wanted, delta)
    return compose_sampled(pairs, wanted, coarse)


def _compose_cut(
    pairs: Sequence[tuple[SampledPair, int]],
    cut: Sequence[tuple[SampledPair, int]],
    wanted: Sequence[Direction],
    delta: float,
) -> Sequence[WithRareLosses | Composed]:
    """The total privacy loss of releases whose losses beyond a cut are rare and large."""
    step, steps = grid_step(cut), sum(count for _, count in cut)
    slack = _slack(pairs)
    together = cache(lambda: compose_sampled(pairs, wanted))
    masses = [grid_masses(sampled, step) for sampled, _ in cut]
    last = [cut_pair(whole, BEYOND * delta / steps) for whole, _ in pairs]
    found = []
    for index, direction in enumerate(wanted):
        parts, infinite = [], 0.0
        for (sampled, count), whole, cells in zip(cut, last, masses, strict=True):
            kept, rare = without_rare(sampled, cells, whole, step, direction)
            grid, lost = lattice(sampled, kept, step, direction)
            parts.append((grid, count, rare))
            infinite += count * lost
        found.append(with_rare_losses(parts, step, infinite, slack, delta, partial(_nth, together, index)))
    return found


def _nth(found: Callable[[], Sequence[Composed]], index: int) -> Composed:
    return found()[index]


def _slack(pairs: Sequence[tuple[SampledPair, int]]) -> float:
    return sum(count * sampled.pair.slack * (1.0 + sampled.cutoff) for sampled, count in pairs)


def compose_sampled(
    pairs: Sequence[tuple[SampledPair, int]], wanted: Sequence[Direction], coarse: float = 1.0
) -> list[Composed]:
    """The total privacy loss of releases of sampled pairs, each with its number, in each wanted direction."""
    step = grid_step(pairs, coarse)
    parts = [(sampled, grid_masses(sampled, step), count) for sampled, count in pairs]
    composed = []
    for direction in wanted:
        grids = [(lattice(sampled, masses, step, direction), count) for sampled, masses, count in parts]
        infinite = sum(count * infinite for (_, infinite), count in grids)
        composed.append(Composed([(loss, count) for (loss, _), count in grids], step, infinite, _slack(pairs)))
    return composed


def worst_delta(composed: Sequence[Composed | WithRareLosses], epsilon: Array) -> Array:
    """Largest delta(epsilon) over the directions of the privacy loss."""
    return np.asarray(np.max([total_loss.delta(epsilon) for total_loss in composed], axis=0))


def pair_curve(
    claim: Claim,
    phases: Sequence[PairPhase | None],
    theorem: str,
    wanted: Sequence[Direction] | None = None,
) -> Curve:
    """Upper bound on delta(epsilon) of the claim's history from one dominating pair per phase; 1 where one is missing.

    Args:
        claim: For its adjacency; the phases' pairs have been built for it.
        phases: One per phase of the claim, or fewer where several have been merged.
        theorem: What makes the pairs dominate.
        wanted: Which orders of the laws, where those of the claim's adjacency and sampling are not meant.
    """
    known = [phase for phase in phases if phase is not None]
    if len(known) < len(phases):
        return Curve.upper("pld", theorem, np.ones_like)
    heavy = any(phase.pair.heavy for phase in known)
    rate = min(phase.sampling_prob for phase in known)
    cap = claim.epsilon + LOSS_HEADROOM - math.log(rate) if heavy else math.inf
    composed = compose_pairs(known, wanted or directions(claim), claim.least_delta, cap)
    return Curve.upper("pld", theorem, partial(worst_delta, composed))
