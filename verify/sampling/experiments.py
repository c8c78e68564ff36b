"""One pair of neighbours, examined by sampling: a pilot chooses, fresh draws bound."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from dpaudit.verify.bounds import choose_threshold
from dpaudit.verify.bounds.rates import lower_at, upper_at
from dpaudit.verify.sampling.betting import Excesses, Sample, choose_level_bet, level_lower, mean_lower
from dpaudit.verify.sampling.chunks import Progress, in_chunks
from dpaudit.verify.sampling.histories import Direction, PlainHistories, Release
from dpaudit.verify.sampling.proposals import Proposal, TiltedStep, best_proposal, renyi_epsilon, tilted_steps

Array = NDArray[np.float64]
Result = TypeVar("Result")
Draw = Proposal | PlainHistories

RAREST = 1e-12  # the delta for which a claim of delta = 0 is tilted


@dataclass(frozen=True)
class Runner:
    """How draws are carried out.

    Args:
        rng: Source of all randomness.
        workers: Processes.
        progress: Told how many histories were drawn.
    """

    rng: np.random.Generator
    workers: int = 1
    progress: Progress | None = None

    def all(self, work: Callable[[np.random.Generator, int], Result], total: int, floats_each: float) -> list[Result]:
        """The results of all chunks."""
        return in_chunks(
            work, total, floats_each=floats_each, rng=self.rng, workers=self.workers, progress=self.progress
        )


@dataclass(frozen=True)
class Event:
    """The event {L > threshold}: first(S) >= first_lower and second(S) <= second_upper."""

    threshold: float
    first_lower: float
    second_upper: float

    def epsilon(self, delta: float) -> float:
        """log((first - delta)/second), at least 0."""
        return math.log(max((self.first_lower - delta) / self.second_upper, 1.0))

    def delta(self, epsilon: float) -> float:
        """first - e^epsilon second, at least 0."""
        return max(self.first_lower - math.exp(min(epsilon, 700.0)) * self.second_upper, 0.0)


@dataclass(frozen=True)
class Outcome:
    """What one pair proved, all of it at once.

    Args:
        at_epsilon: (epsilon, d): delta(epsilon) >= d.
        at_delta: (e, delta): delta is exceeded by delta(epsilon) for every epsilon < e.
        events: Events with bounds on their rates.
    """

    at_epsilon: tuple[float, float] = (0.0, 0.0)
    at_delta: tuple[float, float] = (0.0, 0.0)
    events: tuple[Event, ...] = ()

    def delta(self, epsilon: float) -> float:
        """Lower bound on delta."""
        bounds = [event.delta(epsilon) for event in self.events]
        bounds.append(self.at_epsilon[1] if epsilon <= self.at_epsilon[0] else 0.0)
        bounds.append(self.at_delta[1] if epsilon < self.at_delta[0] else 0.0)
        return max(bounds)

    def epsilon(self, delta: float) -> float:
        """Lower bound on epsilon."""
        bounds = [event.epsilon(delta) for event in self.events]
        bounds.append(self.at_epsilon[0] if delta < self.at_epsilon[1] else 0.0)
        bounds.append(self.at_delta[0] if delta <= self.at_delta[1] else 0.0)
        return max(bounds)


class Experiment(Protocol):
    """A pair of neighbours whose pilot has run."""

    @property
    def promise(self) -> float:
        """The epsilon_lower that the final draws should prove, about."""
        ...

    def outcome(self, run: Runner, samples: int, tail: float) -> Outcome:
        """Bounds from fresh draws, all of them valid at once but for probability `tail`."""
        ...


@dataclass(frozen=True)
class Target:
    """The claimed epsilon and delta."""

    epsilon: float
    delta: float


def weighing_experiment(
    parts: tuple[Release, ...], direction: Direction, target: Target, run: Runner, *, pilot: int, final: int
) -> Experiment:
    """delta as the mean of a bounded variable: tilted draws where a bounded tilt is known, else plain ones.

    Args:
        parts: The phases under their shifts.
        direction: Which two distributions are compared.
        target: The claim.
        run: How to draw.
        pilot: Histories for the choices.
        final: Histories that the bounds will use.
    """
    steps = tilted_steps(parts, direction)
    at_epsilon = at_delta = draw_for(parts, direction, steps, target.epsilon)
    if steps is not None:
        at_delta = best_proposal(steps, lambda p: renyi_epsilon(p, max(target.delta, RAREST)))
    half = max(pilot // 2, 1)
    seen = draw_excess(at_epsilon, target.epsilon, run, half)
    bet, promise = choose_level_bet(draw_level(at_delta, run, half), target.delta, share=final / 2 / half)
    return _Weighing(target, at_epsilon, at_delta, seen, bet, promise)


def draw_for(
    parts: tuple[Release, ...], direction: Direction, steps: tuple[TiltedStep, ...] | None, epsilon: float
) -> Draw:
    """The draw with the lowest ceiling for delta(epsilon): tilted if that brings it below the 1 of plain draws."""
    if steps is not None:
        tilted = best_proposal(steps, lambda p: p.log_ceiling(epsilon))
        if tilted.log_ceiling(epsilon) < 0.0:
            return tilted
    return PlainHistories(parts, direction, "first")


@dataclass(frozen=True)
class _Weighing:
    """Two draws: one for delta at the claimed epsilon, one for epsilon at the claimed delta."""

    target: Target
    at_epsilon: Draw
    at_delta: Draw
    seen: Sample
    bet: float
    promise: float

    def outcome(self, run: Runner, samples: int, tail: float) -> Outcome:
        """Half of the draws and half of the error probability for each of the two bounds."""
        half, epsilon = max(samples // 2, 1), self.target.epsilon
        scale = math.exp(ceiling_of(self.at_epsilon, epsilon)) * (1.0 - rounding_of(self.at_epsilon))
        fresh = draw_excess(self.at_epsilon, epsilon, run, half)
        delta_lower = min(scale * mean_lower(fresh, self.seen, tail=tail / 2.0), 1.0)
        level = draw_level(self.at_delta, run, half)
        epsilon_lower = level_lower(level, self.target.delta, bet=self.bet, tail=tail / 2.0)
        return Outcome(at_epsilon=(epsilon, delta_lower), at_delta=(epsilon_lower, self.target.delta))


def counting_experiment(
    parts: tuple[Release, ...], direction: Direction, target: Target, run: Runner, *, pilot: int, final: int
) -> Experiment:
    """Two events counted in both arms: their validity rests on the sampler alone, whatever the density says.

    Args:
        parts: The phases under their shifts.
        direction: Which two distributions are compared.
        target: The claim.
        run: How to draw.
        pilot: Histories for the choice of the threshold, half from each arm.
        final: Histories that the bounds will use, half from each arm.
    """
    arms = PlainHistories(parts, direction, "first"), PlainHistories(parts, direction, "second")
    half, seen = max(final // 2, 1), max(pilot // 2, 1)
    first, second = (np.concatenate(run.all(arm, seen, arm.floats)) for arm in arms)
    threshold = choose_threshold(first, second, delta=target.delta, confidence=0.95, trials_in=half, trials_out=half)
    share = [(np.sum(losses > threshold) + 1.0) / (seen + 2.0) for losses in (first, second)]
    expected = Event(
        threshold, float(lower_at(share[0] * half, half, 0.01)), float(upper_at(share[1] * half, half, 0.01))
    )
    return _Counting(target, arms, threshold, expected.epsilon(target.delta))


@dataclass(frozen=True)
class _Counting:
    """The events {L > epsilon} and {L > threshold}, counted in both arms."""

    target: Target
    arms: tuple[PlainHistories, PlainHistories]
    threshold: float
    promise: float

    def outcome(self, run: Runner, samples: int, tail: float) -> Outcome:
        """Four one-sided Clopper-Pearson bounds at tail/4 each."""
        half, levels = max(samples // 2, 1), np.array([self.target.epsilon, self.threshold])
        first, second = (
            np.sum(run.all(partial(_exceedances, arm, levels), half, arm.floats), axis=0) for arm in self.arms
        )
        rates = zip(levels, lower_at(first, half, tail / 4.0), upper_at(second, half, tail / 4.0), strict=True)
        return Outcome(events=tuple(Event(float(t), float(p), float(q)) for t, p, q in rates))


def _exceedances(arm: PlainHistories, levels: Array, rng: np.random.Generator, size: int) -> Array:
    return np.asarray((arm(rng, size)[:, None] > levels).sum(axis=0), dtype=np.float64)


def ceiling_of(draw: Draw, epsilon: float) -> float:
    """log of the largest value of dF/dR (1 - e^(epsilon - L))_+; 0 for plain draws."""
    return draw.log_ceiling(epsilon) if isinstance(draw, Proposal) else 0.0


def uncovered_by(draw: Draw) -> float:
    """Probability of the histories that are never drawn."""
    return draw.uncovered if isinstance(draw, Proposal) else 0.0


def rounding_of(draw: Draw) -> float:
    """Relative error of the weights."""
    return draw.rounding if isinstance(draw, Proposal) else 0.0


def draw_excess(draw: Draw, epsilon: float, run: Runner, size: int) -> Sample:
    """`size` draws of dF/dR (1 - e^(epsilon - L))_+ over its ceiling."""
    return Sample.join(run.all(partial(_excess, draw, epsilon), size, draw.floats))


def _excess(draw: Draw, epsilon: float, rng: np.random.Generator, size: int) -> Sample:
    loss, weight = _weighted(draw, rng, size)
    above = loss > epsilon
    values = np.exp(weight[above] - ceiling_of(draw, epsilon)) * -np.expm1(epsilon - loss[above])
    assert values.max(initial=0.0) <= 1.0 + 1e-6  # the ceiling that the module proposals proves
    return Sample(np.minimum(values[values > 0.0], 1.0), size)


def draw_level(draw: Draw, run: Runner, size: int) -> Excesses:
    """`size` draws of (L, log dF/dR), those with L > 0 kept; weights rounded down by their relative error."""
    parts = run.all(partial(_positive, draw), size, draw.floats)
    loss, weight = (np.concatenate(items) for items in zip(*parts, strict=True))
    return Excesses(loss, weight - 2.0 * rounding_of(draw), size)


def _positive(draw: Draw, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    loss, weight = _weighted(draw, rng, size)
    return loss[loss > 0.0], weight[loss > 0.0]


def _weighted(draw: Draw, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
    if isinstance(draw, Proposal):
        return draw(rng, size)
    return draw(rng, size), np.zeros(size)
