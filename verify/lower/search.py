"""Certified lower bounds on a claim's privacy curve: search for a witness, certify it, keep the best."""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import IIDCoordinates, Mechanism, Radial, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.loss.composition import Points, merge
from dpaudit.verify.loss.mixture import gauge_count
from dpaudit.verify.lower.histories import Release, history_points, release
from dpaudit.verify.lower.shifts import MAX_COORDINATES, candidate_counts, longest_count, ranked_counts, rate
from dpaudit.verify.results import Witness

Array = NDArray[np.float64]

CERTIFIED = 3  # candidates that are certified after the ranking
THEOREM = (
    "definition of delta: P(S) - e^epsilon Q(S) of one event S for one feasible pair of neighbours, with both "
    "probabilities bounded from exact cell masses (post-processing; Chernoff; Higham 2002, Theorem 24.2)"
)
QUADRATURE = "lower bound: quadrature errors are taken to be at most the change when every second node is left out"
SKIPPED = "lower bound: releases whose sampling or dimension has no theorem here are left out, which only lowers it"
ONE_COORDINATE = "lower bound: the dimension is not given, so only shifts of one coordinate were searched"
REPLACED_BY_NOTHING = "lower bound: the replaced record is taken to contribute nothing"


@dataclass(frozen=True)
class _Finding:
    """One witness with its certified points."""

    releases: tuple[Release, ...]
    direction: str
    points: Points


def certified_lower(claim: Claim) -> Curve:
    """A valid lower bound on delta(epsilon) of the claim's history, with the neighbouring pair that attains it.

    delta(epsilon) >= max over witnesses and events S of P(S) - e^epsilon Q(S); epsilon(delta) >= max log((P(S) -
    delta) / Q(S)). Shifts of m equal coordinates are ranked by their Renyi epsilon, and the best few certified in both
    directions. Releases without a theorem for their sampling are left out of the history (post-processing).

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
    phases = [phase for phase in claim.phases if _bounded(phase)]
    if not phases:
        return Curve("lower", "witness", "none applies", _nothing, _nothing, (SKIPPED,))
    findings = [found for count in _promising(claim, phases) for found in _certify(claim, phases, count)]
    best = max(findings, key=lambda f: (f.points.epsilon(np.array([claim.delta]))[0], _delta_at(f, claim)))
    points = merge([found.points for found in findings])
    notes = _assumptions(claim, phases)
    return Curve("lower", "witness", THEOREM, points.delta, points.epsilon, notes, _witness(best, claim))


def _nothing(points: Array) -> Array:
    """The bound that says nothing."""
    return np.zeros(len(points))


def _bounded(phase: Phase) -> bool:
    """Whether the phase has a theorem here: Poisson or no sampling, and a known direction where there is one."""
    known = (phase.mechanism.dimension or 1) >= 2 or not isinstance(phase.mechanism.structure, Radial)
    return known and phase.sampling_kind in ("poisson", "none")


def _promising(claim: Claim, phases: Sequence[Phase]) -> list[int]:
    """Numbers of equal coordinates worth certifying, ranked on the phase that contributes most."""
    main = max(phases, key=lambda phase: phase.steps * rate(phase) ** 2)
    smallest = min((phase.mechanism for phase in phases), key=lambda m: m.dimension or 1)
    structure, distance = main.mechanism.structure, 1.0 if claim.adjacency == "add-remove" else 2.0
    if isinstance(structure, Radial) or (
        isinstance(structure, IIDCoordinates) and structure.gaussian_sigma is not None
    ):
        return [min(longest_count(main.mechanism), max(smallest.dimension or 1, 1))]
    counts = candidate_counts(smallest)
    if isinstance(structure, IIDCoordinates):
        return ranked_counts(structure, main, distance, counts, claim.delta)[:CERTIFIED]
    return _mixture_counts(structure, smallest, main, distance, claim.delta)


def _mixture_counts(
    structure: ScaleMixture, mechanism: Mechanism, phase: Phase, distance: float, delta: float
) -> list[int]:
    """The same for a hidden scale: as if it were known to be rather large, with room for the gauges."""
    gauges = gauge_count(structure, mechanism.dimension or 1)
    limit = max(1, (mechanism.dimension or 1) - gauges)
    counts = candidate_counts(mechanism, min(limit, MAX_COORDINATES))
    law = structure.given(float(structure.scale_isf(np.array(1e-2))))
    return ranked_counts(law, phase, distance, counts, delta)[: 1 if gauges else 2]


def _certify(claim: Claim, phases: Sequence[Phase], count: int) -> list[_Finding]:
    """Both directions of one shift; one where they are mirror images (a replacement, or no sampling at all)."""
    releases = tuple(release(claim, phase, count) for phase in phases)
    sampled = any(rate(phase) < 1.0 for phase in phases)
    nothing = any(len(item.multiples) == 2 for item in releases)
    if claim.adjacency == "replace-one":
        directions = ["swap", "add"] if sampled and nothing else ["swap"]
    else:
        directions = ["remove", "add"] if sampled else ["remove"]
    return [_Finding(releases, way, history_points(releases, way, claim)) for way in directions]


def _delta_at(found: _Finding, claim: Claim) -> float:
    return float(found.points.delta(np.array([claim.epsilon]))[0])


def _assumptions(claim: Claim, phases: Sequence[Phase]) -> tuple[str, ...]:
    structures = [phase.mechanism.structure for phase in phases]
    notes = []
    if len(phases) < len(claim.phases):
        notes.append(SKIPPED)
    if any(phase.mechanism.dimension is None for phase in phases):
        notes.append(ONE_COORDINATE)
    if any(not isinstance(structure, IIDCoordinates) for structure in structures):
        notes.append(QUADRATURE)
    if claim.adjacency == "replace-one" and any(
        isinstance(structure, Radial) and rate(phase) < 1.0 for structure, phase in zip(structures, phases, strict=True)
    ):
        notes.append(REPLACED_BY_NOTHING)
    return tuple(notes)


def _witness(found: _Finding, claim: Claim) -> Witness:
    """The pair and the event that is best at the claimed epsilon, or at the claimed delta if that proves nothing."""
    shift, points = found.releases[0].shift, found.points
    claimed = float(points.delta(np.array([claim.epsilon]))[0]) > 0
    at = claim.epsilon if claimed else float(points.epsilon(np.array([claim.delta]))[0])
    event = "none"
    if len(points.threshold):
        best = points.best_event(at)
        event = (
            f"privacy loss of the whole history (each step's to the nearest grid point) >= "
            f"{points.threshold[best]:.6g}: probability at least {points.first_lower[best]:.6g} against at most "
            f"{math.exp(points.log_second_upper[best]):.6g}"
        )
    direction = "swap" if claim.adjacency == "replace-one" else found.direction
    return Witness(
        family="equal",
        coordinates=shift.coordinates,
        norm=shift.norm,
        shift=[[shift.value, shift.coordinates]],
        direction=direction,  # type: ignore[arg-type]
        event=event,
    )
