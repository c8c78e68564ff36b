"""Laplace(b) noise under an l2 bound C costs no more moments than Gaussian noise of sigma = b, in every dimension.

One coordinate moved by s = |v_i|/b has E_Q[W^eta] = F(s, eta), with W = dP/dQ and

    F(s, eta) = [eta e^((eta-1)s) + (eta-1) e^(-eta s)]/(2 eta - 1);

    F(s, eta) <= exp(eta (eta-1) s^2/2)   for real eta >= 1, s >= 0.

Proof. F is the moment generating function at 1 of a variable that is (eta-1) s with probability eta/(2 eta - 1) >= 1/2
and -eta s otherwise: mean 0, variance eta (eta-1) s^2. The second derivative of log E e^(tX) is the variance under the
tilt e^(tX), which raises the larger probability further above 1/2, so it falls in t and log E e^X <= Var/2.

Hence E_Q[W^eta] over the vector is at most exp(eta (eta-1)|v|_2^2/(2 b^2)), the Gaussian's. Sampled, at WHOLE orders
the binomial sum of these is the sampled Gaussian's. At real orders a > 1 too E_Q[(1-q+qW)^a] is at most the Gaussian's:
given the other coordinates' ratio r, (1-q+q r w)^a = const (1-q'+q'w)^a with another rate q', so one coordinate may be
exchanged at a time. For one of them write E(1-q'+q'W)^a as a mixture over g >= 1 of hockey sticks E_g = E_Q(W - g)_+
and their mirror images, with a density psi; D(g) = E_g(Gauss) - E_g(Laplace) changes sign once at most on [1, inf),
from - to +; g^(3/2) psi(g) is nondecreasing; and the integral of D against g^(-3/2) is nonnegative, as it is a
difference of Hellinger affinities, (1 + s/2) e^(-s/2) >= e^(-s^2/8). So the integral of D against psi is nonnegative.

The bound is attained as n grows with v_i = C/sqrt(n). It is not one for delta itself: at n = 1, epsilon = 0 and
C/b < 1.19 Laplace noise has the larger delta.
"""

from functools import partial

from dpaudit.mechanisms.base import IIDCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.rdp import Moments, gaussian_moments, rdp_curve, replace_one_release
from dpaudit.verify.upper.numerics.radii import moments_reach, radius

THEOREM = (
    "Gaussian domination of Laplace noise under l2 clipping: E_Q[(dP/dQ)^eta] <= exp(eta (eta-1) C^2/(2 b^2)) for real "
    "eta >= 1, Poisson-sampled as the Gaussian's; Balle et al. (2020), Theorem 21"
)


def gaussian_shift(claim: Claim, phase: Phase) -> float | None:
    """mu = C/b of the dominating Gaussian, None for other noise or an unknown l2 radius."""
    structure = phase.mechanism.structure
    if not isinstance(structure, IIDCoordinates) or structure.laplace_scale is None:
        return None
    length = radius(phase.mechanism, 2.0, claim.adjacency)
    return None if length is None else length / structure.laplace_scale * (1 + 1e-14)


def moments(claim: Claim, phase: Phase) -> Moments | None:
    """Moments of one release of a phase at real orders, None where the theorem has none."""
    mu = gaussian_shift(claim, phase)
    if mu is None:
        return None
    return partial(gaussian_moments, mu, phase.sampling_prob if claim.adjacency == "add-remove" else 1.0)


def applies(claim: Claim) -> bool:
    """Laplace noise in every phase, its l2 radius known, and add-remove if sampled (or a single release)."""
    return moments_reach(claim) and all(moments(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon) by the Gaussian's moments.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    found = [(moments(claim, phase), phase.steps) for phase in claim.phases]
    parts = [(function, steps) for function, steps in found if function is not None]
    if len(parts) < len(found) or not moments_reach(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have Laplace noise and a known l2 radius in every phase.")
    curve = rdp_curve(claim, parts, sampled=False, method="rdp", theorem=THEOREM)
    if claim.adjacency == "replace-one" and claim.phases[0].sampling_prob < 1:
        return replace_one_release(curve, claim.phases[0].sampling_prob)
    return curve
