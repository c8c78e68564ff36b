"""Certified operating points of passes in which a record enters releases of a random order.

The releases of a pass are told apart by a sum V of integers, one for each release: f(w), with w the release along the
record's contribution, times a fixed number and rounded. V modulo a power of two is a function of the output, so that
its laws under both neighbours make a valid witness for ANY f; both are convolution powers of exact cell masses, their
float error included. f only decides how much of the pass is seen. With r_k the likelihood ratio of a release around k
contributions and around none, and the record in one of T releases, around 2 with it and around 1 without it,

    f = log(1 + a (r_2 - 1)/T) - log(1 + a (r_1 - 1)/T).

(Where most releases are around another number of contributions than none, the ratios are against that.) At a = 1 their
sum is the log likelihood ratio if the record entered Poisson many of the T releases; at small a it comes near the sum
of r_2 - r_1, in which single large ratios count for more. Rounding T values blurs the sum by sqrt(T/12) integers,
against FINENESS sqrt(T) in its deviation; a single pass, whose upper bound may be as sharp, has more.

Passes compose (post-processing of each by its own V), with each other and with releases of other phases, whatever each
record contributes to those.

Noise of any structure has passes: all that is needed of a release are the masses of its cells (`pass_cells`). A record
that contributes v with the others silent moves its own release from 0 to v, under every sampler. Under replace-one a
pair of silent others has the record in the same releases with v and with -v, or with v and 0, a record like any other;
all centres may be moved by v, which is a bijection of the outputs. With silent others a batch of fixed size drawn anew
holds the record with probability g whatever the others were: a Poisson batch at rate g.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, Radial
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim, Phase, lets_another_in
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.families import ONE_EVENT, Shift
from dpaudit.verify.lower.histories import ShiftedPhase, gathered, has_cells, tail_probability
from dpaudit.verify.lower.integer_sums import Statistic, mass_bounds, rounded_scores, scale
from dpaudit.verify.lower.pass_cells import ReleaseCells, cells_of_a_release, release_shift, spread_count
from dpaudit.verify.lower.strongest import FIRST_RELEASES, FIRST_SEEN, aim, event, of_first_releases, strongest_curve
from dpaudit.verify.pld.cells import MassBounds, MixturePair, mix
from dpaudit.verify.pld.coordinate_cells import one_coordinate
from dpaudit.verify.pld.operating_points import (
    Events,
    Points,
    grid_step,
    largest_loss,
    loss_variance,
    merge,
    on_grid,
    operating_points,
    single_points,
)
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import Refilled, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.samplers.balls_in_bins import SILENT
from dpaudit.verify.samplers.base import PassGame

DAMPINGS = (0.01, 0.1, 0.4, 0.8)  # without 0.4 the bounds of random allocation are up to 6% lower
TAIL = 1e-13  # mass of the lowest losses of a pass that events may leave out
MAX_LABEL = 2**16
REPLACED_BY_NOTHING = "lower bound: the replaced record is taken to contribute nothing"
SKIPPED = "lower bound: releases without a game of passes here are left out, which only lowers it"
THEOREM = (
    f"{ONE_EVENT}; both laws of an integer sum over the releases of a pass are exact convolution powers "
    "(post-processing; Higham 2002, Theorem 24.2)"
)


@dataclass(frozen=True)
class _Finding:
    """Operating points with the direction and the statistic that gave them."""

    points: Events
    direction: str
    statistic: str


def applies(phase: Phase) -> bool:
    """Whether the phase has a game of passes, and noise with cells."""
    return phase.sampler is not None and has_cells(phase.mechanism)


def pass_games(phase: Phase, *, replace_one: bool) -> list[PassGame]:
    """Pairs of laws of a pass that neighbours can have, for noise of any structure (module docstring).

    Args:
        phase: Its sampler and its noise; of radial noise two centres have cells.
        replace_one: Whether the record is replaced by another.
    """
    games = list(phase.games(replace_one=replace_one))
    silent = dict.fromkeys(_silent(game) for game in phase.games(replace_one=False))
    if isinstance(phase.mechanism.structure, Radial):
        notes = f"{SILENT}; {REPLACED_BY_NOTHING}" if replace_one else SILENT
        apart = dict.fromkeys(_twice_as_far(game) for game in games if _at_two_ends(game))
        return [*apart, *(replace(game, stretch=1.0, assumption=notes) for game in silent)]
    return games or [_opposite(game) for game in silent] if replace_one else games


def _silent(game: PassGame) -> PassGame:
    """The record in the same releases, others that contribute nothing: around 1 where it is in, else around 0."""
    releases = sum(game.first[0][1])
    first = tuple((weight, (none, once + twice, 0)) for weight, (none, once, twice) in game.first)
    return replace(game, first=first, second=((1.0, (releases, 0, 0)),), assumption=SILENT)


def _opposite(game: PassGame) -> PassGame:
    """A silent game's record replaced by its opposite, all centres moved by one contribution."""
    return replace(
        game,
        first=tuple((weight, (0, none, once)) for weight, (none, once, _) in game.first),
        second=tuple((weight, (once, none, 0)) for weight, (none, once, _) in game.first),
    )


