"""Noise with a Lipschitz log-density under an l2 bound C costs no more than Gaussian noise, in every dimension.

If |log f(x) - log f(y)| <= |x - y|/b in one coordinate, a shift v has losses of at most s_i = |v_i|/b there, and the
Gaussian pair of mu = C/b dominates the history for all functions of `numerics.smoothing`: powers of the likelihood
ratio, hence moments at every real order >= 1, and smoothed hockey sticks, hence the smoothed Gaussian curve. Laplace(b)
is such noise, and so is a heavy tail. A law declares the constant 1/b, which is then proved with its density.

For Laplace noise and moments there is a direct proof too. One coordinate moved by s has E_Q[W^eta] = F(s, eta),

    F(s, eta) = [eta e^((eta-1)s) + (eta-1) e^(-eta s)]/(2 eta - 1) <= exp(eta (eta-1) s^2/2),   eta >= 1, s >= 0:

F is the moment generating function at 1 of a variable that is (eta-1) s with probability eta/(2 eta - 1) >= 1/2 and
-eta s otherwise: mean 0, variance eta (eta-1) s^2. The second derivative of log E e^(tX) is the variance under the
tilt e^(tX), which raises the larger probability further above 1/2, so it falls in t and log E e^X <= Var/2. Hence
E_Q[W^eta] over the vector is at most exp(eta (eta-1)|v|_2^2/(2 b^2)), attained as n grows with v_i = C/sqrt(n).

Neither is a bound on delta itself by the Gaussian's delta: at n = 1, epsilon = 0 and C/b < 1.19 Laplace noise has the
larger one.
"""

from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, IIDCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.pld.dominating_pairs import gaussian_pair
from dpaudit.verify.pld.pair_curve import PairPhase, compose_pairs, worst_delta
from dpaudit.verify.pld.smoothing import Smoothed
from dpaudit.verify.rdp import (
    Moments,
    composed_moments,
    gaussian_moments,
    moments_delta,
    rdp_curve,
    replace_one_release,
)
from dpaudit.verify.upper.shift_norms import moments_reach, radius

THEOREM = (
    "Gaussian domination of noise with a Lipschitz log-density under l2 clipping: E_Q[(dP/dQ)^eta] <= "
    "exp(eta (eta-1) C^2/(2 b^2)) for real eta >= 1, Poisson-sampled as the Gaussian's; Balle et al. (2020), Theorem 21"
)
SMOOTHED_THEOREM = (
    "Gaussian domination of noise with a Lipschitz log-density under l2 clipping: its delta is at most the smoothed "
    "Gaussian curve; Kairouz, Oh and Viswanath (2015), Theorem 3.4; Zhu, Dong and Wang (2022), Theorems 10 and 11"
)


def gaussian_shift(claim: Claim, phase: Phase) -> float | None:
    """mu = C/b of the dominating Gaussian, None for other noise or an unknown l2 radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, IIDCoordinates):
        return None
    slope, length = structure.lipschitz, radius(phase.mechanism, 2.0, claim.adjacency)
    return None if slope is None or length is None else length * slope * (1 + 1e-14)


COARSE = 4.0  # smoothing costs far more than such a grid


def moments(claim: Claim, phase: Phase, rate: float | None = None) -> Moments | None:
    """Log-moments of one release at real orders by Gaussian domination, None where the theorem does not apply.

    Args:
        claim: Its adjacency says how long a shift is.
        phase: The phase.
        rate: Probability of the shift, else none; that of the phase under add-remove, else 1, if None.
    """
    mu = gaussian_shift(claim, phase)
    if mu is None:
        return None
    return partial(gaussian_moments, mu, _rate(claim, phase) if rate is None else rate)


def _rate(claim: Claim, phase: Phase) -> float:
    return phase.sampling_prob if claim.adjacency == "add-remove" else 1.0


def applies(claim: Claim) -> bool:
    """Lipschitz log-density in every phase, its l2 radius known, and add-remove if sampled (or a single release)."""
    return moments_reach(claim) and all(gaussian_shift(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): the Gaussian's moments, or its smoothed curve where that is less.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    shifts = [(gaussian_shift(claim, phase), phase) for phase in claim.phases]
    known = [(mu, phase) for mu, phase in shifts if mu is not None]
    if len(known) < len(shifts) or not moments_reach(claim):
        raise ValueError(
            f"Expected claim {claim.id!r} to have a Lipschitz log-density and a known l2 radius in every phase."
        )
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    if claim.adjacency == "replace-one" and sampled:
        parts = [(partial(gaussian_moments, mu, 1.0), phase.steps) for mu, phase in known]
        curve = rdp_curve(claim, parts, sampled=False, method="rdp", theorem=THEOREM)
        return replace_one_release(curve, claim.phases[0].sampling_prob)
    parts = [(partial(gaussian_moments, mu, phase.sampling_prob), phase.steps) for mu, phase in known]
    orders, alpha = composed_moments(claim, parts, False)
    pairs = [PairPhase(gaussian_pair(mu), phase.sampling_prob, phase.steps) for mu, phase in known]
    return smaller(claim, orders, alpha, pairs, (THEOREM, SMOOTHED_THEOREM))


def smaller(
    claim: Claim,
    orders: Array,
    alpha: Array,
    pairs: list[PairPhase],
    theorems: tuple[str, str],
    spent: float = 0.0,
) -> Curve:
    """Upper bound on delta(epsilon): by log-moments or by the smoothed Gaussian curve, whichever is less.

    Args:
        claim: Where it matters which one is.
        orders, alpha: Moments of the dominating history.
        pairs: Its releases; none to go by the moments alone.
        theorems: What proves the one, and the other.
        spent: Probability that is added to delta.
    """
    by_moments = partial(moments_delta, orders, alpha)
    composed = compose_pairs(pairs, ("remove",), claim.least_delta, coarse=COARSE) if pairs else []
    smoothed = Smoothed(partial(worst_delta, composed), orders, alpha).delta if pairs else np.ones_like

    def delta(epsilon: Array) -> Array:
        return np.minimum(np.minimum(by_moments(epsilon), smoothed(epsilon)) + spent, 1.0)

    point = np.array([claim.epsilon])
    second = bool((smoothed(point) < by_moments(point)).all())
    method, theorem = ("pld", theorems[1]) if second else ("rdp", theorems[0])
    return Curve.upper(method, theorem, delta)
