"""Renyi divergences of a history: at least what one pair of neighbours shows.

D_a = log E_Q[(dP/dQ)^a]/(a - 1), a > 1. Over the releases of an adaptive history those of one pair of neighbours add
up whose record contributes the same whatever was released. Over cells of the outputs, sum P(cell)^a Q(cell)^(1-a) is at
most the integral (data processing), so lower bounds on the P and upper bounds on the Q give a lower bound. Near order 1
the rounding of that sum outweighs its excess over 1; there D_a is at least the Kullback-Leibler divergence, that of
order 1 (van Erven and Harremoes 2014, Theorem 3). What D_a is for the Gaussian: a mu^2/2 without sampling; with it, for
whole a, log of sum_k binom(a, k) (1-q)^(a-k) q^k e^(k(k-1) mu^2/2) over a - 1, of which every term is a lower bound.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np
from scipy.special import gammaln, logsumexp

from dpaudit.mechanisms.base import (
    Array,
    IIDCoordinates,
    LaplaceCoordinates,
    Mechanism,
    NormalCoordinates,
    PowerCoordinates,
)
from dpaudit.verify.claims import Claim, Phase, first_seen
from dpaudit.verify.lower.families import equal
from dpaudit.verify.lower.histories import LEAST_MASS
from dpaudit.verify.lower.passes import silent_others
from dpaudit.verify.lower.shifts import candidate_counts, centre_multiples, pair_of
from dpaudit.verify.pld.cells import FARTHEST, MixturePair, interval_masses, mix
from dpaudit.verify.pld.coordinate_moments import log_mean_exponential, power_scale
from dpaudit.verify.rdp import log_excess
from dpaudit.verify.samplers import PassGame, TruncatedPoisson, WithoutReplacement
from dpaudit.verify.upper.gaussian_pld import shift_over_sigma
from dpaudit.verify.upper.pass_moments import LARGEST_SERIES, overlap_moment, with_record_first
from dpaudit.verify.upper.shift_norms import sampling_is_known

ROUNDING = 1e-11  # relative, for sums of logarithms
LARGEST_SUM = 4096  # order up to which the sum over k is taken
LARGEST_OWN_SUM = 64  # the same where each of its moments is a sum over cells
CELLS = 2000  # quantiles of each tail, and of the middle of a law
MANY_COORDINATES = 100
MOST_COORDINATES = 10**4  # of Laplace noise, each moved by little: of more, rounding outweighs what they gain
SMALL_LOSS = 1e-2  # where the excess of a cell's losses is taken from a series
WIDTHS, CELLS_OF_A_PEAK = 8.0, 4000  # standard deviations on both sides of a moment's peak
NARROWEST = 1e-9  # of these, relative to where the peak is
MASS_ERROR = 1e-14  # relative, of a cell's term of the Kullback-Leibler divergence: a few roundings


def divergence_lower(claim: Claim, orders: Array) -> Array:
    """Lower bounds on the Renyi divergence of the history, by one pair of neighbours in one direction.

    The record's contribution may differ from release to release, its presence may not; what is seen in several
    releases (`Phase.part_of`) is one contribution. Phases without a pair here are left out.

    Args:
        claim: The history.
        orders: Above 1, shape (orders,).
    """
    total = np.zeros((2, len(orders)))  # with the record against without it, and the reverse
    # batches of everybody that are cut stay: another one is in where a record is not
    silent = [
        phase if isinstance(phase.sampler, TruncatedPoisson) and phase.sampler.prob == 1 else uncut
        for phase, uncut in zip(claim.phases, silent_others(claim).phases, strict=True)
    ]
    for parts in _by_contribution(silent):
        phase = parts[0]
        law, known = phase.mechanism.structure, phase.sampler is None and sampling_is_known(phase)
        if not isinstance(law, IIDCoordinates) or not (known or phase.sampler is not None):
            continue
        fixed = isinstance(phase.sampler, WithoutReplacement)
        best = _coordinate_lower(claim, parts, law, orders) if known or fixed else np.zeros_like(total)
        if isinstance(law, NormalCoordinates):
            remove = _gaussian_lower(claim, phase, orders)
            both = known and phase.sampling_prob == 1.0  # two normal laws are alike from either side
            best = np.maximum(best, [remove, remove] if both else [remove, np.zeros_like(remove)])
        total += best
    return np.asarray(total.max(axis=0) * (1.0 - ROUNDING))


def _by_contribution(phases: Sequence[Phase]) -> list[list[Phase]]:
    """The phases, those together that show one contribution."""
    groups: dict[int, list[Phase]] = {}
    for phase, at in zip(phases, first_seen(phases), strict=True):
        groups.setdefault(at, []).append(phase)
    return list(groups.values())


def _gaussian_lower(claim: Claim, phase: Phase, orders: Array) -> Array:
    """Of all releases of a phase of normal noise: one pattern of slots, or the whole binomial sum."""
    mu = shift_over_sigma(phase, claim.adjacency)
    if mu is None:  # shifts of one coordinate, in whatever dimension
        one = replace(cast(Any, phase.mechanism), dimension=1)
        mu = shift_over_sigma(replace(phase, mechanism=one), claim.adjacency)
    assert mu is not None
    best = np.zeros(len(orders))
    for weight, squares, times in _patterns(claim, phase):
        best = np.maximum(best, times * orders * (weight / (orders - 1.0) + squares * mu * mu / 2.0))
    for game in _games(claim, phase):
        [(_, (none, once, twice)), *others] = game.first
        if not _silent(game) or others or twice:
            continue
        shift = game.stretch * (mu / 2.0 if claim.adjacency == "replace-one" else mu)
        # of the sum of all releases, which is normal
        whole_sum = orders * (once * shift) ** 2 / (2.0 * (none + once))
        if once == 1:
            near, place = np.unique(np.minimum(orders, LARGEST_SERIES), return_inverse=True)
            logs = np.array([with_record_first(shift, none + 1, float(a))[0] for a in near])
            known = (logs / (near - 1.0))[place]  # D_a rises with a
        else:
            known = np.where(orders >= 2.0, overlap_moment(shift, none + once, once)[0], 0.0)
        best = np.maximum(best, game.passes * np.maximum(whole_sum, known))
    if phase.sampler is None and phase.sampling_prob < 1.0 and claim.adjacency == "add-remove":
        k = np.arange(2.0, min(float(orders.max()), LARGEST_SUM) + 1.0)
        best = np.maximum(best, phase.steps * _by_moments(k * (k - 1.0) * mu * mu / 2.0, phase.sampling_prob, orders))
    return np.asarray(best)


def _patterns(claim: Claim, phase: Phase) -> list[tuple[float, float, int]]:
    """(log probability, squared length over the longest shift, times) of one slot pattern of an independent pass.

    P is at least its probability times the noise around the pattern, and Q is the noise around 0.
    """
    replace_one = claim.adjacency == "replace-one"
    if phase.sampler is None:
        squares = 1.0 if phase.sampling_prob == 1.0 or not replace_one else 0.25  # replaced by nothing, if sampled
        return [(math.log(phase.sampling_prob), squares, phase.steps)]
    if isinstance(phase.sampler, TruncatedPoisson):
        return [(math.log(phase.sampler.kept_rate), 0.25 if replace_one else 1.0, phase.sampler.steps)]
    found = []
    for game in _games(claim, phase):
        empty = _silent(game)
        for weight, (none, once, twice) in game.first:
            # shifts of two contributions between the others opposed and the record; of one where the others are silent
            squares = (once + 4 * twice) / (4 if replace_one else 1) if empty else (once + twice)
            orders = gammaln(none + once + twice + 1) - gammaln(none + 1) - gammaln(once + 1) - gammaln(twice + 1)
            found.append((math.log(weight) - float(orders) * (1 + ROUNDING), squares * game.stretch**2, game.passes))
    return found


def _games(claim: Claim, phase: Phase) -> list[PassGame]:
    """Those of the phase's sampler; of a record that is replaced also by one that contributes nothing."""
    if claim.adjacency != "replace-one":
        return list(phase.games(replace_one=False))
    return [*phase.games(replace_one=True), *filter(_silent, phase.games(replace_one=False))]