def _at_two_ends(game: PassGame) -> bool:
    """Whether every release is around none or two contributions."""
    return not any(once for _, (_, once, _) in (*game.first, *game.second))


def _twice_as_far(game: PassGame) -> PassGame:
    """Such a game as one of two centres, twice as far apart."""
    laws = [tuple((weight, (none, twice, 0)) for weight, (none, _, twice) in law) for law in (game.first, game.second)]
    return replace(game, first=laws[0], second=laws[1], stretch=2.0)


def usual_centre(game: PassGame) -> int:
    """Around how many contributions most releases are, under both laws together."""
    counts = [sum(weight * slots[k] for weight, slots in (*game.first, *game.second)) for k in range(3)]
    return counts.index(max(counts))


def pass_curve(claim: Claim, beside: Sequence[ShiftedPhase] = (), *, spread: bool = False) -> Curve | None:
    """The lower bound of the claim's passes by the best of the statistics; None where no phase has a game.

    Phases that are neither passes nor beside them are left out of the history (post-processing).

    Args:
        claim: The history, and where tightness matters.
        beside: Phases without sampling or with Poisson batches that compose with the passes.
        spread: Whether a record may move several coordinates of a pass alike; None where no noise tells more by that.
    """
    phases = [phase for phase in claim.phases if applies(phase)]
    swaps = claim.adjacency == "replace-one"
    offered = [(phase, pass_games(phase, replace_one=swaps)) for phase in phases]
    offered = [(phase, games) for phase, games in offered if games]
    if not offered or (spread and all(spread_count(phase.mechanism) == 1 for phase, _ in offered)):
        return None
    found = []
    for index in range(max(len(games) for _, games in offered)):  # one way of the others to contribute after the other
        chosen = [(phase, games[min(index, len(games) - 1)]) for phase, games in offered]
        found += [_Finding(points, way, name) for points, way, name in _findings(chosen, beside, claim, spread)]
    if not found:
        return None
    if _hardly_met(claim):
        found = found[:1]
    games = [(phase, games[0]) for phase, games in offered]
    notes = [game.assumption for _, game in games if game.assumption]
    if len(games) + len(beside) < len(claim.phases):
        notes.append(SKIPPED)
    if any(game.passes > FIRST_RELEASES[0] for _, game in games):
        notes.append(FIRST_SEEN)
    return strongest_curve(
        [finding.points for finding in found],
        claim,
        THEOREM,
        tuple(dict.fromkeys(notes)),
        lambda index: _witness(found[index], release_shift(games[0][0], claim, spread=spread), claim),
    )


def _hardly_met(claim: Claim) -> bool:
    """Whether the record's probability to be in any batch is at most the claimed delta: nothing refutes the claim."""
    met = 0.0
    for phase in claim.phases:
        drawn = phase.sampler if isinstance(phase.sampler, WithoutReplacement) else None
        met += 1.0 if phase.sampler and not drawn else phase.steps * (drawn.prob if drawn else phase.sampling_prob)
    return claim.guarantee is None and met <= claim.delta


