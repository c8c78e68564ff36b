"""Laplace noise with ONE hidden scale per vector (Gamma-PLRV) under an l2 bound C.

Showing u to the adversary only helps. Given u the noise is Laplace(1/u), so by Gaussian domination (see
`laplace_gaussian_domination`) E_Q[(dP/dQ)^eta | u] <= exp(eta (eta-1) u^2 C^2/2). Its mean over all u may be infinite,
so the history is conditioned on every u being at most u_max: that changes each law by probability
T P(u > u_max) at most, which goes to delta, and leaves u with its law given u <= u_max:

    alpha = T log sum_eta w_eta E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max],   delta = delta_alpha + T P(u > u_max).

Any u_max is valid; the best of a ladder is taken at every point of the curve.
"""

import math
from dataclasses import dataclass
from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates, ScaleMixture
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.inversion import epsilon_at
from dpaudit.verify.rdp import rdp_curve, replace_one_release, sampled_moments
from dpaudit.verify.upper.numerics.radii import moments_reach, radius

THEOREM = (
    "shared scale revealed and truncated: Gaussian domination given u <= u_max, averaged over u, with the probability "
    "of a larger u added to delta; Balle et al. (2020), Theorem 21"
)
QUADRATURE = "upper bound: the quadrature over the hidden scale is charged a relative error of 1e-8"
SHARES = (1e-6, 1e-4, 0.01, 0.05, 0.2, 0.5)  # of the claimed delta that may be spent on u > u_max
BLIND = 1e-12  # probability of the smallest u, which are counted at their largest
PANELS, NODES = 48, 12
MASS_ERROR = 1e-8  # relative error charged to a quadrature that the total mass checks to this


@dataclass(frozen=True)
class Truncated:
    """u given u <= u_max, as atoms, and the shift's l2 norm.

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

    def log_ratio_moments(self, largest: int) -> Array:
        """log E[exp(eta (eta-1) u^2 C^2/2) | u <= u_max] for eta = 0..largest."""
        eta = np.arange(largest + 1.0)
        exponent = np.outer(eta * (eta - 1) / 2, (self.nodes * self.length) ** 2) + self.log_weights
        top = exponent.max(axis=1)
        values = top + np.log(np.exp(exponent - top[:, None]).sum(axis=1))
        values[:2] = 0.0
        return np.asarray(values)

    def release(self, sampling_prob: float, orders: Array) -> Array:
        """alpha(lam) of one release."""
        if sampling_prob < 1:
            return sampled_moments(self.log_ratio_moments(math.ceil(float(orders.max())) + 1), sampling_prob, orders)
        a = orders * (orders + 1) / 2
        exponent = np.outer(a, (self.nodes * self.length) ** 2) + self.log_weights
        top = exponent.max(axis=1)
        return np.asarray(top + np.log(np.exp(exponent - top[:, None]).sum(axis=1)))


def truncated(mixture: ScaleMixture, length: float, beyond: float) -> Truncated:
    """The scale's law up to its upper quantile of probability `beyond`.

    Args:
        mixture: The noise.
        length: l2 norm of the shift.
        beyond: P(u > u_max), in (0, 1/2).
    """
    u_max = float(mixture.scale_isf(np.array([beyond]))[0])
    # panels end at quantiles, so that they are narrow where the law is; the last ones reach u_max evenly
    levels = np.concatenate([np.geomspace(BLIND, 0.5, PANELS // 2), 1.0 - np.geomspace(0.4, 1e-3, PANELS // 4)])
    ends = mixture.scale_ppf(levels)
    ends = np.append(ends[ends < u_max * 0.999], u_max)
    ends = np.concatenate([ends[:-2], np.linspace(ends[-2], u_max, PANELS // 2)])
    x, w = np.polynomial.legendre.leggauss(NODES)
    low, width = ends[:-1, None], np.diff(ends)[:, None]
    nodes, weights = (low + 0.5 * width * (x + 1)).ravel(), (0.5 * width * w).ravel()
    mass = weights * np.exp(mixture.scale_logpdf(nodes))
    expected = float(mixture.scale_cdf(ends[-1:])[0] - mixture.scale_cdf(ends[:1])[0])
    if abs(mass.sum() - expected) > MASS_ERROR * expected:
        raise ArithmeticError(f"Expected the quadrature over the scale to have mass {expected}, found {mass.sum()}.")
    below = float(mixture.scale_cdf(ends[:1])[0])
    nodes, mass = np.append(ends[0], nodes), np.append(below, mass) * (1 + 2 * MASS_ERROR)
    actual = float(mixture.scale_sf(np.array([u_max]))[0]) * (1 + 1e-12)
    return Truncated(nodes, np.log(np.maximum(mass, 1e-320)) - math.log1p(-actual), actual, length)


def radius_of(claim: Claim, phase: Phase) -> float | None:
    """l2 radius of a phase whose noise is Laplace given a scale, None for other noise or an unknown radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, ScaleMixture):
        return None
    law: IIDCoordinates = structure.given(1.0)
    return None if law.laplace_scale != 1.0 else radius(phase.mechanism, 2.0, claim.adjacency)


def applies(claim: Claim) -> bool:
    """Laplace noise of inverse scale u in every phase, the l2 radius known, and add-remove if sampled."""
    return moments_reach(claim) and all(radius_of(claim, phase) is not None for phase in claim.phases)


def _at_share(claim: Claim, budget: float) -> tuple[Curve, float]:
    """The curve of the history conditioned on u <= u_max, and the probability of the rest."""
    steps = sum(phase.steps for phase in claim.phases)
    parts, spent = [], 0.0
    for phase in claim.phases:
        structure, length = phase.mechanism.structure, radius_of(claim, phase)
        if length is None or not isinstance(structure, ScaleMixture):
            raise ValueError(f"Expected claim {claim.id!r} to have Laplace noise of one hidden scale in every phase.")
        law = truncated(structure, length, budget / steps)
        spent += phase.steps * law.beyond
        rate = phase.sampling_prob if claim.adjacency == "add-remove" else 1.0
        parts.append((partial(law.release, rate), phase.steps))
    sampled = claim.adjacency == "add-remove" and any(phase.sampling_prob < 1 for phase in claim.phases)
    return rdp_curve(claim, parts, sampled=sampled, method="rdp", theorem=THEOREM), spent


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon), the best truncation of the scale at every point.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not moments_reach(claim):
        raise ValueError(f"Expected claim {claim.id!r} to be add-remove, or unsampled, or one release.")
    target = min(max(claim.delta, 1e-30), 0.5)
    ladder = [_at_share(claim, share * target) for share in SHARES]

    def delta(epsilon: Array) -> Array:
        return np.asarray(np.minimum(np.min([curve.delta(epsilon) + spent for curve, spent in ladder], axis=0), 1.0))

    curve = Curve("upper", "rdp", THEOREM, delta, partial(epsilon_at, delta), (QUADRATURE,))
    if claim.adjacency == "replace-one" and claim.phases[0].sampling_prob < 1:
        return replace_one_release(curve, claim.phases[0].sampling_prob)
    return curve
