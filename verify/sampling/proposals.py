"""Importance sampling of histories by exponential tilting, with a weight that is bounded by construction.

Let L be the total loss of a history, F the law it is drawn from, and theta > 0. A proposal R is a law of
histories from which we can draw, together with a number log_z, such that

    dF/dR <= e^(log_z - theta L)   for every history that F can produce (but for a few, of tiny probability).

Then Y = dF/dR (1 - e^(epsilon - L))_+ has mean delta(epsilon) under R, and lies between 0 and

    ceiling = e^(log_z - theta epsilon) theta^theta / (1 + theta)^(1 + theta),

the maximum over x = L - epsilon > 0 of e^(log_z - theta epsilon) e^(-theta x) (1 - e^-x), at e^-x = theta/(1 + theta).
With the exact tilt this ceiling is the bound that Renyi accounting gives (Balle et al. (2020), Theorem 21), so delta
is a fair part of it however small it is: Y/ceiling is an ordinary variable in [0, 1].

One step. S is the loss of a full participation, W_j = E_Q e^(jB) its moment with j B >= j S (module sums), q the rate.

remove, L = log(1 - q + q e^S), F = (1-q) Q + q P: the proposal draws k from the weights
binom(theta+1, k) (1-q)^(theta+1-k) q^k W_k / Z, Z their sum, then the output tilted by k. Its density to Q is
sum_k binom(theta+1, k) (1-q)^(theta+1-k) q^k e^(kB) / Z = (1 - q + q e^B)^(theta+1) / Z >= e^((theta+1) L) / Z, and
dF/dQ = e^L. So dF/dR = Z e^L (1 - q + q e^B)^-(theta+1) <= Z e^(-theta L). At q = 1 theta may be any number, else an
integer.

add, L = -log(1 - q + q e^S), F = Q, one coordinate: the tilt is e^(theta B), B >= L constant on cells, and dF/dR =
W e^(-theta B) <= W e^(-theta L). Without sampling both directions have the same law of L, the noise being symmetric.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from scipy.special import logsumexp, xlogy

from dpaudit.mechanisms.base import (
    Array,
    IIDCoordinates,
    NormalCoordinates,
    require_dimension,
)
from dpaudit.verify.pld.gamma_scale import laplace_given_gamma
from dpaudit.verify.results import Direction
from dpaudit.verify.sampling.chunks import FLOATS
from dpaudit.verify.sampling.hidden_scale import HiddenScaleStep
from dpaudit.verify.sampling.histories import ShiftedPhase
from dpaudit.verify.sampling.sums import WHOLE_SUMS, TiltedSum, binomial_tilts, subsampled, tilted_sum

INTEGER_TILTS = np.unique(np.rint(np.geomspace(1, 1024, 48)))  # tilts tried where they must be integers
REAL_TILTS = np.geomspace(0.02, 2048, 80)


@dataclass(frozen=True)
class TiltedStep:
    """The tilted laws of one phase's steps.

    Args:
        law: Draws of S (or of L itself, see `mixes`) under every tilt.
        rate: q.
        steps: Number of steps.
        mixes: "remove" in the module's sense; else "add" with its tilt on L.
    """

    law: TiltedSum
    rate: float
    steps: int
    mixes: bool
    bounded: bool = True

    @property
    def floats(self) -> float:
        """Floats that drawing one step holds in memory."""
        return self.law.floats

    @property
    def rounding(self) -> float:
        """Of one step's loss and log-weight."""
        return self.law.rounding

    def log_z(self, theta: float) -> float:
        """log of the normaliser of one step."""
        if not self.mixes:
            return float(self.law.log_moments(np.array([theta]))[0])
        orders, logs = binomial_tilts(theta, self.rate)
        return float(logsumexp(logs + self.law.log_moments(orders)))

    def draw(self, rng: np.random.Generator, theta: float, size: int) -> tuple[Array, Array]:
        """(L, log dF/dR - log_z) of `size` steps."""
        if not self.mixes:
            sums, bound = self.law.draw(rng, np.full(size, theta))
            return -subsampled(sums, self.rate), -theta * bound
        orders, logs = binomial_tilts(theta, self.rate)
        logs = logs + self.law.log_moments(orders)
        table = np.cumsum(np.exp(logs - logs.max()))
        draws = np.searchsorted(table, rng.random(size) * table[-1], side="right")
        sums, bound = self.law.draw(rng, orders[np.minimum(draws, len(table) - 1)])
        loss = subsampled(sums, self.rate)
        return loss, loss - (theta + 1.0) * subsampled(bound, self.rate)


Step = TiltedStep | HiddenScaleStep