def _silent(game: PassGame) -> bool:
    """Whether all releases are around 0 without the record."""
    return all(not once and not twice for _, (_, once, twice) in game.second)


def _log_moment(logs: Array, q: float, order: int) -> float:
    """log E_Q[(1 - q + q W)^order], whole order >= 1, as an excess over 1 and rounded down.

    Args:
        logs: At most log E_Q[W^k] at k = 2, ..., order, and none below 0.
        q: Rate.
        order: Which.
    """
    k = np.arange(2, order + 1, dtype=np.float64)
    if not len(k):
        return 0.0
    weight = gammaln(order + 1.0) - gammaln(k + 1.0) - gammaln(order - k + 1.0)
    total = float(logsumexp(weight + k * math.log(q) + (order - k) * math.log1p(-q) + log_excess(logs)))
    if total == -math.inf:
        return 0.0
    margin = 1e-13 + 8e-16 * float(gammaln(order + 3.0)) + ROUNDING * abs(total)
    return float(np.logaddexp(0.0, total - margin))


def _sampled_lower(claim: Claim, phase: Phase, law: IIDCoordinates, orders: Array) -> Array:
    """Of a Poisson-sampled release with the record against without it: many coordinates moved alike, or few.

    All are in the sample or none is: the binomial sum over moments of the release that is not sampled.
    """
    k = np.arange(2.0, min(float(orders.max()), LARGEST_OWN_SUM) + 1.0)
    best, drawn = np.zeros(len(orders)), phase.unsampled
    for count in _counts(phase.mechanism, law) if len(k) else []:
        logs = count * (k - 1.0) * _one_coordinate(claim, drawn, count, k, directions=1)[0]
        best = np.maximum(best, _by_moments(logs, phase.sampling_prob, orders))
    return best


