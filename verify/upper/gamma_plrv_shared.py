"""Laplace noise with ONE hidden scale per vector (Gamma-PLRV) under an l2 bound C.

Showing u to the adversary only helps. Given u the noise is Laplace(1/u), so by Gaussian domination (see
`laplace_gaussian_domination`) E_Q[(dP/dQ)^eta | u] <= exp(eta (eta-1) u^2 C^2/2). Its mean over all u may be infinite,
so the history is conditioned on every u being at most u_max: that changes each law by probability
T P(u > u_max) at most, which goes to delta, and leaves u with its law given u <= u_max:

    alpha = T log sum_eta w_eta E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max],   delta = delta_alpha + T P(u > u_max).

Any u_max is valid; the best of a ladder is taken at every point of the curve. Instead of the moments the Gaussian pairs
of mu = u C, averaged over the revealed u, give a curve that is smoothed (`numerics.smoothing`).
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np
from scipy.special import ndtr

from dpaudit.mechanisms.base import Array, LaplaceCoordinates, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.dominating_pairs import NDTR_ERROR, DominatingPair, Tails, exact_tails
from dpaudit.verify.pld.pair_curve import PairPhase
from dpaudit.verify.rdp import composed_moments, replace_one_release, sampled_moments
from dpaudit.verify.upper.laplace_gaussian_domination import smaller
from dpaudit.verify.upper.shift_norms import moments_reach, radius

THEOREM = (
    "shared scale revealed and truncated: Gaussian domination given u <= u_max, averaged over u, with the probability "
    "of a larger u added to delta; Balle et al. (2020), Theorem 21"
)
QUADRATURE = "upper bound: the quadrature over the hidden scale is charged a relative error of 1e-8"
SMOOTHED_THEOREM = (
    "shared scale revealed and truncated: given u <= u_max delta is at most the smoothed curve of the Gaussian pairs "
    "averaged over u, with the probability of a larger u added; Zhu, Dong and Wang (2022), Theorems 10 and 11"
)
SMOOTHED_SHARE = 0.01  # of SHARES, the one at which the curve is smoothed: delta hardly depends on it
LEVELS = 16_000  # losses at which the tails of the pair, some two hundred Gaussian ones each, are evaluated
SHARES = (1e-6, 1e-4, 0.01, 0.05, 0.2, 0.5)  # of the claimed delta that may be spent on u > u_max
LOWER_TAIL = 1e-12  # probability of the smallest u, which are counted at their largest
PANELS, NODES = 48, 12
CELLS = 240  # of the scale where it is rounded up, by a thirtieth of its standard deviation on average
MASS_ERROR = 1e-8  # relative error charged to a quadrature that the total mass checks to this


@dataclass(frozen=True)
class Truncated:
    """Law of the hidden inverse scale u given u <= u_max, as atoms, and the shift's l2 norm.

    Args:
        nodes: Values of u.
        log_weights: Log of their probabilities, rounded up.
        beyond: P(u > u_max).
        length: l2 norm C of the longest shift.
    """

    nodes: Array
    log_weights: Array
    beyond: float
    length: float

    def log_ratio_moments(self, eta: Array) -> Array:
        """log E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max] at each eta: 0, 1 or more."""
        exponent = np.outer(eta * (eta - 1) / 2, (self.nodes * self.length) ** 2) + self.log_weights
        top = exponent.max(axis=1)
        values = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
        return np.asarray(np.where(eta <= 1, 0.0, values))

    def release(self, sampling_prob: float, orders: Array) -> Array:
        """Log-moments alpha(lam) of one release, u revealed."""
        if sampling_prob == 1:
            return self.log_ratio_moments(orders + 1.0)
        whole = self.log_ratio_moments(np.arange(math.ceil(float(orders.max())) + 2.0))
        return sampled_moments(whole, sampling_prob, orders, self.log_ratio_moments)

    def pair(self) -> DominatingPair:
        """The Gaussian pairs of mu = u C with u revealed: the mean over u of their tails."""
        mu, weights = self.nodes * self.length, np.exp(self.log_weights)

        def mean(tail: Array) -> Array:
            return np.asarray(np.minimum(tail @ weights, 1.0))

        def tails(losses: Array) -> Tails:
            p, q = losses[:, None] / mu - mu / 2, losses[:, None] / mu + mu / 2
            return exact_tails(mean(ndtr(p)), mean(ndtr(-p)), mean(ndtr(q)), mean(ndtr(-q)), 10 * NDTR_ERROR)

        return DominatingPair(tails, levels=LEVELS)


def truncated(mixture: ScaleMixture, length: float, beyond: float) -> Truncated:
    """Law of the hidden scale up to its upper quantile of probability `beyond`, by quadrature.

    Args:
        mixture: The noise.
        length: l2 norm of the shift.
        beyond: P(u > u_max), in (0, 1/2).
    """
    u_max = float(mixture.scale_isf(np.array([beyond]))[0])
    # panels end at quantiles, so that they are narrow where the law is; the last ones reach u_max evenly
    levels = np.concatenate([np.geomspace(LOWER_TAIL, 0.5, PANELS // 2), 1.0 - np.geomspace(0.4, 1e-3, PANELS // 4)])
    ends = mixture.scale_ppf(levels)
    ends = np.append(ends[ends < u_max * 0.999], u_max)
    ends = np.concatenate([ends[:-2], np.linspace(ends[-2], u_max, PANELS // 2)])
    x, w = np.polynomial.legendre.leggauss(NODES)
    low, width = ends[:-1, None], np.diff(ends)[:, None]
    nodes, weights = (low + 0.5 * width * (x + 1)).ravel(), (0.5 * width * w).ravel()
    mass = weights * np.exp(mixture.scale_logpdf(nodes))
    expected = float(mixture.scale_cdf(ends[-1:])[0] - mixture.scale_cdf(ends[:1])[0])
    if abs(mass.sum() - expected) > MASS_ERROR * expected:
        return rounded_up(mixture, length, beyond)  # a density the nodes do not resolve, as at k < 1
    below = float(mixture.scale_cdf(ends[:1])[0])
    nodes, mass = np.append(ends[0], nodes), np.append(below, mass) * (1 + 2 * MASS_ERROR)
    actual = float(mixture.scale_sf(np.array([u_max]))[0]) * (1 + 1e-12)
    return Truncated(nodes, np.log(np.maximum(mass, 1e-320)) - math.log1p(-actual), actual, length)


def rounded_up(mixture: ScaleMixture, length: float, beyond: float) -> Truncated:
    """Law of the hidden scale, every scale counted as the upper end of its cell: no quadrature, and it costs more.

    Args:
        mixture: The noise.
        length: l2 norm of the shift.
        beyond: P(u > u_max), in (0, 1/2).
    """
    u_max = float(mixture.scale_isf(np.array([beyond]))[0])
    ends = np.linspace(float(mixture.scale_ppf(np.array([LOWER_TAIL]))[0]), u_max, CELLS)
    cdf, survival = mixture.scale_cdf(ends), mixture.scale_sf(ends)
    mass = np.append(cdf[0], np.where(cdf[1:] < 0.5, np.diff(cdf), -np.diff(survival))) * (1 + 1e-13) + 1e-300
    actual = float(survival[-1]) * (1 + 1e-12)
    return Truncated(ends, np.log(mass) - math.log1p(-actual), actual, length)


def radius_of(claim: Claim, phase: Phase) -> float | None:
    """l2 radius of a phase whose noise is Laplace given a scale, None for other noise or an unknown radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, ScaleMixture):
        return None
    law = structure.given(1.0)
    laplace = isinstance(law, LaplaceCoordinates) and law.scale == 1.0
    return radius(phase.mechanism, 2.0, claim.adjacency) if laplace else None


