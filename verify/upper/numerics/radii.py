"""How long a shift can be: the norms that the theorems need, from the norm that is clipped."""

import math

from dpaudit.mechanisms.base import Mechanism
from dpaudit.verify.claims import Adjacency, Claim, Phase


def radius(mechanism: Mechanism, order: float, adjacency: Adjacency) -> float | None:
    """Largest l_order norm of a shift v - w of two neighbouring contributions.

    |v|_order <= n^max(0, 1/order - 1/p) |v|_p for v in R^n; replace-one doubles clip.

    Args:
        mechanism: With its clip and clip_norm p.
        order: Of the norm that is wanted, in [1, inf].
        adjacency: "add-remove" or "replace-one".

    Returns:
        The bound, or None where it needs a dimension that is not set.
    """
    clip = float(mechanism.clip) * (1.0 if adjacency == "add-remove" else 2.0)
    growth = 1.0 / order - 1.0 / float(mechanism.clip_norm)
    if growth <= 0:
        return clip
    if mechanism.dimension is None:
        return None
    return clip * math.pow(mechanism.dimension, growth) * (1 + 1e-15)


def sampling_is_known(phase: Phase) -> bool:
    """Poisson sampling, or none at all: the kinds with theorems here."""
    return phase.sampling_kind == "poisson" or (phase.sampling_kind == "none" and phase.sampling_prob == 1)


def moments_reach(claim: Claim) -> bool:
    """Whether bounds by moments cover the claim's adjacency and sampling.

    Replace-one with sampling is covered for one release only, through its delta (see `rdp.replace_one_release`).
    """
    if not all(sampling_is_known(phase) for phase in claim.phases):
        return False
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    alone = len(claim.phases) == 1 and claim.phases[0].steps == 1
    return claim.adjacency == "add-remove" or not sampled or alone