def _by_moments(logs: Array, q: float, orders: Array) -> Array:
    """At least D_a of a sampled release at each order: that of the whole order below it, as D_a rises with a.

    Args:
        logs: As for `_log_moment`, up to the largest order that is looked at.
        q: Rate.
        orders: Above 1.
    """
    whole, place = np.unique(np.minimum(np.floor(orders), len(logs) + 1).astype(np.int64), return_inverse=True)
    found = [_log_moment(logs[: a - 1], q, int(a)) / max(a - 1.0, 1.0) for a in whole]
    return np.array(found)[place]


def _coordinate_lower(claim: Claim, parts: Sequence[Phase], law: IIDCoordinates, orders: Array) -> Array:
    """Of all releases of a phase, both directions: equal coordinates moved, or one of them if it is sampled or rotates.

    Args:
        claim: Its adjacency.
        parts: The phase, or those that show one contribution, which are alike but for the scale of their noise.
        law: Of a coordinate of the first one.
        orders: Above 1, shape (orders,).

    Returns:
        Shape (2, orders).
    """
    phase = parts[0]
    alone = phase.sampler is not None or phase.sampling_prob < 1.0 or isinstance(law, NormalCoordinates)
    best = np.zeros((2, len(orders)))
    for count in [1] if alone else _counts(phase.mechanism, law):
        found = [part.steps * count * _one_coordinate(claim, part, count, orders) for part in parts]
        best = np.maximum(best, np.sum(found, axis=0))
    poisson = phase.sampler is None and phase.sampling_prob < 1.0 and claim.adjacency == "add-remove"
    if poisson and not isinstance(law, NormalCoordinates) and (phase.mechanism.dimension or 1) > 1:
        sampled = [part.steps * _sampled_lower(claim, part, law, orders) for part in parts]
        best[0] = np.maximum(best[0], np.sum(sampled, axis=0))
    return best


