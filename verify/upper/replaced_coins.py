"""Poisson-sampled records that are replaced, noise of bounded ratio: the pure epsilon that their own coin leaves.

Let a release be f if the record is not drawn, f_v or f_w with the one or the other version, both within a clip of f.
Given who else is drawn and with e^-s <= f_v/f, f_w/f <= e^s, the ratio of the two mixtures is

    ((1 - q) f + q f_v) / ((1 - q) f + q f_w) <= (1 - q + q e^s) / (1 - q + q e^-s),

which Laplace noise reaches beyond v = -w. It needs that the others contribute the same whether the record is drawn: not
so where `met_releases` reads batches of fixed size as Poisson ones (`met_releases.takes_places`). Epsilons of releases
add up (Dwork et al. 2006), and each costs at most randomized response.
"""

import math

from dpaudit.verify.claims import Claim, Phase
from dpaudit.verify.curves import Curve
from dpaudit.verify.upper import bounded_loss, laplace_pure

PURE_THEOREM = "a record's own coin and densities of bounded ratio: the ratio of the two mixtures; Dwork et al. (2006)"
THEOREM = f"{PURE_THEOREM}; randomized response of that epsilon, Kairouz, Oh and Viswanath (2015), Theorem 3.2"


def release_epsilon(claim: Claim, phase: Phase) -> float | None:
    """Pure epsilon of one release of a phase under replace-one, rounded up; None where there is none."""
    known = bounded_loss.phase_epsilon(claim, phase)
    one_version = bounded_loss.release_epsilon(phase.mechanism, "add-remove")
    if known is None or one_version is None or phase.sampling_prob == 1:
        return known
    return min(known, between_versions(one_version, phase.sampling_prob) * (1.0 + bounded_loss.ROUNDING))


def between_versions(shift: float, q: float) -> float:
    """log of (1 - q + q e^shift) / (1 - q + q e^-shift).

    >>> between_versions(1.0, 0.5)  # (1 + e) / (1 + 1/e) is e
    1.0
    """
    below = 1.0 - q + q * math.exp(-shift)
    if shift <= laplace_pure.LARGEST_SHIFT:
        return math.log1p(2.0 * q * math.sinh(shift) / below)
    return shift + math.log(q + (1.0 - q) * math.exp(-shift)) - math.log(below)


def applies(claim: Claim) -> bool:
    """Densities of bounded ratio in every phase, Poisson sampling in one, and a record that is replaced."""
    sampled = any(phase.sampling_prob < 1 for phase in claim.phases)
    return (
        claim.adjacency == "replace-one"
        and sampled
        and all(release_epsilon(claim, phase) is not None for phase in claim.phases)
    )


def bound(claim: Claim) -> Curve:
    """Upper bound on delta(epsilon): randomized response, composed, and 0 from the pure epsilon on.

    Raises:
        ValueError: `applies(claim)` is false.
    """
    found = [(release_epsilon(claim, phase), phase.steps) for phase in claim.phases]
    releases = [(one, steps) for one, steps in found if one is not None]
    if not applies(claim):
        raise ValueError(f"Expected claim {claim.id!r} to replace a sampled record, with noise of bounded ratio.")
    return bounded_loss.responses_curve(claim, releases, THEOREM, PURE_THEOREM)
