"""One pair of neighbours, examined by sampling: a pilot chooses, fresh draws bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Direction
from dpaudit.verify.sampling.betting import Excesses, Sample, choose_level_bet, level_lower, mean_lower
from dpaudit.verify.sampling.chunks import in_chunks
from dpaudit.verify.sampling.histories import PlainHistories, ShiftedPhase
from dpaudit.verify.sampling.proposals import Proposal, Step, best_proposal, proposal_at, renyi_epsilon

Draw = Proposal | PlainHistories

SMALLEST_DELTA = 1e-12  # the delta for which a claim of delta = 0 is tilted
HANDICAP = 0.9  # of the promise of draws other than those that Renyi accounting recommends
SLACK = 2.0  # by which a ceiling that is only a guess is raised
PILOT = 0.25  # share of the histories that choose tilt, bet and witness; the others are counted
MOST_FLOATS = 1e9  # that the histories of one pair may take in all; where they take more, fewer are drawn
FEWEST = 80  # histories of a pair, whatever they take


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


# about the epsilon_lower that the final draws should prove; and, from (rng, tail), bounds from fresh draws, all of them
# valid at once but for probability `tail`
Pilot = tuple[float, Callable[[np.random.Generator, float], Outcome]]


def weighing_pilot(
    parts: tuple[ShiftedPhase, ...],
    direction: Direction,
    steps: tuple[Step, ...] | None,
    claim: Claim,
    rng: np.random.Generator,
    *,
    pilot: int,
    final: int,
) -> Pilot:
    """delta as the mean of a nonnegative variable: tilted draws where a tilt is known, else plain ones.

    Args:
        parts: The phases under their shifts.
        direction: Which two distributions are compared.
        steps: Their tilted laws, or None for plain draws.
        claim: Bounds are wanted at its epsilon and at its delta.
        rng: Source of the pilot's randomness.
        pilot: Histories for the choices; fewer where they take long.
        final: Histories that the bounds will use; fewer where they take long.
    """
    at_epsilon = draw_for(parts, direction, steps, claim.epsilon)
    affordable = MOST_FLOATS / at_epsilon.work
    pilot, final = (min(n, max(FEWEST, round(share * affordable))) for n, share in ((pilot, PILOT), (final, 1.0)))
    draws = [at_epsilon, *_level_draws(steps, claim)]
    each = max(pilot // (1 + len(draws)), 1)
    seen = draw_excess(at_epsilon, claim.epsilon, rng, each)
    found = [
        (*choose_level_bet(draw_level(draw, rng, each), claim.delta, share=final / 2 / each), draw) for draw in draws
    ]
    # small pilots promise too much: one that is not expected to be best must promise a good deal more
    bet, promise, at_delta = max(found, key=lambda choice: choice[1] * (1.0 if choice[2] is draws[-1] else HANDICAP))

    def outcome(rng: np.random.Generator, tail: float) -> Outcome:
        """Half of the draws and half of the error probability for each of the two bounds."""
        count = max(final // 2, 1)
        fresh = draw_excess(at_epsilon, claim.epsilon, rng, count)
        scale = math.exp(ceiling_of(at_epsilon, claim.epsilon))
        delta_lower = min(scale * mean_lower(fresh, seen, tail=tail / 2.0), 1.0)
        epsilon_lower = level_lower(draw_level(at_delta, rng, count), claim.delta, bet=bet, tail=tail / 2.0)
        return Outcome(at_epsilon=(claim.epsilon, delta_lower), at_delta=(epsilon_lower, claim.delta))

    return promise, outcome


def _level_draws(steps: tuple[Step, ...] | None, claim: Claim) -> list[Draw]:
    """More draws for the epsilon at the claimed delta: from First, and under the tilt of Renyi accounting."""
    if steps is None:
        return []
    return [proposal_at(steps, 0.0), best_proposal(steps, lambda p: renyi_epsilon(p, max(claim.delta, SMALLEST_DELTA)))]


def draw_for(
    parts: tuple[ShiftedPhase, ...], direction: Direction, steps: tuple[Step, ...] | None, epsilon: float
) -> Draw:
    """The draw with the lowest ceiling for delta(epsilon); from First where no tilt brings it below 1."""
    return PlainHistories(parts, direction) if steps is None else best_proposal(steps, lambda p: p.log_ceiling(epsilon))


def ceiling_of(draw: Draw, epsilon: float) -> float:
    """log of the largest value of dF/dR (1 - e^(epsilon - L))_+; 0 for plain draws; a guess where there is none."""
    if isinstance(draw, PlainHistories):
        return 0.0
    return draw.log_ceiling(epsilon) + (0.0 if draw.bounded else SLACK)


def rounding_of(draw: Draw) -> float:
    """Error of losses and log-weights."""
    return draw.rounding


def draw_excess(draw: Draw, epsilon: float, rng: np.random.Generator, size: int) -> Sample:
    """`size` draws of dF/dR (1 - e^(epsilon - L))_+ over its ceiling; what lies above a guessed one is cut off."""
    loss, weight = _weighted(draw, rng, size)
    above = loss > epsilon
    values = np.exp(weight[above] - ceiling_of(draw, epsilon)) * -np.expm1(epsilon - loss[above])
    if not isinstance(draw, Proposal) or draw.bounded:
        assert values.max(initial=0.0) <= 1.0 + 1e-6  # the ceiling that the module proposals proves
    return Sample(np.minimum(values[values > 0.0], 1.0), size)


def draw_level(draw: Draw, rng: np.random.Generator, size: int) -> Excesses:
    """`size` draws of (L, log dF/dR), those with L > 0 and a weight kept."""
    loss, weight = _weighted(draw, rng, size)
    kept = (loss > 0.0) & (weight > -np.inf)
    return Excesses(loss[kept], weight[kept], size)


def _weighted(draw: Draw, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    """L and log dF/dR of `size` draws, both rounded down by their error."""
    if isinstance(draw, PlainHistories):
        losses = in_chunks(draw, size, floats_each=draw.floats, rng=rng)
        return np.concatenate(losses) - draw.rounding, np.zeros(size)
    drawn, weights = zip(*in_chunks(draw, size, floats_each=draw.floats, rng=rng), strict=True)
    return np.concatenate(drawn) - draw.rounding, np.concatenate(weights) - draw.rounding
