"""Cells of one release of a pass: what a game of passes needs of the noise, whatever its structure.

Disjoint cells with certified masses around 0, 1 and 2 contributions. Independent coordinates are cut along one line, or
told by the sum of a score over all that are moved (`integer_sums`); those of a hidden scale by the sum of a statistic
over those that are moved and by the size of others; radial noise by its loss between two centres: none and two
contributions where a game has no release around one, else none and one, with the others silent.
"""

import math
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, Mechanism, NormalCoordinates, Radial, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.lower import integer_sums
from dpaudit.verify.lower.families import Shift, equal
from dpaudit.verify.lower.histories import tail_probability
from dpaudit.verify.lower.shifts import candidate_counts, longest_count, mixture_counts
from dpaudit.verify.pld.cells import MassBounds, interval_masses
from dpaudit.verify.pld.radial_cells import level_ladder, loss_tails
from dpaudit.verify.pld.radial_tails import FINE
from dpaudit.verify.pld.scale_mixture_cells import mixture_cells
from dpaudit.verify.samplers.base import PassGame, Slots

CELLS = 2**14  # of one release, whose laws are exact on them
FARTHEST = 1e-17  # tail probability out to which releases are resolved
# ordinary distances to FARTHEST beyond which cells grow with the distance from their centre, from NEAREST shifts out to
# OUTERMOST ordinary distances, where likelihoods of heavy tails are alike
HEAVY, NEAREST, OUTERMOST = 1e3, 1e-3, 1e12
LONGEST = 1e6  # shift over that; a longer one tells no more, and the rounding of its centres takes all masses
RADIAL_LEVELS = 40  # of either sign: the errors of so many tails are small against a pass of thousands of releases
MOST_SPREAD = 10**6  # coordinates and passes, beyond which the errors of their masses add up
TOLD = 1e-15  # masses below which a ratio is a matter of rounding
LARGEST_SCORE = 700.0
UNKNOWN = 0.25  # error of a tail beyond which a level tells nothing


@dataclass(frozen=True)
class ReleaseCells:
    """Cells of one release: log-densities around 0, 1 and 2 contributions at their middles, and masses.

    Args:
        edges: Between the cells, rising; none where they are not of one line.
        log_density: Up to a constant, shape (3, cells); a guide to the statistic, never part of a bound.
        masses: Around 0, 1 and 2 contributions.
    """

    edges: Array
    log_density: Array
    masses: MassBounds


def cells_of_a_release(phase: Phase, game: PassGame, claim: Claim, *, spread: bool = False) -> ReleaseCells:
    """Cells of one release of a phase.

    Args:
        phase: Its noise has cells (`histories.has_cells`).
        game: The pair of laws of a pass.
        claim: Where tightness matters.
        spread: Whether a shift of independent coordinates may be one of several.
    """
    structure, releases = phase.mechanism.structure, round(game.stretch**2)
    if not isinstance(structure, IIDCoordinates):
        cells = _other_cells(phase, game, claim)
        return cells if isinstance(structure, Radial) else _summed(cells, game, releases)
    count = spread_count(phase.mechanism) if spread else 1
    if isinstance(structure, NormalCoordinates) or count * releases == 1:
        return line_cells(phase, game)
    return _summed(_along(structure, equal(phase.mechanism, count).groups[0][0]), game, count * releases)


def spread_count(mechanism: Mechanism) -> int:
    """Of how many equal coordinates a shift tells most, by one's second moment of the likelihood ratio; a guide."""
    law = mechanism.structure
    if not isinstance(law, IIDCoordinates) or isinstance(law, NormalCoordinates):
        return 1
    told = []
    counts = candidate_counts(mechanism, MOST_SPREAD)
    for count in counts:
        length = equal(mechanism, count).groups[0][0]
        edges = _edges(law, 2.0 * length, 0.0)
        masses = interval_masses(law, edges, np.array([0.0, 2.0 * length])).lower
        likely = masses[0] > TOLD
        told.append(count * math.log(max(float((masses[1][likely] ** 2 / masses[0][likely]).sum()), 1.0)))
    return counts[int(np.argmax(told))]


def release_shift(phase: Phase, claim: Claim, *, spread: bool = False) -> Shift:
    """The longest shift of one coordinate, of largest l2 norm where noise is spherical, of as many as tell most."""
    mechanism, structure = phase.mechanism, phase.mechanism.structure
    if isinstance(structure, ScaleMixture):
        rate = 1.0 if phase.sampler is None else phase.sampler.rate
        drawn = Phase(mechanism, phase.steps, rate)
        return equal(mechanism, mixture_counts(structure, mechanism, drawn, 2.0, claim.delta)[0])
    spherical = isinstance(structure, NormalCoordinates | Radial)
    return equal(mechanism, longest_count(mechanism) if spherical else spread_count(mechanism) if spread else 1)


def line_cells(phase: Phase, game: PassGame, count: int = 3) -> ReleaseCells:
    """Cells of one release of independent coordinates along the record's contribution.

    Args:
        phase: Its noise.
        game: Whose contributions they are.
        count: Around none, one, ... contributions, at least 3.
    """
    law = phase.mechanism.structure
    assert isinstance(law, IIDCoordinates)
    # one order in all passes makes them a pass of longer shifts for normal noise
    normal = isinstance(law, NormalCoordinates)
    stretch = game.stretch if normal else 1.0
    shift = equal(phase.mechanism, longest_count(phase.mechanism) if normal else 1)
    return _along(law, shift.length * stretch * (1.0 - 1e-15), count)


