"""What the accountants that this project computes itself say about a claim, each by one route alone.

Unlike `upper_curves`, which keeps the best proof, these show what a user of one method would be told.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, Radial, ScaleMixture
from dpaudit.verify.claims import Adjacency, Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.rdp import Moments, least_moments, rdp_curve, sampled_moments
from dpaudit.verify.upper import (
    UpperBound,
    coordinate_products,
    gamma_plrv_shared,
    gaussian_pld,
    laplace_gaussian_domination,
    laplace_pure,
    mixed,
    obstacle,
    one_dimensional,
    radial_pld,
    replaced_moments,
    replaced_records,
    sampled_normal,
    upper_curves,
)
from dpaudit.verify.upper.gamma_plrv_shared import SHARES
from dpaudit.verify.upper.shift_norms import sampling_is_known

PAIRS: tuple[UpperBound, ...] = (
    gaussian_pld, sampled_normal, laplace_pure, one_dimensional, radial_pld, coordinate_products, mixed,
    replaced_records,
)  # fmt: skip
MOMENTS = "moments of the worst shift; Balle et al. (2020), Theorem 21"
NAIVE = "single releases, each at its share of delta, added up; Dwork and Roth (2014), Theorem 3.16"
ADVANCED = "single releases at half of delta, half for the composition; Kairouz, Oh and Viswanath (2015), Theorem 3.5"
GDP = "mu^2 summed over the releases; Dong, Roth and Su (2022), Corollary 3.3"
CLT = "mu^2 = sum of q^2 (E_Q (dP/dQ)^2 - 1), the central limit of Bu et al. (2020), Theorem 5: no bound"


class NotApplicable(Exception):
    """An accountant has nothing to say about a claim; the message says why."""


@dataclass(frozen=True)
class AccountantValue:
    """An answer.

    Args:
        epsilon: At the claimed delta, in [0, inf].
        valid: Whether a theorem makes it an upper bound.
        note: Which, or what it is instead.
    """

    epsilon: float
    valid: bool
    note: str


def _at_delta(curve: Curve, claim: Claim) -> AccountantValue:
    return AccountantValue(float(curve.epsilon(np.array([claim.delta]))[0]), True, curve.theorem)


def _least(curves: Sequence[Curve], claim: Claim) -> AccountantValue:
    if not curves:
        raise NotApplicable(f"{obstacle(claim)}.")
    return min((_at_delta(curve, claim) for curve in curves), key=lambda value: value.epsilon)


def require_known_sampling(claim: Claim) -> None:
    """Raise NotApplicable for kinds of sampling without a theorem."""
    if not all(map(sampling_is_known, claim.phases)):
        raise NotApplicable(f"{obstacle(claim)}.")


def pld(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta by composing a dominating pair's privacy-loss distribution.

    Raises:
        NotApplicable: The route does not reach the claim.
    """
    require_known_sampling(claim)
    curves = [curve for curve in upper_curves(claim, PAIRS) if curve.method != "rdp"]
    if not curves:
        raise NotApplicable("no dominating pair is known for this noise with this clip_norm and sampling.")
    return _least(curves, claim)


