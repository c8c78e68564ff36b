"""Pure epsilon from below, in closed form: the ratio of two histories' densities where all releases have one output.

An event around a single output z of every release is rare, but of a positive probability, and as it shrinks its ratio
P(S)/Q(S) goes to that of the densities. So their ratio at any z bounds the pure epsilon from below, where densities are
continuous. Where all releases of a pass have the same output z, it does not matter which of them hold the record: with
l_k the log-density of the noise at z around k contributions, a law of a pass (`samplers.base.PassGame`) is there

    sum over its patterns of weight e^(c_0 l_0 + c_1 l_1 + c_2 l_2),   c_k releases around k contributions.

- Laplace noise, every moved coordinate of z beyond the shifts: l_k = k s up to a constant, s the l1 norm of a
  contribution over the scale. A record in one release of each of E passes, the others silent, has E s exactly, or 2 E s
  if it is replaced by its opposite: what a record costs in known releases.
- Noise whose -log f is concave on (0, inf), as of heavy tails, z around one or two contributions, all coordinates moved
  alike: l_k falls by what `bounded_loss` shows to be the most.

A record of which N copies come out of a stream has log E[e^(N s)] of Laplace noise in all releases together, at least
log(1 + c (e^(r s) - 1)) where N >= r has probability c at least; and at -z, against the record, -log E[e^(-N s)].

Poisson batches are passes of one release. Epsilons of independent releases add up, in one direction: with the record
against without it, or the reverse. Of a record that is replaced either version may have either role in each phase.
"""

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, LaplaceCoordinates, LomaxCoordinates, Mechanism, Radial
from dpaudit.verify.claims import PLAIN_KINDS, Claim, Phase
from dpaudit.verify.lower.buffered_streams import drawn_copies
from dpaudit.verify.lower.passes import REPLACED_BY_NOTHING, pass_games, usual_centre
from dpaudit.verify.pld.gamma_scale import laplace_given_gamma
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.samplers.balls_in_bins import SILENT
from dpaudit.verify.samplers.base import PassGame, Slots
from dpaudit.verify.upper.shift_norms import radius

ROUNDING = 1e-13  # relative, of a sum of phases, and of reading its parameters as the decimals they are written as
CLOSED, INTEGRATED = 1e-14, 2e-13  # relative, of a drop: products and logarithms of a few floats; of log-densities
FEW = 1e-15  # relative, of the logarithm of a sum of a few terms
LARGEST_POWER = 700.0  # whose exponential is a float
HALF = -0.5  # of the excess of a sum over 1, below which a logarithm of it does not cancel


@dataclass(frozen=True)
class PureLimit:
    """What is proven of a history's pure epsilon, and what the reader must accept for it."""

    epsilon: float
    assumptions: tuple[str, ...]


@dataclass(frozen=True)
class _Drop:
    """By how much the log-density falls from the centre to one contribution and to two, and the error of either."""

    once: float
    twice: float
    error: float

    def places(self) -> list[tuple[float, float, float]]:
        """Log-densities around 0, 1 and 2 contributions, up to a constant, at two contributions and at one."""
        return [(-self.twice, -self.once, 0.0), (-self.once, 0.0, -self.once)]


def pure_limit(claim: Claim) -> PureLimit:
    """Lower bound on the pure epsilon of the claim's history, 0 where no phase has a closed form.

    Args:
        claim: Canonical from below, batches that are cut read as those they are with silent others
            (`passes.silent_others`).
    """
    swaps, totals, notes = claim.adjacency == "replace-one", [0.0, 0.0], list[str]()
    for phase in claim.phases:
        drop = _drop(phase.mechanism)
        found = [] if drop is None else [_both_ways(game, drop, swaps) for game in _games(phase, replace_one=swaps)]
        if drop is None or not found:
            continue
        for way in range(2):
            totals[way] += max(pair[way] for pair, _ in found)
        best = max(found, key=lambda item: max(item[0]))
        notes += [best[1]] if best[1] else []
    stream = max(map(_of_a_stream, claim.phases), default=0.0)
    if stream > max(totals):  # one alone: which record has most of which phase need not be the same
        totals, notes = [stream], [SILENT, *[REPLACED_BY_NOTHING] * swaps]
    return PureLimit(min(max(totals) * (1.0 - ROUNDING), sys.float_info.max), tuple(dict.fromkeys(notes)))


def _of_a_stream(phase: Phase) -> float:
    """Of all releases of a stream through a buffer, Laplace noise; 0 of others."""
    sampler, drop = phase.sampler, _drop(phase.mechanism)
    if not isinstance(sampler, BufferedShuffle) or sampler.passes is not None or drop is None:
        return 0.0
    if not isinstance(phase.mechanism.structure, LaplaceCoordinates):
        return 0.0
    limits = [0.0]
    for copies, chance in drawn_copies(sampler):
        power = copies * drop.once
        raised = math.log1p(chance * math.expm1(power)) if power < LARGEST_POWER else power + math.log(chance)
        limits += [raised, -math.log1p(chance * math.expm1(-power))]
    return max(limits)


