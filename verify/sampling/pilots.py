"""One pair of neighbours, examined by sampling: a pilot chooses, fresh draws bound."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy.special import ndtri

from dpaudit.mechanisms.base import Array
from dpaudit.verify.claims import Claim
from dpaudit.verify.results import Direction
from dpaudit.verify.sampling.betting import Excesses, Sample, choose_level_bet, level_lower, mean_lower
from dpaudit.verify.sampling.chunks import in_chunks
from dpaudit.verify.sampling.displaced import DisplacedHistories, displaced_histories
from dpaudit.verify.sampling.histories import PlainHistories, ShiftedPhase
from dpaudit.verify.sampling.proposals import Proposal, Step, best_proposal, proposal_at, renyi_epsilon

Draw = Proposal | PlainHistories | DisplacedHistories

SMALLEST_DELTA = 1e-12  # the delta for which a claim of delta = 0 is tilted
HANDICAP = 0.9  # of the promise of draws other than those that Renyi accounting recommends
SLACK = 2.0  # by which a ceiling that is only a guess is raised
PILOT = 0.25  # share of the histories that choose tilt, bet and witness; the others are counted
MOST_FLOATS = 1e9  # that the histories of one pair may take in all; where they take more, fewer are drawn
DOUBT = 1e-3  # error at which pilots are compared: one lucky history must not choose
GUESSED = 100  # histories whose mean and deviation say where losses of the claimed delta may lie
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
    """delta as the mean of a nonnegative variable: tilted draws where a tilt is known, else displaced or plain ones.

    Args:
        parts: The phases under their shifts.
        direction: Which two distributions are compared.
        steps: Their tilted laws, or None for plain draws.
        claim: Bounds are wanted at its epsilon and at its delta.
        rng: Source of the pilot's randomness.
        pilot: Histories for the choices; fewer where they take long.
        final: Histories that the bounds will use; fewer where they take long.
    """
    plain = draw_for(parts, direction, steps, claim.epsilon)
    others = _level_draws(steps, claim) or _displaced_draws(plain, claim, rng)
    draws: list[Draw] = [plain, *others]
    affordable = MOST_FLOATS / max(draw.work for draw in draws)
    pilot, final = (min(n, max(FEWEST, round(share * affordable))) for n, share in ((pilot, PILOT), (final, 1.0)))
    each = max(pilot // (1 + len(draws)), 1)
    seen, at_epsilon = draw_excess(plain, claim.epsilon, rng, each), plain
    if steps is None:  # no ceiling says which of them is best
        tried = [_cut(draw, draw_excess(draw, claim.epsilon, rng, each)) for draw in others]
        at_epsilon, seen = max(
            [(plain, seen), *tried], key=lambda pair: _promised_delta(pair[0], pair[1], claim.epsilon)
        )
    found = [(*_level_promise(draw, claim.delta, rng, each, final / 2), draw) for draw in draws]
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


def _level_promise(draw: Draw, delta: float, rng: np.random.Generator, size: int, final: float) -> tuple[float, float]:
    """The bet, and the epsilon that `final` draws should prove: of displaced histories, by the worse of two pilots.

    Where no tilt is known a few histories may carry most of the weight, and the pilot that lacks them tells.
    """
    seen = draw_level(draw, rng, size)
    bet, promise = choose_level_bet(seen, delta, share=final / size)
    if isinstance(draw, DisplacedHistories):
        again = draw_level(draw, rng, size)
        promise = min(promise, choose_level_bet(again, delta, share=final / size)[1])
    return bet, promise


def _promised_delta(draw: Draw, seen: Sample, epsilon: float) -> float:
    """log of what a pilot would prove of delta by itself."""
    return ceiling_of(draw, epsilon) + math.log(max(mean_lower(seen, seen, tail=DOUBT), 1e-300))


def _cut(draw: Draw, seen: Sample) -> tuple[Draw, Sample]:
    """Displaced histories whose excess is cut off at a pilot's total, and the pilot in that unit.

    The ceiling is far above what is seen, and a bet against means near the ceiling wins nothing near a small mean.
    """
    top = float(seen.values.sum())
    if not isinstance(draw, DisplacedHistories) or not 0.0 < top < 1.0:
        return draw, seen
    return replace(draw, log_cut=draw.log_cut + math.log(top)), replace(seen, values=seen.values / top)


def _level_draws(steps: tuple[Step, ...] | None, claim: Claim) -> Sequence[Draw]:
    """More draws for the epsilon at the claimed delta: from First, and under the tilt of Renyi accounting."""
    if steps is None:
        return []
    return [proposal_at(steps, 0.0), best_proposal(steps, lambda p: renyi_epsilon(p, max(claim.delta, SMALLEST_DELTA)))]


def _displaced_draws(plain: Draw, claim: Claim, rng: np.random.Generator) -> Sequence[Draw]:
    """Displaced histories with losses about the claimed epsilon, and about a guess at the epsilon of its delta."""
    if not isinstance(plain, PlainHistories) or any(part.game is None for part in plain.parts):
        return []
    losses = plain(rng, GUESSED)
    guess = float(losses.mean() + losses.std() * ndtri(1.0 - max(claim.delta, SMALLEST_DELTA)))
    far = abs(guess - claim.epsilon) > losses.std()
    wanted = (claim.epsilon, guess) if far else (claim.epsilon,)
    return [draw for level in wanted for draw in displaced_histories(plain.parts, plain.direction, level, rng)]


def draw_for(
    parts: tuple[ShiftedPhase, ...], direction: Direction, steps: tuple[Step, ...] | None, epsilon: float
) -> Draw:
    """The draw with the lowest ceiling for delta(epsilon); from First where no tilt brings it below 1."""
    return PlainHistories(parts, direction) if steps is None else best_proposal(steps, lambda p: p.log_ceiling(epsilon))


def ceiling_of(draw: Draw, epsilon: float) -> float:
    """log of the largest value of dF/dR (1 - e^(epsilon - L))_+; 0 for plain draws; a guess where there is none, and
    where displaced histories are cut off."""
    if isinstance(draw, PlainHistories):
        return 0.0
    if isinstance(draw, DisplacedHistories):
        return draw.log_cut
    return draw.log_ceiling(epsilon) + (0.0 if draw.bounded else SLACK)


def rounding_of(draw: Draw) -> float:
    """Error of losses and log-weights."""
    return draw.rounding


def draw_excess(draw: Draw, epsilon: float, rng: np.random.Generator, size: int) -> Sample:
    """`size` draws of dF/dR (1 - e^(epsilon - L))_+ over its ceiling, or cut off there."""
    loss, weight = _weighted(draw, rng, size)
    above = loss > epsilon
    values = np.exp(weight[above] - ceiling_of(draw, epsilon)) * -np.expm1(epsilon - loss[above])
    if isinstance(draw, PlainHistories) or (isinstance(draw, Proposal) and draw.bounded):
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
