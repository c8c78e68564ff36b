"""Gaussian noise: the pair of a shift of length radius/sigma in one dimension dominates.

By rotation only |v|_2 matters, and more of it is worse (boundary lemma, `shift_norms`), so N(mu, 1) against N(0, 1)
with mu = max |v|_2 / sigma dominates every release, under Poisson sampling too (Zhu, Dong and Wang 2022, Theorems 10
and 11). Unsampled releases compose to one with mu^2 = sum of the mu_t^2 (Dong, Roth and Su 2022, Corollary 3.3); if
nothing else is left, delta is exact: Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu) (Balle and Wang 2018,
Theorem 8).
"""

import math
from functools import partial

import numpy as np
from scipy.special import erfcx, ndtr

from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import SMALLEST_DELTA, Curve
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.pair_curve import PairPhase, pair_curve
from dpaudit.verify.upper.shift_norms import radius, sampling_is_known

EXACT_THEOREM = (
    "Balle and Wang (2018), Theorem 8, with mu^2 summed over the releases (Dong, Roth and Su 2022, Corollary 3.3)"
)
THEOREM = (
    "Gaussian shift pair in one dimension: dominates by rotation invariance; sampling and composition by Zhu, Dong and "
    "Wang (2022), Theorems 10 and 11; rounded up by Doroshenko et al. (2022), Theorem 4.3"
)
BEYOND = 1e3  # of a in `analytic_delta`: far past 37.2, and its square is a float
LEAST_SHIFT = 1e-6  # shorter shifts under sampling count as that, which costs no less


def shift_over_sigma(phase: Phase, adjacency: Adjacency) -> float | None:
    """Longest shift over sigma of a phase with normal noise, mu; None for other noise or an unknown radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, NormalCoordinates):
        return None
    length = radius(phase.mechanism, 2.0, adjacency)
    return None if length is None else length / structure.sigma


def pairs(claim: Claim) -> list[PairPhase] | None:
    """Dominating pairs of a claim with Gaussian phases only, unsampled ones merged into one; None for another claim.

    Sampled replace-one has sharper ones (`sampled_normal`), and none here.
    """
    sampled, total = [], 0.0
    for phase in claim.phases:
        mu = shift_over_sigma(phase, claim.adjacency)
        if mu is None or not sampling_is_known(phase):
            return None
        if phase.sampling_prob == 1:
            total += phase.steps * mu * mu
        else:
            sampled.append(PairPhase(gaussian_pair(max(mu, LEAST_SHIFT)), phase.sampling_prob, phase.steps))
    if sampled and claim.adjacency == "replace-one":
        return None
    return sampled + ([PairPhase(gaussian_pair(math.sqrt(total)), 1.0, 1)] if total else [])


def analytic_delta(mu: float | Array, epsilon: Array) -> Array:
    """delta(epsilon) of N(mu, 1) against N(0, 1), rounded up.

    With a = epsilon/mu - mu/2 and b = a + mu it is phi(a) (R(a) - R(b)), R Mills' ratio: e^epsilon phi(b) = phi(a).

    Args:
        mu: Shift over sigma, > 0; one, or one for each epsilon.
        epsilon: At least 0.
    """
    with np.errstate(over="ignore"):
        a = np.minimum(epsilon / mu - mu / 2, BEYOND)
    root = math.sqrt(math.pi / 2)
    far = a > -5.0
    density = np.exp(-np.minimum(a * a / 2, 700.0)) / math.sqrt(2 * math.pi)
    first, second = root * erfcx(np.where(far, a, 0.0) / math.sqrt(2)), root * erfcx((a + mu) / math.sqrt(2))
    # a itself is rounded: relative error (a^2 + 8) ulp on each term
    error = 4e-16 * (a * a + 8.0 + epsilon)
    # beyond 37.2 delta is less than Phi(-37.2) < 1e-302, and no error may grow with a
    tail = np.where(a < 37.2, density * (first - second + error * first), 0.0)
    # for a <= -5 delta is near 1 and nothing cancels; density * second = e^epsilon Phi(-b)
    bulk = ndtr(-a) - density * second + error
    return np.asarray(np.clip(np.where(far, tail, bulk), SMALLEST_DELTA, 1.0))


def applies(claim: Claim) -> bool:
    """Normal noise in every phase, its l2 radius known, Poisson sampling under add-remove or none."""
    return pairs(claim) is not None


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), exact up to rounding.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    phases = pairs(claim)
    if phases is None:
        raise ValueError(f"Expected claim {claim.id!r} to have Gaussian noise and a known l2 radius in every phase.")
    if any(phase.sampling_prob < 1 for phase in phases):
        return pair_curve(claim, phases, THEOREM)
    total = sum(phase.steps * (shift_over_sigma(phase, claim.adjacency) or 0.0) ** 2 for phase in claim.phases)
    delta = partial(analytic_delta, math.sqrt(total) * (1 + 1e-14))
    return Curve.upper("exact-integral", EXACT_THEOREM, delta)