def _findings(
    games: Sequence[tuple[Phase, PassGame]], beside: Sequence[ShiftedPhase], claim: Claim, spread: bool
) -> Iterator[tuple[Events, str, str]]:
    """Operating points of the history in both directions, every statistic in turn."""
    cells = [cells_of_a_release(phase, game, claim, spread=spread) for phase, game in games]
    if not all((item.masses.lower.sum(axis=1) > TAIL).all() for item in cells):
        return
    if len(games) == 1 and games[0][1].passes == 1 and not beside:
        yield one_far_release(cells[0], games[0][1]), "remove", "furthest of its releases"
    candidates = [statistics(*pair) for pair in zip(cells, (game for _, game in games), strict=True)]
    for choice in zip(*candidates, strict=True):
        masses = [
            pass_masses(item.masses, statistic, game)
            for item, statistic, (_, game) in zip(cells, choice, games, strict=True)
        ]
        for way in ("remove", "add"):
            passes = [(m[way], game.passes) for m, (_, game) in zip(masses, games, strict=True)]
            if all(first_lower.sum() > TAIL for (first_lower, _), _ in passes):  # else next to nothing is known of V
                found = partial(_first, passes, releases_beside(beside, way, claim))
                yield of_first_releases(found, max(count for _, count in passes), claim), way, choice[0].name


def one_far_release(cells: ReleaseCells, game: PassGame) -> Points:
    """Operating points of {some release of the pass is in a cell of a large ratio}, by the union bound: no transform.

    Sums of V carry an absolute float error, which hides events of less than 1e-14 of it; small noise has such.
    """
    met = max(k for _, counts in game.first for k in range(3) if counts[k])
    order = np.argsort(-(cells.log_density[met] - cells.log_density[usual_centre(game)]), kind="stable")
    error = 4.0 * UNIT * len(order)
    lower = np.cumsum(cells.masses.lower[:, order], axis=1) * (1.0 - error)
    upper = np.cumsum(cells.masses.upper[:, order], axis=1) * (1.0 + error)
    first = sum(w * np.max([lower[k] for k in range(3) if counts[k]], axis=0) for w, counts in game.first)
    second = sum(w * sum(counts[k] * upper[k] for k in range(3)) for w, counts in game.second)
    first, second = first * (1.0 - 1e-14), second * (1.0 + 1e-14)
    keep = (first > 0) & (second > 0)
    points = Points(np.minimum(first[keep], 1.0), np.log(second[keep]) + 8.0 * UNIT, np.log(first[keep] / second[keep]))
    return merge([points])


def removal_masses(phase: Phase, game: PassGame, claim: Claim) -> Iterator[tuple[str, tuple[Array, Array]]]:
    """Masses of one pass of a game with the record, from below, and without it, from above: by every statistic.

    The claim says where tightness matters.
    """
    cells = cells_of_a_release(phase, game, claim)
    if not (cells.masses.lower.sum(axis=1) > TAIL).all():
        return
    for statistic in statistics(cells, game):
        yield statistic.name, pass_masses(cells.masses, statistic, game)["remove"]


def _first(passes: Sequence[tuple[tuple[Array, Array], int]], others: Sequence["_Releases"], most: float) -> Events:
    """Operating points of the first passes and releases of each kind."""
    first = [replace(item, count=int(min(item.count, most))) for item in others]
    return composed([(masses, int(min(count, most))) for masses, count in passes], first)


def silent_others(claim: Claim, *, drawn: bool = False) -> Claim:
    """The claim with batches that are cut read as Poisson ones: what they are where the others contribute nothing.

    Those of everybody are batches of fixed size, whatever the others contribute, one more of whom is in where a record
    is taken away.

    Args:
        claim: The claim.
        drawn: Whether to read batches of fixed size that are drawn anew so, too.
    """
    return replace(claim, phases=[_as_poisson(claim, phase, drawn=drawn) for phase in claim.phases])


def _as_poisson(claim: Claim, phase: Phase, *, drawn: bool) -> Phase:
    match phase.sampler:
        case TruncatedPoisson(prob=1) as sampler if not drawn:
            kind = Refilled if lets_another_in(claim, phase) else WithoutReplacement
            return replace(phase, sampler=kind(sampler.kept_rate, sampler.steps))
        case TruncatedPoisson() as sampler:
            return Phase(phase.mechanism, sampler.steps, sampler.kept_rate)
        case WithoutReplacement() as sampler if drawn:
            return Phase(phase.mechanism, sampler.steps, sampler.prob)
        case _:
            return phase


