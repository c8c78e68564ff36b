"""Normal noise by zero-concentrated differential privacy: a short proof, and a loose one.

A shift of length r under N(0, sigma^2) has Renyi divergence alpha rho for every alpha, rho = r^2 / (2 sigma^2); the
rhos of a history add up (Bun and Steinke (2016), Lemma 2.3 and Proposition 1.6). Then, by their Proposition 1.3,

    delta(epsilon) <= exp(-(epsilon - rho)^2 / (4 rho))    for epsilon >= rho.
"""

from functools import partial

import numpy as np

from dpaudit.mechanisms.base import Array, NormalCoordinates
from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper.shift_norms import radius

THEOREM = "zero-concentrated differential privacy of normal noise: Bun and Steinke (2016), Propositions 1.3 and 1.6"
ROUNDED_UP = 1 + 1e-9


def rho(claim: Claim, phase: Phase) -> float | None:
    """The cost of a phase, None for other noise, an unknown l2 radius, or sampled releases."""
    structure = phase.mechanism.structure
    length = radius(phase.mechanism, 2.0, claim.adjacency)
    if not isinstance(structure, NormalCoordinates) or length is None or phase.sampling_prob < 1:
        return None
    return phase.steps * (length / structure.sigma) ** 2 / 2 * ROUNDED_UP


def applies(claim: Claim) -> bool:
    """Unsampled normal noise in every phase, its l2 radius known."""
    return all(rho(claim, phase) is not None for phase in claim.phases)


def bound(claim: Claim) -> Curve:
    """The curve of the composed rho.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to have unsampled normal noise in every phase.")
    total = sum(rho(claim, phase) or 0.0 for phase in claim.phases)
    return Curve("upper", "zcdp", THEOREM, partial(_delta, total), partial(_epsilon, total))


def _delta(total: float, epsilon: Array) -> Array:
    excess = np.maximum(np.asarray(epsilon) - total, 0.0)
    return np.asarray(np.minimum(np.exp(-(excess**2) / (4 * total)) * ROUNDED_UP, 1.0))


def _epsilon(total: float, delta: Array) -> Array:
    with np.errstate(divide="ignore"):  # infinite at delta = 0
        return np.asarray((total + 2 * np.sqrt(-total * np.log(delta))) * ROUNDED_UP)