def applies(claim: Claim) -> bool:
    """Laplace noise of inverse scale u in every phase, the l2 radius known, and add-remove if sampled."""
    return moments_reach(claim) and all(radius_of(claim, phase) is not None for phase in claim.phases)


def _laws(claim: Claim, budget: float, law: Callable[[ScaleMixture, float, float], Truncated]) -> list[Truncated]:
    """The scale's law of every phase given u <= u_max; the rest of the whole history has probability `budget`."""
    steps = sum(phase.steps for phase in claim.phases)
    laws = []
    for phase in claim.phases:
        structure, length = phase.mechanism.structure, radius_of(claim, phase)
        if length is None or not isinstance(structure, ScaleMixture):
            raise ValueError(f"Expected claim {claim.id!r} to have Laplace noise of one hidden scale in every phase.")
        laws.append(law(structure, length, budget / steps))
    return laws


def conditioned(claim: Claim, budget: float, *, smooth: bool) -> Curve:
    """Upper bound on delta(epsilon) given that every scale is at most u_max, plus the probability that one is not.

    Args:
        claim: Any that the theorem applies to.
        budget: That probability.
        smooth: Whether the smoothed curve is computed, besides the one by moments.

    Raises:
        ValueError: Other noise, or an unknown l2 radius.
    """
    add_remove = claim.adjacency == "add-remove"
    laws = list(zip(_laws(claim, budget, truncated), claim.phases, strict=True))
    parts = [(partial(law.release, phase.sampling_prob if add_remove else 1.0), phase.steps) for law, phase in laws]
    sampled = add_remove and any(phase.sampling_prob < 1 for phase in claim.phases)
    orders, alpha = composed_moments(claim, parts, sampled)
    spent = sum(phase.steps * law.beyond for law, phase in laws)
    coarse = _laws(claim, budget, rounded_up) if smooth else []
    pairs = [
        PairPhase(law.pair(), phase.sampling_prob, phase.steps)
        for law, phase in zip(coarse, claim.phases, strict=False)
    ]
    return smaller(claim, orders, alpha, pairs, (THEOREM, SMOOTHED_THEOREM), spent, (QUADRATURE,))


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), the best truncation of the scale at every point.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not moments_reach(claim):
        raise ValueError(f"Expected claim {claim.id!r} to be add-remove, or unsampled, or one release.")
    target = min(max(claim.delta, 1e-30), 0.5)
    swapped = claim.adjacency == "replace-one" and claim.phases[0].sampling_prob < 1
    ladder = [conditioned(claim, share * target, smooth=not swapped and share == SMOOTHED_SHARE) for share in SHARES]

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.min([curve.delta(epsilon) for curve in ladder], axis=0))

    best = min(ladder, key=lambda curve: float(curve.delta(np.array([claim.epsilon]))[0]))
    curve = Curve.upper(best.method, best.theorem, delta, best.assumptions)
    return replace_one_release(curve, claim.phases[0].sampling_prob) if swapped else curve
