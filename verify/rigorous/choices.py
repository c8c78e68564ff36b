"""Cells, scores and labels for an event, chosen in floating point: nothing here enters a proof.

A coordinate's score is its privacy loss in units of a third of its standard deviation (finer for few coordinates), a
release's label the sampled loss of the sum of scores in units of an eighth of its standard deviation.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, Mechanism, NormalCoordinates, Radial, ScaleMixture
from dpaudit.mechanisms.registry import to_dict
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.lower.integer_sums import rounded_scores
from dpaudit.verify.lower.pass_cells import line_cells
from dpaudit.verify.lower.passes import DAMPINGS, statistic_scores, usual_centre
from dpaudit.verify.lower.shifts import longest_count
from dpaudit.verify.pld.gamma_scale import laplace_given_gamma
from dpaudit.verify.rigorous.balls import PRECISION, Unavailable, all_known, ball, precision
from dpaudit.verify.rigorous.events import (
    Event,
    LabelledLoss,
    LabelledSum,
    Part,
    label_laws,
    labels_count,
    sum_masses,
    total_laws,
)
from dpaudit.verify.rigorous.hidden_scale_choices import shared_scale
from dpaudit.verify.rigorous.passes import LabelledPass, pass_laws, pass_pairs
from dpaudit.verify.rigorous.radial import RadialNoise, chosen_places, loss_tail
from dpaudit.verify.rigorous.scores import GROWTH, ScoreWindow, resolution

COORDINATE, RELEASE = 0.35, 0.125  # units of scores and labels, in standard deviations
SINGLE = 1.0 / 40.0  # the same for one coordinate, and for one release
REACH, HISTORY_REACH = 9.0, 20.0  # standard deviations inside a window; rare batches have large losses
WIDEST, WIDEST_SUM = 12_000, 16_000
TWO_POINTS = 0.9
PASS_FINENESS, LEAST_FINENESS = 2.5, 16.0  # integers to a deviation of the sum of T scores, per sqrt(T), and at least
PASS_REACH, PASS_WINDOW = 600.0, 60_000  # deviations of the sum that are told apart, and how many integers at most
UNLIMITED = 10**15
PASS_OTHERS = 20.0  # deviations of the sum of all other scores beside the largest one
POINTS = 1500
SHRINK = 1 - 2.0**-44  # keeps the norm of many coordinates inside the clip
LEVELS, RADIUS_CELLS, ROUGH = 24, 60, 0.05  # of radial noise


def centre_distance(phase: Phase, adjacency: Adjacency) -> float:
    """Longest distance of the two centres that one record causes, in units of clip.

    Replace-one: 2 without sampling; 1 with it, against a record that contributes nothing.
    """
    return 2.0 if adjacency == "replace-one" and phase.sampling_prob == 1 else 1.0


def equal_value(mechanism: Mechanism, count: int, distance: float) -> float:
    """What each of `count` equal coordinates may be moved by."""
    if count == 1:
        return float(mechanism.clip) * distance
    return float(mechanism.clip * distance * math.pow(count, -1.0 / mechanism.clip_norm) * SHRINK)


def chosen_event(
    claim: Claim,
    count: int,
    direction: str,
    cells: int = RADIUS_CELLS,
    statistic: tuple[int, int] = (0, 0),
    *,
    gauged: bool = False,
) -> Event | Unavailable:
    """An event for shifts of `count` equal coordinates, with the threshold that is best at the claimed epsilon.

    Args:
        claim: The history.
        count: Of which a phase moves as many as it has; normal noise by its longest shift, radial noise along one line.
        direction: "remove" or "add".
        cells: Of the radius, with radial noise.
        statistic: With passes, which pair of the sampler's and which sum over a pass: from `pass_statistics`.
        gauged: Whether coordinates that are not moved tell a scale that all share: sharper, and dearer.
    """
    if claim.epsilon > GROWTH:
        return Unavailable(f"events are told apart up to an epsilon of {GROWTH:g}")
    found: list[Part | Unavailable] = [
        _pass_part(phase, statistic, swaps=claim.adjacency == "replace-one")
        if phase.sampler is not None
        else _part(claim, phase, count, direction, cells, gauged=gauged)
        for phase in claim.phases
    ]
    parts: list[Part] | Unavailable = all_known(found)
    if isinstance(parts, Unavailable):
        return parts
    bits = resolution(claim.delta, claim.epsilon)
    with precision(max(PRECISION, bits)):
        losses = [_label_losses(phase, part, direction, bits) for phase, part in zip(claim.phases, parts, strict=True)]
        counts = [labels_count(phase, part) for phase, part in zip(claim.phases, parts, strict=True)]
        unit, window = _unit(claim, counts, losses)
        labelled = tuple(_relabelled(part, loss[0] / unit, window) for part, loss in zip(parts, losses, strict=True))
        event = Event(labelled, window, bits, direction, 0)
        return replace(event, threshold=_threshold(claim, event))


def _part(claim: Claim, phase: Phase, count: int, direction: str, cells: int, *, gauged: bool) -> Part | Unavailable:
    """Cells and scores of a phase; labels are still one unit of the scores' loss."""
    mechanism, distance = phase.mechanism, centre_distance(phase, claim.adjacency)
    structure = mechanism.structure
    if phase.sampling_kind not in ("poisson", "none") or (phase.sampling_kind == "none" and phase.sampling_prob < 1):
        return Unavailable(f"sampling_kind={phase.sampling_kind!r} has no pair here")
    if isinstance(structure, Radial):
        if direction != "remove":
            return Unavailable("direction add is not covered for radial noise")
        return _radial_part(claim, phase, distance, cells)
    if isinstance(structure, NormalCoordinates):
        count = longest_count(mechanism)  # l2 norms alone tell, and phases may differ in coordinates
    elif mechanism.dimension is not None:
        count = min(count, mechanism.dimension)
    scale = None
    if isinstance(structure, ScaleMixture):
        law = laplace_given_gamma(structure)
        if law is None:
            return Unavailable("a hidden scale is covered for Laplace noise and a Gamma law")
        scale = shared_scale(claim, phase, law, count, gauged=gauged)
        structure = law.given(float(law.scale_ppf(np.array([0.5]))[0]))
    value = equal_value(mechanism, count, distance)
    moved, length = count, value
    if isinstance(structure, NormalCoordinates):
        moved, length = 1, value * math.sqrt(count)
    edges, scores, unit = _scores(structure, length, moved, scale is not None)
    if not len(edges):
        return Unavailable("the two laws do not differ in floating point")
    window = _window(structure, length, moved, edges, scores)
    part = LabelledSum(repr(value), count, tuple(repr(float(x)) for x in edges), scores, window, (), scale)
    return part if unit > 0 else Unavailable("the loss has no spread")


