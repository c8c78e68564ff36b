"""Certified lower bounds on a claim's privacy curve: search for a witness, certify it, keep the best."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache

import numpy as np

from dpaudit.mechanisms.base import Array, NormalCoordinates, Radial, ScaleMixture
from dpaudit.verify.claims import PLAIN_KINDS, Claim, Phase, first_seen
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.buffered_streams import stream_curve
from dpaudit.verify.lower.cut_batches import cut_curve
from dpaudit.verify.lower.exceedances import exceedance_curves
from dpaudit.verify.lower.families import (
    MAX_COORDINATES,
    ONE_EVENT,
    Group,
    Shift,
    carried,
    equal,
    feasible,
    majorization,
    two_level,
)
from dpaudit.verify.lower.histories import (
    EVENT,
    SKIPPED,
    ShiftedPhase,
    has_cells,
    history_points,
    never_pure,
    pure_at_least,
    shifted_phase,
)
from dpaudit.verify.lower.passes import REPLACED_BY_NOTHING, pass_curve, silent_others
from dpaudit.verify.lower.pure_limits import pure_limit
from dpaudit.verify.lower.shifts import DECISIVE_LOSS, candidate_counts, longest_count, mixture_counts, scores
from dpaudit.verify.lower.strongest import FIRST_RELEASES, FIRST_SEEN, aim, event, merit, strongest_curve
from dpaudit.verify.pld.coordinate_cells import MANY
from dpaudit.verify.pld.operating_points import Events
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import BallsInBins, BufferedShuffle, Shuffled, WithoutReplacement
from dpaudit.verify.samplers.balls_in_bins import SILENT

HOPELESS_LOSS = 1e6  # nats of one coordinate at its centre, beyond which grids of losses are out of reach
CERTIFIED_SHIFTS = 3  # shifts of equal coordinates that are certified after the ranking
AS_GOOD, MUCH_FEWER = 0.998, 8  # of the largest score, and times as few coordinates
APART = "apart"  # family of a shift beside which every other phase may be moved by a shape of its own
RIVAL_FACTOR = 1.01  # by how much the score of another family must exceed theirs, to be worth its time
THEOREM = (
    f"{ONE_EVENT}, with both probabilities bounded from exact cell masses (post-processing; Chernoff; Higham 2002, "
    "Theorem 24.2)"
)
ONE_COORDINATE = "lower bound: the dimension is not given, so only shifts of one coordinate were searched"
UNBOUNDED = "privacy loss of the history larger than any epsilon, which has a probability above 0"
COARSE = 1e3  # nats of a claim, beyond which a grid that holds such losses is coarse
TINY = 1e-25  # of delta, below which what many releases show is lost in their sums
ALONE = "lower bound: by one phase, one pass or one release, alone; the others are left out, which only lowers it"


@dataclass(frozen=True)
class _Finding:
    """A neighbouring pair with the operating points certified for it."""

    releases: tuple[ShiftedPhase, ...]
    direction: str
    points: Events


def certified_lower(claim: Claim) -> Curve:
    """A valid lower bound on delta(epsilon) of the claim's history, with the neighbouring pair that attains it.

    delta(epsilon) >= max over witnesses and events S of P(S) - e^epsilon Q(S); epsilon(delta) >= max log((P(S) -
    delta) / Q(S)). Shifts of m equal coordinates, of two levels and of the majorization shape are ranked by their Renyi
    epsilon and the best few certified; the other direction is certified for the best of them. Releases without a
    theorem for their sampling are left out of the history (post-processing).

    Args:
        claim: The history; the search is tuned to its (epsilon, delta), the bound holds everywhere.

    Returns:
        A curve of side "lower"; zero everywhere, without a witness, where no release can be bounded.

    Example:
        >>> from dpaudit.mechanisms import Gaussian
        >>> claim = Claim.single(Gaussian(1.0), epsilon=1.0, delta=1e-5, steps=1000, sampling_prob=0.01)
        >>> bound = certified_lower(claim)
        >>> round(float(bound.epsilon(np.array([1e-5]))[0]), 2)
        1.83
    """
    read = claim.canonical("lower")
    whole = _of_the_whole(read)
    shown = merit(whole, read)
    grid_may_be_short = shown[0] == 0 or (shown[0] <= read.delta and read.epsilon > COARSE)
    if read.delta > 0 and grid_may_be_short:
        counted = [one for one in exceedance_curves(read, filter(_is_plain, read.phases)) if merit(one, read) > shown]
        counted.sort(key=lambda one: merit(one, read), reverse=True)
        whole = _stronger([*counted, whole], read) if counted else whole
    tiny = 0.0 < read.delta < TINY
    if (all(map(_bounded, read.phases)) and not tiny) or _shown(whole, read) > read.delta:
        return whole
    # passes of very different losses have one grid of scores: some of them alone may show more
    parts = [[phase] for phase in read.phases] if len(read.phases) > 1 else []
    if tiny:
        parts += [[replace(phase, steps=1)] for phase in read.phases if phase.steps > 1 and _is_plain(phase)]
    if _shown(whole, read) == 0:
        parts += [[first] for phase in read.phases if (first := _first_pass(phase)) is not None]
    alone = [_of_the_whole(replace(read, phases=part)) for part in parts]
    better = [one for one in alone if any(a > b for a, b in zip(merit(one, read), merit(whole, read), strict=True))]
    noted = [replace(one, assumptions=tuple(dict.fromkeys([*one.assumptions, ALONE]))) for one in better]
    return _stronger([whole, *noted], read) if noted else whole


def _shown(curve: Curve, claim: Claim) -> float:
    """What a lower bound shows at the claimed epsilon."""
    return float(curve.delta(np.array([claim.epsilon]))[0])


def _is_plain(phase: Phase) -> bool:
    return phase.sampler is None and phase.correlation is None and phase.sampling_kind in PLAIN_KINDS


def _first_pass(phase: Phase) -> Phase | None:
    """The first of several passes; None of other phases."""
    sampler = phase.sampler
    if not isinstance(sampler, Shuffled | BallsInBins | BufferedShuffle) or (sampler.epochs or 1) == 1:
        return None
    return Phase(phase.mechanism, sampler=replace(sampler, epochs=1))


def _of_the_whole(read: Claim) -> Curve:
    """The lower bound of all phases that compose."""
    claim, beside = silent_others(read), _beside(read)
    stream = stream_curve(read)
    curves = _part_curves(claim) + _noted([cut_curve(read, beside)], read, beside)
    curves += [] if stream is None else [stream]
    if any(_in_more_coordinates(phase) for phase in claim.phases):
        drawn = silent_others(claim, drawn=True)
        curves += [replace(curve, assumptions=(*curve.assumptions, SILENT)) for curve in _part_curves(drawn)]
    if not curves:
        curves = [Curve("lower", "witness", "none applies", np.zeros_like, np.zeros_like, (SKIPPED,))]
    return _at_the_limit(curves[0] if len(curves) == 1 else _stronger(curves, claim), claim)


def _at_the_limit(curve: Curve, claim: Claim) -> Curve:
    """A lower bound that knows the pure epsilon of the history where that has a closed form."""
    limit = pure_limit(claim)
    if limit.epsilon <= 0 or never_pure(claim):
        return _without_pure(curve, claim)

    def epsilon(delta: Array) -> Array:
        return np.maximum(curve.epsilon(delta), np.where(delta == 0, limit.epsilon, 0.0))

    notes = (*curve.assumptions, *limit.assumptions) if claim.delta == 0 else curve.assumptions
    return replace(curve, epsilon=epsilon, assumptions=tuple(dict.fromkeys(notes)))


def _without_pure(curve: Curve, claim: Claim) -> Curve:
    """A lower bound that says that no epsilon is enough at delta = 0 where the noise has no bounded loss."""
    if not never_pure(claim):
        return curve
    found = replace(curve, epsilon=lambda delta: np.where(delta == 0, np.inf, curve.epsilon(delta)))
    if claim.delta > 0 or curve.witness is None:
        return found
    return replace(found, witness=replace(curve.witness, event=UNBOUNDED))


def _in_more_coordinates(phase: Phase) -> bool:
    """Whether batches of fixed size say more with the others silent, as Poisson ones, than passes of one release."""
    known = isinstance(phase.sampler, WithoutReplacement) and has_cells(phase.mechanism)
    return known and phase.mechanism.dimension != 1 and not isinstance(phase.mechanism.structure, NormalCoordinates)


def _part_curves(claim: Claim) -> list[Curve]:
    """Lower bounds by the passes of a history with what composes with them, and by the releases without passes."""
    phases, beside = [phase for phase in claim.phases if _bounded(phase)], _beside(claim)
    radial = [item for item in beside if item.tails is not None]
    passes = [pass_curve(claim, beside), pass_curve(claim, beside, spread=True)]
    if radial:  # the grid for their tails may be too coarse for all else
        passes.append(pass_curve(claim, [item for item in beside if item.tails is None]))
    found = _noted(passes, claim, beside)
    return found + ([_shift_curve(claim, phases)] if phases and (radial or not found) else [])


def _noted(curves: Sequence[Curve | None], claim: Claim, beside: Sequence[ShiftedPhase]) -> list[Curve]:
    """The curves that there are, with what the reader must accept for the phases beside their own."""
    phases = tuple(item.phase for item in beside)
    notes = _assumptions(replace(claim, phases=phases), phases) if phases else ()
    found = [curve for curve in curves if curve is not None]
    return [replace(one, assumptions=tuple(dict.fromkeys([*one.assumptions, *notes]))) for one in found]


def _beside(claim: Claim) -> list[ShiftedPhase]:
    """Phases of a history with other samplers that compose with those, each under its own most promising shift."""
    phases = [phase for phase in claim.phases if _bounded(phase)]
    if len(phases) == len(claim.phases):
        return []
    return [shifted_phase(claim, *moved) for moved in zip(phases, _own_shifts(claim, phases), strict=True)]


def _stronger(curves: Sequence[Curve], claim: Claim) -> Curve:
    """The pointwise larger of bounds for parts of one history, each of which is a post-processing of it."""
    notes = dict.fromkeys(note for curve in curves for note in curve.assumptions)
    return strongest_curve(curves, claim, curves[0].theorem, tuple(notes), lambda index: curves[index].witness)


def _shift_curve(claim: Claim, phases: Sequence[Phase]) -> Curve:
    """The lower bound of these phases by the best of the shifts."""
    ways = directions(claim, phases)
    tried = [_moves(claim, phases, shift) for shift in _promising(claim, phases)]
    if len(phases) > 1:
        apart = _moves(claim, phases, replace(_own_shift(claim, phases[0]), family=APART))
        if _groups(apart) not in map(_groups, tried):
            tried.append(apart)
    findings = [_certify(claim, phases, moves, ways[0]) for moves in tried]
    releases = max(findings, key=lambda finding: merit(finding.points, claim)).releases
    findings += [_Finding(releases, way, history_points(releases, way, claim)) for way in ways[1:]]
    return _curve(findings, claim, phases)


def replayed_lower(claim: Claim, witness: Witness) -> Curve:
    """The certified lower bound on delta(epsilon) that one witness alone proves.

    Args:
        claim: The history.
        witness: Its shift, [[value, count], ...] in the first phase's units, and direction; the other fields are not
            used. Other phases are shifted by the same shape, as far out in their ball; where all noise is normal or the
            family is "apart", each by the shape that is most promising for it alone;
            parts of one correlated phase by one shape.

    Returns:
        A curve of side "lower", with the witness computed again.

    Raises:
        ValueError: No release can be bounded, the shift is not one a clipped record can cause, or the direction is
            not one of the claim's adjacency.

    Example:
        >>> from dpaudit.mechanisms import Laplace
        >>> claim = Claim.single(Laplace(2.0, dimension=3), epsilon=0.2, delta=1e-5)
        >>> found = certified_lower(claim)
        >>> again = replayed_lower(claim, Witness.from_dict(found.witness.to_dict()))
        >>> bool(again.delta(np.array([0.2])) == found.delta(np.array([0.2])))
        True
    """
    claim = claim.canonical("lower")
    phases = [phase for phase in claim.phases if _bounded(phase)]
    if not phases:
        raise ValueError(f"Expected claim {claim.id!r} to have a release that can be bounded.")
    swaps = claim.adjacency == "replace-one"
    if witness.direction not in (("swap",) if swaps else ("remove", "add")):
        raise ValueError(f"Expected direction={witness.direction!r} to fit adjacency={claim.adjacency!r}.")
    shift = feasible(phases[0].mechanism, witness.shift, witness.family)
    ways = directions(claim, phases) if swaps else [witness.direction]
    moves = _moves(claim, phases, shift)
    return _without_pure(_curve([_certify(claim, phases, moves, way) for way in ways], claim, phases), claim)


def _curve(findings: Sequence[_Finding], claim: Claim, phases: Sequence[Phase]) -> Curve:
    """The largest of several certified lower bounds, with the witness that is best at the claim."""
    points = [finding.points for finding in findings]
    curve = strongest_curve(
        points, claim, THEOREM, _assumptions(claim, phases), lambda index: _witness(findings[index], claim)
    )

    @cache
    def pure() -> float:
        return max(pure_at_least(finding.releases, finding.direction, claim) for finding in findings)

    def epsilon(delta: Array) -> Array:
        found = curve.epsilon(delta)
        return np.where(delta == 0, np.maximum(found, pure()), found) if (delta == 0).any() else found

    return replace(curve, epsilon=epsilon)


def _bounded(phase: Phase) -> bool:
    """Whether the phase has a theorem here: Poisson or no sampling, and a known direction where there is one."""
    return has_cells(phase.mechanism) and phase.sampling_kind in PLAIN_KINDS


def _promising(claim: Claim, phases: Sequence[Phase]) -> list[Shift]:
    """Shifts of the first phase worth certifying, ranked on the phase that contributes most."""
    main = max(phases, key=lambda phase: phase.steps * phase.sampling_prob**2)
    smallest = min((phase.mechanism for phase in phases), key=lambda m: m.dimension or 1)
    structure, distance = main.mechanism.structure, 1.0 if claim.adjacency == "add-remove" else 2.0
    first = phases[0].mechanism
    if _all_normal(phases):
        return [equal(first, longest_count(first))]
    if isinstance(structure, Radial | NormalCoordinates):
        return [equal(first, min(longest_count(main.mechanism), max(smallest.dimension or 1, 1)))]
    if isinstance(structure, ScaleMixture):
        return [equal(first, m) for m in mixture_counts(structure, smallest, main, distance, claim.delta)]
    counts = candidate_counts(smallest, MAX_COORDINATES)
    if len(counts) == 1:
        return [equal(first, 1)]
    alike = [equal(main.mechanism, count) for count in counts]
    at = structure.logpdf(np.array([0.0, distance * alike[0].groups[0][0]]))  # one coordinate moved
    if not at[0] - at[1] < HOPELESS_LOSS:
        return [equal(first, 1)]
    others = [*two_level(main.mechanism, counts[-1]), *majorization(main.mechanism, counts[-1])]
    epsilons = scores(structure, main, distance, alike + others, claim.delta)
    if epsilons[0] > max(DECISIVE_LOSS, 2 * claim.epsilon):
        return [equal(first, 1)]
    ranked = np.argsort(-epsilons[: len(alike)], kind="stable")
    best = [alike[i] for i in ranked[:CERTIFIED_SHIFTS]]
    if best[0].coordinates > MANY:  # half as many are as good
        best = [best[0], alike[max(i for i, shift in enumerate(alike) if shift.coordinates <= MANY)]]
    # what a few coordinates tell nearly as well they tell more surely: the rounding of fewer masses adds up to less
    few = alike[int(np.argmax(epsilons[: len(alike)] >= AS_GOOD * epsilons[ranked[0]]))]
    if MUCH_FEWER * few.coordinates < min(shift.coordinates for shift in best):
        best.append(few)
    rival = int(np.argmax(epsilons))
    if rival >= len(alike) and epsilons[rival] > RIVAL_FACTOR * epsilons[: len(alike)].max():
        best.append(others[rival - len(alike)])
    return [carried(shift, main.mechanism, first) for shift in best]


def _all_normal(phases: Sequence[Phase]) -> bool:
    return all(isinstance(phase.mechanism.structure, NormalCoordinates) for phase in phases)


def _own_shift(claim: Claim, phase: Phase) -> Shift:
    """The most promising shift of a phase, whatever the record does in others."""
    return _promising(claim, [phase])[0]


def _own_shifts(claim: Claim, phases: Sequence[Phase], first: Shift | None = None) -> list[Shift]:
    """Such a shift of every phase, of the first one as given; in all parts of one a contribution has one shape."""
    found: list[Shift] = []
    for i, (phase, at) in enumerate(zip(phases, first_seen(phases), strict=True)):
        if at < i:
            found.append(carried(found[at], phases[at].mechanism, phase.mechanism))
        else:
            found.append(_own_shift(claim, phase) if i or first is None else first)
    return found


def _moves(claim: Claim, phases: Sequence[Phase], shift: Shift) -> list[Shift]:
    """The shift of every phase that goes with one of the first: its proportions, or each phase's own."""
    owner, others = phases[0].mechanism, phases[1:]
    if shift.family == APART or _all_normal(phases):
        return _own_shifts(claim, phases, shift)
    return [shift, *(carried(shift, owner, phase.mechanism) for phase in others)]


