"""Noise of random radius and uniform direction: the exact privacy-loss law of the one worst shift.

The noise is spherically symmetric with a density that falls with the distance, so only |v|_2 matters and the largest is
the worst for every epsilon (boundary lemma, `shift_norms`): the shift of length C dominates. Given the radius r_P the
loss increases in the cosine between direction and shift, so P(L > l) is the mean over the radius of a Beta tail; by
reflection at v/2, Q(L > l) = P(L < -l).

One release: delta(epsilon) = P(L > epsilon) - e^epsilon Q(L > epsilon), both between proven bounds (`radial_tails`).
Between the computed epsilons delta lies below its chord in e^epsilon, being convex in it. Sampling a single release
acts on the curve (Balle, Barthe and Gaboardi 2018, Theorems 2 and 8): with a = e^epsilon,

    remove: q delta(log(1 + (a - 1)/q)),   add: (1 - (1-q) a)_+ delta(log(q a / (1 - (1-q) a))).

Histories compose the rounded-up pair on a grid fit for epsilons about the claimed one: the moments of the loss are
infinite for product noise, so no Renyi bound exists, and no one grid holds its rare losses of thousands as well. Far
above the claimed epsilon basic composition takes over: delta(epsilon) <= sum_t delta_t(epsilon_t) for any epsilon_t
that sum to epsilon (Dwork and Roth 2014, Theorem 3.16), here equal ones.
"""

import math
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, Radial
from dpaudit.mechanisms.numerics import UNIT
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import FARTHEST_EPSILON, Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.pld.dominating_pairs import DominatingPair, Tails
from dpaudit.verify.pld.pair_curve import SHORT_HISTORY, PairPhase, directions, pair_curve
from dpaudit.verify.pld.radial_cells import LEVELS, level_ladder, loss_tails
from dpaudit.verify.pld.radial_tails import FINE, TOLERANCE
from dpaudit.verify.upper.shift_norms import radius, sampling_is_known

SINGLE_THEOREM = (
    "spherically symmetric decreasing noise: the longest shift dominates; its exact loss law "
    "(conditional on the radius a Beta tail)"
)
THEOREM = (
    SINGLE_THEOREM
    + "; sampling and composition by Zhu, Dong and Wang (2022), Theorems 10 and 11; rounded up by Doroshenko et al. "
    "(2022), Theorem 4.3"
)
SMALL_RADIUS = 1e-14  # probability of a radius too small to be seen; it counts as an infinite loss
PAIR_TOLERANCE = 1e-5  # relative error of the tails of a dominating pair
FIRST_LOSS = 1e-12  # stands for the loss 0, which the quadrature does not take


def radial_tails(noise: Radial, dimension: int, length: float, losses: Array) -> Tails:
    """Tails of radial noise's privacy loss at losses of either sign, from one quadrature.

    Args:
        noise: Law of the radius.
        dimension: n >= 2.
        length: l2 norm of the shift.
        losses: Ascending.
    """
    size, place = np.unique(np.maximum(np.abs(losses), FIRST_LOSS), return_inverse=True)
    tails = loss_tails(noise, dimension, length, size, PAIR_TOLERANCE)
    upper, lower = tails.first[place], tails.second[place]  # P(L > |l|), P(L <= -|l|)
    positive = losses >= 0
    p_sf, q_sf = np.where(positive, upper, 1.0 - lower), np.where(positive, lower, 1.0 - upper)
    p_cdf, q_cdf = np.where(positive, 1.0 - upper, lower), np.where(positive, 1.0 - lower, upper)
    upper_error, lower_error = tails.first_error[place], tails.second_error[place]
    p_error, q_error = np.where(positive, upper_error, lower_error), np.where(positive, lower_error, upper_error)
    small_p, small_q = (np.maximum(np.minimum(a, b), 1e-300) for a, b in ((p_cdf, p_sf), (q_cdf, q_sf)))
    return Tails(p_cdf, p_sf, q_cdf, q_sf, p_error / small_p, q_error / small_q)


def radial_pair(noise: Radial, dimension: int, length: float) -> DominatingPair:
    """Dominating pair of radial noise moved by a shift of a given length."""
    # the logarithm of the radii's ratio enters n - 1 times
    slack = 1e-12 + 8 * UNIT * dimension
    return DominatingPair(partial(radial_tails, noise, dimension, length), slack=slack, levels=600, heavy=True)


def _profile(noise: Radial, dimension: int, length: float, losses: Array, tolerance: float) -> Array:
    """Upper bound on delta at losses > 0 of one unsampled release."""
    tails = loss_tails(noise, dimension, length, losses, tolerance)
    most = tails.first + tails.first_error
    with np.errstate(divide="ignore"):
        taken = np.exp(np.minimum(losses + np.log(np.maximum(tails.second - tails.second_error, 0.0)), 10.0))
    return np.clip(most - taken * (1 - 1e-12), 1e-300, 1.0)


def _chord(levels: Array, deltas: Array, epsilon: Array) -> Array:
    """Interpolation linear in e^epsilon, above the convex curve; constant outside the levels."""
    right = np.clip(np.searchsorted(levels, epsilon, side="right"), 1, len(levels) - 1)
    a, b = levels[right - 1], levels[right]
    gap = np.clip(epsilon - a, 0.0, b - a)
    wide = np.minimum(b - a, 600.0)
    with np.errstate(under="ignore"):
        share = np.where(b - a < 600.0, np.expm1(np.minimum(gap, wide)) / np.expm1(wide), np.exp(gap - (b - a)))
    # past the last level the curve is below its last value
    return np.asarray(
        np.where(epsilon < levels[0], 1.0, deltas[right - 1] * (1 - share) + deltas[right] * share) * (1 + 1e-12)
    )


