"""Verification by sampling, independent of the exact numerics: noise from the sampler, loss from the density.

Nothing here discretizes a loss or convolves a distribution. One shift is examined at a time, so a value found here
bounds the mechanism's delta from below; its upper ends hold for that one pair of neighbours only.
"""

import math
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from dpaudit.mechanisms.base import Domain, IIDCoordinates, Radial, ScaleMixture, require_dimension
from dpaudit.verify.bounds.rates import valid_confidence, valid_count
from dpaudit.verify.claims import EPSILON, Claim
from dpaudit.verify.curves import Curve
from dpaudit.verify.lower.shifts import candidate_counts, longest_count, ranked_counts
from dpaudit.verify.results import Witness
from dpaudit.verify.sampling.betting import mean_lower, mean_upper
from dpaudit.verify.sampling.chunks import Progress
from dpaudit.verify.sampling.experiments import (
    Experiment,
    Outcome,
    Runner,
    Target,
    ceiling_of,
    counting_experiment,
    draw_excess,
    draw_for,
    rounding_of,
    uncovered_by,
    weighing_experiment,
)
from dpaudit.verify.sampling.histories import Direction, Release, releases
from dpaudit.verify.sampling.proposals import tilted_steps
from dpaudit.verify.sampling.sums import resized

Array = NDArray[np.float64]

SAMPLES = Domain(100, math.inf, (10_000, 1_000_000), "histories", closed_low=True, integer=True)
PILOT = 0.2  # share of the histories that choose tilt, bet, threshold and witness; the others are counted
SEARCHED = 2  # numbers of equal coordinates that a pilot compares, in each direction
MOST_FLOATS = 1e9  # a shift whose histories need more draws than this in all is left out of the search
MOST_SEEN = 2**17
THEOREM = (
    "definition of delta: P(S) - e^epsilon Q(S) of one event fixed before the counted draws; Clopper and Pearson "
    "(1934), or importance sampling with bounded weights and Waudby-Smith and Ramdas (2024), Section 4"
)


@dataclass(frozen=True)
class MonteCarloLower:
    """What sampling proved about a claim from below, everything at once at the stated confidence.

    Args:
        delta_lower: Lower bound on delta at the claimed epsilon.
        epsilon_lower: Lower bound on epsilon at the claimed delta.
        confidence: Level of the two together, and of the whole curve.
        witness: The pair of neighbours and the event.
        samples: Histories drawn, pilot included.
        curve: The same as a curve of side "lower".
    """

    delta_lower: float
    epsilon_lower: float
    confidence: float
    witness: Witness
    samples: int
    curve: Curve