def pass_statistics(claim: Claim) -> list[tuple[int, int]]:
    """Which pair of laws, and which sum over a pass: all that are worth a try, one where no phase has passes."""
    games = max(len(pass_pairs(phase, swaps=claim.adjacency == "replace-one")) for phase in claim.phases)
    return [(game, kind) for game in range(games) for kind in range(len(DAMPINGS))] or [(0, 0)]


def _pass_part(phase: Phase, statistic: tuple[int, int], *, swaps: bool) -> LabelledPass | Unavailable:
    """Cells and whole scores of a release; the labels of their sums are still to be chosen."""
    games = phase.games(replace_one=swaps)
    if not pass_pairs(phase, swaps=swaps) or not isinstance(phase.mechanism.structure, IIDCoordinates):
        return Unavailable(f"sampling_kind={phase.sampling_kind!r} has no pair of passes for this noise or adjacency")
    index = min(statistic[0], len(games) - 1)
    game = games[index]
    cells = line_cells(phase, game)
    _, values = list(statistic_scores(cells, game))[statistic[1]]
    releases = sum(game.first[0][1])
    fineness = max(PASS_FINENESS * math.sqrt(releases), LEAST_FINENESS) * (20.0 if releases == 1 else 1.0)
    window = min(int(PASS_REACH * fineness), PASS_WINDOW)
    usual = cells.masses.lower[usual_centre(game)]
    telling = _median_score(values, usual, cells.masses.lower[-1], releases, fineness) / window
    if telling <= 0.5:
        found = rounded_scores(values, usual, releases, fineness, window)
    else:  # one release tells all, and must fit in with the others: what is above the window is left out
        found = rounded_scores(values, usual, releases, 0.5 * fineness / telling, window)
        others = releases * float(usual @ found) + PASS_OTHERS * fineness
        found = np.minimum(found, max(window - int(others), 1))
    changes = np.flatnonzero(np.diff(found))
    if not len(changes):
        return Unavailable("the two laws do not differ in floating point")
    normal = isinstance(phase.mechanism.structure, NormalCoordinates)
    count = longest_count(phase.mechanism) if normal else 1
    return LabelledPass(
        repr(equal_value(phase.mechanism, count, 1.0)),
        count,
        tuple(repr(float(x)) for x in cells.edges[changes]),
        tuple(int(x) for x in [*found[changes], found[-1]]),
        window,
        tuple(range(window + 1)),
        index,
        swaps,
    )


