"""Passes that go through one buffer as a stream, from below: where copies of one record are likely to be.

All others contribute nothing, so that without the record every release is the noise alone, Q. With it, if the law P of
the outputs has P(S) >= c P'(S) for a probability law P', c in (0, 1] and the events S that are looked at, then
P(S) - e^epsilon Q(S) >= c (P'(S) - e^(epsilon + log 1/c) Q(S)): the history costs at least c times what these events
prove of P' at epsilon + log 1/c. B is the buffer, b the batch, n the records, T the releases.

Sum of all outputs, normal noise. A record at the beginning of the file has entered the buffer m = ceil((T b + B - 1)/n)
times before the last draw. A copy that a draw could have taken in j draws is still held with probability (1 - 1/B)^j,
and r of them all are with at most the product (of the copies that are held each draw takes one at most). So m - r have
been drawn but for a probability of the elementary symmetric polynomial of degree r + 1, and more of them only make
{sum >= t} likelier: on such half-lines P >= c P', P' normal with mean m - r and T variances, c one minus that.

Windows. Take a record at place B - 1 of the stream, of which the buffer then holds k = ceil(B/n) copies: one more can
be drawn from draw e n on, e = 1, 2, .... Window e, from e = 0, are h batches from the one on that has that draw, h so
small that all end where the next one begins. Look at windows alone, and at histories in which one copy is drawn from
the beginning of each window to that of the next, and not before draw e n. Then k - 1 are held when a window begins, as
it is, and k from draw e n on. That of m draws from there the i-th takes one, and no other one does, has probability

    (k/B) (1 - k/B)^(i-1) (1 - (k-1)/B)^(m-i),    over i <= m' together k (1 - (k-1)/B)^m (1 - s^m'),

s = 1 - 1/(B-k+1). With the l - m draws before it is g_e = k (1 - (k-1)/B)^l (1 - s^m) that one is drawn, and it is then
in the window, of which m' draws are left, with probability w_e = (1 - s^m')/(1 - s^m), and else in a batch that is not
looked at. Forget the order of the batches of a window. So P >= c P', c the product of the g_e, where P' has the record
in one of h releases, in independent passes, with probability w_e, or with a smaller one: draw the noise anew for some,
which changes nothing without the record. Of the first batch alone, b draws: it has none of the k copies with
probability (1 - k/B)^b, one with k (1 - (k-1)/B)^b (1 - s^b), and c is their sum. Any noise, and any events.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr

from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.lower.families import ONE_EVENT
from dpaudit.verify.lower.histories import SKIPPED, has_cells
from dpaudit.verify.lower.pass_cells import release_shift
from dpaudit.verify.lower.passes import REPLACED_BY_NOTHING, TAIL, composed, removal_masses
from dpaudit.verify.lower.strongest import Bounds, aim, event, strongest_curve
from dpaudit.verify.pld.operating_points import Events, Points
from dpaudit.verify.results import Witness
from dpaudit.verify.samplers import BufferedShuffle
from dpaudit.verify.samplers.balls_in_bins import SILENT
from dpaudit.verify.samplers.base import PassGame
from dpaudit.verify.upper.gaussian_pld import analytic_delta, shift_over_sigma

THEOREM = f"{ONE_EVENT}; where copies of a record are in a stream through a buffer (verify/lower/buffered_streams.py)"
SHARES = (0.25, 0.5, 1.0)  # of the windows: of more of them fewer histories are looked at
WEIGHTS = 4  # that windows have
WIDE = 1.25  # length of a window that tells most, in batches of the buffer
ALMOST_SURE = 0.999  # beyond which fewer copies say less
HOPELESS = 1e-4  # c below which nothing is looked for
ROUNDING = 1e-12  # relative, for every copy, and of the tails of a normal law and their logarithms
FARTHEST, HALF_LINES = 37.0, 30_000  # deviations, and how many half-lines between


@dataclass(frozen=True)
class _Scaled:
    """Bounds of a history that has c times a law, of which `of` are the bounds."""

    of: Bounds
    scale: float

    def delta(self, epsilon: Array) -> Array:
        """c delta'(epsilon + log 1/c)."""
        return self.scale * self.of.delta(epsilon - math.log(self.scale)) * (1.0 - 1e-15)

    def epsilon(self, delta: Array) -> Array:
        """epsilon'(delta/c) - log 1/c."""
        over = np.minimum(np.asarray(delta) / self.scale * (1.0 + 1e-15), 1.0)
        known = np.where(over < 1.0, self.of.epsilon(np.minimum(over, 1.0 - 1e-16)), 0.0)
        return np.maximum(known + math.log(self.scale) * (1.0 + 1e-15), 0.0)