def delta_interval(
    claim: Claim,
    epsilon: float,
    *,
    rng: np.random.Generator,
    samples: int,
    confidence: float = 0.95,
    coordinates: int = 1,
    direction: Direction = "remove",
    workers: int = 1,
    progress: Progress | None = None,
) -> tuple[float, float]:
    """Two-sided confidence interval for delta(epsilon) of ONE pair of neighbours over the claim's whole history.

    delta(epsilon) = E_F[(1 - e^(epsilon - L))_+] = E_R[dF/dR (1 - e^(epsilon - L))_+], L the total loss, F the first of
    the two distributions, R a tilted proposal under which the variable is bounded and of the size of delta (module
    proposals), or F itself where no tilt is known. The mean of a bounded variable is enclosed by betting
    (`mean_lower`, `mean_upper`), at (1 - confidence)/2 on each side. The tilt and the bets come from a fifth of the
    histories, the interval from the others.

    The lower end is a lower bound for the mechanism; the upper end is NOT an upper bound for it.

    Args:
        claim: History and adjacency; its own epsilon and delta are not used.
        epsilon: At least 0, finite.
        rng: Source of all randomness.
        samples: Histories drawn in all, at least 100.
        confidence: Level in (0, 1).
        coordinates: m: the shift is m equal coordinates at the clip, in every phase.
        direction: "remove", "add", or "swap" for replace-one claims.
        workers: Processes; the result does not depend on it.
        progress: Told now and then how many histories were just drawn.

    Returns:
        (lower, upper), in [0, 1].

    Raises:
        ValueError: A parameter is out of range, the direction does not fit the adjacency, the shift not the
            dimension, or a sampling kind has no theorem.

    Source: Waudby-Smith and Ramdas (2024); Balle et al. (2020), Theorem 21, for the ceiling of the tilted variable.

    >>> from dpaudit.mechanisms import Gaussian
    >>> claim = Claim.single(Gaussian(1.0), epsilon=4.0, delta=1e-5)
    >>> lower, upper = delta_interval(claim, 6.0, rng=np.random.default_rng(1), samples=20_000)
    >>> lower < 2.788e-9 < upper < 1.1 * lower  # the exact value is 2.788e-9
    True
    """
    EPSILON.validate("epsilon", epsilon)
    SAMPLES.validate("samples", samples)
    tail = (1.0 - valid_confidence(confidence)) / 2.0
    run = Runner(rng, workers, progress)
    parts = releases(claim, coordinates, direction)
    draw = draw_for(parts, direction, tilted_steps(parts, direction), epsilon)
    ceiling, rounding = math.exp(ceiling_of(draw, epsilon)), rounding_of(draw)
    seen = draw_excess(draw, epsilon, run, int(PILOT * samples))
    fresh = draw_excess(draw, epsilon, run, samples - int(PILOT * samples))
    lower = ceiling * mean_lower(fresh, seen, tail=tail) * (1.0 - rounding)
    upper = ceiling * mean_upper(fresh, seen, tail=tail) * (1.0 + rounding) + uncovered_by(draw)
    return lower, min(upper, 1.0)