def _groups(moves: Sequence[Shift]) -> list[tuple[Group, ...]]:
    return [move.groups for move in moves]


def directions(claim: Claim, phases: Sequence[Phase]) -> list[str]:
    """Directions of the privacy loss to certify: "remove" and "add", or one where they are mirror images."""
    sampled = any(phase.sampling_prob < 1.0 for phase in phases)
    if claim.adjacency == "replace-one":
        nothing = any(isinstance(phase.mechanism.structure, Radial) and phase.sampling_prob < 1.0 for phase in phases)
        return ["swap", "add"] if nothing else ["swap"]
    return ["remove", "add"] if sampled else ["remove"]


def _certify(claim: Claim, phases: Sequence[Phase], moves: Sequence[Shift], direction: str) -> _Finding:
    """Operating points of the history under a shift of each phase, in one direction."""
    releases: list[ShiftedPhase] = []
    for phase, own in zip(phases, moves, strict=True):
        known = (item.at(phase, claim.adjacency) for item in releases if item.shift == own)
        releases.append(next((item for item in known if item is not None), None) or shifted_phase(claim, phase, own))
    return _Finding(tuple(releases), direction, history_points(releases, direction, claim))


def _assumptions(claim: Claim, phases: Sequence[Phase]) -> tuple[str, ...]:
    structures = [phase.mechanism.structure for phase in phases]
    notes = []
    if len(phases) < len(claim.phases):
        notes.append(SKIPPED)
    if any(phase.mechanism.dimension is None for phase in phases):
        notes.append(ONE_COORDINATE)
    if claim.adjacency == "replace-one" and any(
        isinstance(structure, Radial) and phase.sampling_prob < 1.0
        for structure, phase in zip(structures, phases, strict=True)
    ):
        notes.append(REPLACED_BY_NOTHING)
    if any(phase.steps > FIRST_RELEASES[0] for phase in phases):
        notes.append(FIRST_SEEN)
    return tuple(notes)


def _witness(finding: _Finding, claim: Claim) -> Witness:
    """A neighbouring pair and the event that is best at the claim, as the verdict shows them."""
    seen = event(finding.points, aim(finding.points, claim), EVENT)
    return finding.releases[0].shift.witness(claim, finding.direction, seen)