@dataclass(frozen=True)
class Proposal:
    """Tilted histories.

    Args:
        parts: The phases.
        theta: The tilt, at least 0, where First itself is drawn from.
        log_z: Sum of the steps' normalisers.
    """

    parts: tuple[Step, ...]
    theta: float
    log_z: float

    @property
    def bounded(self) -> bool:
        """Whether no weight exceeds what the ceiling says."""
        return all(part.bounded for part in self.parts)

    @property
    def floats(self) -> float:
        """Floats that one history holds in memory; steps are summed in blocks."""
        return min(4.0 * self.work, float(FLOATS))

    @property
    def work(self) -> float:
        """Floats that one history takes in all."""
        return sum(part.floats * part.steps for part in self.parts)

    @property
    def rounding(self) -> float:
        """Of a history's loss and log-weight."""
        return sum(part.steps * part.rounding for part in self.parts)

    def log_ceiling(self, epsilon: float) -> float:
        """log of the largest value of dF/dR (1 - e^(epsilon - L))_+."""
        theta = self.theta
        return self.log_z - theta * epsilon + float(xlogy(theta, theta)) - (1.0 + theta) * math.log1p(theta)

    def __call__(self, rng: np.random.Generator, size: int) -> tuple[Array, Array]:
        """(L, log dF/dR) of `size` histories, with log dF/dR <= log_z - theta L."""
        loss, weight = np.zeros(size), np.full(size, self.log_z)
        for part in self.parts:
            block = max(1, int(FLOATS / (4.0 * part.floats * size)))
            for start in range(0, part.steps, block):
                count = min(block, part.steps - start)
                drawn = part.draw(rng, self.theta, size * count)
                loss += drawn[0].reshape(size, count).sum(axis=1)
                weight += drawn[1].reshape(size, count).sum(axis=1)
        return loss, weight


def tilted_steps(parts: tuple[ShiftedPhase, ...], direction: Direction) -> tuple[Step, ...] | None:
    """The phases' tilted laws; None where one has none that is known."""
    if not all(tiltable(part, direction) for part in parts):
        return None
    steps = [_tilted_step(part, direction) for part in parts]
    return None if None in steps else tuple(step for step in steps if step is not None)


def tiltable(part: ShiftedPhase, direction: Direction) -> bool:
    """Whether a tilt is known.

    It is for iid noise without sampling; for iid noise in direction "remove"; for one coordinate, or normal noise, in
    direction "add"; for Laplace noise of a hidden Gamma scale, in many coordinates, without sampling or in direction
    "remove". Radial noise has no finite exponential moments, and passes in a random order no tilt: module displaced.
    """
    structure, m = part.mechanism.structure, part.shift.coordinates
    if part.game is not None:
        return False
    remove = part.rate == 1.0 or direction == "remove"
    if laplace_given_gamma(structure) is not None:
        return remove and m > WHOLE_SUMS
    added = direction == "add" and (m == 1 or isinstance(structure, NormalCoordinates))
    return isinstance(structure, IIDCoordinates) and (remove or added)


def counted(parts: tuple[ShiftedPhase, ...], direction: Direction) -> list[bool]:
    """Of which phases only counts are drawn, so that the time does not depend on the number of shifted coordinates."""
    tilted = all(tiltable(part, direction) for part in parts)
    return [tilted and part.shift.coordinates > WHOLE_SUMS for part in parts]


def _tilted_step(part: ShiftedPhase, direction: Direction) -> Step | None:
    structure, m = part.mechanism.structure, part.shift.coordinates
    mixture = laplace_given_gamma(structure)
    if mixture is not None:
        return HiddenScaleStep(mixture, require_dimension(part.mechanism), m, part.value, part.rate, part.steps)
    adds = direction == "add" and part.rate < 1.0
    law = tilted_sum(part.mechanism, m, part.value, rate=part.rate if adds else 1.0)
    return None if law is None else TiltedStep(law, part.rate, part.steps, not adds)


def best_proposal(steps: tuple[Step, ...], objective: Callable[[Proposal], float]) -> Proposal:
    """The proposal with the smallest objective on 0 and a ladder of tilts; the search stops well past the minimum."""
    whole = any(step.mixes and step.rate < 1.0 for step in steps)
    best, least, worse = None, math.inf, 0
    for theta in (0.0, *(INTEGER_TILTS if whole else REAL_TILTS)):
        proposal = proposal_at(steps, float(theta))
        value = objective(proposal)
        best, least, worse = (proposal, value, 0) if best is None or value < least else (best, least, worse + 1)
        if worse == 4:
            break
    assert best is not None
    return best


def proposal_at(steps: tuple[Step, ...], theta: float) -> Proposal:
    """The proposal of one tilt."""
    total = sum(step.steps * step.log_z(theta) for step in steps)
    return Proposal(steps, theta, total)


def renyi_epsilon(proposal: Proposal, delta: float) -> float:
    """The epsilon at which the ceiling is delta: where the proposal is at its best, and Renyi accounting's value."""
    if proposal.theta == 0.0:
        return math.inf
    return (proposal.log_ceiling(0.0) - math.log(delta)) / proposal.theta
