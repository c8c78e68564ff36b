"""A whole history of releases under one neighbouring pair: cells of every phase, then certified operating points."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import IIDCoordinates, Radial, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.loss.cells import Cells, Pair, mix
from dpaudit.verify.loss.composition import (
    MAX_LABEL,
    Points,
    grid_step,
    largest_loss,
    loss_variance,
    merge,
    on_grid,
    operating_points,
    single_points,
)
from dpaudit.verify.loss.coordinates import first_look, one_coordinate, shifted_coordinates
from dpaudit.verify.loss.mixture import mixture_cells
from dpaudit.verify.loss.radial import LossTails, join_tails, level_ladder, log_second_upper, loss_tails, radial_cells
from dpaudit.verify.lower.families import Shift
from dpaudit.verify.lower.shifts import centre_multiples, pair_of, rate

Array = NDArray[np.float64]

ALONE_TAIL = 1e-45  # a single release needs no transform, so its curve may as well reach any delta
HEADROOM = 25.0  # losses this far above the claimed epsilon are one cell of the fine grid for heavy tails


@dataclass(frozen=True)
class Release:
    """One phase under one shift.

    Args:
        phase: The phase.
        shift: Movement of the output by the record.
        multiples: Centres, in multiples of the shift.
        cells: Bounds on the masses under each centre; None for one iid coordinate, whose cells follow the grid.
        line: The law and the centres along the line of that one coordinate.
        tails: Both tails of the loss, for a random radius.
    """

    phase: Phase
    shift: Shift
    multiples: tuple[float, ...]
    cells: Cells | None = None
    line: tuple[IIDCoordinates, Array] | None = None
    tails: LossTails | None = None

    def pair(self, direction: str) -> Pair:
        """The two mixtures over the centres."""
        return pair_of(self.phase, self.multiples, direction)


def tail_probability(claim: Claim) -> float:
    """How far out the tails are resolved: a millionth of the claimed delta per step."""
    steps = sum(phase.steps for phase in claim.phases)
    return max(min(claim.delta or 1e-10, 1e-6) * 1e-6 / steps, 1e-60)


def release(claim: Claim, phase: Phase, shift: Shift) -> Release:
    """The phase under a shift.

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
        return Release(phase, shift, multiples, cells=cells)
    if shift.coordinates == 1 or structure.gaussian_sigma is not None:
        # Gaussian noise looks the same along every line: the l2 norm of the shift is all that counts
        return Release(phase, shift, multiples, line=(structure, np.array(multiples) * shift.length))
    return Release(phase, shift, multiples, cells=shifted_coordinates(structure, groups, tail))


def _radial_release(
    claim: Claim, phase: Phase, shift: Shift, multiples: tuple[float, ...], noise: Radial, length: float
) -> Release:
    """Tails of the loss, resolved near the claimed epsilon and near the level that delta leaves."""
    dimension, tail = phase.mechanism.dimension or 2, 1e-3 * max(min(claim.delta or 1e-10, 1e-6), 1e-12)
    tails = loss_tails(noise, dimension, length, level_ladder(noise, dimension, length, tail), 1e-4 * tail)
    goal = claim.delta / rate(phase)
    for _ in range(2):  # where P(L > l) falls to delta decides epsilon at delta
        crossing = int(np.clip(np.searchsorted(-tails.first, -goal), 1, len(tails.levels) - 1))
        between = np.linspace(tails.levels[crossing - 1], tails.levels[crossing], 30)
        near = loss_tails(noise, dimension, length, between, 1e-4 * tail)
        tails = join_tails(tails, near)
    crossing = int(np.clip(np.searchsorted(-tails.first, -goal), 1, len(tails.levels) - 1))
    extra = tails.levels[crossing] + np.arange(-30.0, 10.0, 0.25)
    extra = np.append(extra, claim.epsilon)
    near = loss_tails(noise, dimension, length, np.unique(extra[extra > tails.levels[0]]), 1e-4 * tail)
    tails = join_tails(tails, near)
    return Release(phase, shift, multiples, cells=radial_cells(tails), tails=tails)


def history_points(releases: Sequence[Release], direction: str, claim: Claim) -> Points:
    """Certified operating points of the whole history in one direction.

    Args:
        releases: Every phase under its shift.
        direction: "remove", "add" or "swap".
        claim: Where tightness matters.
    """
    if len(releases) == 1 and releases[0].phase.steps == 1 and releases[0].tails is not None:
        return _single_radial(releases[0].tails, releases[0].pair(direction))
    heavy = any(item.tails is not None for item in releases)
    caps = (claim.epsilon + HEADROOM, np.inf) if heavy else (np.inf,)
    return merge([_composed(releases, direction, claim, cap) for cap in caps])


def _composed(releases: Sequence[Release], direction: str, claim: Claim, cap: float) -> Points:
    """Operating points on one grid, fit for losses up to the cap."""
    tail, pairs = tail_probability(claim), [item.pair(direction) for item in releases]
    alone = len(releases) == 1 and releases[0].phase.steps == 1
    reach = min(tail, ALONE_TAIL) if alone else tail
    looks = [
        mix(item.cells if item.cells is not None else first_look(*_line(item), reach), pair)
        for item, pair in zip(releases, pairs, strict=True)
    ]
    moments = [(loss_variance(*look, cap), item.phase.steps) for look, item in zip(looks, releases, strict=True)]
    step, deviation = grid_step(moments)
    # labels are bounded: rather a coarser grid than large losses cut off
    step = max(step, min(cap, max(largest_loss(*look, tail) for look in looks)) / MAX_LABEL)
    steps = []
    for item, pair, look in zip(releases, pairs, looks, strict=True):
        if item.cells is None:
            law, centres = _line(item)
            look = mix(one_coordinate(law, centres, pair, step, reach), pair)
        if alone:
            return single_points(*look)
        steps.append(on_grid(*look, step, item.phase.steps, tail, cap))
    return operating_points(steps, step, deviation)


def _line(item: Release) -> tuple[IIDCoordinates, Array]:
    assert item.line is not None
    return item.line


def _single_radial(tails: LossTails, pair: Pair) -> Points:
    """One release: the events {L > l} (remove) or {L <= -l} (add) themselves, the rarer side in the log domain."""
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
