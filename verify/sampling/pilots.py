"""One pair of neighbours, examined by sampling: a pilot chooses, fresh draws bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.sampling.betting import Excesses, Sample, choose_level_bet, level_lower, mean_lower
from dpaudit.verify.sampling.chunks import in_chunks
from dpaudit.verify.sampling.histories import Direction, PlainHistories, ShiftedPhase
from dpaudit.verify.sampling.proposals import Proposal, TiltedStep, best_proposal, renyi_epsilon, tilted_steps

Draw = Proposal | PlainHistories

SMALLEST_DELTA = 1e-12  # the delta for which a claim of delta = 0 is tilted


@dataclass(frozen=True)
class Outcome:
    """What one pair proved, all of it at once.

    Args:
        at_epsilon: (epsilon, d): delta(epsilon) >= d.
        at_delta: (e, delta): delta is exceeded by delta(epsilon) for every epsilon < e.
    """

    at_epsilon: tuple[float, float]
    at_delta: tuple[float, float]

    def delta(self, epsilon: float) -> float:
        """Lower bound on delta."""
        by_epsilon = self.at_epsilon[1] if epsilon <= self.at_epsilon[0] else 0.0
        return max(by_epsilon, self.at_delta[1] if epsilon < self.at_delta[0] else 0.0)

    def epsilon(self, delta: float) -> float:
        """Lower bound on epsilon."""
        by_epsilon = self.at_epsilon[0] if delta < self.at_epsilon[1] else 0.0
        return max(by_epsilon, self.at_delta[0] if delta <= self.at_delta[1] else 0.0)


# about the epsilon_lower that the final draws should prove; and, from (rng, histories, tail), bounds from fresh draws,
# all of them valid at once but for probability `tail`
Pilot = tuple[float, Callable[[np.random.Generator, int, float], Outcome]]


def weighing_pilot(
    parts: tuple[ShiftedPhase, ...],
    direction: Direction,
    claim: Claim,
    rng: np.random.Generator,
    *,
    pilot: int,
    final: int,
) -> Pilot:
    """delta as the mean of a bounded variable: tilted draws where a bounded tilt is known, else plain ones.

    Args:
        parts: The phases under their shifts.
        direction: Which two distributions are compared.
        claim: Bounds are wanted at its epsilon and at its delta.
        rng: Source of the pilot's randomness.
        pilot: Histories for the choices.
        final: Histories that the bounds will use.
    """
    steps = tilted_steps(parts, direction)
    at_epsilon = at_delta = draw_for(parts, direction, steps, claim.epsilon)
    if steps is not None:
        at_delta = best_proposal(steps, lambda p: renyi_epsilon(p, max(claim.delta, SMALLEST_DELTA)))
    half = max(pilot // 2, 1)
    seen = draw_excess(at_epsilon, claim.epsilon, rng, half)
    bet, promise = choose_level_bet(draw_level(at_delta, rng, half), claim.delta, share=final / 2 / half)

    def outcome(rng: np.random.Generator, samples: int, tail: float) -> Outcome:
        """Half of the draws and half of the error probability for each of the two bounds."""
        count = max(samples // 2, 1)
        scale = math.exp(ceiling_of(at_epsilon, claim.epsilon)) * (1.0 - rounding_of(at_epsilon))
        fresh = draw_excess(at_epsilon, claim.epsilon, rng, count)
        delta_lower = min(scale * mean_lower(fresh, seen, tail=tail / 2.0), 1.0)
        epsilon_lower = level_lower(draw_level(at_delta, rng, count), claim.delta, bet=bet, tail=tail / 2.0)
        return Outcome(at_epsilon=(claim.epsilon, delta_lower), at_delta=(epsilon_lower, claim.delta))

    return promise, outcome


def draw_for(
    parts: tuple[ShiftedPhase, ...], direction: Direction, steps: tuple[TiltedStep, ...] | None, epsilon: float
) -> Draw:
    """The draw with the lowest ceiling for delta(epsilon): tilted if that brings it below the 1 of plain draws."""
    if steps is not None:
        tilted = best_proposal(steps, lambda p: p.log_ceiling(epsilon))
        if tilted.log_ceiling(epsilon) < 0.0:
            return tilted
    return PlainHistories(parts, direction)


def ceiling_of(draw: Draw, epsilon: float) -> float:
    """log of the largest value of dF/dR (1 - e^(epsilon - L))_+; 0 for plain draws."""
    return draw.log_ceiling(epsilon) if isinstance(draw, Proposal) else 0.0


def rounding_of(draw: Draw) -> float:
    """Relative error of the weights."""
    return draw.rounding if isinstance(draw, Proposal) else 0.0


def draw_excess(draw: Draw, epsilon: float, rng: np.random.Generator, size: int) -> Sample:
    """`size` draws of dF/dR (1 - e^(epsilon - L))_+ over its ceiling."""
    loss, weight = _weighted(draw, rng, size)
    above = loss > epsilon
    values = np.exp(weight[above] - ceiling_of(draw, epsilon)) * -np.expm1(epsilon - loss[above])
    assert values.max(initial=0.0) <= 1.0 + 1e-6  # the ceiling that the module proposals proves
    return Sample(np.minimum(values[values > 0.0], 1.0), size)


def draw_level(draw: Draw, rng: np.random.Generator, size: int) -> Excesses:
    """`size` draws of (L, log dF/dR), those with L > 0 kept; weights rounded down by their relative error."""
    loss, weight = _weighted(draw, rng, size)
    return Excesses(loss[loss > 0.0], weight[loss > 0.0] - 2.0 * rounding_of(draw), size)


def _weighted(draw: Draw, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """L and log dF/dR of `size` draws."""
    if isinstance(draw, PlainHistories):
        return np.concatenate(in_chunks(draw, size, floats_each=draw.floats, rng=rng)), np.zeros(size)
    losses, weights = zip(*in_chunks(draw, size, floats_each=draw.floats, rng=rng), strict=True)
    return np.concatenate(losses), np.concatenate(weights)
