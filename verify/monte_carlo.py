"""Verification by sampling, independent of the exact numerics: outputs are drawn, and their exact loss computed.

No loss is rounded and no distribution convolved. Where many coordinates are shifted, no more is drawn than how many
of them fall into each of a few cells, a function of the output with an exact loss of its own (modules labels and
hidden_scale). One shift is examined at a time, so a value found here bounds the mechanism's delta from below.
"""

import math
from dataclasses import replace

import numpy as np

from dpaudit.mechanisms.base import (
    Domain,
    IIDCoordinates,
    NormalCoordinates,
    Radial,
    ScaleMixture,
    require_dimension,
    with_dimension,
)
from dpaudit.verify.bounds.rates import valid_confidence, valid_count
from dpaudit.verify.claims import Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.passes import silent_others
from dpaudit.verify.lower.shifts import candidate_counts, longest_count, ranked_counts
from dpaudit.verify.results import Direction
from dpaudit.verify.sampling.histories import PlainHistories, ShiftedPhase, drawable, shifted_phases
from dpaudit.verify.sampling.pilots import FEWEST, MOST_FLOATS, PILOT, weighing_pilot
from dpaudit.verify.sampling.proposals import Step, counted, proposal_at, tilted_steps

SAMPLES = Domain(100, math.inf, (10_000, 1_000_000), "histories", closed_low=True, integer=True)
PILOTED_COUNTS = 2  # numbers of equal coordinates that a pilot compares, in each direction
MOST_COORDINATES = 2**17
TRIED = 16  # histories of one release each, whose losses are to be finite
BEYOND_FLOATS = "its noise or its losses are out of reach of floating point"
THEOREM = (
    "definition of delta: P(S) - e^epsilon Q(S) of one event fixed before the counted draws; importance sampling with "
    "bounded weights and Waudby-Smith and Ramdas (2024), Section 4"
)