def _median_score(values: Array, usual: Array, moved: Array, releases: int, fineness: float) -> float:
    """Of the release that holds the record, without a window."""
    scores = rounded_scores(values, usual, releases, fineness, UNLIMITED)
    order = np.argsort(scores)
    return float(scores[order][int(np.searchsorted(np.cumsum(moved[order]), 0.5 * moved.sum()))])


def _masses(law: IIDCoordinates, points: Array, centre: float) -> Array:
    cdf, sf = law.cdf(points - centre), law.cdf(centre - points)
    ends = np.concatenate([[0.0], cdf, [1.0]]), np.concatenate([[1.0], sf, [0.0]])
    return np.asarray(np.where(ends[0][1:] < 0.5, np.diff(ends[0]), -np.diff(ends[1])))


def _scores(law: IIDCoordinates, length: float, count: int, hidden: bool) -> tuple[Array, tuple[int, ...], float]:
    """(edges, scores, unit): neighbouring cells of one score are one."""
    between = np.linspace(0.0, length, 201)
    if hidden:
        points = between
    else:
        levels = np.concatenate([np.geomspace(1e-14, 1e-3, 200), np.linspace(1e-3, 0.5, POINTS // 4)[1:]])
        side = law.ppf(levels)
        points = np.unique(np.concatenate([side, -side, side + length, length - side, between]))
        points = points[np.isfinite(points)]
    p, q = _masses(law, points, length), _masses(law, points, 0.0)
    with np.errstate(divide="ignore", invalid="ignore"):
        loss = np.log(p) - np.log(q)
    middle = np.concatenate([points[:1] - 1e-3 * length, (points[1:] + points[:-1]) / 2, points[-1:] + 1e-3 * length])
    with np.errstate(over="ignore", invalid="ignore"):
        loss = np.where((p > 1e-290) & (q > 1e-290), loss, law.logpdf(middle - length) - law.logpdf(middle))
    loss = np.nan_to_num(loss, nan=0.0, posinf=1e6, neginf=-1e6)
    spread = math.sqrt(max(float((p + q) / 2 @ (loss * loss)), 1e-300))
    unit = spread * min(COORDINATE, SINGLE * math.sqrt(count)) if count > 1 else spread * SINGLE
    top = float(np.abs(loss).max())
    if count == 1:
        unit = max(unit, top / WIDEST)
    elif spread > TWO_POINTS * top > 0:  # nearly always one of two values
        unit = top
    score = np.clip(np.rint(loss / unit), -WIDEST, WIDEST).astype(int)
    changes = np.flatnonzero(np.diff(score))
    return points[changes], tuple(int(x) for x in [*score[changes], score[-1]]), unit


def _window(law: IIDCoordinates, length: float, count: int, edges: Array, scores: Sequence[int]) -> int:
    """Where sums of `count` scores lie under both laws."""
    s = np.array(scores, dtype=float)
    needed = float(np.abs(s).max())
    if count == 1:
        return max(1, int(needed))
    for centre in (0.0, length):
        mass = _masses(law, edges, centre)
        mean = float(mass @ s)
        needed = max(needed, abs(count * mean) + REACH * math.sqrt(count * float(mass @ (s - mean) ** 2)))
    return min(WIDEST, max(1, math.ceil(min(needed, count * float(np.abs(s).max())))))


def _radial_part(claim: Claim, phase: Phase, distance: float, cells: int) -> Part | Unavailable:
    """The claimed epsilon's level for one release; for more the one that tells a release apart best."""
    mechanism = phase.mechanism
    if (mechanism.dimension or 1) < 2:
        return Unavailable("radial noise needs a dimension of at least 2")
    data, value = to_dict(mechanism), repr(float(mechanism.clip) * distance)
    noise = RadialNoise(int(data["dimension"]), ball(data["sigma"]), ball(value))
    level = float(claim.epsilon)
    if len(claim.phases) > 1 or phase.steps > 1 or phase.sampling_prob < 1 or level == 0:
        size = float(value) * math.sqrt(data["dimension"]) / data["sigma"]
        level = max(map(float, np.geomspace(0.05 * size, 30.0 * size, LEVELS)), key=partial(_power, noise, phase))
    places = tuple(chosen_places(noise, ball(level), sign, cells) for sign in (1, -1))
    return LabelledLoss(value, repr(level), (0, 1), (places[0], places[1]))


def _power(noise: RadialNoise, phase: Phase, level: float) -> float:
    """Gain of the label's mean over its standard deviation, without the record."""
    p, q = (float(loss_tail(noise, ball(level), sign, ROUGH, RADIUS_CELLS).mid()) for sign in (1, -1))
    return phase.sampling_prob * (p - q) / math.sqrt(max(q * (1 - q), 1.0 / phase.steps**2))


def _pass_losses(phase: Phase, part: LabelledPass, direction: str, bits: int) -> tuple[Array, Array, Array]:
    """(loss, first masses, second masses) of every sum of scores."""
    window = ScoreWindow(part.window, bits)
    laws = pass_laws(phase, part, window)
    first, second = (np.array([int(x) / 2**bits for x in window.masses(law)[part.window :]]) for law in laws)
    p, q = (first, second) if direction == "remove" else (second, first)
    place, known = np.arange(len(p)), (p > 0) & (q > 0)
    loss = np.log(np.maximum(p, 1e-320)) - np.log(np.maximum(q, 1e-320))
    return np.interp(place, place[known], loss[known]) if known.any() else place.astype(float), p, q


def _label_losses(phase: Phase, part: Part, direction: str, bits: int) -> tuple[Array, Array, Array]:
    """(sampled loss, first masses, second masses) of every value of the part's own label."""
    if isinstance(part, LabelledPass):
        return _pass_losses(phase, part, direction, bits)
    if isinstance(part, LabelledSum):
        masses = sum_masses(phase, replace(part, labels=()), bits)
    else:
        window = ScoreWindow(1, bits)
        laws = label_laws(phase, part, window)
        masses = window.masses(laws.moved), window.masses(laws.plain_low)
    p, q = (np.array([int(x) / 2**bits for x in side]) for side in masses)
    rate = phase.sampling_prob
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.where((p > 0) & (q > 0), np.log(np.maximum(p, 1e-320)) - np.log(np.maximum(q, 1e-320)), np.nan)
        place = np.arange(len(p))
        known = np.isfinite(ratio)
        ratio = np.interp(place, place[known], ratio[known]) if known.any() else place.astype(float)
        loss = np.where(
            ratio > 0,
            ratio + np.log(rate + (1 - rate) * np.exp(-np.abs(ratio))),
            np.log1p(rate * np.expm1(np.minimum(ratio, 0.0))) if rate < 1 else ratio,
        )
    mixed = rate * p + (1 - rate) * q
    return (loss, mixed, q) if direction == "remove" else (-loss, q, mixed)


def _unit(claim: Claim, counts: Sequence[int], losses: Sequence[tuple[Array, Array, Array]]) -> tuple[float, int]:
    """(loss of one label, window) of a history of so many labels of every phase."""
    variance, reach, finest, single = 0.0, 0.0, math.inf, sum(counts) == 1
    for count, (loss, p, q) in zip(counts, losses, strict=True):
        mean = float(q @ loss)
        spread = float(q @ (loss - mean) ** 2)
        variance += count * spread
        reach += count * max(abs(mean), abs(float(p @ loss)))
        finest = min(finest, max(math.sqrt(spread), 1e-12))
    needed = max(reach + HISTORY_REACH * math.sqrt(variance), claim.epsilon + 3 * math.sqrt(variance))
    if single:
        needed = float(np.abs(losses[0][0]).max()) or 1.0
        return max(needed / WIDEST, 1e-12), WIDEST
    unit = max(finest * RELEASE, needed / WIDEST_SUM)
    return unit, min(WIDEST_SUM, max(2, math.ceil(needed / unit)))


def _relabelled(part: Part, values: Array, window: int) -> Part:
    """The part with these labels, rounded; those of two may not fall."""
    found = np.clip(np.rint(np.nan_to_num(values)), -window, window).astype(int)
    if isinstance(part, (LabelledPass, LabelledSum)):
        return replace(part, labels=tuple(map(int, found)))
    return replace(part, labels=(int(found[1]), int(max(found[1:]))))


def _threshold(claim: Claim, event: Event) -> int:
    """The threshold with the largest P - e^epsilon Q."""
    window = ScoreWindow(event.window, event.bits)
    first, second = (window.masses(law) for law in total_laws(tuple(claim.phases), event))
    growth = int((ball(claim.epsilon).exp() * 2**event.bits).mid().floor().unique_fmpz())
    p, q = 0, 2**event.bits - int(sum(second))  # what is left out belongs to every event
    best, found = -(2 ** (3 * event.bits)), event.window
    for i in range(2 * event.window, -1, -1):
        p, q = p + int(first[i]), q + int(second[i])
        value = (p << event.bits) - growth * q
        if value > best:
            best, found = value, i - event.window
    return found
