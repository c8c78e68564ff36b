"""Passes that go through one buffer as a stream, from below.

A batch that holds the record m times has its noise around m contributions if all others contribute nothing, against
none without the record. If all others contribute the opposite, of a batch of b around -b + 2m, against -b + m without
it, or against -b where the record is replaced by one like the others. Either way both laws mix, over the same law of
how often each batch holds it (`held_copies`), independent noise around 2m and m contributions, or m and none, or 2m
and none.

Each batch has a score: the log likelihood ratio of its cell if how many copies it holds did not depend on the other
batches. With scores rounded to integers, their sum V over all batches is a function of the outputs, and
each law of V is that of a sum along the chain (`pld.chain_sums`), with certified masses of cells: P(V >= s) from below,
without what is lost of the chain, and Q(V >= s) from above, with all of that. Any noise that has cells; a score only
decides how much is seen.

Normal noise, too many copies held at once. A record at the beginning of the file has entered the buffer
m = ceil((T b + B - 1)/n) times before the last of T releases. A copy that a draw could have taken in j draws is still
held with probability (1 - 1/B)^j, and r of them all are with at most the product (of the copies that are held each draw
takes one at most). So m - r have been drawn but for a probability of the elementary symmetric polynomial of degree
r + 1, and more of them only make {sum of all outputs >= t} likelier: on such half-lines P >= c P', P' normal with mean
m - r and T variances, c one minus that. Then P(S) - e^epsilon Q(S) >= c (P'(S) - e^(epsilon + log 1/c) Q(S)).
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from scipy.special import log_ndtr, ndtr

from dpaudit.mechanisms.base import Array, IIDCoordinates, NormalCoordinates, Radial
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.lower.families import ONE_EVENT
from dpaudit.verify.lower.held_copies import HeldCopies
from dpaudit.verify.lower.histories import SKIPPED, has_cells
from dpaudit.verify.lower.integer_sums import label_laws
from dpaudit.verify.lower.pass_cells import ReleaseCells, cells_of_a_release, line_cells, release_shift
from dpaudit.verify.lower.passes import REPLACED_BY_NOTHING, TAIL
from dpaudit.verify.lower.strongest import Bounds, aim, event, merit, strongest_curve
from dpaudit.verify.pld.chain_sums import WORK, ChainSum, History, Link
from dpaudit.verify.pld.fourier import Lattice, chernoff_window
from dpaudit.verify.pld.operating_points import MAX_LABEL, Events, Points, Sum, sum_points
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.samplers.balls_in_bins import SILENT
from dpaudit.verify.samplers.base import PassGame
from dpaudit.verify.samplers.shuffled import OPPOSED
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma

THEOREM = f"{ONE_EVENT}; both laws of a sum of scores over a stream through a buffer (verify/lower/buffered_streams.py)"
HARDLY_HIDDEN = 1.25  # deviations to a contribution, up to which others that contribute nothing tell less
MOST_HELD = 12  # copies that fill the buffer, of a chain
FURTHER = ((2, 3), (4, 5), (8, 8), (16, 8))  # copies that come on top of them at most, and copies in one batch at most
UNTOLD, UNCHARGED = 1e-25, 1e-6  # what may be lost: over delta, where it is charged to the second law; and where not
LARGEST = 600.0  # score: the least bound of a mass from above is 1e-300
FINENESS, LEAST, MOST = 8.0, 200.0, 2.0**12  # integers to a deviation of V, per root of the batches that matter, within
WINDOW = 2**17  # integers that are told apart at once
REACHES = 0.5 * 2.0 ** np.arange(8)  # tilts over the deviation, of a first look
LOOKS = 500.0  # multiplications that the tilts of a first look take for each of one frequency
ENOUGH = 1e-3  # of delta: what may be lost
ALMOST_SURE = 0.999  # beyond which fewer copies say less
HOPELESS = 1e-4  # c below which, and what is lost above which, nothing is looked for
ROUNDING = 1e-12  # relative, for every copy, and of the tails of a normal law and their logarithms
FARTHEST, HALF_LINES = 37.0, 30_000  # deviations, and how many half-lines between


@dataclass(frozen=True)
class _Scaled:
    """Bounds of a history that has c times a law, of which `of` are the bounds."""

    of: Bounds
    scale: float

    def delta(self, epsilon: Array) -> Array:
        """c delta'(epsilon + log 1/c)."""
        return self.scale * self.of.delta(epsilon - math.log(self.scale)) * (1.0 - 1e-15)

    def epsilon(self, delta: Array) -> Array:
        """epsilon'(delta/c) - log 1/c."""
        over = np.minimum(np.asarray(delta) / self.scale * (1.0 + 1e-15), 1.0)
        known = np.where(over < 1.0, self.of.epsilon(np.minimum(over, 1.0 - 1e-16)), 0.0)
        return np.maximum(known + math.log(self.scale) * (1.0 + 1e-15), 0.0)