def stream_curve(claim: Claim) -> Curve | None:
    """The lower bound of the streams of a claim, one phase alone at a time; None where there is none.

    Args:
        claim: Canonical from below. Its other phases are left out (post-processing).
    """
    found = [(bounds, witness) for phase in claim.phases for bounds, witness in _of_a_phase(claim, phase)]
    if not found:
        return None
    notes = [SILENT] + [REPLACED_BY_NOTHING] * (claim.adjacency == "replace-one") + [SKIPPED] * (len(claim.phases) > 1)
    return strongest_curve([bounds for bounds, _ in found], claim, THEOREM, notes, lambda index: found[index][1])


def _of_a_phase(claim: Claim, phase: Phase) -> Iterator[tuple[_Scaled, Witness]]:
    sampler = phase.sampler
    if not isinstance(sampler, BufferedShuffle) or sampler.passes is not None or not has_cells(phase.mechanism):
        return
    if isinstance(phase.mechanism.structure, NormalCoordinates):
        yield from _sum_of_outputs(claim, phase, sampler)
    for found in filter(None, (windows(sampler), first_release(sampler))):
        yield from _windows(claim, phase, found)


def _scaled(claim: Claim, scale: float) -> Claim:
    """What is asked about P' where the claim is about P."""
    return replace(
        claim,
        epsilon=claim.epsilon - math.log(scale),
        delta=min(claim.delta / scale, 0.5),
        adjacency="add-remove",
        guarantee=None,
    )


def _witness(claim: Claim, phase: Phase, points: Events, asked: Claim, scale: float, seen: str) -> Witness:
    shift = release_shift(phase, claim)
    likely = f" in histories that have probability {scale:.6g} at least, of these" if scale < 1 else ""
    return shift.witness(claim, "remove", f"{event(points, aim(points, asked), seen)}{likely}")


def drawn_copies(sampler: BufferedShuffle) -> list[tuple[int, float]]:
    """Copies of the first record that have been drawn in the end: (how many, with which probability at least)."""
    draws, size = sampler.steps * sampler.batch, sampler.buffer
    since = [draws - max(copy * sampler.records - size + 1, 0) for copy in range(sampler.begun)]  # whole: no rounding
    held = np.exp(np.array(since, dtype=np.float64) * math.log1p(-1.0 / size)) * (1.0 + ROUNDING)
    left = np.zeros(sampler.begun + 1)
    left[0] = 1.0
    with np.errstate(over="ignore"):  # of ten thousands of copies that are likely to be held
        for chance in held[held > 1e-300]:
            left[1:] += chance * left[:-1]
    sure = 1.0 - left[1:] * (1.0 + ROUNDING * sampler.begun) - 1e-15
    enough = int(np.argmax(sure > ALMOST_SURE)) + 1 if (sure > ALMOST_SURE).any() else len(sure)
    return [(sampler.begun - r, float(c)) for r, c in enumerate(sure[:enough]) if c > HOPELESS and r < sampler.begun]


def _sum_of_outputs(claim: Claim, phase: Phase, sampler: BufferedShuffle) -> Iterator[tuple[_Scaled, Witness]]:
    mu = shift_over_sigma(phase, "add-remove")
    if mu is None:
        return

    def shown(copies: int, chance: float) -> float:
        deltas = np.array([min((claim.delta or 1e-10) / chance, 0.5)])
        at_most = partial(analytic_delta, mu * copies / math.sqrt(sampler.steps))
        return float(epsilon_at(at_most, deltas)[0]) + math.log(chance)

    offered = drawn_copies(sampler)
    if not offered:
        return
    copies, chance = max(offered, key=lambda found: shown(*found))
    asked, points = _scaled(claim, chance), _half_lines(mu * copies / math.sqrt(sampler.steps) * (1.0 - 1e-14))
    seen = "privacy loss of the sum of all outputs"
    yield _Scaled(points, chance), _witness(claim, phase, points, asked, chance, seen)