def domination(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta by comparison with Gaussian noise, a hidden scale being revealed.

    Raises:
        NotApplicable: The route does not reach the claim.
    """
    known = upper_curves(claim, (laplace_gaussian_domination, gamma_plrv_shared))
    if not known:
        raise NotApplicable("it needs noise with a Lipschitz log-density and a known l2 radius in every phase.")
    return _least(known, claim)


def rdp(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta by the moments of the privacy loss, the best order.

    Raises:
        NotApplicable: The route does not reach the claim.
    """
    require_known_sampling(claim)
    if any(isinstance(phase.mechanism.structure, Radial) for phase in claim.phases):
        raise NotApplicable("the moments of this noise are infinite.")
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    carry = replaced_moments.carried if sampled and claim.adjacency == "replace-one" else None
    if all(gamma_plrv_shared.radius_of(claim, phase) is not None for phase in claim.phases):
        target = max(claim.delta, 1e-30)
        ladder = [gamma_plrv_shared.conditioned(claim, share * target, smooth=False, carry=carry) for share in SHARES]
        return _least(ladder, claim)
    parts = [(_moments(claim, phase), phase.steps) for phase in claim.phases]
    return _at_delta(rdp_curve(claim, parts, sampled=sampled, method="rdp", theorem=MOMENTS), claim)


def _moments(claim: Claim, phase: Phase) -> Moments:
    """Moments of one release, order by order the least of those that a theorem has."""
    if claim.adjacency == "replace-one" and phase.sampling_prob < 1:
        return replaced_moments.carried(claim, phase, partial(_version, claim, phase))
    length = laplace_pure.shift_over_scale(claim, phase)
    by_pair = None if length is None else partial(_laplace, length, phase.sampling_prob)
    moments = least_moments(by_pair, mixed.moments_of(claim, phase))
    if moments is None:
        raise NotApplicable("no theorem here bounds the moments of this noise with this clip_norm.")
    return moments


def _version(claim: Claim, phase: Phase, adjacency: Adjacency, rate: float) -> Moments:
    """Moments of a release against that without the record, or with another one."""
    kind = "poisson" if rate < 1 else "none"
    return _moments(replace(claim, adjacency=adjacency), replace(phase, sampling_prob=rate, sampling_kind=kind))


def _laplace(length: float, sampling_prob: float, orders: Array) -> Array:
    """log F(s, eta), eta = lam + 1, F = [eta e^((eta-1)s) + (eta-1) e^(-eta s)]/(2 eta - 1); binomial sum if sampled.

    log F is a cumulant generating function in s, convex and 0 at 0, so one coordinate that moves by the l1 radius s is
    the worst shift.
    """

    def log_moment(eta: Array) -> Array:
        ratio = (eta + (eta - 1) * np.exp(-(2 * eta - 1) * length)) / (2 * eta - 1)
        return np.asarray((eta - 1) * length + np.log(ratio))

    if sampling_prob == 1:
        return log_moment(orders + 1)
    whole = np.arange(1.0, math.ceil(float(orders.max())) + 2.0)
    return sampled_moments(np.append(0.0, log_moment(whole)), sampling_prob, orders)


def gdp(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta of the Gaussian trade-off with the history's mu.

    delta = Phi(mu/2 - epsilon/mu) - e^epsilon Phi(-mu/2 - epsilon/mu). Exact for unsampled Gaussian noise; otherwise
    the limit of many releases at small rates, which is no bound.

    Raises:
        NotApplicable: The noise has no known second moment, or no limit theorem covers the sampling.
    """
    require_known_sampling(claim)
    exact, total = True, 0.0
    for phase in claim.phases:
        mu = gaussian_pld.shift_over_sigma(phase, claim.adjacency)
        if mu is not None and phase.sampling_prob == 1:
            total += phase.steps * mu * mu
        else:
            exact = False
            total += phase.steps * phase.sampling_prob**2 * _chi_squared(claim, phase)
    if not 0 < total < math.inf:
        raise NotApplicable("the second moment of the ratio is beyond the range of floats.")
    delta = partial(gaussian_pld.analytic_delta, math.sqrt(total))
    return AccountantValue(float(epsilon_at(delta, np.array([claim.delta]))[0]), exact, GDP if exact else CLT)


def _chi_squared(claim: Claim, phase: Phase) -> float:
    """E_Q (dP/dQ)^2 - 1 of one unsampled release at its worst shift."""
    if isinstance(phase.mechanism.structure, Radial | ScaleMixture):
        raise NotApplicable("it needs independent coordinates.")
    if claim.adjacency == "replace-one" or phase.sampling_prob == 1:
        raise NotApplicable("it needs normal noise, or Poisson sampling under add-remove adjacency.")
    exponent = float(_moments(claim, replace(phase, sampling_prob=1.0))(np.array([1.0]))[0])
    return math.expm1(exponent) if exponent < 700 else math.inf


def _alone(claim: Claim, delta: float) -> list[tuple[int, float]]:
    """(steps, epsilon of ONE release at delta by the best theorem) of every phase."""
    require_known_sampling(claim)
    singles = [replace(claim, delta=delta, guarantee=None, phases=(replace(phase, steps=1),)) for phase in claim.phases]
    epsilons = [_least(upper_curves(single), single).epsilon for single in singles]
    return [(phase.steps, epsilon) for phase, epsilon in zip(claim.phases, epsilons, strict=True)]


def naive(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta adding up single releases.

    Raises:
        NotApplicable: The route does not reach the claim.
    """
    releases = sum(phase.steps for phase in claim.phases)
    total = sum(steps * epsilon for steps, epsilon in _alone(claim, claim.delta / releases))
    return AccountantValue(total, True, NAIVE)


def advanced(claim: Claim) -> AccountantValue:
    """epsilon at the claimed delta by advanced composition of single releases.

    Raises:
        NotApplicable: The route does not reach the claim.
    """
    if claim.delta == 0:
        raise NotApplicable("it needs delta > 0.")
    half = claim.delta / 2
    return AccountantValue(
        advanced_composition(_alone(claim, half / sum(p.steps for p in claim.phases)), half), True, ADVANCED
    )


def advanced_composition(singles: Sequence[tuple[int, float]], slack: float) -> float:
    """Epsilon of releases together, `slack` added to the sum of their deltas.

    The least of sum eps, m + sqrt(2 s log(1/slack)) and m + sqrt(2 s log(e + sqrt(s)/slack)), where
    m = sum eps (e^eps - 1)/(e^eps + 1) and s = sum eps^2. Kairouz, Oh and Viswanath (2015), Theorem 3.5.

    Args:
        singles: (how many, epsilon of each), epsilon in [0, inf].
        slack: In (0, 1).

    >>> round(advanced_composition([(100, 0.1)], 1e-6), 3)  # 0.4996 + sqrt(2 log 10^6)
    5.756
    """
    total = sum(count * epsilon for count, epsilon in singles)
    mean = sum(count * epsilon * math.tanh(epsilon / 2) for count, epsilon in singles)
    square = sum(count * epsilon * epsilon for count, epsilon in singles)
    logarithm = min(math.log(1 / slack), math.log(math.e + math.sqrt(square) / slack))
    return min(total, mean + math.sqrt(2 * square * logarithm))