@dataclass(frozen=True)
class _Game:
    """How many contributions each copy moves a batch by.

    Args:
        first: With the record.
        second: Without it, fewer.
        note: How the others contribute.
        stretch: Length of the contributions.
    """

    first: int
    second: int
    note: str
    stretch: float = 1.0


@dataclass(frozen=True)
class _Found:
    """What a phase proves, and how the others contribute there."""

    bounds: Bounds
    witness: Witness
    note: str


def stream_curve(claim: Claim) -> Curve | None:
    """The lower bound of the streams of a claim, one phase alone at a time; None where there is none.

    Args:
        claim: Canonical from below. Its other phases are left out (post-processing).
    """
    found = [item for phase in claim.phases for item in _of_a_phase(claim, phase)]
    if not found:
        return None
    notes = dict.fromkeys([item.note for item in found] + [SKIPPED] * (len(claim.phases) > 1))
    return strongest_curve(
        [item.bounds for item in found], claim, THEOREM, tuple(notes), lambda index: found[index].witness
    )


def _of_a_phase(claim: Claim, phase: Phase) -> Iterator[_Found]:
    sampler = phase.sampler
    if not isinstance(sampler, BufferedShuffle) or sampler.passes is not None or not has_cells(phase.mechanism):
        return
    found = [] if -(-sampler.buffer // sampler.records) > MOST_HELD else list(_by_scores(claim, phase, sampler))
    yield from found
    if not any(max(merit(item.bounds, claim)) > 0 for item in found):
        yield from _sum_of_outputs(claim, phase, sampler)


def _by_scores(claim: Claim, phase: Phase, sampler: BufferedShuffle) -> Iterator[_Found]:
    hidden = (shift_over_sigma(phase, "add-remove") or math.inf) <= HARDLY_HIDDEN
    for game in _games(phase, replace_one=claim.adjacency == "replace-one"):
        told = _told(claim, phase, sampler, game)
        known = told.copies.exact and not (game.second and told.lost > HOPELESS)
        points = _points(told, _cells(claim, phase, told)) if known else None
        if points is None:
            continue
        yield _Found(points, _witness(claim, phase, points, claim, 1.0, "sum of scores of all releases"), game.note)
        if hidden and told.lost <= ENOUGH * claim.delta:  # others that contribute nothing tell less
            break


def _games(phase: Phase, *, replace_one: bool) -> list[_Game]:
    """Ways of the others to contribute."""
    if isinstance(phase.mechanism.structure, Radial):  # whose cells are of two centres
        return [_Game(1, 0, OPPOSED, 2.0) if replace_one else _Game(1, 0, SILENT)]
    return [_Game(2, 0, OPPOSED)] if replace_one else [_Game(2, 1, OPPOSED), _Game(1, 0, SILENT)]


@dataclass(frozen=True)
class _Told:
    """What of a stream is told apart.

    Args:
        game: How far copies move a batch.
        copies: The chain.
        first: Around how many contributions a batch is for none, one, ... copies of the record.
        second: The same without it.
        lost: Probability of all else.
    """

    game: _Game
    copies: HeldCopies
    first: range
    second: range
    lost: float


def _told(claim: Claim, phase: Phase, sampler: BufferedShuffle, game: _Game) -> _Told:
    """So much that next to nothing is lost, if that can be."""
    structure, held = phase.mechanism.structure, -(-sampler.buffer // sampler.records)
    goal, best = UNTOLD * max(claim.delta, 1e-200) if game.second else UNCHARGED, None
    for further, together in FURTHER:
        top = max(game.first * min(together, sampler.batch), 2)
        if not isinstance(structure, NormalCoordinates):
            top = 1 if isinstance(structure, Radial) else 2
        first = range(0, top + 1, game.first)
        second = range(0, top + 1, game.second) if game.second else range(1)
        copies = HeldCopies(sampler, held + further)
        told = _Told(game, copies, first, second, copies.lost(len(second if game.second else first) - 1))
        if best is not None and 0.5 * best.lost < told.lost < 0.9:  # how many are held does not matter
            break
        best = told
        if told.lost <= goal:
            break
    assert best is not None
    return best


def _cells(claim: Claim, phase: Phase, told: _Told) -> ReleaseCells:
    """Cells of one release around none, one, two, ... contributions: of normal noise as many as are asked for."""
    one = PassGame((), (), 1, told.game.stretch)
    if isinstance(phase.mechanism.structure, IIDCoordinates):
        return line_cells(phase, one, max(told.first[-1] + 1, 3))
    return cells_of_a_release(phase, one, claim)


def _points(told: _Told, cells: ReleaseCells) -> Events | None:
    """Operating points of {V >= s}; None where next to nothing is known of a release, or it takes too long."""
    if not (cells.masses.lower.sum(axis=1) > TAIL).all():
        return None
    copies = told.copies
    scores = [_scores(cells, usual, told.first, told.second) for usual in copies.usual]
    step, deviation = _grid(scores, copies, cells, told.first)
    first, second = _sums(told, cells, scores, step)
    if first.history.work(len(first.start)) * len(first.start) ** 2 * LOOKS > WORK:
        return None
    reach = _reach(first, second, step, deviation)
    if reach > WINDOW / 4:  # rare scores make the tail
        step *= 4.0 * reach / WINDOW
        first, second = _sums(told, cells, scores, step)
    points = sum_points(first, second, step, deviation, longest=WINDOW)
    return points.charged(told.lost) if told.game.second else points


def _sums(told: _Told, cells: ReleaseCells, scores: Sequence[Array], step: float) -> tuple[ChainSum, ChainSum]:
    """Both laws of V, with the record from below and without it from above."""
    labels = [np.rint(np.clip(score / step, -MAX_LABEL, MAX_LABEL)).astype(np.int64) for score in scores]
    first = [label_laws(label, cells.masses.lower[list(told.first)], upper=False) for label in labels]
    second = [label_laws(label, cells.masses.upper[list(told.second)], upper=True) for label in labels]
    with_it = told.copies.sum(first, upper=False)
    return with_it, told.copies.sum(second, upper=True) if told.game.second else _without(told.copies, second)


def _reach(first: Sum, second: Sum, step: float, deviation: float) -> float:
    """Integers that V can be, about, as often as a window that is not tilted has to have."""
    tilts = np.concatenate([-REACHES[::-1], [0.0], REACHES]) * step / deviation
    middle = len(REACHES)
    ends = [chernoff_window(tilts, law.log_mgf(shift + tilts), middle) for law, shift in ((first, 0.0), (second, step))]
    return max(high for _, high in ends) - min(low for low, _ in ends)


def _scores(cells: ReleaseCells, usual: Array, first: Sequence[int], second: Sequence[int]) -> Array:
    """Log likelihood ratio of the cells of a batch that holds a usual number of copies, by what is told of both."""
    logs = []
    with np.errstate(divide="ignore", invalid="ignore"):  # where no density is a float
        for around in (first, second):
            told = list(around)[: len(usual)]
            weights = np.log(np.maximum(usual[: len(told)], 1e-300))
            logs.append(np.logaddexp.reduce(weights[:, None] + cells.log_density[told], axis=0))
        return np.asarray(np.clip(np.nan_to_num(logs[0] - logs[1]), -LARGEST, LARGEST))


def _grid(
    scores: Sequence[Array], copies: HeldCopies, cells: ReleaseCells, around: Sequence[int]
) -> tuple[float, float]:
    """Privacy loss of an integer, and the deviation of V, about."""
    variance = square = 0.0
    for score, usual, count in zip(scores, copies.usual, copies.counts, strict=True):
        told = list(around)[: len(usual)]
        weight = usual[: len(told)] @ cells.masses.lower[told]
        weight /= weight.sum()
        one = float(weight @ np.square(score - weight @ score))
        variance, square = variance + count * one, square + count * one * one
    deviation = math.sqrt(max(variance, 1e-300))
    fineness = min(max(FINENESS * math.sqrt(variance * variance / max(square, 1e-300)), LEAST), MOST)
    largest = max(float(np.abs(score).max()) for score in scores)
    return max(deviation / fineness, largest / MAX_LABEL), deviation


def _without(copies: HeldCopies, laws: Sequence[Sequence[Lattice]]) -> ChainSum:
    """The sum where no batch depends on how many copies it has."""
    links = [Link(np.ones((1, 1)), np.zeros((1, 1), dtype=np.int64), level, 0) for level in range(len(laws))]
    return ChainSum(np.ones(1), links, History.of([tuple(enumerate(map(int, copies.counts)))]), laws)


def _scaled(claim: Claim, scale: float) -> Claim:
    """What is asked about P' where the claim is about P."""
    return replace(
        claim,
        epsilon=claim.epsilon - math.log(scale),
        delta=min(claim.delta / scale, 0.5),
        adjacency="add-remove",
        guarantee=None,
    )


def _witness(claim: Claim, phase: Phase, points: Events, asked: Claim, scale: float, seen: str) -> Witness:
    shift = release_shift(phase, claim)
    likely = f" in histories that have probability {scale:.6g} at least, of these" if scale < 1 else ""
    return shift.witness(claim, "remove", f"{event(points, aim(points, asked), seen)}{likely}")


def drawn_copies(sampler: BufferedShuffle) -> list[tuple[int, float]]:
    """Copies of the first record that have been drawn in the end: (how many, with which probability at least)."""
    draws, size = sampler.steps * sampler.batch, sampler.buffer
    since = [draws - max(copy * sampler.records - size + 1, 0) for copy in range(sampler.begun)]  # whole: no rounding
    held = np.exp(np.array(since, dtype=np.float64) * math.log1p(-1.0 / size)) * (1.0 + ROUNDING)
    left = np.zeros(sampler.begun + 1)
    left[0] = 1.0
    with np.errstate(over="ignore"):  # of ten thousands of copies that are likely to be held
        for chance in held[held > 1e-300]:
            left[1:] += chance * left[:-1]
    sure = 1.0 - left[1:] * (1.0 + ROUNDING * sampler.begun) - 1e-15
    enough = int(np.argmax(sure > ALMOST_SURE)) + 1 if (sure > ALMOST_SURE).any() else len(sure)
    return [(sampler.begun - r, float(c)) for r, c in enumerate(sure[:enough]) if c > HOPELESS and r < sampler.begun]


def _sum_of_outputs(claim: Claim, phase: Phase, sampler: BufferedShuffle) -> Iterator[_Found]:
    mu = shift_over_sigma(phase, "add-remove")
    if mu is None:
        return

    def shown(copies: int, chance: float) -> float:
        deltas = np.array([min((claim.delta or 1e-10) / chance, 0.5)])
        at_most = partial(analytic_delta, mu * copies / math.sqrt(sampler.steps))
        return float(epsilon_at(at_most, deltas)[0]) + math.log(chance)

    offered = drawn_copies(sampler)
    if not offered:
        return
    copies, chance = max(offered, key=lambda found: shown(*found))
    asked, points = _scaled(claim, chance), _half_lines(mu * copies / math.sqrt(sampler.steps) * (1.0 - 1e-14))
    seen = "privacy loss of the sum of all outputs"
    note = f"{SILENT}; {REPLACED_BY_NOTHING}" if claim.adjacency == "replace-one" else SILENT
    yield _Found(_Scaled(points, chance), _witness(claim, phase, points, asked, chance, seen), note)


def _half_lines(mu: float) -> Points:
    """Events {x >= t} of N(mu, 1) against N(0, 1)."""
    at = np.linspace(-FARTHEST, mu + FARTHEST, HALF_LINES)
    second = log_ndtr(-at)
    return Points(ndtr(mu - at) * (1.0 - ROUNDING), second + ROUNDING * (1.0 - second), mu * at - 0.5 * mu * mu)
