"""The minimum of a perturbed objective, released with noise: what the history of plain noise says of it."""

from dataclasses import replace
from functools import cache

import numpy as np

from dpaudit.mechanisms.base import Array, LaplaceCoordinates, PowerCoordinates, Radial, ScaleMixture, Structure
from dpaudit.verify.checking import check
from dpaudit.verify.claims import Claim
from dpaudit.verify.implied import operating_points
from dpaudit.verify.results import Verdict, VerdictName, up

TIMES = {"add-remove": 2.0, "zero-out": 2.0, "replace-one": 4.0}
THEOREM = "perturbed objective of a linear model, bounded by the noise's density at the ends of the gradient's range"


def check_perturbed_objective(claim: Claim, *, jacobian: float) -> Verdict:
    """Bracket of approximate-minima perturbation: delta(epsilon) <= 2 or 4 delta_history(epsilon - J).

    Let u range over the differing record's possible directions and b_1 be the noise in the objective. The
    privacy loss of the minimum is at most J + log f(b_1)/f(b_1 + a u) with J = log(1 + beta/Lambda) and some slope a in
    [0, 1] that depends on b_1 (Kifer, Smith and Thakurta (2012), Section 3, for the change of variables). A density f
    whose superlevel sets are convex is least, on a segment, at one of its ends, so the loss is at most
    J + max(0, L_u(b_1)), L_u being the loss of plain noise at the shift u. Given the minimum, the loss L_2 of the
    output noise is independent of b_1. With delta_2(x) = sup E (1 - e^(x - L_2))_+ and e = epsilon - J >= 0,

        delta(epsilon) <= E delta_2(e - max(0, L_u)) <= E delta_2(e - L_u) + delta_2(e) <= 2 delta_history(e),

    where the history has both releases with plain noise. For replace-one the gradients of the two records span a
    parallelogram with the corners 0, u, -u', u - u', of length at most 2: three of these terms, and delta_2:
    delta(epsilon) <= 4 delta_history(e). (Redberg, Koskela and Wang (2023), Theorem 3, have a factor 2 for Gaussian
    noise alone.) What a witness forces on plain noise need not be forced here, as only the sum of minimum and noise
    is seen: the lower bound is 0, and nothing is refuted by this check.

    Args:
        claim: Its history is the noise in the objective, then the output noise, each as plain noise on its shift.
        jacobian: J >= 0, the most that the change of variables adds to the loss.
    """
    times, proven = TIMES[claim.adjacency], _quasi_concave(claim.phases[0].mechanism.structure)
    history = check(
        Claim(max(claim.epsilon - jacobian, 0.0), claim.delta / times, claim.phases, claim.adjacency, claim.id)
    )

    def delta_at_most(epsilon: Array) -> Array:
        reached = (epsilon >= jacobian) & proven
        upper = np.ones(len(epsilon))
        upper[reached] = np.minimum(times * history.delta_at_most(epsilon[reached] - jacobian), 1.0)
        return upper

    def delta(epsilon: Array) -> tuple[Array, Array]:
        return np.zeros(len(epsilon)), delta_at_most(epsilon)

    def epsilon(at: Array) -> tuple[Array, Array]:
        return np.zeros(len(at)), history.epsilon(at / times)[1] + (jacobian if proven else np.inf)

    delta_upper = float(delta_at_most(np.array([claim.epsilon]))[0])
    epsilon_upper = float(epsilon(np.array([claim.delta]))[1][0])
    name: VerdictName = "certified" if delta_upper <= claim.delta else "undecided"
    bound = f"delta is at most {up(delta_upper, 4)} at epsilon={claim.epsilon:.12g}"
    reason = f"{bound}, by {THEOREM}."
    if name == "undecided":
        reason = (
            f"The true epsilon is at most {up(epsilon_upper, 4)} at delta={claim.delta:.12g} ({bound}); to decide the "
            "claim, it takes a tighter bound for perturbed objectives, or an attack on the released model."
        )
    return replace(
        history, verdict=name, reason=reason, epsilon_claimed=claim.epsilon, delta_claimed=claim.delta,
        epsilon_lower=0.0, epsilon_upper=epsilon_upper, delta_lower=0.0, delta_upper=delta_upper, witness=None,
        delta_curve=delta, epsilon_curve=epsilon, delta_upper_curve=delta_at_most,
        operating=cache(lambda: operating_points(delta_at_most, lambda at: epsilon(at)[1])),
        assumptions=[*history.assumptions, "the solver stops only where the gradient's norm is at most gradient_norm"],
    )  # fmt: skip


def _quasi_concave(structure: Structure) -> bool:
    """Whether the density is known to have convex superlevel sets: log-concave, or decreasing in some norm."""
    if isinstance(structure, Radial):
        return True
    if isinstance(structure, ScaleMixture):
        return isinstance(structure.given(1.0), LaplaceCoordinates)  # decreasing in |x|_1 whatever the scale
    return isinstance(structure, PowerCoordinates)