def statistics(cells: ReleaseCells, game: PassGame) -> list[Statistic]:
    """The candidates for a game, in a fixed order."""
    releases, usual = sum(game.first[0][1]), cells.masses.lower[usual_centre(game)]
    fineness, size = scale(releases, alone=game.passes == 1)
    return [
        Statistic(name, rounded_scores(values, usual, releases, fineness, size // 2 - 1), fineness, size)
        for name, values in statistic_scores(cells, game)
    ]


def statistic_scores(cells: ReleaseCells, game: PassGame) -> Iterator[tuple[str, Array]]:
    """What a release adds to each of the statistics, by name and before rounding."""
    releases, usual, shares = sum(game.first[0][1]), usual_centre(game), []
    rest = [k for k in range(3) if k != usual]
    ratios = [np.minimum(cells.log_density[k] - cells.log_density[usual], 700.0) for k in rest]
    for slots in (game.first, game.second):
        around = [sum(weight * counts[k] for weight, counts in slots) / releases for k in rest]
        shares.append(sum(share * np.expm1(ratio) for share, ratio in zip(around, ratios, strict=True)))
    for damping in DAMPINGS:
        first, second = (np.log1p(np.maximum(damping * share, -1.0 + 1e-9)) for share in shares)
        yield f"sum of Poissonised log likelihood ratios of the releases, at {damping:g} of the rate", first - second


def pass_masses(masses: MassBounds, statistic: Statistic, game: PassGame) -> dict[str, tuple[Array, Array]]:
    """Direction -> masses of blocks of V from below under its first law and from above under its second.

    Of a pass of one release the cells themselves are told apart.
    """
    if sum(game.first[0][1]) == 1:
        weights = [
            tuple(sum(w * counts[k] for w, counts in slots) for k in range(3)) for slots in (game.first, game.second)
        ]
        pair = MixturePair(weights[0], weights[1])
        return {"remove": mix(masses, pair), "add": mix(masses, pair.swapped())}
    first, second = mass_bounds(masses, statistic, (game.first, game.second), usual=1)
    return {"remove": (first[0], second[1]), "add": (second[0], first[1])}


@dataclass(frozen=True)
class _Releases:
    """Other releases: `count` of them, a first look at their masses, and the masses on cells that follow a grid.

    `ordered` as for `on_grid`.
    """

    look: tuple[Array, Array]
    masses: Callable[[float], tuple[Array, Array]]
    count: int
    ordered: bool


def releases_beside(beside: Sequence[ShiftedPhase], way: str, claim: Claim) -> list[_Releases]:
    """Releases of other phases in one direction; under replace-one both directions are mirror images of each other."""
    direction = "swap" if claim.adjacency == "replace-one" else way
    tail, found = tail_probability(claim), []
    for item in gathered(beside) if beside else ():
        look = item.masses(direction, tail)
        masses = partial(_following, item, look, item.pair(direction), tail)
        found.append(_Releases(look, masses, item.phase.steps, item.tails is not None))
    return found


def _following(
    item: ShiftedPhase, look: tuple[Array, Array], pair: MixturePair, tail: float, step: float
) -> tuple[Array, Array]:
    """Masses of one release, along the line of a shift of one coordinate on cells that follow a grid of the loss."""
    return look if item.line is None else mix(one_coordinate(*item.line, pair, step, tail), pair)


def composed(passes: Sequence[tuple[tuple[Array, Array], int]], others: Sequence[_Releases] = ()) -> Events:
    """Operating points of independent passes, each kind with its number, and of other releases."""
    if len(passes) == 1 and passes[0][1] == 1 and not others:
        return single_points(*passes[0][0])
    looks = [*passes, *((other.look, other.count) for other in others)]
    step, deviation = grid_step([(loss_variance(*masses), count) for masses, count in looks])
    step = max(step, max(largest_loss(*masses, TAIL) for masses, _ in looks) / MAX_LABEL)
    steps = [on_grid(*masses, step, count, TAIL) for masses, count in passes]
    steps += [on_grid(*other.masses(step), step, other.count, TAIL, ordered=other.ordered) for other in others]
    return operating_points(steps, step, deviation)


def _witness(finding: _Finding, shift: Shift, claim: Claim) -> Witness:
    """The neighbouring pair and the event that is best at the claim."""
    seen = f"privacy loss of the history, its passes seen through the {finding.statistic},"
    return shift.witness(claim, finding.direction, event(finding.points, aim(finding.points, claim), seen))