def _half_lines(mu: float) -> Points:
    """Events {x >= t} of N(mu, 1) against N(0, 1)."""
    at = np.linspace(-FARTHEST, mu + FARTHEST, HALF_LINES)
    second = log_ndtr(-at)
    return Points(ndtr(mu - at) * (1.0 - ROUNDING), second + ROUNDING * (1.0 - second), mu * at - 0.5 * mu * mu)


@dataclass(frozen=True)
class Windows:
    """Windows of a stream, in each of which one copy is likely to be.

    Args:
        length: Releases of a window.
        weights: Of each window, the probability that its copy is in it, of those histories that are looked at.
        chances: How likely these are of the first window, the first two, ..., from below, as long as they are.
    """

    length: int
    weights: Array
    chances: Array

    def kinds(self) -> list[tuple[PassGame, NDArray[np.int64]]]:
        """Weights rounded down to a few: the game of each, and which windows have it."""
        parts = np.array_split(np.argsort(self.weights, kind="stable"), min(len(self.weights), WEIGHTS))
        return [(self._game(float(self.weights[part].min())), part) for part in parts]

    def _game(self, weight: float) -> PassGame:
        law = (weight, (self.length - 1, 1, 0)), (1.0 - weight, (self.length, 0, 0))
        return PassGame(law, ((1.0, (self.length, 0, 0)),), len(self.weights), assumption=SILENT)


def _missed(held: int, size: int) -> float:
    """Logarithm of the probability that a draw takes none of those of a buffer that are held."""
    return math.log1p(-held / size) if held < size else -math.inf


def windows(sampler: BufferedShuffle) -> Windows | None:
    """Windows of a stream that do not overlap; None where there are none."""
    n, b, size = sampler.records, sampler.batch, sampler.buffer
    held = -(-size // n)
    copies = np.arange(sampler.begun + 1).astype(object) * n  # of any size
    first = copies // b
    length = min(int(np.diff(first).min()), max(1, round(WIDE * size / b)), sampler.steps)
    count = int((first + length <= sampler.steps).sum())
    if length < 1 or count < 1:
        return None

    def drawn(before: NDArray[Any]) -> Array:
        """Probability that each copy would be drawn before a release, if it and what is not the record were held."""
        return np.asarray(-np.expm1((before * b - copies[:count]).astype(np.float64) * _missed(1, size - held + 1)))

    inside, whole = drawn(first[:count] + length), drawn(first[1 : count + 1])
    others_stay = np.exp((np.diff(first)[:count] * b).astype(np.float64) * _missed(held - 1, size))
    chances = np.cumprod(held * others_stay * whole) * (1.0 - ROUNDING * np.arange(1, count + 1))
    likely = chances > HOPELESS  # the first ones
    weights = np.minimum(inside / whole, 1.0) * (1.0 - ROUNDING)
    return Windows(length, weights[likely], chances[likely]) if likely.any() else None


def first_release(sampler: BufferedShuffle) -> Windows:
    """A window of the first release, of histories in which one copy is in it or none."""
    b, size, held = sampler.batch, sampler.buffer, -(-sampler.buffer // sampler.records)
    one = held * math.exp(b * _missed(held - 1, size)) * -math.expm1(b * _missed(1, size - held + 1))
    chance = min(math.exp(b * _missed(held, size)) + one, 1.0)
    slack = 1.0 - ROUNDING
    return Windows(1, np.array([one / chance * slack]), np.array([chance * slack]))


def _windows(claim: Claim, phase: Phase, found: Windows) -> Iterator[tuple[_Scaled, Witness]]:
    counts, kinds = sorted({max(1, round(share * len(found.chances))) for share in SHARES}), found.kinds()
    for masses in zip(*(removal_masses(phase, game, claim) for game, _ in kinds), strict=True):
        if any(pair[0].sum() <= TAIL for _, pair in masses):  # next to nothing is known of the statistic
            continue
        for count in counts:
            chance, sizes = float(found.chances[count - 1]), [int((part < count).sum()) for _, part in kinds]
            points = composed([(pair, size) for (_, pair), size in zip(masses, sizes, strict=True) if size])
            asked = _scaled(claim, chance)
            seen = f"privacy loss of {count} windows of {found.length} releases, seen through the {masses[0][0]},"
            yield _Scaled(points, chance), _witness(claim, phase, points, asked, chance, seen)