def monte_carlo_lower(
    claim: Claim,
    *,
    rng: np.random.Generator,
    samples: int = 40_000,
    confidence: float = 0.95,
) -> Curve:
    """A lower bound on the claim's delta and epsilon by sampling, with the witness that gives it.

    Shifts of m equal coordinates are ranked by a guess at their Renyi epsilon, pilots of the best few in both
    directions choose one of them together with its tilts and bets, and fresh histories bound delta at the claimed
    epsilon (`mean_lower`) and epsilon at the claimed delta (`level_lower`). Proof of the level: pilot and fresh draws
    are independent, so given the pilot two fixed variables of one fixed pair are bounded, each at half of
    1 - confidence.

    Args:
        claim: What is claimed.
        rng: Source of all randomness.
        samples: Histories drawn in all, at least 100; fewer are, where one takes long.
        confidence: Level in (0, 1) of everything returned.

    Returns:
        A curve of side "lower", with the witness that gives it.

    Raises:
        ValueError: A parameter is out of range, a sampling kind has no theorem, or a needed dimension is not set.

    Source: Waudby-Smith and Ramdas (2024), Section 4.
    """
    valid_count("samples", samples, SAMPLES)
    tail = 1.0 - valid_confidence(confidence)
    claim = _seen(silent_others(claim.canonical("lower")))
    pairs, final = _pairs(claim, samples), samples - int(PILOT * samples)
    pilot = max(2, int(PILOT * samples) // len(pairs))
    pilots = [weighing_pilot(*pair, claim, rng, pilot=pilot, final=final) for pair in pairs]
    best = max(range(len(pairs)), key=lambda index: pilots[index][0])
    outcome = pilots[best][1](rng, tail)
    shift = pairs[best][0][0].shift
    witness = shift.witness(claim, pairs[best][1], f"total privacy loss > {outcome.epsilon(claim.delta):.6g}")
    note = f"a sampled bound: it holds at confidence {confidence:g}"
    delta, epsilon = (np.vectorize(bound, otypes=[np.float64]) for bound in (outcome.delta, outcome.epsilon))
    return Curve("lower", "monte-carlo", THEOREM, delta, epsilon, (note,), witness)


def undrawable(claim: Claim) -> str:
    """Why no histories of a claim are drawn, "" where they are: no theorem, too much work, or numbers beyond floats.

    Args:
        claim: What is claimed.
    """
    claim = _seen(silent_others(claim.canonical("lower")))
    swaps = claim.adjacency == "replace-one"
    missing = [text for text in (drawable(phase, swaps=swaps) for phase in claim.phases) if text]
    if missing:
        return f"expected {missing[0]}"
    direction: Direction = "swap" if swaps else "remove"
    try:
        with np.errstate(over="raise", invalid="raise"):
            parts = shifted_phases(claim, 1, direction)
            steps = tilted_steps(parts, direction)
            work = (PlainHistories(parts, direction) if steps is None else proposal_at(steps, 0.0)).work
            if work * FEWEST > MOST_FLOATS:
                return (
                    f"a history draws {work:.2g} numbers, and {FEWEST} of them more than the {MOST_FLOATS:.0g} allowed"
                )
            single = tuple(replace(part, steps=1) for part in parts)
            losses = PlainHistories(single, direction)(np.random.default_rng(0), TRIED)
            np.square(losses * sum(part.steps for part in parts))  # as their deviation takes it
    except (FloatingPointError, OverflowError):
        return BEYOND_FLOATS
    return "" if np.isfinite(losses).all() else BEYOND_FLOATS


def _seen(claim: Claim) -> Claim:
    """The claim for an adversary who sees no more than MOST_COORDINATES coordinates of noise with a hidden scale.

    Coordinates that are iid given a scale are so without the others: forgetting some is post-processing, and leaves
    the same mechanism in fewer dimensions. Only the density of this law takes time in proportion to its dimension.
    """
    phases = [
        replace(
            phase, mechanism=with_dimension(phase.mechanism, min(require_dimension(phase.mechanism), MOST_COORDINATES))
        )
        if isinstance(phase.mechanism.structure, ScaleMixture) and phase.mechanism.dimension is not None
        else phase
        for phase in claim.phases
    ]
    return replace(claim, phases=phases)


Pair = tuple[tuple[ShiftedPhase, ...], Direction, tuple[Step, ...] | None]


def _pairs(claim: Claim, samples: int) -> list[Pair]:
    """The pairs of neighbours that pilots compare, with their tilted laws."""
    sampled = any(
        phase.sampler is not None or (phase.sampling_kind != "none" and phase.sampling_prob < 1.0)
        for phase in claim.phases
    )
    both: tuple[Direction, ...] = ("remove", "add") if sampled else ("remove",)
    directions: tuple[Direction, ...] = ("swap",) if claim.adjacency == "replace-one" else both
    spread = [
        pair for way in directions for m in _counts(claim, way, samples) for pair in _draws(claim, m, way, samples)
    ]
    return spread or _draws(claim, 1, directions[0], samples)


def _draws(claim: Claim, coordinates: int, way: Direction, samples: int) -> list[Pair]:
    """Tilted draws of one pair of neighbours, plain ones where there are none, as far as they are quickly drawn.

    With a hidden scale the counts alone, tilted, compete with plain draws that keep the whole loss.
    """
    parts = shifted_phases(claim, coordinates, way)
    steps = tilted_steps(parts, way)
    kinds: list[tuple[Step, ...] | None] = [] if steps is None else [steps]
    hidden = any(isinstance(part.mechanism.structure, ScaleMixture) for part in parts)
    quick = PlainHistories(parts, way).work * samples <= MOST_FLOATS or not any(counted(parts, way))
    if quick and (hidden or steps is None):
        kinds.append(None)
    return [(parts, way, kind) for kind in kinds]


def _counts(claim: Claim, direction: Direction, samples: int) -> list[int]:
    """Numbers of equal coordinates worth a pilot, of those whose histories can be drawn in reasonable time."""

    def work(m: int) -> float:
        parts = shifted_phases(claim, m, direction)
        few = zip(parts, counted(parts, direction), strict=True)
        return sum(0.0 if counts else PlainHistories((part,), direction).work for part, counts in few)

    main = max(claim.phases, key=lambda phase: phase.steps * phase.sampling_prob**2)
    smallest = min((phase.mechanism for phase in claim.phases), key=lambda m: m.dimension or 1)
    structure, limit = main.mechanism.structure, smallest.dimension or 1
    if any(phase.sampler is not None for phase in claim.phases) and not isinstance(structure, NormalCoordinates):
        return [1]
    if isinstance(structure, Radial | NormalCoordinates):
        return [min(longest_count(main.mechanism), limit)]
    counts = [m for m in candidate_counts(smallest) if m == 1 or work(m) * samples <= MOST_FLOATS]
    law = structure
    if isinstance(structure, ScaleMixture):
        law = structure.given(float(structure.scale_isf(np.array(1e-2))))
    assert isinstance(law, IIDCoordinates)
    distance = 1.0 if claim.adjacency == "add-remove" else 2.0
    return ranked_counts(law, main, distance, counts, claim.delta)[:PILOTED_COUNTS]