def _one_coordinate(claim: Claim, phase: Phase, count: int, orders: Array, directions: int = 2) -> Array:
    """Of one coordinate of a release where so many are moved alike; shape (2, orders), 0 where not asked for."""
    fixed, law = isinstance(phase.sampler, WithoutReplacement), phase.mechanism.structure
    assert isinstance(law, IIDCoordinates)
    multiples = np.array([-1.0, 0.0, 1.0] if fixed else centre_multiples(phase, claim.adjacency))
    pairs = _fixed_size_pairs(claim, phase) if fixed else [pair_of(phase, tuple(multiples), "remove")]
    value = equal(phase.mechanism, count).groups[0][0]
    cells = interval_masses(law, _edges(law, multiples * value), multiples * value)
    best = np.zeros((2, len(orders)))
    for pair in pairs:
        ways = mix(cells, pair), mix(cells, pair.swapped())
        for way, (one, other) in enumerate((ways, ways[::-1])[:directions]):
            found = np.maximum(_cell_sums(*one, orders), _kullback_leibler((one[0], other[1]), other[0], one[1]))
            if isinstance(law, PowerCoordinates) and 1.0 < law.beta != 2.0:
                found = np.maximum(found, _beyond_cells(law, (pair, pair.swapped())[way], multiples * value, orders))
            best[way] = np.maximum(best[way], found)
    return best


def _beyond_cells(law: PowerCoordinates, pair: MixturePair, centres: Array, orders: Array) -> Array:
    """Of a power law, where the moments lie further out than cells have masses.

    Beyond all centres P is at least a weight times the noise around its last one, and Q at most the noise around its
    own last one.
    """
    best = np.zeros(len(orders))
    for at in (centres, -centres):
        first, second = (np.where(np.array(weights) > 0, at, -np.inf) for weights in (pair.first, pair.second))
        shift = float(first.max() - second.max()) * (1.0 - ROUNDING) / power_scale(law)
        if shift > 0:
            weight = math.log(pair.first[int(first.argmax())])
            logs = np.array([_log_power_moment(law.beta, shift, float(order)) for order in orders])
            best = np.maximum(best, (orders * weight + logs) / (orders - 1.0) - ROUNDING * orders)
    return best


def _log_power_moment(beta: float, shift: float, order: float) -> float:
    """At least log of the integral of P^a Q^(1-a), Q of density exp(-|x|^beta), beta > 1, and P the same around v > 0.

    The exponent (a-1) x^beta - a (x - v)^beta has its peak at x > v with x - v = x ((a-1)/a)^(1/(beta-1)), where its
    second derivative is -beta (beta-1) (a-1) x^(beta-2) v/(x - v). On a cell its first term lies above the tangent at
    the middle, and its second one, concave, above the chord.
    """
    with np.errstate(all="ignore"):
        peak = shift / -math.expm1((math.log1p(-1.0 / order)) / (beta - 1.0))
        steep = np.float64(beta * (beta - 1.0) * (order - 1.0)) * peak ** np.float64(beta - 2.0)
        width = max(1.0 / np.sqrt(steep * shift / (peak - shift)), NARROWEST * peak)
        x = np.linspace(max(shift, peak - WIDTHS * width), peak + WIDTHS * width, CELLS_OF_A_PEAK + 1)
        middle, half = 0.5 * (x[1:] + x[:-1]), 0.5 * (x[1:] - x[:-1])
        first, second = (order - 1.0) * middle**beta, order * (x - shift) ** beta
        rise = beta * first / middle * half
        logs = log_mean_exponential(first - rise - second[:-1], first + rise - second[1:]) + np.log(2.0 * half)
        rounding = 1e-15 * (8.0 + beta) * float((first + second[1:]).max())
        total = float(logsumexp(logs)) - rounding + math.log(beta / 2.0) - float(gammaln(1.0 / beta))
    return total - ROUNDING * abs(total) if math.isfinite(total) else 0.0