def _along(law: IIDCoordinates, length: float, count: int = 3) -> ReleaseCells:
    """Cells of one coordinate around none, one, two and so on contributions of a length.

    They end where nothing is left of the release, or nothing is told.
    """
    reach = -float(law.ppf(np.array([FARTHEST]))[0])
    length = min(length, LONGEST * reach)
    centres = np.arange(count, dtype=np.float64) * length
    edges = _edges(law, length, (count - 2) * length)
    middles = np.concatenate([edges[:1], 0.5 * (edges[1:] + edges[:-1]), edges[-1:]])
    densities = np.stack([law.logpdf(middles - centre) for centre in centres])
    return ReleaseCells(edges, densities, interval_masses(law, edges, centres))


def _edges(law: IIDCoordinates, length: float, further: float) -> Array:
    """Of cells around 0, `length` and as much further."""
    reach = -float(law.ppf(np.array([FARTHEST]))[0])
    ordinary = 2.0 * length - float(law.ppf(np.array([0.25]))[0])
    if reach <= HEAVY * ordinary:
        return np.linspace(-reach, length + further + reach, CELLS)
    around = np.geomspace(NEAREST * min(length, ordinary), min(reach, OUTERMOST * ordinary), CELLS // 6)
    centres = np.unique([0.0, length, length + further])
    return np.unique(np.concatenate([centres, *(centres + sign * around[:, None] for sign in (-1.0, 1.0))], None))


def _summed(one: ReleaseCells, game: PassGame, alike: int) -> ReleaseCells:
    """Blocks of a sum over parts of a release of the log likelihood ratio between the game's outermost centres.

    Args:
        one: Cells of a part.
        game: Its centres.
        alike: Parts: coordinates that share a contribution, in all passes that one order serves; of more than
            MOST_SPREAD the others are not looked at (post-processing).
    """
    alike = min(alike, MOST_SPREAD)
    if alike == 1:
        return one
    far = 2 if any(twice for _, (_, _, twice) in (*game.first, *game.second)) else 1
    values = np.clip(one.log_density[far] - one.log_density[0], -LARGEST_SCORE, LARGEST_SCORE)
    fineness, size = integer_sums.scale(alike, alone=True)
    labels = integer_sums.rounded_scores(values, one.masses.lower[0], alike, fineness, size // 2 - 1)
    statistic = integer_sums.Statistic("log likelihood ratios of the parts", labels, fineness, size)
    around: list[Slots] = [((1.0, (alike, 0, 0)),), ((1.0, (0, alike, 0)),), ((1.0, (0, 0, alike)),)]
    found = integer_sums.mass_bounds(one.masses, statistic, around, usual=0)
    lower, upper = (np.stack(side) for side in zip(*found, strict=True))
    return ReleaseCells(np.zeros(0), np.log(np.maximum(upper, 1e-300)), MassBounds(lower, upper))


def _other_cells(phase: Phase, game: PassGame, claim: Claim) -> ReleaseCells:
    """Cells of one release of noise that is no law of independent coordinates."""
    mechanism, structure, shift = phase.mechanism, phase.mechanism.structure, release_shift(phase, claim)
    dimension, tail = mechanism.dimension or 1, tail_probability(claim)
    if isinstance(structure, ScaleMixture):
        value, count = shift.groups[0]
        masses = mixture_cells(structure, np.array([0.0, 1.0, 2.0]) * value, count, dimension, tail)
    else:
        assert isinstance(structure, Radial)
        masses = _radial_masses(structure, dimension, shift.length * game.stretch, tail)
    with np.errstate(divide="ignore"):
        return ReleaseCells(np.zeros(0), np.log(np.maximum(masses.upper, 1e-300)), masses)


def _radial_masses(noise: Radial, dimension: int, length: float, tail: float) -> MassBounds:
    """Masses between levels of the loss around 0 and one contribution, and around one again: of two centres.

    What lies between two levels is at least the first tail's lower bound less the second's upper one, and at most the
    other way about.
    """
    ladder = level_ladder(noise, dimension, length, max(1e-3 * min(tail, 1.0), 1e-15))
    tails = loss_tails(noise, dimension, length, ladder[:: max(1, len(ladder) // RADIAL_LEVELS)], FINE)
    known = tails.first_error < UNKNOWN  # a cell between two levels of which nothing is known would hold all or nothing
    known[0] = True
    pairs = [(tails.first[known], tails.first_error[known]), (tails.second[known], tails.second_error[known])]
    masses = []
    for sign in (-1.0, 1.0):  # bounds from below, from above
        sides = []
        for value, error in pairs:
            near, far = (np.clip((value + way * error) * (1.0 + way * 1e-15), 0.0, 1.0) for way in (sign, -sign))
            sides.append(np.maximum(near - np.append(far[1:], 0.0), 0.0))
        middle = 1.0 - sum(float(value[0] - sign * error[0]) for value, error in pairs)
        toward = np.concatenate([sides[1][::-1], [max(middle, 0.0)], sides[0]])  # by reflection the loss falls around 0
        masses.append(np.stack([toward[::-1], toward, toward]) * (1.0 + sign * 1e-14))
    return MassBounds(*masses)