def single_release(
    noise: Radial, dimension: int, length: float, epsilon: float, delta: float, fine: float = FINE
) -> tuple[Array, Array]:
    """Curve of one unsampled release as (losses, deltas), dense about the claimed epsilon and the claimed delta.

    Args:
        noise: Law of the radius.
        dimension: n >= 2.
        length: l2 norm of the shift.
        epsilon: Where the curve should be exact.
        delta: Where its inverse should be.
        fine: Relative accuracy there.
    """
    profile = partial(_profile, noise, dimension, length)
    count = LEVELS if fine < TOLERANCE else LEVELS // 5  # one of many releases decides next to never
    levels = np.append(FIRST_LOSS, level_ladder(noise, dimension, length, 0.1 * max(delta, SMALL_RADIUS), count))
    deltas = profile(levels, TOLERANCE)
    if epsilon > 0:
        near = min(epsilon, FARTHEST_EPSILON) * np.array([0.9, 0.95, 0.98, 0.995, 1.0, 1.005, 1.02, 1.05, 1.1])
        levels, deltas = np.append(levels, near), np.append(deltas, profile(near, fine))
        order = np.argsort(levels)
        levels, deltas = levels[order], deltas[order]
    crossing = int(np.clip(np.searchsorted(-deltas, -delta), 1, len(levels) - 1))
    extra = np.geomspace(levels[crossing - 1], levels[crossing], 42)[1:-1]
    levels, deltas = np.append(levels, extra), np.append(deltas, profile(extra, fine))
    order = np.argsort(levels)
    # the true curve falls, so the least value on the left is a bound as well
    return levels[order], np.minimum.accumulate(deltas[order])


def _sampled(curve_at: partial[Array], q: float, both: bool, epsilon: Array) -> Array:
    """The larger of the sampled release's two directions (module docstring); only the first under replace-one."""
    epsilon = np.maximum(epsilon, FIRST_LOSS)
    # losses are rounded down by more than they are off
    inner = epsilon + np.log1p((1 - q) / q * -np.expm1(-epsilon))
    remove = q * curve_at(np.maximum(inner * (1 - 1e-14), FIRST_LOSS))
    if q == 1 or not both:
        return remove
    left = 1.0 - (1.0 - q) * np.exp(np.minimum(epsilon, 700.0))
    outside = left <= 0
    inner = epsilon + math.log(q) - np.log(np.where(outside, 1.0, left))
    add = np.where(outside, 0.0, left * curve_at(np.maximum(inner * (1 - 1e-14), FIRST_LOSS)))
    return np.maximum(remove, add)


def geometry(claim: Claim, phase: Phase) -> tuple[Radial, int, float] | None:
    """Noise, dimension and longest shift of a phase, None for other noise or an unknown dimension."""
    structure, dimension = phase.mechanism.structure, phase.mechanism.dimension
    if not isinstance(structure, Radial) or dimension is None or dimension < 2 or not sampling_is_known(phase):
        return None
    length = radius(phase.mechanism, 2.0, claim.adjacency)
    return None if length is None else (structure, int(dimension), length)


def pair_phase(claim: Claim, phase: Phase) -> PairPhase | None:
    """Dominating pair of a phase with radial noise, None for another phase."""
    known = geometry(claim, phase)
    return None if known is None else PairPhase(radial_pair(*known), phase.sampling_prob, phase.steps)


def applies(claim: Claim) -> bool:
    """Radial noise of a known dimension in every phase, Poisson sampling or none."""
    return all(geometry(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): exact for one release, rounded up for a history.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    known = [(geometry(claim, phase), phase) for phase in claim.phases]
    phases = [PairPhase(radial_pair(*g), phase.sampling_prob, phase.steps) for g, phase in known if g is not None]
    first = known[0][0]
    if len(phases) < len(known) or first is None:
        raise ValueError(f"Expected claim {claim.id!r} to have radial noise of a known dimension in every phase.")
    total = sum(phase.steps for phase in phases)
    accuracy = TOLERANCE if total > SHORT_HISTORY else FINE
    both = "add" in directions(claim)
    releases = [
        (_release_curve(g, phase, both, claim.epsilon / total, claim.delta / total, accuracy), phase.steps)
        for g, phase in known
        if g is not None
    ]
    if total == 1:
        delta = releases[0][0]
        return Curve("upper", "exact-integral", SINGLE_THEOREM, delta, partial(epsilon_at, delta))
    composed = pair_curve(claim, phases, THEOREM).delta

    def delta_of(epsilon: Array) -> Array:
        apart = sum((steps * curve(epsilon / total * (1 - 1e-14)) for curve, steps in releases), np.zeros(len(epsilon)))
        return np.minimum(composed(epsilon), apart)

    return Curve("upper", "pld", THEOREM, delta_of, partial(epsilon_at, delta_of))


def _release_curve(
    known: tuple[Radial, int, float],
    phase: Phase | PairPhase,
    both: bool,
    epsilon: float,
    delta: float,
    fine: float,
) -> partial[Array]:
    """delta(epsilon) of one release of a phase, sampled."""
    q = phase.sampling_prob
    inner = epsilon + math.log1p((1 - q) / q * -math.expm1(-epsilon))
    levels, deltas = single_release(*known, inner, min(delta / q, 1.0), fine)
    return partial(_sampled, partial(_chord, levels, deltas), q, both)