def monte_carlo_lower(
    claim: Claim,
    *,
    rng: np.random.Generator,
    samples: int = 40_000,
    confidence: float = 0.95,
    counting: bool = False,
    workers: int = 1,
    progress: Progress | None = None,
) -> MonteCarloLower:
    """A lower bound on the claim's delta and epsilon by sampling, with the witness that gives it.

    Shifts of m equal coordinates are ranked by a guess at their Renyi epsilon, pilots of the best few in both
    directions choose one of them together with its tilts and bets, and fresh histories bound delta at the claimed
    epsilon (`mean_lower`) and epsilon at the claimed delta (`level_lower`). Proof of the level: pilot and fresh draws
    are independent, so given the pilot two fixed variables of one fixed pair are bounded (or, counting, four fixed
    rates), each at its share of 1 - confidence.

    Args:
        claim: What is claimed.
        rng: Source of all randomness.
        samples: Histories drawn in all, at least 100.
        confidence: Level in (0, 1) of everything returned.
        counting: Count events in plain draws from both distributions instead of weighing draws from one. The level
            then rests on the sampler alone, right density or not; small deltas are out of reach.
        workers: Processes; the result does not depend on it.
        progress: Told now and then how many histories were just drawn.

    Raises:
        ValueError: A parameter is out of range, a sampling kind has no theorem, or a needed dimension is not set.

    Source: Clopper and Pearson (1934); Waudby-Smith and Ramdas (2024), Section 4.
    """
    valid_count("samples", samples, SAMPLES)
    tail = 1.0 - valid_confidence(confidence)
    run, target = Runner(rng, workers, progress), Target(claim.epsilon, claim.delta)
    claim = _seen(claim)
    pairs, examine = _pairs(claim, samples), counting_experiment if counting else weighing_experiment
    final = samples - int(PILOT * samples)
    best: tuple[Experiment, tuple[Release, ...], Direction] | None = None
    for parts, direction in pairs:
        pilot = max(2, int(PILOT * samples) // len(pairs))
        found = examine(parts, direction, target, run, pilot=pilot, final=final)
        if best is None or found.promise > best[0].promise:
            best = (found, parts, direction)
    assert best is not None
    chosen, parts, direction = best
    outcome = chosen.outcome(run, final, tail)
    witness = _witness(parts[0], outcome, claim, direction)
    curve = _curve(outcome, confidence, witness)
    return MonteCarloLower(
        delta_lower=outcome.delta(claim.epsilon),
        epsilon_lower=outcome.epsilon(claim.delta),
        confidence=confidence,
        witness=witness,
        samples=samples,
        curve=curve,
    )


def _seen(claim: Claim) -> Claim:
    """The claim for an adversary who sees no more than MOST_SEEN coordinates of noise with a hidden scale.

    Coordinates that are iid given a scale are so without the others: forgetting some is post-processing, and leaves
    the same mechanism in fewer dimensions. Only the density of this law takes time in proportion to its dimension.
    """
    phases = [
        replace(phase, mechanism=resized(phase.mechanism, min(require_dimension(phase.mechanism), MOST_SEEN)))
        if isinstance(phase.mechanism.structure, ScaleMixture) and phase.mechanism.dimension is not None
        else phase
        for phase in claim.phases
    ]
    return replace(claim, phases=phases)


def _pairs(claim: Claim, samples: int) -> list[tuple[tuple[Release, ...], Direction]]:
    """The pairs of neighbours that pilots compare."""
    sampled = any(phase.sampling_kind != "none" and phase.sampling_prob < 1.0 for phase in claim.phases)
    directions: tuple[Direction, ...] = ("remove", "add") if sampled else ("remove",)
    if claim.adjacency == "replace-one":
        directions = ("swap",)
    return [
        (releases(claim, count, way), way) for count in _counts(claim, directions[0], samples) for way in directions
    ]


def _counts(claim: Claim, direction: Direction, samples: int) -> list[int]:
    """Numbers of equal coordinates worth a pilot, of those whose histories can be drawn in reasonable time."""
    main = max(claim.phases, key=lambda phase: phase.steps * phase.sampling_prob**2)
    smallest = min((phase.mechanism for phase in claim.phases), key=lambda m: m.dimension or 1)
    structure, limit = main.mechanism.structure, smallest.dimension or 1
    if isinstance(structure, Radial) or (
        isinstance(structure, IIDCoordinates) and structure.gaussian_sigma is not None
    ):
        return [min(longest_count(main.mechanism), limit)]
    counts = [m for m in candidate_counts(smallest) if m == 1 or _floats(claim, m, direction) * samples <= MOST_FLOATS]
    law = structure
    if isinstance(structure, ScaleMixture):
        law = structure.given(float(structure.scale_isf(np.array(1e-2))))
    assert isinstance(law, IIDCoordinates)
    distance = 1.0 if claim.adjacency == "add-remove" else 2.0
    return ranked_counts(law, main, distance, counts, claim.delta)[:SEARCHED]


def _floats(claim: Claim, count: int, direction: Direction) -> float:
    """Floats drawn for one history."""
    return sum(part.floats * part.steps for part in releases(claim, count, direction))


def _witness(part: Release, outcome: Outcome, claim: Claim, direction: Direction) -> Witness:
    shift, event = part.shift, f"total privacy loss > {outcome.epsilon(claim.delta):.6g}"
    if outcome.events:
        best = max(outcome.events, key=lambda e: e.epsilon(claim.delta))
        event = (
            f"total privacy loss > {best.threshold:.6g}: probability at least {best.first_lower:.6g} against at most "
            f"{best.second_upper:.6g}"
        )
    return Witness(
        family="equal",
        coordinates=shift.coordinates,
        norm=shift.norm,
        shift=[[shift.value, shift.coordinates]],
        direction=direction,
        event=event,
    )


def _curve(outcome: Outcome, confidence: float, witness: Witness) -> Curve:
    def delta(epsilons: Array) -> Array:
        return np.array([outcome.delta(float(e)) for e in epsilons])

    def epsilon(deltas: Array) -> Array:
        return np.array([outcome.epsilon(float(d)) for d in deltas])

    note = f"a sampled bound: it holds at confidence {confidence:g}"
    return Curve("lower", "monte-carlo", THEOREM, delta, epsilon, (note,), witness)