def _counts(mechanism: Mechanism, law: IIDCoordinates) -> list[int]:
    """Numbers m of equal coordinates, each moved by t = C m^(-1/p), that can be the best for independent coordinates.

    Their D_a is m h(t) = C^p h(t)/t^p, h that of one. Under p = infinity all of them. For Laplace noise of scale 1

        g(t) = (a-1) h(t) = log(A e^((a-1)t) + B e^(-at)),   A = a/(2a-1), B = (a-1)/(2a-1),

    has g(0) = g'(0) = 0 and g' = a-1 - (2a-1) s(log(B/A) - (2a-1) t) with the logistic s, convex where its argument is
    negative, as it is from t = 0 on: g' rises and is concave. So g/t rises, and under p = 1 one coordinate is best; and
    t g' <= 2 g, so that g/t^2 falls, and g/t^p with it from p = 2 on, where the more coordinates the better. Of other
    noise small shifts cost by their squares: under p > 2 many coordinates may be better than one, or a few best of all.
    """
    dimension, p = max(mechanism.dimension or 1, 1), mechanism.clip_norm
    if math.isinf(p):
        return [dimension]
    if isinstance(law, LaplaceCoordinates) and p == 1:
        return [1]
    if isinstance(law, LaplaceCoordinates) and p >= 2:
        return sorted({min(dimension, MANY_COORDINATES), min(dimension, MOST_COORDINATES)})
    few = candidate_counts(mechanism, MANY_COORDINATES)
    return few if p <= 2 else sorted({*few, *(10**i for i in range(2, 19) if 10**i < dimension), dimension})


def _fixed_size_pairs(claim: Claim, phase: Phase) -> list[MixturePair]:
    """Laws of a release of a batch of fixed size, around -v, 0 and v: where the record is not in, one of the others is.

    The record contributes v against 0, or against -v if it is replaced, and all others the same, -v, 0 or v.
    """
    assert phase.sampler is not None
    drawn, out = phase.sampler.rate, 0 if claim.adjacency == "replace-one" else 1
    pairs = []
    for others in range(3):
        weights = np.zeros((2, 3))
        weights[:, others] = 1.0 - drawn
        weights[[0, 1], [2, out]] += drawn
        pairs.append(MixturePair(tuple(weights[0]), tuple(weights[1])))
    return pairs


def _edges(law: IIDCoordinates, centres: Array) -> Array:
    """Points that resolve a law around every centre, far into both tails."""
    quantiles = np.concatenate([np.geomspace(1e-290, 0.05, CELLS), np.linspace(0.05, 0.5, CELLS)[1:]])
    half = np.asarray(law.ppf(quantiles))
    half = half[np.abs(half) < FARTHEST]
    grid = np.concatenate([half, -half[:-1][::-1]])
    between = np.linspace(centres.min(), centres.max(), CELLS)
    return np.unique(np.concatenate([*(grid + centre for centre in centres), between]))


def _cell_sums(first: Array, second: Array, orders: Array) -> Array:
    """log of the sum of P^a Q^(1-a) over cells, over a - 1, from lower bounds of P and upper bounds of Q."""
    p, q = np.log(first[first > 0]), np.log(second[first > 0])
    totals = np.array([float(logsumexp(order * p - (order - 1.0) * q)) for order in orders])
    return np.asarray(np.maximum((totals - ROUNDING * (1.0 + np.abs(totals))) / (orders - 1.0), 0.0))


def _kullback_leibler(first: tuple[Array, Array], second_lower: Array, second_upper: Array) -> float:
    """At least KL(P || Q), from lower and upper bounds on P and on Q over disjoint cells, rounded down.

    Of a cell of masses p and q the divergence has at least p log(p/q) - p + q (Jensen), 0 at p = q and growing as they
    part: no less than at the nearest masses between the bounds, and than 0 where those overlap. With t = |log(p/q)| it
    is p (t - 1 + e^-t) for p > q, else p (e^t - 1 - t); of small t a part of the series is less.
    """
    lower, upper = first
    total = 0.0
    for near, far, more in ((second_upper, lower, True), (upper, second_lower, False)):
        near = np.maximum(near, LEAST_MASS)  # further from 0, so nearer to the other
        near, far = near[far > near], far[far > near]
        t = np.log1p((far - near) / near)
        small, least = t < SMALL_LOSS, np.minimum(t, SMALL_LOSS)
        if more:  # p is the larger
            series, whole = far * (least**2 / 2.0 - least**3 / 6.0), far * (t + np.expm1(-t) - MASS_ERROR * t)
        else:
            series, whole = near * (least**2 / 2.0 + least**3 / 6.0), (far - near) - near * t - MASS_ERROR * far
        total += float(np.maximum(np.where(small, series, whole), 0.0).sum())
    return total * (1.0 - ROUNDING)