def _drop(mechanism: Mechanism) -> _Drop | None:
    """Of the contribution of the largest l1 norm, all coordinates alike; None for noise without a closed form."""
    structure, n = mechanism.structure, mechanism.dimension
    length, hidden = radius(mechanism, 1.0, "add-remove"), laplace_given_gamma(structure)
    if isinstance(structure, LaplaceCoordinates):
        once = (float(mechanism.clip) if length is None else length) / structure.scale
        return _Drop(once, 2.0 * once, CLOSED * once)
    if n is None or length is None:  # one coordinate of however many, which a hidden scale has no law for
        n, length, hidden = 1, float(mechanism.clip), None
    if hidden is not None:
        once, twice = ((n + hidden.shape) * math.log1p(hidden.scale * times * length) for times in (1.0, 2.0))
        return _Drop(once, twice, CLOSED * twice)
    if isinstance(structure, LomaxCoordinates):
        once, twice = (n * (structure.k + 1.0) * math.log1p(structure.theta * times * length / n) for times in (1, 2))
        return _Drop(once, twice, CLOSED * twice)
    if isinstance(structure, IIDCoordinates) and structure.log_convex:
        here, once, twice = (float(x) for x in structure.logpdf(np.array([0.0, length / n, 2.0 * length / n])))
        return _Drop(n * (here - once), n * (here - twice), n * INTEGRATED * (abs(here) + abs(twice)))
    return None


def _games(phase: Phase, *, replace_one: bool) -> Sequence[PassGame]:
    """Those of the sampler; Poisson batches and those of everybody are passes of one release, the others silent."""
    if phase.sampler is not None:
        return () if isinstance(phase.mechanism.structure, Radial) else pass_games(phase, replace_one=replace_one)
    if phase.sampling_kind not in PLAIN_KINDS or phase.correlation is not None:
        return ()
    q = float(phase.sampling_prob)

    def law(drawn: tuple[int, int, int], out: tuple[int, int, int]) -> Slots:
        return ((q, drawn), (1.0 - q, out)) if q < 1 else ((1.0, drawn),)

    if replace_one:  # -v, 0 and v as 0, 1 and 2 contributions
        return (PassGame(law((0, 0, 1), (0, 1, 0)), law((1, 0, 0), (0, 1, 0)), phase.steps),)
    return (PassGame(law((0, 1, 0), (1, 0, 0)), ((1.0, (1, 0, 0)),), phase.steps),)


def _both_ways(game: PassGame, drop: _Drop, swaps: bool) -> tuple[tuple[float, float], str]:
    """Of all passes of a game: with the record against without it, and the reverse; and how the others contribute."""
    alike = round(game.stretch**2)  # passes of one order: the same releases in each hold the record
    ways = [0.0, 0.0]
    for logs in drop.places():
        (first, second), error = _laws(game, logs, drop.error, alike)
        gain = first - second
        ways = [max(way, game.passes * (one - error)) for way, one in zip(ways, (gain, -gain), strict=True)]
    if swaps:
        ways = [max(ways)] * 2
    return (ways[0], ways[1]), game.assumption


def _laws(game: PassGame, logs: Sequence[float], error: float, alike: int) -> tuple[tuple[float, float], float]:
    """Logarithms of a pass's two laws where every release has the same output, up to a constant, and their error."""
    usual, values, wrong = usual_centre(game), [], 0.0
    drops = np.array(logs) - logs[usual]
    for law in (game.first, game.second):
        powers = np.array([alike * np.array(slots) @ drops for _, slots in law])
        moved = np.array([alike * (sum(slots) - slots[usual]) for _, slots in law], dtype=np.float64)
        value, rounding = _log_mean(np.array([weight for weight, _ in law]), powers, 2.0 * error * moved)
        values.append(value)
        wrong += rounding
    return (values[0], values[1]), wrong


def _log_mean(weights: Array, powers: Array, errors: Array) -> tuple[float, float]:
    """log of a mean of exponentials, by its excess over 1 unless that is near -1 or no float; and its error.

    By errors e_i of the powers, far below 1, the logarithm changes by at most twice the mean of the e_i in the
    proportions of the terms.
    """
    largest = float(powers.max())
    terms = weights * np.exp(powers - largest)
    total = float(terms.sum())
    wrong = 2.0 * float(terms @ errors) / total
    excess = float(weights @ np.expm1(powers)) if largest <= LARGEST_POWER else HALF
    if excess > HALF:
        value = math.log1p(excess)
        return value, wrong + FEW * abs(value)
    value = largest + math.log(total)
    return value, wrong + FEW * (abs(value) + abs(largest))
